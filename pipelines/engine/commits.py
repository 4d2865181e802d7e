"""Commits: every unit's output is written exactly once, whatever is killed and whoever else is at work.

1. Files are written under `_runs/attempts/<unit>-<random>/`, where no reader looks.
2. One small record is put if absent, naming that attempt: the unit is now done, and done by this attempt only.
3. The record names its files, and they are published: moved to their final names, never over another, by anybody.
4. The driver gathers records into the sorted segments of a journal (attempt names left out) and drops the loose ones.

Units without files share one record a call, to save an inode and two fsyncs each. A crash after 1 leaves rubbish,
after 2 a record that the next driver publishes. Work that is done twice, by orphaned workers or two drivers, loses at 2
or writes the same record. Run `make chaos` after a change.
"""

import hashlib
import io
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple, cast

from pipelines.engine.journal import Journal
from xmodal.errors import UserError
from xmodal.root.outputs import FILE_NAME, OURS, UNIT_NAME, Output, Unit, cure_under
from xmodal.root.storage import Storage

TAB = b"\t"
SAID, SAY_SECONDS = "_said", 10.0  # no name of a unit's file begins like this
LONGEST_WORDS = 10_000  # bytes


class Record(NamedTuple):
    """Units that were committed together."""

    name: str
    lines: bytes  # one a unit
    taken: int = 0  # rows that were taken over

    @property
    def units(self) -> int:
        return self.lines.count(b"\n")


class UnitAttempt:
    """Takes files and failures of one unit, which readers see once it is committed."""

    def __init__(self, storage: Storage, attempts: str, unit: str, key: str | None) -> None:
        if not UNIT_NAME.fullmatch(unit):
            raise ValueError(f"a unit's name is at most 200 letters, digits and ._=+-, not {unit!r}")
        self.unit, self.key, self.name = unit, key, f"{unit}-{uuid.uuid4().hex[:12]}"
        self.files: dict[str, tuple[int, str]] = {}
        self.failures: list[tuple[str, str, str]] = []
        self.taken = 0  # rows from earlier outputs
        self._storage, self._folder, self._said = storage, f"{attempts}/{self.name}", -SAY_SECONDS

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """A new file, written from start to end; no other unit writes one of this name."""
        if name in self.files or name in OURS or not FILE_NAME.fullmatch(name):
            raise ValueError(f"unit {self.unit} cannot write a file {name!r}")
        with self._storage.writer(f"{self._folder}/{name}") as file:
            hashing = HashingFile(file)
            yield cast(BinaryIO, hashing)
        self.files[name] = hashing.checksum

    def fail(self, row: str, kind: str, reason: str) -> None:
        """Keeps and counts a row that could not be done."""
        self.failures.append((_printable(row), kind, _printable(reason[:200])))

    def say(self, text: str) -> None:
        """Tells the driver, wherever it runs, how far a long unit is."""
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            self._storage.write(f"{self._folder}/{SAID}", text.encode())

    def line(self, counts: Mapping[str, int]) -> bytes:
        return Unit(self.unit, self.files, counts, tuple(sorted(self.failures)), self.key).line()

    def discard(self) -> None:
        if self.files:
            self._storage.delete_folder(self._folder)


