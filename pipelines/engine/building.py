"""The engine: brings a stage's output, and whatever it needs, up to date.

Committed units are never done again. Plan and records are compared as streams sorted by name, in bounded memory. Two
drivers may finish one output: both write the same bytes.
"""

import json
import os
import socket
import sys
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from pipelines.engine.commits import TAB, Commits, HashingFile, Record, UnitAttempt
from pipelines.engine.killable_worker import keep_memory
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Inputs, Resources, Stage, without_lists
from xmodal.errors import UserError
from xmodal.root.identity import canonical_json, to_plain
from xmodal.root.outputs import LAYOUT, Output, Unit, directories
from xmodal.root.storage import Storage, open_storage

GATHER_EVERY = 10_000  # units in loose records, which a later driver reads one by one
CALL_SECONDS = 0.05
UNITS_A_CALL = 256
KEPT_BYTES = 1 << 30  # freed memory of a worker; a network frees as much with every batch
COMMIT_SECONDS = 1.0  # the most work that a dead worker loses of units without files
NOT_SHARED = "does not see the root {}: on a cluster a root is a folder that all nodes share, or an object store"

Units = Iterator[tuple[str, Any]]  # names and work
Call = list[tuple[str, Any]]  # units done together: one, or many where they are quick
Worker = Callable[[Call], list[Record]]  # does and commits them
OpenWorker = Callable[[], Worker]  # called once in each worker
Runner = Callable[[OpenWorker, Units, Resources], Iterator[Record]]  # runs units anywhere and in any order


class Pace:
    """Chooses how many units a call does: about CALL_SECONDS of work."""

    def __init__(self) -> None:
        self._seconds_a_unit, self._size = CALL_SECONDS, 1

    def next_call(self, units: Units) -> Call:
        wanted = int(CALL_SECONDS / max(self._seconds_a_unit, 1e-6))
        # at most twice as many: a few quick units say little about the next
        self._size = max(1, min(UNITS_A_CALL, 2 * self._size, wanted))
        return list(islice(units, self._size))

    @property
    def is_quick(self) -> bool:
        """Whether another call may wait behind one."""
        return self._seconds_a_unit * self._size < 1.0

    def saw(self, units: int, seconds: float) -> None:
        self._seconds_a_unit = 0.5 * (self._seconds_a_unit + seconds / units)


