"""Makes features of every picture or clip of a folder: one Zarr store, no list needed.

Names below the folder are the ids. The same command goes on after it was stopped, and takes what was added or edited
since. Pictures are read where they lie. An unreadable one is named, and has a row of zeros that readers refuse.
xmodal.features.store.FeatureStore, `xmodal export` and any Zarr library open the store.

examples:
  xmodal features ~/pictures --model resnet50                       into ./pictures-resnet50.zarr
  xmodal features scans --model resnet18 --out scans.zarr --weights mine.pth
  xmodal features gifs --model resnet152 --workers 8                a row for each of 8 frames a second
  xmodal features mixed --model resnet50 --kind image --set output=grid --set device=cuda --json
  xmodal features ~/pictures --model timm/vit_base_patch16_siglip_224
  xmodal features ~/pictures --model transformers/openai/clip-vit-base-patch32 --set output=tokens
  xmodal features ~/pictures --model vgg19 --set views=ten
  xmodal features ~/pictures --model bottom-up-36 --weights vg.pkl    regions with boxes, classes and attributes
"""

import os
from pathlib import Path

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import features
from xmodal.errors import UserError

FEW = 5


def flags(parser: Parser) -> None:
    add = parser.add_argument
    add("folder", type=_flags.path, metavar="DIR", help="a folder of pictures or clips, and of folders with them")
    models = "resnet18 to resnet152, vgg16, vgg19; timm/NAME; transformers/ORGANISATION/NAME; of regions bottom-up-36, "
    models += "bottom-up-10-100, small, proposals, torchvision/fasterrcnn_…, detectron2/CONFIG"
    add("--model", required=True, help=models)
    add("--out", type=_flags.path, metavar="STORE", help="default: DIR-MODEL.zarr in the current folder")
    add("--kind", choices=["image", "clip"], help="which, if the folder has both; pictures of GIFs are first frames")
    add(
        "--weights",
        type=_flags.given_file,
        metavar="FILE",
        help="of the network or detector, in place of published ones",
    )
    _flags.named_files(parser)
    _flags.settings(parser, "output=grid; `xmodal settings features` lists them, or of clip_features, frames, regions")
    links = "also files outside of DIR, and folders, that links lead to (default: only links to files in DIR are taken)"
    add("--follow-links", action="store_true", help=links)
    _flags.most_absent(parser)
    _flags.workers(parser)
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.engine.build_options import BuildOptions
    from pipelines.fetching.folder_files import find_files
    from pipelines.upkeep.folder_features import DETECTING, MARKER, RUNS, check_name, kinds_of, make_store, settings_of
    from xmodal.root.storage import LocalStorage

    if not args.folder.is_dir():
        raise UserError(f"{args.folder} is no folder: name one with pictures or clips")
    if args.weights and not args.weights.exists():
        raise UserError(f"there is no file {args.weights}")
    check_name(args.model)
    progress, folder = _flags.progress(args), os.path.abspath(args.folder)
    files = find_files(folder, args.kind, args.follow_links, MARKER)
    out = args.out or Path(f"{os.path.basename(os.path.realpath(folder))}-{args.model.replace('/', '-')}.zarr")
    out = Path(os.path.realpath(out))
    target, settings = settings_of(args.model, files.kind, args.set)
    given = _flags.files_by_name(args, {name for kind in kinds_of(target) for name in kind.files})
    if args.weights:
        given["detector" if target in DETECTING else "weights"] = args.weights
    _flags.refuse_weights_twice(settings, given)
    options = BuildOptions(LocalStorage(f"{out}/{RUNS}"), _flags.runner(args), progress, None, settings, given)
    result = make_store(files, out, target, options)
    return result | {"too_much_absent": len(result["absent"]) > args.most_absent * result["items"]}


def text(result: Result) -> Lines:
    from pipelines.fetching.folder_files import LINKS, describe_left_out
    from xmodal.features.opening import name_network

    yield f"{result['store']}: {features(result)}, {'made' if result['built'] else 'up to date'}"
    if result["repaired"] is not None:
        yield f"repaired: files of the store were damaged, and {result['repaired']:,} rows were made again"
    yield f"of {result['folder']}, by {name_network(result) or 'an unnamed network'}"
    if result["left_out"]:
        advice = "; --follow-links takes those of other files and folders" if LINKS in result["left_out"] else ""
        yield f"left out: {', '.join(describe_left_out(result['left_out']))}{advice}"
    if result["boxes_without_area"]:
        yield f"boxes without an area in their picture: {result['boxes_without_area']:,}, which have no row"
    for name in ("followed", "absent", "truncated"):
        reasons = result[name]
        yield from (f"{name}: {id!r}: {reasons[id]}" for id in [*reasons][:FEW])
        if len(reasons) > FEW:
            yield f"{name}: {len(reasons) - FEW:,} more; --json names all"
    if result["too_much_absent"]:
        share = f"{len(result['absent']):,} of {result['items']:,}"
        yield f"{share} absent or unusable: exit code 3 (see --most-absent)"


def exit_code(result: Result) -> int:
    return 3 if result["too_much_absent"] else 0
