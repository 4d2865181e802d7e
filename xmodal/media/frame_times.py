"""Frame times: when a clip's frames are shown, which are sampled, and what is refused."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal.number_rules import one_or_more

Delays = Literal["browser", "raw"]
Backend = Literal["pyav", "decord"]
Stage = Literal["fetch", "sniff", "probe", "plan", "decode"]
Usable = Literal["ok", "truncated", "damaged", "single_frame"]
NoClip = Literal["empty_file", "not_media", "unsupported_codec", "no_video_stream", "zero_size", "no_frames"]
OverLimit = Literal[
    "too_large_bytes", "too_many_pixels", "too_many_frames", "too_long", "too_many_outputs", "too_much_work"
]
Failure = Literal["timeout", "worker_died", "out_of_memory", "internal"]
Status = Literal[Usable, NoClip, OverLimit, Failure]
USABLE: tuple[Status, ...] = get_args(Usable)
PASSING: tuple[Status, ...] = get_args(Failure)  # another try may succeed
BROWSER_LEAST_MS, BROWSER_MS = 10, 100  # a delay up to the first becomes the second
JPEG_SIDE = 65_500  # pixels: the longest side that libjpeg writes


@dataclass(frozen=True)
class Sampling:
    fps: int = 8
    short_side: int = 256  # pixels
    upscale: bool = True  # False: a small clip keeps its size
    delays: Delays = "browser"  # of GIF and WebP; "raw" never shows a frame without delay
    jpegs_per_second: int = 8  # motion JPEG stores no rate
    backend: Backend = "pyav"

    def __post_init__(self) -> None:
        one_or_more(fps=self.fps, short_side=self.short_side, jpegs_per_second=self.jpegs_per_second)
        for field, options in (("delays", get_args(Delays)), ("backend", get_args(Backend))):
            if getattr(self, field) not in options:
                raise ValueError(f"{field} is {' or '.join(options)}, not {getattr(self, field)!r}")

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of a sampled frame."""
        short = min(width, height)
        if short == self.short_side or (short < self.short_side and not self.upscale):
            return width, height
        wide, high = (max(1, (2 * side * self.short_side + short) // (2 * short)) for side in (width, height))
        return wide, high


@dataclass(frozen=True)
class Limits:
    bytes: int = 128 << 20
    pixels: int = 1 << 24
    frames: int = 20_000
    seconds: int = 600
    samples: int = 2_048
    work: int = 1 << 31  # pixels up to the last chosen frame of a GIF or WebP

    def __post_init__(self) -> None:
        if wrong := [name for name, most in vars(self).items() if most < 1]:
            raise ValueError(f"no clip has less than 1 of {', '.join(wrong)}: set 1 or more")

    def check_canvas(self, width: int, height: int, config: Sampling) -> None:
        """Refuses a size, stored or sampled, before any pixel is decoded."""
        if not width or not height:
            raise Refused("zero_size", f"the canvas is {width} x {height}")
        if self._is_exceeded(width, height, config):
            wide, high = config.size(width, height)
            message = f"{width} x {height} pixels, sampled as {wide} x {high}"
            if not self._is_exceeded(width, height, replace(config, upscale=False)):
                message += "; upscale=false takes it"
            raise Refused("too_many_pixels", message)

    def _is_exceeded(self, width: int, height: int, config: Sampling) -> bool:
        wide, high = config.size(width, height)
        return max(width * height, wide * high) > self.pixels or max(wide, high) > JPEG_SIDE

    def check_frames(self, count: int) -> None:
        if count > self.frames:
            raise Refused("too_many_frames", f"more than {self.frames} frames")

    def check_plan(self, clip: "Clip", config: Sampling) -> None:
        timeline = clip.timeline
        if timeline.seconds > self.seconds:
            raise Refused("too_long", f"{float(timeline.seconds):.0f} seconds")
        if (count := timeline.count(config.fps)) > self.samples:
            raise Refused("too_many_outputs", f"{count} samples")
        if clip.in_order and (work := (timeline.shown(config.fps)[-1] + 1) * clip.width * clip.height) > self.work:
            raise Refused("too_much_work", f"{work} pixels are to be decoded")


class Refused(Exception):
    """A clip gives no frames; `sample_frames` returns it as data."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status


@dataclass(frozen=True)
class Timeline:
    """Starts of the frames, ascending, and the end of the last, in units (of seconds) from any zero."""

    starts: tuple[int, ...]
    end: int
    unit: Fraction

    @property
    def seconds(self) -> Fraction:
        return (self.end - self.starts[0]) * self.unit

    def start_us(self, frame: int) -> int:
        """Microseconds from the first frame to this one, rounded down."""
        return int((self.starts[frame] - self.starts[0]) * self.unit * 1_000_000)

    def count(self, fps: int) -> int:
        """Samples, at least one."""
        return max(1, math.ceil(self.seconds * fps))

    def shown(self, fps: int) -> list[int]:
        """For every sample k, the number of the frame shown at k / fps seconds."""
        rate, first = self.unit.numerator * fps, self.starts[0]
        due = (first + k * self.unit.denominator // rate for k in range(self.count(fps)))
        return [bisect_right(self.starts, tick) - 1 for tick in due]


def from_delays(delays_ms: Sequence[int], rule: Delays) -> Timeline:
    shown_ms = (BROWSER_MS if rule == "browser" and delay <= BROWSER_LEAST_MS else delay for delay in delays_ms)
    *starts, end = accumulate(shown_ms, initial=0)
    return Timeline(tuple(starts), end, Fraction(1, 1000))


@dataclass(frozen=True, eq=False)
class Frame:
    pixels_HW3: NDArray[np.uint8]  # upright RGB of the size that was asked for
    jpeg: bytes | None = None  # the clip's own JPEG, if it has exactly these pixels


OnFrame = Callable[[int, Frame], None]  # receives a frame with its number


@dataclass(frozen=True)
class Clip:
    """A clip before it is decoded. `show` decodes frames of ascending numbers and returns what went wrong."""

    codec: str
    width: int
    height: int
    timeline: Timeline
    show: Callable[[Sequence[int], OnFrame], list[str]]
    status: Status = "ok"
    message: str = ""
    in_order: bool = False  # frames before the chosen ones are decoded too
