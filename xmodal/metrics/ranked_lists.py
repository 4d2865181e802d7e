"""What the sorted gallery of a query is worth: R-Precision, mAP@R, PMRP, precision@k, the CMC curve, the indicator S.

Recall asks for the best right answer alone; these ask for all of them, so a query's scores must be there together: a
band of complete rows (or columns) at a time, never the whole. Every wrong answer stands before the right ones that are
no more similar. Values are fractions, and percentages only in what a table prints.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import IO, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.metrics.ranks import (
    WHOLE,
    Integers,
    Numbers,
    Ranks,
    Relevance,
    Similarities,
    Table,
    Window,
    bounded,
    cuts,
    differing_labels,
)

Floats: TypeAlias = NDArray[np.float64]
Side: TypeAlias = Literal["visual", "text"]
SIDES: tuple[Side, Side] = ("visual", "text")
PRECISIONS = (1, 5, 10, 50, 100)  # PCME's, and precision@1, which is recall@1
ZETAS = (0, 1, 2)
FEW = 16  # right answers up to which counting is faster than sorting
SAMPLED = 61  # every so many columns; no multiple of the captions of an item
ROUNDING = 2**-7  # by which a cosine may leave [-1, 1]: two steps of bfloat16, the coarsest that scores come in


def kept(similarities: Similarities, file: IO[bytes], made: Callable[[int], None] = lambda tiles: None) -> Similarities:
    """Every tile is made once, however often it is asked for: `file` takes it, and gives it back (4 bytes a cell)."""
    places = dict[tuple[int, int], tuple[int, Any]]()

    def tile(visual: slice, text: slice) -> Numbers:
        key = visual.start, text.start
        if key in places:
            return _read(file, *places[key], (visual.stop - visual.start, text.stop - text.start))
        new = similarities.tile(visual, text)
        places[key] = file.seek(0, io.SEEK_END), new.dtype
        file.write(np.ascontiguousarray(new).data)
        made(1)
        return new

    return Similarities(similarities.shape, similarities.grid, tile)


def _read(file: IO[bytes], place: int, dtype: Any, shape: tuple[int, int]) -> Numbers:
    file.seek(place)
    tile: NDArray[Any] = np.frombuffer(file.read(shape[0] * shape[1] * dtype.itemsize), dtype)
    return tile.reshape(shape)


def bands(similarities: Similarities, queries: Side) -> Iterator[tuple[slice, Numbers]]:
    """Runs of queries, each with its similarity to the whole gallery: (queries, gallery), also for text queries."""
    side = SIDES.index(queries)
    for rows in cuts(similarities.shape[side], similarities.grid[side]):
        band_QG: Numbers | None = None
        for others in cuts(similarities.shape[1 - side], similarities.grid[1 - side]):
            tile = similarities.checked(*((rows, others) if side == 0 else (others, rows)))
            if band_QG is None:
                band_QG = np.empty((rows.stop - rows.start, similarities.shape[1 - side]), tile.dtype)
            band_QG[:, others] = tile if side == 0 else tile.T
        if band_QG is None:
            raise ValueError(f"an empty gallery cannot be searched: {similarities.shape} visual and text rows")
        yield rows, band_QG


def places(scores: Numbers, right: Table) -> Integers:
    """Where the right answers of one query stand, from 1."""
    worst_first = np.sort(scores[right])
    best_first = worst_first[::-1]
    if len(best_first) <= FEW:
        reached = np.count_nonzero(scores >= best_first[:, None], axis=1)
    else:
        reached = len(scores) - np.searchsorted(np.sort(scores), best_first)
    ahead = reached - (len(best_first) - np.searchsorted(worst_first, best_first))
    return np.asarray(ahead + np.arange(1, len(best_first) + 1))


@dataclass(frozen=True, eq=False)
class Lists:
    """A value for every query of one direction.

    `average_precision` goes over all right answers, by trapezoids (Dual-Path); `map_at_r` stops after the first R.
    """

    relevant: Integers  # R
    gallery: int
    r_precision: Floats
    map_at_r: Floats
    average_precision: Floats
    precision: Mapping[int, Floats]  # at k, divided by k also where the gallery is smaller (PCME)


def lists(similarities: Similarities, relevance: Relevance, queries: Side, *, drop: bool = False) -> Lists:
    """With `drop`, queries without a right answer are not asked, as where only some were judged; else refused."""
    if relevance.shape != similarities.shape:
        raise ValueError(f"relevance of {relevance.shape} cannot judge similarities of {similarities.shape}")
    everything, found = slice(None), list[tuple[float, ...]]()
    for rows, scores_QG in bands(similarities, queries):
        right_QG = relevance.tile(rows, everything) if queries == "visual" else relevance.tile(everything, rows).T
        answered = right_QG.any(axis=1)
        if not drop and not answered.all():
            raise ValueError(f"{queries} row {rows.start + answered.argmin()} has no right answer; drop it first")
        found += [_judged(places(scores_QG[row], right_QG[row])) for row in np.flatnonzero(answered)]
    if not found:
        raise ValueError(f"no {queries} row has a right answer")
    relevant, r_precision, map_at_r, average, *precision = np.array(found).T
    gallery = similarities.shape[1 - SIDES.index(queries)]
    by_k = dict(zip(PRECISIONS, precision, strict=True))
    return Lists(relevant.astype(np.int64), gallery, r_precision, map_at_r, average, by_k)


def _judged(places: Integers) -> tuple[float, ...]:
    """R, R-Precision, mAP@R, average precision, and precision@k of one query."""
    count = len(places)
    so_far = np.arange(1, count + 1)
    precision = so_far / places
    before = np.where(places > 1, (so_far - 1) / np.maximum(places - 1, 1), 1.0)  # just ahead of each right answer
    within = int(np.searchsorted(places, count, side="right"))
    at = (np.searchsorted(places, PRECISIONS, side="right") / PRECISIONS).tolist()
    average = float((before + precision).sum()) / 2 / count
    return count, within / count, float(precision[:within].sum()) / count, average, *at


@dataclass(frozen=True)
class ListScores:
    """Percentages, means over the queries that were asked; `by_chance` is the R-Precision of a random order."""

    queries: int
    r_precision: float
    by_chance: float
    map_at_r: float
    average_precision: float
    precision: Mapping[int, float]

    @classmethod
    def of(cls, found: Lists) -> "ListScores":
        return cls(
            queries=len(found.relevant),
            r_precision=_percent(found.r_precision),
            by_chance=_percent(found.relevant / found.gallery),
            map_at_r=_percent(found.map_at_r),
            average_precision=_percent(found.average_precision),
            precision={k: _percent(values) for k, values in found.precision.items()},
        )


@dataclass(frozen=True)
class Plausible:
    """PMRP of one direction: R-Precision, in percent, where labels may differ in zeta places; `mean` is over the zetas.

    Items without labels are neither asked nor searched, and `queries` does not count them.
    """

    queries: int
    r_precision: Mapping[int, float]  # by zeta
    by_chance: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.r_precision.values())

    @classmethod
    def over(cls, folds: Sequence["Plausible"]) -> "Plausible":
        """The mean of galleries, each of the same weight; `queries` are those of all."""
        means = (
            {zeta: fmean(of[zeta] for of in found) for zeta in ZETAS}
            for found in ([fold.r_precision for fold in folds], [fold.by_chance for fold in folds])
        )
        return cls(sum(fold.queries for fold in folds), *means)


def plausible(
    similarities: Similarities,
    visual: NDArray[np.uint64],
    text: NDArray[np.uint64],
    windows: Sequence[Window] = (WHOLE,),
) -> list[tuple[Plausible, Plausible]]:
    """PMRP within each window, visual to text and text to visual, for every zeta at once.

    Labels are those of `metrics.pack_labels`; a caption has its item's. Rows without any are dropped from both sides.
    """
    if (len(visual), len(text)) != similarities.shape:
        raise ValueError(f"{len(visual)} and {len(text)} labelled rows for similarities of {similarities.shape}")
    sides, bounds = (_Labelled.of(visual), _Labelled.of(text)), [bounded(part, similarities.shape) for part in windows]
    of_visual = _plausible(similarities, "visual", sides, bounds)
    return list(zip(of_visual, _plausible(similarities, "text", sides, bounds), strict=True))


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Rows by their sets of labels: many rows share one, as all captions of an item do."""

    sets: NDArray[np.uint64]  # (sets, words)
    of_row: Integers
    there: Table  # rows that have any label

    @classmethod
    def of(cls, labels: NDArray[np.uint64]) -> "_Labelled":
        sets, of_row = np.unique(labels, axis=0, return_inverse=True)
        return cls(sets, of_row.reshape(-1), (labels != 0).any(axis=1))

    def rows(self, window: slice) -> Integers:
        return np.arange(window.start, window.stop)[self.there[window]]


