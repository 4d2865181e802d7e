"""The regions stage: what a detector of any kind finds in each picture, with features, boxes, classes and attributes.

`bottom_up` with the usual settings keeps 10 to 100 regions a picture; with `fewest=36 most=36` it keeps 36. `small`
keeps those of a score of 0.5, which are the things it would name, and of a picture without any the surest one, so that
each picture has a feature, but semantics say nothing of it; with `fewest=0` such a picture has no regions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.region_stages import (
    FORMS,
    RegionSettings,
    bytes_of_regions,
    check_detector,
    refuse_unread_words,
    region_stage,
    seconds_a_picture,
)
from xmodal.detection.region_arrays import Regions
from xmodal.detection.region_selection import confidences, select
from xmodal.detectors import kind_of
from xmodal.number_rules import one_or_more, shares, zero_or_more

VERSION = 2


@dataclass(frozen=True)
class RegionsConfig(RegionSettings):
    """Regions whose best class has the threshold are kept: at least `fewest`, at most `most` (detection/…selection)."""

    detector: str = "bottom_up"  # bottom_up, torchvision/NAME, detectron2/CONFIG, small
    threshold: float | None = None  # None: that of the detector, as for `fewest` (xmodal/detectors)
    fewest: int | None = None
    most: int = 100
    suppression: float = 0.3  # overlap with a surer region of the same class, from which on that class is dropped

    def __post_init__(self) -> None:
        super().__post_init__()
        one_or_more(most=self.most)
        shares(suppression=self.suppression)
        if self.fewest is not None:
            zero_or_more(fewest=self.fewest)
            if self.fewest > self.most:
                raise ValueError(f"fewest, {self.fewest}, is more than most, {self.most}")
        if self.threshold is not None:
            shares(threshold=self.threshold)

    @property
    def selection(self) -> Mapping[str, float | None]:
        return {name: getattr(self, name) for name in ("threshold", "fewest", "most", "suppression")}

    def select(self, found: Regions) -> Regions:
        if found.class_scores_KC is None:
            return found
        confidences_K = confidences(found, self.suppression)
        assert self.fewest is not None
        assert self.threshold is not None
        return found[select(confidences_K, self.fewest, self.most, self.threshold)]

    def resolved(self) -> "RegionsConfig":
        """The same, with the selection of the detector where none is set."""
        usual = kind_of(self.detector)
        fewest = min(usual.fewest, self.most) if self.fewest is None else self.fewest
        return replace(self, fewest=fewest, threshold=usual.threshold if self.threshold is None else self.threshold)


def check(config: RegionsConfig, files: Mapping[str, Path]) -> None:
    check_detector(config, files)
    refuse_unread_words(config, files)


STAGE = StageKind(
    name="regions",
    config=RegionsConfig,
    needs=("records", "media"),
    of="image",
    files=("detector", "object_words", "attribute_words", "boxes"),
    forms=FORMS,
    packages=("torch", "torchvision"),
    features=True,
    check=check,
    estimate=bytes_of_regions,
    seconds=lambda config, counts: counts["items"] * seconds_a_picture(config),
    memory=2.5e9,
    small={"detector": "small", "weights": "random:0", "boxes": "file", "dtype": "float32"},
    small_files={"boxes": b"p001\t4\t4\t36\t28\np001\t0\t0\t8\t8\np002\t10\t0\t30\t32\n"},
)


def make(config: RegionsConfig, needs: Needs) -> Stage[RegionsConfig, Any]:
    return region_stage(STAGE.name, config.resolved(), needs, VERSION)
