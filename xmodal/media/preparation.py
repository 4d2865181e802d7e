"""Prepares pictures for networks as torchvision, timm and transformers do, by Pillow alone.

Plain settings say how, so that a process without torch can do it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.media.images import DEVIATION, MEAN, MOST_PIXELS, OnTruncated, UnreadableImage, open_image, resized

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Colours = tuple[float, float, float]


@dataclass(frozen=True)
class Preparation:
    """Resizes a picture and keeps its middle; `mean` and `deviation` are for whoever looks at it, of 0 to 1."""

    resize: tuple[int, ...] = (256,)  # of the shorter side, or height and width whatever the picture's are; () keeps it
    crop: tuple[int, int] | None = (224, 224)  # height and width; None: all of it
    interpolation: Interpolation = "bilinear"
    middle: Literal["round", "floor"] = "round"  # where half a pixel goes: as in torchvision, or in transformers
    mean: Colours = MEAN
    deviation: Colours = DEVIATION
    most_pixels: int = MOST_PIXELS  # of the resized picture


def prepare(data: bytes, how: Preparation, on_truncated: OnTruncated | None = None) -> NDArray[np.uint8]:
    """Decodes a picture, (H, W, 3)."""
    return resize_and_crop(open_image(data, on_truncated), how)


def square(data: bytes, resize: int, crop: int, on_truncated: OnTruncated | None = None) -> NDArray[np.uint8]:
    """Decodes the middle of a picture exactly as torchvision does."""
    return prepare(data, Preparation((resize,), (crop, crop)), on_truncated)


def resize_and_crop(image: Image.Image, how: Preparation) -> NDArray[np.uint8]:
    match how.resize:
        case ():
            width, height = image.size
        case (shorter,):
            width, height = resized(image.size, shorter)
        case _:
            height, width = how.resize
    if width * height > how.most_pixels:
        raise UnreadableImage(f"{image.width} x {image.height} pixels are too narrow to resize")
    whole = image.resize((width, height), Image.Resampling[how.interpolation.upper()])
    if how.crop is None:
        return np.asarray(whole)
    top, left = middle((height, width), how)
    return np.asarray(whole.crop((left, top, left + how.crop[1], top + how.crop[0])))


def middle(size: tuple[int, int], how: Preparation) -> tuple[int, int]:
    """The upper left corner of the middle of a picture of this height and width."""
    assert how.crop
    top, left = ((side - kept) / 2 for side, kept in zip(size, how.crop, strict=True))
    return (round(top), round(left)) if how.middle == "round" else (int(top // 1), int(left // 1))


def ten_crops(pixels_HW3: NDArray[np.uint8], how: Preparation) -> NDArray[np.uint8]:
    """The four corners and the middle of a picture, then those of its mirror image, (10, H, W, 3)."""
    assert how.crop
    (height, width), (high, wide) = pixels_HW3.shape[:2], how.crop
    below, right = height - high, width - wide
    corners = ((0, 0), (0, right), (below, 0), (below, right), middle((height, width), how))
    sides = (pixels_HW3, pixels_HW3[:, ::-1])
    return np.stack([side[top : top + high, left : left + wide] for side in sides for top, left in corners])
