"""Storage, journal and commits at their edges: short writes, lost answers, names that are not names, two mergers."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import NOT_SHARED, Pace, build, open_units
from pipelines.engine.commits import Commits
from pipelines.engine.journal import MANY_SEGMENTS, Journal
from tests.conftest import tree_digest
from tests.toy_stages import Letters, letters
from xmodal.errors import UserError
from xmodal.root.outputs import Unit
from xmodal.root.storage import LocalStorage, open_storage


def test_a_record_that_does_not_fit_on_the_disk_is_no_record(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with _largest_file(1000), pytest.raises(OSError, match="File too large"):
        storage.create("record", b"x" * 5000)
    assert storage.size("record") is None
    assert list((tmp_path / "_runs/temporary").iterdir()) == []


def test_a_segment_that_was_cut_by_a_full_disk_is_written_again(tmp_path: Path) -> None:
    journal = Journal(open_storage(str(tmp_path)), "j")
    name = journal.add([b"a\t1\n", b"b\t2\n"])
    (tmp_path / "j" / name).write_bytes(b"a\t1")
    with pytest.raises(UserError, match="is corrupt"):
        list(journal.lines())
    journal.add([b"a\t1\n", b"b\t2\n"])
    assert list(journal.lines()) == [b"a\t1\n", b"b\t2\n"]


class AnswersLate(LocalStorage):
    """A store whose answer to a put is lost: the client asks again and hears that the record exists."""

    def create(self, key: str, data: bytes) -> bool:
        super().create(key, data)
        return super().create(key, data)


def test_a_put_that_finds_itself_has_won(tmp_path: Path) -> None:
    commits = Commits(AnswersLate(str(tmp_path)), "stage/x")
    attempt = commits.attempt("u")
    with attempt.file("data") as file:
        file.write(b"mine")
    record = commits.commit(attempt, attempt.line({}))
    assert (tmp_path / "stage/x/data").read_bytes() == b"mine"
    commits.adopt()
    assert list(commits.lines()) == [record.lines]


def test_of_two_attempts_the_first_record_wins_and_the_other_leaves_nothing(any_root: str) -> None:
    storage = open_storage(any_root)
    commits = Commits(storage, "stage/x")
    attempts = [commits.attempt("u") for _ in range(2)]
    for number, attempt in enumerate(attempts):
        with attempt.file("data") as file:
            file.write(bytes([number]))
    lines = [attempt.line({}) for attempt in attempts]
    records = [commits.commit(attempt, line) for attempt, line in zip(attempts, lines, strict=True)]
    assert {record.lines for record in records} == {lines[0]}
    assert storage.read("stage/x/data") == b"\0"
    assert storage.names("stage/x/_runs/attempts") == []


@pytest.mark.parametrize("method", ["delete", "write"])
def test_a_unit_that_was_half_forgotten_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Wherever it is killed: the next build has every file that it records."""
    whole = tree_digest(build(letters(Letters(5)), open_storage(str(tmp_path / "whole"))).storage.url)
    calls = [0, 1, 2, 3]
    for stop in calls:
        storage = open_storage(str(tmp_path / f"{stop}"))
        output = build(letters(Letters(5)), storage)
        commits, left = Commits(storage, output.folder), iter([True] * stop)
        genuine = getattr(LocalStorage, method)

        def killed(self: LocalStorage, *arguments: Any, left: Any = left, genuine: Any = genuine) -> None:
            if not next(left, False):
                raise KeyboardInterrupt
            genuine(self, *arguments)

        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(LocalStorage, method, killed)
            commits.forget({"00001", "00003"}, list(commits.units()))
        again = build(letters(Letters(5)), storage)
        assert all(storage.size(f"{again.folder}/{name}") == size for name, size in again.files.items())
        assert tree_digest(storage.url) == whole


