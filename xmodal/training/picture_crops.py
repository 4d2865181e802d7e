"""Picture crops: every sample of a phase that reads pixels is cropped, flipped and coloured anew.

Crops follow torchvision's transforms (docs/models.md#pvse-training, docs/models.md#pcme-training). Chance is drawn for
a sample of an epoch, wherever it is cropped.

Shapes: B samples, S a side of a stored picture, H and W pixels of the crop, T tries.
"""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from xmodal.batches.batch import Padded
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import FIRST_PICTURE_PURPOSE, Integers, SampleRandom
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.media.images import normalised
from xmodal.recipes import Pixels
from xmodal.training.finetuning import network_of

Range = tuple[float, float]
TRIES = 10  # to fit a rectangle
CROP, ERASED = ((0.08, 1.0), (3 / 4, 4 / 3)), ((0.02, 1 / 3), (0.3, 1 / 0.3))  # limits of area and of aspect
BRIGHTNESS, CONTRAST, HUE = 0.1, 0.1, 0.1  # the most that each changes
CUTTING, FLIPPING, COLOURING, ERASING = (FIRST_PICTURE_PURPOSE + 64 * part for part in range(4))  # purposes of draws


def training_pixels(pixels_BSS3: NDArray[np.uint8], plan: Pixels, crop: int, chance: SampleRandom) -> Tensor:
    """Cuts, flips, colours and erases pictures: (B, 3, H, W)."""
    boxes_B4 = _boxes(plan, pixels_BSS3.shape[1], crop, chance)
    flips_B = chance.integers(2, FLIPPING) == 1 if plan.flip else np.zeros(len(pixels_BSS3), bool)
    colours = _colours(chance) if plan.jitter else []
    out_B3HW = np.empty((len(pixels_BSS3), 3, crop, crop), np.float32)
    for row, pixels_SS3 in enumerate(pixels_BSS3):
        top, left, height, width = boxes_B4[row].tolist()
        image = Image.fromarray(pixels_SS3).crop((left, top, left + width, top + height))
        if image.size != (crop, crop):
            image = image.resize((crop, crop), Image.Resampling.BILINEAR)
        if flips_B[row]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if colours:
            image = coloured(image, *colours[row])
        out_B3HW[row] = normalised(np.asarray(image))
    _erase(out_B3HW, plan.erase, chance)
    return torch.from_numpy(out_B3HW)


def evaluation_pixels(pixels_BSS3: NDArray[np.uint8], crop: int) -> Tensor:
    """The middles: (B, 3, H, W); the pixels that features are made of if S - H is a multiple of 4."""
    middle = slice(first := _middle(pixels_BSS3.shape[1], crop), first + crop)
    return torch.from_numpy(np.stack([normalised(pixels_HW3) for pixels_HW3 in pixels_BSS3[:, middle, middle]]))


@dataclass(frozen=True, eq=False, repr=False)
class PictureReader(Reader):
    """Reads pictures, cut and normalised, one position each: (B, 1, 3, H, W)."""

    plan: Pixels = field(kw_only=True)
    crop: int = field(kw_only=True)

    def __post_init__(self) -> None:
        shape = self.store.spec.row_shape
        if shape[2:] != (3,) or shape[0] != shape[1] or self.store.spec.dtype != "uint8" or self.store.spec.ragged:
            raise UserError(f"{self.store.output.where} holds no squares of pixels: name an output of the pixels stage")
        if shape[0] < self.crop:
            raise UserError(f"{self.store.output.where} has pictures of side {shape[0]}, too small to cut {self.crop}")

    def visual(self, items: Integers | slice, draws: SampleRandom | None = None) -> Padded:
        rows = self.examples.rows[items]
        pixels_BSS3 = self.store.take(rows, self._room(self.store, len(rows)))
        if draws is None:
            pixels_B3HW = evaluation_pixels(pixels_BSS3, self.crop)
        else:
            pixels_B3HW = training_pixels(pixels_BSS3, self.plan, self.crop, draws)
        return Padded.whole(pixels_B3HW[:, None])


