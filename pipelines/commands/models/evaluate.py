"""Computes every metric of a run, of released weights or of a similarity matrix, on a split.

examples:
  xmodal evaluate runs/vsepp --root data                a run, on the test split of its corpus
  xmodal evaluate runs/two-branch-phrases --root data   where phrases are found: R@1/5/10, the bound, each type
  xmodal evaluate runs/two-branch-flickr30k-constraints --with runs/two-branch-phrases-sampling --root data
  xmodal evaluate runs/pcme --root data --split karpathy/val --distance elk --json
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --corpus coco
  xmodal evaluate pcme.pth --vocabulary coco_vocab.pkl --root data --set visual.stage=pixels     by the CNN in the file
  xmodal evaluate tgif.pth --vocabulary tgif_vocab.pkl --root data --corpus tgif --set visual.stage=frames
  xmodal evaluate --scores sims.npy --corpus coco --root data
  xmodal evaluate --scores found.npy --proposals proposals --corpus flickr30k_entities --root data     of phrases

A file of PVSE, PCME, VSE++ or SCAN reads features as that paper's recipe does: 7 x 7 x 2048 of its ResNet, or their
mean for VSE++; for SCAN regions. Training has moved the CNN of most other files: authors' numbers need
visual.stage=pixels, of clips frames.
"""

import json
from typing import Any

from pipelines.commands import Args, Parser, _flags
from xmodal.errors import UserError

WEIGHTS = (".pth", ".pt", ".tar")


def flags(parser: Parser) -> None:
    add = parser.add_argument
    run = "the folder of a run, or its best.pt; or a file of weights of PVSE, PCME, VSE++ or SCAN"
    add("run", type=_flags.path, nargs="?", metavar="RUN|FILE", help=run)
    _flags.root(parser)
    add("--split", help="such as karpathy/val (default: the test split)")
    _flags.device(parser)
    add("--distance", help="another score of the same weights: elk, js, wasserstein, … (PCME)")
    mixed = "a run of regions and phrases, whose distances are mixed with the run's (equation 8 of Two-Branch)"
    add("--with", dest="with_", metavar="RUN", help=mixed)
    add("--share", type=float, help="of --with in the mixture (default: 0.2)")
    add("--eccv", type=_flags.path, metavar="DIR", help="a folder with ECCV-Caption's two JSON files")
    add("--latex", action="store_true", help="the result as LaTeX tables on stdout")
    _flags.quiet(parser)
    released = parser.add_argument_group("a file of released weights")
    words = "the .pkl or .json released with it, a word a line, or a run's"
    released.add_argument("--vocabulary", type=_flags.path, metavar="WORDS", help=words)
    _flags.identities(released, "records", "features", "pixels")
    _flags.settings(released, "visual.stage=clips, visual.frames=8")
    matrix = parser.add_argument_group("a matrix of similarities").add_argument
    scores = (
        "a .npy matrix, greater is closer: rows are the split's items, columns their captions, item by item, as "
        "--write-ids lists them; or the first captions of each, 5 for example"
    )
    matrix("--scores", type=_flags.path, metavar="FILE", help=scores)
    matrix("--corpus", help="the corpus of --scores, and of FILE (default there: coco)")
    matrix("--ids", metavar="PREFIX", help="rows and columns as PREFIX.items.txt, PREFIX.captions.txt say")
    matrix("--write-ids", metavar="PREFIX", help="writes these two files for --corpus, and does nothing else")
    phrases = (
        "rows of --scores are phrases, and columns the boxes of each phrase's picture: those of a stage such as "
        "proposals, or a file of boxes; --write-ids then lists both, as PREFIX.phrases.tsv, PREFIX.proposals.tsv"
    )
    matrix("--proposals", metavar="STAGE|FILE", help=phrases)
    suppression = "of phrases: a proposal that overlaps a better one by more is not ranked (Plummer's evaluation: 0.5)"
    matrix("--suppression", type=float, metavar="SHARE", help=suppression)


