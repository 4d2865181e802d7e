"""The resnet stage: features of pictures by a ResNet, one row an item."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipelines.engine.stage import Stage, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.media_stages import (
    WEIGHTS,
    ResNetStageConfig,
    bytes_of_rows,
    check_weights,
    picture_stage,
    resnet_extractor,
    seconds_a_picture,
    with_weights,
)
from xmodal.features.feature_spec import FeatureSpec

VERSION = 5


@dataclass(frozen=True)
class ResNetConfig(ResNetStageConfig):
    rows_per_shard: int = 256
    items: str = listed()

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, rows_per_shard=self.rows_per_shard)


STAGE = StageKind(
    name="resnet",
    config=ResNetConfig,
    needs=("records", "media"),
    of="image",
    files=("weights",),
    forms=WEIGHTS,
    packages=("torch", "torchvision"),
    features=True,
    check=check_weights,
    estimate=bytes_of_rows,
    seconds=lambda config, counts: counts["items"] * seconds_a_picture(config),
    memory=1.5e9,
    small={"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ResNetConfig, needs: Needs) -> Stage[ResNetConfig, Any]:
    config, file, resources = with_weights(config, needs)
    stage = picture_stage(STAGE.name, config, needs, VERSION, partial(resnet_extractor, file))
    return replace(stage, resources=resources)
