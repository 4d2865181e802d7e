"""The engine: what is redone and what is not, what is left behind by a crash at any point, and what is refused."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import build, pending, taint
from pipelines.engine.commits import Commits
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from tests.conftest import tree_digest
from tests.toy_stages import Letters, Words, failing, letters, words
from xmodal.errors import UserError
from xmodal.root.outputs import Output, find
from xmodal.root.storage import LocalStorage, Storage, open_storage


def test_a_build_gives_the_same_bytes_on_every_kind_of_root(any_root: str, tmp_path: Path) -> None:
    build(words(letters(Letters()), Words()), open_storage(any_root))
    build(words(letters(Letters()), Words()), open_storage(str(tmp_path / "other")))
    assert tree_digest(any_root) == tree_digest(str(tmp_path / "other"))


def test_a_finished_output_tells_what_it_holds(tmp_path: Path) -> None:
    build(letters(Letters(12)), open_storage(str(tmp_path)))
    (output,) = find(str(tmp_path), "letters", count=12)
    assert output.totals["units"] == 12
    assert output.totals["failures"] == {"unreadable": 3}
    assert output.totals["counts"]["letters"] == sum(number % 7 for number in range(12))
    assert _read(output, "data/00003.1") == b"3 " * 150
    assert [unit.name for unit in output.units()] == [f"{number:05d}" for number in range(12)]
    assert json.loads((tmp_path / output.folder / "stage.json").read_text())["config"]["count"] == 12


def test_an_unchanged_rerun_does_no_work(tmp_path: Path) -> None:
    storage, log = open_storage(str(tmp_path)), Log()
    build(log.watch(letters(Letters(6))), storage)
    assert len(log.done) == 6
    build(log.watch(letters(Letters(6))), storage)
    assert len(log.done) == 6
    assert pending(letters(Letters(6)), storage) == (6, 0)


def copies(stage: str, source: Stage[Any, Any]) -> Stage[Any, Any]:
    """A unit copies one file, and names it by its checksum."""

    def plan(config: Words, inputs: Inputs) -> Iterator[tuple[str, tuple[str, str]]]:
        return ((name.replace("/", "-"), (name, checksum)) for name, checksum in sorted(inputs[0].checksums.items()))

    def start(config: Words, inputs: Inputs) -> Callable[[tuple[str, str], Sink], Counts]:
        def copy(work: tuple[str, str], sink: Sink) -> Counts:
            with sink.file(work[0]) as file:
                file.write(inputs[0].read(work[0]))
            return {}

        return copy

    return Stage(stage, Words(), plan, start, (source,), reuse=True)


def test_damage_redoes_what_read_it_and_what_read_that(tmp_path: Path) -> None:
    storage, log = open_storage(str(tmp_path)), Log()
    source = build(letters(Letters(6)), storage)
    top = copies("second", copies("first", letters(Letters(6))))
    before = build(log.watch(top), storage)
    assert len(log.done) == len(source.files)
    taint(source, {source.checksums["data/00003.1"]})
    assert not before.complete
    log.done.clear()
    after = build(log.watch(top), storage)
    same = [name for name, checksum in source.checksums.items() if checksum == source.checksums["data/00003.1"]]
    assert len(log.done) == len(same) < len(source.files)
    assert after.checksums == before.checksums


def test_another_config_redoes_just_what_depends_on_it(tmp_path: Path) -> None:
    storage, log = open_storage(str(tmp_path)), Log()
    first = letters(Letters(6))
    build(log.watch(words(first, Words(3))), storage)
    build(log.watch(words(first, Words(4))), storage)
    assert len(list(tmp_path.glob("letters/*"))) == 1
    assert len(list(tmp_path.glob("words/*"))) == 2
    build(log.watch(words(letters(Letters(6, salt="x")), Words(4))), storage)
    assert len(list(tmp_path.glob("letters/*"))) == 2
    assert len(list(tmp_path.glob("words/*"))) == 3


def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path: Path) -> None:
    storage, log = open_storage(str(tmp_path)), Log()
    with pytest.raises(ZeroDivisionError) as caught:
        build(log.watch(failing(40, victim=20)), storage)
    assert "in unit 00020 of stage failing" in caught.value.__notes__
    done = len(log.done)
    assert done >= 20
    assert pending(failing(40, victim=20), storage) == (40, 20)
    with pytest.raises(ZeroDivisionError):
        build(log.watch(failing(40, victim=20)), storage)
    assert len(log.done) == done  # only the failing unit was tried again


class Crash(BaseException):
    """A process that dies: no handler of ours may clean up after it."""


class CrashingStorage(LocalStorage):
    """Dies before its n-th change, as a killed process does: what it wrote stays, and no handler cleans up after it."""

    def __init__(self, url: str, at: int) -> None:
        super().__init__(url)
        self.left, self.dead = at, False


def _dying(name: str) -> Callable[..., Any]:
    def change(self: CrashingStorage, *arguments: Any) -> Any:
        if self.dead:
            return None
        self.left -= 1
        if self.left < 0:
            self.dead = True
            raise Crash
        return getattr(LocalStorage, name)(self, *arguments)

    return change


for _name in ("_link", "_replace", "_remove", "_make_folder", "_sync", "_sync_folder", "delete_folder"):
    setattr(CrashingStorage, _name, _dying(_name))


def test_after_a_crash_at_any_point_a_rerun_gives_the_same_bytes(tmp_path: Path) -> None:
    """Every change of the file system is a point to die at; each is tried, and twice in a row."""
    stage = words(letters(Letters(6)), Words())
    build(stage, open_storage(str(tmp_path / "whole")))
    whole = tree_digest(str(tmp_path / "whole"))
    points = 0
    for points in range(10_000):
        root = str(tmp_path / f"crash{points}")
        if survives(stage, CrashingStorage(root, points)):
            break
        survives(stage, CrashingStorage(root, points // 2))
        build(stage, open_storage(root))
        assert tree_digest(root) == whole, f"a crash before change {points} left another tree"
    assert points > 200


def survives(stage: Stage[Any, Any], storage: Storage) -> bool:
    with pytest.MonkeyPatch.context() as patched:  # the worker shares the doomed process
        patched.setattr("pipelines.engine.building.open_storage", lambda url: storage)
        try:
            build(stage, storage)
        except Crash:
            return False
    return True


def test_two_drivers_on_one_root_do_no_harm(any_root: str, tmp_path: Path) -> None:
    script = (
        "import sys; from tests.toy_stages import *; from pipelines.engine.building import build;"
        "from xmodal.root.storage import open_storage;"
        "build(words(letters(Letters(40, seconds=0.002)), Words()), open_storage(sys.argv[1]))"
    )
    drivers = [subprocess.Popen([sys.executable, "-c", script, any_root], stderr=subprocess.PIPE) for _ in range(3)]
    for driver in drivers:
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors.decode()
    build(words(letters(Letters(40, seconds=0.002)), Words()), open_storage(str(tmp_path / "alone")))
    assert tree_digest(any_root) == tree_digest(str(tmp_path / "alone"))


def test_put_if_absent_has_one_winner(any_root: str) -> None:
    storage = open_storage(any_root)
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            wins = list(pool.map(lambda writer, key=f"k{number}": storage.create(key, bytes([writer])), range(8)))
            assert sum(wins) == 1
            assert storage.read(f"k{number}") == bytes([wins.index(True)])


def test_an_orphan_that_commits_after_the_end_changes_nothing(any_root: str) -> None:
    storage, stage = open_storage(any_root), letters(Letters(6))
    output = build(stage, storage)
    before = tree_digest(any_root)
    commits = Commits(storage, output.folder)
    attempt = commits.attempt("00001")
    with attempt.file("data/00001.0") as file:
        file.write(b"late and different")
    commits.commit(attempt, attempt.line({}))
    assert tree_digest(any_root) == before
    assert build(stage, storage).totals["units"] == 6


def test_a_stage_that_is_not_deterministic_is_found_out(tmp_path: Path) -> None:
    storage, stage = open_storage(str(tmp_path)), letters(Letters(6))
    commits = Commits(storage, stage.folder)
    for counts in ({"letters": 1}, {"letters": 2}):
        attempt = commits.attempt("00001")
        commits.gather([commits.commit_together([attempt.line(counts)])])
    with pytest.raises(UserError, match=r"two attempts at unit 00001 gave different bytes: the stage is not determin"):
        build(stage, storage)


def test_a_unit_is_reused_where_only_other_units_changed(tmp_path: Path) -> None:
    storage, log = open_storage(str(tmp_path)), Log()
    first = build(log.watch(_copies(_given(storage, "a", {"x": b"1", "y": b"2"}))), storage)
    assert log.done == ["x", "y"]
    second = build(log.watch(_copies(_given(storage, "b", {"x": b"1", "y": b"3"}))), storage)
    assert log.done == ["x", "y", "y"]
    assert first.identity != second.identity
    assert (_read(first, "x"), _read(second, "x"), _read(second, "y")) == (b"1", b"1", b"3")
    alone = open_storage(str(tmp_path / "alone"))
    build(_copies(_given(alone, "b", {"x": b"1", "y": b"3"})), alone)
    for name in ("units.tsv", "complete.json", "stage.json", "x", "y"):
        assert alone.read(f"{second.folder}/{name}") == storage.read(f"{second.folder}/{name}")


def test_a_unit_is_not_reused_from_an_output_that_lost_it(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    first = build(_copies(_given(storage, "a", {"x": b"1"})), storage)
    (tmp_path / first.folder / "x").unlink()
    second = build(_copies(_given(storage, "b", {"x": b"1", "y": b"2"})), storage)
    assert _read(second, "x") == b"1"


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_an_input_that_lost_a_file_is_named(tmp_path: Path, damage: str) -> None:
    storage = open_storage(str(tmp_path))
    output = build(letters(Letters(6)), storage)
    file = tmp_path / output.folder / "data/00003.1"
    file.unlink() if damage == "missing" else file.write_bytes(b"3")
    with pytest.raises(UserError, match=r"data/00003\.1 is .*xmodal verify --forget"):
        build(words(letters(Letters(6)), Words()), storage)


@pytest.mark.parametrize("part", ["letters", "words"])
def test_a_corrupt_record_is_named_and_not_believed(tmp_path: Path, part: str) -> None:
    storage, stage = open_storage(str(tmp_path)), failing(20, victim=10)
    with pytest.raises(ZeroDivisionError):
        build(stage, storage)
    (segment,) = (tmp_path / stage.folder / "_runs/commits").glob("*.tsv")
    flipped = bytearray(segment.read_bytes())
    flipped[20 if part == "letters" else -5] ^= 1
    segment.write_bytes(flipped)
    with pytest.raises(UserError, match=r"\.tsv is corrupt: `xmodal verify --forget"):
        build(stage, storage)
    segment.unlink()
    with pytest.raises(ZeroDivisionError):
        build(stage, storage)
    assert pending(stage, storage) == (20, 10)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["b", "a"], "unit names must ascend"), (["a", "a"], "unit names must ascend"), (["a/b"], "letters, digits")],
)
def test_a_plan_that_makes_no_sense_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(_named(names), open_storage(str(tmp_path)))


def test_two_units_that_write_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two units write one file"):
        build(_named(["a", "b"], file="same"), open_storage(str(tmp_path)))
    assert not find(str(tmp_path))


def test_a_plan_that_shrinks_under_one_identity_is_refused(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        build(failing(20, victim=10), storage)
    shrunk = replace(failing(20, victim=10), plan=lambda config, inputs: iter([("00001", 1)]))
    with pytest.raises(UserError, match="00000, which is not planned: stage failing needs a new version"):
        build(shrunk, storage)


def test_a_directory_that_says_it_is_something_else_is_refused(tmp_path: Path) -> None:
    storage, stage = open_storage(str(tmp_path)), letters(Letters(3))
    storage.write(f"{stage.folder}/stage.json", b'{"layout":1,"stage":"other"}')
    with pytest.raises(UserError, match="has changed"):
        build(stage, storage)


class Log:
    """Which units were done, in this process."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def watch(self, stage: Stage[Any, Any]) -> Stage[Any, Any]:
        return replace(stage, open=partial(self._open, stage.open))

    def _open(self, open_stage: Callable[..., Any], config: Any, inputs: Inputs) -> Callable[[Any, Sink], Counts]:
        work = open_stage(config, inputs)

        def watched(unit: Any, sink: Any) -> Counts:
            counts: Counts = work(unit, sink)
            self.done.append(sink.unit)
            return counts

        return watched