def serial(open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
    """Runs units one by one in this process."""
    worker, pace = open_worker(), Pace()
    while call := pace.next_call(units):
        started = time.perf_counter()
        yield from worker(call)
        pace.saw(len(call), time.perf_counter() - started)


def build(
    stage: Stage[Any, Any], storage: Storage, run: Runner = serial, progress: ProgressLine | None = None
) -> Output:
    """Finishes the stage's output unless it is finished."""
    for needed in stage.inputs:
        if isinstance(needed, Stage):
            build(needed, storage, run, progress)
    work, progress = _Build(stage, storage), progress or ProgressLine(quiet=True)
    if stage.try_files and storage.size(f"{stage.folder}/stage.json") is None:
        stage.try_files()
    if stage.remark:
        progress.say(stage.remark)
    if not work.output.complete:
        try:
            work.bring_up_to_date(run, progress)
        except FileNotFoundError:
            if not work.output.complete:  # else another driver has finished and swept
                raise
    return work.output


def cores_of(run: Runner) -> int:
    return 1 if run is serial else os.cpu_count() or 1


def pending(stage: Stage[Any, Any], storage: Storage) -> tuple[int, int]:
    """Counts planned units and those left; inputs must be finished."""
    work = _Build(stage, storage)
    if work.output.complete:
        return work.output.totals["units"], 0
    planned = Counter(work.is_done(line, unit) for line, _, unit in work.compare(loose=True))
    return planned.total(), planned[False]


def taint(source: Output, checksums: Collection[str]) -> list[str]:
    """Un-finishes all that was made of an output whose files were damaged; gives the folders.

    The next build of each makes the units again that read them.
    """
    left, reached = [(source.folder, checksums)], list[str]()
    while left:
        folder, damaged = left.pop()
        for made in directories(source.storage):
            with suppress(UserError):  # a damaged one does not tell what it is
                if folder in [f"{each['stage']}/{each['identity']}" for each in made.about["inputs"]]:
                    Commits(made.storage, made.folder).taint(damaged)
                    if made.folder not in reached:
                        reached.append(made.folder)
                        left.append((made.folder, ()))
    return reached


@dataclass(frozen=True)
class Lender(Output):
    """An output, finished or not, with the units that it had when it was looked at."""

    committed: tuple[Unit, ...]

    def units(self) -> Iterator[Unit]:
        return iter(self.committed)


def lenders(stage: Stage[Any, Any], storage: Storage) -> Iterator[Lender]:
    """Finds other outputs that have units and rows as this stage makes them: only inputs and lists differ."""
    ours = without_lists(stage.config, to_plain(stage.config))
    for other in directories(storage, stage.name):
        with suppress(UserError, FileNotFoundError):  # damaged, of which verify complains, or being changed
            about = other.about
            theirs = without_lists(stage.config, about.get("config"))
            if other.folder != stage.folder and (about.get("version"), theirs) == (stage.version, ours):
                units = other.units() if other.complete else Commits(storage, other.folder).untainted()
                yield Lender(storage, other.folder, tuple(units))


class _Build:
    """One stage whose inputs are finished."""

    def __init__(self, stage: Stage[Any, Any], storage: Storage) -> None:
        self.stage, self.storage = stage, storage
        self.inputs = tuple(i if isinstance(i, Output) else Output(storage, i.folder) for i in stage.inputs)
        self.output = Output(storage, stage.folder)
        self.commits = Commits(storage, stage.folder)

    def bring_up_to_date(self, run: Runner, progress: ProgressLine) -> None:
        stage = self.stage
        self.describe()
        self.commits.adopt()
        self.drop_tainted()
        if stage.reuse:
            if stale := {name for line, name, work in self.compare() if line and not self.is_done(line, work)}:
                self.commits.forget(stale, self.commits.units())
            self.reuse()
        planned = Counter(line is not None for line, _, _ in self.compare())
        total, done = planned.total(), planned[True]
        missing = ((name, work) for line, name, work in self.compare() if line is None)
        facts: dict[str, object] = {"planned": total, "done_before": done, "cores": cores_of(run)}
        if not (stage.reuse and any(lenders(stage, self.storage))):  # else rows are taken over, which takes no time
            facts["core_seconds"] = stage.seconds
        with _run_log(self.output, facts) as say:
            line = progress.logged(say)
            taken = 0
            with line.over(stage.name, total, done) as tick, line.listening(self.commits.said):
                if done < total:
                    opened = partial(open_units, stage, self.inputs, self.storage.url)
                    taken = self.gather(run(opened, missing, stage.resources), tick)
            if taken:
                line.say(f"{stage.name}: {taken:,} rows were taken over from earlier outputs")
            self.finish()

    def drop_tainted(self) -> None:
        """Forgets units that read damaged bytes, and taints what was made of them."""
        if damaged := self.commits.tainted():
            names = {name for line, name, work in self.compare() if line and self.reads(work, damaged)}
            gone = [unit for unit in self.commits.units() if unit.name in names]
            taint(self.output, {checksum for unit in gone for _, checksum in unit.files.values()})
            self.commits.forget(names, self.commits.units())
            self.commits.cleaned()

    def reads(self, work: Any, checksums: Iterable[str]) -> bool:
        """Whether a unit reads one of these files; the work of a stage without `reuse` does not tell."""
        told = canonical_json(work).decode() if self.stage.reuse else ""
        return not self.stage.reuse or any(checksum in told for checksum in checksums if checksum)

    def compare(self, loose: bool = False) -> Iterator[tuple[bytes | None, str, Any]]:
        """Every planned unit with the line of its commit, or None."""
        stage, committed = self.stage, self.commits.lines(loose)
        line, previous = next(committed, b""), ""
        for name, work in stage.plan(stage.config, self.inputs):
            if name <= previous:
                raise ValueError(f"stage {stage.name} plans {name!r} after {previous!r}: unit names must ascend")
            found = _name_of(line)
            if line and found < name:
                break
            yield line if found == name else None, name, work
            line = next(committed, b"") if found == name else line
            previous = name
        if line:
            unplanned = f"{self.output.where} holds {_name_of(line)}, which is not planned"
            raise UserError(f"{unplanned}: stage {stage.name} needs a new version")

    def is_done(self, line: bytes | None, work: Any) -> bool:
        """False too if committed for other inputs: a retry may have rebuilt them."""
        return line is not None and (not self.stage.reuse or self.unit(line).key == self.stage.work_key(work))

    def unit(self, line: bytes) -> Unit:
        return Unit.from_line(line, self.output.where, self.output.cure)

    def describe(self) -> None:
        about = self.stage.about()
        if self.storage.create(f"{self.output.folder}/stage.json", canonical_json(about)):
            return
        if self.output.about | {"xmodal": about["xmodal"]} != json.loads(canonical_json(about)):
            raise UserError(f"{self.output.where}/stage.json is of another stage: delete its folder and build again")

    def reuse(self) -> None:
        """Takes over units that other outputs have."""
        passing = self.stage.passing
        for other in lenders(self.stage, self.storage):
            lent = {(u.name, u.key): u for u in other.units() if not any(kind in passing for _, kind, _ in u.failures)}
            missing = ((name, self.stage.work_key(work)) for line, name, work in self.compare() if not line)
            taken = (self.commits.take(lent[unit], other) for unit in missing if unit in lent)
            self.commits.gather([record for record in taken if record])

    def gather(self, records: Iterable[Record], tick: Callable[[int], None]) -> int:
        """Returns how many rows were taken over."""
        loose: list[Record] = []
        units = taken = 0
        try:
            for record in records:
                loose.append(record)
                units += record.units
                taken += record.taken
                tick(record.units)
                if units >= GATHER_EVERY:
                    self.commits.gather(loose)
                    loose, units = [], 0
        finally:  # also when the run fails: a later driver finds them together
            self.commits.gather(loose)
        return taken

    def finish(self) -> None:
        left = next((name for line, name, _ in self.compare() if line is None), None)
        if left is not None:
            raise UserError(f"{self.output.where}: unit {left} was done but its record is gone: build again")
        with self.storage.writer(f"{self.output.folder}/units.tsv") as file:
            copy = HashingFile(file)
            totals = sum_up(self.stage.name, self.copied_to(copy))
        totals |= {"layout": LAYOUT, "units_sha256": copy.checksum[1]}
        self.storage.write(f"{self.output.folder}/complete.json", canonical_json(totals))
        self.commits.sweep()

    def copied_to(self, file: HashingFile) -> Iterator[Unit]:
        for line in self.commits.lines():
            file.write(line)
            yield self.unit(line)


def sum_up(stage: str, units: Iterable[Unit]) -> dict[str, object]:
    """The sums in complete.json."""
    number = size = 0
    counts, failures = Counter[str](), Counter[str]()
    files = array("Q")  # 64 bits of each file's name
    for unit in units:
        number += 1
        size += sum(size for size, _ in unit.files.values())
        counts.update(unit.counts)
        failures.update(kind for _, kind, _ in unit.failures)
        files.extend(int.from_bytes(sha256(name.encode()).digest()[:8]) for name in unit.files)
    if len(np.unique(np.asarray(files))) < len(files):
        raise ValueError(f"stage {stage}: two units write one file")
    return {"units": number, "files": len(files), "bytes": size, "counts": counts, "failures": failures}


def open_units(stage: Stage[Any, Any], inputs: Inputs, url: str) -> Worker:
    """Opens a stage in a worker, to do and commit its units."""
    keep_memory(KEPT_BYTES)
    storage = open_storage(url)
    if storage.size(f"{stage.folder}/stage.json") is None:
        raise UserError(f"a worker on {socket.gethostname()} {NOT_SHARED.format(url)}")
    commits = Commits(storage, stage.folder)
    do = stage.open(stage.config, tuple(Output(open_storage(i.storage.url), i.folder) for i in inputs))

    def line_of(attempt: UnitAttempt, work: Any) -> bytes:
        try:
            counts = do(work, attempt)
        except Exception as error:
            attempt.discard()
            error.add_note(f"in unit {attempt.unit} of stage {stage.name}")
            raise
        return attempt.line(counts)

    def units(call: Call) -> list[Record]:
        records: list[Record] = []
        bare: list[bytes] = []  # units without files
        began = time.monotonic()
        try:
            for name, work in call:
                if record := commits.find(name):  # another driver's, or ours before the worker died
                    records.append(record)
                    continue
                attempt = commits.attempt(name, stage.work_key(work) if stage.reuse else None)
                line = line_of(attempt, work)
                if attempt.files:
                    records.append(commits.commit(attempt, line)._replace(taken=attempt.taken))
                else:
                    bare.append(line)
                if bare and time.monotonic() - began > COMMIT_SECONDS:
                    records.append(commits.commit_together(bare))
                    began, bare = time.monotonic(), []
        finally:  # also what was done before a unit raised
            records += [commits.commit_together(bare)] if bare else []
        return records

    return units


@contextmanager
def _run_log(output: Output, facts: dict[str, object]) -> Iterator[Callable[[str], None]]:
    """Writes who ran when and where to `_runs/<time>.json`, and what is said to `.log` beside it."""
    key = f"{output.folder}/_runs/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    facts |= {"started": round(time.time(), 3)}
    facts |= {"host": socket.gethostname(), "pid": os.getpid(), "python": sys.version.split()[0]}
    output.storage.write(f"{key}.json", canonical_json(facts))
    lines = ""

    def say(line: str) -> None:
        nonlocal lines
        lines += f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}\n"
        with suppress(OSError):  # a log that cannot be written stops no build
            output.storage.write(f"{key}.log", lines.encode())  # anew, as object stores cannot append

    try:
        yield say
    except BaseException as error:
        say(f"ended by {type(error).__name__}: {error}")
        raise
    say("finished")
    output.storage.write(f"{key}.json", canonical_json(facts | {"finished": round(time.time(), 3)}))


def _name_of(line: bytes) -> str:
    return line.partition(TAB)[0].decode()
