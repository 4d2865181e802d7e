"""Which texts are right for which visual items, and how similarities rank them: in tiles, as the whole would not fit.

Of several right answers the best one is ranked, and a tie with a wrong answer counts against the model: an answer
stands behind every wrong one that is at least as similar (docs/models.md#recall).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.integer[Any]]
Numbers: TypeAlias = NDArray[np.floating[Any]] | Integers
Table: TypeAlias = NDArray[np.bool_]
Window: TypeAlias = tuple[slice, slice]  # visual rows, text rows
Ties: TypeAlias = Literal["against", "for"]
WHOLE: Window = (slice(None), slice(None))
RECALLS = (1, 5, 10)  # rsum is the sum of these, of both directions


@dataclass(frozen=True, eq=False)
class Pairs:
    """Listed pairs and no others: `visual[i]` matches `text[i]`, sorted by text.

    A list rather than one visual item for each text, because extended caption matches and the regions of a phrase are
    many-to-many.
    """

    visual: Integers
    text: Integers
    shape: tuple[int, int]  # visual rows, text rows

    def __post_init__(self) -> None:
        if self.visual.ndim != 1 or self.visual.shape != self.text.shape:
            raise ValueError(
                f"pairs need one visual row for each text row, not {self.visual.shape} and {self.text.shape}"
            )
        _check_within("visual", self.visual, self.shape[0])
        _check_within("text", self.text, self.shape[1])
        if np.any(self.text[1:] < self.text[:-1]):
            raise ValueError("pairs must be sorted by text row")

    @classmethod
    def of_texts(cls, visual_of_text: Integers, visual_rows: int) -> "Pairs":
        """Captions: every text belongs to exactly one visual item."""
        return cls(visual_of_text, np.arange(len(visual_of_text)), (visual_rows, len(visual_of_text)))

    def tile(self, visual_rows: slice, text_rows: slice) -> Table:
        visual_start, visual_stop = _bounds(visual_rows, self.shape[0])
        text_start, text_stop = _bounds(text_rows, self.shape[1])
        near = slice(*np.searchsorted(self.text, [text_start, text_stop]).tolist())
        visual, text = self.visual[near], self.text[near]
        inside = (visual >= visual_start) & (visual < visual_stop)
        table_VT = np.zeros((visual_stop - visual_start, text_stop - text_start), np.bool_)
        table_VT[visual[inside] - visual_start, text[inside] - text_start] = True
        return table_VT


@dataclass(frozen=True, eq=False)
class Classes:
    """A text is right for every visual item of its class or identity."""

    visual: Integers  # (V,)
    text: Integers  # (T,)

    def __post_init__(self) -> None:
        for name, classes in (("visual", self.visual), ("text", self.text)):
            if classes.ndim != 1 or not np.issubdtype(classes.dtype, np.integer):
                raise ValueError(f"{name} classes must be one integer a row, not {classes.shape} {classes.dtype}")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, visual_rows: slice, text_rows: slice) -> Table:
        visual_V = self.visual[slice(*_bounds(visual_rows, self.shape[0]))]
        text_T = self.text[slice(*_bounds(text_rows, self.shape[1]))]
        return np.equal.outer(visual_V, text_T)


@dataclass(frozen=True, eq=False)
class LabelBits:
    """A plausible match: the two sets of labels differ in at most `zeta` labels (PCME's PMRP).

    Rows without any label are refused: they would all match each other. The protocol drops them from both sides.
    """

    visual: NDArray[np.uint64]  # (V, words), as `pack_labels` gives them
    text: NDArray[np.uint64]  # (T, words)
    zeta: int

    def __post_init__(self) -> None:
        if self.zeta < 0:
            raise ValueError(f"zeta must be 0 or more, not {self.zeta}")
        for name, bits in (("visual", self.visual), ("text", self.text)):
            if bits.ndim != 2 or bits.dtype != np.uint64 or bits.shape[1] != self.visual.shape[1]:
                raise ValueError(
                    f"{name} labels must be (rows, words) uint64 of equal width, not {bits.shape} {bits.dtype}"
                )
            empty = np.flatnonzero(~bits.any(axis=1))
            if len(empty):
                raise ValueError(f"{name} row {empty[0]} has no label ({len(empty)} such rows); drop them first")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, visual_rows: slice, text_rows: slice) -> Table:
        visual_VW = self.visual[slice(*_bounds(visual_rows, self.shape[0]))]
        text_TW = self.text[slice(*_bounds(text_rows, self.shape[1]))]
        return differing_labels(visual_VW, text_TW) <= self.zeta


Relevance: TypeAlias = Pairs | Classes | LabelBits


def pack_labels(labels: Table) -> NDArray[np.uint64]:
    """(rows, labels) booleans as 64 labels a word."""
    if labels.ndim != 2 or labels.dtype != np.bool_:
        raise ValueError(f"labels must be (rows, labels) booleans, not {labels.shape} {labels.dtype}")
    padded = np.pad(labels, ((0, 0), (0, -labels.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)


def differing_labels(visual_VW: NDArray[np.uint64], text_TW: NDArray[np.uint64]) -> Integers:
    """(V, T): in how many labels two rows of `pack_labels` differ."""
    words = visual_VW.shape[1]
    differing_VT = np.zeros((len(visual_VW), len(text_TW)), np.min_scalar_type(64 * words))
    for visual_V, text_T in zip(visual_VW.T, text_TW.T, strict=True):  # a word at a time: 8 bytes a cell, not 8 x words
        differing_VT += np.bitwise_count(np.bitwise_xor.outer(visual_V, text_T))
    return differing_VT


@dataclass(frozen=True, eq=False)
class Similarities:
    """A matrix of (visual rows, text rows) that is made tile by tile; greater is closer.

    `tile` is asked for the cells of one grid only, and may be asked for a cell twice, with the same answer.
    """

    shape: tuple[int, int]
    grid: tuple[int, int]  # rows and columns of a tile; the last ones may be shorter
    tile: Callable[[slice, slice], Numbers]

    @classmethod
    def of(cls, matrix: Numbers, grid: tuple[int, int] = (512, 4096)) -> "Similarities":
        if matrix.ndim != 2:
            raise ValueError(f"similarities are (visual rows, text rows), not {matrix.shape}")
        return cls(matrix.shape, grid, lambda visual, text: matrix[visual, text])

    def cells(self) -> Iterator[Window]:
        for visual in cuts(self.shape[0], self.grid[0]):
            yield from ((visual, text) for text in cuts(self.shape[1], self.grid[1]))

    def checked(self, visual: slice, text: slice) -> Numbers:
        tile = self.tile(visual, text)
        assert tile.shape == (visual.stop - visual.start, text.stop - text.start)
        if not np.isfinite(tile).all():
            row, column = np.argwhere(~np.isfinite(tile))[0].tolist()
            where = f"visual row {visual.start + row} and text row {text.start + column}"
            raise ValueError(f"the similarity of {where} is {tile[row, column]}; only finite numbers can be ranked")
        return tile


@dataclass(frozen=True, eq=False)
class Ranks:
    """For every query of one direction, the rank of its best right answer, and how many right answers it has."""

    ranks: Integers  # (queries,), from 0
    relevant: Integers  # (queries,)
    gallery: int


Both: TypeAlias = tuple[Ranks, Ranks]  # visual to text, text to visual


def ranks(
    similarities: Similarities, relevance: Relevance, windows: Sequence[Window] = (WHOLE,), ties: Ties = "against"
) -> list[Both]:
    """The ranks within each window, all of them from one sweep over the tiles.

    Tiles with right answers are made twice: the best one must be known before what is ahead of it can be counted.
    """
    if relevance.shape != similarities.shape:
        raise ValueError(f"relevance of {relevance.shape} cannot judge similarities of {similarities.shape}")
    counts = [_Counts(bounded(window, relevance.shape), ties) for window in windows]
    for visual, text in similarities.cells():
        met, right = _met(counts, visual, text), relevance.tile(visual, text)
        if met and right.any():
            tile = similarities.checked(visual, text)
            for count, part in met:
                count.find_best(part, tile, right)
    for count in counts:
        count.check_answers()
    for visual, text in similarities.cells():
        if met := _met(counts, visual, text):
            tile, right = similarities.checked(visual, text), relevance.tile(visual, text)
            for count, part in met:
                count.count_ahead(part, tile, right)
    return [count.ranks() for count in counts]


class _Counts:
    """What is known of one window so far, on the visual side and on the text side."""

    def __init__(self, window: Window, ties: Ties) -> None:
        self._window, self._ahead = window, np.greater_equal if ties == "against" else np.greater
        lengths = [rows.stop - rows.start for rows in window]
        self._best = [np.full(length, -np.inf) for length in lengths]
        self._relevant, self._ranks = ([np.zeros(length, np.int64) for length in lengths] for _ in range(2))

    def part(self, visual: slice, text: slice) -> tuple[Window, Window] | None:
        """Where a tile and the window meet: in the tile's own rows, and in the window's."""
        inside, outside = [], []
        for rows, window in zip((visual, text), self._window, strict=True):
            start, stop = max(rows.start, window.start), min(rows.stop, window.stop)
            if start >= stop:
                return None
            inside.append(slice(start - rows.start, stop - rows.start))
            outside.append(slice(start - window.start, stop - window.start))
        return (inside[0], inside[1]), (outside[0], outside[1])

    def find_best(self, part: tuple[Window, Window], tile: Numbers, right: Table) -> None:
        inside, outside = part
        of_right = np.where(right[inside], tile[inside], -np.inf)
        for side, rows in enumerate(outside):
            self._best[side][rows] = np.maximum(self._best[side][rows], of_right.max(axis=1 - side))
            self._relevant[side][rows] += np.count_nonzero(right[inside], axis=1 - side)

    def count_ahead(self, part: tuple[Window, Window], tile: Numbers, right: Table) -> None:
        inside, outside = part
        for side, rows in enumerate(outside):
            best = np.expand_dims(self._best[side][rows], 1 - side)
            ahead = self._ahead(tile[inside], best) & ~right[inside]
            self._ranks[side][rows] += np.count_nonzero(ahead, axis=1 - side)

    def check_answers(self) -> None:
        for side, (name, rows) in enumerate(zip(("visual", "text"), self._window, strict=True)):
            without = np.flatnonzero(self._relevant[side] == 0)
            if len(without):
                some = f"{name} row {rows.start + without[0]} has no right answer ({len(without)} such rows)"
                raise ValueError(f"{some}; drop it first")

    def ranks(self) -> Both:
        of_visual, of_text = map(Ranks, self._ranks, self._relevant, map(len, reversed(self._ranks)))
        return of_visual, of_text


def _met(counts: list[_Counts], visual: slice, text: slice) -> list[tuple[_Counts, tuple[Window, Window]]]:
    return [(count, part) for count in counts if (part := count.part(visual, text))]


def fold_windows(visual_of_text: Integers, visual_rows: int, size: int = 1000) -> list[Window]:
    """The 1K protocol: consecutive visual rows of that number, each fold with its own texts.

    [] where the rows are not two or more such galleries, within 1 %: a mean over others would be no 1K result. COCO's
    5,000 give five of exactly 1,000; where a few are missing the folds shrink alike, so that none is much easier.
    """
    if np.any(visual_of_text[1:] < visual_of_text[:-1]):
        raise ValueError("folds need texts in the order of their visual rows")
    count = round(visual_rows / size)
    if count < 2 or abs(visual_rows - count * size) * 100 > count * size:
        return []
    cuts = [visual_rows * fold // count for fold in range(count + 1)]
    text_cuts = np.searchsorted(visual_of_text, cuts).tolist()
    return [(slice(*cuts[fold : fold + 2]), slice(*text_cuts[fold : fold + 2])) for fold in range(count)]


@dataclass(frozen=True)
class Direction:
    """Recalls are percentages, `chance` those of random order; ranks count from 1, the normalised one in galleries."""

    recall: Mapping[int, float]
    chance: Mapping[int, float]
    median_rank: float
    mean_rank: float
    normalised_median: float

    @classmethod
    def of(cls, found: Ranks) -> "Direction":
        median = math.floor(np.median(found.ranks)) + 1
        recall = {k: 100 * float(np.mean(found.ranks < k)) for k in RECALLS}
        return cls(recall, _chance(found), median, float(np.mean(found.ranks)) + 1, median / found.gallery)

    @classmethod
    def mean(cls, folds: Sequence["Direction"]) -> "Direction":
        return cls(
            {k: fmean(fold.recall[k] for fold in folds) for k in RECALLS},
            {k: fmean(fold.chance[k] for fold in folds) for k in RECALLS},
            fmean(fold.median_rank for fold in folds),
            fmean(fold.mean_rank for fold in folds),
            fmean(fold.normalised_median for fold in folds),
        )


@dataclass(frozen=True)
class Scores:
    """Both directions over one gallery, or their means over several."""

    visual_to_text: Direction
    text_to_visual: Direction
    galleries: int

    @classmethod
    def of(cls, found: Sequence[Both]) -> "Scores":
        directions = [Direction.mean([Direction.of(both[side]) for both in found]) for side in (0, 1)]
        return cls(directions[0], directions[1], len(found))

    @property
    def rsum(self) -> float:
        return math.fsum((*self.visual_to_text.recall.values(), *self.text_to_visual.recall.values()))


def _chance(found: Ranks) -> dict[int, float]:
    """A random order misses with k draws without replacement, all of them wrong."""
    wrong, missed, recall = found.gallery - found.relevant, np.ones(len(found.relevant)), dict.fromkeys(RECALLS, 100.0)
    for drawn in range(min(max(RECALLS), found.gallery)):
        missed = missed * np.maximum(wrong - drawn, 0) / (found.gallery - drawn)
        if drawn + 1 in recall:
            recall[drawn + 1] = 100 * float(np.mean(1 - missed))
    return recall


def cuts(length: int, size: int) -> Iterator[slice]:
    """Runs of `size` rows; the last may be shorter."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def bounded(window: Window, shape: tuple[int, int]) -> Window:
    (first, last), (start, stop) = (_bounds(rows, length) for rows, length in zip(window, shape, strict=True))
    if first == last or start == stop:
        raise ValueError(f"an empty gallery cannot be searched: {last - first} visual rows, {stop - start} text rows")
    return slice(first, last), slice(start, stop)


def _bounds(rows: slice, length: int) -> tuple[int, int]:
    """Start and stop of contiguous rows; unlike indexing, a stop beyond the end is an error."""
    start, stop, step = 0 if rows.start is None else rows.start, length if rows.stop is None else rows.stop, rows.step
    if step not in (None, 1) or not 0 <= start <= stop <= length:
        raise IndexError(f"rows {start}:{stop} (step {step}) are not a run within 0:{length}")
    return start, stop


def _check_within(name: str, rows: Integers, length: int) -> None:
    if not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"{name} rows must be integers, not {rows.dtype}")
    if len(rows) and not 0 <= rows.min() <= rows.max() < length:
        raise ValueError(f"{name} rows {rows.min()}..{rows.max()} are not all within 0:{length}")
