"""Scenes as MP4."""

import io
from fractions import Fraction

import av
import numpy as np
from av.packet import Packet
from av.video.stream import VideoStream

from pipelines.demo.world import Scene, frames

MILLISECOND = Fraction(1, 1000)
SHOWN_MS = (40, 120, 80, 200, 60, 160)  # durations of frames, repeated from the first
X264 = {"preset": "veryfast", "crf": "18", "x264-params": "mbtree=0"}  # with mbtree equal frames may give other bytes


def mp4(scene: Scene) -> bytes:
    """H.264 in MP4, with frames of different durations. Sides are even there: an odd last row or column is cut off."""
    file, start = io.BytesIO(), 0
    packets: list[Packet[VideoStream]] = []
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", options=X264)
        stream.width, stream.height, stream.pix_fmt = scene.width // 2 * 2, scene.height // 2 * 2, "yuv420p"
        stream.time_base = stream.codec_context.time_base = MILLISECOND
        stream.codec_context.thread_count = 1  # for equal bytes of equal frames
        for number, pixels in enumerate(frames(scene)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[: stream.height, : stream.width]))
            duration = SHOWN_MS[(scene.index + number) % len(SHOWN_MS)]
            frame.pts, frame.time_base, frame.duration = start, MILLISECOND, duration
            start += duration
            packets += stream.encode(frame)
        out.mux([*packets, *stream.encode(None)])
    return file.getvalue()
