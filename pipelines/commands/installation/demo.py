"""Runs everything on small generated worlds, written as the files of COCO, TGIF and MRW.

examples:
  xmodal demo                                           in the folder demo
  xmodal demo --items 200 --serial
  xmodal demo --all                                     also A3VSE, by a detector that is trained for it: minutes more
"""

import os
import shlex
import shutil
import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands.data.build import outputs
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    parser.add_argument("--items", type=_flags.count, default=1000, help="scenes in COCO's world (default: 1000)")
    more = "also train a detector, and A3VSE where few pictures have captions"
    parser.add_argument("--all", action="store_true", help=more)
    _flags.root(parser, required=False)
    _flags.building(parser)


def run(args: Args) -> Result:
    from pipelines.demo import sparse
    from pipelines.demo.run import demo
    from pipelines.demo.world import World

    if "://" in (args.root or ""):
        raise UserError("the demo takes a folder of this machine as its root")
    folder, world = Path(args.root or "demo"), World(args.items)
    if args.all:
        sparse.refuse_few(world)
    args.root = str(folder / "root")
    options = _flags.build_options(args)
    result = demo(options, folder, world)
    if args.all:
        more = sparse.sparse(options, folder, world)
        result |= {"outputs": result["outputs"] + more.pop("outputs"), "sparse": more}
    return result


def text(result: Result) -> Lines:
    runs, sparse = result["runs"], result.get("sparse")
    trainings = [one["training"] for one in runs]
    if sparse:
        trainings += [sparse["detector"], *(one["training"] for one in sparse["runs"])]
    is_new = any(row["built"] for row in result["outputs"]) or any(one["trained"] for one in trainings)
    yield "corpora were fetched, checked, sealed, parsed and learned from" if is_new else "everything is up to date"
    yield from outputs(result)
    for corpus, evaluations in groupby((one["evaluation"] for one in runs), itemgetter("corpus")):
        yield from _recall(corpus, list(evaluations))
    if sparse:
        yield from _sparse(sparse)
    if result["left_out"]:
        cure = "pip install -e '.[video]' in the checkout"
        yield f"{' and '.join(result['left_out'])} are left out, as their clips need PyAV: {cure}"
    yield "what to try next:"
    yield from (f"  {line}" for line in _next(result))


def _sparse(sparse: Result) -> Lines:
    annotated, detector = sparse["annotated"], sparse["detector"]
    every = annotated + sparse["unannotated"]
    yield f"A3VSE, where {annotated:,} of coco's {every:,} training scenes ({annotated / every:.0%}) have captions and"
    yield f"the others semantics, by a detector that learned from {detector['pictures']:,} scenes of another world;"
    scores = f"recall {detector['recall']:.3f} and precision {detector['precision']:.3f} of attributes with classes"
    yield f"in {detector['measured']:,} new scenes it has {scores}."
    yield f"demo-a3vse has the adversarial losses at {sparse['adversary']:g} of the paper's weights; the other two lack"
    yield "them, and the last one semantics too:"
    yield from _recall("coco", [one["evaluation"] for one in sparse["runs"]])


def _next(result: Result) -> Lines:
    root = Path(os.path.relpath(result["root"]))
    runs = {one["evaluation"]["corpus"]: one["training"]["run"] for one in result["runs"]}  # the last of each
    trained = {one["evaluation"]["recipe"]: one["training"]["run"] for one in result["runs"]}
    run = os.path.relpath(trained.get("demo-pvse", runs.pop("coco")))  # PVSE has attention to look at
    of_sparse = list[tuple[object, ...]]()
    if sparse := result.get("sparse"):
        first = os.path.relpath(sparse["runs"][0]["training"]["run"])
        learn = ("train", "detector", "--corpus", "visual_genome", "--root", root, "--run", root.parent / "detector")
        of_sparse = [
            ("look", first, "--root", root, "--tsne", root.parent / "tsne"),
            ("look", "coco", "--root", root, "--regions", root.parent / "boxes"),
            learn,
        ]
    suggested = [
        ("status", "--root", root),
        ("evaluate", run, "--root", root),
        ("look", run, "--root", root, "--attention", root.parent / "maps"),
        *(("look", corpus, "--root", root, "--frames", root.parent / "sheets") for corpus in [*runs][:1]),
        *of_sparse,
        ("publish", "coco", "--root", root, "--out", root.parent / "dataset"),
    ]
    beside = os.path.join(os.path.dirname(sys.executable), "xmodal")  # the program of this environment
    xmodal = "xmodal" if shutil.which("xmodal") == beside else os.path.relpath(beside)
    yield from (shlex.join(map(str, (xmodal, *words))) for words in suggested)
    yield f"{shlex.quote(xmodal)} plan coco --root data        the real corpus"
    yield f"{shlex.quote(xmodal)} corpora        others, such as Flickr30k Entities with phrases and boxes"


def _recall(corpus: str, evaluations: list[Result]) -> Lines:
    first = evaluations[0]
    yield f"recall on {corpus}'s {first['items']} scenes that were not trained on, features by {first['weights']}:"
    yield f"  {'':18}{'caption to scene':^27}{'scene to captions':^27}"
    yield f"  {'':18}" + f"{'R@1':>9}{'R@5':>9}{'R@10':>9}" * 2 + f"{'rsum':>9}"
    yield from (f"  {one['recipe']:18}" + _both(one["scores"]["all"], "recall") for one in evaluations)
    yield f"  {'chance':18}" + _both(first["scores"]["all"], "chance")


def _both(scores: Result, what: str) -> str:
    found = [scores[side][what][k] for side in ("text_to_visual", "visual_to_text") for k in ("1", "5", "10")]
    return "".join(f"{each:9.1f}" for each in (*found, sum(found)))
