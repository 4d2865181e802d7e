"""Feature stores: Zarr v3 arrays with a row, or a run of rows, for every item; written in shards, mapped as a whole.

What a stage's output directory holds of one, beside stage.json, units.tsv and complete.json:

    zarr.json                       the group: its attributes name the arrays and say what made them
    rows.parquet                    row, id: an item's row is its place among the planned ids
    <name>/zarr.json                an array: rows, the shape of one, dtype, chunks and shards
    <name>/c/<shard>/0/…/0          a shard, as arrays.py describes it
    <name>_extents/c/<shard>/0      ragged arrays only: where each item's rows start, and how many they are

Any Zarr v3 reader opens it. Only this one refuses what is absent (its values are zeros) and what has changed.

Fixed arrays have a row an item. In a ragged one each shard belongs to so many items, and holds their rows one after
the other: it is as long as they need, ending before the capacity that its place among the rows is reckoned with. So
shards are written side by side, before anybody knows how long the items are.
"""

import hashlib
import io
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from xmodal.errors import UserError
from xmodal.features.zarr_arrays import PLAIN, Layout, MappedRows, Shard, ShardWriter, buffer
from xmodal.records.tables import read_columns
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output
from xmodal.root.storage import LocalStorage, open_storage

Dtype = Literal["float16", "float32", "uint8", "int32", "int64"]

KIB, MIB = 1024, 1024 * 1024
LARGE_ROW = 64 * KIB  # from here on a chunk is one row, so that a random read touches exactly one
CHUNK, SHARD = 256 * KIB, 256 * MIB
PAGE = 4 * KIB  # shards lie end to end in one mapping, so each must end on a page
CAPACITY = 1024 * MIB  # of a ragged shard: it takes no more room than its rows
ITEMS = 256
MOST_SHARDS = 15_000  # a process may have 65,530 mappings; an isolated one counts twice, and a store may be open twice
LAYOUT = 3  # 2: checksums were of the chunks alone
GROUP, ROWS = "zarr.json", "rows.parquet"
CACHE = "~/.cache/xmodal/shards"
CURE = "`xmodal verify --forget` removes it, then build again"


