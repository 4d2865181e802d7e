"""Recall of captions by captions: one finds another of its item (docs/models.md#two-branch-evaluation)."""

from collections.abc import Iterator

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.metrics.protocols import Comparison
from xmodal.metrics.recall import FIRST
from xmodal.ranking.similarities import Integers, Similarities, query_blocks


def sentence_ranks(texts: Similarities, items_T: Integers) -> Integers:
    """Ranks, from 0, each caption's best sibling among all others; a caption without one is left out.

    Captions of other items stand before a sibling that is as similar.
    """
    return np.concatenate([*_ranks(texts, items_T)])


def _ranks(texts: Similarities, items_T: Integers) -> Iterator[Integers]:
    for rows, block_QT in query_blocks(texts, "visual"):
        places_Q = np.arange(rows.stop - rows.start)
        is_sibling_QT = np.equal.outer(items_T[rows], items_T)
        is_other_QT = ~is_sibling_QT
        is_sibling_QT[places_Q, places_Q + rows.start] = False  # the query itself is not ranked
        best_Q = np.where(is_sibling_QT, block_QT, -np.inf).max(axis=1)
        ranks_Q = np.count_nonzero((block_QT >= best_Q[:, None]) & is_other_QT, axis=1)
        yield ranks_Q[is_sibling_QT.any(axis=1)]


def sentence_recall(compared: Comparison) -> list[float | None]:
    if compared.texts is None:
        return [None] * len(FIRST)
    ranks = sentence_ranks(compared.texts, compared.gallery.caption_items)
    return [100 * float(np.mean(ranks < k)) if len(ranks) else None for k in FIRST]


METRIC = Metric(
    "sentence recall",
    needs=Comparison,
    compute=sentence_recall,
    columns=tuple(
        Column(f"sentence R@{k}", key=f"sentence_recall.{k}", text=f"sentence to sentence R@{k}", digits=1)
        for k in FIRST
    ),
)
