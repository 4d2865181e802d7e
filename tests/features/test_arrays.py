"""Zarr v3 arrays of others, however they were written, and of ours; what is absent there, and what is damaged."""

import json
import mmap
import os
import tempfile
from collections.abc import Iterator
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
from xmodal.features.zarr_arrays import (
    DecodedRows,
    Layout,
    MappedRows,
    Rows,
    ScatteredRows,
    ShardWriter,
    all_finite,
    open_array,
)

NO_CHUNK = 2**64 - 1
DTYPES = ["bool", "uint8", "int16", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64"]
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
        values = random.integers(0, 2 if self.dtype == "bool" else 100, size).astype(self.dtype)
        values = values.reshape(self.rows, *self.row_shape)
        for start in range(0, self.rows, self.chunk_rows):  # zeros in a row, a chunk and, now and then, a whole file
            values[start : start + int(random.choice([0, 1, self.chunk_rows]))] = random.choice([0, self.fill])
        files = [slice(start, start + self.file_rows) for start in range(0, self.rows, self.file_rows)]
        kinds = random.choice(["written", "zero", "missing"], len(files), p=[0.6, 0.2, 0.2])
        for part, kind in zip(files, kinds, strict=True):
            if kind != "written":
                values[part] = 0 if kind == "zero" else self.fill
        return values, [part for part, kind in zip(files, kinds, strict=True) if kind != "missing"]


@st.composite
def foreigners(draw: st.DrawFn) -> Foreign:
    dtype = draw(st.sampled_from(DTYPES))
    kind = np.dtype(dtype).kind
    fills = {"b": [False, True], "u": [0, 7], "i": [0, -3], "f": [0.0, 1.5, np.nan, np.inf, -np.inf]}[kind]
    return Foreign(
        rows=draw(st.integers(0, 40)),
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
    named = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    about = {
        "shape": list(values.shape),
        "data_type": foreign.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": file}},
        "codecs": plain + packed if foreign.shard_chunks is None else sharded,
        "fill_value": named.get(str(foreign.fill), foreign.fill),
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": about, "create": True}
    array = tensorstore.open(spec | {"store_data_equal_to_fill_value": foreign.empty_chunks}).result()
    for part in written:
        array[part.start : min(part.stop, foreign.rows)].write(values[part]).result()
    return values


def take(rows: Rows, wanted: Any) -> NDArray[Any]:
    out: NDArray[Any] = np.empty((len(wanted), *rows.shape[1:]), rows.dtype)
    out.view(np.uint8).fill(77)
    rows.take(np.asarray(wanted, np.int64), out)
    return out


def check(folder: str, values: NDArray[Any]) -> Rows:
    """In order, in another order with some twice, and nothing at all."""
    rows = open_array(folder)
    assert (rows.shape, rows.dtype) == (values.shape, values.dtype)
    shuffled = np.random.default_rng(1).permutation(np.arange(len(values)).repeat(2))
    for wanted in (np.arange(len(values)), shuffled):
        np.testing.assert_array_equal(take(rows, wanted), values[wanted])
    return rows


@settings(max_examples=60, deadline=None)
@given(foreigners())
def test_what_zarr_writes_is_read(foreign: Foreign) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(folder, write_with_zarr(folder, foreign))


@settings(max_examples=60, deadline=None)
@given(foreigners())
def test_what_tensorstore_writes_is_read(foreign: Foreign) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(folder, write_with_tensorstore(folder, foreign))


PAGES = Foreign(rows=21, row_shape=(1024,), dtype="float32", chunk_rows=2, shard_chunks=4, empty_chunks=True)


@pytest.mark.parametrize("write", [write_with_zarr, write_with_tensorstore])
@pytest.mark.parametrize("index", ["end", "start"])
def test_plain_chunks_are_never_decoded(tmp_path: Path, write: Any, index: str) -> None:
    rows = check(str(tmp_path), write(str(tmp_path), replace(PAGES, index=index)))
    assert not isinstance(rows, DecodedRows)


def test_arrays_of_others_are_mapped_where_they_can_be(tmp_path: Path) -> None:
    values = np.arange(21 * 1024, dtype=np.float32).reshape(21, 1024)
    new = {"shape": values.shape, "dtype": "float32", "chunks": (2, 1024), "shards": (8, 1024), "compressors": None}
    for name, kind in (("in order", MappedRows), ("shuffled", ScatteredRows)):
        zarr.create_array(store=tmp_path / name, **new)[...] = values
        if name == "shuffled":
            shuffle_chunks(tmp_path / name / "c/1/0", 8192, 4, False, 0)
        assert isinstance(check(str(tmp_path / name), values), kind)


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
        check(folder, values)


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
    "times": {"dtype": "datetime64[s]"},
    "complex numbers": {"dtype": "complex64"},
    "rows of no values": {"shape": (9, 0), "chunks": (2, 1), "shards": (4, 1)},
    "no shards": {"shards": None},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_arrays_are_read(tmp_path: Path, name: str) -> None:
    settings = {"shape": (9, 6), "chunks": (2, 6), "shards": (4, 6), "dtype": "int32", "compressors": None}
    array = zarr.create_array(store=tmp_path, **(settings | UNUSUAL[name]))
    values = np.arange(np.prod(array.shape)).reshape(array.shape).astype(array.dtype)
    array[...] = values
    check(str(tmp_path), values)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_no_rows_at_all_may_be_asked_for(tmp_path: Path, codec: str) -> None:
    write_with_zarr(str(tmp_path), replace(PAGES, codec=codec))
    assert take(open_array(str(tmp_path)), []).shape == (0, 1024)


@pytest.mark.parametrize("size", [4096, 65_536])
def test_shards_that_do_not_end_on_pages_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    values = write_with_zarr(str(tmp_path), replace(PAGES, row_shape=(3,)))
    monkeypatch.setattr(mmap, "PAGESIZE", size)
    check(str(tmp_path), values)


def test_what_is_no_array_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere is no Zarr v3 array: it has no zarr\.json"):
        open_array(str(tmp_path / "nowhere"))
    zarr.create_group(tmp_path / "group")
    with pytest.raises(UserError, match=r"group/zarr\.json describes no array"):
        open_array(str(tmp_path / "group"))
    for wrong in ("", "[1]", '{"shape": 3}', "null", '"text"'):
        (tmp_path / "zarr.json").write_text(wrong)
        with pytest.raises(UserError, match=r"/zarr\.json describes no array"):
            open_array(str(tmp_path))


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
        take(open_array(str(tmp_path)), range(16))


OURS = Layout(21, (8, 64), np.dtype("float16"), chunk_rows=2, shard_rows=8)


def write_ours(folder: Path, layout: Layout = OURS, lengths: list[int] | None = None) -> NDArray[Any]:
    """Shards of an array with their checksums; `lengths` are the rows that each has, where it is ragged."""
    values = np.random.default_rng(0).integers(1, 99, (layout.rows, *layout.row_shape)).astype(layout.dtype)
    for shard in range(layout.shards):
        start = shard * layout.shard_rows
        stop = min(start + layout.shard_rows, layout.rows)
        filled = stop if lengths is None else start + lengths[shard]
        values[filled:stop] = 0
        file = folder / layout.shard_key(shard)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            writer = ShardWriter(opened, layout, "ours", start)
            writer.append(values[start : min(start + 3, filled)])
            writer.append(values[start + 3 : filled])
            writer.finish()
    (folder / "zarr.json").write_text(json.dumps(layout.metadata()))
    return values


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint8", "int32", "int64"])
def test_ours_are_read_by_all_three(tmp_path: Path, dtype: str) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = write_ours(tmp_path, replace(OURS, dtype=np.dtype(dtype), shard_rows=16, chunk_rows=4))
    assert isinstance(check(str(tmp_path), values), MappedRows)
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}).result()
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
    layout = Layout(60_000 if len(row_shape) < 2 else 700, row_shape, np.dtype("float32"), 1024, 61_440)
    values = np.random.default_rng(0).random((layout.rows, *row_shape), np.float32)
    write_blocks(tmp_path, layout, [values])
    check(str(tmp_path), values)
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    values.reshape(-1)[-1] = np.inf
    with pytest.raises(UserError, match=f"ours: row {layout.rows - 1} is NaN or infinite"):
        write_blocks(tmp_path, layout, [values[:9], values[9:]])


def write_blocks(folder: Path, layout: Layout, blocks: list[NDArray[Any]]) -> None:
    file = folder / layout.shard_key(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        writer = ShardWriter(opened, layout, "ours", 0)
        for block in blocks:
            writer.append(block)
        writer.finish()
    (folder / "zarr.json").write_text(json.dumps(layout.metadata()))


RAGGED = replace(OURS, rows=24)


def test_ours_of_short_shards_are_read_by_all_three(tmp_path: Path) -> None:
    """As ragged arrays are: what no item has is the fill value to everybody."""
    tensorstore = pytest.importorskip("tensorstore")
    values = write_ours(tmp_path, RAGGED, lengths=[5, 0, 8])
    check(str(tmp_path), values)
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}).result()
    np.testing.assert_array_equal(array.read().result(), values)


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
    write_ours(ragged, RAGGED, lengths=[5, 0, 8])
    return fixed, ragged


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2), st.data())
def test_any_flipped_bit_of_ours_is_found(ours: tuple[Path, Path], shard: int, data: st.DataObject) -> None:
    check_flip(ours[0], OURS, shard, data)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([0, 2]), st.data())
