"""Clips that are pictures one after the other, by Pillow: animated WebP, and motion JPEG without a container.

Motion JPEG here is what a dump of frames is kept as: whole JPEG files, each begun where the one before ends.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
from PIL import Image

from xmodal.media.frame_times import (
    Clip,
    Frame,
    KeepNumbered,
    Limits,
    Refused,
    Sampling,
    Status,
    Timeline,
    check_canvas,
    check_frames,
    from_delays,
)
from xmodal.media.images import UnreadableImage, frames_at, open_image

FLAGS, ANIMATED, TRANSPARENT = 20, 0x02, 0x10  # of WebP: where they lie, in its first chunk, and two of them
END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither a byte of data nor a restart
BEGINNING = b"\xff\xd8\xff"
START, END, SCAN, EXIF = 0xD8, 0xD9, 0xDA, 0xE1  # marks of JPEG
SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # marks that the size follows
ALONE = {0x01, *range(0xD0, 0xD8)}  # marks that no length follows


def open_webp(data: bytes, config: Sampling, limits: Limits) -> Clip:
    """A still picture is a clip of one frame, and its status says so. Of a cut file the whole frames are kept."""
    if len(data) <= FLAGS:
        raise Refused("not_media", "the WebP ends within its header")
    delays_ms, animated, size, end = list[int](), False, None, 12
    for kind, begin, after in _chunks(data):
        end = after
        if size is None and (size := _webp_size(data, kind, begin)):
            check_canvas(*size, config, limits)
            animated = kind == b"VP8X" and begin == FLAGS and bool(data[FLAGS] & ANIMATED)
        if kind == b"ANMF":
            delays_ms.append(_uint24(data, begin + 12))
            check_frames(len(delays_ms), limits)
    if size is None:
        raise Refused("not_media", "the WebP has no size")
    if animated and not delays_ms:
        raise Refused("no_frames", "the file ends before its first frame")
    cut = struct.unpack_from("<I", data, 4)[0] + 8 > len(data)
    status: Status = "truncated" if cut else "ok" if animated else "single_frame"
    message = "the file ends before its last frame" if cut else ""
    whole = bytearray(data[:end])
    struct.pack_into("<I", whole, 4, end - 8)  # the decoder takes none that is shorter than it says
    if animated:
        whole[FLAGS] |= TRANSPARENT  # where not even one frame is, Pillow would draw black
    timeline = from_delays(delays_ms or [0], config.delays)
    return Clip("webp", *size, timeline, partial(_show_webp, bytes(whole), config), status, message, in_order=True)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of those that are whole."""
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        end = at + 8 + length + length % 2
        if end > len(data):
            return
        yield kind, at + 8, end
        at = end


def _webp_size(data: bytes, kind: bytes, at: int) -> tuple[int, int] | None:
    if kind == b"VP8X":
        return _uint24(data, at + 4) + 1, _uint24(data, at + 7) + 1
    if kind == b"VP8L":
        bits = int.from_bytes(data[at + 1 : at + 5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = (int.from_bytes(data[begin : begin + 2], "little") & 0x3FFF for begin in (at + 6, at + 8))
        return width, height
    return None


def _uint24(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


def _show_webp(data: bytes, config: Sampling, numbers: Sequence[int], keep: KeepNumbered) -> list[str]:
    pictures = frames_at(data, numbers)
    for number in numbers:
        try:
            picture = next(pictures)
        except UnreadableImage as error:  # later frames are drawn on this one
            return [str(error)]
        keep(number, _sampled(picture, config))
    return []


@dataclass(frozen=True)
class Jpeg:
    """One of a stream. `size` is width and height, None where none was found before it went wrong; `plain` is a picture
    whose pixels are as they lie there, in colour."""

    begin: int
    end: int
    size: tuple[int, int] | None
    plain: bool


def open_jpegs(data: bytes, config: Sampling, limits: Limits) -> Clip:
    """One JPEG alone is a clip of one frame, as of WebP. Of a cut file the whole pictures are kept."""
    jpegs = list[Jpeg]()
    while jpeg := _jpeg(data, jpegs[-1].end if jpegs else 0):
        check_canvas(*(jpeg.size or (1, 1)), config, limits)
        jpegs.append(jpeg)
        check_frames(len(jpegs), limits)
    if not jpegs:
        raise Refused("no_frames", "the file ends within its first picture")
    cut = jpegs[-1].end < len(data)
    status: Status = "truncated" if cut else "ok" if len(jpegs) > 1 else "single_frame"
    message = "the file ends within a picture" if cut else ""
    timeline = Timeline(tuple(range(len(jpegs))), len(jpegs), Fraction(1, config.jpegs_per_second))
    size = jpegs[0].size or (0, 0)
    return Clip("mjpeg", *size, timeline, partial(_show_jpegs, data, jpegs, config), status, message)


def _jpeg(data: bytes, begin: int) -> Jpeg | None:
    """The first from there on; None where the file ends before it does. What is broken is the decoder's to say."""
    if (begin := data.find(BEGINNING, begin)) < 0:
        return None
    size, plain = None, True
    try:
        for mark, at in _segments(data, begin + 2):
            if mark in SIZES:
                height, width, colours = struct.unpack_from(">HHB", data, at + 5)
                size, plain = (width, height), plain and colours == 3
            plain &= mark != EXIF
    except (IndexError, struct.error):
        return None
    return Jpeg(begin, at + 2 if mark == END else at, size, plain)


def _segments(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Marks and their places, up to the picture's end or, where it has none, to the next one's beginning."""
    while True:
        if data[at] != 0xFF:
            at = _found(data.find(BEGINNING, at))
        mark = data[at + 1]
        yield mark, at
        if mark in (START, END):
            return
        at += 1 if mark == 0xFF else 2 if mark in ALONE else 2 + struct.unpack_from(">H", data, at + 2)[0]
        if mark == SCAN:
            at = _found(next((match.start() for match in END_OF_SCAN.finditer(data, at)), -1))


def _found(at: int) -> int:
    if at < 0:
        raise IndexError
    return at


def _show_jpegs(
    data: bytes, jpegs: Sequence[Jpeg], config: Sampling, numbers: Sequence[int], keep: KeepNumbered
) -> list[str]:
    trouble = []
    for number in numbers:
        jpeg = jpegs[number]
        own = data[jpeg.begin : jpeg.end]
        try:
            picture = open_image(own)
        except UnreadableImage as error:
            trouble.append(str(error))
            continue
        frame = _sampled(picture, config)
        same = jpeg.plain and frame.pixels_HW3.shape[1::-1] == jpeg.size
        keep(number, Frame(frame.pixels_HW3, own) if same else frame)
    return trouble


def _sampled(picture: Image.Image, config: Sampling) -> Frame:
    size = config.size(*picture.size)
    return Frame(np.asarray(picture if size == picture.size else picture.resize(size, Image.Resampling.BILINEAR)))
