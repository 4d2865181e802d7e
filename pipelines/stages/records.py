"""The records stage: a corpus' sealed annotations, parsed into Parquet tables, one a kind of row."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import Any

import numpy as np

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, given
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.media_stages import Checksums, checksums
from xmodal.corpora import Corpus
from xmodal.errors import UserError
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import CAPTIONS_OF_PAPERS as FIRST
from xmodal.records.tables import ROWS, Caption, Item, Label, Match, Oddity, Region, Row, Split, Tables

VERSION = 3
TWICE, UNKNOWN = " comes twice", ", which does not exist"
A_BOX = "give left < right and top < bottom, finite numbers of pixels, or None for all four"
A_SPAN = "give 0 <= start < end, whole numbers of characters, or None for both"
BEYOND = " ends beyond its text: start and end count the text's characters, and end is excluded"
LATEST = 1 << 16  # ids of regions that are kept as they are


@dataclass(frozen=True)
class RecordsConfig:
    """`drawn` says who drew splits, with sizes of val and test."""

    corpus: str = given()
    corpus_version: int = given(0)
    media_set: str = given()
    drawn: tuple[tuple[str, int, int], ...] = given(())
    row_group: int = 65_536

    def __post_init__(self) -> None:
        if self.row_group < 1:
            raise ValueError(f"row_group is at least 1, not {self.row_group}")


STAGE = StageKind(
    name="records",
    config=RecordsConfig,
    needs=("sources",),
    seconds=lambda config, counts: 3e-5 * counts["captions"],
    memory=0.3e9,
)


@dataclass(frozen=True)
class Files:
    """The work."""

    sha256: Checksums


def make(config: RecordsConfig, needs: Needs) -> Stage[RecordsConfig, Files]:
    corpus, sources = needs.corpus, needs["sources"]
    assert corpus is not None
    config, opened = config_of(corpus, config), partial(_open, corpus)
    return Stage(STAGE.name, config, _plan, opened, (sources,), VERSION, reuse=True)


def config_of(corpus: Corpus, config: RecordsConfig) -> RecordsConfig:
    drawn = tuple((who, sizes.val, sizes.test) for who, sizes in corpus.drawn.items())
    return replace(config, corpus=corpus.name, corpus_version=corpus.version, media_set=corpus.media_set, drawn=drawn)


def _plan(config: RecordsConfig, inputs: Inputs) -> Iterator[tuple[str, Files]]:
    yield "tables", Files(tuple(checksums(inputs[0]).items()))


def _open(corpus: Corpus, config: RecordsConfig, inputs: Inputs) -> Callable[[Files, Sink], Counts]:
    def parse(work: Files, sink: Sink) -> Counts:
        with ExitStack() as stack:
            files = {name: stack.enter_context(sink.file(f"{name}.parquet")) for name in ROWS}
            census = Census(corpus.name)
            with Tables(files, config.row_group) as tables:
                for row in corpus.parse(raw_of(inputs[0])):
                    census.add(row)
                    tables.add(row)
            counts = tables.counts | census.counts()
            check_counts(corpus, counts)
        return counts

    return parse


def check_counts(corpus: Corpus, counts: Counts) -> None:
    """Refuses a full parse with other counts than the corpus says."""
    for name, expected in corpus.counts.items():
        if (found := counts.get(name, 0)) != expected:
            wrong = f"a full parse must give {expected:,} {name}, not {found:,}"
            files = "these are not the files that the corpus was published with (a part of them is read with --sample)"
            raise UserError(f"{corpus.name}: {wrong}: {files}")


class Census:
    """Counts rows as they pass, in any order, and refuses what contradicts itself."""

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self._items, self._caption_lengths, self._regions = set[str](), dict[str, int](), _Regions()
        self._named = {kind: set[str]() for kind in ("region", "label", "match")}  # items, by the rows that name them
        self._matched = dict[str, int]()  # the character before which the last phrase of a caption ends
        self._captions, self._oddities = Counter[str](), Counter[str]()  # captions by item
        self._splits: dict[str, list[str]] = defaultdict(list)  # by item

    def add(self, row: Row) -> None:
        match row:
            case Item(id):
                self._refuse("item", id if id in self._items else None, TWICE)
                self._items.add(id)
            case Caption(id, item):
                self._refuse("caption", id if id in self._caption_lengths else None, TWICE)
                self._caption_lengths[id] = len(str(row.text))  # its table refuses what is no text
                self._captions[item] += row.source == "human"
            case Split(item, name):
                self._refuse("item", item if name in self._splits[item] else None, f"{TWICE} in split {name!r}")
                self._splits[item].append(name)
            case Region(id, item):
                self._refuse("region", self._regions.add(id), TWICE)
                if not _is_box_or_none(row.left, row.top, row.right, row.bottom):
                    sides = f"left {row.left}, top {row.top}, right {row.right}, bottom {row.bottom}"
                    self._refuse("region", id, f" has {sides}: {A_BOX}")
                self._named["region"].add(item)
            case Label(item):
                self._named["label"].add(item)
            case Match(caption, item):
                if not _is_span_or_none(row.start, row.end):
                    self._refuse("a match of caption", caption, f" has start {row.start}, end {row.end}: {A_SPAN}")
                self._matched[caption] = max(self._matched.get(caption, 0), row.end or 0)
                self._named["match"].add(item)
            case Oddity(rule):
                self._oddities[rule] += 1

    def counts(self) -> dict[str, int]:
        """`items:SPLIT`, `captions:SPLIT`, `captions[:5]:SPLIT`, `items without captions`, `odd: RULE`."""
        self._refuse("region", self._regions.twice(), TWICE)
        named = {"caption": self._captions.keys(), "split": self._splits.keys(), **self._named}
        for kind, items in named.items():
            self._refuse(f"a {kind} names item", min(items - self._items, default=None), UNKNOWN)
        unknown = self._matched.keys() - self._caption_lengths.keys()
        self._refuse("a match names caption", min(unknown, default=None), UNKNOWN)
        beyond = (caption for caption, end in self._matched.items() if end > self._caption_lengths[caption])
        self._refuse("a match of caption", min(beyond, default=None), BEYOND)
        counts = Counter({"items without captions": len(self._items - self._captions.keys())})
        for item, names in self._splits.items():
            captions = self._captions[item]
            for name in names:
                counts[f"items:{name}"] += 1
                counts[f"captions:{name}"] += captions
                counts[f"captions[:{FIRST}]:{name}"] += min(captions, FIRST)
        counts.update({f"odd: {rule}": count for rule, count in self._oddities.items()})
        return dict(sorted(counts.items()))

    def _refuse(self, what: str, id: str | None, why: str) -> None:
        if id is not None:
            raise UserError(f"{self._corpus}: {what} {id!r}{why}")


def _is_box_or_none(left: Any, top: Any, right: Any, bottom: Any) -> bool:
    """Compares alone, as there are millions of regions: a NaN is never smaller, and a text cannot be compared."""
    try:
        return bool(-math.inf < left < right < math.inf and -math.inf < top < bottom < math.inf)
    except TypeError:
        return (left, top, right, bottom) == (None, None, None, None)


def _is_span_or_none(start: Any, end: Any) -> bool:
    try:
        return 0 <= index(start) < index(end)
    except TypeError:
        return start is None and end is None


class _Regions:
    """Millions of ids, as digests of 16 bytes but for the latest."""

    def __init__(self) -> None:
        self._latest: dict[str, None] = {}
        self._before = np.empty(0, "S16")  # ascending

    def add(self, id: str) -> str | None:
        """An id that is found to come twice; `twice` finds the rest."""
        if id in self._latest:
            return id
        self._latest[id] = None
        return self.twice() if len(self._latest) >= LATEST else None

    def twice(self) -> str | None:
        digests = np.array([hashlib.sha256(id.encode()).digest()[:16] for id in self._latest], "S16")
        both = np.concatenate([self._before, digests])
        both.sort(kind="stable")
        if (both[1:] == both[:-1]).any():
            again = int(np.isin(digests, self._before).argmax())
            return list(self._latest)[again]
        self._before = both
        self._latest.clear()
        return None
