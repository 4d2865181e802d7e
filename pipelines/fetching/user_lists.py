"""Your own data on the command line: a list, a folder or a Hugging Face dataset, and what a root remembers of it.

    mylist.parquet, .csv, .tsv, .jsonl     a list; its paths are relative to it
    FOLDER --captions FILE                 pictures or clips; the list's paths are relative to FOLDER
    FOLDER                                 with captions.* or metadata.* in it, which is that list
    FOLDER                                 that `save_to_disk` wrote, or with Parquet files: a Hugging Face dataset
    hf://ORG/NAME[/FOLDER][@REVISION]      the Parquet files of a public dataset on the hub, pinned to a commit

One file, DESCRIPTION, says which lists and columns make up the corpus. It is sealed with the
lists, so later commands find the corpus by its name in the root and need neither the columns nor the lists.

A corpus name belongs to the list that was last parsed under it; NOTE stores that list's path. A different list under
the same name is refused, a grown one is accepted, and an unreadable one changes nothing.
"""

import json
import os
import re
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pipelines.fetching.ledger import FOLDERS, Ledger
from xmodal import corpora
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.raw.readers import ending, heading
from xmodal.records.tables import Kind, read_columns
from xmodal.records.views import splits
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import blob_key, read_lock, records_now, sealed_now
from xmodal.root.storage import Storage
from xmodal.userdata.description import DESCRIPTION, SPLITS, Description, ListFile, split_name
from xmodal.userdata.user_corpus import user_corpus

NOTE = "_runs/own/{}.json"  # where the list or the Python file of a name lies
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
MEASURED = ("val", "test")  # the ends of the names of splits that numbers are computed on
FEW = 10  # items, of which a recall says nothing
HUB = "https://huggingface.co"
TIMEOUT_SECONDS = 30.0
LISTS = tuple(f"{stem}.{kind}" for stem in ("captions", "metadata") for kind in ("csv", "tsv", "jsonl", "parquet"))
FLAGS = ("url", "caption", "id", "split", "splits", "captions", "kind", "name")
SPLIT_FILE = re.compile(  # as the hub names them now, did before, and names what it converts
    r"(?:.*/)?(train|validation|valid|val|dev|test)(?:(?:-\d+-of-\d+(?:-[0-9a-f]+)?)?|/\d+)\.parquet"
)
LIKE_A_SPLIT = re.compile(  # but no latest, contest, retrieval, interval or value
    r"train|(?<!la)(?<!con)test|(?<!retrie)(?<!inter)val(?!ue)", re.IGNORECASE
)


@dataclass(frozen=True)
class ListedFiles:
    """The lists that a user named, in their order, and where they and their media lie."""

    name: str
    place: str  # the path or address of the list or the dataset
    files: tuple[ListFile, ...]
    places: Mapping[str, Path] = field(default_factory=dict)  # each file's path on this machine, or
    addresses: Mapping[str, str] = field(default_factory=dict)  # its address
    folder: Path | None = None  # that of the media
    revision: str | None = None  # the commit of a dataset whose checksums the hub does not tell
    unclear: str | None = None  # a file whose name seems to say a split, but not which


@dataclass(frozen=True)
class UserCorpus:
    """A corpus, and where a user has its files. A build gives its name to the list or Python file at `place`."""

    corpus: Corpus
    place: str | None = None
    media_folder: Path | None = None
    list_files: Mapping[str, Path] = field(default_factory=dict)


def is_data(text: str, flags: Mapping[str, str], storage: Storage) -> bool:
    """Whether a target is a list, folder or dataset. One that is a name too is a folder only if its lists lie there."""
    folder = Path(text).expanduser()
    if text.startswith("hf://") or ending(text) or not folder.is_dir():
        return text.startswith("hf://") or bool(ending(text))
    known = None if flags or "/" in text else description_of(storage, text)
    found = [file.path for file in known.files if (folder / file.path).is_file()] if known else []
    return known is None or any(path in LISTS or ending(path) in (".parquet", ".arrow") for path in found)


def flags_given(flags: Namespace) -> dict[str, str]:
    """The flags about columns and splits that were given."""
    return {name: value for name in FLAGS if (value := getattr(flags, name, None)) is not None}