def test_any_flipped_bit_of_ours_with_short_shards_is_found(
    ours: tuple[Path, Path], shard: int, data: st.DataObject
) -> None:
    check_flip(ours[1], RAGGED, shard, data)


def check_flip(folder: Path, layout: Layout, shard: int, data: st.DataObject) -> None:
    file = folder / layout.shard_key(shard)
    bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
    with flipped(file, bit), pytest.raises(UserError, match=f"{file} is damaged"):
        take(open_array(str(folder)), range(layout.rows))


@pytest.mark.parametrize("lengths", [None, [5, 0, 8], [8, 0, 8]])
def test_a_shard_of_ours_in_another_s_place_is_damage(tmp_path: Path, lengths: list[int] | None) -> None:
    layout = replace(OURS, rows=24)
    write_ours(tmp_path, layout, lengths)
    first, last = (tmp_path / layout.shard_key(shard) for shard in (0, 2))
    first.rename(tmp_path / "aside")
    last.rename(first)
    (tmp_path / "aside").rename(last)
    for row, file in ((0, first), (16, last)):
        with pytest.raises(UserError, match=f"{file} is damaged"):
            take(open_array(str(tmp_path)), [row])


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_shard_of_ours_that_is_missing_is_not_zeros(tmp_path: Path, shard: int) -> None:
    """We leave none out: unlike others' arrays, one without it is not whole."""
    write_ours(tmp_path)
    file = tmp_path / OURS.shard_key(shard)
    file.unlink()
    with pytest.raises(UserError, match=f"{file} is missing"):
        take(open_array(str(tmp_path)), range(OURS.rows))


def test_a_shard_of_ours_that_lacks_chunks_is_not_zeros(tmp_path: Path) -> None:
    """As of another array, with fewer rows: whole in itself."""
    write_ours(tmp_path / "short", replace(OURS, rows=12))
    write_ours(tmp_path / "whole")
    file = tmp_path / "whole" / OURS.shard_key(1)
    file.write_bytes((tmp_path / "short" / OURS.shard_key(1)).read_bytes())
    read = take(open_array(str(tmp_path / "whole")), [8, 11])  # the rows that it has may be read
    assert read.shape == (2, 8, 64)
    assert not isinstance(open_array(str(tmp_path / "whole")), MappedRows)  # beyond it lies no memory
