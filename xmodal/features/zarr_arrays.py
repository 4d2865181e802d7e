"""Zarr v3 arrays of equal rows: their layout, a writer of shards, and a reader that maps all shards as one ndarray.

A shard as we write it is uncompressed and in order, so that it can be mapped; any Zarr v3 reader opens it too:

    chunk 0 | chunk 1 | … | crc32c of each chunk | offset and length of each chunk | crc32c of those

A shard may be short: chunks after its last row are marked as missing and take no bytes. A chunk is checked when one of
its rows is first read, and never again. The checksum, in what other readers see as a gap, covers the chunk's number
too, so that a shard in another's place is found.

Arrays of others are mapped if their shards are uncompressed, whole and in order, else decoded by zarr-python: slowly.
"""

import ctypes
import functools
import json
import math
import mmap
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import Any, BinaryIO, TypeAlias
from weakref import finalize

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from xmodal.errors import UserError

READ_AROUND = 64 * 1024  # bytes of a row from which on the kernel's reading around a page helps
LINE = 64  # bytes of a cache line
HUGE = 2 * 1024 * 1024  # mappings start on such an address, so that the kernel may use huge pages
NO_CHUNK = 2**64 - 1  # offset and length of a missing chunk in a shard's index
CHECKSUMS = {"checksums": "crc32c of each chunk's number, as 8 bytes, and the chunk; between the last and the index"}
PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}
KEYS = ({"name": "default", "configuration": {"separator": "/"}}, {"name": "default"})
INDEX_CODECS = [PLAIN, {"name": "crc32c"}]
CURE = "`xmodal verify --forget` removes it where it was built (remove a cache's copy yourself); then make it again"
MUCH = 1024 * 1024  # bytes of a batch from which on a second thread is worth its call
PROBES = 4  # rows of a batch that say whether the file is in memory


@dataclass(frozen=True)
class ArrayLayout:
    """Describes an array that can be mapped: every chunk holds whole rows."""

    rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    shard_rows: int
    checksums: bool = True
    index_first: bool = False  # written by others

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * self.row_bytes

    @property
    def shard_bytes(self) -> int:
        return self.shard_rows * self.row_bytes

    @property
    def shard_chunks(self) -> int:
        return self.shard_rows // self.chunk_rows

    @property
    def index_bytes(self) -> int:
        return 16 * self.shard_chunks + 4

    @property
    def shards(self) -> int:
        return -(-self.rows // self.shard_rows)

    def shard_key(self, shard: int) -> str:
        return f"c/{shard}" + "/0" * len(self.row_shape)

    def chunks_of(self, shard: int) -> int:
        """Counts the chunks of a shard that have rows; the last shard may be short."""
        return -(-min(self.shard_rows, self.rows - shard * self.shard_rows) // self.chunk_rows)

    def metadata(self) -> dict[str, object]:
        """The zarr.json of an array that we write."""
        sharding = {
            "chunk_shape": [self.chunk_rows, *self.row_shape],
            "codecs": [PLAIN],
            "index_codecs": INDEX_CODECS,
            "index_location": "end",
        }
        grid = {"chunk_shape": [self.shard_rows, *self.row_shape]}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.rows, *self.row_shape],
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": KEYS[0],
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": CHECKSUMS,
        }

    @staticmethod
    def of(array: dict[str, Any]) -> "ArrayLayout | None":
        """Reads a parsed zarr.json; None if the array cannot be mapped."""
        rows, *row_shape = array["shape"]
        codecs, grid = array["codecs"], array["chunk_grid"]["configuration"]["chunk_shape"]
        if [codec["name"] for codec in codecs] != ["sharding_indexed"]:
            return None
        sharding = codecs[0]["configuration"]
        chunk = sharding["chunk_shape"]
        if any(type(length) is not int or length < 0 for length in [rows, *row_shape]) or not all(
            type(length) is int and length > 0 for length in chunk + grid
        ):
            raise ValueError(f"no array has the lengths {[rows, *row_shape, *chunk, *grid]}")
        if len(grid) != len(chunk) or grid[0] % chunk[0]:
            raise ValueError("its shards are not whole chunks")
        whole_rows = chunk[1:] == row_shape == grid[1:] and 0 not in row_shape
        dtype = _plain_dtype(array["data_type"], sharding["codecs"])
        usual = sharding["index_codecs"] == INDEX_CODECS and array["chunk_key_encoding"] in KEYS
        if not whole_rows or dtype is None or not usual:
            return None
        return ArrayLayout(
            rows=rows,
            row_shape=tuple(row_shape),
            dtype=dtype,
            chunk_rows=chunk[0],
            shard_rows=grid[0],
            checksums=array.get("attributes", {}).get("checksums") == CHECKSUMS["checksums"],
            index_first=sharding.get("index_location", "end") == "start",
        )


