"""Animations and motion JPEG: delays, frames drawn on each other, and bytes that are kept."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.clips import (
    Image8,
    composed,
    gif,
    jpeg,
    number_of,
    numbered,
    picture,
    shown_of_delays,
    webp,
)
from tests.media.test_media import jpegs, numbers, of_24, sampled


def test_delays_as_browsers_read_them_or_raw() -> None:
    delays = [0, 1, 2, 3, 0, 0, 1, 2, 2, 2, 6, 0, 1, 5, None, 0, 20, 0]
    data = gif([numbered(number, delay=delay) for number, delay in enumerate(delays)])
    clamped = [10 * delay if (delay or 0) > 1 else 100 for delay in delays if delay is None or delay >= 0]
    assert numbers(data) == shown_of_delays([delay or 0 for delay in clamped])
    assert numbers(data, delays="raw") == shown_of_delays([10 * (delay or 0) for delay in delays])
    assert numbers(webp(range(5), [0, 10, 11, 130, 90])) == shown_of_delays([100, 100, 11, 130, 90])


@pytest.mark.parametrize(
    ("delays_cs", "shown"),
    [
        (
            [3, 4, 10, 8, 25, 50, 7, 12, 13, 2, 5, 100, 11, 25, 9, 30],
            [0, 2, 4, 4, 5, 5, 5, 5, 6, 7, 8, 10, 11, 11, 11, 11, 11, 11, 11, 11, 13, 13, 14, 15, 15, 15],
        ),
        ([0, 1, 2, 3, 0, 0, 1, 2, 2, 2, 6, 0, 1, 5, 0, 0, 20, 0], [0, 1, 4, 5, 6, 10, 11, 13, 14, 16, 16, 17]),
        ([12, 13, 25, 12, 13, 50, 6, 6], [0, 1, 2, 2, 3, 4, 5, 5, 5, 5, 6]),
    ],
)
def test_delays_of_a_gif_show_the_frames_of_the_reference(delays_cs: list[int], shown: list[int]) -> None:
    """The lists of g01, g02 and g04 of the reference, also where its files are not."""
    assert numbers(gif([numbered(number, delay=delay) for number, delay in enumerate(delays_cs)])) == shown


def odd_frames() -> list[Image8]:
    """Every disposal, transparency, interlace, local palettes, frames that are smaller than the canvas: all at once."""
    random = np.random.default_rng(0)
    local = ((9, 9, 9), (250, 240, 1), (0, 200, 0), (77, 0, 77))
    return [
        replace(
            numbered(number, delay=13),
            colours_HW=random.integers(0, 4, (1 + 7 * number % 60, 1 + 11 * number % 90)).astype(np.uint8),
            left=number % 38,
            top=number * 3 % 36,
            disposal=number % 4,
            transparent=number % 5 if number % 5 < 4 else None,
            interlaced=number % 3 == 0,
            palette=local if number % 2 else (),
        )
        for number in range(40)
    ]


def test_frames_of_a_gif_are_drawn_on_each_other_over_white() -> None:
    frames = odd_frames()
    row, kept = sampled(gif(frames), upscale=False)
    assert (row.status, row.samples_planned, len(kept)) == ("ok", 42, 40)
    for frame, expected in zip(kept, composed(frames), strict=True):
        np.testing.assert_array_equal(frame.pixels_HW3, expected)


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
def test_frames_of_a_gif_are_those_that_pillow_draws(disposal: int) -> None:
    """It clears what a frame without a transparent colour covered to the screen's background, as nothing else does."""
    clear = {"transparent": 3} if disposal == 2 else {}
    data = gif([replace(frame, disposal=disposal, **clear) for frame in odd_frames()])
    _, kept = sampled(data, upscale=False)
    with Image.open(io.BytesIO(data)) as image:
        for number, frame in enumerate(kept):
            image.seek(number)
            drawn = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
            np.testing.assert_array_equal(frame.pixels_HW3, np.asarray(drawn))


