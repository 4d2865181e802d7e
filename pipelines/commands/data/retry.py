"""Tries failed files again, or failed rows of one stage such as CORPUS/frames, and nothing else.

Settings are those with which the stage was built, where the root has one output of it; files are given again.

examples:
  xmodal retry coco --root data
  xmodal retry tgif/frames --root data --class timeout
  xmodal retry coco/regions --root data --file detector=vg.pkl
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import command, reasons


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS[/STAGE]")
    parser.add_argument("--class", dest="failure", help="only failures of this class, such as timeout or http_404")
    _flags.building(parser)


def run(args: Args) -> Result:
    from pipelines.stages import FILE_SETS
    from pipelines.upkeep.retries import retry_units

    done = {}
    targets = _flags.parse_targets(args, _flags.build_options(args))
    for target, (work, (*others, stage)) in zip(args.targets, targets, strict=True):
        of_files = others or stage in FILE_SETS
        done[target] = work.files.retry(args.failure) if of_files else retry_units(work, stage, args.failure)
    return {"root": args.root, "corpora": done}


def text(result: Result) -> Lines:
    for name, done in result["corpora"].items():
        what = done.get("of", "files")
        yield f"{name}: {done['recovered']:,} of {done['tried']:,} {what} recovered"
        yield from (f"still absent: {line}" for line in reasons(done.get("reasons", {})))
        for output in done.get("unfinished", ()):
            yield f"{output} is made of them: build it again, which does what has changed"
        if what == "files" and done["recovered"]:
            yield f"now `{command('seal', name, '--root', result['root'])}`, and build again, to use them"
