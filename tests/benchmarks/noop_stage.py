"""A stage whose units do nothing: what remains is what the engine costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipelines.engine.stage import Counts, Inputs, Sink, Stage


@dataclass(frozen=True)
class Noop:
    units: int


def noop(config: Noop) -> Stage[Noop, int]:
    return Stage("noop", config, _plan, _open)


def _plan(config: Noop, inputs: Inputs) -> Iterator[tuple[str, int]]:
    return ((f"{number:09d}", number) for number in range(config.units))


def _open(config: Noop, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    return lambda number, sink: {"rows": 1}
