"""MS-COCO captions 2014 in Karpathy's split: 123,287 pictures, five to seven captions each, 80 categories of things.

caption_datasets.zip!dataset_coco.json (409 MB) has the captions and the split:

    {"images": [{"filepath": "val2014", "sentids": [702, 715, ...], "filename": "COCO_val2014_000000123456.jpg",
                 "imgid": 0, "split": "test", "cocoid": 123456,
                 "sentences": [{"tokens": ["a", "bench", ...], "raw": "A bench under a tree. ",
                                "imgid": 0, "sentid": 702}, ...]}, ...], "dataset": "coco"}

annotations/annotations_trainval2014.zip!annotations/instances_{train,val}2014.json has what is shown:

    {"info": {...}, "images": [{"id": 123456, "file_name": "COCO_val2014_000000123456.jpg", "width": 640, "height": 480,
                                "license": 3, "flickr_url": "http://...", "coco_url": "http://..."}, ...],
     "licenses": [{"id": 3, "url": "http://creativecommons.org/licenses/by-nc-nd/2.0/", "name": "..."}, ...],
     "annotations": [{"id": 8, "image_id": 123456, "category_id": 15, "bbox": [...], ...}, ...],
     "categories": [{"id": 15, "name": "bench", "supercategory": "outdoor"}, ...]}

The traps:
- Papers train on train and restval together, so restval is in karpathy/train, and in karpathy/restval to be told apart.
- Captions end in spaces, start with them and contain newlines: any run of white space becomes one space here.
- Some pictures have six or seven captions. Papers take the first five, which is `position < 5` in the order of
  `sentences`; order by id is another. Whoever takes all gets 25,010 for the test, not 25,000.
- Category ids run from 1 to 90 with gaps, so names stand for them; some pictures show none.
- A picture's licence is its uploader's, given as the licence's address. Its url is that of COCO's copy, or of Flickr's.
- Stanford's server is often offline: caption_datasets.zip from anywhere will do where its sha256 is right.

Both files are read piece by piece, never whole. What stays in memory is 1.6 kB a picture, 190 MiB for all.
"""

import io
import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from xmodal.archives import open_archive
from xmodal.corpora import Corpus, Raw, Source
from xmodal.records import Caption, Item, Label, Row, Split
from xmodal.trouble import Trouble

