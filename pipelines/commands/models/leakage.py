"""Finds media that lie in several splits or corpora, the same or nearly so.

examples:
  xmodal build coco/fingerprints --root data; xmodal leakage coco --root data
  xmodal leakage coco flickr30k --root data --clean karpathy/test
"""

from typing import Any

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.errors import few
from xmodal.root.outputs import find

HOW = ("same", "exact", "near")


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("targets", nargs="+", metavar="CORPUS", help="corpora whose fingerprints are built")
    _flags.root(parser)
    add("--distance", type=_flags.count, metavar="N", help="bits of 64 in which near pictures differ (default: 6)")
    clean = "writes a split of the first corpus, such as karpathy/test, without what lies in training splits"
    add("--clean", metavar="SPLIT", help=clean)
    against = "what --clean compares with (default: training splits of its author and of other corpora)"
    add("--against", nargs="+", default=[], metavar="SPLIT", help=against)


def run(args: Args) -> Result:
    from pipelines.fetching.corpus_names import find_corpus
    from pipelines.upkeep.leakage_report import leakage

    storage = _flags.existing(args.root)
    known = {output.config["corpus"] for output in find(args.root, "records")}
    names = [_flags.corpus_name(text, args) for text in args.targets]
    names = [name if name in known else find_corpus(name, {}, storage).corpus.name for name in names]
    distance = {} if args.distance is None else {"distance": args.distance}
    return leakage(storage, names, split=args.clean, against=args.against, **distance)


def text(result: Result) -> Lines:
    yield from (f"{each['corpus']}: {_media(each)}" for each in result["corpora"])
    yield f"{'pairs of':>60}  {'same item':>9} {'exact':>9} {'near':>9}   (near: {result['distance']} bits)"
    for pair in result["pairs"]:
        found = " ".join(f"{len(pair[how]):9,}" for how in HOW)
        yield f"{pair['one'] + '  |  ' + pair['other']:>60}  {found}"
        yield from (f"        {how}: {_few(pair[how])}" for how in HOW if pair[how])
    if not result["pairs"]:
        yield "no two splits to compare: name another corpus too"
    if cleaned := result.get("clean"):
        dropped = cleaned["dropped"]
        without = f", without {len(dropped):,}: {_few(dropped)}" if dropped else ""
        yield f"{cleaned['name']} has {cleaned['items']:,} items of {cleaned['split']}{without}"
        yield f"compared with {', '.join(cleaned['against'])}"
        yield cleaned["path"]


def _media(of: Result) -> str:
    odd = [f"{of[name]:,} {name}" for name in ("flat", "unreadable") if of.get(name)]
    by_bytes = f" ({', '.join(odd)}: compared by their bytes alone)" if odd else ""
    return f"{of['media']:,} media{by_bytes}" + (f", {of['absent']:,} absent" if of.get("absent") else "")


def _few(found: list[Any]) -> str:
    return few([each if isinstance(each, str) else " = ".join(each[:2]) for each in found], 3)
