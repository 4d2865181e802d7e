"""Motion JPEG without a container: whole JPEG files, one after the other."""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from xmodal.media.frame_times import Clip, Limits, OnFrame, Refused, Sampling, Status, Timeline
from xmodal.media.images import JPEG, UnreadableImage, open_image, sampled_frame

END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither an escaped byte nor a restart
START, END, SCAN, EXIF = 0xD8, 0xD9, 0xDA, 0xE1  # markers
SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers that the picture's size follows
ALONE = {0x01, *range(0xD0, 0xD8)}  # markers that no length follows


@dataclass(frozen=True)
class JpegFrame:
    begin: int
    end: int
    size: tuple[int, int] | None  # width and height, if found before a fault
    plain: bool  # in colour and not turned: its pixels are the frame's


def open_jpegs(data: bytes, config: Sampling, limits: Limits) -> Clip:
    jpegs = list[JpegFrame]()
    while jpeg := _jpeg(data, jpegs[-1].end if jpegs else 0):
        limits.check_canvas(*(jpeg.size or (1, 1)), config)
        jpegs.append(jpeg)
        limits.check_frames(len(jpegs))
    if not jpegs:
        raise Refused("no_frames", "the file ends within its first picture")
    status: Status = "ok" if len(jpegs) > 1 else "single_frame"
    message = ""
    if jpegs[-1].end < len(data):
        status, message = "truncated", "the file ends within a picture"
    timeline = Timeline(tuple(range(len(jpegs))), len(jpegs), Fraction(1, config.jpegs_per_second))
    size = jpegs[0].size or (0, 0)
    return Clip("mjpeg", *size, timeline, partial(_show_jpegs, data, jpegs, config), status, message)


def _jpeg(data: bytes, begin: int) -> JpegFrame | None:
    """The next JPEG, which may be broken; None if the file ends first."""
    if (begin := data.find(JPEG, begin)) < 0:
        return None
    size, plain = None, True
    try:
        for marker, at in _segments(data, begin + 2):
            if marker in SIZES:
                height, width, colours = struct.unpack_from(">HHB", data, at + 5)
                size, plain = (width, height), plain and colours == 3
            plain &= marker != EXIF
    except (IndexError, ValueError, struct.error):  # `index` finds no further picture
        return None
    return JpegFrame(begin, at + 2 if marker == END else at, size, plain)


def _segments(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Markers and positions, up to the end or the next picture. Raises if the file ends first."""
    while True:
        if data[at] != 0xFF:
            at = data.index(JPEG, at)
        marker = data[at + 1]
        yield marker, at
        if marker in (START, END):
            return
        if marker == 0xFF:
            at += 1
        else:
            at += 2 if marker in ALONE else 2 + struct.unpack_from(">H", data, at + 2)[0]
        if marker == SCAN:
            end = END_OF_SCAN.search(data, at)
            if end is None:
                raise IndexError
            at = end.start()


def _show_jpegs(
    data: bytes, jpegs: Sequence[JpegFrame], config: Sampling, numbers: Sequence[int], keep: OnFrame
) -> list[str]:
    trouble = []
    for number in numbers:
        jpeg = jpegs[number]
        own = data[jpeg.begin : jpeg.end]
        try:
            frame = sampled_frame(open_image(own), config)
        except UnreadableImage as error:
            trouble.append(str(error))
            continue
        is_same = jpeg.plain and frame.pixels_HW3.shape[1::-1] == jpeg.size
        keep(number, replace(frame, jpeg=own) if is_same else frame)
    return trouble
