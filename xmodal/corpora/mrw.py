"""MRW, "my reaction when": 50,107 clips from giphy, each with the sentence that it is a reaction to.

mrw-v1.0.tar.gz!mrw-v1.0.json has the sentences:

    [{"id": "lJ1Q5fkkPAk6I", "sentence": "MRW a witty comment I wanted to make was already said",
      "images": {"mp4_url": "http://media3.giphy.com/media/lJ1Q5fkkPAk6I/giphy.mp4", ...},
      "gulp_num_frames": 31, ...}, ...]

mrw-v1.0.tar.gz!split/{train,valid,test}.tsv have a giphy id a line:

    lJ1Q5fkkPAk6I

The traps (more: docs/corpora.md#mrw):
- Some addresses are empty, others cut off before ".mp4" (".../c84Hf3KIsQ1uo/giphy"). Both are counted; such a clip is
  absent unless it is given by hand.
- A clip that is in no list is kept without a split and counted. An id in a list but without a sentence is refused.
- What the authors remove from sentences is a step of the recipes (`xmodal.text.tokenizers`).
- 44,107 + 1,000 + 5,000 are the paper's numbers. Nobody has counted them in the files, so nothing asserts them.

The authors' clips are taken from the raw folder, and so is their Gulp dump: docs/corpora.md#mrw says where.
"""

from collections.abc import Iterator
from typing import IO
from urllib.parse import urlsplit

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.archives import tar_members
from xmodal.raw.json_values import JsonRecord, json_elements_of
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import id_list, lines_of, matched, once, splits_by_id, words_of
from xmodal.records.tables import Caption, Item, Oddity, Row, Split

ARCHIVE, SENTENCES = "mrw-v1.0.tar.gz", "mrw-v1.0.json"
LISTS = {  # member: split; the authors know two names of one list
    "split/train.tsv": "mrw/train",
    "split/valid.tsv": "mrw/val",
    "split/val.tsv": "mrw/val",
    "split/test.tsv": "mrw/test",
}
NOTHING = f"{ARCHIVE} has no member {SENTENCES}, or that has no clips"
BY_HAND = "MRW has no address of it: take it from the authors' archive of clips, linked from the homepage"


def parse(raw: Raw) -> Iterator[Row]:
    """Clips in the order of the archive, each followed by its caption and oddities; then the splits."""
    clips, lists = dict[str, str](), dict[str, dict[str, str]]()
    for name, file in tar_members(raw, ARCHIVE):
        path = f"{ARCHIVE}!{name}"
        if name == SENTENCES:
            for where, clip, others in _clips(file):
                clips[clip.id] = where
                yield clip
                yield from others
        elif name in LISTS:
            if LISTS[name] in lists:
                raise UserError(f"{path} is a second list of {LISTS[name]}: remove one of them")
            lists[LISTS[name]] = id_list(path, lines_of(file, path), _id)
    if not clips:
        raise UserError(NOTHING)
    yield from _splits(clips, lists)


def media(raw: Raw) -> Iterator[Source]:
    """Lists every clip. Those without address must be got by hand."""
    clips = [clip for name, file in tar_members(raw, ARCHIVE) if name == SENTENCES for _, clip, _ in _clips(file)]
    if not clips:
        raise UserError(NOTHING)
    return (Source(clip.media, clip.url, how="" if clip.url else BY_HAND, part="media") for clip in clips)


def _clips(file: IO[bytes]) -> Iterator[tuple[str, Item, list[Row]]]:
    """The place of each clip, and its rows."""
    seen = set[str]()
    for record in json_elements_of(file, f"{ARCHIVE}!{SENTENCES}"):
        where = record.where
        id = once(seen, _id(record.value("id", str), where), where)
        sentence = words_of(record.value("sentence", str), f"{where} ({id}): its sentence")
        others: list[Row] = [Caption(id, id, 0, sentence)]
        url = JsonRecord(record.value("images", dict), where).optional("mp4_url", str)
        if url is None:
            others.append(Oddity("mp4_url is empty: no address", where, id))
        else:
            matched("https?://[^/]+/.*", url, f"{where}: 'mp4_url'", "http address")
            if not urlsplit(url).path.endswith(".mp4"):
                url = None
                others.append(Oddity("mp4_url is cut off: no address", where, id))
        yield where, Item(id, f"mp4/{id}.mp4", kind="clip", url=url), others


def _splits(clips: dict[str, str], lists: dict[str, dict[str, str]]) -> Iterator[Row]:
    for name, split in LISTS.items():
        if split not in lists:
            raise UserError(f"{ARCHIVE} has no {name}, the list of {split}")
    splits = splits_by_id({split: lists[split] for split in LISTS.values()})
    for id, (split, where) in splits.items():
        if id not in clips:
            raise UserError(f"{where}: {id} is not in {SENTENCES}")
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
)
