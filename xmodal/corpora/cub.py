"""CUB Captions: 11,788 pictures of 200 kinds of birds (CUB-200-2011), ten captions each, and splits by kind.

CUB_200_2011.tgz has the pictures and, below CUB_200_2011/, tables by the number of a picture or class:

    images.txt              1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg
    classes.txt             1 001.Black_footed_Albatross
    image_class_labels.txt  1 1
    bounding_boxes.txt      1 60.0 27.0 325.0 304.0            left, top, width, height
    train_test_split.txt    1 0                                1 is Caltech's train, 0 its test

cvpr2016_cub.tar.gz has ten lines a picture in files cvpr2016_cub/text_c10/001.Black_footed_Albatross/…_0046_18.txt:

    a large bird has curly hair on its nape, and a long and sharp bill that is black.

xlsa17.zip has lists of classes, one a line: trainvalclasses (150), testclasses (50), and the folds of the 150 as
trainclasses1 to 3 (100) and valclasses1 to 3 (50). seen_test_images.txt names 1,764 pictures as images.txt does.

Splits besides Caltech's: xian/train, xian/test and the folds xian1/train to xian3/val by those lists; pcme/val is
seen_test_images.txt, pcme/train the rest of xian/train, pcme/test xian/test.

The traps (more: docs/corpora.md#cub):
- Folders and lists name some classes differently: the number before the point alone tells.
- Ten pictures of seen_test_images.txt are of test classes: left out and counted.
- Some captions are not UTF-8, or contain U+FFFD: it becomes a space, and is counted.
- The archives contain a Mac's `._name` files, and features beside the captions: neither is read.
- A .tgz cannot be entered in its middle: it is read once more for the pictures (`unpack`).
"""

import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.archives import tar_members
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import id_list, lines, lines_of, matched, once
from xmodal.records.tables import Caption, Item, Label, Oddity, Region, Row, Split

IMAGES, CAPTIONS, CLASS_LISTS, SEEN = "CUB_200_2011.tgz", "cvpr2016_cub.tar.gz", "xlsa17.zip", "seen_test_images.txt"
FOLDER, LIST_MEMBER = "CUB_200_2011", "xlsa17/data/CUB/{}.txt"
CLASS, PICTURE, EDGE = r"(\d{3})\.[^/\\]+", r"(\d{3})\.[^/\\]+/([^/\\]+)\.jpg", r"\d+(?:\.\d+)?"
TABLES = {  # what follows the number of a picture or class, and its name
    "images": (PICTURE, "class/picture.jpg"),
    "classes": (CLASS, "class, such as 001.Black_footed_Albatross"),
    "image_class_labels": (r"\d+", "class"),
    "bounding_boxes": (f"{EDGE} {EDGE} {EDGE} {EDGE}", "left, top, width and height"),
    "train_test_split": ("[01]", "1 (train) or 0 (test)"),
}
SPLITS = {"xian/train": "trainvalclasses", "xian/test": "testclasses"} | {
    f"xian{fold}/{name}": f"{name}classes{fold}" for fold in (1, 2, 3) for name in ("train", "val")
}
TEN = 10  # captions of a picture
NOT_TEXT, UNSEEN = "caption with what is not UTF-8: becomes a space", "seen test picture of an unseen class: left out"

