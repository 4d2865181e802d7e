"""Ranks of the best right answer of every query, from one sweep over tiles of similarities.

A right answer stands behind every wrong one that is at least as similar (docs/models.md#recall).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xmodal.ranking.relevance import Relevance, RelevanceTable
from xmodal.ranking.similarities import SIDES, WHOLE, Integers, Numbers, Similarities, Window, bounded

Ties = Literal["against", "for"]


@dataclass(frozen=True, eq=False)
class Ranks:
    """Holds the rank of the best right answer of every query of one direction."""

    ranks: Integers  # (queries,), from 0
    relevant: Integers  # (queries,)
    gallery: int


Both = tuple[Ranks, Ranks]  # visual to text, text to visual


def ranks(
    matrix: Similarities, relevance: Relevance, windows: Sequence[Window] = (WHOLE,), ties: Ties = "against"
) -> list[Both]:
    """Ranks within each window; tiles with right answers are made twice."""
    if relevance.shape != matrix.shape:
        raise ValueError(f"relevance of {relevance.shape} cannot judge similarities of {matrix.shape}")
    counts = [_Counts(bounded(window, relevance.shape), ties) for window in windows]
    for visual, text in matrix.cells():
        met, right = _met(counts, visual, text), relevance.tile(visual, text)
        if met and right.any():
            tile = matrix.checked(visual, text)
            for count, part in met:
                count.find_best(part, tile, right)
    for count in counts:
        count.check_answers()
    for visual, text in matrix.cells():
        if met := _met(counts, visual, text):
            tile, right = matrix.checked(visual, text), relevance.tile(visual, text)
            for count, part in met:
                count.count_ahead(part, tile, right)
    return [count.ranks() for count in counts]


class _Counts:  # of one window
    def __init__(self, window: Window, ties: Ties) -> None:
        self._window, self._ahead = window, np.greater_equal if ties == "against" else np.greater
        lengths = [rows.stop - rows.start for rows in window]
        self._best = [np.full(length, -np.inf) for length in lengths]
        self._relevant, self._ranks = ([np.zeros(length, np.int64) for length in lengths] for _ in range(2))

    def part(self, visual: slice, text: slice) -> tuple[Window, Window] | None:
        """Intersects a tile with the window: rows of each, or None."""
        inside, outside = [], []
        for rows, window in zip((visual, text), self._window, strict=True):
            start, stop = max(rows.start, window.start), min(rows.stop, window.stop)
            if start >= stop:
                return None
            inside.append(slice(start - rows.start, stop - rows.start))
            outside.append(slice(start - window.start, stop - window.start))
        return (inside[0], inside[1]), (outside[0], outside[1])

    def find_best(self, part: tuple[Window, Window], tile: Numbers, right: RelevanceTable) -> None:
        inside, outside = part
        of_right = np.where(right[inside], tile[inside], -np.inf)
        for side, rows in enumerate(outside):
            self._best[side][rows] = np.maximum(self._best[side][rows], of_right.max(axis=1 - side))
            self._relevant[side][rows] += np.count_nonzero(right[inside], axis=1 - side)

    def count_ahead(self, part: tuple[Window, Window], tile: Numbers, right: RelevanceTable) -> None:
        inside, outside = part
        for side, rows in enumerate(outside):
            best = np.expand_dims(self._best[side][rows], 1 - side)
            ahead = self._ahead(tile[inside], best) & ~right[inside]
            self._ranks[side][rows] += np.count_nonzero(ahead, axis=1 - side)

    def check_answers(self) -> None:
        for name, rows, relevant in zip(SIDES, self._window, self._relevant, strict=True):
            if len(without := np.flatnonzero(relevant == 0)):
                row = f"{name} row {rows.start + without[0]}"
                raise ValueError(f"{row} has no right answer ({len(without)} such rows); drop it first")

    def ranks(self) -> Both:
        of_visual, of_text = map(Ranks, self._ranks, self._relevant, map(len, reversed(self._ranks)))
        return of_visual, of_text


def _met(counts: list[_Counts], visual: slice, text: slice) -> list[tuple[_Counts, tuple[Window, Window]]]:
    return [(count, part) for count in counts if (part := count.part(visual, text))]


def fold_windows(visual_of_text: Integers, visual_rows: int, size: int = 1000) -> list[Window]:
    """Cuts the rows into folds of `size` consecutive visual rows with their texts, as the 1K protocol does.

    Returns none if the rows are not two or more such galleries, within 1 %; if a few are missing the folds
    shrink alike.
    """
    if np.any(visual_of_text[1:] < visual_of_text[:-1]):
        raise ValueError("folds need texts in the order of their visual rows")
    count = round(visual_rows / size)
    if count < 2 or abs(visual_rows - count * size) * 100 > count * size:
        return []
    ends = [visual_rows * fold // count for fold in range(count + 1)]
    text_ends = np.searchsorted(visual_of_text, ends).tolist()
    return [(slice(*ends[fold : fold + 2]), slice(*text_ends[fold : fold + 2])) for fold in range(count)]


def cmc(found: Ranks) -> NDArray[np.float64]:
    """Gives the share of queries with a right answer among the first 1, 2, …."""
    return np.cumsum(np.bincount(found.ranks, minlength=found.gallery)) / len(found.ranks)


def median_by_cmc(found: Ranks) -> int:
    """Gives Dual-Path's median rank, the first at which the curve is above one half."""
    return int(np.argmax(cmc(found) > 0.5)) + 1
