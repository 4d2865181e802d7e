"""Statistics of a corpus as parsed, beside the numbers that papers print.

Captions are those that people wrote. Words are those of the papers' tokenizer (nltk, lower-cased), so full stops and
commas count. Every table is read once; memory grows with the items and the different words of a corpus.
"""

import hashlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xmodal.batches.dataset import Dataset
from xmodal.corpora import Printed
from xmodal.features.store import FeatureStore
from xmodal.metrics.plausible_matches import ZETA, PlausibleMatches
from xmodal.recipes import EVERY, HUMAN
from xmodal.records.tables import CAPTIONS_OF_PAPERS, Caption, Item, Label, Match, Oddity, Region, read_rows
from xmodal.records.views import splits
from xmodal.root.outputs import Output
from xmodal.text.tokenizers import tokenizer

TOKENIZER, FREQUENT = "nltk", 4  # a word that occurs so often is in the papers' vocabularies


@dataclass(frozen=True)
class Spread:
    mean: float
    least: int
    most: int


@dataclass
class Tally:
    """Sum, least and most of numbers, added one by one."""

    count: int = 0
    total: int = 0
    least: int = 0
    most: int = 0

    def add(self, number: int) -> None:
        self.least = min(self.least, number) if self.count else number
        self.most, self.count, self.total = max(self.most, number), self.count + 1, self.total + number

    @property
    def spread(self) -> Spread | None:
        return Spread(self.total / self.count, self.least, self.most) if self.count else None


@dataclass(frozen=True)
class PlausiblePairs:
    """How many other items of its split an item with categories matches, if zeta labels may differ."""

    items: int  # that have categories
    matches: tuple[int, ...]  # by zeta, the sum over items: a pair counts for each of its two items

    @classmethod
    def of(cls, found: PlausibleMatches) -> "PlausiblePairs":
        items = len(found.ids)
        return cls(items, tuple(found.count(zeta) - items for zeta in range(ZETA + 1)))


@dataclass(frozen=True)
class SplitStatistics:
    """The numbers of one split, or of all items."""

    name: str
    items: int
    silent: int  # items without captions
    captions: int
    first_five: int  # captions, if at most five of each item count, as in papers
    captions_per_item: Spread | None
    words_per_caption: Spread | None
    tokens: int
    vocabulary: int  # different words
    frequent: int  # different words that occur four times or more
    lengths: Mapping[str, Spread]  # rows of an item in ragged features, by stage/identity: frames of a clip
    plausible: PlausiblePairs | None  # None: that stage was not built


@dataclass(frozen=True)
class Beside:
    """A number that a paper prints, beside the one found; None if this corpus cannot say."""

    printed: Printed
    found: float | None


@dataclass(frozen=True)
class Statistics:
    corpus: str
    records: str
    tokenizer: str
    parts: tuple[SplitStatistics, ...]  # of all items, then of each split
    counts: Mapping[str, int]  # pictures, clips, regions, labels, matches, captions of other sources
    oddities: Mapping[str, int]  # by rule
    beside: tuple[Beside, ...]

    def to_latex(self) -> str:
        """A `tabular` of the splits, which needs no package."""
        heads = ("split", "items", "captions", "captions/item", "words/caption", "vocabulary")
        rows = [
            (
                _escaped(part.name),
                f"{part.items:,}",
                f"{part.captions:,}",
                _mean(part.captions_per_item),
                _mean(part.words_per_caption),
                f"{part.vocabulary:,}",
            )
            for part in self.parts
        ]
        lines = [f"% {self.corpus}, records {self.records}, words by {self.tokenizer}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", " & ".join(heads) + r" \\ \hline"]
        return "\n".join([*lines, *(" & ".join(row) + r" \\" for row in rows), r"\end{tabular}"])


def describe(
    dataset: Dataset, printed: Iterable[Printed] = (), tick: Callable[[int], None] = lambda count: None
) -> Statistics:
    """Reads every table once; calls `tick` for each caption. `printed` numbers stand beside those found."""
    records = dataset.records
    belongs = _belongs(records)
    counts = Counter[str]()
    items = list(_items(records, counts))
    places: Mapping[str, Sequence[str]] = {item: (EVERY, *belongs.get(item, ())) for item in items}
    parts = {name: _SplitCounts() for name in (EVERY, *dataset.splits)}
    captions = _read_captions(records, places, parts, counts, tick)
    for item in items:
        for name in places[item]:
            parts[name].of_item.add(captions[item])
            parts[name].silent += not captions[item]
            parts[name].first_five += min(captions[item], CAPTIONS_OF_PAPERS)
    lengths = {f"{o.stage}/{o.identity}": _lengths(o, places) for o in dataset.features if _has_lengths(o)}
    matches = _plausible(dataset)
    made = tuple(part.done(name, lengths, matches.get(name)) for name, part in parts.items())
    counts.update(_others(records))
    oddities = Counter(row.rule for row in read_rows(records, Oddity))
    known = tuple(Beside(each, _found(each, made, counts)) for each in printed)
    return Statistics(dataset.corpus, records.identity, TOKENIZER, made, dict(counts), dict(oddities), known)


