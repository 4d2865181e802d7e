"""Flickr30k: 31,783 photographs of people and animals, five captions each, in two splits that have little in common.

results_20130124.token has a name, a tab and a caption a line, tokenised as the Penn Treebank:

    1000092795.jpg#0	Two young guys look at their hands in the yard .
    1000092795.jpg#1	Two young men are outside near many bushes .

caption_datasets.zip!dataset_flickr30k.json (111 MB) has Karpathy's split, of 31,014 pictures:

    {"images": [{"sentids": [0, 1, 2, 3, 4], "imgid": 0, "split": "train", "filename": "1000092795.jpg",
                 "sentences": [{"tokens": ["two", "young", ...], "raw": "Two young guys look at their hands.",
                                "imgid": 0, "sentid": 0}, ...]}, ...], "dataset": "flickr30k"}

flickr30k_entities/{train,val,test}.txt has Plummer's split, of all 31,783, an id a line:

    1000092795

The traps (more: docs/corpora.md#flickr30k):
- 903 of the 1,000 pictures of plummer/test are in karpathy/train: never train on one split and test on the other.
- Dual-Path has Plummer's numbers, but its authors drew the pictures: a seed draws dual_path/train here.
- 769 pictures are in none of Karpathy's splits: kept without one, and counted.
- Captions come from the token file: Karpathy's JSON lacks the 769, and is not tokenised.
- Any run of white space in a caption becomes one space.
"""

from collections.abc import Iterator
from dataclasses import replace

from xmodal.corpora import Corpus, Source
from xmodal.corpora.coco import KARPATHYS
from xmodal.errors import UserError
from xmodal.raw.json_values import json_members
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import columns, matched, once, split_files, words_of
from xmodal.records.derived_splits import RandomSplitSizes
from xmodal.records.tables import Caption, Item, Oddity, Row, Split

TOKENS = "results_20130124.token"
CAPTIONS, CAPTIONS_MEMBER = KARPATHYS.path, "dataset_flickr30k.json"
PLUMMER = {f"flickr30k_entities/{name}.txt": f"plummer/{name}" for name in ("train", "val", "test")}
PLUMMERS = tuple(
    Source(path, f"https://raw.githubusercontent.com/BryanPlummer/{path.replace('/', '/master/')}") for path in PLUMMER
)
KARPATHY = {name: f"karpathy/{name}" for name in ("train", "val", "test")}
HOMEPAGE = "http://hockenmaier.cs.illinois.edu/DenotationGraph/"
HOW = (
    f"ask for Flickr30k by the form at {HOMEPAGE}, unpack what is sent, "
    "and give as --raw the folder that flickr30k-images/ and results_20130124.token are in"
)
LICENCE = "for non-commercial research and education; the pictures are their uploaders', under Flickr's terms of use"
UNASSIGNED = "picture that Karpathy left out: in no split of his"

Places = dict[str, tuple[str, str]]  # split of each picture, and the place in the file that says so


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of their first captions, each followed by its splits; captions in the file's order."""
    karpathy, plummer = _karpathy(raw), split_files(raw, PLUMMER, lambda id, where: id)
    positions: dict[str, set[int]] = {}
    for where, (name, text) in columns(raw, TOKENS, 2):
        image, position = _named(name, where)
        if image not in positions:
            yield from _picture(image, where, karpathy, plummer)
        once(positions.setdefault(image, set()), position, f"{where}: captions of {image}")
        words = words_of(text, f"{where}: caption {position} of {image}")
        yield Caption(f"{image}#{position}", image, position, words)
    for image, seen in positions.items():
        if missing := set(range(max(seen))) - seen:
            raise UserError(f"{TOKENS}: picture {image} has no caption #{min(missing)}, but a #{max(seen)}")
    for image, (split, where) in (*karpathy.items(), *plummer.items()):
        if image not in positions:
            raise UserError(f"{where}: picture {image} of {split} has no captions in {TOKENS}")


def media(raw: Raw) -> Iterator[Source]:
    for image in dict.fromkeys(_named(name, where)[0] for where, (name, _) in columns(raw, TOKENS, 2)):
        yield Source(f"flickr30k-images/{image}.jpg", how=HOW, part="media")


def _picture(image: str, where: str, karpathy: Places, plummer: Places) -> Iterator[Row]:
    if image not in plummer:
        raise UserError(f"{where}: picture {image} is in none of {', '.join(PLUMMER)}")
    yield Item(image, f"flickr30k-images/{image}.jpg")
    yield from (Split(image, splits[image][0]) for splits in (karpathy, plummer) if image in splits)
    if image not in karpathy:
        yield Oddity(UNASSIGNED, where, image)


def _named(name: str, where: str) -> tuple[str, int]:
    found = matched(r"([0-9]+)\.jpg#([0-9])", name, where, "name of a caption, such as 1000092795.jpg#0")
    return found[1], int(found[2])


def _karpathy(raw: Raw) -> Places:
    found: Places = {}
    path = f"{CAPTIONS}!{CAPTIONS_MEMBER}"
    for key, image in json_members(raw, path):
        if key == "images":
            filename, split = image.value("filename", str), image.split(KARPATHY)
            name = matched(r"([0-9]+)\.jpg", filename, image.where, "name of a picture, such as 1000092795.jpg")
            found[once(found, name[1], image.where)] = KARPATHY[split], image.where
    for split in KARPATHY.values():
        if all(split != other for other, _ in found.values()):
            raise UserError(f"{path}: {split} is empty")
    return found


CORPUS = Corpus(
    name="flickr30k",
    homepage=HOMEPAGE,
    licence=LICENCE,
    media_set="flickr30k",
    sources=(Source(TOKENS, how=HOW), replace(KARPATHYS, members=(CAPTIONS_MEMBER,)), *PLUMMERS),
    parse=parse,
    media=media,
    release={"annotations": "all", "media": "ids"},
    counts={
        "items": 31_783,
        "items:karpathy/train": 29_000,
        "items:karpathy/val": 1_014,
        "items:karpathy/test": 1_000,
        "items:plummer/train": 29_783,
        "items:plummer/val": 1_000,
        "items:plummer/test": 1_000,
        "captions": 158_915,
        "captions:karpathy/train": 145_000,
        "captions:karpathy/val": 5_070,
        "captions:karpathy/test": 5_000,
        f"odd: {UNASSIGNED}": 769,
    },
    drawn={"dual_path": RandomSplitSizes(val=1_000, test=1_000)},
    kinds=frozenset({"image"}),
)
