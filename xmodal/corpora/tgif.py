r"""TGIF: 102,068 animated GIFs from Tumblr, with one sentence each, three in the test split.

tgif-v1.0.tsv has an address and a sentence a line, and no header:

    https://38.media.tumblr.com/<32 hex digits>/tumblr_nqir72vsUx1sd7dido1_500.gif<TAB>a guy is making a few turns ...
    https://38.media.tumblr.com/<32 hex digits>/tumblr_nqir72vsUx1sd7dido1_500.gif<TAB>a man is sitting in a room, ...
    https://33.media.tumblr.com/tumblr_mdlv9v6hE91qanrf2o1_r11_75sq.gif<TAB>a brunette woman is looking at the man

splits/{train,val,test}.txt have an address a line, and no sentences:

    https://31.media.tumblr.com/<32 hex digits>/tumblr_n9n04znLpA1qddk8uo1_500.gif

The traps (more: docs/corpora.md#tgif):
- An id is the last part of an address without .gif, as in the papers' code; two addresses with one id are refused.
- Some GIFs of every split have more sentences than announced, partly at the end of the file. All are kept, in the
  file's order. Papers train on one a GIF: `captions_per_item=1` takes the first.
- The first release had the word "Failed" in place of some sentences. Such a sentence is left out and counted.
- A GIF in no split is kept and counted, an address in a split without a sentence left out and counted.

GIFs that you have already are taken from the raw folder, and so are Gulp dumps: docs/corpora.md#tgif says where.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from xmodal.corpora import Corpus, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import columns, matched, split_files, words_of
from xmodal.records.tables import Caption, Item, Oddity, Row, Split

SENTENCES = "tgif-v1.0.tsv"
LISTS = {"splits/train.txt": "tgif/train", "splits/val.txt": "tgif/val", "splits/test.txt": "tgif/test"}
ADDRESS = r"https://[a-z0-9.-]+/(?:[0-9a-f]+/)?([A-Za-z0-9_-]+)\.gif"


def parse(raw: Raw) -> Iterator[Row]:
    """GIFs in the order of their first sentences, each with its split and captions, after the oddities of both."""
    table = _sentence_table(raw)
    yield from table.odd
    splits = split_files(raw, LISTS, table.id)
    for id, (_, where) in splits.items():
        if id not in table.gifs:
            yield Oddity("address in a split without sentence: left out", where, id)
    for id, (where, sentences) in table.gifs.items():
        yield Item(id, f"gifs/{id}.gif", kind="clip", url=table.urls[id])
        if id in splits:
            yield Split(id, splits[id][0])
        else:
            yield Oddity("GIF in no split: kept without one", where, id)
        for position, sentence in enumerate(sentences):
            yield Caption(f"{id}#{position}", id, position, sentence)


def media(raw: Raw) -> Iterator[Source]:
    table = _sentence_table(raw)
    for id in table.gifs:
        yield Source(f"gifs/{id}.gif", table.urls[id], part="media")


@dataclass(frozen=True)
class _SentenceTable:
    gifs: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # place and sentences, by id
    urls: dict[str, str] = field(default_factory=dict)  # by id
    odd: list[Oddity] = field(default_factory=list)

    def id(self, url: str, where: str) -> str:
        """The id of an address; no two addresses may have the same."""
        id = matched(ADDRESS, url, where, "https address of a GIF")[1]
        if (other := self.urls.setdefault(id, url)) != url:
            raise UserError(f"{where}: {url} has the id {id}, as has {other}")
        return id


def _sentence_table(raw: Raw) -> _SentenceTable:
    table = _SentenceTable()
    for where, (url, text) in columns(raw, SENTENCES, 2):
        id, sentence = table.id(url, where), words_of(text, f"{where}: its sentence")
        if sentence == "Failed":
            table.odd.append(Oddity('sentence "Failed": left out', where, id))
        else:
            table.gifs.setdefault(id, (where, []))[1].append(sentence)
    if not table.gifs:
        raise UserError(f"{SENTENCES} has no sentences")
    return table


RELEASE = "https://raw.githubusercontent.com/raingo/TGIF-Release/3e54d2f71418d8a2e9f5f61aa5be0edb9c0ac2b8/data"
KNOWN = {  # size and sha256 of the published files, if known
    "splits/val.txt": (1_022_215, "c535500e8d2b4ad5555c7c947652f5920045f601b8dd3f1e52b33703bf5c7d0a"),
    "splits/test.txt": (1_090_938, "1aaa17768fd8d1e21433d4e36cb2f2a0e8b4d170da4b697e27340904fc77c1f7"),
}
CORPUS = Corpus(
    name="tgif",
    homepage="https://github.com/raingo/TGIF-Release",
    licence="sentences and lists for approved non-commercial research; each GIF is its uploader's",
    media_set="tgif",
    sources=tuple(
        Source(path, f"{RELEASE}/{path}", (), *KNOWN.get(path, (None, None))) for path in (SENTENCES, *LISTS)
    ),
    parse=parse,
    media=media,
    release={"annotations": "all", "media": "ids"},
    counts={"items": 102_068, "items:tgif/train": 80_000, "items:tgif/val": 10_708, "items:tgif/test": 11_360},
    kinds=frozenset({"clip"}),
)
