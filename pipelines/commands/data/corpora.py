"""Lists every corpus: licence, stages, what is fetched by hand, what is built under a root.

examples:
  xmodal corpora
  xmodal corpora --root data --json
"""

from typing import Any

from pipelines.commands import Args, Lines, Parser, _flags


def flags(parser: Parser) -> None:
    _flags.root(parser, required=False)


def run(args: Args) -> list[dict[str, Any]]:
    from pipelines.fetching.corpus_names import user_corpora
    from pipelines.upkeep.corpus_build import stages_of
    from pipelines.upkeep.inspection import origin
    from xmodal import corpora
    from xmodal.root.outputs import directories
    from xmodal.root.storage import open_storage

    storage = open_storage(args.root) if args.root else None
    built = [(output, origin(output)) for output in directories(storage) if output.complete] if storage else []
    yours = user_corpora(storage) if storage else []
    rows = []
    for corpus in [*map(corpora.load, corpora.names()), *yours]:
        whose = (("annotations", corpus.name), ("media", corpus.media_set))
        row: dict[str, Any] = {"name": corpus.name, "homepage": corpus.homepage, "licence": corpus.licence}
        row |= {"stages": stages_of(corpus)}
        row |= {"by_hand": {source.path: source.how for source in corpus.sources if source.url is None}}
        rows.append(row | {"built": [output.where for output, of in built if of in whose]})
    return rows


def text(result: list[dict[str, Any]]) -> Lines:
    for row in result:
        yield f"{row['name']:20} {row['licence']}"
        yield f"    stages: {', '.join(row['stages'])}"
        yield from (f"    by hand: {path}: {how}" for path, how in row["by_hand"].items())
        yield from (f"    built: {path}" for path in row["built"])
