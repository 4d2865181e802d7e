"""Feature stores: Zarr v3 arrays with one or several rows for every item; written in shards, mapped as a whole.

A stage's output holds:

    zarr.json                       the group: its attributes name the arrays and say what made them
    rows.parquet                    row, id: an item's row is its position among the planned ids
    <name>/zarr.json                an array: number and shape of its rows, dtype, chunks and shards
    <name>/c/<shard>/0/…/0          a shard, as zarr_arrays.py describes it
    <name>_extents/c/<shard>/0      ragged arrays only: each item's first row and number of rows

Any Zarr v3 reader opens it. Only this one refuses absent items, whose values are zeros, and changed bytes.

A ragged shard has room for the most rows that a fixed number of items may have, but its file ends with its rows: so
shards are written side by side, before lengths are known.
"""

import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from xmodal.errors import UserError, few
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.zarr_arrays import MappedRows, OpenedShard, ShardWriter, buffer, read_checksums
from xmodal.records.tables import read_columns
from xmodal.root.files import copy_and_hash, new_file, sha256_of
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output
from xmodal.root.storage import LocalStorage, open_storage

MOST_SHARDS = 15_000  # a process may have 65,530 mappings; an isolated one counts twice, and a store may be open twice
LAYOUT = 4  # 2: checksums were of the chunks alone; 3: of their numbers, too
GROUP, ROWS = "zarr.json", "rows.parquet"
CACHE = "~/.cache/xmodal/shards"


def shard_file(spec: FeatureSpec, shard: int) -> str:
    return f"{spec.name}/c/{shard}" + "/0" * len(spec.row_shape)


def extents_file(spec: FeatureSpec, shard: int) -> str:
    return f"{spec.name}_extents/c/{shard}/0"


def shard_ranges(spec: FeatureSpec, items: int) -> list[range]:
    starts = range(0, items, spec.shard_items)
    if len(starts) > MOST_SHARDS:
        raise UserError(
            f"{spec.name}: {len(starts):,} shards, of which {MOST_SHARDS:,} can be mapped: make them longer"
        )
    return [range(start, min(start + spec.shard_items, items)) for start in starts]


def write_shard(file: BinaryIO, spec: FeatureSpec, rows: range, blocks: Iterable[NDArray[Any]], key: str = "") -> None:
    """Streams one shard from blocks of any length; `key` is its unit's."""
    assert not spec.ragged
    assert rows in shard_ranges(spec, rows.stop)[-1:]
    row = rows.start
    writer = ShardWriter(file, spec, row, key)
    for block in blocks:
        _assert_rows(block, spec, row)
        row += len(block)
        assert row <= rows.stop
        writer.append(block)
    assert row == rows.stop
    writer.finish()


def _assert_rows(rows: NDArray[Any], spec: FeatureSpec, first: int) -> None:
    is_right = (rows.shape[1:], rows.dtype) == (spec.row_shape, np.dtype(spec.dtype))
    assert is_right, f"{first}: rows are {rows.dtype} {rows.shape[1:]}, not {spec.dtype} {spec.row_shape}"


def write_ragged_shard(
    file: BinaryIO, spec: FeatureSpec, items: range, arrays: Iterable[NDArray[Any]], key: str = ""
) -> bytes:
    """Streams one (length, …) array per item, 0 long if absent; returns the bytes of `extents_file`."""
    assert spec.ragged
    assert items in shard_ranges(spec, items.stop)[-1:]
    first = row = items.start // spec.shard_items * spec.shard_rows
    writer = ShardWriter(file, spec, first, key)
    extents = np.zeros((spec.shard_items, 2), "<i8")
    for item, array in zip(items, arrays, strict=True):
        _assert_rows(array, spec, item)
        if row + len(array) > first + spec.shard_rows:
            raise UserError(
                f"{spec.name}: items {items.start} to {item} have more than the {spec.shard_rows:,} rows of a shard: "
                "set fewer items_per_shard or more rows_per_shard"
            )
        writer.append(array, f"item {item}")
        extents[item - items.start] = row, len(array)
        row += len(array)
    writer.finish()
    return extents.tobytes()


def index_files(
    specs: FeatureSpec | Sequence[FeatureSpec], ids: Sequence[str], provenance: Mapping[str, object]
) -> dict[str, bytes]:
    """Makes all files but the shards. `provenance` is plain JSON: network, weights, preprocessing."""
    several = [specs] if isinstance(specs, FeatureSpec) else list(specs)
    names = [s.name for s in several] + [f"{s.name}_extents" for s in several if s.ragged]
    assert len(set(names)) == len(names), names
    features = [{"name": s.name, "ragged": s.ragged, "items_per_shard": s.shard_items} for s in several]
    attributes = {"layout": LAYOUT, "features": features, "provenance": provenance}
    assert len(set(ids)) == len(ids), "an id has two rows"
    columns = {"row": pa.array(range(len(ids)), pa.int64()), "id": pa.array(ids, pa.string())}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, compression="zstd", store_schema=False, row_group_size=65_536)
    files = {
        GROUP: canonical_json({"zarr_format": 3, "node_type": "group", "attributes": attributes}),
        ROWS: file.getvalue(),
    }
    for spec in several:
        files[f"{spec.name}/zarr.json"] = canonical_json(spec.metadata(len(ids)))
        if spec.ragged:
            files[f"{spec.name}_extents/zarr.json"] = canonical_json(spec.extents_metadata(len(ids)))
    return files


