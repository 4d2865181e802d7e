"""Finds the lists of a user's own data, and describes them as a corpus.

    mylist.parquet, .csv, .tsv, .jsonl     a list, also .json or with .gz; its paths are relative to it, or below it
    FOLDER --captions FILE                 pictures or clips; the list's paths are relative to FOLDER, or below it
    FOLDER                                 with captions.* or metadata.* in it, which is that list
    FOLDER                                 that `save_to_disk` wrote, or with Parquet files: a Hugging Face dataset
    hf://ORG/NAME[/FOLDER][@REVISION]      the Parquet files of a public dataset on the hub, pinned to a commit

The description is sealed with the lists: later commands need neither.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import GZ, ending, rows
from xmodal.root.files import sha256_of
from xmodal.userdata.description import SPLITS, Description, ListFile, split_name
from xmodal.userdata.entries import is_below

HUB = "https://huggingface.co"
TIMEOUT_SECONDS = 30.0
NAMED = (*(f"{stem}.{kind}" for stem in ("captions", "metadata") for kind in ("csv", "tsv", "jsonl", "parquet")),)
LISTS = tuple(f"{name}{packed}" for name in (*NAMED, "captions.json") for packed in ("", GZ))
FIRST_ROWS = 256  # that tell whether paths are absolute
SPLIT_FILE = re.compile(  # as the hub names them now and did before, and what it converts
    r"(?:.*/)?(train|validation|valid|val|dev|test)(?:(?:-\d+-of-\d+(?:-[0-9a-f]+)?)?|/\d+)\.parquet"
)
LIKE_A_SPLIT = re.compile(  # but no latest, contest, retrieval, interval or value
    r"train|(?<!la)(?<!con)test|(?<!retrie)(?<!inter)val(?!ue)", re.IGNORECASE
)


@dataclass(frozen=True)
class ListedFiles:
    """The lists that a user named, in their order."""

    name: str
    place: str  # the path or address of the list or the dataset
    files: tuple[ListFile, ...]
    paths: Mapping[str, Path] = field(default_factory=dict)  # of files on this machine
    addresses: Mapping[str, str] = field(default_factory=dict)  # of others
    folder: Path | None = None  # that of the media
    revision: str | None = None  # a dataset's commit if the hub lacks checksums
    is_dataset: bool = False  # names of files say splits


Checksum = Callable[[Path, str], str]  # of a list, by its place and its path among the lists


def find_lists(
    text: str,
    captions: str | None,
    follow_links: bool = False,
    checksum: Checksum = lambda file, path: sha256_of(file),
) -> ListedFiles:
    """Without `follow_links`, a list that a folder has by a link from elsewhere is refused."""
    if text.startswith("hf://"):
        return _find_on_hub(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _find_in_folder(path, captions, follow_links, checksum)
    if captions:
        raise UserError(f"--captions is for a folder of pictures or clips, which {text} is not")
    return _find_here(Path(path.name.removesuffix(GZ)).stem, path, path.parent, checksum)


def describe(name: str, found: ListedFiles, flags: Mapping[str, str], known: Description | None) -> Description:
    """Describes lists by the flags, and else as they are `known` already."""
    if "split" in flags and "splits" in flags:
        raise ValueError("--split is a column, --splits are shares: give one of them")
    old = known or Description(name, ())
    is_told = bool(flags.keys() & {"split", "splits"} or (known and (old.split or old.splits)))
    for file in found.files if found.is_dataset and not is_told else ():
        if not file.split and LIKE_A_SPLIT.search(file.path):
            raise ValueError(f"is {file.path} of a split? Say with --split which column has it, or share with --splits")
    split, shares = old.split, old.splits
    if "splits" in flags:
        pairs = [part.strip().partition("=") for part in flags["splits"].split(",")]
        if wrong := [name for name, _, share in pairs if not re.fullmatch(r"\d*\.?\d+", share)]:
            raise ValueError(f"--splits takes train=0.9,val=0.05,test=0.05; {wrong[0]!r} has no share")
        split, shares = None, tuple((name, share) for name, _, share in pairs)
    elif "split" in flags or not known:
        split = flags.get("split") or None
        shares = () if split or any(file.split for file in found.files) else SPLITS
    by_files = not (split or shares)
    files = (replace(f, split=split_name(f.split) if by_files and f.split else None) for f in found.files)
    told: dict[str, Any] = {name: flags[name] for name in ("url", "caption") if name in flags}
    told |= {name: flags[name] or None for name in ("id", "kind", "labels") if name in flags}
    told |= {"has_header": flags["header"] != "no"} if "header" in flags else {}
    told |= {"keeps_repeats": flags["repeats"] == "keep"} if "repeats" in flags else {}
    new = replace(old, files=tuple(files), split=split, splits=shares, revision=found.revision, **told)
    return replace(new, folder=_folder_of_paths(new, found))


def _folder_of_paths(description: Description, found: ListedFiles) -> str | None:
    """Returns the media's folder as the first absolute path below it says it."""
    raw, folder = Raw.of_files(found.paths), found.folder
    if not folder:
        return None
    each = (rows(raw, file.path, [description.url], description.has_header) for file in description.files)
    with suppress(UserError):  # parsing says it
        for _, (cell,) in islice(chain.from_iterable(each), FIRST_ROWS):
            name = cell.get("path") if isinstance(cell, dict) and not cell.get("bytes") else cell
            for place in (os.path.abspath(folder), os.path.realpath(folder)):
                if isinstance(name, str) and is_below(name.strip(), place):
                    return place
    return None


