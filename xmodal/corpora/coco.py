"""MS-COCO captions 2014 in Karpathy's split: 123,287 pictures, five to seven captions each, 80 categories of things.

caption_datasets.zip!dataset_coco.json (409 MB) has the captions and the split:

    {"images": [{"filepath": "val2014", "sentids": [702, 715, ...], "filename": "COCO_val2014_000000123456.jpg",
                 "imgid": 0, "split": "test", "cocoid": 123456,
                 "sentences": [{"tokens": ["a", "bench", ...], "raw": "A bench under a tree. ",
                                "imgid": 0, "sentid": 702}, ...]}, ...], "dataset": "coco"}

annotations/annotations_trainval2014.zip!annotations/instances_{train,val}2014.json has sizes and categories:

    {"info": {...}, "images": [{"id": 123456, "file_name": "COCO_val2014_000000123456.jpg", "width": 640, "height": 480,
                                "license": 3, "flickr_url": "http://...", "coco_url": "http://..."}, ...],
     "licenses": [{"id": 3, "url": "http://creativecommons.org/licenses/by-nc-nd/2.0/", "name": "..."}, ...],
     "annotations": [{"id": 8, "image_id": 123456, "category_id": 15, "bbox": [...], ...}, ...],
     "categories": [{"id": 15, "name": "bench", "supercategory": "outdoor"}, ...]}

The traps (more: docs/corpora.md#coco):
- Two-Branch (5.4) and Dual-Path (VI-A) drew their own splits, also with 113,287 training pictures, and published none:
  two_branch/train and dual_path/train are drawn here by a seed.
- Papers train on train and restval together. So restval is in karpathy/train, and in karpathy/restval, too.
- Captions have spaces around them and newlines in them. Any run of white space becomes one space.
- Some pictures have six or seven captions. Papers take the first five: `position < 5` in the order of `sentences`
  (order by id is another).
- Category ids have gaps, so labels are names. Some pictures show no category.
- Stanford's server is often offline. caption_datasets.zip from anywhere will do if its sha256 is right.

In memory stay 1.6 kB a picture, 190 MiB for all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xmodal.corpora import Corpus, Printed, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import json_members, once, optional, split_of, value, words_of
from xmodal.records.derived_splits import RandomSplitSizes
from xmodal.records.tables import Caption, Item, Label, Row, Split

KARPATHYS = Source(  # also has his split of Flickr30k
    "caption_datasets.zip",
    "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip",
    bytes=36_745_453,
    sha256="4cfd70132527b80933105e5829dc9034eaab9573482e2e680abbab6130244817",
)
CAPTIONS, CAPTIONS_MEMBER = KARPATHYS.path, "dataset_coco.json"
INSTANCES, INSTANCES_MEMBER = "annotations/annotations_trainval2014.zip", "annotations/instances_{}.json"
FOLDERS = ("train2014", "val2014")
SPLITS = {
    "train": ("karpathy/train",),
    "restval": ("karpathy/train", "karpathy/restval"),
    "val": ("karpathy/val",),
    "test": ("karpathy/test",),
}


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of the captions file, each followed by its splits, labels and captions."""
    instances = {folder: _read_instances(raw, INSTANCES_MEMBER.format(folder)) for folder in FOLDERS}
    images, sentences = set[int](), set[int]()
    where = f"{CAPTIONS}!{CAPTIONS_MEMBER}"
    for name, number, image in json_members(raw, CAPTIONS, CAPTIONS_MEMBER):
        if name == "images":
            yield from _picture(image, f"{where}: images[{number}]", instances, images, sentences)
    if not images:
        raise UserError(f"{where} has no 'images'")


def _picture(
    image: object, where: str, instances: Mapping[str, "_Instances"], images: set[int], sentences: set[int]
) -> Iterator[Row]:
    cocoid, folder = value(image, "cocoid", int, where), value(image, "filepath", str, where)
    where = f"{where} (cocoid {cocoid})"
    split, filename = split_of(image, SPLITS, where), value(image, "filename", str, where)
    if folder not in instances or filename != f"COCO_{folder}_{cocoid:012d}.jpg":
        raise UserError(f"{where} is {folder}/{filename}, which is no picture of {' or '.join(FOLDERS)} with this id")
    once(images, cocoid, where)
    yield instances[folder].item(cocoid, f"zips/{folder}.zip!{folder}/{filename}", where)
    yield from (Split(str(cocoid), name) for name in SPLITS[split])
    yield from instances[folder].labels(cocoid)
    yield from _captions(image, cocoid, where, sentences)


