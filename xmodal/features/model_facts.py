"""Facts of an image model that its library tells: how pictures are prepared for it, and the rows that it gives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from xmodal.errors import UserError, first_sentences
from xmodal.media.preparation import Preparation, resize_and_crop
from xmodal.root.identity import DESCRIBES

if TYPE_CHECKING:
    from torch import Tensor, nn

SIZES = ((211, 157), (97, 302), (640, 429))  # of pictures that show whether two preparations are one
TOLERANCE = 1e-5


@dataclass(frozen=True)
class ModelFacts:
    preparation: Preparation
    row_shape: tuple[int, ...]
    gigaflops: float = field(metadata=DESCRIBES)  # of one picture, for estimates


def pixels_of(pictures_NHW3: "Tensor", how: Preparation) -> "Tensor":
    """Pixels as a network takes them, (N, 3, H, W), by the operations of torchvision's ToTensor and Normalize."""
    pixels_N3HW = pictures_NHW3.permute(0, 3, 1, 2).float().div(255)
    mean_311, deviation_311 = (pixels_N3HW.new_tensor(c).view(3, 1, 1) for c in (how.mean, how.deviation))
    return pixels_N3HW.sub(mean_311).div(deviation_311)


def prove(model: str, how: Preparation, theirs: "Callable[[Image.Image], Tensor]") -> Preparation:
    """Refuses settings that do not prepare pictures as the model's own library does, `theirs`, (3, H, W)."""
    import torch

    draw = np.random.default_rng(0)
    side = how.resize[0]
    for width, height in (*SIZES, *((side + more, side) for more in range(4))):  # whose middles are at .0 and .5
        picture = Image.fromarray(draw.integers(0, 256, (height, width, 3), np.uint8))
        ours, wanted = pixels_of(torch.from_numpy(np.stack([resize_and_crop(picture, how)])), how)[0], theirs(picture)
        if ours.shape != wanted.shape or (ours - wanted).abs().max() > TOLERANCE:
            raise UserError(f"{model} prepares pictures in a way that Pillow alone cannot repeat: choose another model")
    return how


def measured(
    model: str, build: "Callable[[], nn.Module]", look: "Callable[[nn.Module, Tensor], Tensor]", how: Preparation
) -> ModelFacts:
    """Runs a network without numbers; refuses one that sees no pictures."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    assert how.crop
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            rows = look(build().eval().requires_grad_(False), torch.empty(1, 3, *how.crop))
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError) as error:
        raise UserError(f"{model} makes no features of a picture alone: {first_sentences(error)}") from error
    return ModelFacts(how, tuple(rows.shape[1:]), counter.get_total_flops() / 1e9)


def positions(maps: "Tensor", width: int) -> "Tensor":
    """Turns maps, (N, D, H, W) or (N, H, W, D), into a row for each position, (N, positions, D)."""
    if getattr(maps, "ndim", 0) not in (3, 4):  # such as a list of maps
        raise UserError("the model does not give one row for each position: --set output=pooled")
    if maps.ndim == 3:
        return maps
    return maps.flatten(2).transpose(1, 2) if maps.shape[1] == width else maps.flatten(1, 2)
