"""The proposals stage: boxes around what edges enclose (Edge Boxes), with VGG's features, as Two-Branch has them."""

from dataclasses import dataclass
from typing import Any

from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.region_stages import (
    FORMS,
    RegionSettings,
    bytes_of_regions,
    check_detector,
    region_stage,
    seconds_a_picture,
)

VERSION = 2


@dataclass(frozen=True)
class ProposalsConfig(RegionSettings):
    detector: str = "proposals/vgg16"  # or proposals/vgg19


STAGE = StageKind(
    name="proposals",
    config=ProposalsConfig,
    needs=("records", "media"),
    of="image",
    files=("detector", "boxes"),
    forms={name: FORMS[name] for name in ("detector", "boxes")},
    packages=("torch", "torchvision", "cv2"),
    features=True,
    check=check_detector,
    estimate=bytes_of_regions,
    seconds=lambda config, counts: counts["items"] * seconds_a_picture(config),
    memory=2.5e9,
    small={"weights": "random:0", "boxes": "file", "dtype": "float32"},
)


def make(config: ProposalsConfig, needs: Needs) -> Stage[ProposalsConfig, Any]:
    return region_stage(STAGE.name, config, needs, VERSION)