def test_tags_that_are_no_text_do_not_matter() -> None:
    data = of_24(12)
    assert data.count(b"Lavf") == 1
    assert numbers(data.replace(b"Lavf", b"\xa8\xff\xfe\xa8")) == numbers(data)


def test_a_jpeg_is_upright_as_its_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    turned = jpeg(np.ascontiguousarray(np.rot90(picture(5))), exif=exif)
    for data, status in ((turned, "single_frame"), (turned * 2, "ok")):
        row, (frame, *_) = sampled(data, short_side=96)
        assert (row.status, number_of(frame.pixels_HW3), frame.pixels_HW3.shape) == (status, 5, (96, 128, 3))
        assert frame.jpeg is None, "its own bytes lie on their side"


def test_comments_of_any_bytes_do_not_matter() -> None:
    frames = [numbered(number) for number in range(4)]
    assert numbers(gif(frames, comment=b"Photoshop\xa8" * 90)) == numbers(gif(frames))


def test_an_animation_cut_short_keeps_its_whole_frames() -> None:
    frames = [numbered(number, delay=12) for number in range(8)]
    whole = gif(frames)
    assert numbers(whole[: len(gif(frames[:5], end=b"")) + 700], "truncated") == shown_of_delays([120] * 5)
    assert numbers(whole[:-1], "truncated") == shown_of_delays([120] * 8)
    moving = webp(range(8), [120] * 8)
    places = [at for at in range(len(moving)) if moving.startswith(b"ANMF", at)]
    assert numbers(moving[: places[5] + 30], "truncated") == shown_of_delays([120] * 5)


def test_a_gif_with_bytes_between_its_blocks_ends_there() -> None:
    frames = [numbered(number, delay=12) for number in range(6)]
    broken = gif(frames[:4], end=b"\x07") + gif(frames[4:])
    assert numbers(broken, "damaged") == shown_of_delays([120] * 4)


def test_motion_jpeg_keeps_its_bytes_where_nothing_is_resized() -> None:
    pictures = [*jpegs(3), jpeg(picture(3), restart_marker_rows=1), jpeg(picture(4), comment=b"\xff\xd8\xff\xd9")]
    row, frames = sampled(b"".join(pictures), short_side=96)
    assert (row.container, row.status, row.duration_ms) == ("mjpeg", "ok", 625)
    assert [frame.jpeg for frame in frames] == pictures
    assert numbers(b"".join(pictures)) == list(range(5))
    assert sampled(b"".join(pictures))[1][0].jpeg is None
    assert numbers(b"".join(jpegs(9)), jpegs_per_second=24) == [0, 3, 6]


def test_motion_jpeg_that_is_cut_broken_or_grey() -> None:
    pictures = jpegs(6)
    assert numbers(b"".join(pictures)[:-50], "truncated") == list(range(5))
    cut_within = [*pictures[:2], pictures[2][:-200], *pictures[3:]]
    row, frames = sampled(b"".join(cut_within))
    assert (row.status, row.samples_missing, row.frame_of_sample) == ("damaged", 1, (0, 1, 1, 2, 3, 4))
    grey = jpeg(np.full((96, 128), 7, np.uint8))
    row, frames = sampled(grey * 2, short_side=96)
    assert (row.status, frames[0].jpeg, frames[0].pixels_HW3.shape) == ("ok", None, (96, 128, 3))


def test_an_animated_webp_is_seen_on_white() -> None:
    """The left half of every frame is clear."""
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    images = [Image.new("RGBA", (40, 40), (*colour, 255)) for colour in colours]
    for image in images:
        image.paste((0, 0, 0, 0), (0, 0, 20, 40))
    file = io.BytesIO()
    images[0].save(file, "WEBP", save_all=True, append_images=images[1:], duration=125, lossless=True)
    row, frames = sampled(file.getvalue(), upscale=False)
    assert (row.status, row.samples_planned) == ("ok", 3)
    for frame, colour in zip(frames, colours, strict=True):
        assert (frame.pixels_HW3[:, :20] == 255).all()
        assert (frame.pixels_HW3[:, 20:] == colour).all()
