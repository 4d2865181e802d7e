"""Retries units of a stage with failures that another try may be spared, such as clips that took too long.

Where no setting is given, those of the only output of the stage are meant, as it has noted them.
Outputs made of the retried one become unfinished; their next build makes again the units that read what has changed.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipelines import stages
from pipelines.engine.building import build
from pipelines.engine.commits import Commits
from pipelines.engine.stage import Stage
from pipelines.engine.typed_settings import recorded
from pipelines.fetching.ledger import reasons_of
from pipelines.stages import FILE_SETS
from pipelines.upkeep.corpus_build import CorpusBuild, kinds_for
from xmodal.errors import UserError
from xmodal.features.weight_files import OF_FILE
from xmodal.root.identity import to_plain
from xmodal.root.outputs import Output, directories
from xmodal.root.selection import ancestor, build_command, current, describe, describe_differences


def retry_units(work: CorpusBuild, name: str, kind: str | None = None) -> dict[str, Any]:
    """Makes units again in which rows failed, by `kind` if given; counts the rows that recovered."""
    options, target = work.options, f"{work.corpus.name}/{name}"
    of_media = name not in FILE_SETS and "media" in stages.with_needs([name])
    stage = _as_built(work, name) if of_media else None
    if stage is None or not stage.passing:
        raise UserError(f"{target} is made of files: name the corpus, whose failed files are fetched again, then build")
    if kind and kind not in stage.passing:
        raise UserError(f"{kind} is for good: another try of {target} may be spared {', '.join(stage.passing)}")
    commits = Commits(options.storage, stage.folder)
    kinds, units = (kind,) if kind else stage.passing, commits.units(loose=True)  # also those that a kill left half
    tried = {(row, unit.name) for unit in units for row, failed, _ in unit.failures if failed in kinds}
    commits.adopt()
    made_of_it = []
    for made in directories(options.storage) if tried else ():
        source = ancestor(made, stage.name)
        if source and source.folder == stage.folder:
            made_of_it.append(made.folder)
            options.storage.delete(f"{made.folder}/complete.json")  # first: a kill leaves nothing finished of it
    if tried:
        commits.forget({unit for _, unit in tried}, commits.units())
    again = build(stage, options.storage, options.run, options.progress)
    rows = {row for row, _ in tried}
    failed = {one[0]: one for unit in again.units() for one in unit.failures if one[0] in rows}
    told = {"tried": len(rows), "recovered": len(rows) - len(failed), "path": again.where, "unfinished": made_of_it}
    told |= {"reasons": reasons_of(failed.values())} if failed else {}
    return told | {"of": "clips" if stages.is_of(name, "clip") else "pictures"}


def _as_built(work: CorpusBuild, name: str) -> Stage[Any, Any]:
    """The stage of an output that is there: with the settings given, or with those of the only one."""
    options, target, media = work.options, f"{work.corpus.name}/{name}", work.finished("media")
    made = [made for made in directories(options.storage, name) if media and _is_made_of(made, media)]
    if not made:
        cure = build_command(options.storage.url, work.corpus.name, name)
        raise UserError(f"there is no {target}: build it first ({cure})")
    there, settings = current(made), dict[str, object]()
    if len(there) == 1 and not options.settings:
        for kind in kinds_for(None, [name]):
            source = there[0] if kind.name == name else ancestor(there[0], kind.name)
            settings |= recorded(source.config, kind.config(), kind.name) if source else {}
        work = CorpusBuild(replace(options, settings=settings), work.corpus, work.found)
    stage = work.stage(name)
    if stage is None or stage.folder not in {each.folder for each in made}:
        problem = f"there is no {target} of these settings and files: give those of one by --set and --file NAME=PATH"
        listed = describe_differences(there) if len(there) > 1 else [describe(there[0])]
        told = (f"{one} by {_flags_of(made, name)}" for one, made in zip(listed, there, strict=True))
        raise UserError(f"{problem}; there are: {', '.join(told)}")
    return stage


def _flags_of(made: Output, name: str) -> str:
    """The --set and --file by which an output was built: settings other than the usual ones, and files."""
    told = list[str]()
    for kind in kinds_for(None, [name]):
        if source := made if kind.name == name else ancestor(made, kind.name):
            usual = recorded(to_plain(kind.config()), kind.config(), kind.name)
            settings = recorded(source.config, kind.config(), kind.name)
            told += [_flag(one, value) for one, value in settings.items() if value != usual.get(one)]
            told += [f"--file {file}=PATH" for file in kind.files if _was_given(file, source.config)]
    return " ".join(told) or "no --set and no --file"


def _flag(name: str, value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"--set {shlex.quote(f'{name}={text}')}"


def _was_given(file: str, config: Mapping[str, Any]) -> bool:
    """Whether a config has the checksum of a file: in a field of its name, or in that of weights, boxes or files."""
    if file == "boxes":
        return config.get("boxes") == "file"
    if file in ("detector", "weights"):
        return str(config.get("weights")).startswith(OF_FILE)
    return bool(config.get(file)) or file in dict(config.get("files", ()))


def _is_made_of(made: Output, media: Output) -> bool:
    source = ancestor(made, "media")
    return source is not None and source.folder == media.folder
