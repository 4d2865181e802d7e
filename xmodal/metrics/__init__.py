"""Metrics: numbers from similarities, without torch. A module with a METRIC adds one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Needed = TypeVar("Needed")


@dataclass(frozen=True)
class Column:
    name: str  # as papers print it and `xmodal reproduce` looks it up: "R@1"
    key: str = ""  # in JSON, a dot before an inner key: "recall.1"; "" leaves it out, as in text and in LaTeX
    text: str = ""  # its heading, at most 7 characters, or how its line begins
    latex: str = ""  # its heading
    digits: int = 2  # after the point, in text
    adds_to: str = ""  # the sum over both directions: "rsum"
    chance_of: str = ""  # the column with this value in a random order; text prints it below
    note: str = ""  # behind a number that has a line of its own


@dataclass(frozen=True)
class Metric(Generic[Needed]):
    """Computes a value for each of its columns; CONTRIBUTING.md says from what.

    Ranks, lists and plausible answers are scored for each direction; lists in percent, the others averaged over folds.
    """

    name: str
    needs: type[Needed]
    compute: Callable[[Needed], Sequence[Any]]
    columns: tuple[Column, ...]
    position: int = 100  # in its table: the least comes first