Table = dict[str, tuple[str, str]]  # place in the file and value, by the number of a picture or class


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of their table, each followed by its class, box, splits and captions."""
    tables = _tables(raw, TABLES)
    classes = _classes(tables["classes"])
    pictures = _pictures(tables, classes)
    lists = _class_lists(raw, classes)
    seen = id_list(SEEN, lines(raw, SEEN), _key)
    for key in seen.keys() - pictures.keys():
        raise UserError(f"{seen[key]}: {IMAGES} has no picture {key}")
    captions = _captions(raw, pictures)
    for key, number in pictures.items():
        yield Item(number, _media(tables["images"][number][1]))
        yield Label(number, "class", classes[int(key[:3])])
        yield _box(number, *tables["bounding_boxes"][number])
        yield Split(number, "caltech/train" if tables["train_test_split"][number][1] == "1" else "caltech/test")
        yield from _splits(key, number, lists, seen)
        yield from captions[key]


def media(raw: Raw) -> Iterator[Source]:
    for _, path in _tables(raw, ["images"])["images"].values():
        yield _source(_media(path))


def unpack(raw: Raw, wanted: Collection[str], folder: Path) -> Iterator[Source]:
    """Writes the wanted pictures of the archive into a folder, one by one."""
    for member, file in tar_members(raw, IMAGES):
        if member in wanted:
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            with (folder / member).open("wb") as copy:
                shutil.copyfileobj(file, copy)
            yield _source(member)


def _source(path: str) -> Source:
    return Source(path, how=f"it should be in {IMAGES}: take another copy of that", part="media")


def _media(path: str) -> str:
    return f"{FOLDER}/images/{path}"


def _tables(raw: Raw, names: Iterable[str]) -> dict[str, Table]:
    """Reads the archive only as far as the last of these tables."""
    wanted, found = {f"{FOLDER}/{name}.txt": name for name in names}, dict[str, Table]()
    for member, file in tar_members(raw, IMAGES):
        if name := wanted.pop(member, None):
            pattern, meaning = TABLES[name]
            table = found[name] = {}
            for where, line in lines_of(file, f"{IMAGES}!{member}"):
                row = matched(rf"(\d+) ({pattern})", line.strip(), where, f"number with {meaning}")
                table[once(table, row[1], where)] = where, row[2]
        if not wanted:
            return found
    raise UserError(f"{IMAGES} has no member {next(iter(wanted))}")


def _classes(table: Table) -> dict[int, str]:
    for number, (where, name) in table.items():
        if int(name[:3]) != int(number):
            raise UserError(f"{where}: class {number} is called {name}")
    return {int(number): name for number, (_, name) in table.items()}


def _pictures(tables: Mapping[str, Table], classes: Collection[int]) -> dict[str, str]:
    """The number of each picture by its key."""
    images, pictures = tables["images"], dict[str, str]()
    for number, (where, path) in images.items():
        pictures[once(pictures, _key(path, where), where)] = number
    for name in TABLES.keys() - {"images", "classes"}:
        if wrong := sorted(tables[name].keys() ^ images.keys()):
            raise UserError(f"{IMAGES}: picture {wrong[0]} is in one of images.txt and {name}.txt alone")
    for key, number in pictures.items():
        where, label = tables["image_class_labels"][number]
        if int(label) not in classes:
            raise UserError(f"{where}: there is no class {label}")
        if int(label) != int(key[:3]):
            raise UserError(f"{where}: picture {number} is of class {label}, but lies in the folder of class {key[:3]}")
    if not pictures:
        raise UserError(f"{IMAGES}: images.txt is empty")
    return pictures


def _key(path: str, where: str) -> str:
    """The key of a picture, which all files agree on: the number of its class, and its name without ending."""
    return "/".join(matched(PICTURE, path, where, "class/picture.jpg").groups())


def _class_number(name: str, where: str) -> int:
    return int(matched(CLASS, name, where, "class, such as 001.Black_footed_Albatross")[1])


def _box(number: str, where: str, edges: str) -> Region:
    left, top, width, height = map(float, edges.split())
    if min(width, height) <= 0:
        raise UserError(f"{where} has {edges!r}, which is no box")
    return Region(number, number, left=left, top=top, right=left + width, bottom=top + height)


def _class_lists(raw: Raw, classes: Collection[int]) -> dict[str, set[int]]:
    """The classes of each split. Train and test divide all of them, and each fold divides those to train on."""
    lists = dict[str, set[int]]()
    for split, name in SPLITS.items():
        path = f"{CLASS_LISTS}!{LIST_MEMBER.format(name)}"
        found = id_list(path, lines(raw, path), _class_number)
        for number in found.keys() - classes:
            raise UserError(f"{found[number]}: there is no class {number}")
        lists[split] = set(found)
    for train, other in zip(list(SPLITS)[::2], list(SPLITS)[1::2], strict=True):
        whole = set(classes) if train == "xian/train" else lists["xian/train"]
        if wrong := sorted((lists[train] & lists[other]) | ((lists[train] | lists[other]) ^ whole)):
            names = f"{SPLITS[train]} and {SPLITS[other]}"
            raise UserError(f"{CLASS_LISTS}: {names} should divide {len(whole)} classes, but not so class {wrong[0]}")
    return lists


def _splits(key: str, number: str, lists: Mapping[str, set[int]], seen: Mapping[str, str]) -> Iterator[Split | Oddity]:
    class_number = int(key[:3])
    yield from (Split(number, name) for name, classes in lists.items() if class_number in classes)
    if class_number in lists["xian/test"]:
        yield Split(number, "pcme/test")
        if key in seen:
            yield Oddity(UNSEEN, seen[key], number)
    else:
        yield Split(number, "pcme/val" if key in seen else "pcme/train")


def _captions(raw: Raw, pictures: Mapping[str, str]) -> dict[str, list[Caption | Oddity]]:
    """Ten captions of every picture, by its key, among the oddities found in them."""
    found: dict[str, list[Caption | Oddity]] = {}
    for member, file in tar_members(raw, CAPTIONS):
        if name := re.fullmatch(r"(?:.*/)?text_c10/(\d{3})\.[^/]+/((?!\._)[^/]+)\.txt", member):
            where, key = f"{CAPTIONS}!{member}", f"{name[1]}/{name[2]}"
            if key not in pictures:
                raise UserError(f"{where} has captions, but {IMAGES} has no such picture")
            found[once(found, key, where)] = list(_ten(file, where, pictures[key]))
    if without := [key for key in pictures if key not in found]:
        raise UserError(f"{CAPTIONS} has no captions of {len(without):,} pictures, such as {without[0]}")
    return found


def _ten(file: Iterable[bytes], where: str, number: str) -> Iterator[Caption | Oddity]:
    position = 0
    for line, data in enumerate(file, 1):
        text = data.decode("utf-8-sig", errors="replace")
        if "\ufffd" in text:
            yield Oddity(NOT_TEXT, f"{where}:{line}", number)
        if caption := " ".join(text.replace("\ufffd", " ").split()):
            yield Caption(f"{number}#{position}", number, position, caption)
            position += 1
    if position != TEN:
        raise UserError(f"{where} has {position} captions, not {TEN}")


CORPUS = Corpus(
    name="cub",
    homepage="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    licence="pictures for non-commercial research and education, of Flickr's users; captions without a stated licence",
    media_set="cub2011",
    sources=(
        Source(
            IMAGES,
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
            bytes=1_150_585_339,
            sha256="0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
        Source(
            CAPTIONS,
            how="take the birds' captions from where github.com/reedscot/cvpr2016 links them (Google Drive), and put "
            f"the archive as {CAPTIONS}, not unpacked, into the folder that --raw names",
        ),
        Source(CLASS_LISTS, "http://datasets.d2.mpi-inf.mpg.de/xian/xlsa17.zip"),
        Source(
            SEEN,
            "https://raw.githubusercontent.com/naver-ai/pcme/7224f04e4f780545176e3bc5040ad9b9e78a5049"
            "/datasets/annotations/cub/seen_test_images.txt",
        ),
    ),
    parse=parse,
    media=media,
    unpack=unpack,
    release={"annotations": "ids", "media": "features"},
    counts={
        "items": 11_788,
        "captions": 117_880,
        "items:xian/train": 8_821,
        "items:xian/test": 2_967,
        "items:pcme/val": 1_754,
        f"odd: {UNSEEN}": 10,
    },
    kinds=frozenset({"image", "class"}),
)
