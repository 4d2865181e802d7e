"""The resnet stage: features of pictures by a ResNet, one row an item."""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.engine.stage import Resources, Stage
from pipelines.stages._pictures import Index, Items, Shard, Sight, fingerprint_of, of_pictures
from xmodal.features.networks import ResNet, load, pixels, sha256_of
from xmodal.features.store import FeatureSpec
from xmodal.root.outputs import Output

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


def resnet(
    media: Output, items: Items, config: ResNetConfig, weights_file: Path | None = None
) -> Stage[ResNetConfig, Index | Shard]:
    """`weights_file` is a state_dict to use instead of the weights that the config names."""
    weights = config.weights if weights_file is None else f"sha256:{sha256_of(weights_file)}"
    config = replace(config, weights=weights, items=fingerprint_of(items))
    resources = Resources(gpus=1.0 if config.device == "cuda" else 0.0)
    return of_pictures("resnet", media, items, config, partial(_sight, weights_file), VERSION, resources)


def _sight(weights_file: Path | None, config: ResNetConfig) -> Sight:
    extractor = load(config, weights_file)
    gray = np.zeros((3, config.crop, config.crop), np.float32)
    return Sight(
        lambda data, cut: pixels(data, config, cut), extractor, gray, config.batch_size, extractor.provenance()
    )
