"""Checks a corpus or a model against what every corpus or model owes, and says what is missing.

A corpus is checked by what it declares, by its card and, with --raw FOLDER, by what it makes of its files: a corpus of
this package writes small ones itself. A model computes with eight random pairs. The exit code is 1 if anything is
wrong.

examples:
  xmodal check mine.py
  xmodal check mine.py --raw ~/Downloads/mine
  xmodal check coco vsepp
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("targets", nargs="+", metavar="mine.py|NAME", help="a corpus or a model, or the Python file of one, or of both")
    add("--raw", type=_flags.path, help="a folder with the files of the corpus, by the paths of its sources")


def run(args: Args) -> Result:
    from pipelines.commands.data._faults import check

    _flags.check_raw(args)
    return {text: check(text, args.raw) for text in args.targets}


def text(result: Result) -> Lines:
    for name, found in result.items():
        verdict = f"{len(found['faults'])} to mend" if found["faults"] else "keeps the contract"
        yield f"{name}, {' and '.join(found['checked'])}: {verdict}"
        yield from (f"    - {fault}" for fault in found["faults"])
        yield from (f"    note: {note}" for note in found["notes"])


def exit_code(result: Result) -> int:
    return int(any(found["faults"] for found in result.values()))
