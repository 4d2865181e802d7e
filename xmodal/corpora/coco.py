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
- Two-Branch (5.4) and Dual-Path (VI-A) drew splits of as many pictures and published none: a seed draws theirs here.
- Papers train on train and restval together, so restval is in karpathy/train, too.
- Any run of white space in a caption becomes one space.
- Papers take the first five captions in the order of `sentences`, which is not that of ids: `position < 5`.
- Category ids have gaps, so labels are names. Some pictures show no category.

Memory: 190 MiB.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.json_values import JsonRecord, json_members
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import once, words_of
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
    path = f"{CAPTIONS}!{CAPTIONS_MEMBER}"
    for name, image in json_members(raw, path):
        if name == "images":
            yield from _picture(image, instances, images, sentences)
    if not images:
        raise UserError(f"{path} has no 'images'")


def _picture(
    image: JsonRecord, instances: Mapping[str, "_Instances"], images: set[int], sentences: set[int]
) -> Iterator[Row]:
    cocoid, folder = image.value("cocoid", int), image.value("filepath", str)
    image = JsonRecord(image.content, f"{image.where} (cocoid {cocoid})")
    split, filename = image.split(SPLITS), image.value("filename", str)
    if folder not in instances or filename != f"COCO_{folder}_{cocoid:012d}.jpg":
        raise UserError(
            f"{image.where} is {folder}/{filename}, which is no picture of {' or '.join(FOLDERS)} with this id"
        )
    once(images, cocoid, image.where)
    yield instances[folder].item(cocoid, f"zips/{folder}.zip!{folder}/{filename}", image.where)
    yield from (Split(str(cocoid), name) for name in SPLITS[split])
    yield from instances[folder].labels(cocoid)
    yield from _captions(image, cocoid, sentences)


def _captions(image: JsonRecord, cocoid: int, seen: set[int]) -> Iterator[Caption]:
    imgid, sentences = image.value("imgid", int), list(image.each("sentences"))
    if not sentences:
        raise UserError(f"{image.where} has no captions")
    for position, sentence in enumerate(sentences):
        sentid = once(seen, sentence.value("sentid", int), sentence.where)
        where = f"{sentence.where}: caption {sentid}"
        text = words_of(sentence.value("raw", str), where)
        if (other := sentence.value("imgid", int)) != imgid:
            raise UserError(f"{where} is of another image, imgid {other} instead of {imgid}")
        yield Caption(str(sentid), str(cocoid), position, text)


@dataclass(frozen=True)
class _Instances:
    path: str
    images: dict[int, tuple[int, int, int | None, str | None]] = field(default_factory=dict)
    licences: dict[int, str] = field(default_factory=dict)
    categories: dict[int, str] = field(default_factory=dict)
    categories_of: dict[int, set[int]] = field(default_factory=dict)

    def item(self, cocoid: int, media: str, where: str) -> Item:
        if cocoid not in self.images:
            raise UserError(f"{where} has captions, but {self.path} has no image {cocoid}")
        width, height, licence, url = self.images[cocoid]
        name = None if licence is None else self._name("licenses", self.licences, licence)
        return Item(str(cocoid), media, width=width, height=height, licence=name, url=url)

    def labels(self, cocoid: int) -> Iterator[Label]:
        for category in sorted(self.categories_of.get(cocoid, ())):
            yield Label(str(cocoid), "category", self._name("categories", self.categories, category))

    def _name(self, table: str, names: Mapping[int, str], key: int) -> str:
        if key not in names:
            raise UserError(f"{self.path}: {table} has no id {key}, which an image or annotation refers to")
        return names[key]

    def add(self, table: str, record: JsonRecord) -> None:
        match table:
            case "images":
                cocoid = once(self.images, record.value("id", int), record.where)
                url = record.optional("coco_url", str) or record.optional("flickr_url", str)
                width, height = record.value("width", int), record.value("height", int)
                self.images[cocoid] = width, height, record.optional("license", int), url
            case "licenses":
                self.licences[record.value("id", int)] = record.value("url", str)
            case "categories":
                self.categories[record.value("id", int)] = record.value("name", str)
            case "annotations":
                image, category = record.value("image_id", int), record.value("category_id", int)
                self.categories_of.setdefault(image, set()).add(category)


def _read_instances(raw: Raw, member: str) -> _Instances:
    instances = _Instances(f"{INSTANCES}!{member}")
    for table, record in json_members(raw, instances.path):
        instances.add(table, record)
    if strays := sorted(instances.categories_of.keys() - instances.images.keys()):
        raise UserError(f"{instances.path} has annotations of image {strays[0]}, which is not among its images")
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
            members=tuple(map(INSTANCES_MEMBER.format, FOLDERS)),
        ),
        replace(KARPATHYS, members=(CAPTIONS_MEMBER,)),
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
)
