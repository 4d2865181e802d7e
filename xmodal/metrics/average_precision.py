"""Mean average precision: over the first R of the gallery, and over all of it by trapezoids, as Dual-Path's code does.

Both are defined in docs/models.md#pcme-evaluation and docs/models.md#dual-path-evaluation.
"""

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranked_lists import Floats, RelevantRanks


def average_precision(found: RelevantRanks) -> list[Floats]:
    first = found.sums(np.where(found.within_relevant, found.precision, 0))
    just_before = np.where(found.ranks > 1, (found.number - 1) / np.maximum(found.ranks - 1, 1), 1)
    trapezoids = found.sums(just_before + found.precision) / 2
    return [first / found.relevant, trapezoids / found.relevant]


METRIC = Metric(
    "average_precision",
    needs=RelevantRanks,
    compute=average_precision,
    columns=(
        Column("mAP@R", key="map_at_r", text="mAP@R", latex="mAP@R"),
        Column("mAP", key="average_precision", text="mAP"),
    ),
    position=2,
)
