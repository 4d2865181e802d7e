"""What others wrote reaches a terminal as text, whatever it is: names of files, reasons of servers, captions."""

import io
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.engine.building import build
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Counts, Inputs, Sink, single
from xmodal.progress import printable
from xmodal.root.storage import open_storage

NASTY = "\x1b[2J\x1b]0;owned\x07 a\rb \x9b31m \u202etxt.exe \x08\x08 \ud800"


def test_control_characters_are_shown_by_their_numbers() -> None:
    shown = printable(NASTY)
    assert shown.isprintable()
    assert r"\x1b[2J" in shown
    assert r"\u202etxt.exe" in shown


def test_letters_of_all_scripts_and_lines_stay() -> None:
    text = "naïve 漢字 العربية עברית 🦊\tdone\nnext"
    assert printable(text) == text


def test_progress_says_no_control_characters() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.say(f"fetching {NASTY}")
    with line.over(NASTY, 1) as tick:
        tick(1)
    assert stream.getvalue().replace("\n", "").isprintable()


def test_a_failure_with_control_characters_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(config: None, inputs: Inputs, sink: Sink) -> Counts:
        sink.fail(NASTY, "unreadable", f"no picture: {NASTY}")
        return {}

    build(single("toy", None, (), 1, "u", fails), open_storage(str(tmp_path)))
    assert main(["status", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_an_error_with_control_characters_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--root", "no\x1b[2Jwhere"]) == 1
    assert capsys.readouterr().err.replace("\n", "").isprintable()
