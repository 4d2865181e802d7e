"""The flags that several commands share, and what they name."""

import argparse
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.commands import Args, Parser
from pipelines.commands._text import command
from pipelines.engine.progress_line import ProgressLine
from pipelines.upkeep.machine import how_to_install
from xmodal.errors import UserError
from xmodal.root.storage import Storage, open_storage

if TYPE_CHECKING:
    from pipelines.engine.build_options import BuildOptions
    from pipelines.engine.building import Runner
    from pipelines.upkeep.targets import Target
    from xmodal.training.run_setup import Setup

OWN_DATA = {  # of each flag, what it takes and its help
    "url": ("COLUMN", "addresses, paths beside the list, or pictures (default: url)"),
    "caption": ("COLUMN", "a text or a list of texts (default: caption)"),
    "id": ("COLUMN", "'' for none (default: made from address, path or picture)"),
    "split": ("COLUMN", "each row's split: train, val, test or a name; empty for none"),
    "splits": ("NAME=SHARE,…", "by hash of the id (train=0.9,val=0.05,test=0.05)"),
    "labels": (
        "COLUMN",
        "categories of each item, by which PMRP counts: a list, or a text with ; between; '' for none",
    ),
    "header": ("yes|no", "no: a CSV or TSV begins with its first row, and COLUMN is a number: --url 1 --caption 2"),
    "repeats": ("drop|keep", "the same caption of the same item again (default: drop)"),
    "captions": ("FILE", "the list of a folder, beside or in it, if not captions.*"),
    "kind": ("image|clip", "treat every item as such; '' decides by file ending again (default: by file ending)"),
    "name": ("NAME", "the name of the corpus (default: that of the list or folder)"),
}


def path(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"a path on this machine, not {text}")
    return Path(text).expanduser()


def given_file(text: str) -> Path:
    return _readable(path(text))