class ShardWriter:
    """Streams one shard, whose first row is `first` of the array; a number that is not finite is refused."""

    def __init__(self, file: BinaryIO, layout: ArrayLayout, name: str, first: int) -> None:
        self._file, self._layout, self._name, self._first = file, layout, name, first
        self._chunk = first // layout.shard_rows * layout.shard_chunks  # the shard's first, of the array
        self._checksums = [_seed(self._chunk)]  # the last one is of the chunk in work
        self._written = 0  # bytes

    def append(self, rows: NDArray[Any], whose: str | None = None) -> None:
        """Writes rows, which `whose` names in a message, in pieces that stay in the processor's cache.

        Pieces end where the file's huge pages do: the system's cache of it is then read faster.
        """
        numbers, done = np.ascontiguousarray(rows).reshape(-1), 0
        while done < len(numbers):
            piece = numbers[done : done + (HUGE - self._written % HUGE) // numbers.itemsize]
            if not all_finite(piece):
                at = self._written + int(np.flatnonzero(~np.isfinite(piece))[0]) * piece.itemsize
                what = whose or f"row {self._first + at // self._layout.row_bytes}"
                raise UserError(
                    f"{self._name}: {what} is NaN or infinite: numbers too large take float32, else mend what made them"
                )
            self._write(piece.view(np.uint8))
            done += len(piece)

    def finish(self) -> None:
        if rest := self._written % self._layout.chunk_bytes:
            self._write(np.zeros(self._layout.chunk_bytes - rest, np.uint8))
        *checksums, _ = self._checksums
        self._file.write(np.array(checksums, "<u4").tobytes())
        size, chunks = self._layout.chunk_bytes, len(checksums)
        index = np.full((self._layout.shard_chunks, 2), NO_CHUNK, "<u8")
        index[:chunks, 0] = np.arange(chunks) * size
        index[:chunks, 1] = size
        self._file.write(_with_checksum(index.tobytes()))

    def _write(self, data: NDArray[np.uint8]) -> None:
        data.flags.writeable = False  # or its checksum would be refused
        self._file.write(data.data)
        while len(data):
            room = self._layout.chunk_bytes - self._written % self._layout.chunk_bytes
            part, data = data[:room], data[room:]
            self._checksums[-1] = extend(self._checksums[-1], part)
            self._written += len(part)
            if len(part) == room:
                self._checksums.append(_seed(self._chunk + len(self._checksums)))


def all_finite(numbers: NDArray[Any]) -> bool:
    """Compares exponents as integers: on half precision ten times as fast as numpy's isfinite.

    Positive infinities and NaNs are the largest signed integers; negative ones are the largest unsigned integers.
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return True
    signed, unsigned = numbers.view(f"i{numbers.itemsize}"), numbers.view(f"u{numbers.itemsize}")
    infinite = np.array([np.inf, -np.inf], numbers.dtype)
    positive, negative = infinite.view(signed.dtype)[0], infinite.view(unsigned.dtype)[1]
    return bool(signed.max() < positive and unsigned.max() < negative)


@dataclass(frozen=True, eq=False)
class ShardFile:
    """A shard's file, whose index was read and found whole."""

    path: str
    starts: NDArray[np.int64]  # byte of the file at which each chunk starts; negative for a missing chunk
    checksums: NDArray[np.uint32] | None
    in_order: int | None  # number of chunks, if they begin the file without a gap

    @staticmethod
    def read(path: str, layout: ArrayLayout) -> "ShardFile":
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < layout.index_bytes:
                    raise ValueError("it does not hold the index of its chunks")
                file.seek(0 if layout.index_first else size - layout.index_bytes)
                starts = _read_index(file.read(layout.index_bytes), layout, size)
                chunks = int(np.count_nonzero(starts >= 0))
                checksums = _read_checksums(file, chunks, layout, size) if layout.checksums else None
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}; {CURE}") from None
        in_order = np.array_equal(starts[:chunks], np.arange(chunks) * layout.chunk_bytes)
        return ShardFile(path, starts, checksums, chunks if in_order else None)


