"""Your own data as a corpus: lists of pictures or clips with captions, and what is said of their columns.

A list is Parquet, CSV, TSV, JSONL or an Arrow stream (xmodal/raw/readers.py). A row has a picture or clip and its
captions:

    url                            caption                     what the cell of `--url` may be
    https://x.org/cat.jpg          a cat on a mat              an address: fetched
    pictures/dog.png               ["a dog", "it barks"]       a path beside the list: taken from there
    {"bytes": …, "path": "a.jpg"}  a bird                      the picture itself (the `Image` of Hugging Face)

Which it is, a picture or a clip, the ending of its name says, or for all of them `Description.kind`.

`Description` is all that decides how the lists are read. It is one of the corpus' own sources, DESCRIPTION, and is
sealed with the lists: so the identity of all that follows changes with their bytes and with the columns, and a root
knows the corpus by its name alone.

Ids. A column, or else: of an address or of bytes the first 20 hexadecimal digits of their sha256, of a path the path.
None depends on the order of the rows. Rows with one id are one item with several captions; a caption's id is its
item's, # and 16 digits of the sha256 of its text.

Splits are named own/NAME, or as they are where the name has a slash; validation, valid and dev are val. They come from
a column, or from the names of the files, or from the id: the first 16 hexadecimal digits of its sha256 as a fraction of
16^16, which the shares divide in the order in which they are given. A share that no item falls into takes the item
whose fraction is nearest to it, from a split that has others: so small lists have every split. Such an item goes back
when the list grows; all others stay where they are.

Rules, each counted as an oddity: a row without picture or with an address that is neither http nor https, a path that
is absolute or leaves the folder, a caption that is empty, not Unicode or there twice, an id that is long or does not
print, an item that has another picture the second time, a split that no item is in or just the nearest one; an item
that no column or file puts in a split: it is kept without one; a picture that files of several splits have: it is kept
in each. NaN is an empty cell. What stops with file and line: a
missing column, a cell of another kind, an item that a column puts in two splits or whose id is another picture's in a
file of another split, a row that cannot be read; and a list without a single picture.

A picture beside the list is taken once and linked where the disk allows: one that is to change gets another name.

Rows are streamed: what grows with a list is the id of each item, a digest of each caption and of each embedded picture.
"""

import hashlib
import json
import math
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.archives import archive_of
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import rows
from xmodal.records.tables import Caption, Item, Kind, Oddity, Row, Split
from xmodal.root.identity import canonical_json, fingerprint

DESCRIPTION = "xmodal-own.json"
FORMAT = 1  # of DESCRIPTION
VERSION = 4  # of what is parsed from the same bytes
SPLITS = (("train", "0.9"), ("val", "0.05"), ("test", "0.05"))
VALIDATION = {"validation", "valid", "dev"}
CLIPS = {
    *(".gif", ".gifv", ".mp4", ".m4v", ".mov", ".qt", ".3gp", ".3g2", ".webm", ".mkv", ".mjpg", ".mjpeg"),
    *(".avi", ".mpg", ".mpeg", ".wmv", ".flv", ".ogv"),  # which are not read, and are clips all the same
}
LONGEST_ID, LONGEST_STEP, LONGEST_PATH, LONGEST_URL = 200, 255, 1000, 8000  # as file systems and servers bear
MEMBERS, ARCHIVE_BYTES = 4096, 1 << 30  # of an archive of embedded pictures

NO_MEDIUM = "no picture or clip: the row is left out"
NOT_FETCHED = "an address that is neither http nor https: the row is left out"
ABSOLUTE = "an absolute path or file://: the row is left out; write it as seen from the list's folder"
BACKSLASH = "a path with a backslash: the row is left out; write / between folders"
LEAVES = "a path that leaves the list's folder, is long or does not print: the row is left out"
ODD_ID = "an id that is long or does not print: its sha256 stands for it"
NO_CAPTION = "an empty caption: left out"
NOT_TEXT = "a caption that is not Unicode: left out"
AGAIN = "the same caption of the same item again: left out"
OTHER_MEDIUM = "another picture or clip of an id that is taken: the row is left out"
NEAREST = "a split without items by hash: it takes the nearest one"
EMPTY_SPLIT = "a split without items"
NO_SPLIT = "in no split: kept without one"
SEVERAL_SPLITS = "in files of several splits: kept in each"
BESIDE = "it is not beside the list"