def describe(text: str, flags: Mapping[str, str], storage: Storage) -> UserCorpus:
    """Makes a corpus of the data. Columns and splits that no flag says are those that the root knows for its name."""
    found = _find(text, flags.get("captions"))
    name = flags.get("name") or _name(found.name, text)
    if name in corpora.names():
        raise UserError(f"{name} is a corpus already: give your data another name with --name")
    known = description_of(storage, name)
    if (place := str(read_note(storage, name).get("place"))).endswith(".py") and os.path.exists(place):
        raise UserError(f"{name} is {place} here: give {found.place} a name of its own with --name")
    if known:
        _refuse_another(storage, known, found, is_meant="name" in flags)
    try:
        description = _described(name, found, flags, known)
        corpus = user_corpus(description, found.addresses)
    except ValueError as error:
        raise UserError(f"{text}: {error}") from None
    return UserCorpus(corpus, found.place, found.folder, found.places)


def remembered(storage: Storage, name: str) -> Corpus | None:
    """The corpus that this root has made of a user's lists under a name."""
    description = description_of(storage, name)
    return user_corpus(description) if description else None


def folder_of(storage: Storage, name: str) -> Path | None:
    """The folder of the list of a name, if that is on this machine still."""
    place = Path(read_note(storage, name).get("place") or "")
    return (place if place.is_dir() else place.parent) if place.is_absolute() and place.exists() else None


def names(storage: Storage) -> list[str]:
    return [name for name in storage.names(f"_runs/ledger/{FOLDERS['annotations']}") if description_of(storage, name)]


def description_of(storage: Storage, name: str) -> Description | None:
    if not re.fullmatch(NAME, name):
        return None
    raw = _raw(storage, name)
    if not raw or DESCRIPTION not in raw:
        return None
    with raw.open(DESCRIPTION) as file:
        return Description.from_json(file.read())


@contextmanager
def binding_name(storage: Storage, name: str, place: str | None) -> Iterator[None]:
    """Gives a name to the list at `place` as soon as its rows are parsed; until then the name means the list before."""
    ledger, is_done = Ledger(storage, "annotations", name), False
    before = ledger.sealed
    try:
        yield
        is_done = True
    finally:
        sealed, made = ledger.sealed, records_now(storage, name)
        parsed = made.about["inputs"][0]["identity"] if made else None
        if place and parsed == sealed and (is_done or sealed != before):
            if read_note(storage, name).get("place") != place:  # the root may be read-only
                storage.write(NOTE.format(name), json.dumps({"place": place}).encode())
        elif place and parsed and not is_done and _is_whole(Output(storage, f"{FOLDERS['annotations']}/{parsed}")):
            ledger.use(parsed)


def _is_whole(sealed: Output) -> bool:
    """Whether all its bytes are here; damaged ones may have been forgotten."""
    files = [locked.sha256 for locked in read_lock(sealed) if locked.sha256] if sealed.complete else [None]
    return all(digest and sealed.storage.size(blob_key(digest)) is not None for digest in files)


def notes(storage: Storage, name: str) -> list[str]:
    """Hints after a build of a user's lists: columns that look as if they were meant, splits with too few items."""
    description, raw = description_of(storage, name), _raw(storage, name)
    records = records_now(storage, name)
    if not description or not raw or not records:
        return []
    there = heading(raw, description.files[0].path)
    unused = [column for column in ("split", "id") if column in there and getattr(description, column) is None]
    hints = [f"the column {one!r} is not used: --{one} {one} takes it" for one in unused]
    sizes = {name: len(items) for name, items in splits(records).items() if name.endswith(MEASURED)}
    sizes |= {part: 0 for part in MEASURED if not any(name.endswith(part) for name in sizes)}
    if few := [f"{size} in {name}" for name, size in sizes.items() if size <= FEW]:
        how = "--splits train=0.8,val=0.1,test=0.1 divides by hash, --split COLUMN takes your own"
        hints.append(f"items {', '.join(few)}: train asks for val, evaluate for test, and R@10 of {FEW} is 100; {how}")
    return [f"{name}: {text}" for text in hints]


def not_clips(storage: Storage, name: str) -> list[str]:
    """A hint after a build of clips, if items of a user's list are taken for pictures by their names."""
    records = records_now(storage, name) if description_of(storage, name) else None
    kinds = read_columns(records, "items.parquet", "kind")["kind"].to_pylist() if records else []
    if not (others := len(kinds) - kinds.count("clip")):
        return []
    return [
        f"{name}: {others:,} of {len(kinds):,} items are not taken for clips, by their names: --kind clip takes all"
    ]