@pytest.mark.parametrize(
    "name",
    ["complete.json", "units.tsv", "stage.json", "_runs/x", "./f", "a/../f", "/f", "a//f", "f/", "f.", "ü", "a b", ""],
)
def test_a_file_name_that_could_be_another_file_is_refused(tmp_path: Path, name: str) -> None:
    attempt = Commits(open_storage(str(tmp_path)), "stage/x").attempt("u")
    with pytest.raises(ValueError, match="cannot write a file"), attempt.file(name):
        pass


def test_a_failure_whose_row_is_no_utf8_is_a_row_all_the_same(tmp_path: Path) -> None:
    attempt = Commits(open_storage(str(tmp_path)), "stage/x").attempt("u")
    attempt.fail("caf\udce9.jpg", "unreadable", "x" * 300)
    ((row, kind, reason),) = Unit.from_line(attempt.line({}), "", "").failures
    assert (row, kind, len(reason)) == (r"caf\udce9.jpg", "unreadable", 200)


def test_a_worker_that_does_not_see_the_root_says_so(tmp_path: Path) -> None:
    build(letters(Letters(3)), open_storage(str(tmp_path / "here")))
    with pytest.raises(UserError, match=NOT_SHARED.format(".*/there")):
        open_units(letters(Letters(3)), (), str(tmp_path / "there"))


def test_merging_loses_no_line_whatever_the_segments_share(tmp_path: Path) -> None:
    """The merged content may be that of a segment that exists."""
    journal = Journal(open_storage(str(tmp_path)), "j")
    lines = [f"{number:03d}\t{{}}\n".encode() for number in range(MANY_SEGMENTS + 2)]
    for line in lines:
        journal.add([line])
    journal.add(lines[: MANY_SEGMENTS // 2 + 1])
    for _ in range(3):
        journal.merge()
        assert list(journal.lines()) == lines


def test_a_reader_keeps_what_it_began_to_read(any_root: str) -> None:
    storage = open_storage(any_root)
    journal = Journal(storage, "j")
    lines = [f"{number:03d}\t{{}}\n".encode() for number in range(MANY_SEGMENTS + 2)]
    for line in lines:
        journal.add([line])
    reading = journal.lines()
    first = next(reading)
    journal.merge()
    assert [first, *reading] == lines


def test_a_merger_that_comes_second_stops(tmp_path: Path) -> None:
    storage = LosesASegment(str(tmp_path))
    journal = Journal(storage, "j")
    lines = [f"{number:03d}\t{{}}\n".encode() for number in range(MANY_SEGMENTS + 2)]
    for line in lines:
        journal.add([line])
    storage.lost = 5
    journal.merge()
    assert len(list(journal.lines())) == len(lines)


class LosesASegment(LocalStorage):
    """The n-th segment that is opened has been merged away by another driver a moment ago."""

    lost = -1

    def open(self, key: str):  # type: ignore[no-untyped-def]
        self.lost -= 1
        if self.lost == 0:
            raise FileNotFoundError(key)
        return super().open(key)


def test_deleting_takes_names_as_they_are(any_root: str) -> None:
    storage = open_storage(any_root)
    for name in ("1.bin", "[1].bin", "a*.bin", "ab.bin"):
        storage.write(f"d/{name}", b"x")
    storage.delete("d/[1].bin", "d/a*.bin", "d/never-there")
    assert storage.names("d") == ["1.bin", "ab.bin"]
    storage.delete_folder("d")
    assert storage.names("d") == []


def test_calls_grow_slowly_and_shrink_at_once() -> None:
    pace, units = Pace(), ((f"{number}", number) for number in range(10_000))
    sizes = []
    for seconds in [1e-5] * 15 + [5.0] * 8:
        call = pace.next_call(units)
        sizes.append(len(call))
        pace.saw(len(call), seconds * len(call))
    assert all(after <= 2 * before for before, after in pairwise(sizes))
    assert max(sizes) == 256
    assert sizes[17:] == [1] * 6


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """As on a disk that is full, but for this process."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