@dataclass(frozen=True)
class ListFile:
    """`split` is of all its rows, where nothing else says one. Without sha256 the bytes are not known beforehand."""

    path: str
    bytes: int
    sha256: str | None
    split: str | None = None


@dataclass(frozen=True)
class Description:
    """Columns by name; `splits` are names with shares as decimal text, none where a column or the files say the split.

    `kind` is that of all items, where their names do not say it. `revision` stands for the bytes of lists whose
    checksums are not known beforehand.
    """

    name: str
    files: tuple[ListFile, ...]
    url: str = "url"
    caption: str = "caption"
    id: str | None = None
    split: str | None = None
    splits: tuple[tuple[str, str], ...] = SPLITS
    revision: str | None = None
    kind: Kind | None = None

    def __post_init__(self) -> None:
        shares = [Fraction(share) for _, share in self.splits]
        names = {split_name(name) for name, _ in self.splits}
        if any(share <= 0 for share in shares) or (shares and sum(shares) != 1) or len(names) < len(shares):
            told = ",".join(f"{name}={share}" for name, share in self.splits)
            raise ValueError(f"splits have names of their own and shares above 0 whose sum is 1, not {told}")

    def to_json(self) -> bytes:
        return canonical_json({"version": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, data: bytes) -> "Description":
        facts = json.loads(data)
        if facts.pop("version") != FORMAT:
            raise UserError(f"{DESCRIPTION} was written by another version of xmodal: name the list again")
        files = tuple(ListFile(**file) for file in facts.pop("files"))
        return cls(**facts | {"files": files, "splits": tuple((name, share) for name, share in facts["splits"])})


@dataclass(frozen=True)
class Medium:
    """`path` is its place in the media set; `content` where the list holds the bytes."""

    path: str
    kind: Kind
    url: str | None = None
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Entry:
    """One row of a list that can be used."""

    where: str
    id: str
    medium: Medium
    captions: tuple[str, ...]
    split: str | None
    oddities: tuple[str, ...]


def own_corpus(description: Description, addresses: Mapping[str, str] | None = None) -> Corpus:
    """A corpus like any other; `addresses` are of lists that are not on this machine."""
    told = description.to_json()
    how = f"name the list again, as when {description.name} was first built"
    sources = [Source(f.path, (addresses or {}).get(f.path), (), f.bytes, f.sha256, how) for f in description.files]
    itself = Source(DESCRIPTION, _as_url(told), (), len(told), hashlib.sha256(told).hexdigest())
    return Corpus(
        name=description.name,
        homepage="none",
        licence="not stated: these are their owner's own data",
        media_set=description.name,
        sources=(itself, *sources),
        parse=partial(parse, description),
        media=partial(media, description),
        kinds=frozenset({"image", "clip"}),  # which of both, or both, only the list tells
        unpack=partial(unpack, description),
        release={"annotations": "all", "media": "features"},
        version=VERSION,
        card="own",
        whole_paths=True,
    )


def parse(description: Description, raw: Raw) -> Iterator[Row]:
    parser, left_out = _Parser(description), Counter[str]()
    for entry in entries(description, raw):
        left_out.update([entry.rule] if isinstance(entry, Oddity) else [])
        yield from [entry] if isinstance(entry, Oddity) else parser.rows(entry)
    if not parser.captions:
        why = "".join(f"; {count:,} of {rule}" for rule, count in left_out.most_common())
        raise UserError(f"{description.files[0].path} lists no picture or clip that can be used{why}")
    yield from parser.of_splits()


def media(description: Description, raw: Raw) -> Iterator[Source]:
    """Every picture or clip once, whichever rows name it; those inside the lists as the archives they are put into."""
    seen = set[bytes]()
    for entry in entries(description, raw):
        if isinstance(entry, Entry):
            path = entry.medium.path if entry.medium.content is None else archive_of(entry.medium.path)
            if (key := _digest(path)) not in seen:
                seen.add(key)
                yield Source(path, entry.medium.url, how=BESIDE, part="media")


def unpack(description: Description, raw: Raw, wanted: Container[str], folder: Path) -> Iterator[Source]:
    """Writes the wanted archives of embedded pictures, one after the other; each is whole when it is yielded."""
    for path, some in groupby(_embedded_once(description, raw), key=lambda medium: archive_of(medium.path)):
        if path in wanted:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(folder / path, "w") as archive:
                for medium in some:
                    member = zipfile.ZipInfo(medium.path.partition("!")[2])  # of 1980: equal pictures, equal bytes
                    archive.writestr(member, medium.content or b"")
            yield Source(path, how=BESIDE, part="media")


def _embedded_once(description: Description, raw: Raw) -> Iterator[Medium]:
    seen = set[bytes]()
    for entry in entries(description, raw):
        if isinstance(entry, Entry) and entry.medium.content and (key := _digest(entry.medium.path)) not in seen:
            seen.add(key)
            yield entry.medium


def entries(description: Description, raw: Raw) -> Iterator[Entry | Oddity]:
    """Every row in the order of the files, or why it is left out."""
    content = [[file.bytes, file.sha256] for file in description.files]  # what else is said moves no picture
    embedded = Embedded(f"embedded/{fingerprint([content, description.revision, description.url])[:16]}")
    given = {"url": description.url, "caption": description.caption, "id": description.id, "split": description.split}
    named = {use: column for use, column in given.items() if column is not None}
    for file in description.files:
        for where, cells in rows(raw, file.path, list(named.values())):
            entry = entry_of(dict(zip(named, cells, strict=True)), where, file.split, embedded)
            yield Oddity(entry, where) if isinstance(entry, str) else _of_kind(entry, description.kind)


def _of_kind(entry: Entry, kind: Kind | None) -> Entry:
    return replace(entry, medium=replace(entry.medium, kind=kind)) if kind else entry


class _Parser:
    """What must be remembered of the rows before: their items and, as digests, captions and media."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self.captions = dict[str, int]()  # by item
        self._texts = set[bytes]()
        self._media = dict[str, bytes]()
        self._splits = dict[str, str | None]()
        self._further = set[tuple[str, str]]()  # splits of an item beyond its first
        self._without = dict[str, str]()  # items in no split, and where they are
        self._items = Counter[str]()  # by split
        self._ends = list(_ends(description))

    def rows(self, entry: Entry) -> Iterator[Row]:
        yield from (Oddity(rule, entry.where, entry.id) for rule in entry.oddities)
        if entry.id not in self.captions:
            yield from self._new(entry)
        else:
            yield from self._again(entry)
            if self._is_of_another(entry):  # its captions are not of the picture that counts
                yield Oddity(OTHER_MEDIUM, entry.where, entry.id)
                return
        for text in entry.captions:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if (key := _digest(f"{entry.id}#{digest}")) in self._texts:
                yield Oddity(AGAIN, entry.where, entry.id)
                continue
            self._texts.add(key)
            yield Caption(f"{entry.id}#{digest}", entry.id, self.captions[entry.id], text)
            self.captions[entry.id] += 1

    def of_splits(self) -> Iterator[Row]:
        """Splits by hash, and what is odd about splits, when every row was seen."""
        if self._ends:
            nearest = self._nearest()
            yield from (Split(id, nearest.get(id) or self._by_hash(id)) for id in self.captions)
            yield from (Oddity(NEAREST, name) for name in nearest.values())
        yield from (Oddity(NO_SPLIT, where, id) for id, where in self._without.items())
        yield from (Oddity(EMPTY_SPLIT, name) for name, _ in self._ends if not self._items[name])

    def _new(self, entry: Entry) -> Iterator[Row]:
        self.captions[entry.id] = 0
        if self._description.id is not None:  # else the id is made from the medium
            self._media[entry.id] = _digest(entry.medium.path)
        if not self._ends:
            self._splits[entry.id] = entry.split
        yield Item(entry.id, entry.medium.path, entry.medium.kind, url=entry.medium.url)
        if self._ends:
            self._items[self._by_hash(entry.id)] += 1
        elif entry.split:
            yield Split(entry.id, entry.split)
        else:
            self._without[entry.id] = entry.where

    def _again(self, entry: Entry) -> Iterator[Row]:
        if not self._ends and self._splits[entry.id] != entry.split:
            yield from self._in_another(entry, self._description.split is not None or self._is_of_another(entry))

    def _is_of_another(self, entry: Entry) -> bool:
        """Whether its id has been given to another medium before."""
        return self._media.get(entry.id, b"") not in (b"", _digest(entry.medium.path))

    def _in_another(self, entry: Entry, contradicts: bool) -> Iterator[Row]:
        """Another split than the item's first: no contradiction where files of both have the same picture."""
        first = self._splits[entry.id]
        if contradicts:
            raise UserError(f"{entry.where}: item {entry.id!r} is in {entry.split}, but was in {first}")
        if entry.split is None or (entry.id, entry.split) in self._further:
            return
        if first is None:
            del self._without[entry.id]
            self._splits[entry.id] = entry.split
        else:
            self._further.add((entry.id, entry.split))
            yield Oddity(SEVERAL_SPLITS, entry.where, entry.id)
        yield Split(entry.id, entry.split)

    def _by_hash(self, id: str) -> str:
        place = _place(id)
        return next(name for name, end in self._ends if place < end)

    def _nearest(self) -> dict[str, str]:
        """Of each share that no item fell into the item beside it, unless that is all its own split has."""
        moved = dict[str, str]()
        for (name, end), (_, first) in zip(self._ends, [("", 0), *self._ends], strict=False):
            left = self.captions.keys() - moved.keys() if not self._items[name] else ()
            if free := [id for id in left if self._items[self._by_hash(id)] > 1]:
                chosen = min(free, key=lambda id: (max(first - _place(id), _place(id) - end), id))
                self._items[self._by_hash(chosen)] -= 1
                self._items[name], moved[chosen] = 1, name
        return moved


def _ends(description: Description) -> Iterator[tuple[str, int]]:
    """Each split with the number of 64 bits at which it ends."""
    end = Fraction(0)
    for name, share in description.splits:
        end += Fraction(share)
        yield split_name(name), math.ceil(end * 2**64)


def _place(id: str) -> int:
    return int(hashlib.sha256(id.encode()).hexdigest()[:16], 16)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _as_url(data: bytes) -> str:
    """A file that is its own address."""
    return f"data:application/json,{quote(data)}"


# ---------------------------------------------------------------------------------------------------- one row


def entry_of(row: Mapping[str, Any], where: str, split: str | None, embedded: "Embedded") -> Entry | str:
    """Or the rule by which the row is left out. Cells go by their use; `split` is that of rows without such a cell."""
    row = {use: None if cell != cell else cell for use, cell in row.items()}  # NaN is not itself
    medium = _medium(row["url"], where, embedded)
    if isinstance(medium, str):
        return medium
    id, odd_id = _id(row, medium, where)
    texts, odd_texts = _captions(row["caption"], where)
    return Entry(where, id, medium, texts, _split(row["split"], where) if "split" in row else split, odd_id + odd_texts)


def split_name(text: str) -> str:
    """`train`, `TRAIN` → `own/train`, `validation` → `own/val`, `karpathy/train` as it is; ValueError: no name."""
    lower = text.lower()
    usual = "val" if lower in VALIDATION else lower if lower in ("train", "test") else text
    name = text if "/" in text else f"own/{usual}"
    if not re.fullmatch(r"[\w.-]{1,100}/[\w.-]{1,100}", name):
        raise ValueError(f"a split is named by letters, digits and ._-, not {text!r:.60}")
    return name


class Embedded:
    """Gives every picture its place: so many to an archive, in the order in which they first come; once for each."""

    def __init__(self, folder: str) -> None:
        self._folder, self._first = folder, dict[bytes, Medium]()
        self._archive, self._members, self._bytes = 0, 0, 0

    def medium(self, content: bytes, name: str) -> Medium:
        digest = hashlib.sha256(content).digest()
        if digest not in self._first:
            if self._members == MEMBERS or self._bytes + len(content) > ARCHIVE_BYTES:
                self._archive, self._members, self._bytes = self._archive + 1, 0, 0
            self._members, self._bytes = self._members + 1, self._bytes + len(content)
            place = f"{self._folder}/{self._archive:05d}.zip!{digest.hex()[:40]}{_suffix(name)}"
            self._first[digest] = Medium(place, _kind(name))
        return replace(self._first[digest], content=content)


def _medium(cell: Any, where: str, embedded: Embedded) -> Medium | str:
    """Or the rule by which its row is left out."""
    both = cell if isinstance(cell, dict) and {"bytes", "path"} & cell.keys() else {"path": cell}
    content, name = both.get("bytes"), both.get("path")
    if isinstance(name, bytes):
        content, name = name, None
    if not isinstance(content, bytes | None) or not isinstance(name, str | None):
        raise UserError(f"{where} is {cell!r:.40}, neither text nor a picture")
    name = (name or "").strip()
    if content:
        return embedded.medium(content, name)
    if not name:
        return NO_MEDIUM
    if re.match(r"/|~|[A-Za-z]:[/\\]|file:", name, re.IGNORECASE):
        return ABSOLUTE
    return _fetched(name) if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|data:", name) else _beside(name)


def _fetched(url: str) -> Medium | str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return NOT_FETCHED
    if parts.scheme.lower() not in ("http", "https") or not url.isprintable() or len(url) > LONGEST_URL:
        return NOT_FETCHED
    digest = hashlib.sha256(url.encode()).hexdigest()
    return Medium(f"urls/{digest[:2]}/{digest[:40]}{_suffix(parts.path)}", _kind(parts.path), url=url)


def _beside(text: str) -> Medium | str:
    path = posixpath.normpath(text)
    steps = path.split("/")
    if "\\" in path:
        return BACKSLASH
    if steps[0] in ("..", ".") or not path.isprintable() or len(path) > LONGEST_PATH:
        return LEAVES
    return LEAVES if any(len(step.encode()) > LONGEST_STEP for step in steps) else Medium(path, _kind(path))


def _id(row: Mapping[str, Any], medium: Medium, where: str) -> tuple[str, tuple[str, ...]]:
    if "id" not in row:
        return _id_of(medium)
    cell = row["id"]
    if not isinstance(cell, str | int) or isinstance(cell, bool) or not str(cell).strip():
        raise UserError(f"{where}: the id is {cell!r:.40}, neither text nor a whole number")
    return _plain(str(cell).strip())


def _id_of(medium: Medium) -> tuple[str, tuple[str, ...]]:
    if medium.content is not None:
        return hashlib.sha256(medium.content).hexdigest()[:20], ()
    return (hashlib.sha256(medium.url.encode()).hexdigest()[:20], ()) if medium.url else _plain(medium.path)


def _plain(id: str) -> tuple[str, tuple[str, ...]]:
    """The id itself where every later stage and file can hold it."""
    if id.isprintable() and len(id.encode()) <= LONGEST_ID:
        return id, ()
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:20], (ODD_ID,)


def _captions(cell: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts with single spaces, and the rules by which others were left out; null and [] are an empty caption."""
    texts, odd = [], []
    for text in (cell or [None]) if isinstance(cell, list) else [cell]:
        text = None if text != text else text
        if text is not None and not isinstance(text, str):
            raise UserError(f"{where}: a caption is {text!r:.40}, no text")
        words = " ".join((text or "").split())
        if not words:
            odd.append(NO_CAPTION)
        elif re.search("[\ud800-\udfff]", words):
            odd.append(NOT_TEXT)
        else:
            texts.append(words)
    return tuple(texts), tuple(odd)


def _split(cell: Any, where: str) -> str | None:
    """None of an empty cell: its item is in no split."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return None
    try:
        return split_name(str(cell).strip())
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _suffix(name: str) -> str:
    """Short and plain, or none: it only helps people who look into the media."""
    found = re.search(r"\.[A-Za-z0-9]{1,5}$", name)
    return found[0].lower() if found else ""


def _kind(name: str) -> Kind:
    return "clip" if _suffix(name) in CLIPS else "image"
