"""Small builds do without Ray, and of large ones each unit is done once, wherever."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, current_thread, main_thread
from time import sleep
from typing import Any

import pytest

from pipelines.engine import serial_start
from pipelines.engine.building import OpenWorker, Units, build, pending, serial
from pipelines.engine.commits import Record
from pipelines.engine.serial_start import SerialStart
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from tests.conftest import tree_digest
from tests.toy_stages import Letters, Words, failing, letters, words
from xmodal.errors import UserError
from xmodal.root.storage import open_storage


@dataclass
class Elsewhere:
    """A runner in place of Ray's, which takes down what it was given."""

    units: int = 0
    calls: int = 0

    def __call__(self, open_worker: OpenWorker, units: Units, resources: Resources) -> Iterator[Record]:
        self.calls += 1
        given = list(units)
        self.units += len(given)
        yield from serial(open_worker, iter(given), resources)


def test_a_small_build_is_done_here(tmp_path: Path) -> None:
    elsewhere = Elsewhere()
    stage = words(letters(Letters(30)), Words())
    build(stage, open_storage(str(tmp_path / "here")), SerialStart(elsewhere))
    build(stage, open_storage(str(tmp_path / "serial")))
    assert elsewhere.calls == 0
    assert tree_digest(str(tmp_path / "here")) == tree_digest(str(tmp_path / "serial"))


@pytest.mark.parametrize("patience", [0.0001, 0.05, 0.2])
def test_what_is_left_is_done_elsewhere_and_nothing_twice(
    patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial_start, "PATIENCE", patience)
    monkeypatch.setattr(serial_start, "HELP_AFTER", 60.0)  # what another process does would not be counted
    done: list[bool] = []
    stage = counted(letters(Letters(60, seconds=0.005)), done)
    elsewhere = Elsewhere()
    build(stage, open_storage(str(tmp_path / "both")), SerialStart(elsewhere))
    assert len(done) == 60
    assert elsewhere.units == sum(done)
    build(letters(Letters(60, seconds=0.005)), open_storage(str(tmp_path / "serial")))
    assert tree_digest(str(tmp_path / "both")) == tree_digest(str(tmp_path / "serial"))