def run(args: Args) -> Any:
    from xmodal.evaluation.matrix_metrics import score, write_ids
    from xmodal.evaluation.phrase_metrics import score_phrases, write_phrases

    _check(args)
    corpus = args.corpus and _flags.corpus_name(args.corpus, args)
    if args.write_ids:
        asked = (args.write_ids, args.root, corpus)
        written = write_phrases(*asked, args.proposals, args.split) if args.proposals else write_ids(*asked, args.split)
        return written if args.json else "\n".join(written)
    if args.proposals:
        report: Any = score_phrases(args.scores, args.root, corpus, args.proposals, args.split, args.suppression)
    elif args.scores:
        report = score(args.scores, args.root, corpus, args.split, prefix=args.ids, extended=args.eccv)
    else:
        report = _report(args, corpus or "coco")
    if args.json:
        return json.loads(report.to_json())
    return report.to_latex() if args.latex else report.to_text()


def _report(args: Args, corpus: str) -> Any:
    from pipelines.papers.recipe_runs import evaluate_released
    from xmodal.evaluation.phrase_runs import evaluate_combined, evaluate_phrases
    from xmodal.evaluation.run_metrics import evaluate
    from xmodal.training import run_folder

    setup, asked = _flags.setup(args), {"distance": args.distance, "extended": args.eccv}
    if _is_released(args):
        return evaluate_released(args.run, args.vocabulary, setup, corpus, args.split, args.set, **asked)
    run = str(args.run.parent if args.run.is_file() else args.run)
    if not run_folder.read(run).recipe.reads_phrases:
        if args.suppression is not None:
            raise UserError(f"--suppression belongs to phrases, and {run} has none")
        if phrases := args.with_:
            if args.distance:
                raise UserError("--distance is of one run: leave it out, or --with")
            share = {} if args.share is None else {"share": args.share}
            return evaluate_combined(run, phrases, setup, args.split, **share, extended=args.eccv)
        return evaluate(run, setup, args.split, **asked)
    if args.distance or args.eccv or args.with_:
        raise UserError(f"{run} compares regions with phrases: leave out --distance, --eccv and --with")
    return evaluate_phrases(run, setup, args.split, args.suppression)


def _is_released(args: Args) -> bool:
    from xmodal.training.run_folder import BEST, DETECTOR, DETECTOR_WEIGHTS, RECIPE

    if not args.run or args.run.is_dir():
        return False
    facts = {BEST: RECIPE, DETECTOR_WEIGHTS: DETECTOR}.get(args.run.name)
    if facts and (args.run.parent / facts).is_file():
        return False
    return args.run.is_file() or args.run.suffix in WEIGHTS


def _check(args: Args) -> None:
    is_released = _is_released(args)
    of_weights = args.vocabulary or args.records or args.features or args.pixels or args.set
    if args.json and args.latex:
        raise UserError("--json and --latex are two ways to print the same: give one")
    if is_released and not args.vocabulary:
        raise UserError(f"{args.run} is weights alone: add --vocabulary with the words that were released with it")
    if of_weights and not is_released:
        flags = "--vocabulary, --records, --features, --pixels and --set belong to a file of weights"
        raise UserError(f"{flags}: a run knows its own")
    if sum(map(bool, (args.run, args.scores, args.write_ids))) != 1:
        raise UserError("say what to evaluate: the folder of a run, or --scores with a matrix")
    if args.with_ and (is_released or not args.run):
        raise UserError("--with belongs to the folder of a run")
    if args.share is not None and not args.with_:
        raise UserError("--share belongs to --with, the run of phrases whose share it is")
    if args.run and args.corpus and not is_released:
        raise UserError("a run knows its own corpus: leave out --corpus, and choose among its splits with --split")
    if not args.run and not args.corpus:
        raise UserError("--scores and --write-ids need --corpus")
    if args.proposals and (args.run or args.ids or args.eccv):
        raise UserError("--proposals belongs to --scores and --write-ids, and goes with neither --ids nor --eccv")
    if args.suppression is not None and (is_released or not (args.run or (args.proposals and args.scores))):
        raise UserError("--suppression belongs to --scores with --proposals, and to runs of regions and phrases")
    if args.distance and not args.run:
        raise UserError("--distance belongs to a run or a file of weights: a matrix has one score")
    if args.ids and not args.scores:
        raise UserError("--ids belongs to --scores: it says what the matrix' rows and columns are")
