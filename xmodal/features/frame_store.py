"""Frames of clips as the frames stage keeps them: read by clip, by frame and by sample; and looked at, on one sheet.

A clip's frames are the different pictures that it shows, numbered as they begin; its samples are the moments, 8 in a
second unless it was built otherwise, and each is one of the frames.
"""

import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
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
        "bytes": pa.int64(),
        "container": pa.string(),
        "codec": pa.string(),
        "width": pa.int64(),
        "height": pa.int64(),
        "frames": pa.int64(),  # of the clip, not only those that are kept
        "duration_ms": pa.int64(),
        "stage": pa.string(),
        "status": pa.string(),
        "message": pa.string(),
        "decoder_log_count": pa.int64(),
        "samples_planned": pa.int64(),
        "samples_missing": pa.int64(),
    }
)


THREADS = min(8, os.cpu_count() or 1)
SHEET, COLUMNS = 64, 8  # frames at most; of them in a line at least
THUMBNAIL, LABEL, TITLE, GAP, LETTERS, LINE = (160, 120), 90, 480, 6, 13, 18  # pixels


def clips_file(shard: int) -> str:
    """The table of the clips of a shard."""
    return f"clips/{shard:05d}.parquet"


@dataclass(frozen=True, eq=False)
class _Lists:
    """A column of lists."""

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @staticmethod
    def of(column: pa.ChunkedArray) -> "_Lists":
        lists = column.combine_chunks()
        return _Lists(lists.values.to_numpy(), lists.offsets.to_numpy().astype(np.int64))

    def __getitem__(self, place: int) -> NDArray[np.int64]:
        return self.values[self.offsets[place] : self.offsets[place + 1]]


class FrameStore:
    """The frames of a corpus' clips, finished; safe to fork and to pickle. Clips that have none are refused by name."""

    def __init__(self, output: Output | str) -> None:
        self._store = FeatureStore(output, NAME)
        self._tables: dict[int, dict[str, _Lists]] = {}

    @property
    def output(self) -> Output:
        return self._store.output

    @property
    def ids(self) -> tuple[str, ...]:
        """Every clip that was planned, also without frames."""
        return self._store.ids

    @property
    def provenance(self) -> dict[str, object]:
        return self._store.provenance

    def __contains__(self, id: object) -> bool:
        return id in self._store

    def frame_of_sample(self, id: str) -> NDArray[np.int32]:
        """(samples,)"""
        return self._of(self._row(id), "frame_of_sample").astype(np.int32)

    def starts_us(self, id: str) -> NDArray[np.int64]:
        """(frames,), in microseconds after the beginning of the first."""
        return self._of(self._row(id), "starts_us")

    def jpegs(self, id: str, frames: Iterable[int] | None = None) -> list[bytes]:
        """All of a clip, or those of these numbers in the order given."""
        row = self._row(id)
        ends = np.cumsum(self._of(row, "lengths")).tolist()
        wanted = range(len(ends)) if frames is None else [int(frame) for frame in frames]
        if strange := [frame for frame in wanted if not 0 <= frame < len(ends)]:
            raise IndexError(f"{id} has {len(ends)} frames, and none of number {strange[0]}")
        return [self._store.run(row, ends[frame - 1] if frame else 0, ends[frame]).tobytes() for frame in wanted]

    def pictures(self, id: str, samples: Iterable[int]) -> NDArray[np.uint8]:
        """(samples, H, W, 3), RGB. Where frames differ in size, all have that of the clip's first."""
        shown = self.frame_of_sample(id)
        wanted = [int(sample) for sample in samples]
        if strange := [sample for sample in wanted if not 0 <= sample < len(shown)]:
            raise IndexError(f"{id} has {len(shown)} samples, and none of number {strange[0]}")
        frames, places = np.unique(shown[wanted], return_inverse=True)
        first, *jpegs = self.jpegs(id, [0, *frames])
        width, height = _opened(first).size
        pictures_SHW3 = np.empty((len(wanted), height, width, 3), np.uint8)

        def draw(numbers: range) -> None:
            for number in numbers:
                place, *others = np.flatnonzero(places == number).tolist()
                _decode(jpegs[number], pictures_SHW3[place])
                pictures_SHW3[others] = pictures_SHW3[place]

        shares = min(THREADS, len(jpegs))
        list(_threads().map(draw, [range(share, len(jpegs), shares) for share in range(shares)]))
        return pictures_SHW3

    def _row(self, id: str) -> int:
        if id in self._store.absent:
            found = (failure for unit in self.output.units() for failure in unit.failures)
            why = next(f"{kind} ({reason})" if reason else kind for failed, kind, reason in found if failed == id)
            raise UserError(f"{self.output.where} has no frames of {id!r}: {why}")
        return int(self._store.rows([id])[0])

    def _of(self, row: int, column: str) -> NDArray[np.int64]:
        """Tables are read when a clip of theirs is first asked for."""
        shard, place = divmod(row, self._store.spec.shard_items)
        if shard not in self._tables:
            names = ("lengths", "starts_us", "frame_of_sample")
            table = read_columns(self.output, clips_file(shard), *names)
            self._tables[shard] = {name: _Lists.of(table[name]) for name in names}
        return self._tables[shard][column][place]


@cache
def _threads() -> ThreadPoolExecutor:
    """Decoding lets others run meanwhile."""
    return ThreadPoolExecutor(THREADS, "xmodal-jpegs")


os.register_at_fork(after_in_child=_threads.cache_clear)  # the threads stay behind, in the parent


def _decode(jpeg: bytes, room_HW3: NDArray[np.uint8]) -> None:
    """By the library that Pillow has within it too: this gives the same pixels, but straight to where they belong."""
    try:
        import simplejpeg
    except ImportError as missing:
        raise UserError(
            f"pictures of clips need {missing.name}: pip install -e '.[video]' in the checkout"
        ) from missing
    height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
    if (height, width) == room_HW3.shape[:2]:
        simplejpeg.decode_jpeg(jpeg, buffer=room_HW3, strict=False)
    else:
        room_HW3[:] = np.asarray(_opened(jpeg).resize(room_HW3.shape[1::-1]))


def _opened(jpeg: bytes) -> Image.Image:
    return Image.open(io.BytesIO(jpeg), formats=("JPEG",))