def picture_reader(reader: Reader, pixels: FeatureStore, plan: Pixels) -> PictureReader:
    """Reads the same items as pictures, sized as the features' network saw them."""
    network = network_of(reader.store)
    side, found = network.resize, pixels.spec.row_shape[0]
    if side != found:
        raise UserError(
            f"{pixels.output.where} has pictures of side {found}, but the features are of pictures resized to {side}: "
            f"build pixels with --set pixels.side={side}"
        )
    examples = replace(reader.examples, rows=pixels.rows(reader.examples.ids))
    return PictureReader(examples, pixels, tokens=reader.tokens, classes=reader.classes, plan=plan, crop=network.crop)


def coloured(image: Image.Image, amounts: tuple[float, float, float], order: tuple[int, ...]) -> Image.Image:
    """Changes brightness, contrast and hue (of the whole circle) in an order of 0, 1 and 2."""
    for step in order:
        if step < 2:
            image = (ImageEnhance.Brightness, ImageEnhance.Contrast)[step](image).enhance(amounts[step])
        else:
            hue, saturation, value = image.convert("HSV").split()
            turned = hue.point([(level + int(amounts[2] * 255)) % 256 for level in range(256)])
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
    return image


def _colours(chance: SampleRandom) -> list[tuple[Any, tuple[int, ...]]]:
    ranges = ((1 - BRIGHTNESS, 1 + BRIGHTNESS), (1 - CONTRAST, 1 + CONTRAST), (-HUE, HUE))
    amounts = [chance.between(*limits, COLOURING + part).tolist() for part, limits in enumerate(ranges)]
    orders = tuple(itertools.permutations(range(3)))
    drawn = chance.integers(len(orders), COLOURING + 3).tolist()
    return [(each, orders[order]) for each, order in zip(zip(*amounts, strict=True), drawn, strict=True)]


def _boxes(plan: Pixels, side: int, crop: int, chance: SampleRandom) -> Integers:
    """Top, left, height and width of the crops, (B, 4); the whole picture if no rectangle fitted."""
    size_B = np.full(len(chance.samples), crop)
    if plan.crop == "centre":
        first_B = np.full_like(size_B, _middle(side, crop))
        return np.stack([first_B, first_B, size_B, size_B], axis=1)
    if plan.crop == "random":
        return _placed(size_B, size_B, side, chance, CUTTING)
    heights_B, widths_B = _rectangles(side, side, CROP, chance, CUTTING + 2)
    for sides_B in (heights_B, widths_B):
        sides_B[sides_B == 0] = side
    return _placed(heights_B, widths_B, side, chance, CUTTING)


def _erase(pixels_B3HW: NDArray[np.float32], probability: float, chance: SampleRandom) -> None:
    if not probability:
        return
    side = pixels_B3HW.shape[-1]
    heights_B, widths_B = _rectangles(side, side - 1, ERASED, chance, ERASING + 3)
    boxes_B4 = _placed(heights_B, widths_B, side, chance, ERASING)
    for row in np.flatnonzero(chance.between(0, 1, ERASING + 2) < probability):
        top, left, height, width = boxes_B4[row]
        pixels_B3HW[row, :, top : top + height, left : left + width] = 0  # the mean of all pictures


def _rectangles(
    side: int, longest: int, limits: tuple[Range, Range], chance: SampleRandom, purpose: int
) -> tuple[Integers, Integers]:
    """Heights and widths of the first draw within `longest`, 0 if none is."""
    area, (low, high), tries = *limits, range(purpose, purpose + 2 * TRIES, 2)
    areas_TB = np.stack([chance.between(*area, one) for one in tries]) * side**2
    aspects_TB = np.exp(np.stack([chance.between(math.log(low), math.log(high), one + 1) for one in tries]))
    sides_TB2 = np.rint(np.sqrt(np.stack([areas_TB / aspects_TB, areas_TB * aspects_TB], axis=2))).astype(np.int64)
    fits_TB = ((sides_TB2 > 0) & (sides_TB2 <= longest)).all(axis=2)
    first_B2 = sides_TB2[fits_TB.argmax(axis=0), np.arange(fits_TB.shape[1])]
    first_B2[~fits_TB.any(axis=0)] = 0
    return first_B2[:, 0], first_B2[:, 1]


def _placed(heights_B: Integers, widths_B: Integers, side: int, chance: SampleRandom, purpose: int) -> Integers:
    tops_B, lefts_B = chance.integers(side - heights_B + 1, purpose), chance.integers(side - widths_B + 1, purpose + 1)
    return np.stack([tops_B, lefts_B, heights_B, widths_B], axis=1)


def _middle(side: int, crop: int) -> int:
    return round((side - crop) / 2)
