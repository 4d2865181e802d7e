"""Writes a corpus as a Hugging Face dataset into a local folder.

examples:
  xmodal publish coco --root data --out coco-captions
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import size


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS", nargs=1)  # as --out is one folder
    out = "the folder; one of an earlier publish is replaced"
    parser.add_argument("--out", type=_flags.path, required=True, help=out)
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.engine.build_options import BuildOptions
    from pipelines.publishing.dataset_repository import publish

    storage = _flags.existing(args.root)
    ((work, _),) = _flags.parse_targets(args, BuildOptions(storage))
    progress = _flags.progress(args)
    _flags.warn_of_changes(args, work.corpus.name)
    return publish(work.corpus, storage, args.out, progress)


def text(result: Result) -> Lines:
    rows = result["rows"]
    splits = ", ".join(f"{name} {split} ({count:,})" for name, of in rows.items() for split, count in of.items())
    yield f"{result['path']}: {result['files']:,} files, {size(result['bytes'])}: {splits}"
    if withheld := [f"{part} ({most} at most)" for part, most in result["withheld"].items()]:
        yield f"withheld, as its release says: {', '.join(withheld)}"
    if rows:
        yield f"look at it with datasets.load_dataset({result['path']!r}, {next(iter(rows))!r})"
