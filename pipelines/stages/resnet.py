"""The resnet stage: features of pictures by a ResNet, one row an item."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.engine.stage import Stage
from pipelines.stages import Needs, StageKind
from pipelines.stages._media import PictureExtractor, bytes_of_rows, fingerprint_of, picture_stage, with_weights
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.networks import ResNet, load, pixels

VERSION = 4


@dataclass(frozen=True)
class ResNetConfig(ResNet):
    """Within a shard the last batch may be short, so that a shard's length, too, may change the last bits."""

    rows_per_shard: int = 256
    items: str = field(default="", metadata={"given": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.spec  # refuses a length that the array cannot have

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, rows_per_shard=self.rows_per_shard)


STAGE = StageKind(
    name="resnet",
    config=ResNetConfig,
    needs=("records", "media"),
    of="image",
    files=("weights",),
    packages=("torch", "torchvision"),
    features=True,
    estimate=bytes_of_rows,
    small={"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ResNetConfig, needs: Needs) -> Stage[ResNetConfig, Any]:
    config, file, resources = with_weights(replace(config, items=fingerprint_of(needs.items)), needs)
    return picture_stage(STAGE.name, config, needs, VERSION, partial(_extractor, file), resources)


def _extractor(file: Path | None, config: ResNetConfig) -> PictureExtractor:
    network = load(config, file)
    gray = np.zeros((3, config.crop, config.crop), np.float32)
    return PictureExtractor(
        lambda data, cut: pixels(data, config, cut), network, gray, config.batch_size, network.provenance()
    )