@dataclass
class _SplitCounts:
    silent: int = 0
    first_five: int = 0
    of_item: Tally = field(default_factory=Tally)
    of_caption: Tally = field(default_factory=Tally)
    words: Counter[str] = field(default_factory=Counter)

    def done(
        self, name: str, lengths: Mapping[str, Mapping[str, Spread]], plausible: PlausiblePairs | None
    ) -> SplitStatistics:
        return SplitStatistics(
            name,
            items=self.of_item.count,
            silent=self.silent,
            captions=self.of_caption.count,
            first_five=self.first_five,
            captions_per_item=self.of_item.spread,
            words_per_caption=self.of_caption.spread,
            tokens=self.of_caption.total,
            vocabulary=len(self.words),
            frequent=sum(count >= FREQUENT for count in self.words.values()),
            lengths={store: of[name] for store, of in lengths.items() if name in of},
            plausible=plausible,
        )


def _belongs(records: Output) -> dict[str, tuple[str, ...]]:
    """The splits of each item; items of the same splits share one tuple."""
    found = defaultdict[str, list[str]](list)
    for name, members in splits(records).items():
        for item in members:
            found[item].append(name)
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    return {item: shared.setdefault(tuple(names), tuple(names)) for item, names in found.items()}


def _items(records: Output, counts: Counter[str]) -> Iterator[str]:
    for item in read_rows(records, Item):
        counts[{"image": "pictures", "clip": "clips"}[item.kind]] += 1
        yield item.id


def _read_captions(
    records: Output,
    places: Mapping[str, Sequence[str]],
    parts: Mapping[str, _SplitCounts],
    counts: Counter[str],
    tick: Callable[[int], None],
) -> Counter[str]:
    """Counts the words of each split, and the captions of each item."""
    split, found = tokenizer(TOKENIZER), Counter[str]()
    for caption in read_rows(records, Caption):
        tick(1)
        if caption.source != HUMAN:
            counts[f"captions by {caption.source}"] += 1
            continue
        found[caption.item] += 1
        words = split(caption.text)
        for name in places[caption.item]:
            parts[name].of_caption.add(len(words))
            parts[name].words.update(words)
    return found


def _others(records: Output) -> Counter[str]:
    counts, named, groups = Counter[str](), defaultdict[str, set[str]](set), array("q")
    for region in read_rows(records, Region):
        counts.update({"regions": 1, "regions with a box": region.left is not None})
        named["different names of regions"].update(region.names)
        named["different attributes of regions"].update(region.attributes)
        if region.group is not None:
            digest = hashlib.blake2b(f"{region.item}\n{region.group}".encode(), digest_size=8).digest()
            groups.append(int.from_bytes(digest, "big", signed=True))
    for label in read_rows(records, Label):
        counts[f"labels: {label.kind}"] += 1
        named[f"different labels: {label.kind}"].add(label.name)
    for match in read_rows(records, Match):
        counts["matches of phrases" if match.start is not None else "matches of captions"] += 1
    counts["groups of regions"] = len(np.unique(groups))
    return +counts + Counter({name: len(some) for name, some in named.items()})


def _plausible(dataset: Dataset) -> dict[str, PlausiblePairs]:
    """Matches among all items and within each split; empty if the stage was not built."""
    if not dataset.has_plausible:
        return {}
    every, named = dataset.plausible(), splits(dataset.records)
    found = {EVERY: every} | {name: every.within(frozenset(members)) for name, members in named.items()}
    return {name: PlausiblePairs.of(some) for name, some in found.items() if some.ids}


def _has_lengths(output: Output) -> bool:
    """Whether an item has rows to count; bytes of a file, which make no rows, are not counted."""
    spec = FeatureStore(output).spec
    return spec.ragged and bool(spec.row_shape)


def _lengths(output: Output, places: Mapping[str, Sequence[str]]) -> dict[str, Spread]:
    store, tallies = FeatureStore(output), defaultdict[str, Tally](Tally)
    there = [item for item in places if item in store]
    for item, length in zip(there, store.lengths(store.rows(there)).tolist(), strict=True):
        for name in places[item]:
            tallies[name].add(length)
    return {name: tally.spread for name, tally in tallies.items() if tally.spread}


def _found(printed: Printed, parts: Iterable[SplitStatistics], counts: Mapping[str, int]) -> float | None:
    part = {part.name: part for part in parts}.get(printed.split)
    if part is None:
        return None
    if printed.what == "words_per_caption":
        return part.words_per_caption.mean if part.words_per_caption else None
    if printed.what in ("items", "captions", "first_five", "vocabulary"):
        return float(getattr(part, printed.what))
    return counts.get(printed.what)


def _mean(spread: Spread | None) -> str:
    return f"{spread.mean:.2f}" if spread else "-"


def _escaped(name: str) -> str:
    return "".join("\\" + letter if letter in "_%#&$" else letter for letter in name)
