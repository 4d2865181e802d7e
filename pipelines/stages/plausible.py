"""The plausible stage: pairs of items' label sets that are near each other, by the categories of a corpus."""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipelines.engine.stage import Inputs, Stage
from pipelines.stages import Needs, StageKind
from pipelines.stages._plausible import LabelSetsPerUnit, plausible_stage
from xmodal.errors import UserError
from xmodal.metrics.plausible_matches import PLAUSIBLE, LabelSets
from xmodal.records.tables import Label, read_rows
from xmodal.root.outputs import Output

VERSION = 2


@dataclass(frozen=True)
class PlausibleConfig(LabelSetsPerUnit):
    pass


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


def _sets_of(config: PlausibleConfig, inputs: Inputs) -> LabelSets:
    return _sets(inputs[0])


@lru_cache(maxsize=1)
def _sets(records: Output) -> LabelSets:
    names: dict[str, list[str]] = defaultdict(list)
    for label in read_rows(records, Label):
        if label.kind == "category":
            names[label.item].append(label.name)
    return LabelSets.of(names)
