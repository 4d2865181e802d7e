"""Recall at k: the share of queries with a right answer among the first k, beside chance."""

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranks import Ranks

FIRST = (1, 5, 10)


def recall(found: Ranks) -> list[float]:
    return [100 * float(np.mean(found.ranks < k)) for k in FIRST] + _by_chance(found)


def _by_chance(found: Ranks) -> list[float]:
    """Draws k without replacement."""
    wrong, missed, hit = found.gallery - found.relevant, np.ones(len(found.relevant)), dict.fromkeys(FIRST, 100.0)
    for drawn in range(min(max(FIRST), found.gallery)):
        missed = missed * np.maximum(wrong - drawn, 0) / (found.gallery - drawn)
        if drawn + 1 in hit:
            hit[drawn + 1] = 100 * float(np.mean(1 - missed))
    return list(hit.values())


METRIC = Metric(
    "recall",
    needs=Ranks,
    compute=recall,
    columns=(
        *(Column(f"R@{k}", key=f"recall.{k}", text=f"R@{k}", latex=f"R@{k}", adds_to="rsum") for k in FIRST),
        *(Column(f"R@{k} by chance", key=f"chance.{k}", chance_of=f"R@{k}") for k in FIRST),
    ),
    position=1,
)
