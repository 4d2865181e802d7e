"""The plausible_semantics stage: plausible matches of corpora without labels, by the classes that a detector saw."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pipelines.engine.stage import Inputs, Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stages.plausible import PlausibleConfig, plausible_stage
from xmodal.detection.region_semantics import labels_of_regions
from xmodal.detection.region_store import RegionStore
from xmodal.metrics.plausible_matches import PLAUSIBLE_SEMANTICS, LabelSets
from xmodal.number_rules import shares
from xmodal.root.outputs import Output

VERSION = 2


@dataclass(frozen=True)
class PlausibleSemanticsConfig(PlausibleConfig):
    score: float = 0.5  # with which a region of a class makes it a label of the picture

    def __post_init__(self) -> None:
        super().__post_init__()
        shares(score=self.score)


STAGE = StageKind(
    name=PLAUSIBLE_SEMANTICS,
    config=PlausibleSemanticsConfig,
    needs=("records", "regions"),
    of="image",
    seconds=lambda config, counts: 2.5e-10 * counts["items"] ** 2,
    memory=0.5e9,
    small={"score": 0.0},
)


def make(config: PlausibleSemanticsConfig, needs: Needs) -> Stage[Any, range]:
    return plausible_stage(STAGE.name, config, (needs["records"], needs["regions"]), VERSION, _sets_of)


def _sets_of(config: PlausibleSemanticsConfig, inputs: Inputs) -> LabelSets:
    return _sets(inputs[1], config.score)


@lru_cache(maxsize=1)
def _sets(made: Output, score: float) -> LabelSets:
    regions = RegionStore(made)
    regions.require_words("class")
    there = [id for id in regions.ids if id not in regions.absent]
    return LabelSets.of({id: labels_of_regions(regions, id, score) for id in there})
