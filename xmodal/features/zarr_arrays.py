"""Shards of feature arrays: a writer, and a reader that maps all shards of an array as one ndarray.

A shard is uncompressed and in order, to be mapped; any Zarr v3 reader opens it too:

    chunk 0 | chunk 1 | … | crc32c of each chunk | offset and length of each chunk | crc32c of those

A shard may be short: chunks after its last row are marked as missing and take no bytes. A chunk is checked once, when
first read. Its checksum covers its number too, and the key of its unit, so that a shard in another's place is found.
"""

import ctypes
import functools
import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import current_thread, main_thread
from typing import Any, BinaryIO
from weakref import finalize

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.raw.array_files import NO_CHUNK

READ_AROUND = 64 * 1024  # bytes of a row from which on reading around a page helps
LINE = 64  # bytes of a cache line
HUGE = 2 * 1024 * 1024  # mappings start on such an address, for huge pages
MUCH = 1024 * 1024  # bytes of a batch that are worth a second thread
PROBES = 4  # rows of a batch that say whether the file is in memory


OpenedShard = tuple[str, str, NDArray[np.uint32]]


class ShardWriter:
    """Streams one shard, whose first row is `first` of the array; refuses numbers that are not finite."""

    def __init__(self, file: BinaryIO, spec: FeatureSpec, first: int, key: str = "") -> None:
        self._file, self._spec, self._first = file, spec, first
        self._chunk_bytes = spec.chunk_bytes
        self._chunk = first // spec.chunk_rows  # the shard's first, of the array
        self._key = key
        self._checksums = [_seed(key, self._chunk)]  # the last one is of the chunk in work
        self._written = 0  # bytes

    def append(self, rows: NDArray[Any], whose: str | None = None) -> None:
        """Writes rows, which `whose` names in a message."""
        # pieces stay in the processor's cache, and end where huge pages do: the file is then read faster
        numbers, done = np.ascontiguousarray(rows).reshape(-1), 0
        while done < len(numbers):
            piece = numbers[done : done + (HUGE - self._written % HUGE) // numbers.itemsize]
            if not all_finite(piece):
                at = self._written + int(np.flatnonzero(~np.isfinite(piece))[0]) * piece.itemsize
                what = whose or f"row {self._first + at // self._spec.row_bytes}"
                raise UserError(
                    f"{self._spec.name}: {what} is NaN or infinite: take float32 if numbers are too large, "
                    "else mend what made them"
                )
            self._write(piece.view(np.uint8))
            done += len(piece)

    def finish(self) -> None:
        if rest := self._written % self._chunk_bytes:
            self._write(np.zeros(self._chunk_bytes - rest, np.uint8))
        *checksums, _ = self._checksums
        self._file.write(np.array(checksums, "<u4").tobytes())
        self._file.write(_shard_index(self._spec, len(checksums)))

    def _write(self, data: NDArray[np.uint8]) -> None:
        data.flags.writeable = False  # or its checksum would be refused
        self._file.write(data.data)
        while len(data):
            room = self._chunk_bytes - self._written % self._chunk_bytes
            part, data = data[:room], data[room:]
            self._checksums[-1] = extend(self._checksums[-1], part)
            self._written += len(part)
            if len(part) == room:
                self._checksums.append(_seed(self._key, self._chunk + len(self._checksums)))


def _shard_index(spec: FeatureSpec, chunks: int) -> bytes:
    """The index of a shard of `chunks` chunks."""
    index = np.full((spec.shard_chunks, 2), NO_CHUNK, "<u8")
    index[:chunks, 0] = np.arange(chunks) * spec.chunk_bytes
    index[:chunks, 1] = spec.chunk_bytes
    data = index.tobytes()
    return data + int(extend(0, data)).to_bytes(4, "little")


def all_finite(numbers: NDArray[Any]) -> bool:
    """Compares numbers as integers: on half precision ten times as fast as numpy's isfinite.

    Positive infinities and NaNs are the largest signed integers, negative ones the largest unsigned.
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return True
    signed, unsigned = numbers.view(f"i{numbers.itemsize}"), numbers.view(f"u{numbers.itemsize}")
    infinite = np.array([np.inf, -np.inf], numbers.dtype)
    positive, negative = infinite.view(signed.dtype)[0], infinite.view(unsigned.dtype)[1]
    return bool(signed.max() < positive and unsigned.max() < negative)


def read_checksums(path: str, spec: FeatureSpec, cure: str) -> NDArray[np.uint32]:
    """Returns the checksum of each chunk of a shard; `cure` says what to do where it is damaged."""
    with open(path, "rb") as file:
        return _checksums(file, spec, path, cure)


def _checksums(file: BinaryIO, spec: FeatureSpec, path: str, cure: str) -> NDArray[np.uint32]:
    size = file.seek(0, os.SEEK_END)
    chunks = (size - 16 * spec.shard_chunks - 4) // (spec.chunk_bytes + 4)
    if 0 <= chunks <= spec.shard_chunks:
        file.seek(chunks * spec.chunk_bytes)
        checksums = file.read(4 * chunks)
        if file.read() == _shard_index(spec, chunks):
            return np.frombuffer(checksums, "<u4")
    raise UserError(f"{path} is damaged: it does not hold the index of its chunks; {cure}")


class ShardReader:
    """Reads rows of one shard that is not mapped, and refuses chunks that are not what was written."""

    def __init__(self, file: BinaryIO, spec: FeatureSpec, shard: int, key: str, path: str, cure: str) -> None:
        self._file, self._spec, self._key, self._path, self._cure = file, spec, key, path, cure
        self._first = shard * spec.shard_chunks  # chunk, of the array
        self._checksums = _checksums(file, spec, path, cure)
        self._last: tuple[int, bytes] = (-1, b"")  # rows are mostly asked for in order

    def rows(self, first: int, stop: int) -> NDArray[Any]:
        """Rows by their places in the shard."""
        spec = self._spec
        chunks = range(first // spec.chunk_rows, -(-stop // spec.chunk_rows))
        data = np.frombuffer(b"".join(map(self._chunk, chunks)), spec.dtype).reshape(-1, *spec.row_shape)
        return data[first - chunks.start * spec.chunk_rows :][: stop - first]

    def _chunk(self, number: int) -> bytes:
        if self._last[0] != number:
            self._file.seek(number * self._spec.chunk_bytes)
            data = self._file.read(self._spec.chunk_bytes)
            if extend(_seed(self._key, self._first + number), data) != self._checksums[number]:
                raise UserError(f"{self._path} is damaged: chunk {number} is not what was written; {self._cure}")
            self._last = number, data
        return self._last[1]


class MappedRows:
    """Maps all shards end to end: a single flat, read-only ndarray.

    `opened` gives a shard's path, key and checksums when first wanted; `cure` says what to do about damage. A
    file that is cut while mapped ends the process (SIGBUS), as with np.memmap.
    """

    def __init__(self, spec: FeatureSpec, shards: int, opened: Callable[[int], OpenedShard], cure: str) -> None:
        self._opened, self._cure = opened, cure
        self._row_bytes, self._chunk_bytes = spec.row_bytes, spec.chunk_bytes
        self._chunk_rows, self._shard_rows, self._shard_chunks = spec.chunk_rows, spec.shard_rows, spec.shard_chunks
        self._shard_bytes = self._shard_rows * self._row_bytes
        if self._shard_bytes % mmap.PAGESIZE:
            rows = math.lcm(self._row_bytes, mmap.PAGESIZE) // self._row_bytes
            raise UserError(
                f"shards of {self._shard_rows:,} rows do not end on this machine's pages of {mmap.PAGESIZE:,} bytes: "
                f"build them with rows_per_shard a multiple of {rows:,}"
            )
        self._space = _Addresses(shards * self._shard_bytes)
        self._bytes = np.asarray(self._space)
        self._values = self._bytes.view(spec.dtype).reshape(-1, *spec.row_shape)
        self._mapped = np.zeros(shards, bool)
        self._paths, self._keys = [""] * shards, [""] * shards
        self._unchecked = np.zeros(shards * self._shard_chunks, bool)
        self._checksums = np.empty(len(self._unchecked), np.uint32)  # both take memory only where a shard is mapped

    def map(self, shard: int) -> None:
        path, self._keys[shard], checksums = self._opened(shard)
        size = len(checksums) * self._chunk_bytes
        self._space.place(shard * self._shard_bytes, path, size, alone=self._row_bytes < READ_AROUND)
        first = shard * self._shard_chunks
        self._checksums[first : first + len(checksums)] = checksums
        self._unchecked[first : first + len(checksums)] = True
        self._paths[shard] = path
        self._mapped[shard] = True  # only now may another thread read it

    def map_all(self) -> None:
        for shard in np.flatnonzero(~self._mapped).tolist():
            self.map(shard)

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies rows to `out`, which has their shape and dtype."""
        if not self._mapped.all():
            shards = np.unique(rows // self._shard_rows)
            for shard in shards[~self._mapped[shards]].tolist():
                self.map(shard)
        chunks = rows // self._chunk_rows
        fresh = self._unchecked[chunks]
        unread = np.unique(chunks[fresh]).tolist() if fresh.any() else []
        size = self._row_bytes
        is_warm = self._space.in_memory(rows[:: max(1, len(rows) // PROBES)] * size + size // 2)
        if unread or not is_warm:
            self._ask_for(unread, np.unique(rows[~fresh]).tolist())
        if not is_warm:
            self._receive(rows, out)
            return
        for chunk in unread:
            self._check(chunk)
        _copy(self._values, rows, out)

    def run(self, first: int, stop: int) -> NDArray[Any]:
        """Returns a view of consecutive rows of one shard."""
        size = self._row_bytes
        if first < stop:
            if not self._mapped[first // self._shard_rows]:
                self.map(first // self._shard_rows)
            chunks = range(first // self._chunk_rows, -(-stop // self._chunk_rows))
            fresh = [chunk for chunk in chunks if self._unchecked[chunk]]
            self._ask_for(fresh, [])
            for chunk in fresh:
                self._check(chunk)
            self._space.will_need(first * size, (stop - first) * size)
        return self._values[first:stop]

    def _ask_for(self, chunks: list[int], rows: list[int]) -> None:
        """Asks a cold disk for a whole batch at once."""
        for size, places in ((self._chunk_bytes, chunks), (self._row_bytes, rows)):
            for place in places:
                self._space.will_need(place * size, size)

    def _receive(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Checks and copies row by row, in the disk's order, while others arrive."""
        for place in np.argsort(rows).tolist():
            chunk = int(rows[place]) // self._chunk_rows
            if self._unchecked[chunk]:
                self._check(chunk)
            out[place] = self._values[rows[place]]

    def _check(self, chunk: int) -> None:
        size = self._chunk_bytes
        key = self._keys[chunk // self._shard_chunks]
        if extend(_seed(key, chunk), self._bytes[chunk * size : (chunk + 1) * size]) != self._checksums[chunk]:
            first, stop = chunk * self._chunk_rows, (chunk + 1) * self._chunk_rows
            rows = f"row {first}" if stop == first + 1 else f"one of the rows {first} to {stop - 1}"
            path = self._paths[first // self._shard_rows]
            raise UserError(f"{path} is damaged: {rows} is not what was written; {self._cure}")
        self._unchecked[chunk] = False


def buffer(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Allocates memory that begins on a cache line; np.empty's begins 16 bytes after one.

    Mapped rows begin on a page, and storing just behind where one loads waits: copying would take two to three times as
    long.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    found: NDArray[Any] = room[start : start + size].view(dtype).reshape(shape)
    return found


def _copy(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    # one core does not use the whole memory bandwidth; a loader's threads have others
    half = len(rows) // 2 if out.nbytes >= MUCH and current_thread() is main_thread() else 0
    handed = _second_copier().submit(_copy_alone, values, rows[:half], out[:half]) if half else None
    _copy_alone(values, rows[half:], out[half:])
    if handed:
        handed.result()


def _copy_alone(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    np.take(values, rows, axis=0, out=out, mode="clip")  # "raise" would copy twice; the bounds were checked


@functools.cache
def _second_copier() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "xmodal-copier")


os.register_at_fork(after_in_child=_second_copier.cache_clear)  # the thread stays behind, in the parent


class _Addresses:
    """Reserves addresses for files; np.asarray sees them as read-only bytes."""

    def __init__(self, size: int) -> None:
        self._length = size + HUGE
        self._whole = _map(None, self._length, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._start = -(-self._whole // HUGE) * HUGE
        unmapped = finalize(self, _LIBC.munmap, self._whole, self._length)
        unmapped.atexit = False  # a thread may still be reading
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (self._start, True)}

    def place(self, offset: int, path: str, size: int, alone: bool = False) -> None:
        """Maps the beginning of a file, `alone` without reading around."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if size:
                _map(self._start + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | _AT_THIS_ADDRESS, descriptor)
            if alone:
                _LIBC.madvise(self._start + offset, size, mmap.MADV_RANDOM)
        finally:
            os.close(descriptor)

    def in_memory(self, offsets: NDArray[np.int64]) -> bool:
        # the kernel says yes for files of other users
        there = ctypes.c_ubyte()
        pages = ((self._start + offsets) & -mmap.PAGESIZE).tolist()
        return all(_LIBC.mincore(page, 1, ctypes.byref(there)) != 0 or there.value & 1 for page in pages)

    def will_need(self, offset: int, size: int) -> None:
        start = (self._start + offset) & -mmap.PAGESIZE
        _LIBC.madvise(start, self._start + offset + size - start, mmap.MADV_WILLNEED)


_NO_ACCESS, _AT_THIS_ADDRESS = 0, 0x10  # PROT_NONE and MAP_FIXED, which Python's mmap does not name
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_longlong)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def _map(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    found = _LIBC.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {size:,} bytes cannot be mapped into memory")
    return int(found)


def _seed(key: str, chunk: int) -> int:
    return int(extend(0, key.encode() + chunk.to_bytes(8, "little")))
