"""The clip_features stage: features of the frames of clips by any image model, a run of rows a clip, a row a sample."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.clip_stages import SAMPLES, bytes_of_samples, clip_stage
from pipelines.stage_forms.media_stages import (
    WEIGHTS,
    ImageModelStageConfig,
    check_model,
    model_extractor,
    seconds_a_picture,
    with_weights,
)
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.image_models import resolved

VERSION = 1


@dataclass(frozen=True)
class ClipFeaturesConfig(ImageModelStageConfig):
    items_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output not in ("pooled", "fc7"):
            raise ValueError("a frame of a clip has one row: its output is pooled or fc7")

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, ragged=True, items_per_shard=self.items_per_shard)


STAGE = StageKind(
    name="clip_features",
    config=ClipFeaturesConfig,
    needs=("frames",),
    of="clip",
    files=("weights",),
    forms=WEIGHTS,
    packages=("torch", "torchvision", "simplejpeg"),
    features=True,
    check=check_model,
    estimate=bytes_of_samples,
    seconds=lambda config, counts: counts["items"] * SAMPLES * seconds_a_picture(config),
    memory=2e9,
    small={"model": "torchvision/resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ClipFeaturesConfig, needs: Needs) -> Stage[ClipFeaturesConfig, Any]:
    config, file, resources = with_weights(config, needs)
    stage = clip_stage(STAGE.name, resolved(config), needs, VERSION, partial(model_extractor, STAGE.name, file))
    return replace(stage, resources=resources)