class MappedRows:
    """Maps all shards one behind the other: a single flat, read-only ndarray.

    `shard` opens a shard by its number when one of its rows is first wanted. Safe to fork: mappings stay. A file that
    is cut while it is mapped ends the process (SIGBUS), as with np.memmap.
    """

    def __init__(self, layout: ArrayLayout, shard: Callable[[int], ShardFile]) -> None:
        self.layout, self._shard = layout, shard
        if layout.shard_bytes % mmap.PAGESIZE:
            rows = math.lcm(layout.row_bytes, mmap.PAGESIZE) // layout.row_bytes
            raise UserError(
                f"shards of {layout.shard_rows:,} rows do not end on this machine's pages of {mmap.PAGESIZE:,} bytes: "
                f"build them with rows_per_shard a multiple of {rows:,}"
            )
        self.shape, self.dtype = (layout.rows, *layout.row_shape), layout.dtype
        self._space = _Addresses(layout.shards * layout.shard_bytes)
        self._bytes = np.asarray(self._space)
        self._values = self._bytes.view(layout.dtype).reshape(-1, *layout.row_shape)
        self._is_small = layout.row_bytes < READ_AROUND
        self._mapped = np.zeros(layout.shards, bool)
        self._paths = [""] * layout.shards
        chunks = layout.shards * layout.shard_chunks
        self._unchecked = np.zeros(chunks, bool)
        self._checksums = np.empty(chunks, np.uint32)  # both take memory only where a shard is mapped

    def map(self, shard: int) -> None:
        found = self._shard(shard)
        if found.in_order is None:
            raise UserError(f"{found.path} is damaged: its chunks are not in order; {CURE}")
        self._space.place(
            shard * self.layout.shard_bytes, found.path, found.in_order * self.layout.chunk_bytes, self._is_small
        )
        if found.checksums is not None:
            first = shard * self.layout.shard_chunks
            self._checksums[first : first + found.in_order] = found.checksums
            self._unchecked[first : first + found.in_order] = True
        self._paths[shard] = found.path
        self._mapped[shard] = True  # only now may another thread read it

    def map_all(self) -> None:
        for shard in np.flatnonzero(~self._mapped).tolist():
            self.map(shard)

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies rows, which lie within the array, to `out`, which has their shape and dtype."""
        if not self._mapped.all():
            shards = np.unique(rows // self.layout.shard_rows)
            for shard in shards[~self._mapped[shards]].tolist():
                self.map(shard)
        chunks = rows // self.layout.chunk_rows
        fresh = self._unchecked[chunks]
        unread = np.unique(chunks[fresh]).tolist() if fresh.any() else []
        size = self.layout.row_bytes
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
        """A view of consecutive rows of one shard, checked as `take` does; nothing is copied."""
        layout, size = self.layout, self.layout.row_bytes
        if first < stop:
            if not self._mapped[first // layout.shard_rows]:
                self.map(first // layout.shard_rows)
            chunks = range(first // layout.chunk_rows, -(-stop // layout.chunk_rows))
            fresh = [chunk for chunk in chunks if self._unchecked[chunk]]
            self._ask_for(fresh, [])
            for chunk in fresh:
                self._check(chunk)
            self._space.will_need(first * size, (stop - first) * size)
        return self._values[first:stop]

    def _ask_for(self, chunks: list[int], rows: list[int]) -> None:
        """Asks a cold disk for a whole batch at once."""
        for size, places in ((self.layout.chunk_bytes, chunks), (self.layout.row_bytes, rows)):
            for place in places:
                self._space.will_need(place * size, size)

    def _receive(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Checks and copies row by row, in the disk's order, while others arrive."""
        for place in np.argsort(rows).tolist():
            chunk = int(rows[place]) // self.layout.chunk_rows
            if self._unchecked[chunk]:
                self._check(chunk)
            out[place] = self._values[rows[place]]

    def _check(self, chunk: int) -> None:
        size = self.layout.chunk_bytes
        if extend(_seed(chunk), self._bytes[chunk * size : (chunk + 1) * size]) != self._checksums[chunk]:
            first, stop = chunk * self.layout.chunk_rows, (chunk + 1) * self.layout.chunk_rows
            rows = f"row {first}" if stop == first + 1 else f"one of the rows {first} to {stop - 1}"
            path = self._paths[first // self.layout.shard_rows]
            raise UserError(f"{path} is damaged: {rows} is not what was written; {CURE}")
        self._unchecked[chunk] = False


class DecodedRows:
    """Reads any other array through zarr-python."""

    def __init__(self, folder: str) -> None:
        try:
            import zarr  # only archives need it
        except ImportError:
            raise UserError(f"{folder} is not stored plainly; zarr-python decodes it: pip install zarr") from None
        self._array = zarr.open_array(folder, mode="r")
        self.shape, self.dtype = self._array.shape, np.dtype(self._array.dtype)

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        out[...] = self._array.oindex[rows]


ArrayRows: TypeAlias = MappedRows | DecodedRows


def open_array(folder: str, complete: bool = False) -> ArrayRows:
    """Opens any Zarr v3 array in a local folder; chunks that a writer left out read as the fill value.

    With `complete`, a shard that lacks a chunk is refused, if that can be seen without decoding it. An array of ours
    with short shards, as ragged ones have, is refused.
    """
    try:
        with open(f"{folder}/zarr.json", "rb") as file:
            about = json.load(file)
        layout = ArrayLayout.of(about)
    except FileNotFoundError:
        raise UserError(f"{folder} is no Zarr v3 array: it has no zarr.json") from None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder}/zarr.json describes no array ({error!r})") from error
    if layout is None:
        return DecodedRows(folder)
    paths = [f"{folder}/{layout.shard_key(shard)}" for shard in range(layout.shards)]
    if layout.checksums and (missing := [path for path in paths if not os.path.exists(path)]):
        raise UserError(f"{missing[0]} is missing: xmodal leaves no shard out; {CURE}")
    shards = {number: ShardFile.read(path, layout) for number, path in enumerate(paths) if os.path.exists(path)}
    for number, shard in shards.items():
        if complete and (shard.starts[: layout.chunks_of(number)] < 0).any():
            raise UserError(f"{shard.path} was never written as a whole: what it lacks would be read as zeros")
    is_whole = len(shards) == len(paths) and all(
        shard.in_order is not None and shard.in_order >= layout.chunks_of(number) for number, shard in shards.items()
    )
    if is_whole and layout.shard_bytes % mmap.PAGESIZE == 0:
        rows = MappedRows(layout, shards.__getitem__)
        rows.map_all()
        return rows
    if layout.checksums:
        raise UserError(f"{folder} has shards of fewer rows than its others: xmodal.features.FeatureStore reads them")
    return DecodedRows(folder)


