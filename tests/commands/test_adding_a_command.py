"""A command is one file: it is found because it exists, with help, text and JSON."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import commands
from pipelines.cli import main
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.commands.test_commands import printed
from tests.toy_root import make_root

NEW = '''"""Counts the letters of a word.

examples:
  xmodal toy-letters word
"""


def flags(parser):
    parser.add_argument("word")


def run(args):
    return {"word": args.word, "letters": len(args.word)}


def text(result):
    yield f"{result['word']} has {result['letters']} letters"


def exit_code(result):
    return 0 if result["letters"] else 1
'''
CAPTIONS = '''"""Counts the captions of each item of a split.

examples:
  xmodal toy-captions pictures toy/train@50% --root data
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags


def flags(parser: Parser) -> None:
    parser.add_argument("corpus")
    parser.add_argument("split")
    _flags.root(parser)


def run(args: Args) -> list[Result]:
    import xmodal
    from xmodal.recipes import View
    from xmodal.records.views import captions_by_item

    records = xmodal.open(args.root, args.corpus).records
    captions = captions_by_item(records, View(args.corpus, args.split))
    return [{"item": item, "captions": int(n)} for item, n in zip(captions.items, captions.counts, strict=True)]


def text(result: list[Result]) -> Lines:
    yield from (f"{row['item']}  {row['captions']}" for row in result)
'''
SHARES = ("", "@50%", "@50%:unannotated")


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a new group of commands, whose files are forgotten afterwards."""
    before = set(sys.modules)
    (tmp_path / "toy_group").mkdir()
    (tmp_path / "toy_group" / "__init__.py").write_text('"""words and letters"""')
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    yield tmp_path / "toy_group"
    for name in set(sys.modules) - before:
        if name.startswith("pipelines.commands.toy_group"):
            del sys.modules[name]
    vars(commands).pop("toy_group", None)


def test_a_file_is_all_that_a_new_command_takes(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (group / "toy_letters.py").write_text(NEW)
    shown = printed(capsys, "--help")
    assert re.search(r"words and letters:\n  toy-letters +Counts the letters of a word\n", shown)
    assert "xmodal toy-letters word" in printed(capsys, "toy-letters", "--help")
    assert main(["toy-letters", "cat"]) == 0
    assert capsys.readouterr().out == "cat has 3 letters\n"
    assert main(["toy-letters", "", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"word": "", "letters": 0}


def test_a_new_command_reads_the_captions_of_a_split(group: Path, xmodal: Xmodal, tmp_path: Path) -> None:
    (group / "toy_captions.py").write_text(CAPTIONS)
    root = make_root(tmp_path, items=20)
    assert xmodal("toy-captions", "pictures", "toy/silent", "--root", root).out == "p0019  0\n"
    rows = {split: xmodal.done("toy-captions", "pictures", f"toy/train{split}", "--root", root) for split in SHARES}
    assert [len(of_split) for of_split in rows.values()] == [16, 8, 8]
    assert [{row["captions"] for row in of_split} for of_split in rows.values()] == [{5}, {5}, {0}]
    said = xmodal("toy-captions", "pictures", "toy/train:50%", "--root", root).complaint
    assert said.endswith("toy/silent; a share is written NAME@50%, the rest NAME@50%:unannotated")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import nowhere_to_be_found\n",
            "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        ("def flags(:\n", "cannot be loaded: SyntaxError: "),
        ("raise SystemExit('100 %')\n", "cannot be loaded: SystemExit: 100 %"),
        (NEW.replace("def run(", "def go("), "must define run"),
        ('"""Nothing."""\n', "must define flags and run"),
    ],
)
def test_a_file_that_is_no_command_is_one_line_and_the_others_work(
    text: str, said: str, group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (group / "toy_letters.py").write_text(text)
    for arguments in ([], ["word"], ["--root", "x"], ["--help"]):
        assert main(["toy-letters", *arguments]) == 1
        printed_to = capsys.readouterr()
        assert printed_to.out == ""
        assert printed_to.err.startswith(f"xmodal: {group / 'toy_letters.py'} {said}")
        assert printed_to.err.count("\n") == 1
    assert f" Does not work: {group / 'toy_letters.py'} {said}" in printed(capsys, "--help")
    assert main(["doctor"]) == 0
    assert main(["completion", "bash"]) == 0


def test_two_commands_of_one_name_are_refused_by_both_files(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (group / "toy_letters.py").write_text(NEW)
    (group / "status.py").write_text(NEW)
    assert main(["toy-letters", "cat"]) == 0
    assert main(["status", "cat"]) == 1
    both = "pipelines/commands/data/status.py and pipelines/commands/toy_group/status.py"
    assert capsys.readouterr().err == f"xmodal: {both} are both the command status: rename one\n"


def test_numbers_of_numpy_are_plain_in_json(group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = "numpy.float32(0.5), numpy.int64(3), numpy.bool_(True), numpy.array(2), numpy.arange(2)"
    (group / "toy_letters.py").write_text(
        NEW.replace("def run(args):", f"import numpy\ndef run(args):\n    return {{'letters': [{values}]}}")
    )
    assert main(["toy-letters", "cat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"letters": [0.5, 3, True, 2, [0, 1]]}
