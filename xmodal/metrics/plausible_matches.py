"""Plausible matches: items that show nearly the same things (docs/models.md#pmrp).

Two items match at level zeta, which is 0, 1 or 2, if their sets of categories differ in at most zeta. Items without any
are dropped: they would all match each other.

Pairs of near label sets are kept, with their level: COCO's 113,287 training items share some ten thousand sets; a table
of items would have 13 billion cells.
"""

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from xmodal.ranking.relevance import differing_labels, pack_names
from xmodal.ranking.similarities import Integers
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output

ZETA = 2  # the largest of the protocol
FAR = ZETA + 1  # the level of items that do not match
ROWS_AT_ONCE = 64  # label sets of a tile
ITEMS = "items.parquet"
PLAUSIBLE, PLAUSIBLE_SEMANTICS = "plausible", "plausible_semantics"  # the stages
Words = NDArray[np.uint64]
Near = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]  # one set, another, their level
NOTHING: Near = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class LabelSets:
    """The different label sets of items, sorted by size."""

    ids: tuple[str, ...]  # of the items that have labels, sorted
    of_item: Integers  # (items,): rows of `bits`
    bits: Words  # (sets, words), as `pack_names` gives them
    sizes: Integers  # (sets,): labels in each, ascending

    @staticmethod
    def of(labels: Mapping[str, Iterable[str]]) -> "LabelSets":
        ids = tuple(sorted(item for item, names in labels.items() if names))
        sets = [tuple(sorted(set(labels[item]))) for item in ids]
        known = sorted(set(sets), key=lambda names: (len(names), names))
        rows = {names: row for row, names in enumerate(known)}
        of_item = np.array([rows[names] for names in sets], np.int64)
        return LabelSets(ids, of_item, pack_names(known), np.array([*map(len, known)], np.int64))

    def near(self, first: int, stop: int) -> Near:
        """Pairs of a set in first..stop-1 and any set, itself too, that differ in at most ZETA labels."""
        return _concatenated(
            [self._near(row, min(row + ROWS_AT_ONCE, stop)) for row in range(first, stop, ROWS_AT_ONCE)]
        )

    def _near(self, first: int, stop: int) -> Near:
        low, high = self.sizes[first] - ZETA, self.sizes[stop - 1] + ZETA
        start, end = np.searchsorted(self.sizes, [low, high + 1]).tolist()
        differing = differing_labels(self.bits[first:stop], self.bits[start:end])
        ones, others = np.nonzero(differing <= ZETA)
        levels = differing[ones, others].astype(np.uint8)
        return (ones + first).astype(np.int32), (others + start).astype(np.int32), levels


@dataclass(frozen=True, eq=False)
class PlausibleMatches:
    ids: Sequence[str]
    of_item: Integers
    starts: Integers  # (sets + 1,): where the neighbours of a set begin
    others: NDArray[np.int32]
    levels: NDArray[np.uint8]

    def __repr__(self) -> str:
        return f"<PlausibleMatches: {len(self.ids):,} items of {len(self.starts) - 1:,} label sets>"

    @staticmethod
    def of(sets: LabelSets) -> "PlausibleMatches":
        return _joined(sets.ids, sets.of_item, sets.near(0, len(sets.sizes)))

    @staticmethod
    def read(output: Output) -> "PlausibleMatches":
        ids, of_item = read_columns(output, ITEMS, "id", "set").columns
        files = sorted(name for name in output.files if name.startswith("near-"))
        parts = [read_columns(output, name, "one", "other", "level").columns for name in files]
        near = _concatenated([tuple(column.to_numpy() for column in part) for part in parts])
        return _joined(ids.to_pylist(), of_item.to_numpy(), near)

    def within(self, items: Container[str]) -> "PlausibleMatches":
        rows = [row for row, item in enumerate(self.ids) if item in items]
        return replace(self, ids=[self.ids[row] for row in rows], of_item=self.of_item[rows])

    def matches(self, item: str, zeta: int = 0) -> dict[str, int]:
        """The items that match an item, itself too, with their level."""
        if item not in self._places:
            return {}
        one = self.of_item[self._places[item]]
        near = slice(self.starts[one], self.starts[one + 1])
        level_of = dict(zip(self.others[near].tolist(), self.levels[near].tolist(), strict=True))
        found = ((row, level_of[each]) for row, each in enumerate(self.of_item.tolist()) if each in level_of)
        return {self.ids[row]: level for row, level in found if level <= zeta}

    def tile(self, rows: Integers, columns: Integers) -> NDArray[np.uint8]:
        """(rows, columns) levels between items by their positions in `ids`; FAR for no match."""
        sets, row_of = np.unique(self.of_item[rows], return_inverse=True)
        those, column_of = np.unique(self.of_item[columns], return_inverse=True)
        column = np.full(len(self.starts) - 1, -1)
        column[those] = np.arange(len(those))
        table = np.full((len(sets), len(those)), FAR, np.uint8)
        for row, one in enumerate(sets.tolist()):
            near = slice(self.starts[one], self.starts[one + 1])
            to = column[self.others[near]]
            table[row, to[to >= 0]] = self.levels[near][to >= 0]
        return np.asarray(table[row_of].take(column_of, axis=1))

    def count(self, zeta: int) -> int:
        """Counts ordered pairs that match at this level or below, an item with itself too."""
        items = np.bincount(self.of_item, minlength=len(self.starts) - 1)
        ones = np.repeat(items, np.diff(self.starts))
        return int((ones * items[self.others])[self.levels <= zeta].sum())

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {item: place for place, item in enumerate(self.ids)}


def _concatenated(parts: Sequence[Near]) -> Near:
    ones, others, levels = (np.concatenate(columns) for columns in zip(NOTHING, *parts, strict=True))
    return ones, others, levels


def _joined(ids: Sequence[str], of_item: Integers, near: Near) -> PlausibleMatches:
    ones, others, levels = near
    counts = np.bincount(ones, minlength=int(of_item.max(initial=-1)) + 1)
    return PlausibleMatches(ids, of_item, np.concatenate([[0], np.cumsum(counts)]), others, levels)
