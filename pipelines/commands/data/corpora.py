"""Lists every corpus: licence, stages, what is fetched by hand, what is built under a root.

examples:
  xmodal corpora
  xmodal corpora --root data --json
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.root.outputs import directories
from xmodal.root.storage import open_storage


def flags(parser: Parser) -> None:
    _flags.root(parser, required=False)


def run(args: Args) -> list[Result]:
    from pipelines.fetching.corpus_names import user_corpora
    from pipelines.upkeep.corpus_build import stages_of
    from pipelines.upkeep.inspection import origin
    from xmodal import corpora

    there, built = [*map(corpora.load, corpora.names())], []
    if args.root:
        storage = open_storage(args.root)
        there += user_corpora(storage)
        built = [(output.where, origin(output)) for output in directories(storage) if output.complete]
    rows = []
    for corpus in there:
        whose = (("annotations", corpus.name), ("media", corpus.media_set))
        row: Result = {name: getattr(corpus, name) for name in ("name", "homepage", "licence")}
        row |= {"stages": stages_of(corpus)}
        row |= {"by_hand": {source.path: source.how for source in corpus.sources if source.url is None}}
        rows.append(row | {"built": [where for where, of in built if of in whose]})
    return rows


def text(result: list[Result]) -> Lines:
    for row in result:
        yield f"{row['name']:20} {row['licence']}"
        yield f"    stages: {', '.join(row['stages'])}"
        yield from (f"    by hand: {path}: {how}" for path, how in row["by_hand"].items())
        yield from (f"    built: {path}" for path in row["built"])
