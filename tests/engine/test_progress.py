"""Progress: a redrawn line on a terminal, a line now and then in a log; a rate and an ETA one can plan by."""

import io
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import sleep
from types import SimpleNamespace

import pytest

from pipelines.engine import progress_line
from pipelines.engine.building import build
from pipelines.engine.progress_line import ProgressLine, duration
from pipelines.engine.stage import Counts, Inputs, Sink, single
from xmodal.root.storage import open_storage


class Log(io.StringIO):
    def isatty(self) -> bool:
        return False


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Nothing:
    """Settings of a stage without settings."""


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_line, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def run(stream: io.StringIO, clock: Clock, ticks: int, seconds: float, total: int, done: int = 0) -> list[str]:
    """`ticks` units of `seconds` each; the lines that were written."""
    with ProgressLine(stream).over("fetch", total, done, unit="files") as tick:
        for _ in range(ticks):
            clock.now += seconds
            tick(1)
    return stream.getvalue().splitlines()


def test_a_log_gets_a_line_every_thirty_seconds_at_most_and_one_at_the_end(clock: Clock) -> None:
    lines = run(Log(), clock, ticks=8000, seconds=1 / 64, total=8000)
    assert len(lines) == 4 + 1
    assert lines[-1] == "fetch: 8,000/8,000 files (100 %), 64.0 files/s, in 2 min"


def test_short_work_gives_a_log_one_line(clock: Clock) -> None:
    assert run(Log(), clock, ticks=10, seconds=0.5, total=10) == ["fetch: 10/10 files (100 %), 2.0 files/s, in 5 s"]


def test_slow_work_does_not_end_with_the_same_line_twice(clock: Clock) -> None:
    lines = run(Log(), clock, ticks=2, seconds=40, total=2)
    assert [line.partition(",")[0] for line in lines] == ["fetch: 1/2 files (50 %)", "fetch: 2/2 files (100 %)"]


def test_a_log_gets_no_control_characters(clock: Clock) -> None:
    assert not set("\r\x1b") & set("".join(run(Log(), clock, ticks=100, seconds=1, total=100)))


def test_a_terminal_has_one_line_that_is_redrawn(clock: Clock) -> None:
    run(terminal := Terminal(), clock, ticks=50, seconds=0.5, total=50)
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\n")
    nothing, *drawn = terminal.getvalue().split("\r\x1b[K")
    assert nothing == ""
    assert len(drawn) == 50 + 1
    assert all(line.startswith("fetch: ") for line in drawn)


def test_a_terminal_is_redrawn_ten_times_a_second_at_most(clock: Clock) -> None:
    run(terminal := Terminal(), clock, ticks=1000, seconds=0.001, total=1000)
    assert terminal.getvalue().count("\r") <= 11


def test_a_line_fits_into_a_narrow_terminal_or_redrawing_would_flood_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run(terminal := Terminal(), clock, ticks=100, seconds=0.5, total=113_287)
    assert max(len(line) for line in re.split(r"\r\x1b\[K|\n", terminal.getvalue())) <= 40


def test_the_time_left_follows_from_the_rate_of_this_run_alone(clock: Clock) -> None:
    lines = run(Log(), clock, ticks=60, seconds=1.0, total=1000, done=640)
    assert lines[0] == "fetch: 670/1,000 files (67 %), 1.0 files/s, 6 min left"
    assert lines[1] == "fetch: 700/1,000 files (70 %), 1.0 files/s, 5 min left"


def test_a_slow_rate_is_told_by_the_minute(clock: Clock) -> None:
    assert run(Log(), clock, ticks=1, seconds=40.0, total=151)[0].endswith("1.5 files/min, 1 h 40 min left")


def test_a_part_that_fails_is_shown_as_far_as_it_came(clock: Clock) -> None:
    log = Log()
    with suppress(ConnectionError), ProgressLine(log).over("parse", 5) as tick:
        clock.now += 1
        tick(2)
        raise ConnectionError
    assert log.getvalue() == "parse: 2/5 units (40 %), 2.0 units/s, 2 s left\n"


def test_nothing_to_do_divides_by_nothing(clock: Clock) -> None:
    assert run(Log(), clock, ticks=0, seconds=0, total=0)[0].startswith("fetch: 0/0 files")
    assert run(Log(), clock, ticks=0, seconds=0, total=9, done=9) == ["fetch: 9/9 files (100 %), all done before"]
    assert run(Log(), clock, ticks=1, seconds=0, total=2)[0].startswith("fetch: 1/2 files (50 %)")


def test_it_is_not_done_before_it_is_done(clock: Clock) -> None:
    assert "(99 %)" in run(Log(), clock, ticks=1, seconds=1, total=100_000, done=99_998)[0]


def test_quiet_is_quiet(clock: Clock) -> None:
    log = Log()
    quiet = ProgressLine(log, quiet=True)
    quiet.say("hello")
    with quiet.over("parse", 1) as tick:
        clock.now += 60
        tick(1)
    assert log.getvalue() == ""


def test_without_a_stream_it_goes_to_stderr(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine().over("parse", 1) as tick:
        tick(1)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("parse: 1/1 units (100 %)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (9.4, "9 s"),
        (89, "89 s"),
        (91, "2 min"),
        (200, "3 min"),
        (5400, "1 h 30 min"),
        (7199, "1 h 59 min"),
        (7500, "2 h 05 min"),
        (400_000, "111 h 06 min"),
    ],
)
def test_durations_read_as_one_would_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_long_unit_is_heard_while_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "LOG_SECONDS", 0.01)
    log = Log()

    def write(config: Nothing, inputs: Inputs, sink: Sink) -> Counts:
        sink.say("half of it")
        for _ in range(1000):
            if "half of it" in log.getvalue():
                return {"heard": 1}
            sleep(0.01)
        return {}

    stage = single("toy", Nothing(), (), 1, "unit", write)
    output = build(stage, open_storage(str(tmp_path)), progress=ProgressLine(log))
    assert output.totals["counts"] == {"heard": 1}
    assert not (Path(output.where) / "_runs/attempts").exists()


def test_last_words_that_cannot_be_read_stop_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "LOG_SECONDS", 0.001)
    asked, shown = Event(), io.StringIO()
    answers = iter([ConnectionError("the store is busy"), UnicodeDecodeError("utf-8", b"", 0, 1, ""), ["halfway"]])

    def heard() -> list[str]:
        match next(answers, None):
            case Exception() as error:
                raise error
            case None:
                asked.set()
                return []
            case texts:
                return texts

    with ProgressLine(shown).listening(heard):
        assert asked.wait(60)
    assert shown.getvalue() == "halfway\n"
