"""One measured figure, and the bar it has to reach."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    value: float
    unit: str
    against: str
    runs: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "unit": self.unit, "against": self.against, "runs": list(self.runs)}


@dataclass(frozen=True)
class Bar:
    minimum: float | None = None
    maximum: float | None = None

    def holds(self, value: float) -> bool:
        above = self.minimum is None or value >= self.minimum
        return above and (self.maximum is None or value <= self.maximum)

    def __str__(self) -> str:
        if self == Bar():
            return "(no bar)"
        return f"(at least {self.minimum:g})" if self.minimum is not None else f"(at most {self.maximum:g})"


def timed(run: Callable[[], object]) -> float:
    """In seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def median(run: Callable[[int], float], times: int, unit: str, against: str) -> Measured:
    """`run(number)` gives one figure; the median of all counts."""
    runs = tuple(round(run(number), 6) for number in range(times))
    return Measured(statistics.median(runs), unit, against, runs)
