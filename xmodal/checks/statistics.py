"""Statistics of a corpus as parsed, beside the numbers that papers print.

Captions are those that people wrote. Words are those of the papers' tokenizer (nltk, lower-cased), so full stops and
commas count. Memory grows with the items and the different words of a corpus.
"""

import hashlib
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from xmodal.batches.dataset import Dataset
from xmodal.corpora import Printed
from xmodal.detection.region_semantics import vocabulary_overlap
from xmodal.features.store import FeatureStore
from xmodal.metrics.plausible_matches import ZETA
from xmodal.recipes import EVERY, HUMAN
from xmodal.records.caption_sources import made_captions
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


def _spread(counts: Counter[int]) -> Spread | None:
    return Spread(_total(counts) / counts.total(), min(counts), max(counts)) if counts else None


def _total(counts: Counter[int]) -> int:
    return sum(number * count for number, count in counts.items())


@dataclass(frozen=True)
class PlausiblePairs:
    """Pairs of items of a split that match if zeta of their categories may differ."""

    items: int  # that have categories
    matches: tuple[int, ...]  # by zeta; a pair counts for each of its two items


@dataclass(frozen=True)
class SharedWords:
    """Words of semantics beside those that people wrote of the same items, as in A3VSE 4.6."""

    vocabulary: int  # different words of the semantics
    overlap: float  # of 1: words of both over words of either
    frequent_overlap: float  # the same of words that occur four times or more


@dataclass(frozen=True)
class SplitStatistics:
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
    semantics: Mapping[str, SharedWords]  # by stage/identity of captions that no people wrote


@dataclass(frozen=True)
class Beside:
    printed: Printed
    found: float | None  # None: this corpus cannot say


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
        lines = [f"% {self.corpus}, records {self.records}, words by {self.tokenizer}", r"\begin{tabular}{lrrrrr}"]
        lines.append(r"split & items & captions & captions/item & words/caption & vocabulary \\ \hline")
        for part in self.parts:
            means = [f"{each.mean:.2f}" if each else "-" for each in (part.captions_per_item, part.words_per_caption)]
            name = re.sub(r"([_%#&$])", r"\\\1", part.name)
            cells = (name, f"{part.items:,}", f"{part.captions:,}", *means, f"{part.vocabulary:,}")
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\end{tabular}"])


@dataclass
class _Counted:
    of_item: Counter[int] = field(default_factory=Counter)  # items by their number of captions
    of_caption: Counter[int] = field(default_factory=Counter)  # captions by their number of words
    words: Counter[str] = field(default_factory=Counter)


def describe(
    dataset: Dataset, printed: Iterable[Printed] = (), tick: Callable[[int], None] = lambda count: None
) -> Statistics:
    """Reads every table once; calls `tick` for each caption."""
    records = dataset.records
    belongs, counts, places = _belongs(records), Counter[str](), dict[str, Sequence[str]]()
    for item in read_rows(records, Item):
        counts[{"image": "pictures", "clip": "clips"}[item.kind]] += 1
        places[item.id] = (EVERY, *belongs.get(item.id, ()))
    parts = {name: _Counted() for name in (EVERY, *dataset.splits)}
    counts.update(_count_captions(records, places, parts, tick))
    lengths = {f"{o.stage}/{o.identity}": _lengths(FeatureStore(o), places) for o in dataset.features}
    matches = _plausible(dataset)
    shared = {f"{o.stage}/{o.identity}": _shared_words(o, places, parts) for o in made_captions(records)}
    made = tuple(
        _split_statistics(
            name,
            part,
            lengths={store: of[name] for store, of in lengths.items() if name in of},
            plausible=matches.get(name),
            semantics={output: of[name] for output, of in shared.items() if name in of},
        )
        for name, part in parts.items()
    )
    counts.update(_others(records))
    oddities = Counter(row.rule for row in read_rows(records, Oddity))
    named = {part.name: part for part in made}
    known = tuple(Beside(each, _found(each.what, named.get(each.split), counts)) for each in printed)
    return Statistics(dataset.corpus, records.identity, TOKENIZER, made, dict(counts), dict(oddities), known)


