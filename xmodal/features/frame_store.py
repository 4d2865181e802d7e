"""Reads the frames of clips: by clip, frame and sample.

A clip's frames are the different pictures that it shows, in order. Its samples are moments, by default 8 a second; each
shows one.
"""

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from xmodal.errors import UserError, extra_needed
from xmodal.features.store import FeatureStore
from xmodal.media.frame_sampling import Sampled
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output

NAME = "frames"
CLIPS = pa.schema(
    {
        "id": pa.string(),
        "lengths": pa.list_(pa.int64()),  # bytes of each JPEG
        "starts_us": pa.list_(pa.int64()),
        "frame_of_sample": pa.list_(pa.int32()),
        "sha256": pa.string(),
        **{f.name: pa.int64() if f.type is int else pa.string() for f in fields(Sampled) if f.type != tuple[int, ...]},
    }
)
THREADS = min(8, os.cpu_count() or 1)


def clips_file(shard: int) -> str:
    return f"clips/{shard:05d}.parquet"


def cut_clips(frames: Output) -> dict[str, str]:
    """The clips that end early or have damaged frames, and why; the frames that could be decoded are there."""
    shards = [name for name in frames.files if name.startswith("clips/")]
    tables = [read_columns(frames, name, "id", "status", "message") for name in shards]
    rows = (row for table in tables for row in table.to_pylist())
    return {row["id"]: row["message"] or row["status"] for row in rows if row["status"] in ("truncated", "damaged")}


class FrameStore(FeatureStore):
    def __init__(self, source: Output | str) -> None:
        super().__init__(source, NAME)
        self._tables: dict[int, dict[str, pa.ListArray]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameStore, (self.output.where,)

    def frame_of_sample(self, id: str) -> NDArray[np.int32]:
        """Returns (samples,): the number of the frame that each shows."""
        return self._of(self._row(id), "frame_of_sample").astype(np.int32)

    def starts_us(self, id: str) -> NDArray[np.int64]:
        """Returns (frames,): when each begins, in microseconds after the first."""
        return self._of(self._row(id), "starts_us")

    def jpegs(self, id: str, frames: Iterable[int] | None = None) -> list[bytes]:
        row = self._row(id)
        ends = np.cumsum(self._of(row, "lengths")).tolist()
        wanted = range(len(ends)) if frames is None else _within(frames, len(ends), f"{id} has {len(ends)} frames")
        return [self.run(row, ends[frame - 1] if frame else 0, ends[frame]).tobytes() for frame in wanted]

    def size(self, id: str) -> tuple[int, int]:
        """Returns width and height of a clip's first frame."""
        return open_jpeg(*self.jpegs(id, [0])).size

    def pictures(self, id: str, samples: Iterable[int]) -> NDArray[np.uint8]:
        """Returns (samples, H, W, 3), RGB, of the size of the clip's first frame."""
        shown = self.frame_of_sample(id)
        wanted = _within(samples, len(shown), f"{id} has {len(shown)} samples")
        frames, places = np.unique(shown[wanted], return_inverse=True)
        jpegs, (width, height) = self.jpegs(id, frames), self.size(id)
        pictures_SHW3 = np.empty((len(wanted), height, width, 3), np.uint8)

        def draw(numbers: range) -> None:
            for number in numbers:
                place, *others = np.flatnonzero(places == number).tolist()
                _decode(jpegs[number], pictures_SHW3[place])
                pictures_SHW3[others] = pictures_SHW3[place]

        shares = min(THREADS, len(jpegs))
        list(threads("xmodal-jpegs").map(draw, [range(share, len(jpegs), shares) for share in range(shares)]))
        return pictures_SHW3

    def _row(self, id: str) -> int:
        if id in self.absent:
            found = (failure for unit in self.output.units() for failure in unit.failures)
            why = next(f"{kind} ({reason})" if reason else kind for failed, kind, reason in found if failed == id)
            raise UserError(f"{self.output.where} has no frames of {id!r}: {why}")
        return int(self.rows([id])[0])

    def _of(self, row: int, column: str) -> NDArray[np.int64]:
        shard, place = divmod(row, self.spec.shard_items)
        if shard not in self._tables:
            names = ("lengths", "starts_us", "frame_of_sample")
            table = read_columns(self.output, clips_file(shard), *names)
            self._tables[shard] = {name: table[name].combine_chunks() for name in names}
        values: NDArray[np.int64] = self._tables[shard][column][place].values.to_numpy()
        return values


def _within(numbers: Iterable[int], count: int, has: str) -> list[int]:
    found = [int(number) for number in numbers]
    if strange := [number for number in found if not 0 <= number < count]:
        raise IndexError(f"{has}, and none of number {strange[0]}")
    return found


@cache
def threads(name: str) -> ThreadPoolExecutor:
    """Threads for work that releases Python's lock, such as decoding."""
    return ThreadPoolExecutor(THREADS, name)


os.register_at_fork(after_in_child=threads.cache_clear)  # they stay behind, in the parent


def _decode(jpeg: bytes, room_HW3: NDArray[np.uint8]) -> None:
    """Decodes in place; the pixels are Pillow's."""
    with extra_needed("video", "clips need simplejpeg"):
        import simplejpeg
    height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
    if (height, width) == room_HW3.shape[:2]:
        simplejpeg.decode_jpeg(jpeg, buffer=room_HW3, strict=False)
    else:
        room_HW3[:] = np.asarray(open_jpeg(jpeg).resize(room_HW3.shape[1::-1]))


def open_jpeg(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg), formats=("JPEG",))
