"""Blocks of a GIF, read without decoding a pixel: where its frames lie, and how long each is shown.

Times are not taken from a decoder: their treatment of delays of 0 and 10 ms changes with the version.
"""

import struct
from dataclasses import dataclass

from xmodal.media.frame_times import Limits, Refused, Sampling, Status, check_canvas, check_frames

SCREEN, IMAGE, EXTENSION, TRAILER, CONTROL = 13, 0x2C, 0x21, 0x3B, 0xF9  # the first is a length, the others are marks
OWN_PALETTE, INTERLACED = 0x80, 0x40  # of an image's flags, the first of the screen's too


@dataclass(frozen=True)
class Part:
    """A whole frame: where its first extension begins, its image, and the next frame."""

    begin: int
    image: int
    end: int


@dataclass(frozen=True)
class Gif:
    width: int
    height: int
    delays_ms: tuple[int, ...]
    parts: tuple[Part, ...]
    status: Status
    message: str


def read_gif(data: bytes, config: Sampling, limits: Limits) -> Gif:
    """Whole frames only: one that the end of the file cuts is none."""
    if len(data) < SCREEN:
        raise Refused("not_media", "the GIF ends within its header")
    width, height = struct.unpack_from("<HH", data, 6)
    check_canvas(width, height, config, limits)
    delays_ms: list[int] = []
    parts: list[Part] = []
    try:
        status, message = _walk(data, delays_ms, parts, limits)
    except (IndexError, struct.error):
        status, message = "truncated", "the file ends within a block"
    if not parts:
        raise Refused("no_frames", message or "the GIF has no frame")
    return Gif(width, height, tuple(delays_ms), tuple(parts), status, message)


def alone(data: bytes, part: Part, first: bool) -> bytes:
    """A frame as the decoder takes it, which fills what a frame gives back with the screen's background colour, where
    browsers show nothing: the screen has two colours here, both white, and its own palette goes with each image."""
    flags, screen = data[part.image + 9], b""
    if not flags & OWN_PALETTE:
        flags, screen = flags & INTERLACED | OWN_PALETTE | data[10] & 7, data[SCREEN : SCREEN + _palette(data[10])]
    header = b"GIF89a" + data[6:10] + bytes([OWN_PALETTE, 0, 0]) + b"\xff" * 6 if first else b""
    before, after = data[part.begin : part.image + 9], data[part.image + 10 : part.end]
    return header + before + bytes([flags]) + screen + after


def _walk(data: bytes, delays_ms: list[int], parts: list[Part], limits: Limits) -> tuple[Status, str]:
    """Fills the lists; IndexError or struct.error where the file ends."""
    begin = at = SCREEN + _palette(data[10])
    delay = 0
    while (mark := data[at]) != TRAILER:
        if mark == IMAGE:
            if not (data[at + 9] | data[10]) & OWN_PALETTE:
                return "damaged", "a frame has no palette"
            end = _after_blocks(data, at + 11 + _palette(data[at + 9]))  # its header, and a byte for the code size
            parts.append(Part(begin, at, end))
            delays_ms.append(delay)
            check_frames(len(parts), limits)
            begin, at, delay = end, end, 0
        elif mark == EXTENSION:
            if data[at + 1] == CONTROL and data[at + 2] >= 4:
                delay = 10 * struct.unpack_from("<H", data, at + 4)[0]
            at = _after_blocks(data, at + 2)
        else:
            return "damaged", f"no block begins with {mark:#04x}"
    return "ok", ""


def _palette(flags: int) -> int:
    """Bytes of the palette that a header with these flags is followed by."""
    return 3 << (flags & 7) + 1 if flags & OWN_PALETTE else 0


def _after_blocks(data: bytes, at: int) -> int:
    while length := data[at]:
        at += length + 1
    return at + 1