def _belongs(records: Output) -> dict[str, tuple[str, ...]]:
    """The splits of each item; items of the same splits share one tuple."""
    found, shared = dict[str, tuple[str, ...]](), dict[tuple[str, ...], tuple[str, ...]]()
    for name, members in splits(records).items():
        for item in members:
            names = (*found.get(item, ()), name)
            found[item] = shared.setdefault(names, names)
    return found


def _count_captions(
    records: Output,
    places: Mapping[str, Sequence[str]],
    parts: Mapping[str, _Counted],
    tick: Callable[[int], None],
) -> Counter[str]:
    """Counts captions by people in `parts`, and returns the number of those by each other source."""
    captions, others, split = Counter[str](), Counter[str](), tokenizer(TOKENIZER)
    for caption in read_rows(records, Caption):
        tick(1)
        if caption.source != HUMAN:
            others[f"captions by {caption.source}"] += 1
            continue
        captions[caption.item] += 1
        words = split(caption.text)
        for name in places[caption.item]:
            parts[name].of_caption[len(words)] += 1
            parts[name].words.update(words)
    for item_id, names in places.items():
        for name in names:
            parts[name].of_item[captions[item_id]] += 1
    return others


def _split_statistics(
    name: str,
    part: _Counted,
    lengths: Mapping[str, Spread],
    plausible: PlausiblePairs | None,
    semantics: Mapping[str, SharedWords],
) -> SplitStatistics:
    return SplitStatistics(
        name,
        items=part.of_item.total(),
        silent=part.of_item[0],
        captions=part.of_caption.total(),
        first_five=sum(min(number, CAPTIONS_OF_PAPERS) * items for number, items in part.of_item.items()),
        captions_per_item=_spread(part.of_item),
        words_per_caption=_spread(part.of_caption),
        tokens=_total(part.of_caption),
        vocabulary=len(part.words),
        frequent=sum(count >= FREQUENT for count in part.words.values()),
        lengths=lengths,
        plausible=plausible,
        semantics=semantics,
    )


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


def _shared_words(
    made: Output, places: Mapping[str, Sequence[str]], parts: Mapping[str, _Counted]
) -> dict[str, SharedWords]:
    found, split = defaultdict[str, Counter[str]](Counter), tokenizer(TOKENIZER)
    for caption in read_rows(made, Caption):
        words = split(caption.text)
        for name in places[caption.item]:
            found[name].update(words)
    return {name: _compared(words, parts[name].words) for name, words in found.items()}


def _compared(semantics: Counter[str], captions: Counter[str]) -> SharedWords:
    often = [[word for word, count in words.items() if count >= FREQUENT] for words in (semantics, captions)]
    return SharedWords(len(semantics), vocabulary_overlap(semantics, captions), vocabulary_overlap(*often))


def _plausible(dataset: Dataset) -> dict[str, PlausiblePairs]:
    if not dataset.has_plausible:
        return {}
    found = {EVERY: dataset.plausible()}
    found |= {name: found[EVERY].within(frozenset(members)) for name, members in splits(dataset.records).items()}
    return {
        name: PlausiblePairs(len(some.ids), tuple(some.count(zeta) - len(some.ids) for zeta in range(ZETA + 1)))
        for name, some in found.items()
        if some.ids
    }


def _lengths(store: FeatureStore, places: Mapping[str, Sequence[str]]) -> dict[str, Spread]:
    found = defaultdict[str, Counter[int]](Counter)
    if store.spec.ragged and store.spec.row_shape:  # bytes of a file have no shape
        there = [item for item in places if item in store]
        for item, length in zip(there, store.lengths(store.rows(there)).tolist(), strict=True):
            for name in places[item]:
                found[name][length] += 1
    return {name: spread for name, counts in found.items() if (spread := _spread(counts))}


def _found(what: str, part: SplitStatistics | None, counts: Mapping[str, int]) -> float | None:
    if part is None:
        return None
    if what == "words_per_caption":
        return part.words_per_caption.mean if part.words_per_caption else None
    if what in ("items", "captions", "first_five", "vocabulary"):
        return float(getattr(part, what))
    return counts.get(what)
