"""The regions stage: what a detector of any kind finds in each picture, with features, boxes, classes and attributes.

`bottom_up` with the usual settings keeps 10 to 100 regions a picture; with `fewest=36 most=36` it keeps 36.
"""

from dataclasses import dataclass
from typing import Any

from pipelines.engine.stage import Stage
from pipelines.stages import Needs, StageKind
from pipelines.stages._regions import (
    RegionSettings,
    bytes_of_regions,
    check_detector,
    region_stage,
    seconds_a_picture,
)
from xmodal.detection.region_arrays import Regions
from xmodal.detection.region_selection import confidences, select
from xmodal.number_rules import one_or_more, shares

VERSION = 1


@dataclass(frozen=True)
class RegionsConfig(RegionSettings):
    """Regions whose best class has the threshold are kept: at least `fewest`, at most `most` (detection/…selection)."""

    detector: str = "bottom_up"  # bottom_up, torchvision/NAME, detectron2/CONFIG, small
    threshold: float = 0.2
    fewest: int = 10
    most: int = 100
    suppression: float = 0.3  # overlap with a surer region of the same class, from which on that class is dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        one_or_more(fewest=self.fewest, most=self.most)
        shares(threshold=self.threshold, suppression=self.suppression)
        if self.fewest > self.most:
            raise ValueError(f"fewest, {self.fewest}, is more than most, {self.most}")

    @property
    def selection(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("threshold", "fewest", "most", "suppression")}

    def select(self, found: Regions) -> Regions:
        if found.class_scores_KC is None:
            return found
        confidences_K = confidences(found, self.suppression)
        return found[select(confidences_K, self.fewest, self.most, self.threshold)]


STAGE = StageKind(
    name="regions",
    config=RegionsConfig,
    needs=("records", "media"),
    of="image",
    files=("detector", "object_words", "attribute_words", "boxes"),
    packages=("torch", "torchvision"),
    features=True,
    check=check_detector,
    estimate=bytes_of_regions,
    seconds=lambda config, counts: counts["items"] * seconds_a_picture(config),
    memory=2.5e9,
    small={"detector": "small", "weights": "random:0", "boxes": "file", "dtype": "float32"},
    small_files={"boxes": b"p001\t4\t4\t36\t28\np001\t0\t0\t8\t8\np002\t10\t0\t30\t32\n"},
)


def make(config: RegionsConfig, needs: Needs) -> Stage[RegionsConfig, Any]:
    return region_stage(STAGE.name, config, needs, VERSION)
