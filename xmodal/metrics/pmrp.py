"""PMRP, PCME's R-Precision by plausible matches: the mean over zeta 0, 1 and 2 (docs/models.md#pmrp)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.metrics import Column, Metric
from xmodal.metrics.ranked_lists import Floats
from xmodal.metrics.relevance import RelevanceTable, differing_labels
from xmodal.metrics.similarities import (
    SIDES,
    WHOLE,
    Integers,
    Numbers,
    Side,
    Similarities,
    Window,
    bounded,
    query_blocks,
)

ZETAS = (0, 1, 2)
SAMPLED = 61  # every so many columns; no multiple of an item's captions


@dataclass(frozen=True)
class PlausibleAnswers:
    """Holds R-Precision of one direction and gallery, in percent."""

    queries: int
    r_precision: Mapping[int, float]  # by zeta
    by_chance: Mapping[int, float]


def pmrp(found: PlausibleAnswers) -> list[float]:
    hits, chances = list(found.r_precision.values()), list(found.by_chance.values())
    return [fmean(hits), fmean(chances), *hits, *chances]


METRIC = Metric(
    "pmrp",
    needs=PlausibleAnswers,
    compute=pmrp,
    columns=(
        Column("PMRP", key="mean", text="PMRP", latex="PMRP"),
        Column("PMRP by chance", text="chance"),
        *(Column(f"PMRP zeta {zeta}", key=f"r_precision.{zeta}", text=f"zeta {zeta}") for zeta in ZETAS),
        *(Column(f"PMRP zeta {zeta} by chance", key=f"by_chance.{zeta}") for zeta in ZETAS),
    ),
    position=1,
)


def plausible_answers(
    matrix: Similarities, visual: NDArray[np.uint64], text: NDArray[np.uint64], windows: Sequence[Window] = (WHOLE,)
) -> list[tuple[PlausibleAnswers, PlausibleAnswers]]:
    """Computes R-Precision within each window, visual to text and text to visual.

    Labels are those of `relevance.pack_labels`; a caption has its item's. Rows without any are dropped on both sides.
    """
    if (len(visual), len(text)) != matrix.shape:
        raise ValueError(f"{len(visual)} and {len(text)} labelled rows for similarities of {matrix.shape}")
    sides = _Labelled.of(visual), _Labelled.of(text)
    within = [bounded(window, matrix.shape) for window in windows]
    of_visual, of_text = (_of_direction(matrix, queries, sides, within) for queries in SIDES)
    return list(zip(of_visual, of_text, strict=True))


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Groups rows by their sets of labels."""

    sets: NDArray[np.uint64]  # (sets, words)
    of_row: Integers
    there: RelevanceTable  # rows that have any label

    @classmethod
    def of(cls, labels: NDArray[np.uint64]) -> "_Labelled":
        sets, of_row = np.unique(labels, axis=0, return_inverse=True)
        return cls(sets, of_row.reshape(-1), (labels != 0).any(axis=1))

    def rows(self, window: slice) -> Integers:
        return np.arange(window.start, window.stop)[self.there[window]]


def _of_direction(
    matrix: Similarities, queries: Side, sides: tuple[_Labelled, _Labelled], windows: Sequence[Window]
) -> list[PlausibleAnswers]:
    side = SIDES.index(queries)
    asked, searched = sides[side], sides[1 - side]
    found: list[list[Floats]] = [[] for _ in windows]
    for rows, block_QG in query_blocks(matrix, queries):
        scores_QG = block_QG if block_QG.dtype.kind == "f" else block_QG.astype(np.float64)
        scores_QG[:, ~searched.there] = -np.inf  # behind all others
        for window, values in zip(windows, found, strict=True):
            met = slice(max(rows.start, window[side].start), min(rows.stop, window[side].stop))
            if met.start < met.stop and len(some := asked.rows(met)):
                values += _by_set(scores_QG, rows.start, some, window[1 - side], asked, searched)
    return [_mean(queries, values) for values in found]


