"""Makes a new sealed set of files from what the ledger says now.

examples:
  xmodal retry coco --root data; xmodal seal coco --root data; xmodal build coco --root data
"""

from pipelines.commands import Args, Lines, Parser, _flags

Sealed = dict[str, dict[str, str]]  # of each corpus, the identity of each part


def flags(parser: Parser) -> None:
    _flags.targets(parser, "CORPUS")


def run(args: Args) -> Sealed:
    from pipelines.engine.build_options import BuildOptions
    from xmodal.root.storage import open_storage

    targets = _flags.parse_targets(args, BuildOptions(open_storage(args.root)))
    return {work.corpus.name: work.files.reseal() for work, _ in targets}


def text(result: Sealed) -> Lines:
    for name, parts in result.items():
        yield from (f"{name}/{part}: {identity}" for part, identity in parts.items())