class FeatureStore:
    """Reads one array of a finished feature store, by id or by row; safe to fork and to pickle.

    Without `name` it is the store's first array. Items that failed when it was built are absent, and refused. Opening
    checks all files but the shards, whose values are checked when first read. Shards of a remote store are then copied
    to `cache`, and stay there.
    """

    def __init__(self, source: str | Path | Output, name: str | None = None, cache: str = CACHE) -> None:
        self.output = source if isinstance(source, Output) else _output_at(str(source))
        if not self.output.complete:
            where = self.output.where
            raise UserError(f"{where} holds no finished features: no complete.json; build them, or name another folder")
        if ROWS not in self.output.files:
            raise UserError(f"{self.output.where} is of {self.output.stage}, which makes no features")
        table = read_columns(self.output, ROWS, "row", "id").to_pydict()
        if table["row"] != list(range(len(table["row"]))):
            raise UserError(f"{self.output.where}/{ROWS} does not name the rows in order: {self.output.cure}")
        self.ids: tuple[str, ...] = tuple(table["id"])
        self.spec, self.provenance, self.names = _read_metadata(self.output, name, len(self.ids))
        units = list(self.output.units())
        self.absent = frozenset(id for unit in units for id in unit.absent)
        self._keys = {file: unit.key or "" for unit in units for file in unit.files}
        self._cache = str(Path(cache).expanduser())
        self._rows = {id: row for row, id in enumerate(self.ids)}
        self._refused = np.array([id in self.absent for id in self.ids], bool)
        self._process = os.getpid()
        self._extents: NDArray[np.int64] | None = None
        self._shards = len(shard_ranges(self.spec, len(self.ids)))
        if self.spec.ragged:
            data = b"".join(self.output.read(extents_file(self.spec, shard)) for shard in range(self._shards))
            self._extents = np.frombuffer(data, "<i8").reshape(-1, 2)[: len(self.ids)].astype(np.int64)
        self._values = MappedRows(self.spec, self._shards, self._open_shard, self._cure)
        if isinstance(self.output.storage, LocalStorage):
            self._values.map_all()

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.output.where, self.spec.name, self._cache)

    def __repr__(self) -> str:
        spec = self.spec
        rows = ("rows of " if spec.ragged else "") + (" x ".join(map(str, spec.row_shape)) or "1")
        return f"<FeatureStore {spec.name}: {len(self):,} items, {rows}, {spec.dtype}, in {self.output.where}>"

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: object) -> bool:
        return id in self._rows and id not in self.absent

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Returns the row of each id; unknown and absent ids are refused."""
        if isinstance(ids, str):
            raise TypeError(f"give a list of ids: [{ids!r}]")
        wanted = list(ids)
        if wrong := [id for id in wanted if not isinstance(id, str)]:
            raise TypeError(f"ids are text: {str(wrong[0])!r}, not {wrong[0]!r}")
        if unknown := [id for id in wanted if id not in self._rows]:
            raise UserError(f"{self.output.where} has no row for {few([*map(repr, unknown)], 5)}")
        rows = np.fromiter((self._rows[id] for id in wanted), np.int64, len(wanted))
        self._refuse_absent(rows)
        return rows

    def take(self, rows: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Returns the values of rows, in `out` if given."""
        if self._extents is not None:
            raise TypeError(f"{self.spec.name} is ragged: take_padded gives its rows")
        wanted = self._checked(rows)
        out = _room(out, (len(wanted), *self.spec.row_shape), self.spec)
        self._values.take(wanted, out)
        return out

    def lengths(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Counts each item's rows."""
        return self._extent(rows)[:, 1]

    def run(self, row: int, begin: int, end: int) -> NDArray[Any]:
        """Returns a read-only view of some rows of one item."""
        start, length = self._extent([row])[0].tolist()
        if not 0 <= begin <= end <= length:
            raise IndexError(f"rows {begin} to {end} are outside the {length} rows of their item")
        return self._values.run(start + begin, start + end)

    def take_padded(
        self, rows: ArrayLike, places: NDArray[np.int64] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Returns (items, L, …): each item's rows and zeros after them, or its rows at `places`, (items, L)."""
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
        """Returns (ids, …), or of a ragged array a list of one (length, …) per id."""
        rows = self.rows(ids)
        if self._extents is None:
            return self.take(rows)
        return [self.take_padded(rows[place : place + 1])[0] for place in range(len(rows))]

    def verify(self) -> None:
        """Refuses a shard that is not what was committed."""
        for shard in range(self._shards):
            name = shard_file(self.spec, shard)
            if sha256_of(_local_file(self.output, name, self._cache)) != self.output.checksums[name]:
                raise UserError(f"{self.output.where}/{name} is not what was committed: {self.output.cure}")

    @property
    def _cure(self) -> str:
        """Says what to do about a damaged shard."""
        is_here = isinstance(self.output.storage, LocalStorage)
        return self.output.cure if is_here else "delete that copy, and it is fetched again"

    def _open_shard(self, shard: int) -> OpenedShard:
        if os.getpid() != self._process:  # connections do not survive a fork
            self.output, self._process = _output_at(self.output.where), os.getpid()
        spec, name = self.spec, shard_file(self.spec, shard)
        path = _local_file(self.output, name, self._cache)
        checksums = read_checksums(path, spec, self._cure)
        rows = len(checksums) * spec.chunk_rows
        if self._extents is None:
            missing = min(spec.shard_rows, len(self.ids) - shard * spec.shard_rows) - rows
            if not -spec.chunk_rows < missing <= 0:
                raise UserError(f"{self.output.where}/{name} does not hold its rows: {self.output.cure}")
        else:
            extents = self._extents[shard * spec.shard_items : (shard + 1) * spec.shard_items]
            places = extents - (shard * spec.shard_rows, 0)
            # nothing is mapped beyond: reading there would end the process
            check_extents(places, rows, f"{self.output.where}/{extents_file(spec, shard)}", self.output.cure)
        return path, self._keys[name], checksums

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
            raise UserError(
                f"{self.output.where} has no features of {few([*map(repr, ids)], 5)}: leave out what is in `.absent`"
            )


def check_extents(extents_I2: NDArray[np.int64], rows: int, where: str, cure: str) -> None:
    """Refuses first rows and lengths that are not within a shard."""
    starts, lengths = extents_I2.T
    if (lengths < 0).any() or ((starts < 0) | (starts > rows - lengths))[lengths > 0].any():
        raise UserError(f"{where} points outside of the {rows:,} rows of its shard: {cure}")


def _room(out: NDArray[Any] | None, shape: tuple[int, ...], spec: FeatureSpec) -> NDArray[Any]:
    if out is None:
        return buffer(shape, spec.dtype)
    if (out.shape, out.dtype) != (shape, np.dtype(spec.dtype)) or not out.flags.c_contiguous:
        raise ValueError(f"out is {out.shape} {out.dtype}, not {shape} {spec.dtype}, contiguous")
    return out


def _output_at(path: str) -> Output:
    """The output at <root>/<stage>/<identity>."""
    is_url = "://" in path and not path.startswith("file://")
    place = path if is_url else os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
    folder, identity = os.path.split(place.rstrip("/"))
    root, stage = os.path.split(folder)
    return Output(open_storage(root or "/"), f"{stage}/{identity}".strip("/"))


def _read_metadata(output: Output, name: str | None, items: int) -> tuple[FeatureSpec, dict[str, Any], tuple[str, ...]]:
    try:
        attributes = json.loads(output.read(GROUP))["attributes"]
        if attributes.get("layout") != LAYOUT:
            raise UserError(f"{output.where} is a store of another version of xmodal: use that, or build again")
        features = {feature["name"]: feature for feature in attributes["features"]}
        if name is not None and name not in features:
            raise UserError(f"{output.where} has no array {name!r}; there are: {', '.join(features)}")
        about = features[name or next(iter(features))]
        array = json.loads(output.read(f"{about['name']}/zarr.json"))
        spec = FeatureSpec(
            about["name"],
            tuple(array["shape"][1:]),
            array["data_type"],
            about["ragged"],
            rows_per_chunk=array["codecs"][0]["configuration"]["chunk_shape"][0],
            rows_per_shard=array["chunk_grid"]["configuration"]["chunk_shape"][0],
            items_per_shard=about["items_per_shard"] if about["ragged"] else None,
        )
        if spec.ragged:
            output.read(f"{spec.name}_extents/zarr.json")  # it says no more, but must be what was written
        if array != spec.metadata(items):
            raise ValueError(f"it is not what is written for {items} items")
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise UserError(
            f"{output.where} describes no feature array of this layout ({error!r}): {output.cure}"
        ) from error
    return spec, dict(attributes["provenance"]), tuple(features)


def _local_file(output: Output, name: str, cache: str) -> str:
    """Returns a shard's path; a remote store's is fetched once and named by its checksum."""
    if isinstance(output.storage, LocalStorage):
        output.check(name)
        return output.storage.path(f"{output.folder}/{name}")
    size, sha256 = output.files[name], output.checksums[name]
    path = Path(cache, sha256[:2], sha256)
    if not path.exists() or path.stat().st_size != size:
        path.parent.mkdir(parents=True, exist_ok=True)
        with output.open(name) as source, new_file(path, replace=True) as file:  # later it is trusted by its size
            if copy_and_hash(source, file) != sha256:
                raise UserError(f"{output.where}/{name} is not what was committed: {output.cure}")
    return str(path)
