"""Describes a corpus as parsed, split by split, beside what the papers print of it.

examples:
  xmodal stats coco --root data
  xmodal stats mine.py --root data --latex
"""

from dataclasses import asdict

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import counts


def flags(parser: Parser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help="a corpus or a file mine.py, with records under the root")
    _flags.root(parser)
    _flags.identities(parser, "records")
    parser.add_argument("--latex", action="store_true", help="the splits as a LaTeX table on stdout")
    _flags.quiet(parser)


def run(args: Args) -> Result | str:
    from pipelines.papers.experiments import printed_of
    from xmodal import corpora
    from xmodal.batches.dataset import open_dataset
    from xmodal.checks.statistics import describe

    declared = args.corpus.endswith(".py") or args.corpus in corpora.names()
    printed = (*corpora.load(args.corpus).printed, *printed_of(args.corpus)) if declared else ()
    name = _flags.corpus_name(args.corpus, args)
    _flags.warn_of_changes(args, name)
    dataset = open_dataset(args.root, name, args.records)
    captions = dataset.records.totals["counts"]["captions"]
    with _flags.progress(args).over("read", captions, unit="captions") as tick:
        found = describe(dataset, printed, tick)
    return found.to_latex() if args.latex and not args.json else asdict(found)


def text(result: Result) -> Lines:
    parts, counted = result["parts"], result["counts"]
    wide = max(len(part["name"]) for part in parts) + 2
    yield f"{result['corpus']}, records {result['records']}: words by {result['tokenizer']}, full stops are words too"
    heads = ("items", "captions", "an item", "words each", "vocabulary", "4 times")
    table = [("", heads), *((part["name"], _cells(part)) for part in parts)]
    widths = [max(14, 2 + max(map(len, column))) for column in zip(*(cells for _, cells in table), strict=True)]
    for name, cells in table:
        yield f"{name:{wide}}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    for part in parts:
        for store, of in part["lengths"].items():
            yield f"{part['name']}: {of['mean']:.1f} rows an item in {store}, {of['least']:,} to {of['most']:,}"
    for part in parts:
        for output, of in part["semantics"].items():
            yield f"{part['name']}: {_shared(output, **of)}"
    yield from (_plausible(part["name"], **part["plausible"]) for part in parts if part["plausible"])
    if counted:
        yield f"also {counts(counted)}"
    yield from (f"{name}: {count:,}" for name, count in counted.items() if ":" in name)
    yield from (f"odd: {rule}: {count:,}" for rule, count in result["oddities"].items())
    yield from (beside(each["printed"], each["found"]) for each in result["beside"])


def _cells(part: Result) -> tuple[str, ...]:
    each, words = part["captions_per_item"], part["words_per_caption"]
    spread = "" if not each or each["least"] == each["most"] else f" {each['least']}-{each['most']}"
    return (
        f"{part['items']:,}",
        f"{part['captions']:,}",
        f"{each['mean']:.2f}{spread}" if each else "-",
        f"{words['mean']:.1f} {words['least']}-{words['most']}" if words else "-",
        f"{part['vocabulary']:,}",
        f"{part['frequent']:,}",
    )


def _shared(output: str, vocabulary: int, overlap: float, frequent_overlap: float) -> str:
    shared = f"{overlap:.1%} of all words that it or the captions have are in both"
    return f"{vocabulary:,} different words in {output}; {shared}, {frequent_overlap:.1%} of those that occur 4 times"


def _plausible(name: str, items: int, matches: list[int]) -> str:
    levels = ", ".join(f"{count:,} at zeta {zeta} ({count / items:.1f} each)" for zeta, count in enumerate(matches))
    return f"{name}: plausible matches among {items:,} items with categories: {levels}"


def beside(printed: Result, found: float | None) -> str:
    line = f"{printed['cites']}: {printed['value']:,} {printed['what'].replace('_', ' ')} of {printed['split']}"
    if found is not None and round(found, 1) == printed["value"]:
        return f"{line}, as here"
    here = "not to be found here" if found is None else f"{found:,.1f}".removesuffix(".0") + " here"
    return f"{line}, {here}" + (f" ({printed['note']})" if printed["note"] else "")
