"""The features stage: features of pictures by any image model of torchvision, timm or transformers, one row an item."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipelines.engine.stage import Stage, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.media_stages import (
    WEIGHTS,
    ImageModelStageConfig,
    bytes_of_rows,
    check_model,
    model_extractor,
    picture_stage,
    seconds_a_picture,
    with_weights,
)
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.image_models import resolved

VERSION = 1


@dataclass(frozen=True)
class FeaturesConfig(ImageModelStageConfig):
    rows_per_shard: int = 256  # or as many more as fill whole pages
    items: str = listed()

    @property
    def spec(self) -> FeatureSpec:
        spec = super().spec
        return replace(spec, rows_per_shard=-(-self.rows_per_shard // spec.page_rows) * spec.page_rows)


STAGE = StageKind(
    name="features",
    config=FeaturesConfig,
    needs=("records", "media"),
    of="image",
    files=("weights",),
    forms=WEIGHTS,
    packages=("torch", "torchvision"),
    features=True,
    check=check_model,
    estimate=bytes_of_rows,
    seconds=lambda config, counts: counts["items"] * seconds_a_picture(config),
    memory=2e9,
    small={"model": "torchvision/resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: FeaturesConfig, needs: Needs) -> Stage[FeaturesConfig, Any]:
    config, file, resources = with_weights(config, needs)
    stage = picture_stage(STAGE.name, resolved(config), needs, VERSION, partial(model_extractor, STAGE.name, file))
    return replace(stage, resources=resources)
