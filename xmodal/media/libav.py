"""Libav: opens MP4 and WebM, and decodes them and GIF. No other module imports PyAV or decord."""

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.media.frame_times import Clip, Frame, Limits, OnFrame, Refused, Sampling, Status, Timeline

FORMATS = {"mp4": "mov", "webm": "matroska"}  # libav's names; playlists would read other files
SEGMENT = 0x18538067  # the element of WebM that holds all others
UPRIGHT = (1, 0, 0, 0, 1)  # the matrix of a clip that is not rotated

Logged = list[tuple[int, str, str]]  # level, name and text of libav's lines


@dataclass(frozen=True)
class Packets:
    """Times are in units of the stream."""

    count: int
    starts: tuple[int, ...]  # of the frames that are shown, ascending
    end: int  # of the last frame
    trouble: str
    cut: bool  # the file ends too early
    hidden: bool  # by an edit list, some frames
    open_groups: bool
    earliest: int  # the first packet's start; frames up to `key` may be predicted from what was cut off
    key: int  # the start of the first keyframe


@dataclass(frozen=True, eq=False)
class Video:
    data: bytes
    format: str
    config: Sampling
    limits: Limits


def open_video(data: bytes, container: str, config: Sampling, limits: Limits) -> Clip:
    """Reads the timeline of an MP4 or WebM without decoding it."""
    kind, begin, end = (b"", 0, _segment_end(data)) if container == "webm" else _last_box(data)
    is_short = end > len(data)
    # the index of a cut-off fragment would make the file unreadable
    video = Video(data[:begin] if kind == b"moof" and is_short else data, FORMATS[container], config, limits)
    with _opened(video) as (stream, logged):
        context, unit = stream.codec_context, stream.time_base
        limits.check_canvas(context.width, context.height, config)
        packets = _packets(stream, limits, logged)
    if packets.earliest < packets.key:
        packets = _without_cut_off(video, packets)
    if not packets.starts or not unit:
        raise Refused("no_frames", packets.trouble or "the video has no frame")
    packets = replace(packets, cut=packets.cut or is_short)
    show = _show_video
    if config.backend == "decord":
        if reason := _wrong_for_decord(video, packets):
            raise Refused("unsupported_codec", f"decord is not right on {reason}: take pyav")
        show = _show_by_decord
    timeline = Timeline(packets.starts, packets.end, unit)
    status: Status = "damaged" if packets.trouble else "ok"
    message = packets.trouble
    if packets.cut:
        status, message = "truncated", message or "the file ends before its last frame"
    return Clip(context.name, context.width, context.height, timeline, partial(show, video, packets), status, message)


@contextmanager
def _listening() -> Iterator[Logged]:
    """Collects errors that libav logs, a damaged GIF's only sign."""
    level, repeated = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as logged:
            yield logged
    finally:
        av.logging.set_level(level)
        av.logging.set_skip_repeated(repeated)


@contextmanager
def _opened(video: Video) -> Iterator[tuple[av.VideoStream, Logged]]:
    """Opens a video, and collects what libav logs."""
    options = {"max_pixels": str(video.limits.pixels)}
    with _listening() as logged:
        try:
            opened = av.open(io.BytesIO(video.data), "r", video.format, options, metadata_errors="replace")
        except av.FFmpegError as error:
            raise Refused("not_media", _last_logged(error)) from error
        with opened:
            if too_many := next((line for _, _, line in logged if "max pixel count" in line), None):
                raise Refused("too_many_pixels", too_many)
            stream = opened.streams.best("video")
            if not isinstance(stream, av.VideoStream) or stream.disposition & av.stream.Disposition.attached_pic:
                raise Refused("no_video_stream", "the file has no video")
            if stream.codec_context is None:
                raise Refused("unsupported_codec", "the video has no decoder")
            stream.codec_context.thread_count = 1
            stream.codec_context.options = options
            yield stream, logged