def _given(storage: Storage, name: str, files: dict[str, bytes]) -> Output:
    """An output with these files, as an earlier stage would leave it."""

    def open_given(config: str, inputs: Inputs) -> Callable[[bytes, Sink], Counts]:
        return lambda data, sink: _write(sink, sink.unit, data)

    return build(Stage("given", name, lambda config, inputs: iter(sorted(files.items())), open_given), storage)


def _copies(given: Output) -> Stage[str, str]:
    """A unit's work is its input's checksum, so that equal inputs give equal units."""

    def plan(config: str, inputs: Inputs) -> Iterator[tuple[str, str]]:
        return ((unit.name, unit.files[unit.name][1]) for unit in inputs[0].units())

    def open_copies(config: str, inputs: Inputs) -> Callable[[str, Sink], Counts]:
        return lambda work, sink: _write(sink, sink.unit, _read(inputs[0], sink.unit))

    return Stage("copies", "", plan, open_copies, inputs=(given,), reuse=True)


def _named(names: list[str], file: str = "") -> Stage[str, str]:
    def plan(config: str, inputs: Inputs) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in names)

    def open_named(config: str, inputs: Inputs) -> Callable[[str, Sink], Counts]:
        return lambda name, sink: _write(sink, file or name, b"")

    return Stage("named", "", plan, open_named)


def _read(output: Output, name: str) -> bytes:
    with output.open(name) as file:
        return file.read()


def _write(sink: Sink, name: str, data: bytes) -> Counts:
    with sink.file(name) as file:
        file.write(data)
    return {}
