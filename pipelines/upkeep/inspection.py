"""Looks at a root: how far each output is (status), and whether its bytes are the committed ones (verify)."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipelines.engine.building import sum_up, taint
from pipelines.engine.commits import Commits
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import FOLDERS, Ledger, blobs_of, ledgers, lose_blobs
from pipelines.upkeep.bookkeeping import forget_notes, unreadable_notes
from pipelines.upkeep.pruning import is_described, needed_folders
from xmodal.corpora import Part
from xmodal.errors import UserError
from xmodal.progress import printable
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import LOCK, blob_key, read_lock
from xmodal.root.selection import describe_differences, is_current
from xmodal.root.storage import IRREGULAR, Storage

BLOBS = "blobs/"


def status(storage: Storage) -> dict[str, Any]:
    """Describes every ledger and output; outputs of one stage and corpus also by what differs."""
    kept = [_ledger(ledger) for ledger in ledgers(storage)]
    rows, alike = [], defaultdict[tuple[str, str], dict[Output, dict[str, Any]]](dict)
    outputs = {output.folder: output for output in directories(storage)}
    needed = needed_folders(outputs)
    for output in outputs.values():
        try:
            row = _describe(output) | ({} if output.complete else {"needed": output.folder in needed})
            alike[row["stage"], row["of"]][output] = row
        except UserError as damage:
            row = {"path": output.where, "damage": str(damage)}
        rows.append(row)
    for several in alike.values():
        with suppress(UserError):
            if next(iter(several)).stage in FOLDERS.values():  # ledgers say which set is in use
                continue
            if len(several) > 1 or not all(map(is_current, several)):
                for row, told in zip(several.values(), describe_differences([*several]), strict=True):
                    row["differs"] = told.partition(" ")[2]
    return {"root": storage.url, "ledgers": kept, "outputs": rows}


def _ledger(ledger: Ledger) -> dict[str, Any]:
    try:
        return {"ledger": ledger.folder, "sealed": ledger.sealed, **ledger.summary()}
    except UserError as damage:
        return {"ledger": ledger.folder, "damage": str(damage)}


def _describe(output: Output) -> dict[str, Any]:
    _refuse_irregular(output)
    _, of = origin(output) or ("", None)
    known: dict[str, Any] = {"stage": output.stage, "identity": output.identity, "of": of}
    known |= {"path": output.where, "config": output.config, "complete": output.complete}
    if output.complete:
        totals = {name: value for name, value in output.totals.items() if name not in ("layout", "units_sha256")}
        return known | {"examples": _examples(output)} | totals
    storage, run = output.storage, {}
    runs = [name for name in storage.names(f"{output.folder}/_runs") if name.endswith(".json")]
    with suppress(ValueError, IndexError):
        run = json.loads(storage.read(f"{output.folder}/_runs/{runs[-1]}"))
    units = sum(1 for _ in Commits(storage, output.folder).lines(loose=True))
    known |= {"units": units, "planned": run.get("planned"), "started": run.get("started")}
    return known | {"ended": _why_ended(output)}


def _why_ended(output: Output) -> str:
    """The reason for which the last run ended too early, by its log; "" where it does not tell."""
    storage, runs = output.storage, f"{output.folder}/_runs"
    logs = [name for name in storage.names(runs) if name.endswith(".log")]
    with suppress(FileNotFoundError, UserError):
        last = storage.read(f"{runs}/{logs[-1]}").decode(errors="replace").rstrip() if logs else ""
        return printable(last.rpartition("\n")[2].partition(" ended by ")[2].partition(": ")[2])
    return ""


def _examples(output: Output) -> dict[str, dict[str, str]]:
    found = dict[str, dict[str, str]]()
    for unit in output.units() if output.totals["failures"] else ():
        for row, kind, reason in unit.failures:
            found.setdefault(kind, {"row": row, "reason": reason})
        if len(found) == len(output.totals["failures"]):
            break
    return found


def origin(output: Output) -> tuple[Part, str] | None:
    """The corpus (annotations) or media set that an output derives from; None if imported or damaged."""
    with suppress(UserError):
        for part, stage in FOLDERS.items():
            if output.stage == stage:
                return part, str(output.config["name"])
        for made in output.about["inputs"][:1]:
            source = Output(output.storage, f"{made['stage']}/{made['identity']}")
            if output.storage.size(f"{source.folder}/stage.json") is not None:
                return origin(source)
    return None


@dataclass(frozen=True)
class Damage:
    """A file that is not as it was committed. `unit` must be made again; None: the whole output.

    The keys of blobs and notes are below the root, names of other files below their output.
    """

    output: str  # empty for a blob that no set in use lists, and for a note
    unit: str | None
    file: str
    problem: str


def verify(storage: Storage, progress: ProgressLine) -> tuple[int, list[Damage]]:
    """Reads every byte of every finished output, every blob and every note; gives the number of files, and the damage.

    Only the description of unfinished outputs is read: the build that goes on checks the rest.
    """
    outputs, damage, locks, read = list(directories(storage)), list[Damage](), list[Output](), 0
    blobs = dict.fromkeys(blobs_of(storage), "")  # what is wrong with each
    with progress.over("verify", sum(map(_files_of, outputs)) + len(blobs), unit="files") as tick:
        for output in outputs:
            for found in _check_output(output):
                damage += [found] if found.problem else []
                locks += [output] if found.file == LOCK and not found.problem else []
                read += 1
                tick(1)
        for key in blobs:
            blobs[key] = _problem(storage, key, storage.size(key) or 0, key.rpartition("/")[2])
            tick(1)
    in_use = {f"{FOLDERS[ledger.part]}/{ledger.name}": ledger.sealed for ledger in ledgers(storage)}
    for output in locks:
        lost = [*_lost(output, blobs)]
        if in_use.get(f"{output.stage}/{output.config.get('name')}") in (None, output.identity):
            damage += lost
        elif gone := sum(1 for each in lost if each.file not in blobs):
            progress.say(
                f"{output.folder}: {gone:,} of its files are gone; another set took its place, nothing needs them"
            )
    listed = {found.file for found in damage}
    damage += [
        Damage("", None, key, f"{problem} (in no set)")
        for key, problem in blobs.items()
        if problem and key not in listed
    ]
    damage += [Damage("", None, key, f"cannot be read: {cure}") for key, cure in unreadable_notes(storage)]
    return read + len(blobs), damage


def unfinished(storage: Storage) -> list[str]:
    """The folders of outputs that a build has to finish, but for those that nothing needs."""
    outputs = {output.folder: output for output in directories(storage)}
    left = [output for output in outputs.values() if not output.complete and is_described(output)]
    needed = needed_folders(outputs)
    return [output.folder for output in left if output.folder in needed and not _is_irregular(output)]


def _is_irregular(output: Output) -> bool:
    return output.storage.is_irregular(f"{output.folder}/complete.json")


def _refuse_irregular(output: Output) -> None:
    if _is_irregular(output):
        raise UserError(f"{output.where}/complete.json {IRREGULAR}: delete it, and build again")


def _files_of(output: Output) -> int:
    try:
        return int(output.totals["files"])
    except UserError:
        return 0


def _check_output(output: Output) -> Iterator[Damage]:
    """Gives one result a file; where its problem is empty, nothing is wrong."""
    try:
        _refuse_irregular(output)
        stage = output.stage
        if not output.complete:
            return
        units = list(output.units())
        if any(output.totals.get(name) != value for name, value in sum_up(stage, units).items()):
            raise UserError("complete.json does not sum up what units.tsv says")
    except UserError as error:
        yield Damage(output.folder, None, "", str(error))
        return
    for unit in units:
        for name, (size, digest) in unit.files.items():
            problem = _problem(output.storage, f"{output.folder}/{name}", size, digest)
            yield Damage(output.folder, unit.name, name, problem)


def _lost(sealed: Output, blobs: Mapping[str, str]) -> Iterator[Damage]:
    """Files of a sealed set whose blobs are missing or damaged."""
    for locked in read_lock(sealed):
        if locked.sha256 and (problem := blobs.get(key := blob_key(locked.sha256), "missing")):
            yield Damage(sealed.folder, None, key, f"{problem} ({locked.path} of {sealed.folder})")


def _problem(storage: Storage, key: str, size: int, sha256: str) -> str:
    actual = storage.size(key)
    if actual is None:
        return IRREGULAR if storage.is_irregular(key) else "missing"
    if actual != size:
        return f"{actual:,} bytes instead of {size:,}"
    with storage.open(key) as file:
        return "" if sha256_of(file) == sha256 else "its bytes have changed"


def forget(storage: Storage, damage: list[Damage]) -> list[str]:
    """Takes what is damaged out of the records, and un-finishes what was made of it: the next build makes it again.

    Gives the folders of the outputs that were reached so.
    """
    notes = {each.file for each in damage if not each.output and not each.file.startswith(BLOBS)}
    forget_notes(storage, notes)
    folders = {
        found.output: [each for each in damage if each.output == found.output] for found in damage if found.output
    }
    outputs = {Output(storage, folder): found for folder, found in sorted(folders.items())}
    committed = {output: list(output.units()) for output, found in outputs.items() if all(each.file for each in found)}
    reached = list[str]()
    for output in committed:
        checksums = {unit_file: sha256 for unit in committed[output] for unit_file, (_, sha256) in unit.files.items()}
        reached += taint(output, {checksums.get(each.file, each.file.rpartition("/")[2]) for each in outputs[output]})
    lost = {found.file for found in damage if found.unit is None and found.file} - notes
    lose_blobs(storage, lost)
    for output, found in outputs.items():
        if output not in committed:
            storage.delete_folder(output.folder)
        elif units := {each.unit for each in found if each.unit}:
            Commits(storage, output.folder).forget(units, committed[output])
    return sorted({*reached})