def _packets(stream: av.VideoStream, limits: Limits, logged: Logged) -> Packets:
    durations: dict[int, int] = {}
    begins, keys = list[int](), list[int]()
    count, trouble, hidden, open_groups = 0, "", False, False
    try:
        for start, packet in _whole(stream):
            limits.check_frames(count := count + 1)
            if packet.has_sidedata("encryption_info"):
                raise Refused("unsupported_codec", "the video is encrypted")
            begins.append(start)
            keys += [start] if packet.is_keyframe else []
            open_groups |= bool(keys) and start < keys[-1]
            hidden |= packet.is_discard
            # frames of VP8 from which others are predicted may never be shown
            is_hidden = stream.codec_context.name == "vp8" and not memoryview(packet)[0] & 0x10
            if not packet.is_discard and not is_hidden:
                durations.setdefault(start, packet.duration or 0)
    except av.FFmpegError as error:
        trouble = _last_logged(error)
    starts = tuple(sorted(durations))
    gap = starts[-1] - starts[-2] if len(starts) > 1 else 0
    end = starts[-1] + (durations[starts[-1]] or gap) if starts else 0
    cut = any("partial file" in line or "prematurely" in line for _, _, line in logged)
    earliest, key = min(begins, default=0), (keys or begins or [0])[0]
    return Packets(count, starts, end, trouble, cut, hidden, open_groups, earliest, key)


def _without_cut_off(video: Video, packets: Packets) -> Packets:
    """Begins with the first keyframe, or an earlier frame that can be decoded."""
    frame = _first_frame(video, packets)
    start = _start(frame) if frame else None
    first = packets.key if start is None else min(start, packets.key)
    return replace(packets, starts=tuple(start for start in packets.starts if start >= first), key=first)


def _first_frame(video: Video, packets: Packets) -> av.VideoFrame | None:
    with _opened(video) as (stream, _):
        decoded = (_frames(stream.codec_context, packet, []) for _, packet in _to_decode(stream, packets))
        return next(chain.from_iterable(decoded), None)


def _whole(stream: av.VideoStream) -> Iterator[tuple[int, "av.Packet[av.VideoStream]"]]:
    """Packets that can be decoded, with the starts of their frames."""
    assert isinstance(stream.container, InputContainer)
    for packet in stream.container.demux(stream):
        start = _start(packet)
        if packet.size and not packet.is_corrupt and start is not None:
            yield start, packet


def _last_box(data: bytes) -> tuple[bytes, int, int]:
    """Kind, begin and end of an MP4's last box; end 0 if it has no length or is none."""
    kind, begin, at = b"", 0, 0
    while at + 16 <= len(data):
        begin = at
        size, kind, large = struct.unpack_from(">I4sQ", data, at)
        size = large if size == 1 else size
        if size < 8 or (at + size > len(data) and kind not in (b"mdat", b"moof", b"moov")):
            return kind, begin, 0
        at += size
    return kind, begin, at


def _segment_end(data: bytes) -> int:
    try:
        length, at = _element_length(data, 4)
        at += length
        if int.from_bytes(data[at : at + 4]) != SEGMENT:
            return 0
        length, at = _element_length(data, at + 4)
    except IndexError:
        return 0
    return at + length if length else 0


def _element_length(data: bytes, at: int) -> tuple[int, int]:
    """Decodes an EBML length, 0 if unknown as in a live recording, and the position after it."""
    size = 9 - data[at].bit_length()  # in bytes, by the zero bits at its beginning
    most = (1 << 7 * size) - 1
    length = int.from_bytes(data[at : at + size]) & most
    return 0 if length == most else length, at + size


def show_gif(
    frames: Iterable[bytes], config: Sampling, limits: Limits, numbers: Sequence[int], keep: OnFrame
) -> list[str]:
    context = av.VideoCodecContext.create("gif", "r")
    context.thread_count = 1
    convert, wanted, trouble = _conversion(config, limits), set(numbers), list[str]()
    with _listening() as logged:
        for number, frame in enumerate(frames):
            for decoded in _frames(context, av.Packet(frame), trouble):
                if number in wanted:
                    keep(number, convert(decoded))
    return _as_lines(logged) or trouble


def _show_video(video: Video, packets: Packets, numbers: Sequence[int], keep: OnFrame) -> list[str]:
    wanted: dict[int | None, int] = {packets.starts[number]: number for number in numbers}
    convert, trouble, latest = _conversion(video.config, video.limits), list[str](), -1
    with _opened(video) as (stream, logged):
        logged.clear()  # of what opening said
        for start, packet in _to_decode(stream, packets):
            stream.codec_context.skip_frame = "DEFAULT" if packet is None or start in wanted else "NONREF"
            cut_off = start is not None and start < packets.key  # what it is predicted from: it may fail
            before = len(logged)
            for frame in _frames(stream.codec_context, packet, [] if cut_off else trouble):
                number = wanted.get(_start(frame), -1)
                if number > latest:
                    keep(number, convert(frame))
                    latest = number
                if number >= 0 and frame.is_corrupt:
                    trouble.append(f"frame {number} is corrupt")
            if latest == numbers[-1]:
                break
            if cut_off:
                del logged[before:]
    return _as_lines(logged) or trouble


