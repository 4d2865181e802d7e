"""Metrics: numbers from similarities, without torch. A module with a METRIC adds one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Needed = TypeVar("Needed")


@dataclass(frozen=True)
class Column:
    """Names one number of a metric."""

    name: str  # as papers print it and `xmodal reproduce` looks it up: "R@1"
    key: str = ""  # where JSON has it, a dot before an inner key: "recall.1"; "" leaves it out
    text: str = ""  # its heading in text, at most 7 characters, or how its line begins; "" leaves it out
    latex: str = ""  # its heading in LaTeX; "" leaves it out
    digits: int = 2  # after the point, in text
    adds_to: str = ""  # the sum over both directions that it is part of: "rsum"
    chance_of: str = ""  # the column that has this value in a random order; text prints it below that column
    note: str = ""  # what text says behind a number that has a line of its own


@dataclass(frozen=True)
class Metric(Generic[Needed]):
    """Computes the values of its columns from one of four things.

    - `ranks.Ranks`, the best right answers in one gallery: a value a column.
    - `ranked_lists.RelevantRanks`, all right answers of some queries: for each column an array, a fraction for each
      query; reports have their means in percent.
    - `pmrp.PlausibleAnswers`, R-Precision of one gallery by what PCME calls plausible: a value a column.
    - `protocols.Comparison`, all similarities and labels: for each column a value, or None where the metric does not
      apply. Text has a line for each, LaTeX none.

    The first three are computed for each direction; ranks and plausible answers are averaged over folds.
    """

    name: str
    needs: type[Needed]
    compute: Callable[[Needed], Sequence[Any]]
    columns: tuple[Column, ...]
    position: int = 100  # in its table: the least comes first