def _raw(storage: Storage, name: str) -> Raw | None:
    sealed = sealed_now(storage, FOLDERS["annotations"], name)
    return raw_of(sealed) if sealed else None


def read_note(storage: Storage, name: str) -> dict[str, Any]:
    """Returns what the root remembers of a name: its `place`, and of a file or a sample `about` it; or nothing."""
    key = NOTE.format(name)
    if not re.fullmatch(NAME, name) or storage.size(key) is None:
        return {}
    note: dict[str, Any] = json.loads(storage.read(key))
    return note


def _refuse_another(storage: Storage, known: Description, found: ListedFiles, is_meant: bool) -> None:
    """Refuses a list that lies elsewhere than the one of its name: there the same paths may be other pictures."""
    place = read_note(storage, known.name).get("place")
    if place in (None, found.place) or (
        all(map(os.path.exists, (place, found.place))) and os.path.samefile(place, found.place)
    ):
        return
    if os.path.exists(place) or place.startswith("hf://"):
        raise UserError(f"{known.name} is {place} here: give {found.place} a name of its own with --name")
    if not is_meant and [file.sha256 for file in known.files] != [file.sha256 for file in found.files]:
        raise UserError(
            f"{known.name} was {place} here, which is gone: if {found.place} is that list, moved, say so with "
            f"--name {known.name}; else give it a name of its own with --name"
        )


def _described(name: str, found: ListedFiles, flags: Mapping[str, str], known: Description | None) -> Description:
    if found.unclear and not (flags.keys() & {"split", "splits"} or (known and (known.split or known.splits))):
        raise ValueError(f"is {found.unclear} of a split? Say with --split which column has it, or share with --splits")
    if "split" in flags and "splits" in flags:
        raise ValueError("--split is a column, --splits are shares: give one of them")
    old = known or Description(name, ())
    split, shares = old.split, old.splits
    if "splits" in flags:
        split, shares = None, _splits(flags["splits"])
    elif "split" in flags or not known:
        split = flags.get("split") or None
        shares = () if split or any(file.split for file in found.files) else SPLITS
    return Description(
        name,
        _with_splits(found.files, by_files=not (split or shares)),
        url=flags.get("url", old.url),
        caption=flags.get("caption", old.caption),
        id=flags.get("id", old.id) or None,
        split=split,
        splits=shares,
        revision=found.revision,
        kind=cast(Kind | None, flags.get("kind", old.kind) or None),
    )


def _with_splits(files: tuple[ListFile, ...], by_files: bool) -> tuple[ListFile, ...]:
    """The files with the splits that their names say, or without splits."""
    return tuple(replace(file, split=split_name(file.split) if by_files and file.split else None) for file in files)


def _splits(text: str) -> tuple[tuple[str, str], ...]:
    """`train=0.9,test=0.1`."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    if wrong := [name for name, _, share in pairs if not re.fullmatch(r"\d*\.?\d+", share)]:
        raise ValueError(f"--splits takes train=0.9,val=0.05,test=0.05; {wrong[0]!r} has no share")
    return tuple((name, share) for name, _, share in pairs)


def _name(name: str, text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    if not plain:
        raise UserError(f"{text} gives no name of letters and digits: give one with --name")
    return plain


def _find(text: str, captions: str | None) -> ListedFiles:
    if text.startswith("hf://"):
        return _find_on_hub(text)
    path = Path(text).expanduser()
    if path.is_dir():
        return _find_in_folder(path, captions)
    if captions:
        raise UserError(f"--captions is for a folder of pictures or clips, which {text} is not")
    return _find_here(path.stem, path.parent, {path.name: path})


def _find_in_folder(folder: Path, captions: str | None) -> ListedFiles:
    name = folder.resolve().name
    lists = [folder / file for file in LISTS if (folder / file).is_file()]
    if captions or len(lists) == 1:
        one = _list_of(folder, captions) if captions else lists[0]
        return _find_here(name, folder, {one.name: one})
    if lists:
        raise UserError(f"{folder} has {lists[0].name} and {lists[1].name}: say which with --captions")
    files = dict(_dataset_files(folder))
    if not files:
        raise UserError(f"{folder} has no list: give one with --captions, or name it {', '.join(LISTS)}")
    places = {file.relative_to(folder).as_posix(): file for file in files}
    unclear = _unclear({path: files[file] for path, file in places.items()})
    return replace(_find_here(name, folder, places, files), place=os.path.abspath(folder), unclear=unclear)


def _list_of(folder: Path, captions: str) -> Path:
    """Finds the list that --captions names: as seen from here, else from the folder."""
    here = Path(captions).expanduser()
    if here.is_file() or (folder / here).is_file():
        return here if here.is_file() else folder / here
    raise UserError(f"--captions {captions}: there is no such file, neither here nor in {folder}")


def _dataset_files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Yields the files of a Hugging Face dataset in the order of its rows, each with its split."""
    if (folder / "dataset_dict.json").is_file():
        for split in _json(folder / "dataset_dict.json")["splits"]:
            yield from ((file, split) for file in _arrow_files(folder / split))
    elif (folder / "state.json").is_file():
        yield from ((file, None) for file in _arrow_files(folder))
    else:
        for file in sorted(folder.rglob("*.parquet")):
            if not any(part.startswith(".") for part in file.relative_to(folder).parts):
                yield file, _split_of(file.relative_to(folder).as_posix())


