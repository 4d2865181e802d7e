"""CUHK-PEDES: 40,206 pictures of 13,003 persons from five older collections, two captions each or more.

reid_raw.json is one array (line breaks added here):

    [{"split": "train", "captions": ["A pedestrian with dark hair ...", "The person has short black hair ..."],
      "file_path": "CUHK01/0363004.png", "processed_tokens": [["a", "pedestrian", ...], ...], "id": 1}, ...]

The pictures are imgs/<file_path>. A caption is relevant for every picture of its person.

The traps (more: docs/corpora.md#cuhk-pedes):
- Recent copies of the archive lack whole folders (Market, test_query, train_query). Their items are kept without
  pictures.
- Nine pictures have more than two captions, one has ten. All 80,440 are kept; `position < 2` gives 80,412.
- Captions have no ids: the picture's path and the position make one.
"""

from collections.abc import Iterator

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.json_values import JsonRecord, json_elements
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import once, words_of
from xmodal.records.tables import Caption, Item, Label, Row, Split

RECORDS, PICTURES = "reid_raw.json", "imgs"
FOLDERS = ("CUHK01", "CUHK03", "Market", "cam_a", "cam_b", "test_query", "train_query")
SPLITS = ("train", "val", "test")
HOMEPAGE = "https://github.com/ShuangLI59/Person-Search-with-Natural-Language-Description"
HOW = f"ask the authors by e-mail ({HOMEPAGE} says how), and put {{}} of their archive into the folder that --raw names"


def parse(raw: Raw) -> Iterator[Row]:
    """Pictures in the order of the file, each followed by its split, person and captions."""
    pictures, persons = set[str](), dict[int, str]()  # the split of each person
    for record in json_elements(raw, RECORDS):
        where = record.where
        path = once(pictures, _path(record), where)
        yield Item(path, f"{PICTURES}/{path}")
        split, person = record.split(SPLITS), record.value("id", int)
        if persons.setdefault(person, split) != split:
            raise UserError(f"{where}: person {person} is in {split}, but also in {persons[person]}")
        yield Split(path, f"cuhk_pedes/{split}")
        yield Label(path, "identity", str(person))
        captions = list(record.texts("captions"))
        if not captions:
            raise UserError(f"{where} has no captions")
        for position, text in enumerate(captions):
            yield Caption(f"{path}#{position}", path, position, words_of(text, f"{where}: captions[{position}]"))
    for split in SPLITS:
        if split not in persons.values():
            raise UserError(f"{RECORDS}: split {split!r} is empty")


def media(raw: Raw) -> Iterator[Source]:
    for record in json_elements(raw, RECORDS):
        yield Source(f"{PICTURES}/{_path(record)}", how=HOW.format(f"the folder {PICTURES}"), part="media")


def _path(record: JsonRecord) -> str:
    path = record.value("file_path", str)
    folder, *rest = path.split("/")
    if folder not in FOLDERS or not rest or {"", ".", ".."} & set(rest) or "\\" in path or not path.isprintable():
        raise UserError(f"{record.where}: {path!r:.80} is no picture below {', '.join(FOLDERS)}")
    return path


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
)
