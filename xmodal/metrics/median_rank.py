"""Median and mean rank of the best right answer, from 1, and the median as a share of the gallery."""

import math

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranks import Ranks


def typical_ranks(found: Ranks) -> list[float]:
    median = math.floor(np.median(found.ranks)) + 1
    return [median, float(np.mean(found.ranks)) + 1, median / found.gallery]


METRIC = Metric(
    "median_rank",
    needs=Ranks,
    compute=typical_ranks,
    columns=(
        Column("Med R", key="median_rank", text="median", latex="median", digits=1),
        Column("Mean R", key="mean_rank", text="mean", digits=1),
        Column("nMR", key="normalised_median", text="nMR", digits=4),
    ),
    position=2,
)