def _arrow_files(folder: Path) -> list[Path]:
    return [folder / file["filename"] for file in _json(folder / "state.json")["_data_files"]]


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _split_of(path: str) -> str | None:
    named = SPLIT_FILE.fullmatch(path)
    return named[1] if named else None


def _unclear(splits: Mapping[str, str | None]) -> str | None:
    return next((path for path, split in splits.items() if not split and LIKE_A_SPLIT.search(path)), None)


def _find_here(
    name: str, folder: Path, places: Mapping[str, Path], splits: Mapping[Path, str | None] | None = None
) -> ListedFiles:
    files = []
    for path, place in places.items():
        if not ending(path):
            raise UserError(f"{place} is no list: Parquet, CSV, TSV and JSONL are known, by these endings")
        files.append(ListFile(path, *_size_and_sha256(place), (splits or {}).get(place)))
    return ListedFiles(name, os.path.abspath(next(iter(places.values()))), tuple(files), places, folder=folder)


def _size_and_sha256(place: Path) -> tuple[int, str]:
    try:
        with place.open("rb") as file:
            digest = sha256_of(file)
            return file.tell(), digest
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}") from error


def _find_on_hub(text: str) -> ListedFiles:
    """Lists the Parquet files below the folder, with the checksums that the hub tells."""
    place, _, commit = text.removeprefix("hf://").removeprefix("datasets/").partition("@")
    owner, _, rest = place.partition("/")
    name, _, below = rest.partition("/")
    if not all(re.fullmatch(r"[\w.-]+", part) for part in (owner, name)):
        raise UserError(f"{text}: a dataset on the hub is named hf://ORG/NAME")
    repository = f"{owner}/{name}"
    about = _ask_hub(f"{HUB}/api/datasets/{repository}/revision/{quote(commit or 'main', safe='')}?blobs=true", text)
    prefix = f"{below.strip('/')}/" if below.strip("/") else ""
    files, addresses = [], {}
    for file in sorted(about["siblings"], key=lambda file: file["rfilename"]):
        path = file["rfilename"]
        if path.startswith(prefix) and path.endswith(".parquet"):
            sha256 = (file.get("lfs") or {}).get("sha256")
            files.append(ListFile(path, file["size"], sha256, _split_of(path)))
            addresses[path] = f"{HUB}/datasets/{repository}/resolve/{about['sha']}/{quote(path)}"
    if not files:
        raise UserError(f"{text} has no Parquet files: download it, and give its folder or list")
    known = all(file.sha256 for file in files)
    unclear = _unclear({file.path: file.split for file in files})
    revision = None if known else about["sha"]
    where = "/".join(["hf:/", repository, *([below.strip("/")] if prefix else [])])
    return ListedFiles(name, where, tuple(files), addresses=addresses, revision=revision, unclear=unclear)


def _ask_hub(url: str, text: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise UserError(f"{text}: the hub answers {error.code}; a private dataset is for you to download") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{text}: the hub does not answer as it should: {error}") from error
