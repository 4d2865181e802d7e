"""Zarr v3 arrays of others, however they were written, and of ours; what is absent there, and what is damaged."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from google_crc32c import extend
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.foreign_formats import open_foreign
from xmodal.features.store import shard_file, shard_ranges
from xmodal.features.zarr_arrays import MappedRows, OpenedShard, ShardWriter, all_finite, read_checksums

NO_CHUNK = 2**64 - 1
DTYPES = ["uint8", "int32", "int64", "float16", "float32", "float64"]
CODECS: dict[str, Any] = {
    "none": None,
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "blosc": zarr.codecs.BloscCodec(),
    "gzip": zarr.codecs.GzipCodec(level=1),
    "crc32c": zarr.codecs.Crc32cCodec(),
}


@dataclass(frozen=True)
class Foreign:
    """An array as somebody else would write it."""

    rows: int
    row_shape: tuple[int, ...]
    dtype: str
    chunk_rows: int
    shard_chunks: int | None = None  # None: chunks are files
    codec: str = "none"
    endian: str = "little"
    index: str = "end"
    fill: Any = 0
    empty_chunks: bool = False  # are they written?
    seed: int = 0

    @property
    def file_rows(self) -> int:
        return self.chunk_rows * (self.shard_chunks or 1)

    def values(self) -> tuple[NDArray[Any], list[slice]]:
        """What is read in the end, and which parts of it are written at all; the rest is the fill value."""
        random = np.random.default_rng(self.seed)
        size = self.rows * int(np.prod(self.row_shape, dtype=int))
        values = random.integers(0, 100, size).astype(self.dtype)
        values = values.reshape(self.rows, *self.row_shape)
        for start in range(0, self.rows, self.chunk_rows):  # zeros in a row, a chunk and, now and then, a whole file
            values[start : start + int(random.choice([0, 1, self.chunk_rows]))] = random.choice([0, self.fill])
        files = [slice(start, start + self.file_rows) for start in range(0, self.rows, self.file_rows)]
        kinds = random.choice(["written", "zero", "missing"], len(files), p=[0.6, 0.2, 0.2])
        for part, kind in zip(files, kinds, strict=True):
            if kind != "written":
                values[part] = 0 if kind == "zero" else self.fill
        return values, [part for part, kind in zip(files, kinds, strict=True) if kind != "missing"]

    def lacks_chunks(self) -> bool:
        """Is something not written? A writer may leave out what has nothing but the fill value."""
        values, written = self.values()
        length = self.chunk_rows if self.codec == "none" else self.file_rows  # compressed shards are not looked into
        parts = [values[start : start + length] for start in range(0, self.rows, length)]
        left_out = not self.empty_chunks and any((part == self.fill).all() for part in parts)
        return left_out or len(written) < -(-self.rows // self.file_rows)


@st.composite
def foreigners(draw: st.DrawFn) -> Foreign:
    dtype = draw(st.sampled_from(DTYPES))
    kind = np.dtype(dtype).kind
    fills = {"u": [0, 7], "i": [0, -3], "f": [0.0, 1.5]}[kind]
    return Foreign(
        rows=draw(st.integers(1, 40)),
        row_shape=draw(st.sampled_from([(), (3,), (2, 5), (1024,), (16, 64)])),
        dtype=dtype,
        chunk_rows=draw(st.integers(1, 4)),
        shard_chunks=draw(st.sampled_from([None, 1, 2, 4, 8])),
        codec=draw(st.sampled_from(["none", "none", "none", *CODECS])),
        endian=draw(st.sampled_from(["little", "little", "little", "big"])),
        index=draw(st.sampled_from(["end", "end", "start"])),
        fill=draw(st.sampled_from(fills)),
        empty_chunks=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def write_with_zarr(folder: str, foreign: Foreign) -> NDArray[Any]:
    values, written = foreign.values()
    shards = {"shape": (foreign.file_rows, *foreign.row_shape), "index_location": foreign.index}
    wide = np.dtype(foreign.dtype).itemsize > 1
    array = zarr.create_array(
        store=folder,
        shape=values.shape,
        dtype=foreign.dtype,
        chunks=(foreign.chunk_rows, *foreign.row_shape),
        shards=None if foreign.shard_chunks is None else shards,  # type: ignore[arg-type]
        compressors=CODECS[foreign.codec],
        serializer=zarr.codecs.BytesCodec(endian=foreign.endian) if wide else "auto",
        fill_value=foreign.fill,
        config={"write_empty_chunks": foreign.empty_chunks},
    )
    for part in written:
        array[part] = values[part]
    return values


def write_with_tensorstore(folder: str, foreign: Foreign) -> NDArray[Any]:
    tensorstore = pytest.importorskip("tensorstore")
    values, written = foreign.values()
    plain: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": foreign.endian}}]
    packed = {
        "none": [],
        "zstd": [{"name": "zstd", "configuration": {"level": 1}}],
        "blosc": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "noshuffle"}}],
        "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
        "crc32c": [{"name": "crc32c"}],
    }[foreign.codec]
    chunk, file = [foreign.chunk_rows, *foreign.row_shape], [foreign.file_rows, *foreign.row_shape]
    inner = {"chunk_shape": chunk, "codecs": plain + packed, "index_location": foreign.index}
    sharded = [{"name": "sharding_indexed", "configuration": inner}]
    about = {
        "shape": list(values.shape),
        "data_type": foreign.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": file}},
        "codecs": plain + packed if foreign.shard_chunks is None else sharded,
        "fill_value": foreign.fill,
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": about, "create": True}
    array = tensorstore.open(spec | {"store_data_equal_to_fill_value": foreign.empty_chunks}).result()
    for part in written:
        array[part.start : min(part.stop, foreign.rows)].write(values[part]).result()
    return values


def check(folder: str, values: NDArray[Any]) -> None:
    """As it is imported: as a whole, and from the middle."""
    ids = Path(folder, "ids.txt")
    ids.write_text("".join(f"{row}\n" for row in range(len(values))))
    found = open_foreign(Path(folder), ids)
    stored = values.astype(found.spec("any").dtype)
    for rows in (range(len(values)), range(len(values) // 2, len(values))):
        np.testing.assert_array_equal(np.concatenate([*found.rows(rows), stored[:0]]), stored[rows.start :])


def check_unless_lacking(folder: str, foreign: Foreign, values: NDArray[Any]) -> None:
    """What is lacking is not read as the fill value."""
    if foreign.lacks_chunks():
        with pytest.raises(UserError, match="would be read as zeros"):
            check(folder, values)
    else:
        check(folder, values)


@settings(max_examples=60, deadline=None)
@given(foreigners())
def test_what_zarr_writes_is_read(foreign: Foreign) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_unless_lacking(folder, foreign, write_with_zarr(folder, foreign))


@settings(max_examples=60, deadline=None)
@given(foreigners())
def test_what_tensorstore_writes_is_read(foreign: Foreign) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_unless_lacking(folder, foreign, write_with_tensorstore(folder, foreign))


def shuffle_chunks(file: Path, chunk_bytes: int, chunks: int, index_first: bool, seed: int) -> None:
    """The same shard with its chunks in another order and gaps between them, as the format allows."""
    random, data = np.random.default_rng(seed), file.read_bytes()
    size = 16 * chunks + 4
    place = slice(0, size) if index_first else slice(len(data) - size, len(data))
    index = np.frombuffer(data[place][:-4], "<u8").reshape(-1, 2).copy()
    body = b"\xaa" * int(random.integers(0, 9))
    for chunk in random.permutation(chunks):
        if index[chunk, 0] != NO_CHUNK:
            begin = int(index[chunk, 0])
            index[chunk, 0] = len(body) + size * index_first
            body += data[begin : begin + chunk_bytes] + b"\xaa" * int(random.integers(0, 9))
    packed = index.tobytes() + int(extend(0, index.tobytes())).to_bytes(4, "little")
    file.write_bytes(packed + body if index_first else body + packed)


@settings(max_examples=40, deadline=None)
@given(foreigners())
def test_chunks_out_of_order_are_read(foreign: Foreign) -> None:
    foreign = replace(foreign, shard_chunks=foreign.shard_chunks or 4, codec="none")
    with tempfile.TemporaryDirectory() as folder:
        values = write_with_zarr(folder, foreign)
        chunk_bytes = foreign.chunk_rows * int(np.prod(foreign.row_shape, dtype=int)) * values.dtype.itemsize
        for file in Path(folder, "c").rglob("*") if Path(folder, "c").exists() else ():
            if file.is_file():
                shuffle_chunks(file, chunk_bytes, foreign.shard_chunks or 0, foreign.index == "start", foreign.seed)
        np.testing.assert_array_equal(zarr.open_array(folder, mode="r")[...], values)  # the format does allow it
        check_unless_lacking(folder, foreign, values)


def test_chunks_that_share_bytes_are_read(tmp_path: Path) -> None:
    """A writer that knows all-equal chunks may write them once."""
    array = zarr.create_array(
        store=tmp_path, shape=(8, 1024), dtype="float32", chunks=(2, 1024), shards=(8, 1024), compressors=None
    )
    array[...] = np.arange(8)[:, None]
    file = tmp_path / "c/0/0"
    data, size = bytearray(file.read_bytes()), 2 * 4096
    index = np.frombuffer(bytes(data[-68:-4]), "<u8").reshape(-1, 2).copy()
    index[3] = index[0]
    file.write_bytes(bytes(data[: 3 * size]) + index.tobytes() + int(extend(0, index.tobytes())).to_bytes(4, "little"))
    values = np.repeat(np.array([0, 1, 2, 3, 4, 5, 0, 1], np.float32)[:, None], 1024, axis=1)
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    check(str(tmp_path), values)


UNUSUAL: dict[str, dict[str, Any]] = {
    "chunks of parts of rows": {"shape": (9, 6), "chunks": (2, 3), "shards": (4, 6), "dtype": "float32"},
    "shards of parts of rows": {"shape": (9, 6), "chunks": (2, 3), "shards": (4, 3), "dtype": "float32"},
    "dots for keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots for keys, otherwise as usual": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "transposed": {"filters": zarr.codecs.TransposeCodec(order=(1, 0))},
    "no shards": {"shards": None},
    "another order of bytes": {"serializer": zarr.codecs.BytesCodec(endian="big")},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_arrays_are_read(tmp_path: Path, name: str) -> None:
    settings = {"shape": (9, 6), "chunks": (2, 6), "shards": (4, 6), "dtype": "int32", "compressors": None}
    array = zarr.create_array(store=tmp_path, **(settings | UNUSUAL[name]))
    values = np.arange(np.prod(array.shape)).reshape(array.shape).astype(array.dtype)
    array[...] = values
    check(str(tmp_path), values)


def test_no_attributes_are_none(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, data=np.ones((6, 2), "int32"))
    about = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(json.dumps(about | {"attributes": None}))
    check(str(tmp_path), np.ones((6, 2), "int32"))


@pytest.mark.parametrize("dtype", ["datetime64[s]", "complex64", "bool", "int16"])
def test_numbers_that_are_no_features_are_refused(tmp_path: Path, dtype: str) -> None:
    zarr.create_array(tmp_path, data=np.ones((6, 2), dtype))
    with pytest.raises(UserError, match="a feature is one of float16"):
        check(str(tmp_path), np.ones((6, 2), dtype))


def test_what_is_no_array_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        open_foreign(tmp_path / "nowhere")
    (tmp_path / "ids.txt").write_text("a")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(UserError, match=r"group/zarr\.json describes no array"):
        open_foreign(tmp_path / "group", tmp_path / "ids.txt")
    for wrong in ("", "[1]", '{"shape": 3}', "null", '"text"'):
        (tmp_path / "zarr.json").write_text(wrong)
        with pytest.raises(UserError, match=r"/zarr\.json describes no array"):
            open_foreign(tmp_path, tmp_path / "ids.txt")


DAMAGE = {
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "index alone": lambda data: data[-68:],
    "an index of other chunks": lambda data: data[:-68] + indexed([(0, 8192), (8192, 4096), (0, 8192), (0, 8192)]),
    "an index that points behind the end": lambda data: data[:-68] + indexed([(2**40, 8192)] * 4),
    "an index that points before the start": lambda data: data[:-68] + indexed([(2**63, 8192)] * 4),
    "half a mark": lambda data: data[:-68] + indexed([(NO_CHUNK, 8192)] * 4),
}


def indexed(chunks: list[tuple[int, int]]) -> bytes:
    data = np.array(chunks, "<u8").tobytes()
    return data + int(extend(0, data)).to_bytes(4, "little")


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_shard_of_others_is_refused_by_name(tmp_path: Path, name: str) -> None:
    array = zarr.create_array(
        store=tmp_path, shape=(16, 1024), dtype="float32", chunks=(2, 1024), shards=(8, 1024), compressors=None
    )
    array[...] = np.arange(1, 17)[:, None]
    file = tmp_path / "c/1/0"
    file.write_bytes(DAMAGE[name](file.read_bytes()))
    with pytest.raises(UserError, match=r"c/1/0 is damaged"):
        check(str(tmp_path), np.zeros((16, 1024), np.float32))


OURS = FeatureSpec("ours", (8, 64), rows_per_chunk=2, rows_per_shard=8)
ROWS = 21


def write_ours(
    folder: Path, spec: FeatureSpec = OURS, rows: int = ROWS, lengths: list[int] | None = None
) -> NDArray[Any]:
    """Shards of an array with their checksums; `lengths` are the rows that each has, where it is ragged."""
    values = np.random.default_rng(0).integers(1, 99, (rows, *spec.row_shape)).astype(spec.dtype)
    for shard, part in enumerate(shard_ranges(spec, rows)):
        filled = part.stop if lengths is None else part.start + lengths[shard]
        values[filled : part.stop] = 0
        blocks = [values[part.start : min(part.start + 3, filled)], values[part.start + 3 : filled]]
        write_blocks(folder, spec, shard, blocks)
    (folder / spec.name / "zarr.json").write_text(json.dumps(spec.metadata(rows)))
    return values


def write_blocks(folder: Path, spec: FeatureSpec, shard: int, blocks: list[NDArray[Any]]) -> None:
    file = folder / shard_file(spec, shard)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        writer = ShardWriter(opened, spec, shard * spec.shard_rows)
        for block in blocks:
            writer.append(block)
        writer.finish()


def open_ours(folder: Path, spec: FeatureSpec = OURS, rows: int = ROWS) -> MappedRows:
    """As a feature store opens an array, whose shards may be short."""

    def opened(shard: int) -> OpenedShard:
        path = str(folder / shard_file(spec, shard))
        return path, "", read_checksums(path, spec, "")

    return MappedRows(spec, len(shard_ranges(spec, rows)), opened, "")


def take(mapped: MappedRows, rows: Any, spec: FeatureSpec = OURS) -> NDArray[Any]:
    out = np.empty((len(rows), *spec.row_shape), spec.dtype)
    out.view(np.uint8).fill(77)
    mapped.take(np.asarray(rows, np.int64), out)
    return out


def check_ours(folder: Path, spec: FeatureSpec, values: NDArray[Any]) -> None:
    """In order, in another order with some twice, and nothing at all; others read the same."""
    mapped = open_ours(folder, spec, len(values))
    shuffled = np.random.default_rng(1).permutation(np.arange(len(values)).repeat(2))
    for rows in (np.arange(len(values)), shuffled, shuffled[:0]):
        np.testing.assert_array_equal(take(mapped, rows, spec), values[rows])
    np.testing.assert_array_equal(zarr.open_array(folder / spec.name, mode="r")[...], values)


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int32", "int64"])
def test_ours_are_read_by_all_three(tmp_path: Path, dtype: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    spec = replace(OURS, dtype=dtype, rows_per_shard=16, rows_per_chunk=4)
    values = write_ours(tmp_path, spec)
    check_ours(tmp_path, spec, values)
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/ours/"}).result()
    np.testing.assert_array_equal(array.read().result(), values)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_no_number_is_wrongly_called_finite_or_not(dtype: str) -> None:
    """Every half there is, and as many others; alone, and among numbers of the other sign."""
    bits = np.arange(2**16, dtype=np.uint16)
    numbers = bits.view(np.float16) if dtype == "float16" else (bits.astype(np.uint32) << 16 | bits).view(np.float32)
    for number, finite in zip(numbers[:, None], np.isfinite(numbers), strict=True):
        assert all_finite(number) == finite
    edges = np.array([0, -0.0, np.finfo(dtype).max, np.finfo(dtype).min], dtype)
    for number, finite in zip(numbers[:: 2**4 - 1], np.isfinite(numbers[:: 2**4 - 1]), strict=True):
        assert all_finite(np.append(edges, number)) == finite
    assert all_finite(numbers[:0])


@pytest.mark.parametrize("row_shape", [(), (5,), (7, 300)])
def test_blocks_larger_than_what_is_looked_at_at_once_are_written_whole(
    tmp_path: Path, row_shape: tuple[int, ...]
) -> None:
    """Wherever its pieces end: not where rows, chunks or shards do."""
    spec = FeatureSpec("ours", row_shape, "float32", rows_per_chunk=1024, rows_per_shard=61_440)
    values = np.random.default_rng(0).random((60_000 if len(row_shape) < 2 else 700, *row_shape), np.float32)
    write_blocks(tmp_path, spec, 0, [values])
    (tmp_path / "ours/zarr.json").write_text(json.dumps(spec.metadata(len(values))))
    check_ours(tmp_path, spec, values)
    values.reshape(-1)[-1] = np.inf
    with pytest.raises(UserError, match=f"ours: row {len(values) - 1} is NaN or infinite"):
        write_blocks(tmp_path, spec, 0, [values[:9], values[9:]])


FULL = 24
LENGTHS = [5, 0, 8]  # rows in each of its shards
PRESENT = [*range(5), *range(16, 24)]


def test_ours_of_short_shards_are_read_by_all_three(tmp_path: Path) -> None:
    """As ragged arrays are: what no item has is the fill value to everybody else, and is never asked for here."""
    tensorstore = pytest.importorskip("tensorstore")
    values = write_ours(tmp_path, rows=FULL, lengths=LENGTHS)
    np.testing.assert_array_equal(take(open_ours(tmp_path, rows=FULL), PRESENT), values[PRESENT])
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours", mode="r")[...], values)
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/ours/"}).result()
    np.testing.assert_array_equal(array.read().result(), values)
    (tmp_path / "ids.txt").write_text("".join(f"{row}\n" for row in range(FULL)))
    with pytest.raises(UserError, match="ours is of a store of xmodal: `xmodal export` knows"):
        open_foreign(tmp_path / "ours", tmp_path / "ids.txt")


@contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    """One bit of a file, and back again."""
    flip(file, bit)
    try:
        yield
    finally:
        flip(file, bit)


def flip(file: Path, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1 << bit % 8]))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    fixed, ragged = tmp_path_factory.mktemp("fixed"), tmp_path_factory.mktemp("ragged")
    write_ours(fixed)
    write_ours(ragged, rows=FULL, lengths=LENGTHS)
    return fixed, ragged


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2), st.data())
def test_any_flipped_bit_of_ours_is_found(ours: tuple[Path, Path], shard: int, data: st.DataObject) -> None:
    check_flip(ours[0], ROWS, shard, data, range(ROWS))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([0, 2]), st.data())
def test_any_flipped_bit_of_ours_with_short_shards_is_found(
    ours: tuple[Path, Path], shard: int, data: st.DataObject
) -> None:
    check_flip(ours[1], FULL, shard, data, PRESENT)


def check_flip(folder: Path, rows: int, shard: int, data: st.DataObject, wanted: Sequence[int]) -> None:
    file = folder / shard_file(OURS, shard)
    bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
    with flipped(file, bit), pytest.raises(UserError, match=f"{file} is damaged"):
        take(open_ours(folder, rows=rows), wanted)


@pytest.mark.parametrize("lengths", [None, LENGTHS, [8, 0, 8]])
def test_a_shard_of_ours_in_another_s_place_is_damage(tmp_path: Path, lengths: list[int] | None) -> None:
    write_ours(tmp_path, rows=FULL, lengths=lengths)
    first, last = (tmp_path / shard_file(OURS, shard) for shard in (0, 2))
    first.rename(tmp_path / "aside")
    last.rename(first)
    (tmp_path / "aside").rename(last)
    for row, file in ((0, first), (16, last)):
        with pytest.raises(UserError, match=f"{file} is damaged"):
            take(open_ours(tmp_path, rows=FULL), [row])
