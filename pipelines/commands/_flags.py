"""The flags that several commands share, and what they name: a root, corpora and stages, who does the work."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.engine.progress_line import Progress
from xmodal.errors import UserError

if TYPE_CHECKING:
    from pipelines.engine.building import Runner
    from pipelines.stages._corpus import Site
    from xmodal.corpora import Corpus
    from xmodal.root.storage import Storage

Target = tuple["Site", "Corpus", list[str]]  # a corpus, its stages that are meant, and where they are built


def path(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"a path on this machine, not {text}")
    return Path(text).expanduser()


def count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a whole number, not {text}")
    return int(text)


def root(parser: argparse.ArgumentParser, required: bool = True) -> None:
    parser.add_argument("--root", required=required, help="where outputs are: a folder, or a URL, s3://bucket/run")


def quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def settings(parser: argparse._ActionsContainer, example: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"a setting: {example}")


def device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1")


def identities(parser: argparse._ActionsContainer, *outputs: str) -> None:
    """One flag for each kind of output that a root may have several of."""
    for name in outputs:
        what = "resized pictures" if name == "pixels" else name
        parser.add_argument(f"--{name}", metavar="IDENTITY", help=f"which {what}, where the root has several")


def vectors(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--vectors", type=path, metavar="FILE", help=f"word vectors, or an index of them: {purpose}")


def weights(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument("--weights", type=path, metavar="FILE", help=f"a state_dict of the network, {purpose}")


def targets(parser: argparse.ArgumentParser, metavar: str) -> None:
    what = "a corpus, or a list, folder or mine.py of yours"
    what += f"; /STAGE for one of {', '.join(stage_names())}" if "STAGE" in metavar else ""
    parser.add_argument("targets", nargs="+", metavar=metavar, help=what)


def workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--address", help="a Ray cluster to run on (auto, or host:port); default: this machine")
    parser.add_argument("--workers", type=count, default=0, help="at most so many; default: all there is room for")
    parser.add_argument("--serial", action="store_true", help="one after the other in this process, without Ray")


def building(parser: argparse.ArgumentParser) -> None:
    """What every command takes that builds stages, or plans to."""
    parser.add_argument("--raw", type=path, help="a folder with files you have, also in archives; linked, if possible")
    workers(parser)
    settings(parser, "resnet.crop=256; `xmodal settings STAGE` lists them; another value is another output")
    weights(parser, "in place of those that a setting names")
    vectors(parser, "for the stage sentences")
    quiet(parser)


def own_data(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group(
        "your own data",
        "A list (.parquet, .csv, .tsv, .jsonl), a folder with one, or a Hugging Face dataset (a folder, or hf://org/name)\n"
        "in place of a corpus. What no flag says is as this root read it last.",
    )
    own.add_argument("--url", metavar="COLUMN", help="addresses, paths beside the list, or pictures (default: url)")
    own.add_argument("--caption", metavar="COLUMN", help="a text or a list of texts (default: caption)")
    own.add_argument("--id", metavar="COLUMN", help="'' for none (default: made from address, path or picture)")
    own.add_argument("--split", metavar="COLUMN", help="each row's split: train, val, test or a name; empty for none")
    own.add_argument("--splits", metavar="NAME=SHARE,…", help="by hash of the id (train=0.9,val=0.05,test=0.05)")
    own.add_argument("--captions", metavar="FILE", help="the list of a folder, beside or in it, if not captions.*")
    own.add_argument(
        "--kind",
        choices=("image", "clip", ""),
        metavar="image|clip",
        help="treat every item as an image or a clip; '' decides by file ending again (default: by file ending)",
    )
    own.add_argument("--name", help="the name of the corpus (default: that of the list or folder)")


def stage_names() -> list[str]:
    """Lists the stages by their files: importing them takes longer than showing help."""
    folder = Path(__file__).parents[1] / "stages"
    modules = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    return sorted(modules | {"sources", "media"})


# ------------------------------------------------------------------------------------------------- what the flags name


def progress(args: argparse.Namespace) -> Progress:
    return Progress(quiet=args.quiet)


def chosen_outputs(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags of these names, as keywords."""
    return {name: getattr(args, name) for name in names}


def runner(args: argparse.Namespace) -> "Runner":
    """Ray is imported when the first unit is to be done: an up-to-date root needs none."""
    from pipelines.engine.building import serial

    def on_ray(open_worker: Any, units: Any, resources: Any) -> Iterator[Any]:
        try:
            from pipelines.engine.ray_runner import RayRunner
        except ModuleNotFoundError as error:
            from pipelines.upkeep.machine import how_to_install

            raise UserError(f"{how_to_install(error.name or '') or error}, or add --serial") from error
        yield from RayRunner(args.workers, args.address)(open_worker, units, resources)

    return serial if args.serial else on_ray


def site(args: argparse.Namespace) -> "Site":
    from pipelines.engine.typed_settings import parse_settings
    from pipelines.stages._corpus import CONFIGS, Site
    from xmodal.root.storage import open_storage

    if args.raw is not None and not args.raw.is_dir():
        raise UserError(f"--raw {args.raw} is not a folder")
    return Site(
        open_storage(args.root),
        runner(args),
        progress(args),
        args.raw,
        args.weights,
        args.vectors,
        parse_settings(args.set, CONFIGS),
    )


def existing(root: str) -> "Storage":
    from xmodal.root.storage import open_storage

    storage = open_storage(root)
    if not storage.names(""):
        raise UserError(f"there is nothing under {root}: is this the root you built?")
    return storage


def resolve(args: argparse.Namespace, site: "Site") -> list[Target]:
    """`coco` is its data, `coco/resnet` one stage; a Python file or your own data may stand for the name."""
    from pipelines.fetching.user_lists import is_data
    from pipelines.stages._corpus import STAGES, USUAL
    from xmodal import corpora

    found: list[Target] = []
    for text in args.targets:
        name, _, stage = text.rpartition("/")
        if not name or stage not in STAGES or (name not in corpora.names() and os.path.isdir(text)):
            if "/" in text and not text.endswith(".py") and not is_data(text, {}, site.storage):
                raise UserError(f"no stage {stage!r}; there are: {', '.join(STAGES)}")
            name, stage = text, ""
        of, corpus = resolve_corpus(name, args, site)
        found.append((of, corpus, [stage] if stage else list(USUAL)))
    return found


def resolve_corpus(name: str, args: argparse.Namespace, site: "Site") -> "tuple[Site, Corpus]":
    """The corpus, and the site with where its files lie."""
    from dataclasses import replace

    from pipelines.fetching import user_lists
    from xmodal import corpora

    flags = user_lists.told(args)
    if name not in corpora.names() and user_lists.is_data(name, flags, site.storage):
        found = user_lists.describe(name, flags, site.storage)
        raw: dict[str, Any] = {} if site.raw else {"raw": found.folder, "archives": False}  # nobody asked for archives
        return replace(site, files=found.places, list_at=found.place, **raw), found.corpus
    if flags:
        flag = next(iter(flags))
        raise UserError(f"--{flag} is for data of your own: a list, a folder or hf://…, which {name} is not")
    known = None if name.endswith(".py") or name in corpora.names() else user_lists.remembered(site.storage, name)
    if known and not site.raw and (folder := user_lists.folder_of(site.storage, name)):
        site = replace(site, raw=folder, archives=False)
    return site, known or corpora.load(name)
