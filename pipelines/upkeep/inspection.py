"""Looks at a root: how far each output is (status), and whether its bytes are the committed ones (verify)."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from pipelines.engine.building import Totals
from pipelines.engine.commits import Commits
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import FOLDERS, ledgers
from xmodal.corpora import Part
from xmodal.errors import UserError
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import LOCK, blob_key, read_lock
from xmodal.root.storage import Storage


def status(storage: Storage) -> dict[str, Any]:
    """Describes every ledger and every output, whether finished, unfinished or damaged."""
    kept = [{"ledger": ledger.folder, "sealed": ledger.sealed, **ledger.summary()} for _, _, ledger in ledgers(storage)]
    return {"root": storage.url, "ledgers": kept, "outputs": [_output_status(o) for o in directories(storage)]}


def _output_status(output: Output) -> dict[str, Any]:
    try:
        return _describe(output)
    except UserError as damage:
        return {"path": output.where, "damage": str(damage)}


def _describe(output: Output) -> dict[str, Any]:
    _, of = origin(output) or ("", None)
    known: dict[str, Any] = {"stage": output.stage, "identity": output.identity, "of": of}
    known |= {"path": output.where, "config": output.config}
    if output.complete:
        totals = {name: value for name, value in output.totals.items() if name not in ("layout", "units_sha256")}
        return known | {"complete": True, "examples": _examples(output)} | totals
    units = sum(1 for _ in Commits(output.storage, output.folder).lines(loose=True))
    run = _last_run(output)
    return known | {"complete": False, "units": units, "planned": run.get("planned"), "started": run.get("started")}


def _examples(output: Output) -> dict[str, dict[str, str]]:
    """One failure of each class."""
    kinds, found = set(output.totals["failures"]), dict[str, dict[str, str]]()
    for unit in output.units() if kinds else ():
        for row, kind, reason in unit.failures:
            found.setdefault(kind, {"row": row, "reason": reason})
        if found.keys() >= kinds:
            break
    return found


def origin(output: Output) -> tuple[Part, str] | None:
    """The corpus (annotations) or media set that an output is, or derives from.

    None for an import, and where the description of an output on the way is damaged.
    """
    with suppress(UserError):
        return _origin(output)
    return None


def _origin(output: Output) -> tuple[Part, str] | None:
    for part, stage in FOLDERS.items():
        if output.stage == stage:
            return part, str(output.config["name"])
    inputs = (Output(output.storage, f"{i['stage']}/{i['identity']}") for i in output.about["inputs"][:1])
    there = (made for made in inputs if made.storage.size(f"{made.folder}/stage.json") is not None)
    return next(map(_origin, there), None)


def _last_run(output: Output) -> dict[str, Any]:
    runs = [name for name in output.storage.names(f"{output.folder}/_runs") if name.endswith(".json")]
    with suppress(ValueError, IndexError):
        return cast("dict[str, Any]", json.loads(output.storage.read(f"{output.folder}/_runs/{runs[-1]}")))
    return {}


@dataclass(frozen=True)
class Damage:
    """One file that is not as it was committed. `unit` must be done again; None means the whole output."""

    output: str
    unit: str | None
    file: str
    problem: str


def verify(storage: Storage, progress: ProgressLine) -> tuple[int, list[Damage]]:
    """Reads every byte of every finished output and sealed set; gives how many files it read, and the damage.

    Unfinished outputs are not read, but for their description: a build that goes on checks the rest itself.
    """
    outputs = list(directories(storage))
    total = sum(_files_of(output) for output in outputs)
    damage: list[Damage] = []
    checked: dict[str, str | None] = {}
    with progress.over("verify", total, unit="files") as tick:
        for output in outputs:
            for found in _check_output(output, checked):
                damage += [found] if found else []
                tick(1)
    return len(checked), damage


def _files_of(output: Output) -> int:
    try:
        return int(output.totals["files"]) + int(output.totals["counts"].get("present", 0))
    except UserError:
        return 0


def _check_output(output: Output, checked: dict[str, str | None]) -> Iterator[Damage | None]:
    """Gives one result a file, damage or None; blobs that several sets share are read once."""
    try:
        totals = Totals(output.stage)
        if not output.complete:
            return
        units = list(output.units())
        for unit in units:
            totals.add(unit)
        if any(output.totals.get(name) != value for name, value in totals.summary().items()):
            raise UserError("complete.json does not sum up what units.tsv says")
    except UserError as error:
        yield Damage(output.folder, None, "", str(error))
        return
    for unit in units:
        for name, (size, digest) in unit.files.items():
            problem = _check_file(output.storage, f"{output.folder}/{name}", size, digest, checked)
            yield Damage(output.folder, unit.name, name, problem) if problem else None
            if name == LOCK and not problem:
                yield from _check_blobs(output, checked)


def _check_blobs(output: Output, checked: dict[str, str | None]) -> Iterator[Damage | None]:
    for locked in read_lock(output):
        if locked.sha256:
            key = blob_key(locked.sha256)
            problem = _check_file(output.storage, key, locked.size, locked.sha256, checked)
            yield Damage(output.folder, None, key, f"{problem} ({locked.path})") if problem else None


def _check_file(storage: Storage, key: str, size: int, sha256: str, checked: dict[str, str | None]) -> str | None:
    if key not in checked:
        checked[key] = _problem(storage, key, size, sha256)
    return checked[key]


def _problem(storage: Storage, key: str, size: int, sha256: str) -> str | None:
    actual = storage.size(key)
    if actual is None:
        return "missing"
    if actual != size:
        return f"{actual:,} bytes instead of {size:,}"
    with storage.open(key) as file:
        if hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != sha256:
            return "its bytes have changed"
    return None


def forget(storage: Storage, damage: list[Damage]) -> None:
    """Takes what is damaged out of the records, so that the next build or retry makes just that again."""
    for folder in sorted({found.output for found in damage}):
        found = [d for d in damage if d.output == folder]
        blobs = {d.file for d in found if d.file.startswith("blobs/")}
        _forget_blobs(storage, blobs)
        if any(d.unit is None and d.file not in blobs for d in found):
            storage.delete_folder(folder)
        elif units := {d.unit for d in found if d.unit}:
            Commits(storage, folder).forget(units, Output(storage, folder).units())


def _forget_blobs(storage: Storage, keys: set[str]) -> None:
    """Turns each lost blob into a failed attempt, in every ledger that had it."""
    for _, _, ledger in ledgers(storage) if keys else ():
        lost = [state.path for state in ledger.states() if not state.failed and blob_key(state.sha256) in keys]
        if lost:
            ledger.lose(lost)
    storage.delete(*keys)
