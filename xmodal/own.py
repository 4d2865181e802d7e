"""Your own data as a corpus: lists of pictures or clips with captions, and what is said of their columns.

A list is Parquet, CSV, TSV, JSONL or an Arrow stream (xmodal/lists.py). A row has a picture or clip and its captions:

    url                            caption                     what the cell of `--url` may be
    https://x.org/cat.jpg          a cat on a mat              an address: fetched
    pictures/dog.png               ["a dog", "it barks"]       a path beside the list: taken from there
    {"bytes": …, "path": "a.jpg"}  a bird                      the picture itself (the `Image` of Hugging Face)

`Description` is all that decides how the lists are read. It is one of the corpus' own sources, DESCRIPTION, and is
sealed with the lists: so the identity of all that follows changes with their bytes and with the columns, and a root
knows the corpus by its name alone.

Ids. A column, or else: of an address or of bytes the first 20 hexadecimal digits of their sha256, of a path the path.
None depends on the order of the rows. Rows with one id are one item with several captions; a caption's id is its
item's, # and 16 digits of the sha256 of its text.

Splits are named own/NAME, or as they are where the name has a slash; validation, valid and dev are val. They come from
a column, or from the names of the files, or from the id: the first 16 hexadecimal digits of its sha256 as a fraction of
16^16, which the shares divide in the order in which they are given.

Rules, each counted as an oddity: a row without picture or with an address that is neither http nor https, a path that
leaves the folder, a caption that is empty, not Unicode or there twice, an id that is long or does not print, an item
that has another picture the second time, a split that no item is in; an item that no column or file puts in a split: it
is kept without one; a picture that files of several splits have: it is kept in each. What stops with file and line: a
missing column, a cell of another kind, an item that a column puts in two splits or whose id is another picture's in a
file of another split, a row that cannot be read; and a list without a single picture.

A picture beside the list is taken once and linked where the disk allows: one that is to change gets another name.

Rows are streamed. What grows with a list is the id of each item, a digest of each caption and of each embedded picture.
"""

import hashlib
import json
import math
import zipfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from xmodal.archives import archive_of
from xmodal.corpora import Corpus, Raw, Source
from xmodal.identity import canonical_json, fingerprint
from xmodal.listed import AGAIN, OTHER_MEDIUM, Embedded, Entry, Medium, entry_of, split_name
from xmodal.lists import rows
from xmodal.records import Caption, Item, Oddity, Row, Split
from xmodal.trouble import Trouble

DESCRIPTION = "xmodal-own.json"
FORMAT = 1  # of DESCRIPTION
VERSION = 2  # of what is parsed from the same bytes
SPLITS = (("train", "0.9"), ("val", "0.05"), ("test", "0.05"))
EMPTY_SPLIT = "a split without items"
NO_SPLIT = "in no split: kept without one"
SEVERAL_SPLITS = "in files of several splits: kept in each"
BESIDE = "it is not beside the list: name the list again, or give its folder with --raw"


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

    `revision` stands for the bytes of lists whose checksums are not known beforehand.
    """

    name: str
    files: tuple[ListFile, ...]
    url: str = "url"
    caption: str = "caption"
    id: str | None = None
    split: str | None = None
    splits: tuple[tuple[str, str], ...] = SPLITS
    revision: str | None = None

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
            raise Trouble(f"{DESCRIPTION} was written by another version of xmodal: name the list again")
        files = tuple(ListFile(**file) for file in facts.pop("files"))
        return cls(**facts | {"files": files, "splits": tuple((name, share) for name, share in facts["splits"])})


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
        unpack=partial(unpack, description),
        release={"annotations": "all", "media": "features"},
        version=VERSION,
        card="own",
        whole_paths=True,
    )


def parse(description: Description, raw: Raw) -> Iterator[Row]:
    parser = _Parser(description)
    for entry in entries(description, raw):
        yield from [entry] if isinstance(entry, Oddity) else parser.rows(entry)
    if not parser.captions:
        raise Trouble(f"{description.files[0].path} lists no picture or clip that can be used")
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
            yield Oddity(entry, where) if isinstance(entry, str) else entry


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

    def of_splits(self) -> Iterator[Oddity]:
        """What is odd about splits when every row was seen."""
        yield from (Oddity(NO_SPLIT, where, id) for id, where in self._without.items())
        yield from (Oddity(EMPTY_SPLIT, name) for name, _ in self._ends if not self._items[name])

    def _new(self, entry: Entry) -> Iterator[Row]:
        self.captions[entry.id] = 0
        if self._description.id is not None:  # else the id is made from the medium
            self._media[entry.id] = _digest(entry.medium.path)
        if not self._ends:
            self._splits[entry.id] = entry.split
        yield Item(entry.id, entry.medium.path, entry.medium.kind, url=entry.medium.url)
        if split := entry.split or self._by_hash(entry.id):
            self._items[split] += 1
            yield Split(entry.id, split)
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
            raise Trouble(f"{entry.where}: item {entry.id!r} is in {entry.split}, but was in {first}")
        if entry.split is None or (entry.id, entry.split) in self._further:
            return
        if first is None:
            del self._without[entry.id]
            self._splits[entry.id] = entry.split
        else:
            self._further.add((entry.id, entry.split))
            yield Oddity(SEVERAL_SPLITS, entry.where, entry.id)
        yield Split(entry.id, entry.split)

    def _by_hash(self, id: str) -> str | None:
        place = int(hashlib.sha256(id.encode()).hexdigest()[:16], 16)
        return next((name for name, end in self._ends if place < end), None)


def _ends(description: Description) -> Iterator[tuple[str, int]]:
    """Each split with the number of 64 bits at which it ends."""
    end = Fraction(0)
    for name, share in description.splits:
        end += Fraction(share)
        yield split_name(name), math.ceil(end * 2**64)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _as_url(data: bytes) -> str:
    """A file that is its own address."""
    return f"data:application/json,{quote(data)}"