def test_few_units_that_are_left_are_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would still be starting when they are done."""
    monkeypatch.setattr(serial_start, "PATIENCE", 0.3)
    elsewhere = Elsewhere()
    build(letters(Letters(2, seconds=0.5)), open_storage(str(tmp_path)), SerialStart(elsewhere))
    assert elsewhere.calls == 0
    assert pending(letters(Letters(2, seconds=0.5)), open_storage(str(tmp_path))) == (2, 0)


def counted(stage: Stage[Any, Any], done: list[bool]) -> Stage[Any, Any]:
    """Takes down of each unit whether the main thread did it."""

    def opened(config: Any, inputs: Inputs) -> Callable[[Any, Sink], Counts]:
        write = stage.open(config, inputs)

        def do(work: Any, sink: Sink) -> Counts:
            done.append(current_thread() is main_thread())
            return write(work, sink)

        return do

    return replace(stage, open=opened)


def test_once_it_is_started_it_does_the_next_stage_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_start, "PATIENCE", 0.01)
    elsewhere = Elsewhere()
    build(words(letters(Letters(40, seconds=0.01)), Words()), open_storage(str(tmp_path)), SerialStart(elsewhere))
    assert elsewhere.calls == 2


def test_a_stage_that_needs_a_gpu_is_done_elsewhere(tmp_path: Path) -> None:
    elsewhere = Elsewhere()
    stage = replace(letters(Letters(3)), resources=Resources(gpus=1))
    build(stage, open_storage(str(tmp_path)), SerialStart(elsewhere))
    assert elsewhere.units == 3


def test_an_exception_reaches_the_caller_with_its_unit(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        build(failing(40, victim=17), open_storage(str(tmp_path)), SerialStart(Elsewhere()))
    assert "in unit 00017 of stage failing" in caught.value.__notes__


def test_ctrl_c_ends_the_unit_that_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal would, the caller raises where it waits for records; nothing of the unit is left to be found."""
    monkeypatch.setattr(serial_start, "HELP_AFTER", 60.0)  # `opened` cannot go to another process
    ended = Event()

    def opened(config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
        def wait(number: int, sink: Sink) -> Counts:
            try:
                signal.raise_signal(signal.SIGINT)  # the main thread's
                for _ in range(6000):
                    sleep(0.01)
            finally:
                ended.set()
            return {}

        return wait

    stage = replace(letters(Letters(3)), open=opened)
    with pytest.raises(KeyboardInterrupt):
        build(stage, open_storage(str(tmp_path)), SerialStart(Elsewhere()))
    assert ended.is_set()
    assert pending(stage, open_storage(str(tmp_path))) == (3, 3)


# ------------------------------------------------------------------------------------------------------------- helpers


def where(folder: Path, seconds: float, count: int) -> Stage[Letters, int]:
    """Letters whose units note the process that did them, under `folder`."""
    return replace(letters(Letters(count)), open=partial(_open_noting, str(folder), seconds))


def _open_noting(folder: str, seconds: float, config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    write = letters(config).open(config, inputs)

    def do(number: int, sink: Sink) -> Counts:
        sleep(seconds)
        Path(folder, f"{number}-{os.getpid()}").touch()
        return write(number, sink)

    return do


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serial_start, "HELP_AFTER", 0.0)
    monkeypatch.setattr(serial_start, "cores_of", lambda run: 2)


def processes(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.iterdir()]


@pytest.mark.usefixtures("helped")
def test_another_process_helps_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    (notes := tmp_path / "notes").mkdir()
    build(where(notes, 0.1, 40), open_storage(str(tmp_path / "helped")), SerialStart(Elsewhere()))
    assert len(processes(notes)) == 40
    assert len({*processes(notes)}) == 2
    build(letters(Letters(40)), open_storage(str(tmp_path / "serial")))
    assert tree_digest(str(tmp_path / "helped")) == tree_digest(str(tmp_path / "serial"))


@pytest.mark.usefixtures("helped")
def test_a_build_that_is_done_does_not_wait_for_help(tmp_path: Path) -> None:
    (notes := tmp_path / "notes").mkdir()
    build(where(notes, 0.0, 3), open_storage(str(tmp_path / "root")), SerialStart(Elsewhere()))
    assert {*processes(notes)} == {os.getpid()}


def _fails_elsewhere(parent: int, config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    def do(number: int, sink: Sink) -> Counts:
        sleep(0.2)
        if os.getpid() != parent:
            raise ZeroDivisionError
        return {}

    return do


@pytest.mark.usefixtures("helped")
def test_an_exception_of_a_helper_reaches_the_caller_with_its_unit(tmp_path: Path) -> None:
    stage = replace(letters(Letters(40)), open=partial(_fails_elsewhere, os.getpid()))
    with pytest.raises(ZeroDivisionError) as caught:
        build(stage, open_storage(str(tmp_path)), SerialStart(Elsewhere()))
    assert "of stage letters" in caught.value.__notes__[0]
    assert "Traceback" in caught.value.__notes__[1]


def _dies_elsewhere(
    parent: int, deaths: str, most: int, config: Letters, inputs: Inputs
) -> Callable[[int, Sink], Counts]:
    def do(number: int, sink: Sink) -> Counts:
        sleep(0.2)
        if os.getpid() != parent and len(os.listdir(deaths)) < most:
            Path(deaths, str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {}

    return do


@pytest.mark.usefixtures("helped")
def test_a_unit_whose_helper_dies_is_done_by_another(tmp_path: Path) -> None:
    (deaths := tmp_path / "deaths").mkdir()
    stage = replace(letters(Letters(20)), open=partial(_dies_elsewhere, os.getpid(), str(deaths), 1))
    build(stage, open_storage(str(tmp_path / "root")), SerialStart(Elsewhere()))
    assert len(os.listdir(deaths)) == 1
    assert pending(stage, open_storage(str(tmp_path / "root"))) == (20, 0)


@pytest.mark.usefixtures("helped")
def test_a_unit_whose_helpers_all_die_ends_the_build_which_goes_on_later(tmp_path: Path) -> None:
    (deaths := tmp_path / "deaths").mkdir()
    stage = replace(letters(Letters(200)), open=partial(_dies_elsewhere, os.getpid(), str(deaths), 99))
    storage = open_storage(str(tmp_path / "root"))
    with pytest.raises(
        UserError, match=r"the process that did unit 00\d\d\d ended with -9: run the same command again"
    ):
        build(stage, storage, SerialStart(Elsewhere()))
    assert len(os.listdir(deaths)) == 3
    assert 0 < pending(stage, storage)[1] < 200
    build(letters(Letters(200)), storage)
    assert pending(stage, storage) == (200, 0)


class TwoArguments(OSError):
    """No pickle of it can be read: it is made from more than its message."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)


def _opens_here(parent: int, config: Letters, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    def do(number: int, sink: Sink) -> Counts:
        sleep(0.2)
        return {}

    if os.getpid() != parent:
        raise TwoArguments("kind", "the reason")
    return do


@pytest.mark.usefixtures("helped")
def test_a_helpers_exception_that_cannot_travel_is_told(tmp_path: Path) -> None:
    stage = replace(letters(Letters(40)), open=partial(_opens_here, os.getpid()))
    with pytest.raises(RuntimeError, match="TwoArguments: the reason"):
        build(stage, open_storage(str(tmp_path)), SerialStart(Elsewhere()))
