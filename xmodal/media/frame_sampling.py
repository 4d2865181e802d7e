"""Frame sampling: from a clip's bytes to the frames that are on the screen at 8 moments of every second.

docs/corpora.md#media defines them, and what becomes of colours and transparency. A limit in time needs a process that
can be killed.
"""

import io
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.errors import extra_needed
from xmodal.media.frame_times import Clip, Frame, Limits, Refused, Sampling, Stage, Status
from xmodal.media.images import JPEG
from xmodal.media.motion_jpeg import open_jpegs
from xmodal.media.webp import open_webp

MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof")
UNREAD = (  # containers that are not read: name, position and mark
    ("AVI", 8, b"AVI "),
    ("MPEG-PS", 0, b"\0\0\1\xba"),
    ("ASF", 0, b"\x30\x26\xb2\x75"),
    ("FLV", 0, b"FLV\1"),
    ("Ogg", 0, b"OggS"),
)
MESSAGE = 200  # characters


@dataclass(frozen=True)
class Sampled:
    """The result of sampling a clip, without pixels."""

    bytes: int
    container: str = ""
    codec: str = ""
    width: int = 0  # as stored, before a rotation
    height: int = 0
    frames: int = 0  # of the clip, kept or not
    duration_ms: int = 0  # rounded down
    stage: Stage = "sniff"  # the last that was begun
    status: Status = "ok"
    message: str = ""
    decoder_log_count: int = 0
    samples_planned: int = 0
    samples_missing: int = 0
    frame_of_sample: tuple[int, ...] = ()  # places among the frames that were given
    starts_us: tuple[int, ...] = ()  # of these frames


def sample_frames(
    data: bytes,
    keep: Callable[[Frame], None],
    config: Sampling | None = None,
    limits: Limits | None = None,
    planned: Callable[[Sampled], None] | None = None,
) -> Sampled:
    """Passes the sampled frames to `keep`, each once and in order. Faults of the bytes become the status.

    Frames count only if the status is USABLE. `planned` receives the row before the first frame is decoded.
    """
    config, limits = config or Sampling(), limits or Limits()
    row = Sampled(memoryview(data).nbytes)  # TypeError for a path
    try:
        row = replace(row, container=sniff(data, limits), stage="probe")
        clip = _open(data, row.container, config, limits)
        row = replace(
            row,
            stage="plan",
            codec=clip.codec,
            width=clip.width,
            height=clip.height,
            frames=len(clip.timeline.starts),
            duration_ms=int(clip.timeline.seconds * 1000),
            samples_planned=clip.timeline.count(config.fps),
        )
        limits.check_plan(clip, config)
        row = replace(row, stage="decode")
        if planned:
            planned(row)
        return _decoded(row, clip, config, keep)
    except Refused as refused:
        return replace(row, status=refused.status, message=one_line(str(refused)))
    except MemoryError:
        return replace(row, status="out_of_memory", message="")


def sniff(data: bytes, limits: Limits) -> str:
    if not data:
        raise Refused("empty_file", "")
    if len(data) > limits.bytes:
        raise Refused("too_large_bytes", f"{len(data)} bytes")
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "webm"
    if data[4:8] in MP4_BOXES:
        return "mp4"
    if data.startswith(JPEG):
        return "mjpeg"
    for name, at, mark in UNREAD:
        if data[at : at + len(mark)] == mark:
            raise Refused("unsupported_codec", f"{name} is not read: GIF, WebP, MP4, WebM and motion JPEG are")
    raise Refused("not_media", f"begins with {data[:16]!r}")


def encode_jpeg(pixels_HW3: NDArray[np.uint8], quality: int = 95, subsampling: str = "4:2:0") -> bytes:
    """In one version of Pillow, the same pixels give the same bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return file.getvalue()


def _open(data: bytes, container: str, config: Sampling, limits: Limits) -> Clip:
    if config.backend == "decord" and container != "mp4":
        raise Refused("unsupported_codec", f"decord is not right on {container}: take pyav")
    if container == "webp":
        return open_webp(data, config, limits)
    if container == "mjpeg":
        return open_jpegs(data, config, limits)
    with extra_needed("video", "clips need av"):
        from xmodal.media import gif, libav
    if container == "gif":
        return gif.open_gif(data, config, limits)
    return libav.open_video(data, container, config, limits)


def _decoded(row: Sampled, clip: Clip, config: Sampling, keep: Callable[[Frame], None]) -> Sampled:
    shown, kept = clip.timeline.shown(config.fps), list[int]()

    def numbered(number: int, frame: Frame) -> None:
        keep(frame)
        kept.append(number)

    trouble = clip.show(sorted(set(shown)), numbered)
    damage, there = trouble[0] if trouble else "", set(kept)
    if not kept:
        raise Refused("no_frames", damage or "the decoder gave no frame")
    missing = sum(number not in there for number in shown)
    if missing and not damage:
        damage = f"{missing} samples have no frame of their own"
    return replace(
        row,
        status="damaged" if damage else clip.status,
        message=one_line(damage or clip.message),
        decoder_log_count=len(trouble),
        samples_missing=missing,
        # a sample whose frame is missing takes the last before it, or the first of all
        frame_of_sample=tuple(max(0, bisect_right(kept, number) - 1) for number in shown),
        starts_us=tuple(map(clip.timeline.start_us, kept)),
    )


def one_line(text: str) -> str:
    return " ".join(text.split())[:MESSAGE]
