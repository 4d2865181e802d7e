"""Separation of right from wrong pairs: Dual-Path's indicator S (docs/models.md#dual-path-evaluation)."""

from dataclasses import astuple, dataclass

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.metrics.protocols import Comparison
from xmodal.ranking.relevance import Relevance
from xmodal.ranking.similarities import Similarities

ROUNDING = 2**-7  # by which a cosine may leave [-1, 1]: two steps of bfloat16, the coarsest of scores


@dataclass(frozen=True)
class Separation:
    overlap: float  # the area that the densities of right and of wrong pairs share over [-1, 1]
    right: float  # the mean cosine of right pairs
    wrong: float


def separation(matrix: Similarities, relevance: Relevance, bins: int = 200) -> Separation | None:
    """Compares right with wrong pairs; None if similarities are no cosines, or all pairs are of one kind."""
    counts, sums = np.zeros((2, bins), np.int64), np.zeros(2)
    for visual, text in matrix.cells():
        tile, right = matrix.checked(visual, text), relevance.tile(visual, text)
        if np.abs(tile).max() > 1 + ROUNDING:
            return None
        cosines = np.clip(tile, -1, 1)
        parts = cosines[right], cosines[~right]
        counts += [np.histogram(some, bins, (-1, 1))[0] for some in parts]
        sums += [some.sum(dtype=np.float64) for some in parts]
    if not counts.any(axis=1).all():
        return None
    totals = counts.sum(axis=1)
    overlap = float(np.minimum(*(counts / totals[:, None])).sum())
    return Separation(overlap, *(sums / totals).tolist())


def _values(compared: Comparison) -> tuple[float | None, ...]:
    found = separation(compared.similarities, compared.gallery.own)
    return astuple(found) if found else (None, None, None)


METRIC = Metric(
    "separation",
    needs=Comparison,
    compute=_values,
    columns=(
        Column(
            "indicator S",
            key="separation",
            text="indicator S",
            digits=4,
            note="0: every right pair beats every wrong one",
        ),
        Column("right pairs", key="right_pairs", text="mean cosine of right pairs", digits=4),
        Column("wrong pairs", key="wrong_pairs", text="mean cosine of wrong pairs", digits=4),
    ),
)
