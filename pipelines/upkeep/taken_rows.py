"""Finds rows that a build would take over from earlier outputs, for plans."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pipelines import stages
from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import GivenFiles, Needs, StageKind
from pipelines.stage_forms.earlier_rows import earlier_names
from pipelines.stages import FILE_SETS, ITEM_KINDS
from pipelines.upkeep.corpus_build import CorpusBuild
from xmodal.errors import UserError
from xmodal.records.tables import Item
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import records_now, sealed_now
from xmodal.userdata.embedded_pictures import FOLDER

PREFIX = 40  # digits of a checksum, as names of embedded pictures have them
Checksums = Callable[[], Mapping[str, str]]  # of media that are known, by their paths


def taken_over(work: CorpusBuild, name: str, items: tuple[Item, ...], checksums: Checksums) -> int:
    """Counts items whose rows earlier outputs of a stage have, as far as what rows were made of tells."""
    if not any(directories(work.options.storage, name)):
        return 0
    known = checksums()
    digests = {item.id: _digest(item.media, known) for item in items}
    return len(_with_rows(work, name, items, {id: digest for id, digest in digests.items() if digest}))


def _digest(media: str, checksums: Mapping[str, str]) -> str:
    """The first digits of the sha256 of a medium; empty if it is not known."""
    archive, _, member = media.rpartition("!")
    return member[:PREFIX] if archive.startswith(f"{FOLDER}/") else checksums.get(media, "")[:PREFIX]


def _with_rows(work: CorpusBuild, name: str, items: tuple[Item, ...], digests: Mapping[str, str]) -> set[str]:
    """The ids of items that have rows in earlier outputs of a stage; those it needs must have some, too."""
    kind = stages.load(name)
    stage = _stage_like(work, kind, items)
    if stage is None:
        return set()
    names, sources = earlier_names(stage, work.options.storage)
    if "media" in kind.needs:
        known = {source[:PREFIX] for source in sources}
        return {id for id, digest in digests.items() if digest in known}
    found = {item.id for item in items} & names
    for need in {*kind.needs} - {*FILE_SETS, "records"} if found else ():
        found &= _with_rows(work, need, items, digests)
    return found


def _stage_like(work: CorpusBuild, kind: StageKind, items: tuple[Item, ...]) -> Stage[Any, Any] | None:
    """The stage, or while its inputs are not finished one of none: what a row is made of tells."""
    if stage := work.stage(kind.name):
        return stage
    storage, found = work.options.storage, dict[str, Output | None]()
    for need in kind.needs:
        if need == "media":
            found[need] = sealed_now(storage, need, work.corpus.media_set)
        elif need == "records":
            found[need] = records_now(storage, work.corpus.name)
        else:
            found[need] = next((output for output in directories(storage, need) if output.complete), None)
    outputs = {need: output for need, output in found.items() if output}
    files = GivenFiles({file: path for file, path in work.options.files.items() if file in kind.files})
    of_kind = items if kind.of not in ITEM_KINDS else tuple(item for item in items if item.kind == kind.of)
    with suppress(UserError, LookupError):  # the build will say it
        made = kind.make(work.config(kind), Needs(outputs, files, lambda: of_kind, work.corpus))
        return replace(made, inputs=())  # no output is its own: all lend
    return None
