"""GIF: finds frames and their delays, which a decoder's version would read in its own way."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from xmodal.media.frame_times import Clip, Limits, OnFrame, Refused, Sampling, Status, from_delays
from xmodal.media.libav import show_gif

SCREEN = 13  # bytes of the header and the screen's description
IMAGE, EXTENSION, TRAILER, CONTROL = 0x2C, 0x21, 0x3B, 0xF9  # markers
OWN_PALETTE, INTERLACED = 0x80, 0x40  # flags of an image; the screen has the first, too


@dataclass(frozen=True)
class GifFrame:
    """Positions of a whole frame: its first extension, its image, and its end."""

    begin: int
    image: int
    end: int
    delay_ms: int


def open_gif(data: bytes, config: Sampling, limits: Limits) -> Clip:
    if len(data) < SCREEN:
        raise Refused("not_media", "the GIF ends within its header")
    width, height = struct.unpack_from("<HH", data, 6)
    limits.check_canvas(width, height, config)
    frames = list[GifFrame]()
    try:
        status, message = _walk(data, frames, limits)
    except (IndexError, struct.error):
        status, message = "truncated", "the file ends within a block"
    if not frames:
        raise Refused("no_frames", message or "the GIF has no frame")
    timeline = from_delays([frame.delay_ms for frame in frames], config.delays)
    show = partial(_show_gif, data, frames, config, limits)
    return Clip("gif", width, height, timeline, show, status, message, in_order=True)


def _show_gif(
    data: bytes, frames: Sequence[GifFrame], config: Sampling, limits: Limits, numbers: Sequence[int], keep: OnFrame
) -> list[str]:
    encoded = (_frame_bytes(data, frame, first=frame is frames[0]) for frame in frames[: numbers[-1] + 1])
    return show_gif(encoded, config, limits, numbers, keep)


def _frame_bytes(data: bytes, frame: GifFrame, first: bool) -> bytes:
    """A frame as libav's decoder needs it; the first comes with a header."""
    flags, screen = data[frame.image + 9], b""
    if not flags & OWN_PALETTE:  # the screen's palette goes with the image
        flags, screen = flags & INTERLACED | OWN_PALETTE | data[10] & 7, data[SCREEN : SCREEN + _palette(data[10])]
    # where a frame is taken away the decoder draws the screen's background, so that is white
    header = b"GIF89a" + data[6:10] + bytes([OWN_PALETTE, 0, 0]) + b"\xff" * 6 if first else b""
    before, after = data[frame.begin : frame.image + 9], data[frame.image + 10 : frame.end]
    return header + before + bytes([flags]) + screen + after


def _walk(data: bytes, frames: list[GifFrame], limits: Limits) -> tuple[Status, str]:
    """Finds whole frames. IndexError or struct.error if the file ends too early."""
    begin = at = SCREEN + _palette(data[10])
    delay = 0
    while (marker := data[at]) != TRAILER:
        if marker == IMAGE:
            if not (data[at + 9] | data[10]) & OWN_PALETTE:
                return "damaged", "a frame has no palette"
            end = _after_blocks(data, at + 11 + _palette(data[at + 9]))  # after its header and the code size
            frames.append(GifFrame(begin, at, end, delay))
            limits.check_frames(len(frames))
            begin, at, delay = end, end, 0
        elif marker == EXTENSION:
            if data[at + 1] == CONTROL and data[at + 2] >= 4:
                delay = 10 * struct.unpack_from("<H", data, at + 4)[0]
            at = _after_blocks(data, at + 2)
        else:
            return "damaged", f"no block begins with {marker:#04x}"
    return "ok", ""


def _palette(flags: int) -> int:
    """Bytes of the palette after these flags."""
    return 3 << (flags & 7) + 1 if flags & OWN_PALETTE else 0


def _after_blocks(data: bytes, at: int) -> int:
    while length := data[at]:
        at += length + 1
    return at + 1
