"""When a frame is shown, which are chosen, what is refused: the part of sampling that no codec takes part in."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Delays = Literal["browser", "raw"]
Backend = Literal["pyav", "decord"]
Stage = Literal["fetch", "sniff", "probe", "plan", "decode"]
Usable = Literal["ok", "truncated", "damaged", "single_frame"]
NoClip = Literal["empty_file", "not_media", "unsupported_codec", "no_video_stream", "zero_size", "no_frames"]
OverLimit = Literal[
    "too_large_bytes", "too_many_pixels", "too_many_frames", "too_long", "too_many_outputs", "too_much_work"
]
Failure = Literal["timeout", "worker_died", "out_of_memory", "internal"]  # but for memory known to the worker alone
Status = Literal[Usable, NoClip, OverLimit, Failure]
USABLE: tuple[Status, ...] = get_args(Usable)
PASSING: tuple[Status, ...] = get_args(Failure)  # what another try may be spared: more than the clip decides it
BROWSER_LEAST_MS, BROWSER_MS = 10, 100  # a delay of the first or less is taken for the second
JPEG_SIDE = 65_500  # pixels: libjpeg writes no longer one


@dataclass(frozen=True)
class Sampling:
    """What decides the frames of a clip.

    `delays` is how those of GIF and WebP are read: `raw` shows a frame of no delay never. `jpegs_per_second` is the
    rate of motion JPEG, which has none of its own. Without `upscale` a small clip keeps its size.
    """

    fps: int = 8
    short_side: int = 256
    upscale: bool = True
    delays: Delays = "browser"
    jpegs_per_second: int = 8
    backend: Backend = "pyav"

    def __post_init__(self) -> None:
        if any(not isinstance(one, int) or one < 1 for one in (self.fps, self.short_side, self.jpegs_per_second)):
            raise ValueError("fps, short_side and jpegs_per_second are whole numbers, and at least 1")
        for field, options in (("delays", get_args(Delays)), ("backend", get_args(Backend))):
            if getattr(self, field) not in options:
                raise ValueError(f"{field} is {' or '.join(options)}, not {getattr(self, field)!r}")

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Of the sampled frame, width first; sides are rounded to the nearest."""
        short = min(width, height)
        if short == self.short_side or (short < self.short_side and not self.upscale):
            return width, height
        wide, high = (max(1, (2 * side * self.short_side + short) // (2 * short)) for side in (width, height))
        return wide, high


@dataclass(frozen=True)
class Limits:
    """What a clip may have at most. `work` are the pixels of all frames up to the last chosen, of GIF and WebP."""

    bytes: int = 128 << 20
    pixels: int = 1 << 24
    frames: int = 20_000
    seconds: int = 600
    samples: int = 2_048
    work: int = 1 << 31

    def __post_init__(self) -> None:
        if wrong := [name for name, most in vars(self).items() if most < 1]:
            raise ValueError(f"no clip has less than 1 of {', '.join(wrong)}: a limit is 1 or more")


class Refused(Exception):
    """Why there are no frames: a status and a line. Callers of `sample_frames` get it as data."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


@dataclass(frozen=True)
class Timeline:
    """Ascending starts of the frames and the end of the last, in units of a second, from any zero."""

    starts: tuple[int, ...]
    end: int
    unit: Fraction

    @property
    def seconds(self) -> Fraction:
        return (self.end - self.starts[0]) * self.unit

    def start_us(self, frame: int) -> int:
        """Microseconds after the first frame, rounded down."""
        return int((self.starts[frame] - self.starts[0]) * self.unit * 1_000_000)

    def count(self, fps: int) -> int:
        """Samples: at least one."""
        duration, unit = self.end - self.starts[0], self.unit
        return max(1, -(-duration * unit.numerator * fps // unit.denominator))

    def shown(self, fps: int) -> list[int]:
        """Of every sample k the frame that is on the screen at k / fps seconds."""
        rate, first = self.unit.numerator * fps, self.starts[0]
        due = (first + k * self.unit.denominator // rate for k in range(self.count(fps)))
        return [bisect_right(self.starts, tick) - 1 for tick in due]


def from_delays(delays_ms: Sequence[int], rule: Delays) -> Timeline:
    """Delays of an animation, as its file has them."""
    starts, now = [], 0
    for delay in delays_ms:
        starts.append(now)
        now += BROWSER_MS if rule == "browser" and delay <= BROWSER_LEAST_MS else delay
    return Timeline(tuple(starts), now, Fraction(1, 1000))


@dataclass(frozen=True, eq=False)
class Frame:
    """RGB, upright, of the size that was asked. `jpeg` are the clip's own bytes of just these pixels, where it has."""

    pixels_HW3: NDArray[np.uint8]
    jpeg: bytes | None = None


KeepNumbered = Callable[[int, Frame], None]


@dataclass(frozen=True)
class Clip:
    """A clip that was looked at and not decoded.

    `show` decodes the frames of ascending numbers, gives each away as soon as it has it, and returns what went wrong.
    `in_order` are clips of which every frame is decoded up to the last chosen.
    """

    codec: str
    width: int
    height: int
    timeline: Timeline
    show: Callable[[Sequence[int], KeepNumbered], list[str]]
    status: Status = "ok"
    message: str = ""
    in_order: bool = False


def check_canvas(width: int, height: int, config: Sampling, limits: Limits) -> None:
    """Refuses sizes, stored or sampled, before there are pixels."""
    if not width or not height:
        raise Refused("zero_size", f"the canvas is {width} x {height}")
    if _is_too_large(width, height, config, limits):
        wide, high = config.size(width, height)
        cure = (
            "" if _is_too_large(width, height, replace(config, upscale=False), limits) else "; upscale=false takes it"
        )
        raise Refused("too_many_pixels", f"{width} x {height} pixels, sampled as {wide} x {high}{cure}")


def _is_too_large(width: int, height: int, config: Sampling, limits: Limits) -> bool:
    wide, high = config.size(width, height)
    return max(width * height, wide * high) > limits.pixels or max(wide, high) > JPEG_SIDE


def check_frames(count: int, limits: Limits) -> None:
    if count > limits.frames:
        raise Refused("too_many_frames", f"more than {limits.frames} frames")


def check_plan(clip: Clip, config: Sampling, limits: Limits) -> None:
    """Refuses what would take too long, from the timeline alone."""
    if clip.timeline.seconds > limits.seconds:
        raise Refused("too_long", f"{float(clip.timeline.seconds):.0f} seconds")
    if (count := clip.timeline.count(config.fps)) > limits.samples:
        raise Refused("too_many_outputs", f"{count} samples")
    if clip.in_order and (work := (clip.timeline.shown(config.fps)[-1] + 1) * clip.width * clip.height) > limits.work:
        raise Refused("too_much_work", f"{work} pixels are to be decoded")
