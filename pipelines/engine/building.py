"""The engine: brings a stage's output up to date, and whatever it needs before it.

Units that are committed are never done again. The plan and the records are both sorted by name and are compared as two
streams, so that a driver's memory does not grow with the number of units. An output is finished by units.tsv and then
complete.json; both are the same for every driver that finishes, so two of them may.
"""

import hashlib
import itertools
import json
import os
import socket
import sys
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipelines.engine.commits import TAB, Commits, Record, UnitAttempt
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Inputs, Resources, Stage
from xmodal.errors import UserError
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import LAYOUT, Output, Unit, directories
from xmodal.root.storage import Storage, open_storage

GATHER_EVERY = 10_000  # units in loose records: the most that a later driver has to read one by one
CALL_SECONDS = 0.05
UNITS_A_CALL = 256
NOT_SHARED = "does not see the root {}: on a cluster a root is a folder that all nodes share, or an object store"

Call = list[tuple[str, Any]]  # units done together: one, or many where they are quick
Worker = Callable[[Call], list[Record]]  # does and commits them


class Runner(Protocol):
    """Runs units anywhere and in any order; `open_worker` is called once in each worker."""

    def __call__(
        self, open_worker: Callable[[], Worker], units: Iterator[tuple[str, Any]], resources: Resources
    ) -> Iterator[Record]: ...


class Pace:
    """Chooses how many units one call does: as many as take about CALL_SECONDS, so that tiny ones cost little.

    A call has at most twice as many as the one before, because a few quick units say little about the next.
    """

    def __init__(self) -> None:
        self._seconds_a_unit, self._size = CALL_SECONDS, 1

    def next_call(self, units: Iterator[tuple[str, Any]]) -> Call:
        wanted = int(CALL_SECONDS / max(self._seconds_a_unit, 1e-6))
        self._size = max(1, min(UNITS_A_CALL, 2 * self._size, wanted))
        return list(itertools.islice(units, self._size))

    @property
    def is_quick(self) -> bool:
        """Whether a call ends soon enough for another to wait behind it."""
        return self._seconds_a_unit * self._size < 1.0

    def saw(self, units: int, seconds: float) -> None:
        self._seconds_a_unit = 0.5 * (self._seconds_a_unit + seconds / units)


def serial(
    open_worker: Callable[[], Worker], units: Iterator[tuple[str, Any]], resources: Resources
) -> Iterator[Record]:
    """One unit after the other in this process: for tests, debugging and small work."""
    worker, pace = open_worker(), Pace()
    while call := pace.next_call(units):
        started = time.perf_counter()
        yield from worker(call)
        pace.saw(len(call), time.perf_counter() - started)


def build(
    stage: Stage[Any, Any], storage: Storage, run: Runner = serial, progress: ProgressLine | None = None
) -> Output:
    """The stage's finished output; does nothing where it is finished already."""
    inputs = tuple(i if isinstance(i, Output) else build(i, storage, run, progress) for i in stage.inputs)
    output = Output(storage, stage.folder)
    if not output.complete:
        _describe(stage, storage)
        try:
            _bring_up_to_date(stage, inputs, storage, run, progress or ProgressLine(quiet=True))
        except FileNotFoundError:
            if not output.complete:  # else another driver has finished meanwhile, and deleted what was left over
                raise
    return output


def pending(stage: Stage[Any, Any], storage: Storage) -> tuple[int, int]:
    """Counts the units of the plan, and those that are left; the inputs must be finished."""
    output = Output(storage, stage.folder)
    if output.complete:
        return output.totals["units"], 0
    inputs = tuple(i if isinstance(i, Output) else Output(storage, i.folder) for i in stage.inputs)
    commits = Commits(storage, stage.folder)
    planned = Counter(_is_done(stage, line, work) for line, _, work in _compare(stage, inputs, commits, loose=True))
    return planned.total(), planned[False]


