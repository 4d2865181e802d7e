"""PMRP, PCME's R-Precision by plausible matches: the mean over zeta 0, 1 and 2 (docs/models.md#pmrp)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranked_lists import Floats
from xmodal.ranking.relevance import RelevanceTable, differing_labels
from xmodal.ranking.similarities import (
    SIDES,
    WHOLE,
    Integers,
    Numbers,
    Side,
    Similarities,
    Window,
    bounded,
    cuts,
    query_blocks,
)

ZETAS = (0, 1, 2)
SAMPLED = 31  # every so many columns; no multiple of an item's captions
CELLS = 2**20  # scores judged at once: about what a processor's cache holds


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
                within_QG = scores_QG[:, window[1 - side]]
                for part in cuts(len(some), max(CELLS // within_QG.shape[1], 1)):
                    part_QG = within_QG.take(some[part] - rows.start, axis=0)
                    values.append(_shares(part_QG, some[part], window[1 - side], asked, searched))
    return [_mean(queries, values) for values in found]


def _shares(scores_QG: Numbers, rows: Integers, gallery: slice, asked: _Labelled, searched: _Labelled) -> Floats:
    """Returns (queries, 2, zetas): the share of the first R, and of the whole gallery, that is right."""
    differing_QU, counts_QZ = _answers(rows, gallery, asked, searched)
    cell_N, query_N = _likely_first(scores_QG, counts_QZ[:, -1])
    set_N = searched.of_row[gallery].take(cell_N - query_N * scores_QG.shape[1])
    differing_N = differing_QU.take(query_N * differing_QU.shape[1] + set_N)
    first = _Promising.of(query_N, scores_QG.take(cell_N), differing_N, len(rows))
    found = np.empty((len(rows), 2, len(ZETAS)))
    for zeta, count_Q in zip(ZETAS, counts_QZ.T, strict=True):
        found[:, 0, zeta] = first.right(zeta, count_Q) / np.where(count_Q, count_Q, np.nan)
        found[:, 1, zeta] = count_Q / max(len(searched.rows(gallery)), 1)  # where none is labelled `_mean` refuses
    return found


@dataclass(frozen=True, eq=False)
class _Promising:
    """Lists answers query by query: the first R, all that equal the last of them, and perhaps others behind."""

    query_N: Integers
    score_N: Numbers
    differing_N: Integers  # labels in which it differs from the query
    sorted_N: Numbers  # each query's scores, rising
    end_Q: Integers  # where a query's answers end

    @classmethod
    def of(cls, query_N: Integers, score_N: Numbers, differing_N: Integers, queries: int) -> "_Promising":
        end_Q, sorted_N = np.cumsum(np.bincount(query_N, minlength=queries)), score_N.copy()
        for of_query in np.split(sorted_N, end_Q[:-1]):
            of_query.sort()
        return cls(query_N, score_N, differing_N, sorted_N, end_Q)

    def right(self, zeta: int, count_Q: Integers) -> Integers:
        """Counts right ones among the first `count`.

        Where a tie goes on beyond them, its right answers count as being beyond.
        """
        last_Q, queries = self.sorted_N[self.end_Q - np.maximum(count_Q, 1)], len(self.end_Q)
        near = np.flatnonzero(self.differing_N <= zeta)
        query_R, score_R = self.query_N[near], self.score_N[near]
        last_R = last_Q[query_R]
        right_Q = np.bincount(query_R[score_R >= last_R], minlength=queries)
        next_Q = self.sorted_N[self.end_Q - count_Q - 1]  # another query's where there is none: then nothing is beyond
        if (next_Q == last_Q).any():  # seldom
            reach_N = self.score_N >= last_Q[self.query_N]
            beyond_Q = np.bincount(self.query_N[reach_N], minlength=queries) - count_Q
            right_Q -= np.minimum(beyond_Q, np.bincount(query_R[score_R == last_R], minlength=queries))
        return right_Q


def _answers(
    rows: Integers, gallery: slice, asked: _Labelled, searched: _Labelled
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns how many labels differ (queries, sets), and R (queries, zetas)."""
    sets, of_query = np.unique(asked.of_row[rows], return_inverse=True)  # queries share them
    differing_SU = differing_labels(asked.sets[sets], searched.sets)
    differing_SU[:, ~searched.sets.any(axis=1)] = max(ZETAS) + 1  # near to nothing
    sizes_U = np.bincount(searched.of_row[gallery], minlength=len(searched.sets)).astype(np.float64)  # for BLAS
    counts_SZ = np.stack([(differing_SU <= zeta) @ sizes_U for zeta in ZETAS], axis=1)
    return differing_SU[of_query], counts_SZ[of_query].astype(np.int64)


def _likely_first(scores_QG: Numbers, counts_Q: Integers) -> tuple[Integers, Integers]:
    """Returns cells of the scores, query by query, and their queries.

    They hold a query's `count` greatest scores, all that equal the last, and few others: a sample tells which.
    """
    queries, gallery = scores_QG.shape
    sample_QS = np.sort(scores_QG[:, ::SAMPLED], axis=1)
    expected_Q = counts_Q / SAMPLED
    behind_Q = np.minimum(expected_Q + 3 * expected_Q**0.5 + 3, sample_QS.shape[1]).astype(np.int64)
    above_QG = scores_QG >= sample_QS[np.arange(queries), -behind_Q, None]
    found_Q = np.array([np.count_nonzero(row) for row in above_QG])  # faster than along an axis
    above_QG[found_Q < counts_Q] = True
    return np.flatnonzero(above_QG), np.repeat(np.arange(queries), np.where(found_Q < counts_Q, gallery, found_Q))


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
