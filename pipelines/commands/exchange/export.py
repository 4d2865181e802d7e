"""Writes features as .npy, .h5, a webdataset .tar, or an npz an item.

Regions of a detector go with their boxes into x.tsv (as bottom-up attention's), x_ims.npy (SCAN's, with
x_ims_bbx.npy and x_ims_size.npy beside it), x.h5, or a folder of MILVLG's .npz; into x.tar without. The words that
their classes and attributes count are beside, in x.tsv.objects_vocab.txt and x.tsv.attributes_vocab.txt, as
`xmodal import x.tsv --object-words … --attribute-words …` reads them; SCAN's arrays have neither.

examples:
  xmodal export data/scan36/IDENTITY features.h5
  xmodal export data/regions/IDENTITY trainval_36.tsv
  xmodal export data/resnet/IDENTITY test_ims.npy --split karpathy/test --corpus coco
"""

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import features


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("features", help="the directory of the features: ROOT/STAGE/IDENTITY")
    add("out", type=_flags.path, help="x.npy, x.h5, x.tar, of regions x.tsv; any other name is a folder of .npz")
    add("--array", help="which array of the features (default: the first)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--ids", type=_flags.path, help="a file with one id a line: these alone, in this order")
    chosen.add_argument("--split", help="such as karpathy/test: its items; x_ims.npy gets captions in x_caps.txt")
    add("--corpus", help="of the split, where the root has several")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.publishing.feature_export import export_features

    parts = (args.array, args.ids, args.split, args.corpus)
    return export_features(args.features, args.out, *parts, _flags.progress(args))


def text(result: Result) -> Lines:
    beside = f", beside it {', '.join(result['beside'])}" if result["beside"] else ""
    absent = f"; {result['absent']:,} absent or unreadable are left out" if result["absent"] else ""
    yield f"{result['path']}: {features(result)}{beside}{absent}"
    if result["lost"]:
        lost = " and ".join(result["lost"])
        yield f"its format cannot hold {lost} of the regions; x.tsv, x.h5 and a folder of .npz have boxes and classes"
