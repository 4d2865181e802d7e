"""Separation of right from wrong pairs: Dual-Path's indicator S (docs/models.md#dual-path-evaluation)."""

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.metrics.protocols import Comparison
from xmodal.metrics.relevance import Relevance
from xmodal.metrics.similarities import Similarities

ROUNDING = 2**-7  # by which a cosine may leave [-1, 1]: two steps of bfloat16, the coarsest of scores


def separation(matrix: Similarities, relevance: Relevance, bins: int = 200) -> float | None:
    """Computes the area that the densities of right and of wrong pairs share over [-1, 1].

    None if similarities are no cosines, or all pairs are of one kind.
    """
    counts = np.zeros((2, bins), np.int64)
    for visual, text in matrix.cells():
        tile, right = matrix.checked(visual, text), relevance.tile(visual, text)
        if np.abs(tile).max() > 1 + ROUNDING:
            return None
        cosines = np.clip(tile, -1, 1)
        counts += [np.histogram(some, bins, (-1, 1))[0] for some in (cosines[right], cosines[~right])]
    if not counts.any(axis=1).all():
        return None
    right_share, wrong_share = counts / counts.sum(axis=1, keepdims=True)
    return float(np.minimum(right_share, wrong_share).sum())


METRIC = Metric(
    "separation",
    needs=Comparison,
    compute=lambda compared: [separation(compared.similarities, compared.gallery.own)],
    columns=(
        Column(
            "indicator S",
            key="separation",
            text="indicator S",
            digits=4,
            note="0: every right pair beats every wrong one",
        ),
    ),
)
