"""Small builds do without Ray, and of large ones each unit is done once, wherever."""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    done: list[bool] = []
    stage = counted(letters(Letters(60, seconds=0.005)), done)
    elsewhere = Elsewhere()
    build(stage, open_storage(str(tmp_path / "both")), SerialStart(elsewhere))
    assert len(done) == 60
    assert elsewhere.units == sum(done)
    build(letters(Letters(60, seconds=0.005)), open_storage(str(tmp_path / "serial")))
    assert tree_digest(str(tmp_path / "both")) == tree_digest(str(tmp_path / "serial"))


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


def test_ctrl_c_ends_the_unit_that_is_at_work(tmp_path: Path) -> None:
    """As a signal would, the caller raises where it waits for records; nothing of the unit is left to be found."""
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
