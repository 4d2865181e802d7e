"""Makes a new sealed set of files from what the ledger says now.

examples:
  xmodal retry coco --root data; xmodal seal coco --root data; xmodal build coco --root data
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.root.storage import open_storage


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS")


def run(args: Args) -> Result:
    from pipelines.engine.build_options import BuildOptions

    targets = _flags.parse_targets(args, BuildOptions(open_storage(args.root)))
    return {work.corpus.name: work.files.reseal() for work, _ in targets}


def text(result: Result) -> Lines:
    for name, parts in result.items():
        yield from (f"{name}/{part}: {identity}" for part, identity in parts.items())
