"""The clips stage: a run of pooled ResNet features of every clip, a row a sample."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.clip_stages import SAMPLES, bytes_of_samples, clip_stage
from pipelines.stage_forms.media_stages import (
    WEIGHTS,
    ResNetStageConfig,
    check_weights,
    resnet_extractor,
    seconds_a_picture,
    with_weights,
)
from xmodal.features.feature_spec import FeatureSpec

VERSION = 3


@dataclass(frozen=True)
class ClipsConfig(ResNetStageConfig):
    output: Literal["grid", "pooled"] = "pooled"
    items_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output != "pooled":
            raise ValueError("a frame of a clip has one row: its output is pooled")
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, ragged=True, items_per_shard=self.items_per_shard)


STAGE = StageKind(
    name="clips",
    config=ClipsConfig,
    needs=("frames",),
    of="clip",
    files=("weights",),
    forms=WEIGHTS,
    packages=("torch", "torchvision", "simplejpeg"),
    features=True,
    check=check_weights,
    estimate=bytes_of_samples,
    seconds=lambda config, counts: counts["items"] * SAMPLES * seconds_a_picture(config),
    memory=1.5e9,
    small={"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ClipsConfig, needs: Needs) -> Stage[ClipsConfig, Any]:
    config, file, resources = with_weights(config, needs)
    stage = clip_stage(STAGE.name, config, needs, VERSION, partial(resnet_extractor, file))
    return replace(stage, resources=resources)