def _by_set(
    scores_QG: Numbers, start: int, rows: Integers, gallery: slice, asked: _Labelled, searched: _Labelled
) -> Iterator[Floats]:
    """Takes the sets of labels one by one: their queries share right answers."""
    sets, of_query, sizes = np.unique(asked.of_row[rows], return_inverse=True, return_counts=True)
    differing_SU, of_gallery = differing_labels(asked.sets[sets], searched.sets), searched.of_row[gallery]
    differing_SU[:, ~searched.sets.any(axis=1)] = max(ZETAS) + 1  # near to nothing
    members, size = np.split(rows[np.argsort(of_query)] - start, np.cumsum(sizes)[:-1]), len(searched.rows(gallery))
    for differing_U, some in zip(differing_SU, members, strict=True):
        yield _within(scores_QG[:, gallery].take(some, axis=0), differing_U.take(of_gallery), size)


def _within(scores_QG: Numbers, differing_G: Integers, size: int) -> Floats:
    """Returns (queries, 2, zetas): the share of the first R, and of the whole gallery, that is right.

    Where a tie goes on beyond place R, its right answers count as being beyond.
    """
    near = np.flatnonzero(differing_G <= max(ZETAS))
    near_QN, differing_N, found = scores_QG.take(near, axis=1), differing_G[near], np.zeros((len(scores_QG), 2, 3))
    top_QN: NDArray[Any] = _promising(scores_QG, len(near))
    last_Q1, beyond_Q = scores_QG[:, :1], np.zeros(1, np.int64)
    for zeta in reversed(ZETAS):
        right_QR, wider_QN, wider_Q1 = near_QN.compress(differing_N <= zeta, axis=1), top_QN, last_Q1
        if not (count := right_QR.shape[1]):
            return np.full(found.shape, np.nan)
        top_QN = np.partition(wider_QN, -count, axis=1)[:, -count:]
        last_Q1 = top_QN[:, :1]
        reach_QN, right_Q = wider_QN >= last_Q1, (right_QR >= last_Q1).sum(axis=1)
        if beyond_Q.any() or np.count_nonzero(reach_QN) > top_QN.size:  # seldom
            goes_on = (last_Q1 == wider_Q1)[:, 0]
            beyond_Q = reach_QN.sum(axis=1) - count + np.where(goes_on, beyond_Q, 0)
            right_Q = right_Q - np.minimum(beyond_Q, (right_QR == last_Q1).sum(axis=1))
        found[:, 0, zeta], found[:, 1, zeta] = right_Q / count, count / size
    return found


def _promising(scores_QG: Numbers, count: int) -> Numbers:
    """Leaves out columns that are in no row among its `count` greatest, by a sample."""
    sample_QS = scores_QG[:, ::SAMPLED]
    expected = count / SAMPLED
    place = int(expected + 3 * expected**0.5) + 3
    if place > sample_QS.shape[1] // 2:
        return scores_QG
    above_QG = scores_QG >= np.partition(sample_QS, -place, axis=1)[:, -place, None]
    enough = min(map(np.count_nonzero, above_QG)) >= count  # row by row: faster than along an axis
    return scores_QG.compress(above_QG.any(axis=0), axis=1) if enough else scores_QG


def _mean(queries: Side, values: list[Floats]) -> PlausibleAnswers:
    found = np.concatenate(values) if values else np.zeros((0, 2, len(ZETAS)))
    if not len(found):
        raise ValueError(f"no {queries} row has a label")
    if without := int(np.isnan(found[:, 0]).any(axis=1).sum()):
        raise ValueError(f"{without} labelled {queries} rows have no plausible answer; drop them first")
    hits, chance = (
        {zeta: 100 * fsum(part) / len(found) for zeta, part in zip(ZETAS, found[:, which].T, strict=True)}
        for which in (0, 1)
    )  # exact sums: the order of queries depends on the tiles
    return PlausibleAnswers(len(found), hits, chance)