def _plausible(
    similarities: Similarities, queries: Side, sides: tuple[_Labelled, _Labelled], windows: Sequence[Window]
) -> list[Plausible]:
    side = SIDES.index(queries)
    asked, searched = sides[side], sides[1 - side]
    found: list[list[Floats]] = [[] for _ in windows]
    for rows, band_QG in bands(similarities, queries):
        scores_QG = band_QG if band_QG.dtype.kind == "f" else band_QG.astype(np.float64)
        scores_QG[:, ~searched.there] = -np.inf  # dropped: behind everything that is searched
        for window, values in zip(windows, found, strict=True):
            met = slice(max(rows.start, window[side].start), min(rows.stop, window[side].stop))
            if met.start < met.stop and len(some := asked.rows(met)):
                values += _of_sets(scores_QG, rows.start, some, window[1 - side], asked, searched)
    return [_mean(queries, values) for values in found]


def _of_sets(
    scores_QG: Numbers, start: int, rows: Integers, gallery: slice, asked: _Labelled, searched: _Labelled
) -> Iterator[Floats]:
    """One set of labels after the other, as its queries share their right answers."""
    sets, of_query, sizes = np.unique(asked.of_row[rows], return_inverse=True, return_counts=True)
    differing_SU, of_gallery = differing_labels(asked.sets[sets], searched.sets), searched.of_row[gallery]
    differing_SU[:, ~searched.sets.any(axis=1)] = max(ZETAS) + 1  # dropped: near to nothing
    members, size = np.split(rows[np.argsort(of_query)] - start, np.cumsum(sizes)[:-1]), len(searched.rows(gallery))
    for differing_U, some in zip(differing_SU, members, strict=True):
        yield _within(scores_QG[some, gallery], differing_U.take(of_gallery), size)