def _bring_up_to_date(
    stage: Stage[Any, Any], inputs: Inputs, storage: Storage, run: Runner, progress: ProgressLine
) -> None:
    commits = Commits(storage, stage.folder)
    commits.adopt()
    if stage.reuse:
        compared = _compare(stage, inputs, commits)
        if stale := {name for line, name, work in compared if line and not _is_done(stage, line, work)}:
            commits.forget(stale, commits.units())
        _reuse(stage, inputs, storage, commits)
    planned = Counter(line is not None for line, _, _ in _compare(stage, inputs, commits))
    log = RunLog(storage, stage.folder, planned=planned.total(), done=planned[True])
    missing = ((name, work) for line, name, work in _compare(stage, inputs, commits) if line is None)
    try:
        with progress.logged(log.say).over(stage.name, total=planned.total(), done=planned[True]) as tick:
            if planned[False]:
                _gather(run(OpenUnits(stage, inputs, storage.url), missing, stage.resources), commits, tick)
        _finish(stage, inputs, storage, commits)
    except BaseException as error:
        log.say(f"ended by {type(error).__name__}: {error}")
        raise
    log.finished()


def _gather(records: Iterable[Record], commits: Commits, tick: Callable[[int], None]) -> None:
    """Records are gathered as they come, and also when the run fails, so that a later driver finds them together."""
    loose: list[Record] = []
    units = 0
    try:
        for record in records:
            loose.append(record)
            units += record.units
            tick(record.units)
            if units >= GATHER_EVERY:
                commits.gather(loose)
                loose, units = [], 0
    finally:
        commits.gather(loose)


def _compare(
    stage: Stage[Any, Any], inputs: Inputs, commits: Commits, loose: bool = False
) -> Iterator[tuple[bytes | None, str, Any]]:
    """Every planned unit with what is committed of it, or None: a merge of two sorted streams."""
    nothing = (None, None)
    committed = ((line.partition(TAB)[0].decode(), line) for line in commits.lines(loose))
    (found, line), previous = next(committed, nothing), ""
    for name, work in stage.plan(stage.config, inputs):
        if name <= previous:
            raise ValueError(f"stage {stage.name} plans {name!r} after {previous!r}: unit names must ascend")
        if found is not None and found < name:
            break
        if found == name:
            yield line, name, work
            found, line = next(committed, nothing)
        else:
            yield None, name, work
        previous = name
    if found is not None:
        raise UserError(f"{commits.where} holds {found}, which is not planned: stage {stage.name} needs a new version")


def _is_done(stage: Stage[Any, Any], line: bytes | None, work: Any) -> bool:
    """False if the unit was committed for other inputs, for example because a retry rebuilt what it reads."""
    return line is not None and (not stage.reuse or Unit.from_line(line, stage.folder).key == stage.work_key(work))


def _finish(stage: Stage[Any, Any], inputs: Inputs, storage: Storage, commits: Commits) -> None:
    """Checks that everything planned is committed, then writes units.tsv and, last, complete.json."""
    left = next((name for line, name, _ in _compare(stage, inputs, commits) if line is None), None)
    if left is not None:
        raise UserError(f"{commits.where}: unit {left} was done but its record is gone: build again")
    digest, totals = hashlib.sha256(), Totals(stage.name)
    with storage.writer(f"{stage.folder}/units.tsv") as file:
        for line in commits.lines():
            file.write(line)
            digest.update(line)
            totals.add(Unit.from_line(line, commits.where))
    summary = totals.summary() | {"layout": LAYOUT, "units_sha256": digest.hexdigest()}
    storage.write(f"{stage.folder}/complete.json", canonical_json(summary))
    commits.sweep()


class Totals:
    """The sums in complete.json; 64 bits of each file's name are kept, to find two files of one name."""

    def __init__(self, stage: str) -> None:
        self._stage, self._files = stage, array("Q")
        self._units, self._bytes = 0, 0
        self._counts, self._failures = Counter[str](), Counter[str]()

    def add(self, unit: Unit) -> None:
        self._units += 1
        self._bytes += sum(size for size, _ in unit.files.values())
        self._counts.update(unit.counts)
        self._failures.update(kind for _, kind, _ in unit.failures)
        for name in unit.files:
            self._files.append(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))

    def summary(self) -> dict[str, object]:
        if len(np.unique(np.asarray(self._files))) < len(self._files):
            raise ValueError(f"stage {self._stage}: two units write one file")
        totals = {"units": self._units, "files": len(self._files), "bytes": self._bytes}
        return totals | {"counts": self._counts, "failures": self._failures}


def _describe(stage: Stage[Any, Any], storage: Storage) -> None:
    """stage.json: written by the first driver, compared by every later one."""
    key, about = f"{stage.folder}/stage.json", stage.about()
    if storage.create(key, canonical_json(about)):
        return
    if Output(storage, stage.folder).about | {"xmodal": about["xmodal"]} != json.loads(canonical_json(about)):
        raise UserError(
            f"{storage.url}/{key} is not what this stage says of itself: delete its directory and build again"
        )


