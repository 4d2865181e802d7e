"""Feature arrays: Zarr v3 arrays of equal rows, written in shards and read in chunks.

What a stage's output directory holds of one, beside stage.json, units.tsv and complete.json:

    zarr.json                   the group: its attributes name the feature and say what made it
    values/zarr.json            the array: rows, the shape of one, dtype, chunks and shards
    values/c/<shard>/0/…/0      a shard: every chunk in order, uncompressed, then their index and its crc32c
    rows.parquet                row, id: an item's row is its place among the planned ids

Any Zarr v3 reader opens it. Only this one refuses rows that are absent: their values are zeros.
"""

import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google_crc32c import value as crc32c
from numpy.typing import ArrayLike, NDArray

from xmodal.identity import canonical_json
from xmodal.outputs import Output
from xmodal.storage import LocalStorage, open_storage
from xmodal.trouble import Trouble

Dtype = Literal["float16", "float32", "uint8", "int32", "int64"]

KIB, MIB = 1024, 1024 * 1024
LARGE_ROW = 64 * KIB  # from here on a chunk is one row, so that a random read touches exactly one
CHUNK, SHARD = 256 * KIB, 256 * MIB
PAGE = 4 * KIB  # shards lie end to end in one mapping, so each must end on a page
LAYOUT = 1
GROUP, ARRAY, ROWS = "zarr.json", "values/zarr.json", "rows.parquet"
NO_CHUNK = 2**64 - 1  # offset and length, in a shard's index, of a chunk that is not there
CURE = "`xmodal verify --forget` removes it, then build again"


