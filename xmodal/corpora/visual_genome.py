"""Visual Genome: 108,077 pictures with objects and attributes, in the words and splits of the bottom-up detector.

image_data.json.zip!image_data.json, objects.json.zip!objects.json and attributes.json.zip!attributes.json are arrays:

    [{"image_id": 1, "width": 800, "height": 600, "url": "https://.../VG_100K_2/1.jpg", "coco_id": null, ...}, ...]
    [{"image_id": 1, "objects": [{"object_id": 1058549, "names": ["trees"], "synsets": ["tree.n.01"],
                                  "x": 0, "y": 0, "w": 799, "h": 557, "merged_object_ids": []}, ...], ...}, ...]
    [{"image_id": 1, "attributes": [{"object_id": 1058508, "names": ["sidewalk"], "attributes": ["brick"],
                                     "x": 78, "y": 308, "w": 722, "h": 290, ...}, ...]}, ...]

genome/objects_vocab.txt has 1,600 lines, genome/attributes_vocab.txt 400: a class a line, its other names after commas.

    refrigerator,fridge

genome/train.txt, val.txt and test.txt have 98,077, 5,000 and 5,000 lines: a picture, and a file that is not published:

    VG_100K_2/2415417.jpg xml/2415417.xml

A Region is an object whose first name is in the vocabulary. Its name and attributes become the first of their lines.

The traps (more: docs/corpora.md#visual-genome):
- Names are compared without capitals, final point and extra spaces. As the detector's makers do, "white dog" is a dog
  that is white (for nineteen frequent adjectives); "red and blue" is two attributes, but "black and white" is one.
- Objects outside the vocabulary are left out and counted, and so are unknown attributes of other objects.
- Boxes that reach beyond their picture are cut to it, boxes without area there are left out; both are counted.
- Some pictures are COCO's: never train on those that COCO is tested on. The three lists ensure it for Karpathy's split.
- There are no captions of whole pictures. The 5.4 million phrases of region_descriptions.json are not read.

Memory: 180 MiB.
"""

from collections.abc import Iterator, Mapping

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.json_values import JsonRecord, json_elements
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import lines, matched, once, split_files
from xmodal.records.tables import Item, Oddity, Region, Row, Split

OBJECT_WORDS, ATTRIBUTE_WORDS = "genome/objects_vocab.txt", "genome/attributes_vocab.txt"
SPLITS, SPLIT_LIST = ("train", "val", "test"), "genome/{}.txt"
ARCHIVES = {"VG_100K": "images.zip", "VG_100K_2": "images2.zip"}  # where each folder of pictures lies
ADJECTIVES = {
    "white", "black", "blue", "green", "red", "brown", "yellow", "small", "large", "silver", "wooden", "orange", "gray",
    "grey", "metal", "pink", "tall", "long", "dark",
}  # fmt: skip
BOTH = "black and white"
CUT, NO_AREA = "box beyond its picture: cut", "box without area: left out"
NO_OBJECT, NO_ATTRIBUTE = "object outside the vocabulary: left out", "attribute outside the vocabulary: left out"

Words = Mapping[str, str]  # the first name of its line, by every name in a vocabulary
Pictures = Mapping[int, tuple[str, str]]  # split and path of each picture
Size = tuple[int, int]  # width and height


NAME = r"\w[\w '&./-]*"  # of an output of a detector


