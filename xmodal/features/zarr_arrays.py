"""One Zarr v3 array of equal rows: its layout, its shards, and a reader that maps all of them as one flat ndarray.

A shard as we write it is uncompressed and in order, so that it can be mapped, and any Zarr v3 reader opens it:

    chunk 0 | chunk 1 | … | crc32c of each chunk | offset and length of each chunk | crc32c of those

Shards may be short: chunks after the last row are marked as not there and take no bytes. The checksums lie where other
readers see a gap; here a chunk is checked the first time that one of its rows is read, and never again. A checksum is
of the chunk's number too: a shard that lies in another's place is found like damage.

What others wrote is read too. Where chunks are uncompressed but in another order, or left out because they hold the
fill value alone, rows are copied one by one. All else is decoded by zarr-python: right, and slow; for archives only.
"""

import ctypes
import functools
import json
import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import Any, BinaryIO, Protocol
from weakref import finalize

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray

from xmodal.errors import UserError

READ_AROUND = 64 * 1024  # what the kernel reads beside a page helps larger rows, and drives smaller ones out of memory
LINE = 64  # bytes of a cache line
HUGE = 2 * 1024 * 1024  # mappings start on such an address, so that the kernel may use huge pages
NO_CHUNK = 2**64 - 1  # offset and length, in a shard's index, of a chunk that is not there
CHECKSUMS = {"checksums": "crc32c of each chunk's number, as 8 bytes, and the chunk; between the last and the index"}
PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}
KEYS = ({"name": "default", "configuration": {"separator": "/"}}, {"name": "default"})
INDEX_CODECS = [PLAIN, {"name": "crc32c"}]
CURE = (
    "`xmodal verify --forget` removes it where it was built, a copy in a cache is yours to remove; then make it again"
)
MUCH = 1024 * 1024  # bytes of a batch from which a second thread is worth its call
PROBES = 4  # rows of a batch that are asked for before it is copied: is the file in memory?


