"""User data as a corpus: lists of pictures or clips with captions.

A list is Parquet, CSV, TSV, JSONL, JSON or an Arrow stream (xmodal/raw/readers.py):

    url               caption
    pictures/cat.jpg  a cat on a mat
    pictures/dog.png  ["a dog", "it barks"]

- Rows with one id are one item with several captions. No id depends on the order of the rows.
- A column says the split of an item, or its file, or the hash of its id.
- An item that a column puts in two splits is an error, as is an id of two pictures in files of different splits.
- A picture beside the list is taken again where its bytes have changed; one that is gone is kept.
- An item has the labels of all its rows: a list, or a text with ; between them. They are its categories.

Rows are streamed; ids and digests stay in memory.
"""

import hashlib
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.archives import archive_of
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Oddity, Row, Split
from xmodal.userdata.description import DESCRIPTION, Description
from xmodal.userdata.embedded_pictures import FOLDER
from xmodal.userdata.entries import ABSOLUTE, OUTSIDE, Entry, Medium, entries
from xmodal.userdata.hash_splits import hash_splits

VERSION = 5  # of the rows that are parsed from the same bytes

AGAIN = "the same caption of the same item again: left out"
OTHER_MEDIUM = "another picture or clip of an id that is taken: the row is left out"
NO_SPLIT = "in no split: kept without one"
SEVERAL_SPLITS = "in files of several splits: kept in each"
ELSEWHERE = "copy or link files below the list's folder (--follow-links), or name FOLDER --captions LIST that holds all"
BESIDE = "it is not beside the list"


def user_corpus(description: Description, addresses: Mapping[str, str] = {}) -> Corpus:
    """`addresses` has the URLs of lists on other machines."""
    text = description.to_json()
    how = f"name the list again, as when {description.name} was first built"
    sources = [Source(f.path, addresses.get(f.path), (), f.bytes, f.sha256, how) for f in description.files]
    url = f"data:application/json,{quote(text)}"  # the file is its own address
    itself = Source(DESCRIPTION, url, (), len(text), hashlib.sha256(text).hexdigest())
    return Corpus(
        name=description.name,
        homepage="none",
        licence="not stated: these are their owner's own data",
        media_set=description.name,
        sources=(itself, *sources),
        parse=partial(parse, description),
        media=partial(media, description),
        kinds=frozenset({"image", "clip"} | ({"category"} if description.labels else set())),  # the list tells which
        unpack=partial(unpack, description),
        release={"annotations": "all", "media": "features"},
        version=VERSION,
        card="own",
        whole_paths=True,
    )


def parse(description: Description, raw: Raw) -> Iterator[Row]:
    parser, left_out = _Parser(description), Counter[str]()
    for entry in entries(description, raw):
        if isinstance(entry, Oddity):
            left_out[entry.rule] += 1
            yield entry
        else:
            yield from parser.rows(entry)
    if not parser.captions:
        why = "".join(f"; {count:,} of {rule}" for rule, count in left_out.most_common())
        why += f"; {ELSEWHERE}" if left_out[ABSOLUTE] + left_out[OUTSIDE] else ""
        raise UserError(f"{description.files[0].path} lists no picture or clip that can be used{why}")
    yield from parser.split_rows()


def media(description: Description, raw: Raw) -> Iterator[Source]:
    """Lists every picture or clip once, and embedded pictures by their archives."""
    archives = set[str]()
    for medium in _each_once(description, raw):
        path = medium.path if medium.content is None else archive_of(medium.path)
        if path not in archives:
            yield Source(path, medium.url, how=BESIDE, part="media")
        if medium.content is not None:
            archives.add(path)


def unpack(description: Description, raw: Raw, wanted: Collection[str], folder: Path) -> Iterator[Source]:
    if not any(path.startswith(f"{FOLDER}/") for path in wanted):
        return
    embedded = (medium for medium in _each_once(description, raw) if medium.content)
    for path, some in groupby(embedded, key=lambda medium: archive_of(medium.path)):
        if path in wanted:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(folder / path, "w") as archive:
                for medium in some:
                    member = zipfile.ZipInfo(medium.path.partition("!")[2])  # dated 1980: equal pictures, equal bytes
                    archive.writestr(member, medium.content or b"")
            yield Source(path, how=BESIDE, part="media")


def _each_once(description: Description, raw: Raw) -> Iterator[Medium]:
    seen = set[bytes]()
    for entry in entries(description, raw):
        if isinstance(entry, Entry) and (key := _digest(entry.medium.path)) not in seen:
            seen.add(key)
            yield entry.medium


class _Parser:
    def __init__(self, description: Description) -> None:
        self.captions = dict[str, int]()  # number of captions, by item
        self._description = description
        self._times = dict[bytes, int]()  # of each caption of an item, and each of its labels
        self._media = dict[str, bytes]()
        self._splits = dict[str, str | None]()  # an item's first
        self._further = set[tuple[str, str]]()  # an item and each of its further splits
        self._without = dict[str, str]()  # the places of items in no split

    def rows(self, entry: Entry) -> Iterator[Row]:
        yield from (Oddity(rule, entry.where, entry.id) for rule in entry.oddities)
        if entry.id not in self.captions:
            self.captions[entry.id] = 0
            if self._description.id is not None:  # without a column the id is made from the medium
                self._media[entry.id] = _digest(entry.medium.path)
            yield Item(entry.id, entry.medium.path, entry.medium.kind, url=entry.medium.url)
        is_other = self._media.get(entry.id) not in (None, _digest(entry.medium.path))
        if not self._description.splits:
            yield from self._split(entry, self._description.split is not None or is_other)
        if is_other:  # its captions are not of the picture that counts
            yield Oddity(OTHER_MEDIUM, entry.where, entry.id)
            return
        yield from (
            Label(entry.id, "category", name) for name in entry.labels if not self._again(f"{entry.id}\n{name}")
        )
        for text in entry.captions:
            id = f"{entry.id}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            if again := self._again(id):
                if not self._description.keeps_repeats:
                    yield Oddity(AGAIN, entry.where, entry.id)
                    continue
                id += f"#{again + 1}"
            yield Caption(id, entry.id, self.captions[entry.id], text)
            self.captions[entry.id] += 1

    def _again(self, text: str) -> int:
        """How often the text was asked for before."""
        key = _digest(text)
        before = self._times.get(key, 0)
        self._times[key] = before + 1
        return before

    def split_rows(self) -> Iterator[Row]:
        if self._description.splits:
            yield from hash_splits(self._description.splits, self.captions)
        yield from (Oddity(NO_SPLIT, where, id) for id, where in self._without.items())

    def _split(self, entry: Entry, is_only: bool) -> Iterator[Row]:
        """Puts an item into its first split, or a further one if files of both list the same picture."""
        if entry.id not in self._splits:
            self._splits[entry.id] = entry.split
            if entry.split is None:
                self._without[entry.id] = entry.where
            else:
                yield Split(entry.id, entry.split)
            return
        first = self._splits[entry.id]
        if entry.split == first:
            return
        if is_only:
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


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
