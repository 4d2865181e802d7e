"""Removes what a root no longer needs: outputs of replaced lists, and what stopped builds left.

Without --yes it only shows what it would remove. Files younger than a day may belong to work under way, and stay.

examples:
  xmodal prune --root data
  xmodal prune --root data --yes
  xmodal prune --root data --keep runs/vsepp 60c2f4a1d1c5d0a7 --yes     and keep what a run or another root reads
"""

from pathlib import Path

from pipelines.commands import Args, Lines, Parser, Result, _flags
from pipelines.commands._text import command, size


def flags(parser: Parser) -> None:
    _flags.root(parser)
    kept = "what is needed all the same: an output by its identity, or all that a run folder was trained on"
    parser.add_argument("--keep", nargs="+", default=[], metavar="IDENTITY|RUN", help=kept)
    parser.add_argument("--yes", action="store_true", help="remove it")


def run(args: Args) -> Result:
    from dataclasses import asdict

    from pipelines.upkeep.pruning import find_unneeded, remove

    storage = _flags.existing(args.root)
    found = find_unneeded(storage, {identity for text in args.keep for identity in _kept(text)})
    if args.yes:
        remove(storage, found)
    rows = [asdict(each) | {"keys": len(each.keys)} for each in found]
    return {"root": args.root, "unneeded": rows, "removed": args.yes}


def _kept(text: str) -> list[str]:
    if not Path(text).is_dir():
        return [text]

    from xmodal.training import run_folder
    from xmodal.training.detector_fit import outputs_of

    read = outputs_of(text)
    return run_folder.read(text).outputs if read is None else read


def text(result: Result) -> Lines:
    found = result["unneeded"]
    verb = "removed" if result["removed"] else "would remove"
    yield from (f"{verb} {each['name']}: {each['why']}, {size(each['size'])}" for each in found)
    if not found:
        yield "everything here is needed"
    elif not result["removed"]:
        yield f"{size(sum(each['size'] for each in found))}: `{command('prune', '--root', result['root'], '--yes')}`"
