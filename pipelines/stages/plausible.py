"""The plausible stage: pairs of label sets of a corpus that are near each other (xmodal/metrics/plausible_matches.py).

The index is one unit, every range of sets another. Each worker holds the sets: less than 1 MB for COCO.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import write_table
from xmodal.errors import UserError
from xmodal.metrics.plausible_matches import ITEMS, PLAUSIBLE, LabelSets
from xmodal.records.tables import Label, read_rows
from xmodal.root.outputs import Output

VERSION = 2
FindSets = Callable[[Any, Inputs], LabelSets]  # of a config and inputs; keeps what it found last


@dataclass(frozen=True)
class PlausibleConfig:
    sets_per_unit: int = 2048

    def __post_init__(self) -> None:
        if self.sets_per_unit < 1:
            raise ValueError(f"a unit has at least one set, not {self.sets_per_unit}")


STAGE = StageKind(
    name=PLAUSIBLE,
    config=PlausibleConfig,
    needs=("records",),
    of="category",
    seconds=lambda config, counts: 2.5e-10 * counts["items"] ** 2,
    memory=0.3e9,
)


def make(config: PlausibleConfig, needs: Needs) -> Stage[Any, range]:
    records = needs["records"]
    if not len(_sets(records).sizes):
        raise UserError(f"{records.config['corpus']} has no categories, by which its items could match")
    return plausible_stage(STAGE.name, config, (records,), VERSION, _sets_of)


def plausible_stage(
    name: str, config: PlausibleConfig, inputs: Inputs, version: int, find_sets: FindSets
) -> Stage[Any, range]:
    """The stage of these sets, whatever their labels are."""

    def plan(config: PlausibleConfig, inputs: Inputs) -> Iterator[tuple[str, range]]:
        """The work is a range of sets; an empty one is the index."""
        sets = range(len(find_sets(config, inputs).sizes))
        yield "index", sets[:0]
        for first in sets[:: config.sets_per_unit]:
            yield f"near-{first:08d}", sets[first : first + config.sets_per_unit]

    def open_sets(config: PlausibleConfig, inputs: Inputs) -> Callable[[range, Sink], Counts]:
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


def _sets_of(config: PlausibleConfig, inputs: Inputs) -> LabelSets:
    return _sets(inputs[0])


@lru_cache(maxsize=1)
def _sets(records: Output) -> LabelSets:
    names: dict[str, list[str]] = defaultdict(list)
    for label in read_rows(records, Label):
        if label.kind == "category":
            names[label.item].append(label.name)
    return LabelSets.of(names)
