"""Good clips with flipped bits and missing ends: frames or a status, whatever was hit."""

import random
from functools import cache
from typing import get_args

import pytest

from tests.clips import gif, index_first, jpeg, numbered, picture, rate, video, webp
from xmodal.media.frame_sampling import Sampled, encode_jpeg, sample_frames
from xmodal.media.frame_times import USABLE, Frame, Limits, Sampling, Status

MUTATIONS = 2_000
LIMITS = Limits(pixels=1 << 16, frames=200, seconds=60, samples=200, work=1 << 23)  # so that no hit costs much


@cache
def good() -> tuple[bytes, ...]:
    fast = {"deadline": "realtime", "cpu-used": "8"}
    groups = {"x264-params": "open-gop=1:keyint=6:bframes=2:b-adapt=0"}
    starts = [start * 1000 // 24 for start in rate(14)]
    return (
        gif([numbered(number, delay=number, disposal=number % 4, interlaced=bool(number % 2)) for number in range(5)]),
        webp(range(5), [40, 0, 130, 250, 90]),
        video(starts, options=groups),
        index_first(video(starts, options={"bf": "0"}, rotated=90)),
        video(starts, codec="mpeg4", options={"bf": "2"}, sound=True),
        video(starts, codec="libx265", options={"x265-params": "log-level=none"}),
        video(starts, codec="libvpx-vp9", container="webm", options=fast),
        video(starts, codec="libvpx", container="webm", options=fast),
        b"".join(jpeg(picture(number)) for number in range(4)),
    )


def mutated(dice: random.Random) -> bytes:
    """Most hits are in what is structure: the first and last parts of a file."""
    data = bytearray(dice.choice(good()))
    for _ in range(dice.choice((0, 1, 1, 2, 5, 20))):
        reach = min(len(data), dice.choice((40, 400, len(data))))
        at = dice.randrange(reach) if dice.random() < 0.7 else len(data) - 1 - dice.randrange(reach)
        data[at] ^= 1 << dice.randrange(8) if dice.random() < 0.8 else dice.randrange(256)
    return bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.3 else data)


def sampled(data: bytes) -> tuple[Sampled, list[Frame]]:
    frames: list[Frame] = []
    return sample_frames(data, frames.append, Sampling(short_side=64), LIMITS), frames


@pytest.mark.parametrize("seed", range(10))
def test_damage_anywhere_gives_frames_or_a_status(seed: int) -> None:
    dice, statuses = random.Random(seed), set()
    for _ in range(MUTATIONS // 10):
        row, frames = sampled(mutated(dice))
        statuses.add(row.status)
        if row.status in USABLE:
            assert len(row.frame_of_sample) == row.samples_planned > 0
            assert set(row.frame_of_sample) == set(range(len(frames)))
        else:
            assert (row.frame_of_sample, row.samples_missing) == ((), 0)
        assert len(row.message) <= 200
    assert statuses <= set(get_args(Status)) - {"internal", "timeout", "worker_died"}
    assert {"ok", "damaged", "truncated", "not_media"} <= statuses


@pytest.mark.parametrize("clip", range(len(good())))
def test_every_beginning_of_a_clip_has_a_status(clip: int) -> None:
    for length in range(65):
        row, _ = sampled(good()[clip][:length])
        assert row.status in get_args(Status)


@pytest.mark.parametrize("kind", [b"VP8X", b"VP8L", b"VP8 ", b"ANMF", b"ANIM"])
def test_a_webp_of_empty_chunks_is_no_clip(kind: bytes) -> None:
    for count in (1, 2, 3):
        body = b"WEBP" + count * (kind + bytes(4))
        row, frames = sampled(b"RIFF" + len(body).to_bytes(4, "little") + body)
        assert (row.status in USABLE, frames) == (False, [])


def test_damage_gives_the_same_bytes_every_time() -> None:
    dice = random.Random(99)
    for _ in range(60):
        data = mutated(dice)
        once, again = sampled(data), sampled(data)
        assert once[0] == again[0]
        assert [encode_jpeg(frame.pixels_HW3) for frame in once[1]] == [
            encode_jpeg(frame.pixels_HW3) for frame in again[1]
        ]
