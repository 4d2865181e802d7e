"""The records stage: a corpus' sealed annotations, parsed into Parquet tables, one a kind of row."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from pipelines.stage import Counts, Inputs, Sink, Stage
from xmodal.corpora import Corpus
from xmodal.locks import raw_of, read_lock
from xmodal.outputs import Output
from xmodal.records import ROWS, Caption, Item, Oddity, Row, Split, Tables
from xmodal.trouble import Trouble

VERSION = 2
FIRST = 5  # captions an item in the papers' counts


@dataclass(frozen=True)
class RecordsConfig:
    corpus: str = field(metadata={"given": True})
    corpus_version: int = field(metadata={"given": True})
    media_set: str = field(metadata={"given": True})
    row_group: int = 65_536

    def __post_init__(self) -> None:
        if self.row_group < 1:
            raise ValueError(f"row_group is at least 1, not {self.row_group}")


@dataclass(frozen=True)
class Files:
    """The work: the checksum of every file that is read."""

    sha256: tuple[tuple[str, str | None], ...]


def records(corpus: Corpus, sealed: Output, config: RecordsConfig) -> Stage[RecordsConfig, Files]:
    return Stage("records", config, _plan, partial(_open, corpus), inputs=(sealed,), version=VERSION, reuse=True)


def _plan(config: RecordsConfig, inputs: Inputs) -> Iterator[tuple[str, Files]]:
    yield "tables", Files(tuple((locked.path, locked.sha256) for locked in read_lock(inputs[0])))


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
    """What a full parse gave against what the corpus says it gives."""
    for name, expected in corpus.counts.items():
        if counts.get(name, 0) != expected:
            raise Trouble(
                f"{corpus.name}: a full parse must give {expected:,} {name}, not {counts.get(name, 0):,}: "
                "these are not the files that the corpus was published with"
            )


class Census:
    """Counts rows as they pass and refuses what contradicts itself, in whatever order the kinds of rows come."""

    def __init__(self, corpus: str) -> None:
        self._corpus = corpus
        self._items, self._caption_ids = set[str](), set[str]()
        self._captions, self._oddities = Counter[str](), Counter[str]()
        self._splits: dict[str, list[str]] = defaultdict(list)

    def add(self, row: Row) -> None:
        match row:
            case Item(id):
                self._once(id, self._items, "item")
            case Caption(id, item):
                self._once(id, self._caption_ids, "caption")
                self._captions[item] += row.source == "human"
            case Split(item, name):
                self._splits[item].append(name)
            case Oddity(rule):
                self._oddities[rule] += 1

    def counts(self) -> dict[str, int]:
        """`items:karpathy/val`, `captions:karpathy/val`, `captions[:5]:karpathy/val`, `items without captions`.

        Of what is odd, `odd: caption without picture: left out`.
        """
        self._known(self._captions.keys(), "a caption")
        self._known(self._splits.keys(), "a split")
        counts = Counter({"items without captions": len(self._items - self._captions.keys())})
        for item, names in self._splits.items():
            captions = self._captions[item]
            for name in names:
                counts[f"items:{name}"] += 1
                counts[f"captions:{name}"] += captions
                counts[f"captions[:{FIRST}]:{name}"] += min(captions, FIRST)
        counts.update({f"odd: {rule}": count for rule, count in self._oddities.items()})
        return dict(sorted(counts.items()))

    def _once(self, id: str, seen: set[str], what: str) -> None:
        if id in seen:
            raise Trouble(f"{self._corpus}: {what} {id!r} comes twice")
        seen.add(id)

    def _known(self, items: Iterable[str], what: str) -> None:
        missing = set(items) - self._items
        if missing:
            raise Trouble(f"{self._corpus}: {what} names item {min(missing)!r}, which does not exist")
