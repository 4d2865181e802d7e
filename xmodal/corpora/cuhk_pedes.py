"""CUHK-PEDES: 40,206 pictures of 13,003 persons from five older collections, two captions each or more.

reid_raw.json is one array (line breaks added here):

    [{"split": "train", "captions": ["A pedestrian with dark hair ...", "The person has short black hair ..."],
      "file_path": "CUHK01/0363004.png", "processed_tokens": [["a", "pedestrian", ...], ...], "id": 1}, ...]

The pictures are imgs/<file_path>, in seven folders: CUHK01, CUHK03, Market, cam_a, cam_b, test_query and train_query. A
caption is relevant for every picture of its person.

The traps (more: docs/corpora.md#cuhk-pedes):
- caption_all.json, beside it, has no splits. It is not read.
- Recent copies of the archive lack whole folders (Market, test_query, train_query). Their items are kept, and their
  pictures sealed as absent.
- Nine pictures have more than two captions, one has ten. All 80,440 are kept; `position < 2` gives 80,412.
- A person is in one split only: 11,003 in train, 1,000 in val, 1,000 in test.
- Captions have no ids: theirs are the picture's path and their position.
"""

from collections.abc import Iterator

from xmodal.corpora import Corpus, Printed, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import json_elements, once, split_of, value
from xmodal.records.tables import Caption, Item, Label, Row, Split

RECORDS, PICTURES = "reid_raw.json", "imgs"
FOLDERS = ("CUHK01", "CUHK03", "Market", "cam_a", "cam_b", "test_query", "train_query")
SPLITS = ("train", "val", "test")
HOMEPAGE = "https://github.com/ShuangLI59/Person-Search-with-Natural-Language-Description"
HOW = f"ask the authors by e-mail ({HOMEPAGE} says how), and put {{}} of their archive into the folder that --raw names"


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of the file, each followed by its split, person and captions."""
    pictures, persons = set[str](), dict[int, str]()  # the split of each person
    for where, record in json_elements(raw, RECORDS):
        path = once(pictures, _path(record, where), where)
        yield Item(path, f"{PICTURES}/{path}")
        split, person = split_of(record, SPLITS, where), value(record, "id", int, where)
        if persons.setdefault(person, split) != split:
            raise UserError(f"{where}: person {person} is in {split}, but also in {persons[person]}")
        yield Split(path, f"cuhk_pedes/{split}")
        yield Label(path, "identity", str(person))
        yield from _captions(record, path, where)
    for split in SPLITS:
        if split not in persons.values():
            raise UserError(f"{RECORDS}: split {split!r} is empty")


def media(raw: Raw) -> Iterator[Source]:
    for where, record in json_elements(raw, RECORDS):
        yield Source(f"{PICTURES}/{_path(record, where)}", how=HOW.format(f"the folder {PICTURES}"), part="media")


def _path(record: object, where: str) -> str:
    path = value(record, "file_path", str, where)
    folder, *rest = path.split("/")
    if folder not in FOLDERS or not rest or {"", ".", ".."} & set(rest) or "\\" in path or not path.isprintable():
        raise UserError(f"{where}: {path!r:.80} is no picture below {', '.join(FOLDERS)}")
    return path


def _captions(record: object, path: str, where: str) -> Iterator[Caption]:
    captions = value(record, "captions", list, where)
    if not captions:
        raise UserError(f"{where} has no captions")
    for position, caption in enumerate(captions):
        text = " ".join(caption.split()) if isinstance(caption, str) else ""
        if not text:
            raise UserError(f"{where}: captions[{position}] is {caption!r:.40}, no text")
        yield Caption(f"{path}#{position}", path, position, text)


CORPUS = Corpus(
    name="cuhk_pedes",
    homepage=HOMEPAGE,
    licence="for academic research by those whom the authors gave it to; no part may be passed on",
    media_set="cuhk_pedes",
    sources=(Source(RECORDS, how=HOW.format(RECORDS)),),
    parse=parse,
    media=media,
    release={"annotations": "nothing", "media": "nothing"},
    counts={
        "items": 40_206,
        "items:cuhk_pedes/train": 34_054,
        "items:cuhk_pedes/val": 3_078,
        "items:cuhk_pedes/test": 3_074,
        "captions": 80_440,
        "captions:cuhk_pedes/train": 68_126,
        "captions:cuhk_pedes/val": 6_158,
        "captions:cuhk_pedes/test": 6_156,
    },
    kinds=frozenset({"image", "identity"}),
    printed=(
        Printed("items", 40_206, "Dual-Path, section VI-A"),
        Printed("captions", 80_440, "Dual-Path, section VI-A"),
        Printed("different labels: identity", 13_003, "Dual-Path, section VI-A"),
        Printed("words_per_caption", 19.6, "Dual-Path, section VI-A", note="rare words left out, whatever these are"),
        Printed("items", 34_054, "Dual-Path, section VI-A", "cuhk_pedes/train"),
        Printed("captions", 68_126, "Dual-Path, section VI-A", "cuhk_pedes/train"),
        Printed("items", 3_078, "Dual-Path, section VI-A", "cuhk_pedes/val"),
        Printed("captions", 6_158, "Dual-Path, section VI-A", "cuhk_pedes/val"),
        Printed("items", 3_074, "Dual-Path, section VI-A", "cuhk_pedes/test"),
        Printed("captions", 6_156, "Dual-Path, section VI-A", "cuhk_pedes/test"),
    ),
)
