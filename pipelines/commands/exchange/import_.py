"""Imports features or regions that you have, as the output of a stage; goes on where it stopped.

Regions keep their boxes, classes and sizes of pictures: those of a bottom-up-attention .tsv, of MILVLG's folder of
.npz, of SCAN's x_ims.npy with x_ims_bbx.npy beside it, and of an .h5 that xmodal exported.

examples:
  xmodal import dev_ims.npy --root data --name scan36   ids from dev_ims_ids.txt or ids.txt beside it
  xmodal import trainval_36.tsv --root data --name bottom-up-36
  xmodal import vg.tsv --root data --name vg36 --object-words objects_vocab.txt --attribute-words attributes_vocab.txt
      --semantics coco                                  what was seen becomes captions, as by `build coco/semantics`
  xmodal import features.h5 --root data --name region_boxes --key boxes --ids ids.txt
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import command, features
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("source", type=_flags.path, help="x.npy, x.h5, x.tsv, x.tar, a Zarr array, or a folder of .npz, .npy, .tar")
    _flags.root(parser)
    add("--name", required=True, help="the stage that it becomes, as recipes name it (visual.stage)")
    add("--ids", type=_flags.path, help="a file with one id a line (default: x_ids.txt or ids.txt beside)")
    add("--key", help="features alone: which array of an .h5 or of every .npz; of a tar, the KEY of ID.KEY.npy")
    add("--object-words", type=_flags.path, metavar="FILE", help="of regions: the names of their classes, a line each")
    add("--attribute-words", type=_flags.path, metavar="FILE", help="the names of their attributes")
    add("--semantics", metavar="CORPUS", help="write what regions show as captions of this corpus, too")
    _flags.workers(parser)
    _flags.settings(parser, "rows_per_shard=64")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.publishing.feature_import import import_features, write_semantics
    from xmodal.detection.region_arrays import DetectorWords, read_words
    from xmodal.detection.region_formats import open_regions
    from xmodal.features.foreign_formats import open_foreign
    from xmodal.root.outputs import Output
    from xmodal.root.storage import open_storage

    regions = None if args.key else open_regions(args.source, args.ids)
    source = regions or open_foreign(args.source, args.ids, args.key)
    if args.semantics and regions is None:
        raise UserError(f"{args.source} has no regions to make --semantics of")
    if args.semantics and not args.object_words:
        raise UserError("--semantics needs the names of the regions' classes: --object-words FILE")
    given = [read_words(file) if file else () for file in (args.object_words, args.attribute_words)]
    words = DetectorWords(*given) if any(given) else None
    storage, run, progress = open_storage(args.root), _flags.runner(args), _flags.progress(args)
    result = import_features(storage, args.name, source, args.set, run, progress, words)
    if args.semantics is None:
        return result
    corpus = _flags.corpus_name(args.semantics, args)
    made = write_semantics(storage, corpus, Output(storage, f"{result['stage']}/{result['identity']}"), run, progress)
    counts = made.totals["counts"]
    told = {"captions": counts["captions"], "not_in_the_corpus": counts["not in the corpus"]}
    told["without_area"] = counts.get("regions without area", 0)
    return result | {"semantics": made.where, **told}


def text(result: Result) -> Lines:
    remarks = ["imported" if result["built"] else "up to date", features(result)]
    remarks += [f"from {result['source_dtype']}"] if result["source_dtype"] != result["dtype"] else []
    remarks += [f"one of the {result['copies']} equal rows of each"] if result["copies"] > 1 else []
    yield f"{result['path']}: {', '.join(remarks)}"
    if doubtful := [f"{count:,} {name}" for name, count in result["doubtful"].items()]:
        yield f"{' and '.join(doubtful)}: they are kept, but boxes should be in pixels of their picture, from 0"
    if "semantics" in result:
        strangers, flat = result["not_in_the_corpus"], result["without_area"]
        left = f"; {strangers:,} pictures are not in the corpus" if strangers else ""
        left += f"; {flat:,} regions without an area are left out" if flat else ""
        yield f"{result['semantics']}: {result['captions']:,} captions by semantics{left}"
    yield f"`{command('train', 'RECIPE', '--set', 'visual.stage=' + result['stage'])}` reads it"