def _to_decode(
    stream: av.VideoStream, packets: Packets
) -> "Iterator[tuple[int, av.Packet[av.VideoStream]] | tuple[None, None]]":
    """The packets that were counted, then (None, None), for the decoder's last frames."""
    return chain(islice(_whole(stream), packets.count), ((None, None),))


def _start(of: "av.VideoFrame | av.Packet[av.VideoStream]") -> int | None:
    return of.dts if of.pts is None else of.pts


def _frames(context: av.VideoCodecContext, packet: "av.Packet[Any] | None", trouble: list[str]) -> list[av.VideoFrame]:
    try:
        return context.decode(packet)
    except av.FFmpegError as error:
        trouble.append(_last_logged(error))
        return []


def _conversion(config: Sampling, limits: Limits) -> Callable[[av.VideoFrame], Frame]:
    scaler = VideoReformatter()
    matrix: tuple[int, ...] | None = None

    def convert(frame: av.VideoFrame) -> Frame:
        nonlocal matrix
        limits.check_canvas(frame.width, frame.height, config)  # the file's header may say another
        width, height = config.size(frame.width, frame.height)
        small = scaler.reformat(frame, width, height, "rgb24", interpolation=Interpolation.BILINEAR, threads=1)
        matrix = matrix or _matrix(frame)
        return Frame(_turned(np.asarray(small.to_ndarray(), np.uint8), matrix))

    return convert


def _matrix(frame: av.VideoFrame) -> tuple[int, ...]:
    # a tiny copy, as a frame whose side data was read stays in memory
    found: Any = frame.reformat(16, 16, interpolation=Interpolation.POINT, threads=1).side_data
    return struct.unpack("=9i", bytes(found["DISPLAYMATRIX"])) if "DISPLAYMATRIX" in found else UPRIGHT


def _turned(pixels_HW3: NDArray[np.uint8], matrix: tuple[int, ...]) -> NDArray[np.uint8]:
    """Turns by quarters and mirrors: x becomes a x + c y, and y becomes b x + d y."""
    a, b, _, c, d, *_ = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        pixels_HW3, a, d = pixels_HW3.transpose(1, 0, 2), c, b
    return np.ascontiguousarray(pixels_HW3[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])


def _wrong_for_decord(video: Video, packets: Packets) -> str:
    """The reason why decord would give wrong frames, or ""."""
    frame = _first_frame(video, packets)  # PyAV tells the matrix of decoded frames alone
    a, b, _, c, d, *_ = _matrix(frame) if frame else UPRIGHT
    known = {
        "a truncated file": packets.cut,
        "edit lists": packets.hidden,
        "open groups of pictures": packets.open_groups,
        "a damaged file": packets.trouble,
        "mirrored video": a * d < b * c,
    }
    return next((name for name, found in known.items() if found), "")


def _show_by_decord(video: Video, packets: Packets, numbers: Sequence[int], keep: OnFrame) -> list[str]:
    try:
        import decord  # type: ignore[import-untyped]
    except ModuleNotFoundError as missing:
        cure = "pip install -e '.[decord]' in the checkout, or take pyav"
        raise UserError(f"backend decord needs decord: {cure}") from missing
    try:
        reader = decord.VideoReader(io.BytesIO(video.data), num_threads=1)
    except decord.DECORDError as error:
        raise Refused("unsupported_codec", "decord does not open it: take pyav") from error
    try:
        if len(reader) != (count := len(packets.starts)):
            raise Refused("unsupported_codec", f"decord counts {len(reader)} frames of {count}: take pyav")
        convert = _conversion(video.config, video.limits)
        for number in numbers:
            keep(number, convert(av.VideoFrame.from_ndarray(_unpadded(reader[number].asnumpy()), "rgb24")))
    except decord.DECORDError as error:
        return [str(error).strip().splitlines()[-1]]
    return []


def _unpadded(pixels_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Removes the padding of lines, which decord gives as if a pixel had more colours."""
    height, width, _ = pixels_HWC.shape
    return np.ascontiguousarray(pixels_HWC.reshape(height, -1)[:, : 3 * width]).reshape(height, width, 3)


def _as_lines(logged: Logged) -> list[str]:
    return [f"{name}: {line.strip()}" for _, name, line in logged]


def _last_logged(error: av.FFmpegError) -> str:
    if isinstance(error, MemoryError):
        raise error
    return ": ".join(str(part).strip() for part in error.log[1:]) if error.log else error.strerror