CAPTIONS, CAPTIONS_MEMBER = "caption_datasets.zip", "dataset_coco.json"
INSTANCES, INSTANCES_MEMBER = "annotations/annotations_trainval2014.zip", "annotations/instances_{}.json"
FOLDERS = ("train2014", "val2014")
SPLITS = {
    "train": ("karpathy/train",),
    "restval": ("karpathy/train", "karpathy/restval"),
    "val": ("karpathy/val",),
    "test": ("karpathy/test",),
}
PIECE, LONGEST = 1 << 20, 1 << 25  # characters: read at once, and of the longest value before a file is called broken
T = TypeVar("T")


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of the captions file, each followed by its splits, labels and captions."""
    shown = {folder: _shown(raw, INSTANCES_MEMBER.format(folder)) for folder in FOLDERS}
    images, sentences = set[int](), set[int]()
    where = f"{CAPTIONS}!{CAPTIONS_MEMBER}"
    for name, number, image in _members(raw, CAPTIONS, CAPTIONS_MEMBER):
        if name == "images":
            yield from _picture(image, f"{where}: images[{number}]", shown, images, sentences)
    if not images:
        raise Trouble(f"{where} has no 'images'")


def _picture(
    image: object, where: str, shown: Mapping[str, "_Shown"], images: set[int], sentences: set[int]
) -> Iterator[Row]:
    cocoid, folder = _value(image, "cocoid", int, where), _value(image, "filepath", str, where)
    where = f"{where} (cocoid {cocoid})"
    split, filename = _value(image, "split", str, where), _value(image, "filename", str, where)
    if split not in SPLITS:
        raise Trouble(f"{where} is in an unknown split {split!r}; there are: {', '.join(SPLITS)}")
    if folder not in shown or filename != f"COCO_{folder}_{cocoid:012d}.jpg":
        raise Trouble(f"{where} is {folder}/{filename}, which is no picture of {' or '.join(FOLDERS)} with this id")
    images.add(_once(images, cocoid, where))
    yield shown[folder].item(cocoid, f"zips/{folder}.zip!{folder}/{filename}", where)
    yield from (Split(str(cocoid), name) for name in SPLITS[split])
    yield from shown[folder].labels(cocoid)
    yield from _captions(image, cocoid, where, sentences)


def _captions(image: object, cocoid: int, where: str, seen: set[int]) -> Iterator[Caption]:
    imgid, sentences = _value(image, "imgid", int, where), _value(image, "sentences", list, where)
    if not sentences:
        raise Trouble(f"{where} has no captions")
    for position, sentence in enumerate(sentences):
        here = f"{where}: sentences[{position}]"
        sentid, text = _value(sentence, "sentid", int, here), " ".join(_value(sentence, "raw", str, here).split())
        if _value(sentence, "imgid", int, here) != imgid:
            raise Trouble(f"{here}: caption {sentid} is of another image, imgid {sentence['imgid']} instead of {imgid}")
        if not text:
            raise Trouble(f"{here}: caption {sentid} is empty")
        seen.add(_once(seen, sentid, here))
        yield Caption(str(sentid), str(cocoid), position, text)


@dataclass(frozen=True)
class _Shown:
    """One instances file, without its outlines."""

    where: str
    images: dict[int, tuple[int, int, int | None, str | None]] = field(default_factory=dict)
    licences: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    things: dict[int, set[int]] = field(default_factory=dict)

    def item(self, cocoid: int, media: str, where: str) -> Item:
        if cocoid not in self.images:
            raise Trouble(f"{where} has captions, but {self.where} has no image {cocoid}")
        width, height, licence, url = self.images[cocoid]
        name = None if licence is None else self._named("licenses", self.licences, licence)
        return Item(str(cocoid), media, width=width, height=height, licence=name, url=url)

    def labels(self, cocoid: int) -> Iterator[Label]:
        for category in sorted(self.things.get(cocoid, ())):
            yield Label(str(cocoid), "category", self._named("categories", self.categories, category))

    def _named(self, table: str, names: Mapping[int, str], key: int) -> str:
        if key not in names:
            raise Trouble(f"{self.where}: {table} has no id {key}, which an image or annotation refers to")
        return names[key]

    def add(self, table: str, record: object, where: str) -> None:
        match table:
            case "images":
                cocoid = _once(self.images, _value(record, "id", int, where), where)
                self.images[cocoid] = _image(record, where)
            case "licenses":
                self.licences[_value(record, "id", int, where)] = _value(record, "url", str, where)
            case "categories":
                self.categories[_value(record, "id", int, where)] = _value(record, "name", str, where)
            case "annotations":
                things = self.things.setdefault(_value(record, "image_id", int, where), set())
                things.add(_value(record, "category_id", int, where))


def _shown(raw: Raw, member: str) -> _Shown:
    shown = _Shown(f"{INSTANCES}!{member}")
    for table, number, record in _members(raw, INSTANCES, member):
        shown.add(table, record, f"{shown.where}: {table}[{number}]")
    strays = sorted(shown.things.keys() - shown.images.keys())
    if strays:
        raise Trouble(f"{shown.where} has annotations of image {strays[0]}, which is not among its images")
    return shown


def _image(record: object, where: str) -> tuple[int, int, int | None, str | None]:
    width, height = _value(record, "width", int, where), _value(record, "height", int, where)
    licence = _value(record, "license", int, where) if _has(record, "license") else None
    urls = [_value(record, name, str, where) for name in ("coco_url", "flickr_url") if _has(record, name)]
    return width, height, licence, urls[0] if urls else None


def _has(record: object, name: str) -> bool:
    return isinstance(record, dict) and record.get(name) not in (None, "")


def _value(record: object, name: str, kind: type[T], where: str) -> T:
    if not isinstance(record, dict) or name not in record:
        raise Trouble(f"{where} has no {name!r}")
    value = record[name]
    if not isinstance(value, kind):
        raise Trouble(f"{where}: {name!r} is {value!r:.40}, no {kind.__name__}")
    return value


def _once(seen: Container[int], identity: int, where: str) -> int:
    if identity in seen:
        raise Trouble(f"{where}: id {identity} is there a second time")
    return identity


def _members(raw: Raw, path: str, member: str) -> Iterator[tuple[str, int, Any]]:
    """Key, number and value of each element of the arrays in a zipped JSON object, one at a time."""
    with open_archive(raw, path) as archive:
        if member not in archive.namelist():
            raise Trouble(f"{path} has no member {member}")
        with io.TextIOWrapper(archive.open(member), "utf-8-sig") as text:
            yield from _Text(text, f"{path}!{member}").members()


class _Text:
    """JSON values one after the other from a text that is too long to hold."""

    def __init__(self, file: IO[str], where: str) -> None:
        self._file, self._where = file, where
        self._text, self._at, self._dropped = "", 0, 0

    def members(self) -> Iterator[tuple[str, int, Any]]:
        self._take("{")
        while self._next() != "}":
            key = self._read()
            self._take(":")
            if self._next() == "[":
                yield from ((key, number, value) for number, value in enumerate(self._elements()))
            else:
                self._read()
            if self._next() != "}":
                self._take(",")

    def _elements(self) -> Iterator[Any]:
        self._take("[")
        while self._next() != "]":
            yield self._read()
            if self._next() != "]":
                self._take(",")
        self._take("]")

    def _read(self) -> Any:
        self._next()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error.msg, error.pos) from error
            else:
                if end < len(self._text) or not self._more():  # a number may go on beyond what was read
                    self._at = end
                    return value

    def _next(self) -> str:
        """The next character that is not white space."""
        while True:
            for at in range(self._at, len(self._text)):
                if not self._text[at].isspace():
                    self._at = at
                    return self._text[at]
            self._at = len(self._text)
            if not self._more():
                raise self._broken("it ends too early", self._at)

    def _take(self, expected: str) -> None:
        if self._next() != expected:
            raise self._broken(f"{expected!r} expected, not {self._text[self._at]!r}", self._at)
        self._at += 1

    def _more(self) -> bool:
        piece = self._file.read(PIECE) if len(self._text) - self._at < LONGEST else ""
        if piece:
            self._dropped += self._at
            self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)

    def _broken(self, why: str, at: int) -> Trouble:
        return Trouble(f"{self._where} is not the JSON it should be, at character {self._dropped + at}: {why}")


CORPUS = Corpus(
    name="coco",
    homepage="https://cocodataset.org",
    licence="annotations CC BY 4.0; each picture under its uploader's Flickr licence, which its item names",
    media_set="coco2014",
    sources=(
        Source(
            "zips/train2014.zip",
            "http://images.cocodataset.org/zips/train2014.zip",
            bytes=13_510_573_713,
            sha256="ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775",
            part="media",
        ),
        Source(
            "zips/val2014.zip",
            "http://images.cocodataset.org/zips/val2014.zip",
            bytes=6_645_013_297,
            sha256="fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0",
            part="media",
        ),
        Source(
            INSTANCES,
            "http://images.cocodataset.org/annotations/annotations_trainval2014.zip",
            bytes=252_872_794,
            sha256="031296bbc80c45a1d1f76bf9a90ead27e94e99ec629208449507a4917a3bf009",
        ),
        Source(
            CAPTIONS,
            "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip",
            bytes=36_745_453,
            sha256="4cfd70132527b80933105e5829dc9034eaab9573482e2e680abbab6130244817",
        ),
    ),
    parse=parse,
    release={"annotations": "all", "media": "features"},
    counts={
        "items": 123_287,
        "items:karpathy/train": 113_287,
        "items:karpathy/restval": 30_504,
        "items:karpathy/val": 5_000,
        "items:karpathy/test": 5_000,
        "captions": 616_767,
        "captions:karpathy/val": 25_010,
        "captions:karpathy/test": 25_010,
        "captions[:5]:karpathy/train": 566_435,
    },
)