class Commits:
    """The records of one output directory."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder
        self._attempts = f"{folder}/_runs/attempts"
        self._loose = f"{folder}/_runs/commits/loose"
        self._forgotten = f"{folder}/_runs/commits/forgotten"
        self._tainted = f"{folder}/_runs/tainted"
        self._journal = Journal(storage, f"{folder}/_runs/commits")

    @property
    def where(self) -> str:
        return f"{self._storage.url}/{self._folder}"

    def attempt(self, unit: str, key: str | None = None) -> UnitAttempt:
        return UnitAttempt(self._storage, self._attempts, unit, key)

    def find(self, name: str) -> Record | None:
        """Finds a loose record, and publishes its files in place of a writer that died."""
        lines, attempt = self._read_loose(name)
        if attempt:
            self._publish(Unit.from_line(lines, self.where, cure_under(self._storage.url)).files, attempt)
        return Record(name, lines) if lines else None

    def _read_loose(self, name: str) -> tuple[bytes, str]:
        """Lines and attempt of a record, empty if there is none."""
        key = f"{self._loose}/{name}"
        try:
            record = self._storage.read(key)
        except FileNotFoundError:
            return b"", ""
        lines, _, rest = record.rpartition(TAB)
        attempt = rest.partition(b" ")[0].decode(errors="replace")
        if _sign(lines, attempt) != record:
            raise UserError(f"{self._storage.url}/{key} is corrupt: delete it and build again")
        return lines, attempt

    def commit(self, attempt: UnitAttempt, line: bytes) -> Record:
        """Returns this attempt's record, or the winner's."""
        won = self._storage.create(f"{self._loose}/{attempt.unit}", _sign(line, attempt.name))
        # a put whose answer was lost is tried again, and then finds its own record
        if won or self._read_loose(attempt.unit)[1] == attempt.name:
            self._publish(attempt.files, attempt.name)
            return Record(attempt.unit, line)
        attempt.discard()
        return self.find(attempt.unit) or Record(attempt.unit, line)

    def commit_together(self, lines: list[bytes]) -> Record:
        """Commits units without files."""
        data = b"".join(lines)
        record = Record(f"~{hashlib.sha256(data).hexdigest()[:32]}", data)
        self._storage.create(f"{self._loose}/{record.name}", _sign(data, ""))
        return record

    def adopt(self) -> None:
        """Finishes what an earlier driver was killed at."""
        with suppress(FileNotFoundError):
            self._forget(set(self._storage.read(self._forgotten).decode().split("\n")), list(self.units()))
        names = self._storage.names(self._loose)
        try:
            self.gather([record for name in names if (record := self.find(name))])
        except FileNotFoundError as error:
            where = f"{self._storage.url}/{self._loose}"
            raise UserError(f"{where} records lost files ({error.filename}): delete it and build again") from error

    def gather(self, records: list[Record]) -> None:
        """Moves loose records into one segment of the journal."""
        if records:
            self._journal.add(line for record in records for line in record.lines.splitlines(keepends=True))
            self._storage.delete(*(f"{self._loose}/{record.name}" for record in records))
            self._journal.merge()

    def lines(self, loose: bool = False) -> Iterator[bytes]:
        """Lines of gathered units, sorted; with `loose` of all."""
        records = [self._read_loose(name) for name in self._storage.names(self._loose)] if loose else []
        ungathered = sorted(line for lines, _ in records for line in lines.splitlines(keepends=True))
        previous = b""
        for line in self._journal.lines(ungathered):
            name = line.partition(TAB)[0]
            if name == previous:
                twice = f"{self.where}: two attempts at unit {name.decode()} gave different bytes"
                raise UserError(f"{twice}: the stage is not deterministic; mend it and delete the folder")
            previous = name
            yield line

    def damaged(self) -> Iterator[str]:
        """The keys of records that cannot be read."""
        yield from self._journal.damaged()
        for name in self._storage.names(self._loose):
            try:
                self._read_loose(name)
            except UserError:
                yield f"{self._loose}/{name}"

    def restore(self, units: Iterable[Unit]) -> None:
        """Writes the records of a finished output anew."""
        self._journal.replace(unit.line() for unit in units)

    def forget(self, names: Collection[str], among: Iterable[Unit]) -> None:
        """Deletes units, to be done again; `among` are all committed ones. After a kill `adopt` goes on."""
        units = list(among)
        self._storage.delete(f"{self._folder}/complete.json")
        self._storage.write(self._forgotten, "\n".join(sorted(names)).encode())
        self._forget(names, units)

    def _forget(self, names: Collection[str], units: list[Unit]) -> None:
        # Before their records, since new files may not replace them.
        self._storage.delete(*(f"{self._folder}/{file}" for unit in units if unit.name in names for file in unit.files))
        self._journal.replace(unit.line() for unit in units if unit.name not in names)
        self._storage.delete(self._forgotten)

    def taint(self, checksums: Collection[str]) -> None:
        """Un-finishes the output: units may have read damaged bytes of these checksums."""
        data = "\n".join(sorted(checksums)).encode()
        self._storage.write(f"{self._tainted}/{hashlib.sha256(data).hexdigest()[:32]}", data)
        self._storage.delete(f"{self._folder}/complete.json")

    def tainted(self) -> set[str]:
        """The checksums since the last `cleaned`."""
        notes = (self._storage.read(f"{self._tainted}/{name}") for name in self._storage.names(self._tainted))
        return {checksum for note in notes for checksum in note.decode().split("\n")}

    def cleaned(self) -> None:
        self._storage.delete_folder(self._tainted)

    def units(self, loose: bool = False) -> Iterator[Unit]:
        return (Unit.from_line(line, self.where, cure_under(self._storage.url)) for line in self.lines(loose))

    def untainted(self) -> Iterator[Unit]:
        """All units so far; none where some may have read damaged bytes."""
        return iter(()) if self.tainted() else self.units(loose=True)

    def take(self, unit: Unit, other: Output) -> Record | None:
        """Links a unit's files from another output; None if that has lost one."""
        with suppress(UserError, FileNotFoundError):  # damaged, or being changed
            if all(self._storage.size(f"{other.folder}/{name}") == size for name, (size, _) in unit.files.items()):
                for name in unit.files:
                    self._storage.link(f"{other.folder}/{name}", f"{self._folder}/{name}")
                return Record(unit.name, unit.line())
        return None

    def said(self) -> Iterator[str]:
        """The last words of every attempt that says any."""
        for attempt in self._storage.names(self._attempts):
            with suppress(FileNotFoundError, UserError):
                yield self._storage.read(f"{self._attempts}/{attempt}/{SAID}", LONGEST_WORDS).decode(errors="replace")

    def sweep(self) -> None:
        """Deletes what losing and killed attempts left."""
        self._storage.delete_folder(self._attempts)

    def _publish(self, files: Mapping[str, tuple[int, str]], attempt: str) -> None:
        source = f"{self._attempts}/{attempt}"
        for name, (size, _) in files.items():
            try:
                self._storage.link(f"{source}/{name}", f"{self._folder}/{name}")
            except FileNotFoundError:
                if self._storage.size(f"{self._folder}/{name}") != size:  # else somebody published it already
                    raise
        if files:
            self._storage.delete_folder(source)


class HashingFile(io.BufferedIOBase):
    """Passes bytes on, and sums them up."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self._size = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._size += size
        self._digest.update(data)
        self._file.write(data)
        return size

    def tell(self) -> int:
        return self._size

    @property
    def checksum(self) -> tuple[int, str]:
        """Size and sha256."""
        return self._size, self._digest.hexdigest()


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # names of files may be no UTF-8


def _sign(lines: bytes, attempt: str) -> bytes:
    return lines + f"\t{attempt} {hashlib.sha256(lines + attempt.encode()).hexdigest()[:16]}\n".encode()
