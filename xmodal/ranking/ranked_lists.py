"""Ranks of all right answers of a query.

Every wrong answer stands before the right ones that are no more similar.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.ranking.relevance import Relevance, RelevanceTable
from xmodal.ranking.similarities import SIDES, Integers, Numbers, Side, Similarities, query_blocks

Floats = NDArray[np.float64]
FEW = 16  # right answers up to which counting is faster than sorting
ANSWERS_AT_ONCE = 2**16  # ranks that metrics get together: some megabytes


@dataclass(frozen=True, eq=False)
class RelevantRanks:
    """Holds the ranks of all right answers of some queries, query after query, the best first."""

    ranks: Integers  # (right answers of all queries,), from 1
    relevant: Integers  # (queries,): right answers of each, at least one
    gallery: int

    @cached_property
    def _starts(self) -> Integers:
        return np.cumsum(self.relevant) - self.relevant

    @cached_property
    def number(self) -> Integers:
        """Counts the right answers of a query from 1, beside `ranks`."""
        return np.arange(1, len(self.ranks) + 1) - np.repeat(self._starts, self.relevant)

    @cached_property
    def within_relevant(self) -> RelevanceTable:
        """Marks the answers among the first R of their query, of R right ones."""
        return self.ranks <= np.repeat(self.relevant, self.relevant)

    @cached_property
    def precision(self) -> Floats:
        return self.number / self.ranks

    def sums(self, values: NDArray[Any]) -> Floats:
        """Sums values, which stand beside `ranks`, by query."""
        return np.add.reduceat(values, self._starts, dtype=np.float64)


def relevant_ranks(
    matrix: Similarities, relevance: Relevance, queries: Side, *, drop: bool = False
) -> Iterator[RelevantRanks]:
    """Yields the ranks of some queries of one direction at a time.

    Queries without a right answer are refused, or not asked with `drop`.
    """
    if relevance.shape != matrix.shape:
        raise ValueError(f"relevance of {relevance.shape} cannot judge similarities of {matrix.shape}")
    gallery = matrix.shape[1 - SIDES.index(queries)]
    found, answers, asked = list[Integers](), 0, False
    for rows, scores_QG in query_blocks(matrix, queries):
        right_QG = relevance.tile(rows, slice(None)) if queries == "visual" else relevance.tile(slice(None), rows).T
        answered = right_QG.any(axis=1)
        if not drop and not answered.all():
            raise ValueError(f"{queries} row {rows.start + answered.argmin()} has no right answer; drop it first")
        for row in np.flatnonzero(answered):
            found.append(ranks_of_relevant(scores_QG[row], right_QG[row]))
            answers += len(found[-1])
            if answers >= ANSWERS_AT_ONCE:
                yield _joined(found, gallery)
                found, answers, asked = [], 0, True
    if found:
        yield _joined(found, gallery)
    elif not asked:
        raise ValueError(f"no {queries} row has a right answer")


def _joined(found: list[Integers], gallery: int) -> RelevantRanks:
    return RelevantRanks(np.concatenate(found), np.array([len(ranks) for ranks in found]), gallery)


def ranks_of_relevant(scores: Numbers, right: RelevanceTable) -> Integers:
    worst_first = np.sort(scores[right])
    best_first = worst_first[::-1]
    if len(best_first) <= FEW:
        reached = np.count_nonzero(scores >= best_first[:, None], axis=1)
    else:
        reached = len(scores) - np.searchsorted(np.sort(scores), best_first)
    ahead = reached - (len(best_first) - np.searchsorted(worst_first, best_first))
    return np.asarray(ahead + np.arange(1, len(best_first) + 1))
