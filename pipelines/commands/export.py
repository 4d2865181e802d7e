"""Writes features as .npy, .h5, a webdataset .tar, or an npz an item.

examples:
  xmodal export data/scan36/IDENTITY features.h5
  xmodal export data/resnet/IDENTITY test_ims.npy --split karpathy/test --corpus coco
"""

import argparse
from collections.abc import Iterator

from pipelines.commands import _flags
from pipelines.commands._text import Result, features

GROUP = "exchange"


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("features", help="the directory of the features: ROOT/STAGE/IDENTITY")
    parser.add_argument("out", type=_flags.path, help="x.npy, x.h5 or x.tar; any other name is a folder of .npz")
    parser.add_argument("--array", help="which array of the features (default: the first)")
    chosen = parser.add_mutually_exclusive_group()
    ids = "a file with one id a line: these alone, in this order"
    chosen.add_argument("--ids", type=_flags.path, help=ids)
    chosen.add_argument("--split", help="such as karpathy/test: its items; x_ims.npy gets captions in x_caps.txt")
    parser.add_argument("--corpus", help="of the split, where the root has several")
    _flags.quiet(parser)


def run(args: argparse.Namespace) -> Result:
    from pipelines.publishing.feature_export import export_features

    parts = (args.array, args.ids, args.split, args.corpus)
    return export_features(args.features, args.out, *parts, _flags.progress(args))


def text(result: Result) -> Iterator[str]:
    beside = f", beside it {' and '.join(result['beside'])}" if result["beside"] else ""
    absent = f"; {result['absent']:,} absent ones are left out" if result["absent"] else ""
    yield f"{result['path']}: {features(result)}{beside}{absent}"
