"""Precision at k, divided by k also in a smaller gallery, as PCME has it."""

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranked_lists import Floats, RelevantRanks

FIRST = (1, 5, 10, 50, 100)
SHOWN = (1, 5, 10)  # in text; JSON has all


def precision_at_k(found: RelevantRanks) -> list[Floats]:
    return [found.sums(found.ranks <= k) / k for k in FIRST]


def _column(k: int) -> Column:
    return Column(
        f"P@{k}",
        key=f"precision.{k}",
        text=f"P@{k}" if k in SHOWN else "",
        latex="R@1" if k == 1 else "",  # precision at 1 is recall at 1
    )


METRIC = Metric(
    "precision_at_k", needs=RelevantRanks, compute=precision_at_k, columns=tuple(map(_column, FIRST)), position=3
)
