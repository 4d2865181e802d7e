"""MRW, "my reaction when": 50,107 clips from giphy, each with the sentence that it is a reaction to.

mrw-v1.0.tar.gz!mrw-v1.0.json has the sentences:

    [{"id": "lJ1Q5fkkPAk6I", "sentence": "MRW a witty comment I wanted to make was already said",
      "images": {"mp4_url": "http://media3.giphy.com/media/lJ1Q5fkkPAk6I/giphy.mp4", ...},
      "gulp_num_frames": 31, ...}, ...]

mrw-v1.0.tar.gz!split/{train,valid,test}.tsv have a giphy id a line:

    lJ1Q5fkkPAk6I

The traps (more: docs/corpora.md#mrw):
- The validation list is split/valid.tsv in the authors' loader and split/val.tsv in a part of their downloader: either
  is mrw/val, but the archive must have exactly one of them.
- Some addresses are empty, others cut off before ".mp4" (".../c84Hf3KIsQ1uo/giphy"). Both are counted; such an item has
  no address, and its clip is absent unless it is given by hand.
- A clip that is in no list is kept without a split and counted. An id in a list but without a sentence is refused: the
  authors' code could not have run on it.
- What the authors remove from sentences for their vocabulary stays: it is a step of the recipes
  (`xmodal.text.tokenizers`).
- 44,107 + 1,000 + 5,000 are the paper's numbers. Nobody has counted them in the files, so nothing asserts them.

If you have the archive unpacked, pack it again: `tar -czf mrw-v1.0.tar.gz mrw-v1.0.json split`. The authors' clips are
taken from the raw folder, as mp4/<id>.mp4 or <id>.mp4. So is their Gulp dump, as gulp/{train,valid,test}/data_0.gulp
and meta_0.gmeta (`xmodal.raw.gulp`): the file of a clip is then the JPEGs of its frames, 8 a second.
"""

from collections.abc import Iterator
from typing import IO
from urllib.parse import urlsplit

from xmodal.corpora import Corpus, Printed, Source
from xmodal.errors import UserError
from xmodal.raw.archives import tar_members
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import id_list, json_elements_of, lines_of, matched, once, optional, value, words_of
from xmodal.records.tables import Caption, Item, Oddity, Row, Split

ARCHIVE, SENTENCES = "mrw-v1.0.tar.gz", "mrw-v1.0.json"
LISTS = {  # any one of these members
    "mrw/train": ("split/train.tsv",),
    "mrw/val": ("split/valid.tsv", "split/val.tsv"),
    "mrw/test": ("split/test.tsv",),
}
NOTHING = f"{ARCHIVE} has no member {SENTENCES}, or that has no clips"
BY_HAND = "MRW has no address of it: take it from the authors' archive of clips, linked from the homepage"


def parse(raw: Raw) -> Iterator[Row]:
    """Clips in the order of the archive, each followed by its caption and oddities; then the splits."""
    clips, lists = dict[str, str](), dict[str, dict[str, str]]()
    for name, file in tar_members(raw, ARCHIVE):
        if name == SENTENCES:
            for where, clip, caption, odd in _clips(file):
                clips[clip.id] = where
                yield clip
                yield caption
                if odd:
                    yield Oddity(odd, where, clip.id)
        elif any(name in names for names in LISTS.values()):
            lists[name] = _listed(file, f"{ARCHIVE}!{name}")
    if not clips:
        raise UserError(NOTHING)
    yield from _splits(clips, lists)


def media(raw: Raw) -> Iterator[Source]:
    """Lists the file of every clip. Those without address must be got by hand."""
    clips = [clip for name, file in tar_members(raw, ARCHIVE) if name == SENTENCES for _, clip, *_ in _clips(file)]
    if not clips:
        raise UserError(NOTHING)
    return (Source(clip.media, clip.url, how="" if clip.url else BY_HAND, part="media") for clip in clips)


def _clips(file: IO[bytes]) -> Iterator[tuple[str, Item, Caption, str | None]]:
    """The place of each clip, its rows, and the reason why it has no address."""
    seen = set[str]()
    for where, record in json_elements_of(file, f"{ARCHIVE}!{SENTENCES}"):
        id = once(seen, _id(value(record, "id", str, where), where), where)
        sentence = words_of(value(record, "sentence", str, where), f"{where} ({id}): its sentence")
        url, odd = _address(value(record, "images", dict, where), where)
        yield where, Item(id, f"mp4/{id}.mp4", kind="clip", url=url), Caption(id, id, 0, sentence), odd


def _address(images: dict[str, object], where: str) -> tuple[str | None, str | None]:
    """The address of a clip and None, or None and the reason why it has no address."""
    url = optional(images, "mp4_url", str, where)
    if url is None:
        return None, "mp4_url is empty: no address"
    matched("https?://[^/]+/.*", url, f"{where}: 'mp4_url'", "http address")
    if not urlsplit(url).path.endswith(".mp4"):
        return None, "mp4_url is cut off: no address"
    return url, None


def _listed(file: IO[bytes], path: str) -> dict[str, str]:
    """The ids of a list, with their places."""
    return id_list(path, ((where, _id(line.strip(), where)) for where, line in lines_of(file, path)))


def _splits(clips: dict[str, str], lists: dict[str, dict[str, str]]) -> Iterator[Row]:
    splits: dict[str, str] = {}
    for split, names in LISTS.items():
        found = [name for name in names if name in lists]
        if len(found) != 1:
            there = f"{ARCHIVE} has {len(found) or 'none'} of {' and '.join(names)}"
            raise UserError(f"{there}; it must have one for {split}")
        for id, where in lists[found[0]].items():
            if id not in clips:
                raise UserError(f"{where}: {id} is not in {SENTENCES}")
            if id in splits:
                raise UserError(f"{where}: {id} is in {splits[id]} too")
            splits[id] = split
            yield Split(id, split)
    yield from (Oddity("clip in no split: kept without one", clips[id], id) for id in clips if id not in splits)


def _id(text: str, where: str) -> str:
    return matched("[A-Za-z0-9_-]+", text, where, "id of giphy")[0]


CORPUS = Corpus(
    name="mrw",
    homepage="https://github.com/yalesong/pvse",
    licence="for academic purposes only; each clip is its maker's",
    media_set="mrw",
    sources=(Source(ARCHIVE, f"https://people.csail.mit.edu/yalesong/pvse/{ARCHIVE}"),),
    parse=parse,
    media=media,
    release={"annotations": "all", "media": "ids"},
    kinds=frozenset({"clip"}),
    printed=(
        Printed("items", 50_107, "PVSE, table 1"),
        Printed("captions", 50_107, "PVSE, table 1"),
        Printed("vocabulary", 34_835, "PVSE, table 1", note="after r/, u/, .., / and - were taken out"),
        Printed("items", 44_107, "PVSE, section 5", "mrw/train"),
        Printed("items", 1_000, "PVSE, section 5", "mrw/val"),
        Printed("items", 5_000, "PVSE, section 5", "mrw/test"),
    ),
)