def _reuse(stage: Stage[Any, Any], inputs: Inputs, storage: Storage, commits: Commits) -> None:
    """Units of finished outputs that differ in their inputs only, taken over where their work is the same."""
    about = stage.about()
    for other in directories(storage, stage.name):
        with suppress(UserError):  # a damaged directory lends nothing; verify is what complains of it
            same = all(other.about[name] == about[name] for name in ("version", "config"))
            if same and other.identity != stage.identity and other.complete:
                _reuse_units(stage, inputs, other, commits)


def _reuse_units(stage: Stage[Any, Any], inputs: Inputs, other: Output, commits: Commits) -> None:
    """The plan and the other output are both sorted by name."""
    lent = (unit for unit in other.units() if not any(kind in stage.passing for _, kind, _ in unit.failures))
    unit = next(lent, None)
    taken: list[Record] = []
    for line, name, work in _compare(stage, inputs, commits):
        while unit is not None and unit.name < name:
            unit = next(lent, None)
        if line or unit is None or unit.name != name or unit.key != stage.work_key(work):
            continue
        taken += [record] if (record := commits.take(unit, other)) else []
        if len(taken) == GATHER_EVERY:
            commits.gather(taken)
            taken = []
    commits.gather(taken)


@dataclass(frozen=True)
class OpenUnits:
    """Sent to a worker: opens the stage there, and gives the function that does and commits units."""

    stage: Stage[Any, Any]
    inputs: Inputs
    url: str

    def __call__(self) -> Worker:
        stage, storage = self.stage, open_storage(self.url)
        if storage.size(f"{stage.folder}/stage.json") is None:
            raise UserError(f"a worker on {socket.gethostname()} {NOT_SHARED.format(self.url)}")
        commits = Commits(storage, stage.folder)
        do = stage.open(stage.config, tuple(Output(open_storage(i.storage.url), i.folder) for i in self.inputs))

        def units(call: Call) -> list[Record]:
            records: list[Record] = []
            bare: list[bytes] = []
            began = time.monotonic()
            try:
                for name, work in call:
                    self._unit(do, name, work, commits, records, bare)
                    if bare and time.monotonic() - began > 1.0:
                        records.append(commits.commit_together(bare))
                        began, bare = time.monotonic(), []
            finally:  # also what was done before a unit raised
                records += [commits.commit_together(bare)] if bare else []
            return records

        return units

    def _unit(self, do: Any, name: str, work: Any, commits: Commits, records: list[Record], bare: list[bytes]) -> None:
        if record := commits.find(name):  # another driver's, or ours before the worker died
            records.append(record)
            return
        attempt, line = self._attempt(do, name, work, commits)
        if attempt.files:
            records.append(commits.commit(attempt, line))
        else:
            bare.append(line)

    def _attempt(self, do: Any, name: str, work: Any, commits: Commits) -> tuple[UnitAttempt, bytes]:
        attempt = commits.attempt(name)
        try:
            counts = do(work, attempt)
        except Exception as error:
            attempt.discard()
            error.add_note(f"in unit {name} of stage {self.stage.name}")
            raise
        return attempt, attempt.line(counts, self.stage.work_key(work) if self.stage.reuse else None)


class RunLog:
    """Who ran when and where: `_runs/<time>.json`; what progress said: `.log` beside it. No promise of equal bytes."""

    def __init__(self, storage: Storage, folder: str, planned: int, done: int) -> None:
        self._storage = storage
        self._key = f"{folder}/_runs/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}.json"
        self._lines = ""
        self._facts: dict[str, object] = {"planned": planned, "done_before": done, "started": round(time.time(), 3)}
        self._facts |= {"host": socket.gethostname(), "pid": os.getpid(), "python": sys.version.split()[0]}
        storage.write(self._key, canonical_json(self._facts))

    def say(self, line: str) -> None:
        """Writes the whole file anew, as object stores cannot append; a log that cannot be written stops no build."""
        self._lines += f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n"
        with suppress(OSError):
            self._storage.write(f"{self._key.removesuffix('.json')}.log", self._lines.encode())

    def finished(self) -> None:
        self.say("finished")
        self._storage.write(self._key, canonical_json(self._facts | {"finished": round(time.time(), 3)}))
