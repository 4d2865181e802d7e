"""Drawing: text on pictures, and attention maps over them. Shapes: L positions row by row, K maps, H and W pixels."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

GAP = 4  # white pixels between panels
LETTERS, LINE = 18, 26  # pixels: heights of letters and of a line of text
ZERO = 0.7  # the place of zero in a panel of bars, as a share of its width
RED, GREY = "#cc2222", "#aaaaaa"
FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "LiberationSans-Regular.ttf")


def attention_picture(
    picture_HW3: NDArray[np.uint8], attention_LK: NDArray[np.floating[Any]], grid: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """Draws the picture, as the network saw it, and beside it each map over it, scaled to its own range.

    `grid` is (rows, columns), if no square.
    """
    rows, columns = grid or (math.isqrt(len(attention_LK)),) * 2
    if attention_LK.ndim != 2 or rows * columns != len(attention_LK) or not np.isfinite(attention_LK).all():
        raise ValueError(f"attention is finite (places, maps) of a grid of {rows} x {columns}")
    if picture_HW3.ndim != 3 or picture_HW3.shape[2] != 3 or picture_HW3.dtype != np.uint8:
        raise ValueError(f"a picture is (H, W, 3) uint8, not {picture_HW3.shape} {picture_HW3.dtype}")
    panels = [picture_HW3, *(_over(picture_HW3, map_L.reshape(rows, columns)) for map_L in attention_LK.T)]
    gap = np.full((len(picture_HW3), GAP, 3), 255, np.uint8)
    return np.concatenate([part for panel in panels for part in (gap, panel)][1:], axis=1)


def labelled(panels_HW3: NDArray[np.uint8], names: Sequence[str], legend: str) -> Image.Image:
    """Adds a name above each panel, and a legend below."""
    height, width, _ = panels_HW3.shape
    font, step = font_of(LETTERS), (width + GAP) // len(names)
    lines = list(wrapped(legend, font, width))
    image = Image.new("RGB", (width, height + LINE * (1 + len(lines)) + GAP), "white")
    image.paste(Image.fromarray(panels_HW3), (0, LINE))
    draw = ImageDraw.Draw(image)
    for number, name in enumerate(names):
        draw.text((number * step + (step - GAP) // 2, LINE // 2), name, "black", font, "mm")
    for number, line in enumerate(lines):
        draw.text((GAP, height + LINE * (number + 1) + LINE // 2 + GAP), line, "black", font, "lm")
    return image


def side_by_side(panels: Sequence[Image.Image]) -> NDArray[np.uint8]:
    """(H, W, 3): panels with a gap between them, with white below the shorter ones."""
    width = sum(panel.width for panel in panels) + GAP * (len(panels) - 1)
    whole, left = Image.new("RGB", (width, max(panel.height for panel in panels)), "white"), 0
    for panel in panels:
        whole.paste(panel, (left, 0))
        left += panel.width + GAP
    return np.asarray(whole)


def bars(values: Sequence[tuple[str, float]], marked: int, width: int) -> Image.Image:
    """Draws a bar for each name from a line at zero, to the left if it is negative; the `marked` largest are red."""
    image = Image.new("RGB", (width, LINE * max(len(values), 1)), "white")
    draw, font, zero = ImageDraw.Draw(image), font_of(LETTERS), round(ZERO * width)
    most = max((abs(value) for _, value in values), default=0.0) or 1.0
    red = sorted(range(len(values)), key=lambda row: -values[row][1])[:marked]
    for row, (name, value) in enumerate(values):
        top, end = LINE * row, zero + round(value / most * (1 - ZERO) * (width - GAP))
        colour = RED if row in red and value > 0 else GREY
        draw.rectangle((min(zero, end), top + GAP, max(zero, end), top + LINE - GAP), colour)
        draw.text((GAP, top + LINE // 2), f"{value:+.3f} {name}", "black", font, "lm")
    draw.line((zero, 0, zero, image.height), "black")
    return image


def font_of(size: int) -> Any:
    """The first of FONTS on this machine, else Pillow's own, which has only ASCII letters."""
    for name in FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def wrapped(text: str, font: Any, width: int) -> Iterator[str]:
    """Lines of whole words that fit the width in pixels."""
    line, *words = text.split()
    for word in words:
        if font.getlength(f"{line} {word}") > width - 2 * GAP:
            yield line
            line = word
        else:
            line = f"{line} {word}"
    yield line


def _over(picture_HW3: NDArray[np.uint8], map_RC: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Grey where the map is low, yellow where it is high."""
    lowest, range_ = map_RC.min(), np.ptp(map_RC)
    scaled_RC = (map_RC - lowest) / range_ if range_ > 0 else np.zeros_like(map_RC)
    height, width, _ = picture_HW3.shape
    heat = Image.fromarray(scaled_RC.astype(np.float32)).resize((width, height), Image.Resampling.BICUBIC)
    heat_HW1 = np.asarray(heat, np.float32).clip(0, 1)[..., None]
    grey_HW1 = picture_HW3.mean(axis=2, keepdims=True)
    warm_HW3 = np.concatenate([np.full_like(heat_HW1, 255), 255 * heat_HW1**2, np.zeros_like(heat_HW1)], axis=2)
    return np.asarray(np.round((1 - 0.7 * heat_HW1) * grey_HW1 + 0.7 * heat_HW1 * warm_HW3), np.uint8)
