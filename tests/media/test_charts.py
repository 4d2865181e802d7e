"""Charts: values stand where the axes say, texts fit, and edge cases are drawn too."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageColor

from xmodal.media.charts import COLOURS, HEIGHT, LEFT, LINE, MARGIN, WIDTH, Series, Titles, line_chart, scatter_chart

TITLES = Titles("a title", "a note", "across", "up")
TOP = MARGIN + 3 * LINE + MARGIN // 2  # of the plot, where title, legend and the name of the axis have a line each


def series(name: str, *points: tuple[float, float]) -> Series:
    return Series(name, np.array(points, float))


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image.convert("RGB")).astype(int)


def colour_at(image: Image.Image, x: float, y: float) -> tuple[int, ...]:
    """The colour at shares of the plot's width and height, from the lower left."""
    return tuple(pixels(image)[round(TOP + HEIGHT * (1 - y)), round(MARGIN + LEFT + WIDTH * x)].tolist())


def is_clear(image: Image.Image, edge: int = MARGIN // 2) -> bool:
    """Whether nothing is drawn at the edges, where it would be cut off."""
    values = pixels(image)
    edges = values[:edge], values[-edge:], values[:, :edge], values[:, -edge:]
    return all((one == 255).all() for one in edges)


def test_points_stand_where_the_axes_say() -> None:
    image = line_chart([series("one", (2, 20), (50, 40), (100, 45.8)), series("other", (10, 10))], TITLES)
    first, second = (ImageColor.getrgb(colour) for colour in COLOURS[:2])
    for x, y in ((0.02, 0.4), (0.5, 0.8), (1.0, 0.916)):  # the axes end at 100 and 50
        assert colour_at(image, x, y) == first
    assert colour_at(image, 0.26, 0.6) == first  # on the line
    assert colour_at(image, 0.1, 0.2) == second
    assert colour_at(image, 0.7, 0.33) == (255, 255, 255)
    assert is_clear(image)


def test_an_axis_ends_at_the_largest_value_or_a_round_number_above() -> None:
    for most, share in ((60.0, 1.0), (61.0, 0.7625), (0.3, 1.0), (7.0, 0.875)):
        image = line_chart([series("one", (1, most), (2, most))], TITLES)
        assert colour_at(image, 1.0, share) == ImageColor.getrgb(COLOURS[0]), most


@pytest.mark.parametrize("points", [[(0.0, 0.0)], [(0.0, 0.0), (100.0, 0.0)], [(5.0, 3.0)], [(2.0, 1.0), (2.0, 4.0)]])
def test_few_and_equal_points_are_drawn(points: list[tuple[float, float]]) -> None:
    image = line_chart([series("one", *points)], TITLES)
    values = pixels(image)[TOP:]
    assert (values == ImageColor.getrgb(COLOURS[0])).all(axis=2).any()
    assert is_clear(image)


def test_a_long_legend_and_a_long_note_have_several_lines() -> None:
    names = [f"a model of a long name, number {number}" for number in range(9)]
    short = line_chart([series(name, (1, 2)) for name in names[:1]], TITLES)
    long = line_chart([series(name, (1, 2)) for name in names], Titles("a title", "a note " * 60, "across", "up"))
    assert long.width == short.width
    assert long.height >= short.height + 4 * LINE
    assert is_clear(long)


def test_a_plane_has_one_scale_and_joins_pairs() -> None:
    """Of 4 x 2 the width decides: half the plot is 2 / 0.53, whose middle is the origin."""
    image = scatter_chart([series("some", (-2, -1), (2, -1)), series("others", (-2, 1), (2, 1))], TITLES)
    across, up = 1 / (2 * 1.06), WIDTH / HEIGHT / (4 * 1.06)
    for sign, colour in ((-1, COLOURS[0]), (1, COLOURS[1])):
        for side in (-1, 1):
            assert colour_at(image, 0.5 + side * across, 0.5 + sign * up) == ImageColor.getrgb(colour)
    column = pixels(image)[TOP : TOP + HEIGHT, round(MARGIN + LEFT + WIDTH * (0.5 - across))]
    assert (column[HEIGHT // 2] < 255).all()  # the line between a pair
    assert (pixels(image)[TOP + HEIGHT // 2, MARGIN + LEFT + WIDTH // 2] == 255).all()
    assert is_clear(image)


def test_a_plane_of_one_place_is_drawn() -> None:
    image = scatter_chart([series("some", (3, 3), (3, 3))], TITLES)
    assert colour_at(image, 0.5, 0.5) == ImageColor.getrgb(COLOURS[0])