def _captions(image: object, cocoid: int, where: str, seen: set[int]) -> Iterator[Caption]:
    imgid, sentences = value(image, "imgid", int, where), value(image, "sentences", list, where)
    if not sentences:
        raise UserError(f"{where} has no captions")
    for position, sentence in enumerate(sentences):
        here = f"{where}: sentences[{position}]"
        sentid = once(seen, value(sentence, "sentid", int, here), here)
        text = words_of(value(sentence, "raw", str, here), f"{here}: caption {sentid}")
        if (other := value(sentence, "imgid", int, here)) != imgid:
            raise UserError(f"{here}: caption {sentid} is of another image, imgid {other} instead of {imgid}")
        yield Caption(str(sentid), str(cocoid), position, text)


@dataclass(frozen=True)
class _Instances:
    """One instances file: sizes, licences and categories of its images."""

    where: str
    images: dict[int, tuple[int, int, int | None, str | None]] = field(default_factory=dict)
    licences: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    categories_of: dict[int, set[int]] = field(default_factory=dict)

    def item(self, cocoid: int, media: str, where: str) -> Item:
        if cocoid not in self.images:
            raise UserError(f"{where} has captions, but {self.where} has no image {cocoid}")
        width, height, licence, url = self.images[cocoid]
        name = None if licence is None else self._name("licenses", self.licences, licence)
        return Item(str(cocoid), media, width=width, height=height, licence=name, url=url)

    def labels(self, cocoid: int) -> Iterator[Label]:
        for category in sorted(self.categories_of.get(cocoid, ())):
            yield Label(str(cocoid), "category", self._name("categories", self.categories, category))

    def _name(self, table: str, names: Mapping[int, str], key: int) -> str:
        if key not in names:
            raise UserError(f"{self.where}: {table} has no id {key}, which an image or annotation refers to")
        return names[key]

    def add(self, table: str, record: object, where: str) -> None:
        match table:
            case "images":
                cocoid = once(self.images, value(record, "id", int, where), where)
                width, height = value(record, "width", int, where), value(record, "height", int, where)
                urls = [optional(record, name, str, where) for name in ("coco_url", "flickr_url")]
                self.images[cocoid] = width, height, optional(record, "license", int, where), urls[0] or urls[1]
            case "licenses":
                self.licences[value(record, "id", int, where)] = value(record, "url", str, where)
            case "categories":
                self.categories[value(record, "id", int, where)] = value(record, "name", str, where)
            case "annotations":
                image, category = value(record, "image_id", int, where), value(record, "category_id", int, where)
                self.categories_of.setdefault(image, set()).add(category)


def _read_instances(raw: Raw, member: str) -> _Instances:
    instances = _Instances(f"{INSTANCES}!{member}")
    for table, number, record in json_members(raw, INSTANCES, member):
        instances.add(table, record, f"{instances.where}: {table}[{number}]")
    if strays := sorted(instances.categories_of.keys() - instances.images.keys()):
        raise UserError(f"{instances.where} has annotations of image {strays[0]}, which is not among its images")
    return instances


COCO = "http://images.cocodataset.org"
PICTURES = (
    ("zips/train2014.zip", 13_510_573_713, "ede4087e640bddba550e090eae701092534b554b42b05ac33f0300b984b31775"),
    ("zips/val2014.zip", 6_645_013_297, "fe9be816052049c34717e077d9e34aa60814a55679f804cd043e3cbee3b9fde0"),
)
CORPUS = Corpus(
    name="coco",
    homepage="https://cocodataset.org",
    licence="annotations CC BY 4.0; each picture under its uploader's Flickr licence, which its item names",
    media_set="coco2014",
    sources=(
        *(Source(path, f"{COCO}/{path}", (), size, sha256, part="media") for path, size, sha256 in PICTURES),
        Source(
            INSTANCES,
            f"{COCO}/{INSTANCES}",
            bytes=252_872_794,
            sha256="031296bbc80c45a1d1f76bf9a90ead27e94e99ec629208449507a4917a3bf009",
        ),
        KARPATHYS,
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
    drawn={"two_branch": RandomSplitSizes(val=9_000, test=1_000), "dual_path": RandomSplitSizes(val=5_000, test=5_000)},
    kinds=frozenset({"image", "category"}),
    printed=(
        Printed("items", 123_287, "A3VSE, section 4.1"),
        Printed("captions", 616_767, "Dual-Path, section VI-A"),
        Printed("first_five", 616_435, "A3VSE, section 4.1"),
        Printed("words_per_caption", 8.7, "Dual-Path, section VI-A", note="rare words left out, whatever these are"),
        Printed("items", 113_287, "A3VSE, section 4.1", "karpathy/train"),
        Printed("first_five", 566_435, "A3VSE, section 4.1", "karpathy/train"),
        Printed("items", 5_000, "PVSE, section 5", "karpathy/val"),
        Printed("items", 5_000, "PVSE, section 5", "karpathy/test"),
    ),
)
