"""ResNets that turn pictures into features, and networks that training goes on with.

Weights are named by torchvision's names, as `random:<seed>`, or as `sha256:<digest>` of a file with a state_dict.

Shapes: B pictures, H and W pixels of the crop or the grid, D width of a feature.
"""

import re
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.errors import UserError
from xmodal.features import torchvision_models
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.torchvision_models import (
    STRIDE,
    WINDOW,
    as_convolutions,
    gigaflops,
    last_maps,
    published_weights,
    width_of,
)
from xmodal.features.weight_files import check_device, enough_memory, reproducible
from xmodal.media.images import DEVIATION, MEAN

if TYPE_CHECKING:
    from torch import nn

Network = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


@dataclass(frozen=True)
class ResNet:
    """Resizes a picture's shorter side, crops the middle, and keeps the last convolution's output, or its mean.

    `device` changes the last bits, and of a GPU `batch_size` too.
    """

    network: Network = "resnet152"
    weights: str = "IMAGENET1K_V2"
    resize: int = 256
    crop: int = 224
    output: Literal["grid", "pooled"] = "grid"
    dtype: Literal["float16", "float32"] = "float16"
    batch_size: int = 32
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        for field in fields(self):
            options, value = get_args(field.type), getattr(self, field.name)
            if options and value not in options:
                raise ValueError(f"no {field.name} {value!r}; there are: {', '.join(options)}")
        if not re.fullmatch(r"IMAGENET1K_V[12]|random:\d{1,18}|sha256:[0-9a-f]{64}", self.weights):
            raise ValueError(self._no_weights)
        if self.crop < STRIDE or self.crop % STRIDE or self.resize < self.crop:
            raise ValueError(f"crop is a multiple of {STRIDE} and at most resize, not {self.crop} of {self.resize}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")

    def check_weights(self) -> None:
        """Refuses what torchvision does not have, where no file takes its place."""
        if self.weights.startswith("IMAGENET") and self.weights not in published_weights(self.network):
            raise UserError(f"{self._no_weights}, which --weights FILE names")

    @property
    def _no_weights(self) -> str:
        there = f"{', '.join(published_weights(self.network))}, random:<seed>, and the sha256:<digest> of a file"
        return f"no weights {self.weights!r} for {self.network}; there are: {there}"

    @property
    def spec(self) -> FeatureSpec:
        width = width_of(self.network)
        row_shape = (width,) if self.output == "pooled" else ((self.crop // STRIDE) ** 2, width)
        return FeatureSpec(f"{self.network}-{self.output}", row_shape, self.dtype)

    @property
    def gigaflops(self) -> float:
        return gigaflops(self.network, self.crop)


@dataclass(frozen=True)
class VGG:
    """A VGG up to fc7, as the features stage has it and training goes on with it.

    Features are fc7 of one crop, after its ReLU ("centre"), or the sum before its ReLU over all windows of the crop's
    size, of the picture and of its mirror image, at length 1 ("whole").
    """

    network: str
    weights: str
    views: str
    resize: int
    crop: int = WINDOW * STRIDE
    output: str = "fc7"

    def __post_init__(self) -> None:
        if self.views not in ("centre", "whole") or self.crop != WINDOW * STRIDE or self.output != "fc7":
            given = f"{self.output} of views={self.views} and crop={self.crop}"
            raise ValueError(f"a VGG is trained further by fc7 of views=centre or whole and crop=224, not by {given}")

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec(f"{self.network}-{self.output}", (width_of(self.network),))


@dataclass(frozen=True, eq=False)
class Extractor:
    """A network with its weights, and the sha256 of their file or, if random, of the numbers."""

    config: ResNet
    trunk: "nn.Module"
    weights_sha256: str

    def __call__(self, pixels_B3HW: NDArray[np.float32]) -> NDArray[Any]:
        """Returns rows of `config.spec`, the same bits whatever else is in the batch.

        One thread computes them, as more would change the last bits; so would a batch of one, or on a GPU of another
        length: a short batch has its last picture several times.
        """
        import torch

        length = self.config.batch_size if self.config.device == "cuda" else 2
        pixels = np.pad(pixels_B3HW, [(0, max(0, length - len(pixels_B3HW))), (0, 0), (0, 0), (0, 0)], "edge")
        with reproducible(), torch.inference_mode(), enough_memory(self.config.batch_size):
            maps_BDHW = self.trunk(torch.from_numpy(pixels).to(self.config.device))[: len(pixels_B3HW)]
            rows = maps_BDHW.flatten(2).transpose(1, 2) if self.config.output == "grid" else maps_BDHW.mean((2, 3))
            return np.ascontiguousarray(rows.to(getattr(torch, self.config.dtype)).cpu().numpy())

    def provenance(self) -> dict[str, object]:
        settings = asdict(self.config)
        preprocessing = {name: settings.pop(name) for name in ("resize", "crop")}
        preprocessing |= {"mean": MEAN, "deviation": DEVIATION, "interpolation": "bilinear", "colours": "RGB"}
        return settings | {
            "weights_sha256": self.weights_sha256,
            "preprocessing": preprocessing,
            "versions": {name: version(name) for name in ("pillow", "torch", "torchvision")} | {"xmodal": __version__},
        }


def load(config: ResNet, weights_file: Path | None = None) -> Extractor:
    """Loads a network on its device; `weights_file` has weights named by a checksum."""
    check_device(config.device)
    config.check_weights()
    network, digest = torchvision_models.load(config.network, config.weights, weights_file)
    return Extractor(config, last_maps(network).to(config.device), digest)


def load_trunk(config: ResNet | VGG, weights_file: Path | None = None) -> "tuple[nn.Module, str]":
    """Loads the convolutions that training goes on with, and the sha256 of their weights."""
    if isinstance(config, ResNet):
        extractor = load(config, weights_file)
        return extractor.trunk, extractor.weights_sha256
    network, digest = torchvision_models.load(config.network, config.weights, weights_file, config.output)
    return as_convolutions(network, activated=config.views == "centre"), digest
