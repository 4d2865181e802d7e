"""Clips of every kind, from bytes to the frames that are on the screen at 8 moments of a second.

What "frames at 8 FPS" are: sample k, of k = 0, 1, … while k/8 s < D and of k = 0 always, is the frame that is shown at
k/8 s. Frame i is shown from s_i, and no longer from s_i+1; a frame that begins just at k/8 s is shown then. s_0 = 0 is
the beginning of the first frame of the picture, after edit lists and wherever the sound begins; where a stream was cut
within an open group of pictures, of the first that can be decoded. D is the end of the last: its packet's duration in
MP4 and WebM, or where that is not known the gap before it; its delay in GIF and WebP. All is compared in whole numbers:
at 24 frames a second every k/8 s is the very beginning of a frame. A frame between two moments is left out; one that is
shown at several is given once, and the samples name it by its number.

A delay of 0 or 10 ms is 100 ms, as browsers show it (`Sampling.delays`). What of a canvas no frame covers is white.
Where frames cannot be decoded a sample is the frame before it, as a player goes on showing it, and is counted
(`samples_missing`). Other tools choose otherwise: `fps=8` of ffmpeg the nearest, `-r 8` two at the beginning.

Colours are those of ffmpeg: by the matrix and the range that a video names, to 8 bits; brightness beyond that of a
usual screen (HDR: PQ, HLG) is not brought down, and looks flat. Pixels are taken as square, though a video may name
another shape, and video as opaque: what a WebM has of transparency is not read. A picture that is named as a clip, as
hosts serve them for clips that are gone, is a clip of one frame; of WebP and JPEG its status says so.

GIF, animated WebP, MP4, WebM and motion JPEG are known by their bytes. MP4 and WebM are read twice, first without
decoding. Whoever needs a limit in time runs this in a process that can be killed: a decoder's call cannot be stopped.
"""

import io
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.errors import UserError
from xmodal.media.frame_times import Clip, Frame, Limits, Refused, Sampling, Stage, Status, check_plan

MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof")  # that a file begins with
UNREAD = (  # containers, by what is in them at a place
    ("AVI", 8, b"AVI "),
    ("MPEG-PS", 0, b"\0\0\1\xba"),
    ("ASF", 0, b"\x30\x26\xb2\x75"),
    ("FLV", 0, b"FLV\1"),
    ("Ogg", 0, b"OggS"),
)
MESSAGE = 200  # letters


@dataclass(frozen=True)
class Sampled:
    """What became of a clip.

    `stage` is the last that was begun, `width` and `height` are as stored, before a rotation, and `duration_ms` is
    rounded down. `frame_of_sample` counts the frames that were given away, and `starts_us` are their beginnings.
    """

    bytes: int
    container: str = ""
    codec: str = ""
    width: int = 0
    height: int = 0
    frames: int = 0
    duration_ms: int = 0
    stage: Stage = "sniff"
    status: Status = "ok"
    message: str = ""
    decoder_log_count: int = 0
    samples_planned: int = 0
    samples_missing: int = 0
    frame_of_sample: tuple[int, ...] = ()
    starts_us: tuple[int, ...] = ()


def sample_frames(
    data: bytes,
    keep: Callable[[Frame], None],
    config: Sampling | None = None,
    limits: Limits | None = None,
    planned: Callable[[Sampled], None] | None = None,
) -> Sampled:
    """Gives `keep` the frames, each once, one by one and in order. What is wrong with the bytes is a status.

    With any status that is not USABLE no frame counts, though some may have been given away. `planned` is told what is
    known before the first frame is decoded: how long the clip is, and with it how long decoding may take.
    """
    config, limits = config or Sampling(), limits or Limits()
    row = Sampled(memoryview(data).nbytes)  # a path has letters and no bytes: TypeError
    try:
        row = replace(row, container=sniff(data, limits), stage="probe")
        clip = _looked_at(data, row.container, config, limits)
        row = _described(row, clip, config)
        check_plan(clip, config, limits)
        row = replace(row, stage="decode")
        if planned:
            planned(row)
        return _decoded(row, clip, config, keep)
    except Refused as refused:
        return replace(row, status=refused.status, message=one_line(str(refused)))
    except MemoryError:
        return replace(row, status="out_of_memory", message="")


def sniff(data: bytes, limits: Limits) -> str:
    """The container, by the first bytes."""
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
    if data[:3] == b"\xff\xd8\xff":
        return "mjpeg"
    for name, at, mark in UNREAD:
        if data[at : at + len(mark)] == mark:
            raise Refused("unsupported_codec", f"{name} is not read: GIF, animated WebP, MP4, WebM and motion JPEG are")
    raise Refused("not_media", f"begins with {data[:16]!r}")


def encode_jpeg(pixels_HW3: NDArray[np.uint8], quality: int = 95, subsampling: str = "4:2:0") -> bytes:
    """The same bytes for the same pixels, in one version of Pillow."""
    file = io.BytesIO()
    Image.fromarray(pixels_HW3).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return file.getvalue()


def _looked_at(data: bytes, container: str, config: Sampling, limits: Limits) -> Clip:
    """Libraries are imported where a clip needs them: plans are made without."""
    if config.backend == "decord" and container != "mp4":
        raise Refused("unsupported_codec", f"decord is not right on {container}: take pyav")
    if container in ("webp", "mjpeg"):
        from xmodal.media import animated_pictures

        return (animated_pictures.open_webp if container == "webp" else animated_pictures.open_jpegs)(
            data, config, limits
        )
    try:
        from xmodal.media import libav
    except ModuleNotFoundError as missing:
        raise UserError(f"clips need {missing.name}: pip install -e '.[video]' in the checkout") from missing
    return (
        libav.open_gif(data, config, limits)
        if container == "gif"
        else libav.open_video(data, container, config, limits)
    )


def _described(row: Sampled, clip: Clip, config: Sampling) -> Sampled:
    timeline = clip.timeline
    return replace(
        row,
        stage="plan",
        codec=clip.codec,
        width=clip.width,
        height=clip.height,
        frames=len(timeline.starts),
        duration_ms=int(timeline.seconds * 1000),
        samples_planned=timeline.count(config.fps),
    )


def _decoded(row: Sampled, clip: Clip, config: Sampling, keep: Callable[[Frame], None]) -> Sampled:
    """Every sample is the last frame up to its own that there is, or the first."""
    shown, kept = clip.timeline.shown(config.fps), list[int]()

    def numbered(number: int, frame: Frame) -> None:
        keep(frame)
        kept.append(number)

    trouble = clip.show(sorted(set(shown)), numbered)
    if not kept:
        raise Refused("no_frames", trouble[0] if trouble else "the decoder gave no frame")
    there = set(kept)
    missing = sum(number not in there for number in shown)
    damage = trouble[0] if trouble else f"{missing} samples have no frame of their own" if missing else ""
    return replace(
        row,
        status="damaged" if damage else clip.status,
        message=one_line(damage or clip.message),
        decoder_log_count=len(trouble),
        samples_missing=missing,
        frame_of_sample=tuple(max(0, bisect_right(kept, number) - 1) for number in shown),
        starts_us=tuple(clip.timeline.start_us(number) for number in kept),
    )


def one_line(text: str) -> str:
    """As a row's message is."""
    return " ".join(text.split())[:MESSAGE]