@dataclass(frozen=True)
class FeatureSpec:
    """What one feature array is. A fixed array has one row per item; of a ragged one each item owns a run of rows.

    So 36 regions are one row of (36, 2048), the frames of a clip ragged rows of (2048,), JPEG bytes ragged rows of ().
    Lengths left at None follow from the row's bytes, also after `dataclasses.replace`. Slow extractors want short
    shards, because a shard is what a killed worker loses.
    """

    name: str
    row_shape: tuple[int, ...]
    dtype: Dtype = "float16"
    ragged: bool = False
    rows_per_chunk: int | None = None
    rows_per_shard: int | None = None  # of a ragged array: the most rows that the items of a shard may have together
    items_per_shard: int | None = None  # of ragged arrays only

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
        size = CAPACITY if self.ragged else SHARD
        return max(_power_of_two_within(size // self.row_bytes), self._rows_to_fill_pages)

    @property
    def shard_items(self) -> int:
        return (self.items_per_shard or ITEMS) if self.ragged else self.shard_rows

    @property
    def chunk_rows(self) -> int:
        if self.rows_per_chunk is not None:
            return self.rows_per_chunk
        if self.row_bytes >= LARGE_ROW:
            return 1
        return min(_power_of_two_within(CHUNK // self.row_bytes), self.shard_rows)

    def layout(self, items: int) -> Layout:
        """Of the whole array. A ragged one has the rows that its items may have at most: other readers see zeros."""
        rows = -(-items // self.shard_items) * self.shard_rows if self.ragged else items
        return Layout(rows, self.row_shape, np.dtype(self.dtype), self.chunk_rows, self.shard_rows)

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
        for length in (self.rows_per_chunk, self.rows_per_shard, self.items_per_shard):
            if length is not None and length < 1:
                raise ValueError(f"{self.name}: a chunk or shard of {length} rows or items; it needs at least one")
        if self.items_per_shard is not None and not self.ragged:
            raise ValueError(f"{self.name}: items_per_shard is for ragged arrays; here an item is a row")
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
    return f"{spec.name}/{spec.layout(0).shard_key(shard)}"


def extents_file(spec: FeatureSpec, shard: int) -> str:
    return f"{spec.name}_extents/c/{shard}/0"


def shard_ranges(spec: FeatureSpec, items: int) -> list[range]:
    """The items of each shard; the last one may have fewer. More shards than can be mapped are refused."""
    starts = range(0, items, spec.shard_items)
    if len(starts) > MOST_SHARDS:
        raise UserError(
            f"{spec.name}: {len(starts):,} shards cannot all be mapped ({MOST_SHARDS:,} can): make them longer"
        )
    return [range(start, min(start + spec.shard_items, items)) for start in starts]


def write_shard(file: BinaryIO, spec: FeatureSpec, rows: range, blocks: Iterable[NDArray[Any]]) -> None:
    """Streams one shard: blocks of any number of rows, which together are `rows` of the array; no more is held.

    A value that is not finite is a UserError that names its row; every other misfit is a ValueError.
    """
    if not 0 < len(rows) <= spec.shard_rows or rows.start % spec.shard_rows or spec.ragged:
        raise ValueError(f"{spec.name}: {rows} is no shard of an array of fixed rows, {spec.shard_rows} a shard")
    writer, row = ShardWriter(file, spec.layout(rows.stop), spec.name, rows.start), rows.start
    for block in blocks:
        _check_block(spec, block, f"rows from {row} on")
        if row + len(block) > rows.stop:
            raise ValueError(f"{spec.name}: row {rows.stop} and those after it are more than the shard was to have")
        writer.append(block)
        row += len(block)
    if row != rows.stop:
        raise ValueError(f"{spec.name}: row {row} and those after it up to {rows.stop} never came")
    writer.finish()


def write_ragged_shard(file: BinaryIO, spec: FeatureSpec, items: range, arrays: Iterable[NDArray[Any]]) -> bytes:
    """Streams the rows of each item, (length, …), of length 0 where it is absent; returns what `extents_file` holds."""
    if not 0 < len(items) <= spec.shard_items or items.start % spec.shard_items or not spec.ragged:
        raise ValueError(f"{spec.name}: {items} is no shard of a ragged array, {spec.shard_items} items a shard")
    first = row = items.start // spec.shard_items * spec.shard_rows
    writer, written = ShardWriter(file, spec.layout(items.stop), spec.name, first), 0
    extents = np.zeros((spec.shard_items, 2), "<i8")
    for place, array in enumerate(arrays):
        if place == len(items):
            raise ValueError(f"{spec.name}: item {items.stop} and those after it are more than the shard was to have")
        _check_block(spec, array, f"the rows of item {items.start + place}")
        if row + len(array) > first + spec.shard_rows:
            raise UserError(
                f"{spec.name}: items {items.start} to {items.start + place} have more than the {spec.shard_rows:,} "
                "rows of a shard: set fewer items_per_shard or more rows_per_shard"
            )
        writer.append(array, f"item {items.start + place}")
        extents[place] = row, len(array)
        row, written = row + len(array), place + 1
    if written != len(items):
        raise ValueError(f"{spec.name}: item {items.start + written} and those after it up to {items.stop} never came")
    writer.finish()
    return extents.tobytes()


def index_files(
    specs: FeatureSpec | Sequence[FeatureSpec], ids: Sequence[str], provenance: Mapping[str, object]
) -> dict[str, bytes]:
    """Name and bytes of all but the shards. `provenance` is plain JSON: the network, its weights, what was done."""
    several = [specs] if isinstance(specs, FeatureSpec) else list(specs)
    names = [name for s in several for name in (s.name, *([f"{s.name}_extents"] if s.ragged else []))]
    if len(set(names)) < len(names):
        raise ValueError(f"two arrays of a store have one name: {', '.join(names)}")
    features = [{"name": s.name, "ragged": s.ragged, "items_per_shard": s.shard_items} for s in several]
    attributes = {"layout": LAYOUT, "features": features, "provenance": provenance}
    files = {
        GROUP: canonical_json({"zarr_format": 3, "node_type": "group", "attributes": attributes}),
        ROWS: _rows_table(ids),
    }
    for spec in several:
        files[f"{spec.name}/zarr.json"] = canonical_json(spec.layout(len(ids)).metadata())
        if spec.ragged:
            files[f"{spec.name}_extents/zarr.json"] = canonical_json(_extents_metadata(spec, len(ids)))
    return files


class FeatureStore:
    """One array of a finished feature store, read by id or by row; safe to fork and to pickle.

    Which rows are absent is not in the array but known from the failures of the units that made it: every row that
    failed there is refused here, never given as zeros, but for those of truncated pictures. Opening checks every file
    of the array but the values in its shards, and those are checked when they are first read. Shards of a remote store
    come to `cache` when they are first read, and stay.

    `name` may be left out: the first array of the store. In `spec` the lengths of chunks and shards are always given.
    """

    def __init__(self, source: str | Path | Output, name: str | None = None, cache: str = CACHE) -> None:
        self.output = source if isinstance(source, Output) else _output_at(str(source))
        if not self.output.complete:
            raise UserError(
                f"{self.output.where} holds no finished features: build them, or name the output's directory"
            )
        self.ids = _read_ids(self.output)
        self.spec, self.provenance, self.names = _read_metadata(self.output, name, len(self.ids))
        self.absent = frozenset(id for unit in self.output.units() for id in unit.absent)
        self._cache = str(Path(cache).expanduser())
        self._rows = {id: row for row, id in enumerate(self.ids)}
        self._refused = np.fromiter((id in self.absent for id in self.ids), bool, len(self.ids))
        self._process = os.getpid()
        self._extents = _read_extents(self.output, self.spec, len(self.ids)) if self.spec.ragged else None
        self._values = MappedRows(self.spec.layout(len(self.ids)), self._shard)
        if self._is_local:
            self._values.map_all()

    def __reduce__(self) -> tuple[type["FeatureStore"], tuple[str, str, str]]:
        return FeatureStore, (self.output.where, self.spec.name, self._cache)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: object) -> bool:
        """Whether there are features of an item: one that is absent has a row, and none."""
        return id in self._rows and id not in self.absent

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The row of each id, in the order given; ids that are unknown or absent are refused by name."""
        wanted = list(ids)
        if unknown := [id for id in wanted if id not in self._rows]:
            raise UserError(f"{self.output.where} has no row for {_some(unknown)}")
        rows = np.fromiter((self._rows[id] for id in wanted), np.int64, len(wanted))
        self._refuse_absent(rows)
        return rows

    def take(self, rows: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The values of rows, in the order given; `out` is filled and returned where it is given."""
        if self._extents is not None:
            raise TypeError(f"{self.spec.name} is ragged: take_padded gives its rows")
        wanted = self._checked(rows)
        out = _room(out, (len(wanted), *self.spec.row_shape), self.spec)
        self._values.take(wanted, out)
        return out

    def lengths(self, rows: ArrayLike) -> NDArray[np.int64]:
        """How many rows of a ragged array each item has."""
        return self._extent(rows)[:, 1]

    def run(self, row: int, begin: int, end: int) -> NDArray[Any]:
        """Of one item of a ragged array the rows from `begin` to `end`, as they are mapped: read-only, not copied."""
        start, length = self._extent([row])[0].tolist()
        if not 0 <= begin <= end <= length:
            raise IndexError(f"rows {begin} to {end} are outside the {length} rows of their item")
        return self._values.run(start + begin, start + end)

    def take_padded(
        self, rows: ArrayLike, places: NDArray[np.int64] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """(items, L, …) of a ragged array: every item whole and zeros after it, or of each item the rows at `places`.

        `places` are (items, L), within each item's length; `lengths` says how many of an item are its own.
        """
        extents_I2 = self._extent(rows)
        starts_I1, lengths_I1 = extents_I2[:, :1], extents_I2[:, 1:]
        places_IL = np.arange(lengths_I1.max(initial=0))[None] if places is None else places.astype(np.int64)
        if places is not None and (places.ndim != 2 or len(places) != len(extents_I2)):
            raise ValueError(f"places are (items, L) for {len(extents_I2)} items, not {places.shape}")
        beyond_IL = (places_IL < 0) | (places_IL >= lengths_I1)
        if places is not None and beyond_IL.any():
            item, place = np.argwhere(beyond_IL)[0]
            raise IndexError(f"place {places[item, place]} is outside the {lengths_I1[item, 0]} rows of its item")
        out = _room(out, (*beyond_IL.shape, *self.spec.row_shape), self.spec)
        inside_IL = starts_I1 + np.minimum(places_IL, np.maximum(lengths_I1 - 1, 0))
        inside_IL[lengths_I1[:, 0] == 0] = starts_I1[lengths_I1[:, 0] > 0][0] if lengths_I1.any() else 0
        if out.size:
            self._values.take(inside_IL.reshape(-1), out.reshape(-1, *self.spec.row_shape))
        out[beyond_IL] = 0
        return out

    def read(self, ids: Iterable[str]) -> Any:
        """(ids, …) as one array; of a ragged array a list, with (length, …) for each id."""
        rows = self.rows(ids)
        if self._extents is None:
            return self.take(rows)
        return [self.take_padded(rows[place : place + 1])[0] for place in range(len(rows))]

    def verify(self) -> None:
        """Reads every shard once: one that is not what was committed is a UserError that names it."""
        for shard in range(self._values.layout.shards):
            name = shard_file(self.spec, shard)
            with open(_local_file(self.output, name, self._cache), "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.output.checksums[name]:
                    raise UserError(f"{self.output.where}/{name} is not what was committed: {CURE}")

    @property
    def _is_local(self) -> bool:
        return isinstance(self.output.storage, LocalStorage)

    def _shard(self, shard: int) -> Shard:
        if os.getpid() != self._process:  # connections do not survive a fork
            self.output, self._process = _output_at(self.output.where), os.getpid()
        name, layout = shard_file(self.spec, shard), self._values.layout
        found = Shard.read(_local_file(self.output, name, self._cache), layout)
        if not self.spec.ragged and found.in_order != layout.chunks_of(shard):
            raise UserError(f"{self.output.where}/{name} does not hold its {layout.chunks_of(shard):,} chunks: {CURE}")
        if self._extents is not None:
            self._check_extents(shard, (found.in_order or 0) * layout.chunk_rows)
        return found

    def _check_extents(self, shard: int, rows: int) -> None:
        """Beyond the rows of a shard there is no memory: who reads there dies."""
        assert self._extents is not None
        first, size = shard * self.spec.shard_rows, self.spec.shard_items
        starts, lengths = self._extents[shard * size : (shard + 1) * size].T
        if (lengths < 0).any() or ((starts < first) | (starts - first > rows - lengths))[lengths > 0].any():
            where = f"{self.output.where}/{extents_file(self.spec, shard)}"
            raise UserError(f"{where} points outside of the {rows:,} rows of its shard: {CURE}")

    def _extent(self, rows: ArrayLike) -> NDArray[np.int64]:
        if self._extents is None:
            raise TypeError(f"{self.spec.name} has a row an item: take gives them")
        return self._extents[self._checked(rows)]

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
            raise UserError(f"{self.output.where} has no features of {_some(ids)}: leave out what is in `.absent`")


def _room(out: NDArray[Any] | None, shape: tuple[int, ...], spec: FeatureSpec) -> NDArray[Any]:
    if out is None:
        return buffer(shape, spec.dtype)
    if (out.shape, out.dtype) != (shape, np.dtype(spec.dtype)) or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.shape} {out.dtype}, not {shape} {spec.dtype}, contiguous")
    return out


def _check_block(spec: FeatureSpec, block: NDArray[Any], what: str) -> None:
    if (block.shape[1:], block.dtype) != (spec.row_shape, np.dtype(spec.dtype)) or block.ndim == 0:
        here = f"{block.shape[1:]} {block.dtype}"
        raise ValueError(f"{spec.name}: {what} are {here}, not {spec.row_shape} {spec.dtype}")


def _extents_metadata(spec: FeatureSpec, items: int) -> dict[str, object]:
    grid = {"chunk_shape": [spec.shard_items, 2]}
    return Layout(items, (2,), np.dtype("int64"), spec.shard_items, spec.shard_items).metadata() | {
        "chunk_grid": {"name": "regular", "configuration": grid},
        "codecs": [PLAIN],
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


def _read_metadata(output: Output, name: str | None, items: int) -> tuple[FeatureSpec, dict[str, Any], tuple[str, ...]]:
    """Only what `index_files` writes is read: anything else of the same format is refused by its file."""
    try:
        attributes = json.loads(output.read(GROUP))["attributes"]
        if attributes.get("layout") != LAYOUT:
            raise UserError(f"{output.where} is a store of another version of xmodal: use that, or build again")
        features = {feature["name"]: feature for feature in attributes["features"]}
        if name is not None and name not in features:
            raise UserError(f"{output.where} has no array {name!r}; there are: {', '.join(features)}")
        about = features[name or next(iter(features))]
        layout = Layout.of(json.loads(output.read(f"{about['name']}/zarr.json")))
        spec = _spec_of(about, layout)
        if spec.ragged:
            output.read(f"{spec.name}_extents/zarr.json")  # it says no more, but must be what was written
        if layout != spec.layout(items):
            raise ValueError(f"{layout} is not of {items} items")
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise UserError(f"{output.where} describes no feature array of this layout ({error!r}): {CURE}") from error
    return spec, dict(attributes["provenance"]), tuple(features)


def _spec_of(about: Mapping[str, Any], layout: Layout | None) -> FeatureSpec:
    if layout is None:
        raise ValueError("the array is not as this version writes it")
    dtype: Any = layout.dtype.name
    items = about["items_per_shard"] if about["ragged"] else None
    lengths = (layout.chunk_rows, layout.shard_rows, items)
    return FeatureSpec(about["name"], layout.row_shape, dtype, about["ragged"], *lengths)


def _read_ids(output: Output) -> tuple[str, ...]:
    table = read_columns(output, ROWS, "row", "id").to_pydict()
    if table["row"] != list(range(len(table["row"]))):
        raise UserError(f"{output.where}/{ROWS} does not name the rows in order: {CURE}")
    return tuple(table["id"])


def _read_extents(output: Output, spec: FeatureSpec, items: int) -> NDArray[np.int64]:
    shards = range(len(shard_ranges(spec, items)))
    data = b"".join(output.read(extents_file(spec, shard)) for shard in shards)
    return np.frombuffer(data, "<i8").reshape(-1, 2)[:items].astype(np.int64)


def _local_file(output: Output, name: str, cache: str) -> str:
    """Where a shard lies on this machine: a file of a remote store is fetched once, under the name of its checksum."""
    if isinstance(output.storage, LocalStorage):
        output.check(name)
        return output.storage.path(f"{output.folder}/{name}")
    size, sha256 = output.files[name], output.checksums[name]
    path = Path(cache, sha256[:2], sha256)
    if not path.exists() or path.stat().st_size != size:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{sha256}.{uuid.uuid4().hex}")
        try:
            with output.open(name) as source, temporary.open("xb") as file:
                found = _copy(source, file)
                file.flush()
                os.fsync(file.fileno())  # later it is trusted by its size
            if found != sha256:
                raise UserError(f"{output.where}/{name} is not what was committed: {CURE}")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return str(path)


def _copy(source: BinaryIO, target: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := source.read(MIB):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


def _some(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