def _readable(file: Path) -> Path:
    """Refuses a pipe or a device: reading it may never end, and files are read more than once."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise UserError(f"{file} is no regular file: copy what it gives into one, and name that")
    return file


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number, not {text}")
    return int(text)


def root(parser: Parser, required: bool = True) -> None:
    parser.add_argument("--root", required=required, help="where outputs are: a folder, or a URL, s3://bucket/run")


def quiet(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def settings(parser: argparse._ActionsContainer, example: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"a setting: {example}")


def device(parser: Parser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")


def files(parser: Parser, weights: str, vectors: str) -> None:
    parser.add_argument("--weights", type=given_file, metavar="FILE", help=f"a state_dict of any network, {weights}")
    parser.add_argument(
        "--vectors", type=given_file, metavar="FILE", help=f"word vectors, or an index of them: {vectors}"
    )


IDENTIFIED = {
    "texts": "captions as vectors, as concepts, or as semantics",
    "pixels": "resized pictures (of clips: the frames of the features)",
}


def identities(parser: argparse._ActionsContainer, *outputs: str) -> None:
    for name in outputs:
        what = IDENTIFIED.get(name, name)
        parser.add_argument(f"--{name}", metavar="IDENTITY", help=f"which {what}, where the root has several")


def training(parser: Parser) -> None:
    identities(parser, "records", "features", "pixels", "texts")
    files(parser, "of the features, where a phase trains it", "those that the recipe names")
    device(parser)


def targets(parser: Parser, metavar: str, nargs: int | str = "+") -> None:
    what = "a corpus, or a list, folder or mine.py of yours"
    what += f"; /STAGE for one of {', '.join(stage_names())}" if "STAGE" in metavar else ""
    parser.add_argument("targets", nargs=nargs, metavar=metavar, help=what)
    root(parser)


def workers(parser: Parser) -> None:
    add = parser.add_argument
    add("--address", help="a Ray cluster to run on (auto, or host:port); default: this machine")
    add("--workers", type=count, default=0, help="at most so many; default: a few here, soon all there is room for")
    add("--serial", action="store_true", help="in this process, without Ray")


def building(parser: Parser) -> None:
    parser.add_argument("--raw", type=path, help="a folder with files you have, also in archives; linked, if possible")
    workers(parser)
    settings(parser, "resnet.crop=256; `xmodal settings STAGE` lists them; another value is another output")
    files(parser, "in place of those that a setting names", "for the stage sentences")
    named_files(parser)
    quiet(parser)


def named_files(parser: Parser) -> None:
    file = (
        "a file by the name that a stage gives it: weights=FILE is --weights FILE; `xmodal settings STAGE` lists them "
    )
    file += "and says what is in each"
    parser.add_argument("--file", action="append", default=[], metavar="NAME=PATH", help=file)


def files_by_name(args: Args, known: Collection[str]) -> dict[str, Path]:
    """The files of --file; `known` are names that stages give."""
    from pipelines.engine.typed_settings import nearest

    files = dict[str, Path]()
    for text in args.file:
        name, _, file = text.partition("=")
        if not file:
            raise UserError(f"--file takes NAME=PATH, not {text!r}; the names are: {', '.join(sorted(known))}")
        if name not in known:
            meant = nearest(name, {one: one for one in known})
            raise UserError(f"no stage takes a file {name!r}{meant}; the names are: {', '.join(sorted(known))}")
        files[name] = _readable(Path(file).expanduser())
    return files


def most_absent(parser: Parser) -> None:
    absent = "exit with 3 where more than this share, 0 to 1, is absent or unusable (default: 0.9)"
    parser.add_argument("--most-absent", type=_share, default=0.9, metavar="SHARE", help=absent)


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"a share from 0 to 1, not {text}")


def own_data(parser: Parser) -> None:
    sample = "--raw has a part of a corpus, which is named CORPUS-sample; no count of the whole is asked for"
    parser.add_argument("--sample", action="store_true", help=sample)
    about = (
        "A list (.parquet, .csv, .tsv, .jsonl, .json, also .gz), a folder with one, or a Hugging Face dataset\n"
        "(a folder, or hf://org/name) in place of a corpus. What no flag says is as this root read it last."
    )
    own = parser.add_argument_group("your own data", about)
    for name, (takes, help) in OWN_DATA.items():
        choices = [*takes.split("|"), ""] if "|" in takes else None
        own.add_argument(f"--{name}", metavar=takes, choices=choices, help=help)
    links = "take files that links lead to from outside the folder, too (default: refused)"
    own.add_argument("--follow-links", action="store_const", const="yes", help=links)


def stage_names() -> list[str]:
    """Lists the stages without importing them, which takes longer than showing help."""
    folder = Path(__file__).parents[1] / "stages"
    return sorted({"sources", "media", *(file.stem for file in folder.rglob("[!_]*.py"))})


def progress(args: Args) -> ProgressLine:
    return ProgressLine(quiet=args.quiet)


def setup(args: Args) -> "Setup":
    """The values of --root, --device and the like, as far as the command has them."""
    from xmodal.training.run_setup import Setup

    given = {field.name: getattr(args, field.name, None) for field in fields(Setup)} | {"progress": progress(args)}
    return Setup(**{name: value for name, value in given.items() if value is not None})


def runner(args: Args) -> "Runner":
    from pipelines.engine.building import serial
    from pipelines.engine.serial_start import SerialStart

    def on_ray(open_worker: Any, units: Any, resources: Any) -> Iterator[Any]:  # what is up to date needs no Ray
        try:
            from pipelines.engine.ray_runner import RayRunner
        except ModuleNotFoundError as error:
            raise UserError(f"{how_to_install(error.name or '') or error}, or add --serial") from error
        yield from RayRunner(args.workers, args.address)(open_worker, units, resources)

    if args.serial:
        return serial
    return on_ray if args.address or args.workers else SerialStart(on_ray)


def build_options(args: Args) -> "BuildOptions":
    from pipelines.engine.build_options import BuildOptions
    from pipelines.engine.typed_settings import parse_settings
    from pipelines.stages import all, targets, with_needs

    check_raw(args)
    kinds = all()
    known = sorted({name for kind in kinds for name in kind.files})
    named = {text.rpartition("/")[2] for text in getattr(args, "targets", ())}
    first = with_needs(["records", *named.intersection(targets())])
    settings = parse_settings(args.set, {kind.name: kind.config() for kind in kinds}, first, known)
    files = {name: file for name in ("weights", "vectors") if (file := getattr(args, name))}
    files |= files_by_name(args, known)
    refuse_weights_twice(settings, files)
    return BuildOptions(open_storage(args.root), runner(args), progress(args), args.raw, settings, files)


def refuse_weights_twice(settings: Mapping[str, object], files: Mapping[str, Path]) -> None:
    """Refuses a setting of weights in whose place a file would be taken."""
    from pipelines.stages import load

    for name, value in settings.items():
        stage, _, setting = name.partition(".")
        given = [files[file] for file in load(stage).files if file in ("weights", "detector") and file in files]
        if setting == "weights" and given:
            raise UserError(
                f"--set {name}={value} and the file {given[0]} both say which weights: leave one of them out"
            )


def refuse_missing(files: Mapping[str, Path]) -> None:
    """Refuses files of --file, --weights and --vectors that are not there, or that nobody may read."""
    for file in files.values():
        if not file.exists():
            raise UserError(f"there is no file {file}")
        if not os.access(file, os.R_OK):
            raise UserError(f"{file} cannot be read: you have no right to")


def check_raw(args: Args) -> None:
    if args.raw is not None and not args.raw.is_dir():
        raise UserError(f"--raw {args.raw} is not a folder")


def existing(root: str) -> Storage:
    storage = open_storage(root)
    if not storage.names(""):
        raise UserError(f"there is nothing under {root}: is this the root you built?")
    return storage


def parse_targets(args: Args, options: "BuildOptions") -> "list[Target]":
    from pipelines.upkeep.targets import parse_targets

    names = [*OWN_DATA, "follow-links"]
    own = {name: value for name in names if (value := getattr(args, name.replace("-", "_"), None)) is not None}
    return parse_targets(args.targets, options, own, getattr(args, "sample", False), hasattr(args, "sample"))


def corpus_name(text: str, args: Args) -> str:
    """The name in the root of a corpus, for which a user may give a file or list."""
    from pipelines.fetching.corpus_names import name_of

    return name_of(text, open_storage(args.root))


def warn_of_changes(args: Args, corpus: str) -> None:
    """Says what a build would take anew of a user's list, which this command reads as it was."""
    from pipelines.fetching.corpus_names import changes

    anew = command("build", corpus, "--root", args.root)
    for said in changes(open_storage(args.root), [corpus])[0].get(corpus, []):
        progress(args).say(f"warning: {corpus}: {said}: `{anew}` takes it as it is now")