def _find_in_folder(folder: Path, captions: str | None, follow_links: bool, checksum: Checksum) -> ListedFiles:
    name = folder.resolve().name
    named = (Path(captions).expanduser(), folder / captions) if captions else map(folder.joinpath, LISTS)
    lists = [path for path in named if path.is_file()]
    if captions and not lists:
        raise UserError(f"--captions {captions}: there is no such file, neither here nor in {folder}")
    if len(lists) > 1 and not captions:
        raise UserError(f"{folder} has {lists[0].name} and {lists[1].name}: say which with --captions")
    files = {} if lists else dict(_dataset_files(folder))
    for file in [] if captions or follow_links else [*lists, *files]:
        if not (real := file.resolve()).is_relative_to(folder.resolve()):
            raise UserError(f"{file} points out of the folder: {real}, give --follow-links to take it")
    if lists:
        return _find_here(name, lists[0], folder, checksum)
    if files:
        return replace(_find_here(name, folder, folder, checksum, files), is_dataset=True)
    known = ", ".join([*NAMED, "captions.json"])
    alone = "; features need none: xmodal features"
    raise UserError(f"{folder} has no list: give one with --captions, or name it {known}, maybe with .gz{alone}")


def _dataset_files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Files of a Hugging Face dataset in the order of its rows, each with its split."""
    if (folder / "dataset_dict.json").is_file():
        for split in _texts(folder / "dataset_dict.json", lambda about: about["splits"]):
            yield from ((file, split) for file in _arrow_files(folder / split))
    elif (folder / "state.json").is_file():
        yield from ((file, None) for file in _arrow_files(folder))
    else:
        for file in sorted(folder.rglob("*.parquet")):
            path = file.relative_to(folder).as_posix()
            if "/." not in f"/{path}":  # hidden
                yield file, _split_of(path)


def _arrow_files(folder: Path) -> list[Path]:
    named = _texts(folder / "state.json", lambda about: [file["filename"] for file in about["_data_files"]])
    return [folder / name for name in named]


def _texts(path: Path, within: Callable[[Any], Any]) -> list[str]:
    try:
        return [str(text) for text in within(json.loads(path.read_bytes()))]
    except (LookupError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not what `save_to_disk` writes ({error!r}): take it away, or name a list"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _split_of(path: str) -> str | None:
    return named[1] if (named := SPLIT_FILE.fullmatch(path)) else None


def _find_here(
    name: str, place: Path, folder: Path, checksum: Checksum, splits: Mapping[Path, str | None] | None = None
) -> ListedFiles:
    # `splits`: files below `place`; default: `place` is the file
    files, paths = [], {}
    for file, split in (splits or {place: None}).items():
        path = file.relative_to(place if splits else place.parent).as_posix()
        if not ending(path):
            raise UserError(f"{file} is no list: Parquet, CSV, TSV, JSONL and JSON are known, by these endings")
        if file.exists() and not file.is_file():
            raise UserError(f"{file} is no regular file: copy what it gives into one, and name that")
        try:
            files.append(ListFile(path, file.stat().st_size, checksum(file, path), split))
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
        paths[path] = file
    return ListedFiles(name, os.path.abspath(place), tuple(files), paths, folder=folder)


def _find_on_hub(text: str) -> ListedFiles:
    place, _, commit = text.removeprefix("hf://").removeprefix("datasets/").partition("@")
    owner, _, rest = place.strip("/").partition("/")
    name, _, below = rest.partition("/")
    if not all(re.fullmatch(r"[\w.-]+", part) for part in (owner, name)):
        raise UserError(f"{text}: a dataset on the hub is named hf://ORG/NAME")
    about = _ask_hub(f"{HUB}/api/datasets/{owner}/{name}/revision/{quote(commit or 'main', safe='')}?blobs=true", text)
    prefix, files = f"{below}/" if below else "", []
    for file in sorted(about["siblings"], key=lambda file: file["rfilename"]):
        path = file["rfilename"]
        if path.startswith(prefix) and path.endswith(".parquet"):
            sha256 = (file.get("lfs") or {}).get("sha256")
            files.append(ListFile(path, file["size"], sha256, _split_of(path)))
    if not files:
        raise UserError(f"{text} has no Parquet files: download it, and give its folder or list")
    commit = about["sha"]
    addresses = {file.path: f"{HUB}/datasets/{owner}/{name}/resolve/{commit}/{quote(file.path)}" for file in files}
    revision = None if all(file.sha256 for file in files) else commit
    where = f"hf://{owner}/{name}/{prefix}".rstrip("/")
    return ListedFiles(name, where, tuple(files), addresses=addresses, revision=revision, is_dataset=True)


def _ask_hub(url: str, text: str) -> Any:
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except HTTPError as error:
        with error:
            raise UserError(f"{text}: the hub answers {error.code}; a private dataset is for you to download") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{text}: the hub does not answer as it should: {error}") from error
