"""Scenes as MP4, and encoding of video in general."""

import io
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import av
import numpy as np
from av.container import OutputContainer
from av.packet import Packet
from av.video.stream import VideoStream

from pipelines.demo.world import Pixels, Scene, frames

MILLISECOND = Fraction(1, 1000)
SHOWN_MS = (40, 120, 80, 200, 60, 160)  # durations of frames, repeated from the first
X264 = {"preset": "veryfast", "crf": "18", "x264-params": "mbtree=0"}  # with mbtree equal frames may give other bytes


def mp4(scene: Scene) -> bytes:
    """H.264 in MP4, with frames of different durations. Sides are even there: an odd last row or column is cut off."""
    pictures = [pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2] for pixels in frames(scene)]
    shown = [SHOWN_MS[(scene.index + number) % len(SHOWN_MS)] for number in range(len(pictures))]
    *starts, end = accumulate(shown, initial=0)
    file, (height, width, _) = io.BytesIO(), pictures[0].shape
    with av.open(file, "w", format="mp4") as out:
        stream = video_stream(out, "libx264", (width, height), MILLISECOND, X264)
        out.mux(encoded(stream, pictures, starts, end))
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
