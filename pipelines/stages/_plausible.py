"""Stages of plausible matches: near pairs of label sets (xmodal/metrics/plausible_matches.py), whatever the labels are.

The index is one unit, every range of sets another. Each worker holds the sets: less than 1 MB for COCO.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stages._arrays import write_table
from xmodal.metrics.plausible_matches import ITEMS, LabelSets

FindSets = Callable[[Any, Inputs], LabelSets]  # of a config and inputs; keeps what it found last


@dataclass(frozen=True)
class LabelSetsPerUnit:
    sets_per_unit: int = 2048

    def __post_init__(self) -> None:
        if self.sets_per_unit < 1:
            raise ValueError(f"a unit has at least one set, not {self.sets_per_unit}")


def plausible_stage(
    name: str, config: LabelSetsPerUnit, inputs: Inputs, version: int, find_sets: FindSets
) -> Stage[Any, range]:
    def plan(config: LabelSetsPerUnit, inputs: Inputs) -> Iterator[tuple[str, range]]:
        """The work is a range of sets; an empty one is the index."""
        sets = range(len(find_sets(config, inputs).sizes))
        yield "index", sets[:0]
        for first in sets[:: config.sets_per_unit]:
            yield f"near-{first:08d}", sets[first : first + config.sets_per_unit]

    def open_sets(config: LabelSetsPerUnit, inputs: Inputs) -> Callable[[range, Sink], Counts]:
        sets = find_sets(config, inputs)

        def work(some: range, sink: Sink) -> Counts:
            if not some:
                write_table(sink, ITEMS, pa.table({"id": sets.ids, "set": sets.of_item}))
                return {"items": len(sets.ids), "label sets": len(sets.sizes)}
            ones, others, levels = sets.near(some.start, some.stop)
            table = pa.table({"one": ones, "other": others, "level": levels})
            write_table(sink, f"near-{some.start:08d}.parquet", table)
            return {"near pairs of sets": len(ones)}

        return work

    return Stage(name, config, plan, open_sets, inputs, version)