def vocabulary(raw: Raw, path: str) -> list[tuple[str, ...]]:
    """Names of each output of a detector, the usual one first. Output 0, the background, has none."""
    outputs: list[tuple[str, ...]] = [()]
    seen = set[str]()
    for where, line in lines(raw, path):
        names = tuple(" ".join(name.split()) for name in line.split(","))
        for name in names:
            if matched(NAME, name, where, "name")[0] in seen:
                raise UserError(f"{where}: the name {name!r} is there a second time: give each line its own names")
            seen.add(name)
        outputs.append(names)
    if len(outputs) == 1:
        raise UserError(f"{path} is empty")
    return outputs


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of image_data.json with their splits, then all regions, in the order of objects.json."""
    pictures, sizes = _pictures(raw), dict[int, Size]()
    for record in _array(raw, "image_data"):
        yield from _picture(record, pictures, sizes)
    if missing := sorted(pictures.keys() - sizes.keys()):
        raise UserError(f"image_data.json has no picture {missing[0]}, which is in a split's list")
    things, attributes = _words(raw, OBJECT_WORDS), _words(raw, ATTRIBUTE_WORDS)
    said = _attributes(raw, sizes)
    seen = set[int]()
    for record in _array(raw, "objects"):
        image = once(seen, _known(record, sizes), record.where)
        yield from _regions(record, image, sizes[image], things, attributes, said)


def _array(raw: Raw, name: str) -> Iterator[JsonRecord]:
    return json_elements(raw, f"{name}.json.zip!{name}.json")


def _words(raw: Raw, path: str) -> Words:
    return {name: names[0] for names in vocabulary(raw, path) for name in names}


def _pictures(raw: Raw) -> Pictures:
    found: dict[int, tuple[str, str]] = {}
    for path, (split, where) in split_files(raw, {SPLIT_LIST.format(split): split for split in SPLITS}, _path).items():
        number = path.rpartition("/")[2].removesuffix(".jpg")
        found[once(found, int(number), where)] = split, path
    return found


def _path(line: str, where: str) -> str:
    pattern = rf"((?:{'|'.join(ARCHIVES)})/[1-9][0-9]*\.jpg) \S+"
    return matched(pattern, line, where, f"picture of {' or '.join(ARCHIVES)} with a second file")[1]


def _picture(record: JsonRecord, pictures: Pictures, sizes: dict[int, Size]) -> Iterator[Item | Split]:
    image = once(sizes, record.value("image_id", int), record.where)
    width, height = sizes[image] = record.value("width", int), record.value("height", int)
    if image not in pictures:
        raise UserError(f"{record.where}: picture {image} is in none of {', '.join(map(SPLIT_LIST.format, SPLITS))}")
    if min(width, height) < 1:
        raise UserError(f"{record.where}: picture {image} has {width} x {height} pixels")
    split, path = pictures[image]
    media = f"{ARCHIVES[path.partition('/')[0]]}!{path}"
    yield Item(str(image), media, width=width, height=height, url=record.optional("url", str))
    yield Split(str(image), f"bottom_up/{split}")


def _known(record: JsonRecord, sizes: Mapping[int, object]) -> int:
    image = record.value("image_id", int)
    if image not in sizes:
        raise UserError(f"{record.where} is of picture {image}, which image_data.json does not have")
    return image


def _attributes(raw: Raw, sizes: Mapping[int, object]) -> Mapping[int, tuple[str, ...]]:
    """The cleaned attributes of each object, by its id."""
    found, equal = dict[int, tuple[str, ...]](), dict[tuple[str, ...], tuple[str, ...]]()
    for record in _array(raw, "attributes"):
        _known(record, sizes)
        for thing in record.each("attributes"):
            said = thing.texts("attributes") if thing.optional("attributes", list) else ()
            if parts := tuple(part for text in said for part in _parts(_clean(text))):
                id = thing.value("object_id", int)
                parts = found.get(id, ()) + parts
                found[id] = equal.setdefault(parts, parts)  # one tuple for all that are equal
    return found


def _parts(text: str) -> list[str]:
    return [text] if text == BOTH else [part for part in map(str.strip, text.split(" and ")) if part]


def _clean(text: str) -> str:
    return " ".join(text.lower().split()).removesuffix(".").rstrip()


def _regions(
    record: JsonRecord,
    image: int,
    size: Size,
    things: Words,
    attributes: Words,
    attributes_of: Mapping[int, tuple[str, ...]],
) -> Iterator[Region | Oddity]:
    seen, item = set[int](), str(image)
    for thing in record.each("objects"):
        where = thing.where
        name, adjectives = _name(thing)
        id = once(seen, thing.value("object_id", int), where)
        x, y, width, height = (float(thing.value(side, int)) for side in "xywh")
        if name not in things:
            yield Oddity(NO_OBJECT, where, item)
            continue
        box = x, y, x + width, y + height
        left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(box[2], float(size[0])), min(box[3], float(size[1]))
        if right <= left or bottom <= top:
            yield Oddity(NO_AREA, where, item)
            continue
        if (left, top, right, bottom) != box:
            yield Oddity(CUT, where, item)
        said = [*adjectives, *attributes_of.get(id, ())]
        yield from (Oddity(NO_ATTRIBUTE, where, item) for each in said if each not in attributes)
        known = tuple(dict.fromkeys(attributes[each] for each in said if each in attributes))
        yield Region(f"{image}/{id}", item, str(id), left, top, right, bottom, (things[name],), known)


def _name(thing: JsonRecord) -> tuple[str, list[str]]:
    """The noun and the adjectives of an object's first name."""
    name = next(thing.texts("names"), None)
    if name is None:
        raise UserError(f"{thing.where} has no name")
    *before, last = _clean(name).split() or [""]
    if ADJECTIVES.issuperset(before):
        return last, before
    return " ".join([*before, last]), []


PUBLISHER = "https://homes.cs.washington.edu/~ranjay/visualgenome/data/dataset"
STANFORD = "https://cs.stanford.edu/people/rak248/VG_100K_2"
PICTURES = (
    ("images.zip", 9_731_705_982, "51c682d2721f880150720bb416e0346a4c787e4c55d7f80dfd1bd3f73ba81646"),
    ("images2.zip", 5_471_658_058, "99da1a0ddf87011319ff3b05cf9176ffee2731cc3c52951162d9ef0d68e3cfb5"),
)
DETECTOR = (
    "https://raw.githubusercontent.com/peteanderson80/bottom-up-attention"
    "/1ba7086f29cc0949235fa150095c6424b715afe9/data/genome"
)

CORPUS = Corpus(
    name="visual_genome",
    homepage="https://homes.cs.washington.edu/~ranjay/visualgenome/",
    licence="annotations CC BY 4.0; the pictures were uploaded to Flickr, by people who gave each its own licence",
    media_set="visual_genome",
    sources=(
        *(Source(path, f"{STANFORD}/{path}", (), size, sha256, part="media") for path, size, sha256 in PICTURES),
        *(
            Source(path, f"{PUBLISHER}/{path}")
            for path in ("image_data.json.zip", "objects.json.zip", "attributes.json.zip")
        ),
        Source(OBJECT_WORDS, f"{DETECTOR}/1600-400-20/objects_vocab.txt"),
        Source(ATTRIBUTE_WORDS, f"{DETECTOR}/1600-400-20/attributes_vocab.txt"),
        *(Source(SPLIT_LIST.format(split), f"{DETECTOR}/{split}.txt") for split in SPLITS),
    ),
    parse=parse,
    release={"annotations": "all", "media": "features"},
    counts={
        "items": 108_077,
        "items:bottom_up/train": 98_077,
        "items:bottom_up/val": 5_000,
        "items:bottom_up/test": 5_000,
    },
    kinds=frozenset({"image"}),
)
