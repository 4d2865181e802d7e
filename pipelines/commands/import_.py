"""Imports features that you have already, as the output of a stage; goes on where it stopped.

examples:
  xmodal import dev_ims.npy --root data --name scan36   ids from dev_ims_ids.txt or ids.txt beside it
  xmodal import features.h5 --root data --name regions --key boxes --ids ids.txt
"""

import argparse
from collections.abc import Iterator

from pipelines.commands import _flags
from pipelines.commands._text import Result, command, features

GROUP = "exchange"


def flags(parser: argparse.ArgumentParser) -> None:
    source = "x.npy, x.h5, x.tar, a Zarr array, or a folder of .npz, .npy, .tar"
    parser.add_argument("source", type=_flags.path, help=source)
    _flags.root(parser)
    name = "the stage that it becomes, as recipes name it (visual.stage)"
    parser.add_argument("--name", required=True, help=name)
    ids = "a file with one id a line (default: x_ids.txt or ids.txt beside)"
    parser.add_argument("--ids", type=_flags.path, help=ids)
    parser.add_argument("--key", help="which array of an .h5 or of every .npz; of a tar, the KEY of ID.KEY.npy")
    _flags.workers(parser)
    _flags.settings(parser, "rows_per_shard=64")
    _flags.quiet(parser)


def run(args: argparse.Namespace) -> Result:
    from pipelines.publishing.feature_import import import_features
    from xmodal.features.foreign_formats import open_source
    from xmodal.root.storage import open_storage

    source = open_source(args.source, args.ids, args.key)
    storage = open_storage(args.root)
    return import_features(storage, args.name, source, args.set, _flags.runner(args), _flags.progress(args))


def text(result: Result) -> Iterator[str]:
    remarks = ["imported" if result["built"] else "up to date", features(result)]
    remarks += [f"from {result['source_dtype']}"] if result["source_dtype"] != result["dtype"] else []
    remarks += [f"one of the {result['copies']} equal rows of each"] if result["copies"] > 1 else []
    yield f"{result['path']}: {', '.join(remarks)}"
    yield f"`{command('train', 'RECIPE', '--set', 'visual.stage=' + result['stage'])}` reads it"
