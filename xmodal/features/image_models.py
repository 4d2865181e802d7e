"""Image models by name, of torchvision, timm or transformers, and what they make of pictures.

Shapes: N views of pictures, H and W their pixels, D width of a feature.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.errors import UserError, extra_needed
from xmodal.features import timm_models, torchvision_models, transformers_models
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.model_facts import ModelFacts, pixels_of
from xmodal.features.torchvision_models import STRIDE
from xmodal.features.weight_files import check_device, enough_memory, reproducible
from xmodal.media.preparation import Preparation, ten_crops
from xmodal.root.identity import to_plain

if TYPE_CHECKING:
    from torch import Tensor, nn

WEIGHTS = re.compile(r"published|IMAGENET1K_V[12]|random:\d{1,18}|sha256:[0-9a-f]{64}")
MODEL = re.compile(r"(torchvision|timm)/[\w.]+|transformers/\w[\w.-]*/\w[\w.-]*(@[\w.-]+)?")
VIEWS = {"centre": 1, "ten": 10, "whole": 2}
RESIZE, CROP = 256, 224  # of torchvision's networks, as the papers take them
WHOLE_PIXELS = 1 << 20  # most of a picture that is seen whole: 256 x 4096
M = TypeVar("M", bound="ImageModel")


class Library(Protocol):
    """A module that knows the models of one library."""

    def check(self, name: str) -> None:
        """Refuses a name that the library does not have."""

    def find(self, name: str, weights: str, output: str, sides: tuple[int, int]) -> tuple[str, str, ModelFacts]:
        """The whole names of a model and its weights, and its facts."""

    def load(self, name: str, weights: str, file: Path | None, output: str) -> "tuple[nn.Module, str]":
        """A network without its classes, and the sha256 of its weights."""

    def look(self, network: "nn.Module", pixels_N3HW: "Tensor", output: str) -> "Tensor":
        """The rows of pictures."""


LIBRARIES: Mapping[str, Library] = {
    "torchvision": torchvision_models,
    "timm": timm_models,
    "transformers": transformers_models,
}


@dataclass(frozen=True)
class ImageModel:
    """A network, its weights, and the rows that it makes of a picture.

    `ten` is the mean over the corners, the middle and their mirror images. `whole` sums over all positions of the
    picture and its mirror image, and takes length 1. `device` changes the last bits, and of a GPU `batch_size` too.
    """

    model: str = "torchvision/resnet152"  # torchvision/NAME, timm/NAME, or transformers/ORGANISATION/NAME
    weights: str = "published"  # random:<seed>; or of a file: --weights FILE
    output: Literal["pooled", "grid", "tokens", "fc7", "classes"] = "pooled"
    views: Literal["centre", "ten", "whole"] = "centre"
    resize: int | None = None  # of the shorter side, and `crop` of its middle: torchvision's networks leave both open
    crop: int | None = None
    dtype: Literal["float16", "float32"] = "float16"
    batch_size: int = 32  # pictures
    device: Literal["cpu", "cuda"] = "cpu"
    facts: ModelFacts | None = field(default=None, metadata={"given": True})

    def __post_init__(self) -> None:
        for each in fields(self):
            options, value = get_args(each.type), getattr(self, each.name)
            if str in map(type, options) and value not in options:
                raise ValueError(f"no {each.name} {value!r}; there are: {', '.join(options)}")
        if not MODEL.fullmatch(self.model):
            raise ValueError(
                f"no model {self.model!r}: say torchvision/NAME, timm/NAME or transformers/ORGANISATION/NAME"
            )
        if not WEIGHTS.fullmatch(self.weights):
            raise ValueError(f"no weights {self.weights!r}; there are: published, random:<seed>, and --weights FILE")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")
        if self.output not in self.outputs:
            raise ValueError(f"{self.model} has no output {self.output}; there are: {', '.join(self.outputs)}")
        if self.views != "centre" and self.output not in ("pooled", "fc7"):
            raise ValueError(f"views={self.views} makes one row of a picture: its output is pooled or fc7")
        if self.library == "torchvision":
            self._check_sides()
        elif self.resize or self.crop or self.views == "whole":
            raise ValueError(f"resize, crop and views=whole are for torchvision: {self.model} has sides of its own")

    def _check_sides(self) -> None:
        resize, crop = self.resize or RESIZE, self.crop or CROP
        if crop < STRIDE or crop % STRIDE or resize < crop:
            raise ValueError(f"crop is a multiple of {STRIDE} and at most resize, not {crop} of {resize}")
        if self.views == "whole" and crop != CROP:
            raise ValueError(f"a whole picture is seen through windows of {CROP} pixels: leave crop out")

    @property
    def library(self) -> str:
        return self.model.partition("/")[0]

    @property
    def name(self) -> str:
        return self.model.partition("/")[2]

    @property
    def outputs(self) -> tuple[str, ...]:
        return torchvision_models.outputs(self.name) if self.library == "torchvision" else ("pooled", "tokens")

    @property
    def spec(self) -> FeatureSpec:
        name = re.sub(r"[^a-z0-9_]+", "-", self.name.partition("@")[0].lower()).strip("-")
        return FeatureSpec(f"{name}-{self.output}", known(self).row_shape, self.dtype)

    @property
    def gigaflops(self) -> float:
        """Billions of operations for one picture of 4 : 3."""
        whole = 4 / 3 * ((self.resize or RESIZE) / CROP) ** 2 if self.views == "whole" else 1.0
        return known(self).gigaflops * VIEWS[self.views] * whole

    @property
    def preparation(self) -> Preparation:
        """Prepares a picture before its views are cut out."""
        how = known(self).preparation
        if self.views == "centre":
            return how
        return replace(how, crop=None, most_pixels=WHOLE_PIXELS if self.views == "whole" else how.most_pixels)


def known(config: ImageModel) -> ModelFacts:
    return config.facts or find_model(config.model, config.weights, config.output, config.resize, config.crop)[2]


def resolved(config: M) -> M:
    """The config with the whole names of model and weights, and with what decides the rows beside them."""
    name, weights, facts = find_model(config.model, config.weights, config.output, config.resize, config.crop)
    return replace(config, model=f"{config.library}/{name}", weights=weights, facts=facts)


def check_model_name(model: str) -> None:
    library, _, name = model.partition("/")
    LIBRARIES[library].check(name)


@lru_cache(maxsize=16)
def find_model(
    model: str, weights: str, output: str, resize: int | None, crop: int | None
) -> tuple[str, str, ModelFacts]:
    library, _, name = model.partition("/")
    if library != "torchvision" and weights.startswith("IMAGENET"):
        raise UserError(f"no weights {weights!r} for {model}; there are: published, random:<seed>, and --weights FILE")
    return LIBRARIES[library].find(name, weights, output, (resize or RESIZE, crop or CROP))


@dataclass(frozen=True, eq=False)
class ModelExtractor:
    """A model with its weights, and the sha256 of their file or, if random, of the numbers."""

    config: ImageModel
    network: "nn.Module"
    weights_sha256: str
    stage: str  # whose settings messages name

    def rows(self, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[Any]:
        """Returns a row of each prepared picture, the same bits whatever else is in the batch.

        On a CPU each is computed alone. On a GPU a short batch has its last picture several times, as another length
        would change the last bits.
        """
        import torch

        config, at_once = self.config, 1
        if config.device == "cuda" and config.views != "whole":
            at_once = config.batch_size
        batches = [pictures[first : first + at_once] for first in range(0, len(pictures), at_once)]
        with reproducible(), torch.inference_mode(), enough_memory(config.batch_size, f"{self.stage}."):
            rows = [self._rows([*batch, *[batch[-1]] * (at_once - len(batch))])[: len(batch)] for batch in batches]
            return np.ascontiguousarray(torch.cat(rows).to(getattr(torch, config.dtype)).cpu().numpy())

    def _rows(self, pictures: Sequence[NDArray[np.uint8]]) -> "Tensor":
        import torch

        config, how = self.config, known(self.config)
        views_NHW3 = np.concatenate([_views(picture, config) for picture in pictures])
        pixels_N3HW = pixels_of(torch.from_numpy(views_NHW3).to(config.device), how.preparation)
        with torch.autocast("cuda", torch.float16, enabled=config.device == "cuda" and config.dtype == "float16"):
            rows = _look(self.network, pixels_N3HW, config).float()
        rows = rows.reshape(len(pictures), -1, *rows.shape[1:])  # by view
        return torch.nn.functional.normalize(rows.sum(1), dim=1) if config.views == "whole" else rows.mean(1)

    def provenance(self) -> dict[str, object]:
        told = {
            name: getattr(self.config, name) for name in ("weights", "output", "views", "dtype", "batch_size", "device")
        }
        how = to_plain(known(self.config).preparation) | {"colours": "RGB"}
        del how["_type"], how["most_pixels"]
        packages = {"pillow", "torch", "torchvision", self.config.library}
        return told | {
            "network": self.config.model,
            "weights_sha256": self.weights_sha256,
            "preprocessing": how,
            "versions": {name: version(name) for name in sorted(packages)} | {"xmodal": __version__},
        }


def _views(picture_HW3: NDArray[np.uint8], config: ImageModel) -> NDArray[np.uint8]:
    if config.views == "ten":
        return ten_crops(picture_HW3, known(config).preparation)
    return np.stack([picture_HW3, picture_HW3[:, ::-1]] if config.views == "whole" else [picture_HW3])


def _look(network: "nn.Module", pixels_N3HW: "Tensor", config: ImageModel) -> "Tensor":
    if config.views == "whole":
        return torchvision_models.sum_over_positions(network, pixels_N3HW)
    return LIBRARIES[config.library].look(network, pixels_N3HW, config.output)


def open_model(config: ImageModel, file: Path | None = None, stage: str = "features") -> ModelExtractor:
    """Loads a model on its device; `file` has weights named by a checksum."""
    with extra_needed("train", "networks need torch and torchvision"):
        import torch
    check_device(config.device)
    config = config if config.facts else resolved(config)
    network, digest = LIBRARIES[config.library].load(config.name, config.weights, file, config.output)
    network = network.requires_grad_(False).to(config.device)
    return ModelExtractor(config, network.to(memory_format=torch.channels_last), digest, stage)  # as pixels lie
