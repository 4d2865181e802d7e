"""Animated WebP, read chunk by chunk and decoded by Pillow."""

import struct
from collections.abc import Iterator, Sequence
from functools import partial

from xmodal.media.frame_times import Clip, Limits, OnFrame, Refused, Sampling, Status, from_delays
from xmodal.media.images import UnreadableImage, frames_at, sampled_frame

FLAGS = 20  # their place in the first chunk
ANIMATED, TRANSPARENT = 0x02, 0x10


def open_webp(data: bytes, config: Sampling, limits: Limits) -> Clip:
    """A still picture is a clip of one frame; a truncated file keeps its whole frames."""
    if len(data) <= FLAGS:
        raise Refused("not_media", "the WebP ends within its header")
    delays_ms, animated, size, end = list[int](), False, None, 12
    for kind, begin, after in _chunks(data):
        end = after
        if size is None and (size := _webp_size(data, kind, begin)):
            limits.check_canvas(*size, config)
            animated = kind == b"VP8X" and begin == FLAGS and bool(data[FLAGS] & ANIMATED)
        if kind == b"ANMF":
            delays_ms.append(_uint24(data, begin + 12))
            limits.check_frames(len(delays_ms))
    if size is None:
        raise Refused("not_media", "the WebP has no size")
    if animated and not delays_ms:
        raise Refused("no_frames", "the file ends before its first frame")
    status: Status = "ok" if animated else "single_frame"
    message = ""
    if struct.unpack_from("<I", data, 4)[0] + 8 > len(data):
        status, message = "truncated", "the file ends before its last frame"
    whole = bytearray(data[:end])
    struct.pack_into("<I", whole, 4, end - 8)  # the decoder refuses a file that is shorter than it says
    if animated:
        whole[FLAGS] |= TRANSPARENT  # without it Pillow draws black where no frame covers the canvas
    timeline = from_delays(delays_ms or [0], config.delays)
    return Clip("webp", *size, timeline, partial(_show_webp, bytes(whole), config), status, message, in_order=True)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of each whole chunk."""
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
        return _uint24(data, at + 6) & 0x3FFF, _uint24(data, at + 8) & 0x3FFF
    return None


def _uint24(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 3], "little")


def _show_webp(data: bytes, config: Sampling, numbers: Sequence[int], keep: OnFrame) -> list[str]:
    pictures = frames_at(data, numbers)
    try:
        for number, picture in zip(numbers, pictures, strict=True):
            keep(number, sampled_frame(picture, config))
    except UnreadableImage as error:  # later frames are drawn on top of this one
        return [str(error)]
    return []
