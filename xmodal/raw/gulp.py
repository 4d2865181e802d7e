"""Gulp dumps, as PVSE's authors offer them: clips as JPEGs of their frames, in the chunks of GulpIO.

A chunk is two files. data_0.gulp has JPEGs one after the other, each padded with zeros to a multiple of four bytes.
meta_0.gmeta has the frames of each clip: begin, padding, and bytes with the padding.

    {"lJ1Q5fkkPAk6I": {"meta_data": [{"id": "lJ1Q5fkkPAk6I", "sentence": "MRW a witty comment ..."}],
                       "frame_info": [[0, 3, 7260], [7260, 1, 7252], ...]}, ...}

The traps:
- A clip that was added several times, as PVSE's script does for each further sentence of a GIF, has its frames there as
  often. They are taken once.
- The frames were sampled and resized when the dump was written (PVSE: 8 a second, 256 pixels).
- A .gmeta is not trusted: frames beyond the data's end, or that are no JPEGs, are refused.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from xmodal.errors import UserError
from xmodal.raw.archives import LARGEST
from xmodal.raw.json_values import JsonRecord
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import matched

JPEG = b"\xff\xd8\xff"
Frame = tuple[int, int]  # begin and bytes without padding


def clips(raw: Raw, meta: str) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Id and frames of each clip of a chunk. Read a clip's frames before asking for the next."""
    data = data_of(meta)
    if data not in raw:
        raise UserError(f"{meta} is there without {data}, which has its frames")
    listed = _listed(raw, meta)
    with raw.open(data) as file:
        size = file.seek(0, 2)
        chunk = {id: _frames(JsonRecord(about, f"{meta}: clip {id:.80}"), size, file) for id, about in listed.items()}
        for id, frames in chunk.items():
            yield id, _read(file, frames, f"{data}: clip {id}")


def data_of(meta: str) -> str:
    """The file with the frames that a .gmeta lists."""
    return re.sub(r"meta([^/]*)\.gmeta$", r"data\1.gulp", meta)


def _listed(raw: Raw, meta: str) -> dict[str, Any]:
    with raw.open(meta) as file:
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise UserError(f"{meta} has more than {LARGEST:,} bytes, which is no list of frames")
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{meta} is not the JSON it should be: {error}") from error
    if not isinstance(listed, dict):
        raise UserError(f"{meta} is not the JSON it should be: clips by their ids")
    for id in listed:
        matched(r"[^/\\\0]+", id, meta, "id of a clip")
    return listed


def _frames(clip: JsonRecord, size: int, file: BinaryIO) -> list[Frame]:
    for each in clip.each("frame_info"):
        info = each.content
        if not isinstance(info, list) or [type(number) for number in info] != [int, int, int]:
            raise UserError(f"{each.where} is {info!r:.60}, not [begin, padding, bytes]")
        begin, padding, count = info
        if begin < 0 or not 0 <= padding < count or begin + count > size:
            raise UserError(f"{each.where} is {info}, outside of the {size:,} bytes of its data")
    infos, added = clip.value("frame_info", list), len(clip.value("meta_data", list))
    frames = [(begin, count - padding) for begin, padding, count in _once(infos, added, file)]
    if not frames or sum(count for _, count in frames) > LARGEST:
        raise UserError(f"{clip.where} has {len(frames):,} frames, not one or more of {LARGEST:,} bytes at most")
    return frames


def _once(infos: list[list[int]], added: int, file: BinaryIO) -> list[list[int]]:
    """Removes the repeats of a clip that was `added` several times."""
    first, sizes = infos[: len(infos) // max(added, 1)], [info[1:] for info in infos]
    if added < 2 or sizes != [info[1:] for info in first] * added:
        return infos
    repeats = zip(first, infos[len(first) :], strict=False)
    are_equal = all(_bytes(file, one[0], one[2]) == _bytes(file, two[0], two[2]) for one, two in repeats)
    return first if are_equal else infos


def _bytes(file: BinaryIO, begin: int, count: int) -> bytes:
    file.seek(begin)
    return file.read(count)


def _read(file: BinaryIO, frames: list[Frame], where: str) -> Iterator[bytes]:
    for number, (begin, count) in enumerate(frames):
        frame = _bytes(file, begin, count)
        if not frame.startswith(JPEG):
            raise UserError(f"{where}: frame {number}, at byte {begin:,}, is no JPEG")
        yield frame