@dataclass(frozen=True)
class FeatureSpec:
    """What one feature array is. A fixed array has one row per item; of a ragged one each item owns a run of rows.

    So 36 regions are one row of (36, 2048), the frames of a clip ragged rows of (2048,), JPEG bytes ragged rows of ().
    Chunk and shard lengths left at None follow from the row's bytes, also after `dataclasses.replace`.
    """

    name: str
    row_shape: tuple[int, ...]
    dtype: Dtype = "float16"
    ragged: bool = False
    rows_per_chunk: int | None = None
    rows_per_shard: int | None = None

    def __post_init__(self) -> None:
        self._check_row()
        self._check_layout()

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize

    @property
    def shard_rows(self) -> int:
        if self.rows_per_shard is not None:
            return self.rows_per_shard
        return max(_power_of_two_within(SHARD // self.row_bytes), self._rows_to_fill_pages)

    @property
    def chunk_rows(self) -> int:
        if self.rows_per_chunk is not None:
            return self.rows_per_chunk
        if self.row_bytes >= LARGE_ROW:
            return 1
        return min(_power_of_two_within(CHUNK // self.row_bytes), self.shard_rows)

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * self.row_bytes

    @property
    def _rows_to_fill_pages(self) -> int:
        return PAGE // math.gcd(PAGE, self.row_bytes)

    def _check_row(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise ValueError(f"feature name {self.name!r} must be lower-case letters, digits, '_' or '-'")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"{self.name}: no dtype {self.dtype!r}; there are: {', '.join(get_args(Dtype))}")
        if not isinstance(self.row_shape, tuple) or not all(isinstance(n, int) and n > 0 for n in self.row_shape):
            raise ValueError(f"{self.name}: row_shape must be a tuple of positive integers, not {self.row_shape!r}")

    def _check_layout(self) -> None:
        for length in (self.rows_per_chunk, self.rows_per_shard):
            if length is not None and length < 1:
                raise ValueError(f"{self.name}: a chunk or shard of {length} rows; it needs at least one")
        if self.shard_rows % self.chunk_rows:
            raise ValueError(f"{self.name}: a shard of {self.shard_rows} rows is not whole chunks of {self.chunk_rows}")
        if self.shard_rows % self._rows_to_fill_pages:
            raise ValueError(
                f"{self.name}: a shard of {self.shard_rows} rows of {self.row_bytes} bytes does not fill whole pages "
                f"of {PAGE} bytes; take a multiple of {self._rows_to_fill_pages} rows"
            )


def _power_of_two_within(rows: int) -> int:
    """At least 1. Of all lengths that fit, a power of two aligns a shard's end best."""
    return 1 << (max(rows, 1).bit_length() - 1)


def shard_file(spec: FeatureSpec, shard: int) -> str:
    return f"values/c/{shard}" + "/0" * len(spec.row_shape)


def shard_ranges(spec: FeatureSpec, rows: int) -> list[range]:
    """The rows of each shard; the last one may be short."""
    return [range(start, min(start + spec.shard_rows, rows)) for start in range(0, rows, spec.shard_rows)]


def write_shard(file: BinaryIO, spec: FeatureSpec, rows: range, blocks: Iterable[NDArray[Any]]) -> None:
    """Streams one shard: blocks of any number of rows, which together are `rows` of the array; no more is held.

    A value that is not finite is a Trouble that names its row; every other misfit is a ValueError.
    """
    if not 0 < len(rows) <= spec.shard_rows or rows.start % spec.shard_rows or spec.ragged:
        raise ValueError(f"{spec.name}: {rows} is no shard of an array of fixed rows, {spec.shard_rows} a shard")
    row = rows.start
    for block in blocks:
        _check_block(spec, block, row, rows.stop)
        if block.size:
            file.write(np.ascontiguousarray(block).data.cast("B"))
        row += len(block)
    if row != rows.stop:
        raise ValueError(f"{spec.name}: row {row} and those after it up to {rows.stop} never came")
    file.write(bytes(-len(rows) % spec.chunk_rows * spec.row_bytes))
    file.write(_shard_index(spec, len(rows)))


def index_files(spec: FeatureSpec, ids: Sequence[str], provenance: Mapping[str, object]) -> dict[str, bytes]:
    """Name and bytes of all but the shards. `provenance` is plain JSON: the network, its weights, what was done."""
    group = {"feature": {"layout": LAYOUT, "name": spec.name}, "provenance": provenance}
    return {
        GROUP: canonical_json({"zarr_format": 3, "node_type": "group", "attributes": group}),
        ROWS: _rows_table(ids),
        ARRAY: canonical_json(_array(spec, len(ids))),
    }


class FeatureStore:
    """A finished feature array, read by id or by row; safe to fork and to pickle.

    Which rows are absent is not in the array but known from the failures of the units that made it: every row that
    failed there is refused here, never given as zeros. Opening checks the directory, the size of every shard and its
    index; `xmodal verify` checks the values. In `spec` the lengths of chunks and shards are always given.
    """

    def __init__(self, source: str | Output) -> None:
        self.output = source if isinstance(source, Output) else _output_at(source)
        if not self.output.complete:
            raise Trouble(f"{self.output.where} holds no finished features: build them, or name the output's directory")
        self.spec, self.provenance, rows = _read_metadata(self.output)
        self.ids = _read_ids(self.output, rows)
        self.absent = frozenset(id for unit in self.output.units() for id, _, _ in unit.failures)
        self._rows = {id: row for row, id in enumerate(self.ids)}
        self._refused = np.fromiter((id in self.absent for id in self.ids), bool, rows)
        ranges = enumerate(shard_ranges(self.spec, rows))
        self._shards = [_map_shard(self.output, self.spec, shard, len(rows)) for shard, rows in ranges]

    def __reduce__(self) -> tuple[type["FeatureStore"], tuple[str]]:
        return FeatureStore, (self.output.where,)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The row of each id, in the order given; ids that are unknown or absent are refused by name."""
        wanted = list(ids)
        if unknown := [id for id in wanted if id not in self._rows]:
            raise Trouble(f"{self.output.where} has no row for {_some(unknown)}")
        rows = np.fromiter((self._rows[id] for id in wanted), np.int64, len(wanted))
        self._refuse_absent(rows)
        return rows

    def take(self, rows: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The values of rows, in the order given; `out` is filled and returned where it is given."""
        wanted = self._checked(rows)
        if out is None:
            out = np.empty((len(wanted), *self.spec.row_shape), self.spec.dtype)
        if (out.shape, out.dtype) != ((len(wanted), *self.spec.row_shape), np.dtype(self.spec.dtype)):
            raise ValueError(f"out is {out.shape} {out.dtype}, not {(len(wanted), *self.spec.row_shape)} of this store")
        shards = wanted // self.spec.shard_rows
        for shard in np.unique(shards):
            places = np.flatnonzero(shards == shard)
            out[places] = self._shards[shard][wanted[places] - shard * self.spec.shard_rows]
        return out

    def read(self, ids: Iterable[str]) -> NDArray[Any]:
        return self.take(self.rows(ids))

    def _checked(self, rows: ArrayLike) -> NDArray[np.int64]:
        given = np.asarray(rows)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(f"rows are a sequence of integers, not {given.ndim} dimensions of {given.dtype}")
        outside = given[(given < 0) | (given >= len(self.ids))]
        if outside.size:
            raise IndexError(f"row {outside[0]} is outside the {len(self.ids)} rows of {self.output.where}")
        wanted = given.astype(np.int64)
        self._refuse_absent(wanted)
        return wanted

    def _refuse_absent(self, rows: NDArray[np.int64]) -> None:
        if self._refused[rows].any():
            ids = [self.ids[row] for row in rows[self._refused[rows]]]
            raise Trouble(f"{self.output.where} has no features of {_some(ids)}: leave out what is in `.absent`")


def _check_block(spec: FeatureSpec, block: NDArray[Any], row: int, stop: int) -> None:
    """`row` is the block's first."""
    if (block.shape[1:], block.dtype) != (spec.row_shape, np.dtype(spec.dtype)) or block.ndim == 0:
        here = f"{block.shape[1:]} {block.dtype}"
        raise ValueError(f"{spec.name}: rows from {row} on are {here}, not {spec.row_shape} {spec.dtype}")
    if row + len(block) > stop:
        raise ValueError(f"{spec.name}: row {stop} and those after it are more than the shard was to have")
    if block.dtype.kind == "f" and not np.isfinite(block).all():
        row += int(np.flatnonzero(~np.isfinite(block).reshape(len(block), -1).all(axis=1))[0])
        raise Trouble(f"{spec.name}: row {row} is NaN or infinite: mend the weights, or take float32 if it overflows")


def _shard_index(spec: FeatureSpec, rows: int) -> bytes:
    """Offset and length of every chunk; those after the last row are not there."""
    present = math.ceil(rows / spec.chunk_rows)
    index = np.full((spec.shard_rows // spec.chunk_rows, 2), NO_CHUNK, "<u8")
    index[:present, 0] = np.arange(present) * spec.chunk_bytes
    index[:present, 1] = spec.chunk_bytes
    return index.tobytes() + int(crc32c(index.tobytes())).to_bytes(4, "little")


def _array(spec: FeatureSpec, rows: int) -> dict[str, object]:
    """values/zarr.json."""
    plain = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [spec.chunk_rows, *spec.row_shape],
        "codecs": [plain],
        "index_codecs": [plain, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *spec.row_shape],
        "data_type": spec.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [spec.shard_rows, *spec.row_shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


def _rows_table(ids: Sequence[str]) -> bytes:
    if len(set(ids)) < len(ids):
        raise ValueError("an id has two rows")
    columns = {"row": pa.array(range(len(ids)), pa.int64()), "id": pa.array(ids, pa.string())}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False, row_group_size=65_536)
    return file.getvalue()


def _output_at(path: str) -> Output:
    root, name = os.path.split(path.rstrip("/"))
    return Output(open_storage(root or "."), name)


def _read_metadata(output: Output) -> tuple[FeatureSpec, dict[str, Any], int]:
    """Only what `index_files` writes is read: anything else of the same format is refused by its file."""
    group, array = _read_json(output, GROUP), _read_json(output, ARRAY)
    try:
        rows, *row_shape = array["shape"]
        shard_rows = array["chunk_grid"]["configuration"]["chunk_shape"][0]
        chunk_rows = array["codecs"][0]["configuration"]["chunk_shape"][0]
        name, layout = group["attributes"]["feature"]["name"], group["attributes"]["feature"]["layout"]
        spec = FeatureSpec(name, tuple(row_shape), array["data_type"], False, chunk_rows, shard_rows)
        known = layout == LAYOUT and array == _array(spec, rows)
        provenance = dict(group["attributes"]["provenance"])
    except (LookupError, TypeError, ValueError) as error:
        raise Trouble(f"{output.where}/{ARRAY} is no feature array of this layout ({error!r}): {CURE}") from error
    if not known:
        raise Trouble(f"{output.where}/{ARRAY} is of another version of xmodal: use that, or build again")
    return spec, provenance, rows


def _read_json(output: Output, name: str) -> Any:
    with output.open(name) as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise Trouble(f"{output.where}/{name} is corrupt ({error}): {CURE}") from error


def _read_ids(output: Output, rows: int) -> tuple[str, ...]:
    with output.open(ROWS) as file:
        try:
            table = pq.read_table(file).to_pydict()
        except pa.ArrowInvalid as error:
            raise Trouble(f"{output.where}/{ROWS} is corrupt ({error}): {CURE}") from error
    if table.keys() != {"row", "id"} or table["row"] != list(range(rows)):
        raise Trouble(f"{output.where}/{ROWS} does not name the {rows} rows of {ARRAY} in order: {CURE}")
    return tuple(table["id"])


def _map_shard(output: Output, spec: FeatureSpec, shard: int, rows: int) -> NDArray[Any]:
    """Its rows without the padding and the index that follow them, whose crc is checked."""
    name = shard_file(spec, shard)
    if not isinstance(output.storage, LocalStorage):
        raise Trouble(f"{output.where} cannot be mapped into memory: copy it to a local folder and open that")
    with output.open(name) as file:
        file.seek(math.ceil(rows / spec.chunk_rows) * spec.chunk_bytes)
        if file.read() != _shard_index(spec, rows):
            raise Trouble(f"{output.where}/{name} does not end in the index of its {rows} rows: {CURE}")
    path = output.storage.path(f"{output.folder}/{name}")
    return np.asarray(np.memmap(path, spec.dtype, "r", shape=(rows, *spec.row_shape)))


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
