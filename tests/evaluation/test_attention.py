"""Attention over a picture: warm where the map looks, in the right place, one panel a map."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ImageFont

from xmodal.media import drawing
from xmodal.media.drawing import GAP, LETTERS, LINE, attention_picture, font_of, labelled


def panels(picture: NDArray[np.uint8], count: int) -> list[NDArray[np.int64]]:
    width = (picture.shape[1] - GAP * (count - 1)) // count
    return [picture[:, start : start + width].astype(int) for start in range(0, picture.shape[1], width + GAP)]


def warmth(panel: NDArray[np.int64]) -> NDArray[np.int64]:
    return panel[..., 0] - panel[..., 2]


def test_each_map_is_warm_where_it_looks() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (70, 140, 3)).astype(np.uint8)
    maps = np.zeros((49, 2))
    maps[1 * 7 + 5, 0] = maps[6 * 7 + 0, 1] = 1  # row 1, column 5; row 6, column 0
    drawn = attention_picture(picture, maps)
    assert drawn.shape == (70, 3 * 140 + 2 * GAP, 3)
    original, *maps = panels(drawn, 3)
    np.testing.assert_array_equal(original, picture)
    for panel, (row, column) in zip(maps, ((15, 110), (65, 10)), strict=True):
        assert warmth(panel)[row, column] > 150
        far = np.abs(np.indices((70, 140)) - np.array([row, column])[:, None, None]).max(axis=0) > 40
        np.testing.assert_array_equal(warmth(panel)[far], 0)


def test_a_grid_may_be_no_square_and_a_flat_map_points_nowhere() -> None:
    picture = np.full((20, 30, 3), 100, np.uint8)
    drawn = attention_picture(picture, np.full((6, 1), 1 / 6), grid=(2, 3))
    np.testing.assert_array_equal(panels(drawn, 2)[1], 100)


@pytest.mark.parametrize(
    ("picture", "attention", "message"),
    [
        (np.zeros((8, 8, 3), np.uint8), np.ones((48, 1)), "grid of 6 x 6"),
        (np.zeros((8, 8, 3), np.uint8), np.full((49, 1), np.nan), "finite"),
        (np.zeros((8, 8, 3), np.float32), np.ones((49, 1)), "uint8"),
        (np.zeros((8, 8), np.uint8), np.ones((49, 1)), "a picture is"),
    ],
)
def test_what_is_no_picture_or_no_map_is_refused(
    picture: NDArray[np.uint8], attention: NDArray[np.float64], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        attention_picture(picture, attention)


def test_letters_are_those_of_a_font_of_the_machine_where_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, there = ImageFont.load_default(LETTERS), str(tmp_path / "there.ttf")
    assert isinstance(own, ImageFont.FreeTypeFont)
    Path(there).write_bytes(own.font_bytes)
    monkeypatch.setattr(drawing, "FONTS", ("nowhere.ttf", there))
    assert font_of(LETTERS).path == there
    monkeypatch.setattr(drawing, "FONTS", ("nowhere.ttf",))
    assert font_of(LETTERS).getname() == own.getname()
    legend = labelled(np.zeros((30, 200, 3), np.uint8), ["it"], "two words")
    assert (np.asarray(legend)[-LINE:] < 128).any()
