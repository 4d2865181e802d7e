"""Clips whose frames show their own number, in every container, with all that is odd about the ones that are found."""

import io
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from pipelines.demo.world import Pixels

WIDTH, HEIGHT = 128, 96
RED, BLUE = (200, 30, 30), (30, 30, 200)


def picture(number: int) -> NDArray[np.uint8]:
    """Two rows of four blocks are the bits of a number, the lowest first; below them red on the left, blue right."""
    bits = np.array([number >> bit & 1 for bit in range(8)]).reshape(2, 4)
    pixels_HW3 = np.empty((HEIGHT, WIDTH, 3), np.uint8)
    pixels_HW3[:64] = np.kron(bits, np.full((32, 32), 255))[..., None]
    pixels_HW3[64:, : WIDTH // 2], pixels_HW3[64:, WIDTH // 2 :] = RED, BLUE
    return pixels_HW3


def number_of(pixels_HW3: NDArray[np.uint8]) -> int:
    """The number that a frame of any size shows; it must be upright."""
    height, width = pixels_HW3.shape[:2]
    places = [(0.5 + bit // 4, 0.5 + bit % 4) for bit in range(8)]
    gray = pixels_HW3.mean(2)
    below = pixels_HW3[height * 5 // 6].astype(int)
    assert below[width // 4, 0] > 120 > below[width // 4, 2], "red is not on the left"
    assert below[width * 3 // 4, 2] > 120 > below[width * 3 // 4, 0], "blue is not on the right"
    lit = [gray[int(y * height / 3), int(x * width / 4)] > 127 for y, x in places]
    return sum(1 << bit for bit, on in enumerate(lit) if on)


def shown(starts: Sequence[Fraction], end: Fraction, fps: int = 8) -> list[int]:
    """The definition, written the slow way: which frame is on the screen at every k / fps seconds."""
    starts, end = [start - starts[0] for start in starts], end - starts[0]
    found = []
    for k in range(max(1, ceil(end * fps))):
        found.append(max(i for i, start in enumerate(starts) if start <= Fraction(k, fps)))
    return found


def shown_of_delays(delays_ms: Sequence[int], fps: int = 8) -> list[int]:
    starts = [Fraction(sum(delays_ms[:i]), 1000) for i in range(len(delays_ms) + 1)]
    return shown(starts[:-1], starts[-1], fps)


@dataclass(frozen=True, eq=False)
class Image8:
    """A frame of a GIF: numbers of colours, where it lies, and what becomes of it."""

    colours_HW: NDArray[np.uint8]
    delay: int | None = 10  # centiseconds; None for no control block
    left: int = 0
    top: int = 0
    disposal: int = 0
    transparent: int | None = None
    interlaced: bool = False
    palette: tuple[tuple[int, int, int], ...] = ()


PALETTE = ((0, 0, 0), (255, 255, 255), RED, BLUE)


def numbered(number: int, **options: Any) -> Image8:
    pixels_HW3 = picture(number)
    palette = options.get("palette") or PALETTE
    colours = sum(i * (pixels_HW3 == colour).all(2) for i, colour in enumerate(palette))
    return Image8(np.asarray(colours, np.uint8), **options)


def gif(
    frames: Sequence[Image8], size: tuple[int, int] = (WIDTH, HEIGHT), comment: bytes = b"", end: bytes = b";"
) -> bytes:
    out = b"GIF89a" + struct.pack("<HHBBB", *size, 0xF0 | _bits(PALETTE), 0, 0) + _table(PALETTE)
    out += b"!\xfe" + _blocks(comment) if comment else b""
    for frame in frames:
        if frame.delay is not None:
            flags = frame.disposal << 2 | (frame.transparent is not None)
            out += b"!\xf9\x04" + struct.pack("<BHBB", flags, frame.delay, frame.transparent or 0, 0)
        height, width = frame.colours_HW.shape
        local = 0x80 | _bits(frame.palette) if frame.palette else 0
        out += b"," + struct.pack("<4HB", frame.left, frame.top, width, height, local | frame.interlaced << 6)
        rows = [*range(0, height, 8), *range(4, height, 8), *range(2, height, 4), *range(1, height, 2)]
        colours_HW = frame.colours_HW[rows] if frame.interlaced else frame.colours_HW
        out += _table(frame.palette) + b"\x07" + _blocks(_codes(colours_HW))
    return out + end


def _bits(palette: Sequence[object]) -> int:
    return (len(palette) - 1).bit_length() - 1


def _table(palette: Sequence[tuple[int, int, int]]) -> bytes:
    return bytes(np.array(palette, np.uint8)) if palette else b""


def _codes(colours_HW: NDArray[np.uint8]) -> bytes:
    """LZW that never learns: 8 bits a code, the table is cleared before codes would grow."""
    clear, stop, flat = b"\x80", b"\x81", colours_HW.tobytes()
    return b"".join(clear + flat[at : at + 100] for at in range(0, len(flat), 100)) + stop


def _blocks(data: bytes) -> bytes:
    parts = [data[at : at + 255] for at in range(0, len(data), 255)]
    return b"".join(bytes([len(part)]) + part for part in parts) + b"\0"


def composed(frames: Sequence[Image8], size: tuple[int, int] = (WIDTH, HEIGHT)) -> list[NDArray[np.uint8]]:
    """What is seen of a GIF after every frame, on white."""
    canvas, seen = np.full((size[1], size[0], 3), 255, np.uint8), []
    for frame in frames:
        before = canvas.copy()
        height, width = frame.colours_HW.shape
        area = (slice(frame.top, frame.top + height), slice(frame.left, frame.left + width))
        drawn = frame.colours_HW != (-1 if frame.transparent is None else frame.transparent)
        canvas[area][drawn] = np.array(frame.palette or PALETTE, np.uint8)[frame.colours_HW][drawn]
        seen.append(canvas.copy())
        if frame.disposal == 2:
            canvas[area] = 255
        elif frame.disposal == 3:
            canvas = before
    return seen


def video(
    starts: Sequence[int],
    codec: str = "libx264",
    container: str = "mp4",
    base: Fraction = Fraction(1, 1000),
    last: int = 40,
    rotated: int = 0,
    sound: bool = False,
    options: dict[str, str] | None = None,
) -> bytes:
    """Frame i, which shows i, from starts[i] on, in units of `base`; the last for so many."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        size = (HEIGHT, WIDTH) if rotated % 180 else (WIDTH, HEIGHT)
        stream = video_stream(out, codec, size, base, options or {})
        if rotated:
            stream.set_display_rotation(rotated)
        silence = out.add_stream("aac", rate=8000) if sound else None
        pictures = (np.rot90(picture(number), -rotated // 90) for number in range(len(starts)))
        packets = encoded(stream, pictures, starts, starts[-1] + last)
        if silence is not None:
            quiet = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
            quiet.sample_rate, quiet.pts = 8000, 0
            packets = [*silence.encode(quiet), *silence.encode(None), *packets]  # type: ignore[attr-defined]
        out.mux(packets)
    return file.getvalue()


def index_first(data: bytes) -> bytes:
    """The same MP4 with its index before its frames, as files are made that begin to play before they are whole."""
    boxes, at = dict[bytes, bytes](), 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        boxes[kind], at = data[at : at + size], at + size
    index, at = bytearray(boxes[b"moov"]), 0
    while (at := index.find(b"stco", at) + 4) > 3:
        count = struct.unpack_from(">I", index, at + 4)[0]
        places = struct.unpack_from(f">{count}I", index, at + 8)
        struct.pack_into(f">{count}I", index, at + 8, *(place + len(index) for place in places))
    return boxes[b"ftyp"] + index + boxes.get(b"free", b"") + boxes[b"mdat"]


def rate(count: int, fps: Fraction | int = 24, base: Fraction = Fraction(1, 24)) -> list[int]:
    """Starts of a constant rate, as near as the base lets them be."""
    return [round(number / fps / base) for number in range(count)]


def webp(numbers: Sequence[int], delays_ms: Sequence[int]) -> bytes:
    """Pillow would take out a frame that is equal to the one before."""
    file = io.BytesIO()
    first, *others = [Image.fromarray(picture(number)) for number in numbers]
    first.save(file, "WEBP", save_all=True, append_images=others, duration=list(delays_ms), lossless=True)
    return file.getvalue()


def jpeg(pixels_HW3: NDArray[np.uint8], **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def video_stream(
    out: OutputContainer, codec: str, size: tuple[int, int], base: Fraction, options: Mapping[str, str]
) -> VideoStream:
    """Adds a stream for frames that begin at multiples of `base`. One thread makes equal bytes of equal frames."""
    stream = out.add_stream(codec, options=dict(options))
    assert isinstance(stream, VideoStream)
    stream.width, stream.height = size
    stream.pix_fmt, stream.time_base = "yuv420p", base
    stream.codec_context.time_base = base
    stream.codec_context.thread_count = 1
    return stream


def encoded(
    stream: VideoStream, pictures: Iterable[Pixels], starts: Sequence[int], end: int
) -> "list[Packet[VideoStream]]":
    """Encodes pictures, each shown until the next one's start, the last until `end`, in units of the stream's base.

    MP4 has no such end if frames are decoded in another order than they are shown.
    """
    packets: list[Packet[VideoStream]] = []
    for pixels, start, stop in zip(pictures, starts, [*starts[1:], end], strict=True):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels))
        frame.pts, frame.time_base, frame.duration = start, stream.codec_context.time_base, stop - start
        packets += stream.encode(frame)
    return [*packets, *stream.encode(None)]
