"""Draws attention, words, embeddings, clips, regions or phrases; or measures what makes a model unsure.

examples:
  xmodal look runs/pvse --root data --attention maps --first 20
  xmodal look runs/a3vse --root data --tsne planes       one PNG: test items and their captions
  xmodal look runs/scan --root data --attention maps    a panel for each word: the regions that it looks at
  xmodal look runs/dual-path --root data --words words   what a caption loses without each of its words
  xmodal look runs/pcme --root data --probes
  xmodal build tgif/frames --root data; xmodal look tgif --root data --frames sheets
  xmodal build coco/regions --root data --file detector=vg.pkl; xmodal look coco --root data --regions boxes
  xmodal look runs/two-branch-phrases --root data --phrases found
  xmodal look flickr30k_entities --root data --phrases found --scores found.npy --proposals proposals
"""

from dataclasses import asdict
from typing import Any

from pipelines.commands import Args, Lines, Parser, Result, _flags
from xmodal.errors import UserError

DRAWN = ("attention", "tsne", "correlation", "words")  # pictures of a run
PROBED = ("unknown", "erased", "mixed")


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "run",
        type=_flags.path,
        metavar="RUN|CORPUS",
        help="the folder of a run; with --frames, --regions or --phrases of --scores a corpus",
    )
    _flags.root(parser)
    add("--split", help="such as karpathy/val (default: the test split; of --frames and --regions all)")
    _flags.device(parser)
    which = parser.add_mutually_exclusive_group(required=True).add_argument
    which("--attention", type=_flags.path, metavar="DIR", help="a PNG an item: every map of attention over it")
    tsne = "a PNG: the items and a caption of each, where t-SNE puts their embeddings (default: the first 500)"
    which("--tsne", type=_flags.path, metavar="DIR", help=tsne)
    correlation = "a PNG: how alike the features of items are, and their embeddings (default: the first 100)"
    which("--correlation", type=_flags.path, metavar="DIR", help=correlation)
    words = "a PNG a picture: how much less its first caption is like it without each word"
    which("--words", type=_flags.path, metavar="DIR", help=words)
    which("--frames", type=_flags.path, metavar="DIR", help="a PNG a clip: its frames, and when each begins")
    which("--regions", type=_flags.path, metavar="DIR", help="a PNG a picture: what a detector sees, surest first")
    phrases = "a PNG a picture: a caption's phrases where they are, and where a run, or --scores, found them"
    which("--phrases", type=_flags.path, metavar="DIR", help=phrases)
    which("--probes", action="store_true", help="uncertainty by what is taken away, and recall by it (PCME)")
    some = parser.add_mutually_exclusive_group().add_argument
    some("--items", nargs="+", default=[], metavar="ID", help="these items alone")
    some(
        "--first",
        type=_flags.count,
        metavar="N",
        help="the first items (default: 8; of --tsne 500, of --correlation 100)",
    )
    add("--features", help="of --frames or --regions: identity of these, where the root has several")
    add("--scores", type=_flags.path, metavar="FILE", help="of --phrases: what `xmodal evaluate --scores` takes")
    add("--proposals", metavar="STAGE|FILE", help="of --phrases: the boxes that were scored")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    _check(args)
    setup = _flags.setup(args)
    some = {"items": args.items} | ({} if args.first is None else {"first": args.first})
    folder = args.frames or args.regions or args.phrases
    if folder is None:
        from pipelines.papers.recipe_runs import look

        kind = next((name for name in DRAWN if getattr(args, name)), "")
        return look(args.run, setup, args.split, kind, getattr(args, kind, None), **some)
    from xmodal.checks.corpus_pictures import draw_clips, draw_phrases, draw_regions

    if args.phrases:
        pictures = draw_phrases(setup, folder, _scored(args), **some)
    else:
        corpus = _flags.corpus_name(str(args.run), args)
        draw = draw_clips if args.frames else draw_regions
        pictures = draw(corpus, setup, folder, split=args.split, **some)
    return {"folder": str(folder), "pictures": [asdict(one) for one in pictures]}


def _scored(args: Args) -> Any:
    from xmodal.evaluation.phrase_metrics import open_scores
    from xmodal.evaluation.phrase_runs import run_scores

    if args.scores is None:
        return run_scores(str(args.run), _flags.setup(args), args.split)
    corpus = _flags.corpus_name(str(args.run), args)
    return open_scores(args.scores, args.root, corpus, args.proposals, args.split)


def _check(args: Args) -> None:
    if args.probes and (args.items or args.first is not None):
        raise UserError("--items and --first belong to pictures: probes are of a whole split")
    if args.features and not (args.frames or args.regions):
        raise UserError("--features belongs to --frames and --regions: a run knows its own")
    if bool(args.scores) != bool(args.proposals) or (args.scores and not args.phrases):
        raise UserError("--phrases, --scores and --proposals belong together: give all three, or --phrases of a run")


def text(result: Result) -> Lines:
    if "pictures" in result:
        yield from (f"{one['path']}: {one['caption']}" for one in result["pictures"])
        yield f"{len(result['pictures'])} pictures in {result['folder']}"
        return
    plain, *probes = result["probes"]
    yield f"mean uncertainty of {result['captions']:,} captions and {result['items']:,} pictures of {result['split']}"
    yield "share" + "".join(f"{head:>20}" for head in ("words <unk>", "erased", "mixed"))
    yield "  0 %" + "".join(f"{plain[name]:>20.4g}" for name in PROBED)
    yield from (_probed(row, plain) for row in probes)
    if result["unprobed"]:
        yield f"pictures are not probed: {result['unprobed']}"
    yield ""
    yield "R@1 by the query's uncertainty, surest first"
    for side in ("visual_to_text", "text_to_visual"):
        yield from _by_uncertainty(side.replace("_", " "), result[side])


def _probed(row: Result, plain: Result) -> str:
    cells = []
    for name in PROBED:
        value = row[name]
        cells.append("-" if value is None else f"{value:.4g} ({100 * (value / plain[name] - 1):+.1f} %)")
    return f"{100 * row['share']:3.0f} %" + "".join(f"{cell:>20}" for cell in cells)


def _by_uncertainty(side: str, bins: list[Result]) -> Lines:
    for title, name, form in (("uncertainty", "mean", ".4g"), ("queries", "count", ""), ("R@1", "recall", ".1f")):
        yield f"{side:16}{title:12}{''.join(f'{each[name]:>10{form}}' for each in bins)}"