def _within(scores_QG: Numbers, differing_G: Integers, size: int) -> Floats:
    """(queries, 2, zetas): which share of the first R is right, and which share of a gallery of that size.

    Where a tie goes on beyond place R, its right answers are those that are beyond.
    """
    near = np.flatnonzero(differing_G <= max(ZETAS))
    near_QN, differing_N, found = scores_QG.take(near, axis=1), differing_G[near], np.zeros((len(scores_QG), 2, 3))
    top_QN: NDArray[Any] = _promising(scores_QG, len(near))
    last_Q1, beyond_Q = scores_QG[:, :1], np.zeros(1, np.int64)
    for zeta in reversed(ZETAS):
        right_QR, wider_QN, wider_Q1 = near_QN[:, differing_N <= zeta], top_QN, last_Q1
        if not (count := right_QR.shape[1]):
            return np.full(found.shape, np.nan)
        top_QN = np.partition(wider_QN, -count, axis=1)[:, -count:]
        last_Q1 = top_QN[:, :1]
        goes_on = (last_Q1 == wider_Q1)[:, 0]
        beyond_Q = (wider_QN >= last_Q1).sum(axis=1) - count + np.where(goes_on, beyond_Q, 0)
        right_Q = (right_QR >= last_Q1).sum(axis=1)
        if beyond_Q.any():
            right_Q = right_Q - np.minimum(beyond_Q, (right_QR == last_Q1).sum(axis=1))
        found[:, 0, zeta], found[:, 1, zeta] = right_Q / count, count / size
    return found


def _promising(scores_QG: Numbers, count: int) -> Numbers:
    """Columns that have all of any row's `count` greatest: cut where a sample says, as selecting among all is slow."""
    sample_QS = scores_QG[:, ::SAMPLED]
    expected = count / SAMPLED
    place = int(expected + 3 * expected**0.5) + 3
    if place > sample_QS.shape[1] // 2:
        return scores_QG
    above_QG = scores_QG >= np.partition(sample_QS, -place, axis=1)[:, -place, None]
    enough = min(map(np.count_nonzero, above_QG)) >= count  # row by row: faster than along an axis
    return scores_QG.compress(above_QG.any(axis=0), axis=1) if enough else scores_QG


def _mean(queries: Side, values: list[Floats]) -> Plausible:
    found = np.concatenate(values) if values else np.zeros((0, 2, len(ZETAS)))
    if not len(found):
        raise ValueError(f"no {queries} row has a label")
    if without := int(np.isnan(found[:, 0]).any(axis=1).sum()):
        raise ValueError(f"{without} labelled {queries} rows have no plausible answer; drop them first")
    hits, chance = (
        {zeta: 100 * fsum(part) / len(found) for zeta, part in zip(ZETAS, found[:, which].T, strict=True)}
        for which in (0, 1)
    )  # exact sums, as queries come in an order that depends on the tiles
    return Plausible(len(found), hits, chance)


def overlap(similarities: Similarities, relevance: Relevance, bins: int = 200) -> float | None:
    """Dual-Path's indicator S (eq. 10): the area that the densities of right and of wrong pairs share over [-1, 1].

    0 where every right pair beats every wrong one. None where similarities leave [-1, 1] by more than rounding, or all
    pairs are of one kind: nobody is asked whether they are cosines.
    """
    counts = np.zeros((2, bins), np.int64)
    for visual, text in similarities.cells():
        tile, right = similarities.checked(visual, text), relevance.tile(visual, text)
        if np.abs(tile).max() > 1 + ROUNDING:
            return None
        cosines = np.clip(tile, -1, 1)
        counts += [np.histogram(some, bins, (-1, 1))[0] for some in (cosines[right], cosines[~right])]
    if not counts.any(axis=1).all():
        return None
    right_share, wrong_share = counts / counts.sum(axis=1, keepdims=True)
    return float(np.minimum(right_share, wrong_share).sum())


def cmc(found: Ranks) -> Floats:
    """The share of queries with a right answer among the first 1, 2, … of the gallery."""
    return np.cumsum(np.bincount(found.ranks, minlength=found.gallery)) / len(found.ranks)


def median_by_cmc(found: Ranks) -> int:
    """Dual-Path's median rank: the first where the curve is above one half."""
    return int(np.argmax(cmc(found) > 0.5)) + 1


def _percent(values: Floats) -> float:
    return 100 * fsum(values) / len(values)
