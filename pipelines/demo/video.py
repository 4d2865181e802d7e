"""Scenes as MP4, and what encoding takes: of the generated publishers the one door to PyAV."""

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
SHOWN_MS = (40, 120, 80, 200, 60, 160)  # one frame after the other, and from the first again
X264 = {"preset": "veryfast", "crf": "18", "x264-params": "mbtree=0"}  # mbtree: other bytes at times, of equal frames


def mp4(scene: Scene) -> bytes:
    """H.264, which has colours for two pixels by two: a last odd row or column is cut off. No two rates are alike."""
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
    """For frames that begin at multiples of `base`; by one thread, so that equal frames are equal bytes."""
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
    """Each picture from its start to the next one's, the last up to the end; all in units of the stream's base.

    MP4 has no such end where frames are decoded in another order than they are shown in.
    """
    packets: list[Packet[VideoStream]] = []
    for pixels, start, stop in zip(pictures, starts, [*starts[1:], end], strict=True):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels))
        frame.pts, frame.time_base, frame.duration = start, stream.codec_context.time_base, stop - start
        packets += stream.encode(frame)
    return [*packets, *stream.encode(None)]
