"""Finds what a root no longer needs: outputs of replaced sets, their blobs, and what stopped work left behind.

Needed are the sealed sets that the ledgers name now, the records that later stages read, imports, what is kept by name,
and everything that is made of needed outputs alone. Files that are younger than a day may belong to work under way, and
those that were fetched since the last seal to the next set.
"""

import shlex
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from pipelines.engine.commits import Commits
from pipelines.fetching.ledger import FOLDERS, Ledger, blobs_of, ledgers
from xmodal.errors import UserError
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import read_lock
from xmodal.root.selection import is_replaced
from xmodal.root.storage import Storage

YOUNG = 86_400.0  # seconds
FAILED = "a build that stopped before it had done anything"
LEFT_BEHIND = ("_runs/temporary", "_runs/partial")


@dataclass(frozen=True)
class Unneeded:
    """An output's folder, or files of one kind."""

    name: str
    why: str
    keys: tuple[str, ...]
    size: int  # bytes


def find_unneeded(storage: Storage, keep: Collection[str] = ()) -> list[Unneeded]:
    """`keep` are identities of outputs that others than this root need, such as a run's."""
    outputs = {output.folder: output for output in directories(storage)}
    if unknown := set(keep) - {folder.rpartition("/")[2] for folder in outputs}:
        listed = f"`xmodal status --root {shlex.quote(storage.url)}` lists them with their identities"
        raise UserError(f"{storage.url} has no output {min(unknown)}: {listed}")
    needed = needed_folders(outputs, keep)
    replaced = [output for folder, output in outputs.items() if folder not in needed and _is_over(output)]
    found = [_output(output, _why_replaced(output)) for output in replaced]
    read = {before for output in outputs.values() if is_described(output) for before in _inputs(output)}
    tried = [outputs[folder] for folder in sorted(needed - read) if folder.rpartition("/")[2] not in keep]
    found += [_output(output, FAILED) for output in tried if _is_failed(output)]
    blobs = [*_blobs(storage, [outputs[folder] for folder in needed])]
    left = [f"{folder}/{name}" for folder in LEFT_BEHIND for name in storage.names(folder)]
    found.append(_files(storage, "blobs", "files that no needed set lists", blobs))
    found.append(_files(storage, "_runs", "parts of files that killed work left behind", left))
    return [each for each in found if each.keys]


def remove(storage: Storage, unneeded: Collection[Unneeded]) -> None:
    """Outputs lose their complete.json first, blobs their ledgers: a kill leaves nothing that claims lost files."""
    for each in unneeded:
        for ledger in ledgers(storage) if each.name == "blobs" else ():
            ledger.prune({*each.keys})
        if each.name in ("blobs", "_runs"):
            storage.delete(*each.keys)
        else:
            storage.delete(f"{each.name}/complete.json")
            storage.delete_folder(each.name)


def needed_folders(outputs: dict[str, Output], keep: Collection[str] = ()) -> set[str]:
    """The folders of needed outputs. One that does not tell what it is is left for `verify`."""
    kept = {folder for folder in outputs if folder.rpartition("/")[2] in keep}
    kept |= {before for folder in kept for before in _ancestors(outputs, folder)}
    known = dict.fromkeys(kept | {folder for folder, output in outputs.items() if not is_described(output)}, True)

    def is_needed(folder: str) -> bool:
        if folder not in known:
            output = outputs.get(folder)
            is_current = output is not None and not is_replaced(output)
            known[folder] = is_current and all(is_needed(before) for before in _inputs(outputs[folder]))
        return known[folder]

    return {*filter(is_needed, outputs)}


def is_described(output: Output) -> bool:
    """Is false for an output that does not tell what it is."""
    try:
        return bool(output.about)
    except UserError:
        return False


def _inputs(output: Output) -> list[str]:
    return [f"{made['stage']}/{made['identity']}" for made in output.about["inputs"]]


def _ancestors(outputs: dict[str, Output], folder: str) -> Iterator[str]:
    for before in _inputs(outputs[folder]):
        if before in outputs:
            yield from (before, *_ancestors(outputs, before))


def _is_failed(output: Output) -> bool:
    """Says whether builds of an output, none of them recent, committed no unit, such as by wrong weights."""
    storage, runs = output.storage, f"{output.folder}/_runs"
    if output.complete or output.stage in FOLDERS.values() or not is_described(output):
        return False
    logs = [key for name in storage.names(runs) if storage.size(key := f"{runs}/{name}") is not None]
    if any(storage.age(key) <= YOUNG for key in (f"{output.folder}/stage.json", *logs)):
        return False
    try:
        has_units = any(True for _ in Commits(storage, output.folder).units(loose=True))
    except UserError:  # damaged, which `verify` tells
        return False
    return not has_units and not storage.names(f"{runs}/attempts")


def _why_replaced(output: Output) -> str:
    return "made of outputs that are no longer needed" if output.about["inputs"] else "replaced by another set"


def _output(output: Output, why: str) -> Unneeded:
    size = output.totals["bytes"] if output.complete else _bytes_in(output.storage, output.folder)
    return Unneeded(output.folder, why, (output.folder,), size)


def _is_over(output: Output) -> bool:
    return output.complete or output.storage.age(f"{output.folder}/stage.json") > YOUNG


def _bytes_in(storage: Storage, folder: str) -> int:
    total = 0
    with suppress(UserError):  # a link
        for name in storage.names(folder):
            size = storage.size(key := f"{folder}/{name}")
            total += _bytes_in(storage, key) if size is None else size
    return total


def _blobs(storage: Storage, needed: list[Output]) -> Iterator[str]:
    """Blobs that are in no needed set, and from which no ledger may seal the next one."""
    sets = [output for output in needed if output.stage in FOLDERS.values() and output.complete]
    wanted = {locked.sha256 for output in sets for locked in read_lock(output)}
    corpora = Counter(output.config["media_set"] for output in needed if output.stage == "records")
    for ledger in ledgers(storage):
        wanted |= _next_set(ledger, is_shared=ledger.part == "media" and corpora[ledger.name] > 1)
    yield from (key for key in blobs_of(storage) if key.rpartition("/")[2] not in wanted)


def _next_set(ledger: Ledger, is_shared: bool) -> set[str]:
    """Blobs that were fetched since the last seal; all while a fetch is at work, or corpora take turns at sealing."""
    storage, states, now = ledger.storage, list(ledger.states()), time.time()
    sealed, noted = f"{ledger.folder}/sealed", f"{ledger.folder}/driver"
    sealed_at = now - storage.age(sealed) if ledger.sealed and not is_shared else 0.0
    driver_at = now - storage.age(noted) if ledger.in_sight else 0.0
    is_busy = max([driver_at, *(state.last_at for state in states)]) > max(sealed_at, now - YOUNG)
    return {state.sha256 for state in states if not state.failed and (is_busy or state.last_at > sealed_at)}


def _files(storage: Storage, name: str, why: str, keys: list[str]) -> Unneeded:
    old = [key for key in keys if storage.size(key) is not None and storage.age(key) > YOUNG]
    return Unneeded(name, why, tuple(old), sum(storage.size(key) or 0 for key in old))
