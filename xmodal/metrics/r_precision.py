"""R-Precision: the share of right answers among the first R, of R right ones, beside chance."""

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranked_lists import Floats, RelevantRanks


def r_precision(found: RelevantRanks) -> list[Floats]:
    return [found.sums(found.within_relevant) / found.relevant, found.relevant / found.gallery]


METRIC = Metric(
    "r_precision",
    needs=RelevantRanks,
    compute=r_precision,
    columns=(
        Column("R-P", key="r_precision", text="R-P", latex="R-P"),
        Column("R-P by chance", key="by_chance", text="chance"),
    ),
    position=1,
)