def buffer(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Allocates memory for rows that begins on a cache line; np.empty's begins 16 bytes after one.

    Mapped rows begin on a page, and a processor that stores just behind where it loads waits: copying into np.empty
    takes two to three times as long.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    found: NDArray[Any] = room[start : start + size].view(dtype).reshape(shape)
    return found


def _copy(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """Copies much with two threads, because one core does not use the whole memory bandwidth.

    Only the main thread does so: a loader's threads have others beside them.
    """
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
    """Reserves addresses into which files are mapped; np.asarray sees them as read-only bytes."""

    def __init__(self, size: int) -> None:
        self._length = size + HUGE
        self._whole = _map(None, self._length, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._start = -(-self._whole // HUGE) * HUGE
        unmapped = finalize(self, _LIBC.munmap, self._whole, self._length)
        unmapped.atexit = False  # a thread may still be reading
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (self._start, True)}

    def place(self, offset: int, path: str, size: int, alone: bool = False) -> None:
        """Maps the first `size` bytes of a file, `alone` without reading around."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if size:
                _map(self._start + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | _AT_THIS_ADDRESS, descriptor)
            if alone:
                _LIBC.madvise(self._start + offset, size, mmap.MADV_RANDOM)
        finally:
            os.close(descriptor)

    def in_memory(self, offsets: NDArray[np.int64]) -> bool:
        """Tells whether these pages are in memory; the kernel says yes for files of other users."""
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
    """Maps to an address, as Python's own mmap cannot."""
    found = _LIBC.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {size:,} bytes cannot be mapped into memory")
    return int(found)


def _seed(chunk: int) -> int:
    """Starts a chunk's checksum with its number."""
    return int(extend(0, chunk.to_bytes(8, "little")))


def _with_checksum(data: bytes) -> bytes:
    return data + int(extend(0, data)).to_bytes(4, "little")


def _read_index(data: bytes, layout: ArrayLayout, size: int) -> NDArray[np.int64]:
    if data != _with_checksum(data[:-4]):
        raise ValueError("it does not hold the index of its chunks")
    offsets, lengths = np.frombuffer(data[:-4], "<u8").reshape(-1, 2).T
    there = (offsets != NO_CHUNK) | (lengths != NO_CHUNK)
    starts = np.where(there, offsets, 0).astype(np.int64)
    outside = (starts < 0) | (starts > size - layout.chunk_bytes) | (lengths != layout.chunk_bytes)
    if outside[there].any():
        raise ValueError("its index points outside of it")
    return np.where(there, starts, -1)


def _read_checksums(file: BinaryIO, chunks: int, layout: ArrayLayout, size: int) -> NDArray[np.uint32]:
    """Reads the checksums behind the chunks, which are in order and begin the file."""
    if size != chunks * (layout.chunk_bytes + 4) + layout.index_bytes:
        raise ValueError(f"its {size:,} bytes are not those of {chunks:,} chunks")
    file.seek(chunks * layout.chunk_bytes)
    return np.frombuffer(file.read(4 * chunks), "<u4")


def _plain_dtype(name: object, codecs: object) -> np.dtype[Any] | None:
    """Returns None if the bytes of a chunk are not the rows as numpy has them."""
    if not re.fullmatch(r"bool|u?int(8|16|32|64)|float(16|32|64)", str(name)):
        return None
    dtype = np.dtype(str(name)).newbyteorder("<")
    return dtype if codecs == [PLAIN] or (codecs == [{"name": "bytes"}] and dtype.itemsize == 1) else None
