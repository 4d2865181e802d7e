"""Clips to measure with: many colours, movement everywhere, grain; of the sizes and lengths that clips have."""

import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain, repeat
from math import cos, sin
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

GIF_SIZES = ((320, 240), (400, 225), (500, 281), (350, 350), (320, 180), (480, 270))
MP4_SIZES = ((320, 240), (480, 270), (426, 240), (500, 500), (480, 360), (320, 480))
STILL = 3  # in every so many scenes the camera does not move


def gif(number: int) -> bytes:
    """Two to five seconds, of delays from 30 to 120 ms. Half have a palette for all frames, half one for each."""
    random = np.random.default_rng(number)
    delays, total = list[int](), random.integers(2000, 5000)
    while sum(delays) < total:
        delays.append(10 * int(random.integers(3, 13)))
    pictures = [Image.fromarray(frame) for frame in scene(number, GIF_SIZES[number % len(GIF_SIZES)], len(delays))]
    palette = None if number % 2 else pictures[0].quantize()
    first, *others = [_indexed(picture, palette) for picture in pictures]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=delays, optimize=False)
    return file.getvalue()


def _indexed(picture: Image.Image, palette: Image.Image | None) -> Image.Image:
    if palette is None:
        return picture.quantize(method=Image.Quantize.FASTOCTREE)
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def mp4(number: int) -> bytes:
    """Two to five seconds of H.264 with B-frames, at 24 or 30 frames a second."""
    rate, size = (24, 30)[number % 2], MP4_SIZES[number % len(MP4_SIZES)]
    length = int(np.random.default_rng(number).integers(2 * rate, 5 * rate))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = _h264(out, size, rate, {"crf": "23", "bf": "3", "preset": "fast"})
        out.mux(_packets(stream, scene(number, size, length), rate))
    return file.getvalue()


def write_hour(file: Path) -> None:
    """640 x 360 at 24 frames a second: the same ten seconds again and again, encoded once. What moves does so twice a
    second, for the file's bytes are held in memory and are not what is measured."""
    rate, frames = 24, 240
    pictures = chain.from_iterable(repeat(picture, 12) for picture in scene(2, (640, 360), frames // 12))
    with av.open(str(file), "w", format="mp4") as out:
        stream = _h264(out, (640, 360), rate, {"crf": "40", "bf": "3", "preset": "veryfast"})
        packets = [(bytes(p), p.pts, p.dts, p.is_keyframe) for p in _packets(stream, pictures, rate)]
        for begin in range(0, 3600 * rate, frames):
            for data, pts, dts, key in packets:
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, rate), key
                packet.pts, packet.dts, packet.duration = begin + pts, begin + dts, 1
                out.mux(packet)


def _h264(out: av.container.OutputContainer, size: tuple[int, int], rate: int, options: dict[str, str]) -> VideoStream:
    stream = out.add_stream("libx264", rate=rate, options=options)
    assert isinstance(stream, VideoStream)
    stream.width, stream.height = size
    stream.pix_fmt, stream.codec_context.thread_count = "yuv420p", 1
    return stream


def _packets(stream: VideoStream, frames: Iterable[NDArray[np.uint8]], rate: int) -> list["av.Packet[VideoStream]"]:
    packets = []
    for number, pixels_HW3 in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(pixels_HW3)
        frame.pts, frame.time_base = number, Fraction(1, rate)
        packets += stream.encode(frame)
    return packets + stream.encode(None)


def scene(number: int, size: tuple[int, int], frames: int) -> Iterator[NDArray[np.uint8]]:
    """A camera that pans over one texture, and four others that move before it."""
    random = np.random.default_rng(number)
    width, height = size
    behind = _texture(random, 2 * max(size))
    things = [(_texture(random, 128)[: height // 3, : width // 4], *random.uniform(0.2, 2.0, 3)) for _ in range(4)]
    for frame in range(frames):
        moved = 0 if number % STILL == 2 else frame
        left, top = int(abs(moved * 2.3 + 40 * sin(moved / 9))) % width, int(abs(30 * sin(moved / 13)))
        pixels_HW3 = behind[top : top + height, left : left + width].copy()
        for thing, fast, wide, high in things:
            rows, columns = thing.shape[:2]
            x = int((width - columns) * (0.5 + 0.5 * sin(wide * 3 + fast * frame / 12)))
            y = int((height - rows) * (0.5 + 0.5 * cos(high * 5 + fast * frame / 15)))
            pixels_HW3[y : y + rows, x : x + columns] = thing
        if moved:
            pixels_HW3 += random.normal(0, 1.5, (height, width, 1))
        yield np.clip(pixels_HW3, 0, 255).astype(np.uint8)


def _texture(random: np.random.Generator, side: int) -> NDArray[np.float32]:
    """As photographs are: the finer, the weaker."""
    fy, fx = np.meshgrid(np.fft.fftfreq(side), np.fft.rfftfreq(side), indexing="ij")
    weight = 1 / np.maximum(np.hypot(fy, fx), 1 / side) ** 1.6
    planes = [np.fft.irfft2(np.fft.rfft2(random.normal(size=(side, side))) * weight) for _ in range(3)]
    shared = planes[0] / planes[0].std()
    mixed = [shared + 0.6 * plane / plane.std() for plane in planes]
    return np.stack([128 + 48 * plane for plane in mixed], axis=-1).astype(np.float32)
