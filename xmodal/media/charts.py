"""Charts: lines through points of numbers, and points of a plane without units. Shapes: N points of a series."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from xmodal.media.drawing import font_of, wrapped

WIDTH, HEIGHT = 900, 600  # pixels of the plot; titles and the legend are around it
LEFT, MARGIN = 70, 20  # pixels left of the plot, for numbers, and around everything
LETTERS, LINE = 18, 26  # pixels: heights of letters and of a line of text
DOT, SMALL_DOT, STROKE = 7, 4, 3  # pixels: radius of the points of a line, and of a plane; width of a line
FINER = 2  # times as many pixels are drawn, and then averaged, as Pillow has no smooth lines
TICKS = 6  # steps of an axis at most
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # the colour-blind see them too
GREY, JOIN, FRAME = "#d8d8d8", "#bbbbbb", "#555555"


@dataclass(frozen=True, eq=False)
class Series:
    name: str
    points_N2: NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Titles:
    """The texts around a plot; the note stands below it."""

    top: str
    note: str = ""
    across: str = ""
    up: str = ""


def line_chart(series: Sequence[Series], titles: Titles) -> Image.Image:
    """Draws each series as a line with its points, on axes from zero."""
    most_2 = np.concatenate([one.points_N2 for one in series]).max(axis=0)
    steps = [_step(most) for most in most_2.tolist()]
    ends = [step * max(1, math.ceil(round(most / step, 9))) for step, most in zip(steps, most_2.tolist(), strict=True)]
    plot = _Plot([one.name for one in series], titles, np.zeros(2), np.array(ends))
    for side, (step, end) in enumerate(zip(steps, ends, strict=True)):
        plot.axis(side, [step * number for number in range(round(end / step) + 1)])
    for number, one in enumerate(series):
        plot.line(one.points_N2, _colour(number), STROKE)
        plot.dots(one.points_N2, _colour(number), DOT)
    return plot.finished()


def scatter_chart(series: Sequence[Series], titles: Titles) -> Image.Image:
    """Draws each series as points, on axes of one scale without numbers; a thin line joins the n-th of each."""
    points_SN2 = np.stack([one.points_N2 for one in series])
    low_2, high_2 = points_SN2.min(axis=(0, 1)), points_SN2.max(axis=(0, 1))
    size_2 = np.array([WIDTH, HEIGHT])
    scale = ((high_2 - low_2) / size_2).max() or 1.0  # one for both axes
    half_2 = 0.53 * scale * size_2  # with room at the edges
    plot = _Plot([one.name for one in series], titles, (low_2 + high_2) / 2 - half_2, (low_2 + high_2) / 2 + half_2)
    for joined_S2 in points_SN2.swapaxes(0, 1):
        plot.line(joined_S2, JOIN, 1)
    for number, points_N2 in enumerate(points_SN2):
        plot.dots(points_N2, _colour(number), SMALL_DOT)
    return plot.finished()


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _step(most: float) -> float:
    """The least of 1, 2 and 5 times a power of ten of which TICKS reach `most`."""
    power = 10.0 ** math.floor(math.log10(most / TICKS)) if most > 0 else 1.0
    return next(times * power for times in (1, 2, 5, 10) if times * power * TICKS >= most)


class _Plot:
    """Texts and a frame, within which numbers have places. All pixels here are those of the finished picture."""

    def __init__(self, names: Sequence[str], titles: Titles, low_2: NDArray[Any], high_2: NDArray[Any]) -> None:
        self.low_2, self.range_2 = low_2, high_2 - low_2
        self.font, full = font_of(FINER * LETTERS), LEFT + WIDTH
        heads, notes = ([*wrapped(text, self.font, FINER * full)] if text else [] for text in (titles.top, titles.note))
        legend = self._legend(names, full)
        self.top = MARGIN + LINE * (len(heads) + legend[-1][1] + 1 + bool(titles.up)) + MARGIN // 2
        under = self.top + HEIGHT + LINE * 2 * bool(titles.across)
        size = full + 3 * MARGIN, under + LINE * len(notes) + MARGIN
        self.image = Image.new("RGB", (FINER * size[0], FINER * size[1]), "white")
        self.draw = ImageDraw.Draw(self.image)
        for row, text in enumerate(heads):
            self.text(MARGIN, MARGIN + LINE * row, text)
        for number, (left, row) in enumerate(legend):
            middle = MARGIN + LINE * (len(heads) + row) + LINE // 2
            self._dot(MARGIN + left + DOT, middle, _colour(number), DOT)
            self.text(MARGIN + left + 3 * DOT, middle - LINE // 2, names[number])
        self.text(MARGIN, self.top - LINE - MARGIN // 4, titles.up)
        self.text(MARGIN + LEFT + WIDTH // 2, self.top + HEIGHT + LINE, titles.across, "ma")
        for row, text in enumerate(notes):
            self.text(MARGIN, under + MARGIN // 2 + LINE * row, text)
        corners = (MARGIN + LEFT, self.top, MARGIN + LEFT + WIDTH, self.top + HEIGHT)
        self.draw.rectangle([FINER * corner for corner in corners], outline=FRAME, width=FINER)

    def _legend(self, names: Sequence[str], width: int) -> list[tuple[int, int]]:
        """Left edge and row of each name, after its dot."""
        places, left, row = list[tuple[int, int]](), 0, 0
        for name in names:
            wide = 3 * DOT + math.ceil(self.font.getlength(name) / FINER)
            if left and left + wide > width:
                left, row = 0, row + 1
            places.append((left, row))
            left += wide + MARGIN
        return places

    def text(self, left: int, top: int, text: str, anchor: str = "la") -> None:
        self.draw.text((FINER * left, FINER * top), text, "black", self.font, anchor)

    def places(self, points_N2: NDArray[Any]) -> list[tuple[float, float]]:
        shares_N2 = (points_N2 - self.low_2) / self.range_2
        return [(MARGIN + LEFT + WIDTH * x, self.top + HEIGHT * (1 - y)) for x, y in shares_N2.tolist()]

    def axis(self, side: int, values: Sequence[float]) -> None:
        """Draws a faint line and a number at each value; side 0 is across, 1 is up."""
        for value in values:
            ends_22 = np.array([self.low_2, self.low_2 + self.range_2])
            ends_22[:, side] = value
            self.line(ends_22, GREY, 1)
            left, top = (round(pixel) for pixel in self.places(ends_22)[0])
            if side == 0:
                self.text(left, top + 4, f"{value:g}", "ma")
            else:
                self.text(left - 8, top, f"{value:g}", "rm")

    def line(self, points_N2: NDArray[Any], colour: str, width: int) -> None:
        pixels = [(FINER * x, FINER * y) for x, y in self.places(points_N2)]
        self.draw.line(pixels, colour, FINER * width, "curve")

    def dots(self, points_N2: NDArray[Any], colour: str, radius: int) -> None:
        for x, y in self.places(points_N2):
            self._dot(x, y, colour, radius)

    def _dot(self, x: float, y: float, colour: str, radius: int) -> None:
        edges = (x - radius, y - radius, x + radius, y + radius)
        self.draw.ellipse([FINER * edge for edge in edges], colour, "white", FINER)

    def finished(self) -> Image.Image:
        return self.image.reduce(FINER)