@dataclass(frozen=True)
class Layout:
    """What <name>/zarr.json says of an array that can be mapped: every chunk holds whole rows."""

    rows: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    shard_rows: int
    fill: object = 0
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
        """How many chunks a shard has rows in; the last one may be short."""
        return -(-min(self.shard_rows, self.rows - shard * self.shard_rows) // self.chunk_rows)

    def metadata(self) -> dict[str, object]:
        """zarr.json of an array as we write it."""
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
    def of(array: dict[str, Any]) -> "Layout | None":
        """None where an array cannot be mapped: it is compressed, not sharded, or a chunk does not hold whole rows."""
        rows, *row_shape = array["shape"]
        codecs, grid = array["codecs"], array["chunk_grid"]["configuration"]["chunk_shape"]
        if [codec["name"] for codec in codecs] != ["sharding_indexed"]:
            return None
        sharding = codecs[0]["configuration"]
        lengths = [rows, *row_shape, *sharding["chunk_shape"], *grid]
        if any(type(length) is not int or length < 0 for length in lengths) or not all(
            (*sharding["chunk_shape"], *grid)
        ):
            raise ValueError(f"no array has the lengths {lengths}")
        if len(grid) != len(sharding["chunk_shape"]) or grid[0] % sharding["chunk_shape"][0]:
            raise ValueError("its shards are not whole chunks")
        whole_rows = sharding["chunk_shape"][1:] == row_shape and grid[1:] == row_shape and 0 not in row_shape
        dtype = _plain_dtype(array["data_type"], sharding["codecs"])
        usual = sharding["index_codecs"] == INDEX_CODECS and array["chunk_key_encoding"] in KEYS
        if not whole_rows or dtype is None or not usual or isinstance(array["fill_value"], str):
            return None
        return Layout(
            *(rows, tuple(row_shape), dtype, sharding["chunk_shape"][0], grid[0]),
            fill=array["fill_value"],
            checksums=array.get("attributes", {}).get("checksums") == CHECKSUMS["checksums"],
            index_first=sharding.get("index_location", "end") == "start",
        )


class ShardWriter:
    """Streams one shard: rows in, chunks and their checksums out; only the checksums are held.

    A number that is not finite is a UserError with its row, counted from `first`.
    """

    def __init__(self, file: BinaryIO, layout: Layout, name: str, first: int) -> None:
        self._file, self._layout, self._name, self._first = file, layout, name, first
        self._chunk = first // layout.shard_rows * layout.shard_chunks  # the shard's first, of the array
        self._checksums = [_numbered(self._chunk)]  # the last one is of the chunk in work
        self._written = 0  # bytes

    def append(self, rows: NDArray[Any], whose: str | None = None) -> None:
        """In pieces that stay in the processor's cache from the first look to the last; `whose` is for a message.

        They end where the file's huge pages do: what the system keeps of the file can then be read faster.
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
        self._file.write(_index(self._layout, len(checksums)))

    def _write(self, data: NDArray[np.uint8]) -> None:
        data.flags.writeable = False  # or its checksum would be refused
        self._file.write(data.data)
        while len(data):
            room = self._layout.chunk_bytes - self._written % self._layout.chunk_bytes
            part, data = data[:room], data[room:]
            self._checksums[-1] = extend(self._checksums[-1], part)
            self._written += len(part)
            if len(part) == room:
                self._checksums.append(_numbered(self._chunk + len(self._checksums)))


def all_finite(numbers: NDArray[Any]) -> bool:
    """Ten times as fast as numpy's isfinite on half precision: the exponents are compared, as integers.

    Read as signed integers, what is infinite or NaN and positive is the largest; as unsigned ones, what is negative.
    """
    if numbers.dtype.kind != "f" or not numbers.size:
        return True
    signed, unsigned = numbers.view(f"i{numbers.itemsize}"), numbers.view(f"u{numbers.itemsize}")
    infinite = np.array([np.inf, -np.inf], numbers.dtype)
    positive, negative = infinite.view(signed.dtype)[0], infinite.view(unsigned.dtype)[1]
    return bool(signed.max() < positive and unsigned.max() < negative)


class Rows(Protocol):
    """The rows of an array, wherever and however they lie."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """`rows` lie within the array; `out` has their shape and dtype."""


@dataclass(frozen=True, eq=False)
class Shard:
    """A shard's file on this machine, once its index was read and found whole."""

    path: str
    starts: NDArray[np.int64]  # of every chunk, in the file; below zero where there is none
    checksums: NDArray[np.uint32] | None
    in_order: int | None  # chunks, where they begin the file one after the other and none is left out

    @staticmethod
    def read(path: str, layout: Layout) -> "Shard":
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
        return Shard(path, starts, checksums, chunks if in_order else None)

    def holds(self, chunks: int) -> bool:
        """At least the first so many, in order."""
        return self.in_order is not None and self.in_order >= chunks


class MappedRows:
    """Shards that lie in order, one behind the other in one range of addresses: a single flat, read-only ndarray.

    `shard` gives one by its number, when a row of it is first wanted. Safe to fork: mappings stay. A file that is
    cut off while it is mapped ends the process (SIGBUS), as it does with np.memmap; outputs are never changed in place.
    """

    def __init__(self, layout: Layout, shard: Callable[[int], Shard]) -> None:
        self.layout, self._shard = layout, shard
        if layout.shard_bytes % mmap.PAGESIZE:
            rows = math.lcm(layout.row_bytes, mmap.PAGESIZE) // layout.row_bytes
            raise UserError(
                f"shards of {layout.shard_rows:,} rows do not end on this machine's pages of {mmap.PAGESIZE:,} bytes: "
                f"build them with rows_per_shard a multiple of {rows:,}"
            )
        self._space = _Addresses(layout.shards * layout.shard_bytes)
        self._bytes = np.asarray(self._space)
        self._values = self._bytes.view(layout.dtype).reshape(-1, *layout.row_shape)
        self._is_small = layout.row_bytes < READ_AROUND
        self._mapped = np.zeros(layout.shards, bool)
        self._paths = [""] * layout.shards
        chunks = layout.shards * layout.shard_chunks
        self._unchecked = np.zeros(chunks, bool)
        self._checksums = np.empty(chunks, np.uint32)  # both take memory only where a shard is mapped

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.layout.rows, *self.layout.row_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

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
        if not self._mapped.all():
            shards = np.unique(rows // self.layout.shard_rows)
            for shard in shards[~self._mapped[shards]].tolist():
                self.map(shard)
        chunks = rows // self.layout.chunk_rows
        fresh = self._unchecked[chunks]
        unread = np.unique(chunks[fresh]).tolist() if fresh.any() else []
        is_warm = self._in_memory(rows)
        if unread or not is_warm:
            self._ask_for(unread, np.unique(rows[~fresh]).tolist())
        if not is_warm:
            self._receive(rows, out)
            return
        for chunk in unread:
            self._check(chunk)
        _copy(self._values, rows, out)

    def run(self, first: int, stop: int) -> NDArray[Any]:
        """Rows within one shard as they lie there, one behind the other, checked as `take` does; nothing is copied."""
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

    def _in_memory(self, rows: NDArray[np.int64]) -> bool:
        """As far as a look at some of them tells."""
        size = self.layout.row_bytes
        return self._space.in_memory(rows[:: max(1, len(rows) // PROBES)] * size + size // 2)

    def _ask_for(self, chunks: list[int], rows: list[int]) -> None:
        """All that a batch needs from a cold disk, at once: a fault at a time the disk would wait for us."""
        for size, places in ((self.layout.chunk_bytes, chunks), (self.layout.row_bytes, rows)):
            for place in places:
                self._space.will_need(place * size, size)

    def _receive(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Row by row, as the disk has them: one is checked and copied while others arrive."""
        for place in np.argsort(rows).tolist():
            chunk = int(rows[place]) // self.layout.chunk_rows
            if self._unchecked[chunk]:
                self._check(chunk)
            out[place] = self._values[rows[place]]

    def _check(self, chunk: int) -> None:
        """The checksum of a chunk that nobody has read yet."""
        size = self.layout.chunk_bytes
        if extend(_numbered(chunk), self._bytes[chunk * size : (chunk + 1) * size]) != self._checksums[chunk]:
            first, stop = chunk * self.layout.chunk_rows, (chunk + 1) * self.layout.chunk_rows
            rows = f"row {first}" if stop == first + 1 else f"one of the rows {first} to {stop - 1}"
            path = self._paths[first // self.layout.shard_rows]
            raise UserError(f"{path} is damaged: {rows} is not what was written; {CURE}")
        self._unchecked[chunk] = False


class ScatteredRows:
    """Shards of others: chunks in any order and place, those that hold the fill value alone often left out."""

    def __init__(self, layout: Layout, shards: list[Shard | None]) -> None:
        self.layout = layout
        lengths = [-(-os.path.getsize(shard.path) // mmap.PAGESIZE) * mmap.PAGESIZE if shard else 0 for shard in shards]
        offsets = np.cumsum([0, *lengths])
        self._space = _Addresses(int(offsets[-1]))
        self._starts = np.full(len(shards) * layout.shard_chunks, -1, np.int64)
        self._shards = shards
        for number, shard in enumerate(shards):
            if shard is not None:
                self._space.place(int(offsets[number]), shard.path, os.path.getsize(shard.path))
                first = number * layout.shard_chunks
                here = np.where(shard.starts < 0, -1, shard.starts + offsets[number])
                self._starts[first : first + layout.shard_chunks] = here
        self._bytes = np.asarray(self._space)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.layout.rows, *self.layout.row_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    def lacking(self) -> str | None:
        """The first file that has not all chunks of its rows."""
        shards = enumerate(self._shards)
        lack = (s.path for number, s in shards if s and (s.starts[: self.layout.chunks_of(number)] < 0).any())
        return next(lack, None)

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        layout = self.layout
        for chunk in np.unique(rows // layout.chunk_rows).tolist() if layout.checksums else ():
            self._check(*divmod(chunk, layout.shard_chunks))
        starts = self._starts[rows // layout.chunk_rows]
        places = np.where(starts < 0, -1, starts + rows % layout.chunk_rows * layout.row_bytes)
        for to, place in enumerate(places.tolist()):
            if place < 0:
                out[to] = layout.fill
            else:
                row = self._bytes[place : place + layout.row_bytes]
                out[to] = np.frombuffer(row, layout.dtype).reshape(layout.row_shape)

    def _check(self, number: int, chunk: int) -> None:
        """Every time: what we wrote is read here only where its shards are short and somebody wants the gaps."""
        shard, size = self._shards[number], self.layout.chunk_bytes
        in_array = number * self.layout.shard_chunks + chunk
        start = self._starts[in_array]
        if shard is None or shard.checksums is None or start < 0:
            return
        if extend(_numbered(in_array), self._bytes[start : start + size]) != shard.checksums[chunk]:
            raise UserError(f"{shard.path} is damaged: chunk {chunk} is not what was written; {CURE}")


class DecodedRows:
    """Any other array, through zarr-python."""

    def __init__(self, folder: str) -> None:
        try:
            import zarr  # only archives need it
        except ImportError:
            raise UserError(
                f"{folder} is not stored plainly, and to decode it takes zarr-python: pip install zarr"
            ) from None
        array = zarr.open_array(folder, mode="r")
        self._array = array
        self.shape, self.dtype = array.shape, np.dtype(array.dtype)

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        out[...] = self._array.oindex[rows]


def open_array(folder: str) -> Rows:
    """Any Zarr v3 array in a local folder, whoever wrote it. What a writer left out reads as the fill value."""
    try:
        with open(f"{folder}/zarr.json", "rb") as file:
            about = json.load(file)
        layout = Layout.of(about)
    except FileNotFoundError:
        raise UserError(f"{folder} is no Zarr v3 array: it has no zarr.json") from None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{folder}/zarr.json describes no array ({error!r})") from error
    if layout is None:
        return DecodedRows(folder)
    paths = [f"{folder}/{layout.shard_key(shard)}" for shard in range(layout.shards)]
    if layout.checksums and (missing := [path for path in paths if not os.path.exists(path)]):
        raise UserError(f"{missing[0]} is missing: xmodal wrote this array, and would have written that too; {CURE}")
    shards = [Shard.read(path, layout) if os.path.exists(path) else None for path in paths]
    whole = [shard for number, shard in enumerate(shards) if shard and shard.holds(layout.chunks_of(number))]
    if len(whole) < len(shards) or layout.shard_bytes % mmap.PAGESIZE:
        return ScatteredRows(layout, shards)
    rows = MappedRows(layout, whole.__getitem__)
    rows.map_all()
    return rows


def buffer(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Memory to copy rows into, on a cache line. What np.empty gives begins 16 bytes after one.

    Rows begin on a page, and a processor that stores a little behind where it loads waits for itself: the same copy
    into a buffer of np.empty takes two to three times as long.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -room.ctypes.data % LINE
    found: NDArray[Any] = room[start : start + size].view(dtype).reshape(shape)
    return found


def _copy(values: NDArray[Any], rows: NDArray[np.int64], out: NDArray[Any]) -> None:
    """By two threads where there is much: one core alone does not use all that the memory gives.

    Threads that a caller has started, such as a loader's, copy alone: there are others beside them.
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
    """A range of addresses without memory, into which files are mapped; as an ndarray it is read-only bytes."""

    def __init__(self, size: int) -> None:
        self._length = size + HUGE
        self._whole = _map(None, self._length, _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        self._start = -(-self._whole // HUGE) * HUGE
        unmapped = finalize(self, _LIBC.munmap, self._whole, self._length)
        unmapped.atexit = False  # a thread may still be reading
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (self._start, True)}

    def place(self, offset: int, path: str, size: int, alone: bool = False) -> None:
        """The first bytes of a file; beyond them there is nothing to be read. `alone`: a page brings no neighbours."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if size:
                _map(self._start + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | _AT_THIS_ADDRESS, descriptor)
            if alone:
                _LIBC.madvise(self._start + offset, size, mmap.MADV_RANDOM)
        finally:
            os.close(descriptor)

    def in_memory(self, offsets: NDArray[np.int64]) -> bool:
        """Whether the pages of bytes are there, so that reading waits for no disk; of others' files always yes."""
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
    """Python's own mmap cannot map to a given address."""
    found = _LIBC.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {size:,} bytes cannot be mapped into memory")
    return int(found)


def _index(layout: Layout, chunks: int) -> bytes:
    index = np.full((layout.shard_chunks, 2), NO_CHUNK, "<u8")
    index[:chunks, 0] = np.arange(chunks) * layout.chunk_bytes
    index[:chunks, 1] = layout.chunk_bytes
    return _with_checksum(index.tobytes())


def _numbered(chunk: int) -> int:
    """What the checksum of a chunk begins with."""
    return int(extend(0, chunk.to_bytes(8, "little")))


def _with_checksum(data: bytes) -> bytes:
    return data + int(extend(0, data)).to_bytes(4, "little")


def _read_index(data: bytes, layout: Layout, size: int) -> NDArray[np.int64]:
    """Where each chunk starts, -1 where there is none."""
    if len(data) < layout.index_bytes or data != _with_checksum(data[:-4]):
        raise ValueError("it does not hold the index of its chunks")
    offsets, lengths = np.frombuffer(data[:-4], "<u8").reshape(-1, 2).T
    there = (offsets != NO_CHUNK) | (lengths != NO_CHUNK)
    starts = np.where(there, offsets, 0).astype(np.int64)
    if (
        (lengths[there] != layout.chunk_bytes).any()
        or (starts < 0).any()
        or (starts > size - layout.chunk_bytes)[there].any()
    ):
        raise ValueError("its index points outside of it")
    return np.where(there, starts, -1)


def _read_checksums(file: BinaryIO, chunks: int, layout: Layout, size: int) -> NDArray[np.uint32]:
    """They follow the chunks, which are in order and begin the file."""
    if size != chunks * (layout.chunk_bytes + 4) + layout.index_bytes:
        raise ValueError(f"its {size:,} bytes are not those of {chunks:,} chunks")
    file.seek(chunks * layout.chunk_bytes)
    return np.frombuffer(file.read(4 * chunks), "<u4")


def _plain_dtype(name: object, codecs: object) -> np.dtype[Any] | None:
    """None where the bytes of a chunk are not the rows as numpy has them."""
    known = {"bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))}
    if not isinstance(name, str) or name not in known | {"float16", "float32", "float64"}:
        return None
    dtype = np.dtype(name).newbyteorder("<")
    return dtype if codecs == [PLAIN] or (codecs == [{"name": "bytes"}] and dtype.itemsize == 1) else None
