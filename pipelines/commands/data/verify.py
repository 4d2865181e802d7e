"""Reads every byte of a root, also of its ledgers and notes, and compares it with the records.

The exit code is 1 where anything is damaged.

examples:
  xmodal verify --root data
  xmodal verify --root data --forget; xmodal build coco --root data
"""

from dataclasses import asdict

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import command
from xmodal.errors import UserError


def flags(parser: Parser) -> None:
    _flags.root(parser)
    parser.add_argument("--forget", action="store_true", help="have damaged parts made again by the next build")
    _flags.quiet(parser)


def run(args: Args) -> Result:
    from pipelines.upkeep.folder_features import MARKER
    from pipelines.upkeep.inspection import forget, unfinished, verify

    storage = _flags.existing(args.root)
    if storage.size(MARKER) is not None:
        what = f"{args.root} is a store of a folder's features"
        raise UserError(f"{what}: the `xmodal features` that made it, run again, makes damaged parts anew")
    files, damage = verify(storage, _flags.progress(args))
    reached = forget(storage, damage) if args.forget else []
    found, corpora = [*map(asdict, damage)], storage.names("_runs/ledger/sources") or ["CORPUS"]
    about = {"root": args.root, "files": files, "damage": found, "forgotten": args.forget, "unfinished": reached}
    about |= {"to_build": [folder for folder in unfinished(storage) if folder not in reached]}
    return about | {"corpora": corpora}


def text(result: Result) -> Lines:
    damage = result["damage"]
    yield from (f"{_place(one)}: {one['problem']}" for one in damage)
    yield from (f"{folder}: unfinished: build it again" for folder in result["to_build"])
    yield from (f"{folder}: made of it, so unfinished until it is built again" for folder in result["unfinished"])
    if not damage:
        yield f"{result['files']:,} files are as they were committed"
    elif result["forgotten"]:
        build = command("build", *result["corpora"], "--root", result["root"])
        yield f"{len(damage)} damaged: `{build}` makes them again"
    else:
        again = command("verify", "--root", result["root"], "--forget")
        yield f"{len(damage)} damaged: `{again}` has them made again"


def _place(damage: Result) -> str:
    """The path below the root."""
    file, folder = damage["file"], damage["output"]
    return file if (damage["unit"] is None and file) or not folder else f"{folder}/{file}"


def exit_code(result: Result) -> int:
    return 1 if result["damage"] else 0
