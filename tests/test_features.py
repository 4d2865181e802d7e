"""The feature store: what is written is read by zarr-python and by us alike; what is wrong is refused by name."""

import io
import json
import math
import pickle
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.engine import build
from pipelines.stage import Counts, Inputs, Sink, Stage
from xmodal.features import Dtype, FeatureSpec, FeatureStore, index_files, shard_file, shard_ranges, write_shard
from xmodal.outputs import Output
from xmodal.storage import open_storage
from xmodal.trouble import Trouble

SMALL = FeatureSpec("small", (8, 64), rows_per_chunk=2, rows_per_shard=8)  # 1 KiB a row
ABSENT = {"id3": "gone", "id12": "broken"}


@dataclass(frozen=True)
class Nothing:
    pass


def write_store(
    root: Path | str, spec: FeatureSpec, values: NDArray[Any], block: int = 3, absent: Mapping[str, str] = ABSENT
) -> Output:
    """A unit for the metadata and one a shard, as every feature stage has; ids are id0, id1, …"""
    ids = [f"id{row}" for row in range(len(values))]

    def plan(config: Nothing, inputs: Inputs) -> Iterator[tuple[str, range]]:
        yield "index", range(0)
        yield from ((f"shard-{n:05d}", rows) for n, rows in enumerate(shard_ranges(spec, len(values))))

    def work(rows: range, sink: Sink) -> Counts:
        if not rows:
            for name, data in index_files(spec, ids, {"network": "none"}).items():
                with sink.file(name) as file:
                    file.write(data)
            return {}
        blocks = (values[start : min(start + block, rows.stop)] for start in range(rows.start, rows.stop, block))
        with sink.file(shard_file(spec, rows.start // spec.shard_rows)) as file:
            write_shard(file, spec, rows, blocks)
        for id in ids[rows.start : rows.stop]:
            if id in absent:
                sink.fail(id, "unreadable", absent[id])
        return {"rows": len(rows)}

    return build(Stage("toy", Nothing(), plan, lambda config, inputs: work), open_storage(str(root)))


def some_values(spec: FeatureSpec, rows: int, seed: int = 0) -> NDArray[Any]:
    """Any bits that are finite numbers; some rows are all zeros, which other writers would leave out."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 256, rows * spec.row_bytes, np.uint8).view(spec.dtype).reshape(rows, *spec.row_shape)
    values = np.where(np.isfinite(bits), bits, np.array(1, spec.dtype))
    values[random.random(rows) < 0.3] = 0
    return values


@st.composite
def specs(draw: st.DrawFn) -> FeatureSpec:
    row_shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    dtype = draw(st.sampled_from(get_args(Dtype)))
    chunk = draw(st.sampled_from([1, 2, 3, 8]))
    page = 4096 // math.gcd(4096, math.prod(row_shape) * np.dtype(dtype).itemsize)  # rows that end on one
    return FeatureSpec("any", row_shape, dtype, False, chunk, math.lcm(page, chunk) * draw(st.integers(1, 2)))


@settings(max_examples=30, deadline=None)
@given(specs(), st.floats(0, 2.5), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_zarr_and_we_read_what_was_written(spec: FeatureSpec, shards: float, block: int, seed: int) -> None:
    values = some_values(spec, int(spec.shard_rows * shards), seed)
    order = np.random.default_rng(seed).permutation(len(values))
    with tempfile.TemporaryDirectory() as root:
        output = write_store(root, spec, values, block, absent={})
        array = zarr.open_group(output.where, mode="r")["values"]
        assert isinstance(array, zarr.Array)
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        np.testing.assert_array_equal(array[...], values)
        store = FeatureStore(output)
        assert store.spec == spec
        np.testing.assert_array_equal(store.take(order), values[order])


def test_tensorstore_reads_what_was_written(tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = some_values(SMALL, 21)
    where = write_store(tmp_path, SMALL, values).where
    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{where}/values/"}).result()
    np.testing.assert_array_equal(array.read().result(), values)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return write_store(tmp_path, SMALL, some_values(SMALL, 21))


VALUES = some_values(SMALL, 21)


def test_reading_by_id_and_by_row(output: Output) -> None:
    for source in (output, output.where, f"{output.where}/"):
        store = FeatureStore(source)
        assert len(store) == 21
        assert store.ids == tuple(f"id{row}" for row in range(21))
        assert store.provenance == {"network": "none"}
        assert store.rows(["id20", "id0", "id20"]).tolist() == [20, 0, 20]
        np.testing.assert_array_equal(store.read(["id20", "id0", "id20"]), VALUES[[20, 0, 20]])
        np.testing.assert_array_equal(store.take([]), VALUES[:0])


def test_reading_into_a_buffer(output: Output) -> None:
    store, out = FeatureStore(output), np.ones((2, 8, 64), np.float16)
    assert store.take(np.array([7, 8]), out) is out
    np.testing.assert_array_equal(out, VALUES[[7, 8]])
    for wrong in (np.ones((3, 8, 64), np.float16), np.ones((2, 8, 64), np.float32), np.ones((2, 64), np.float16)):
        with pytest.raises(ValueError, match=r"out is .*, not \(2, 8, 64\)"):
            store.take([7, 8], wrong)


def test_absent_rows_are_refused_however_they_are_asked_for(output: Output) -> None:
    store = FeatureStore(output)
    assert store.absent == {"id3", "id12"}
    for read in (lambda: store.rows(["id1", "id3"]), lambda: store.read(["id3"]), lambda: store.take([0, 3])):
        with pytest.raises(Trouble, match=r"toy/[0-9a-f]{16} has no features of 'id3': leave out"):
            read()


def test_wrong_ids_and_rows_are_named(output: Output) -> None:
    store = FeatureStore(output)
    with pytest.raises(Trouble, match=r"has no row for 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more"):
        store.rows(["id1", *(f"x{n}" for n in range(7))])
    for row in (-1, 21):
        with pytest.raises(IndexError, match=f"row {row} is outside the 21 rows of"):
            store.take([0, row])
    for rows in ([0.0], [True], [[0]], 0):
        with pytest.raises(TypeError, match="rows are a sequence of integers"):
            store.take(rows)


def test_a_store_is_read_only(output: Output) -> None:
    FeatureStore(output).take([0])[:] = 7
    np.testing.assert_array_equal(FeatureStore(output).take([0]), VALUES[:1])


def test_a_store_survives_pickling_and_forking(output: Output) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(FeatureStore(output))).read(["id9"]), VALUES[[9]])
    code = f"""
import multiprocessing
from xmodal.features import FeatureStore
store = FeatureStore({output.where!r})
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(all((rows == store.take([n])).all() for n, rows in zip((0, 9, 20), pool.map(store.take, [[0], [9], [20]]))))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("True\n", "")


def test_an_empty_store(tmp_path: Path) -> None:
    store = FeatureStore(write_store(tmp_path, SMALL, VALUES[:0]))
    assert (len(store), store.ids, store.take([]).shape) == (0, (), (0, 8, 64))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda f: (f / "values/c/1/0/0").unlink(), r"values/c/1/0/0 is missing"),
    "truncated shard": (lambda f: cut(f / "values/c/0/0/0"), r"values/c/0/0/0 is \d+ bytes instead of"),
    "crc": (lambda f: flip(f / "values/c/2/0/0", -1), r"values/c/2/0/0 does not end in the index of its 5 rows"),
    "index": (lambda f: flip(f / "values/c/2/0/0", -30), r"values/c/2/0/0 does not end in the index of its 5 rows"),
    "unfinished": (lambda f: (f / "complete.json").unlink(), r"toy/[0-9a-f]{16} holds no finished features"),
    "other units": (lambda f: flip(f / "units.tsv", 10), r"units.tsv is not what was committed"),
    "no group": (lambda f: (f / "zarr.json").unlink(), r"[0-9a-f]{16}/zarr.json is missing"),
    "no array": (lambda f: (f / "values/zarr.json").unlink(), r"values/zarr.json is missing"),
    "no JSON": (lambda f: flip(f / "values/zarr.json", 0), r"values/zarr.json is corrupt"),
    "no rows": (lambda f: flip(f / "rows.parquet", -1), r"rows.parquet is corrupt"),
    "layout": (lambda f: put(f / "zarr.json", b'"layout":1', b'"layout":2'), r"zarr.json is of another version"),
    "codec": (lambda f: put(f / "values/zarr.json", b'"little"', b'"bigger"'), r"values/zarr.json is of another"),
    "dtype": (lambda f: put(f / "values/zarr.json", b"float16", b"float99"), r"is no feature array .*float99"),
    "length": (lambda f: put(f / "values/zarr.json", b"[21,", b"[20,"), r"rows.parquet does not name the 20 rows"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_directory_is_refused_by_file(output: Output, name: str) -> None:
    spoil, message = SPOILT[name]
    spoil(Path(output.where))
    with pytest.raises(Trouble, match=message):
        FeatureStore(output.where)


def test_no_directory_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Trouble, match="nowhere holds no finished features: build them, or name"):
        FeatureStore(str(tmp_path / "nowhere"))


def test_a_copied_directory_is_a_store(output: Output, tmp_path: Path) -> None:
    copy = shutil.copytree(output.where, tmp_path / "elsewhere")
    np.testing.assert_array_equal(FeatureStore(str(copy)).read(["id9"]), VALUES[[9]])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def put(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert old in data
    assert len(old) == len(new)
    file.write_bytes(data.replace(old, new))


write_small = partial(write_shard, io.BytesIO(), SMALL, range(8, 16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_row(bad: float) -> None:
    values = np.zeros((8, 8, 64), np.float16)
    values[5, 3, 7] = bad
    with pytest.raises(Trouble, match="small: row 13 is NaN or infinite"):
        write_small([values[:3], values[3:]])


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([np.zeros((8, 8, 64), np.float32)], r"rows from 8 on are \(8, 64\) float32, not \(8, 64\) float16"),
        ([np.zeros((8, 8, 64), ">f2")], r"rows from 8 on are \(8, 64\) >f2"),
        ([np.zeros((2, 8, 64), np.float16), np.zeros((6, 64, 8), np.float16)], r"rows from 10 on are \(64, 8\)"),
        ([np.zeros((), np.float16)], "rows from 8 on are"),
        ([np.zeros((9, 8, 64), np.float16)], "row 16 and those after it are more than"),
        ([np.zeros((3, 8, 64), np.float16)], "row 11 and those after it up to 16 never came"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_row(blocks: list[NDArray[Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_small(blocks)


@pytest.mark.parametrize("rows", [range(0), range(4, 12), range(9)])
def test_what_is_no_shard_is_refused(rows: range) -> None:
    with pytest.raises(ValueError, match="is no shard of an array of fixed rows, 8 a shard"):
        write_shard(io.BytesIO(), SMALL, rows, [])


def test_blocks_of_any_layout_give_the_same_bytes() -> None:
    values = some_values(SMALL, 8)
    scattered = np.asfortranarray(values)
    files = [io.BytesIO() for _ in range(3)]
    for file, blocks in zip(files, ([values], [scattered], [values[:0], values[:1], scattered[1:]]), strict=True):
        write_shard(file, SMALL, range(8), blocks)
    assert len({file.getvalue() for file in files}) == 1


def test_a_writer_holds_one_block() -> None:
    spec = FeatureSpec("long", (1024,), "float32", rows_per_shard=16_384)  # 64 MiB
    block = np.ones((256, 1024), np.float32)
    with tempfile.TemporaryFile() as file:
        tracemalloc.start()
        write_shard(file, spec, range(16_384), (block for _ in range(64)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert file.tell() > 2**26
    assert peak < 2**21


def test_metadata_do_not_depend_on_the_order_of_provenance() -> None:
    ids = ["a", "b"]
    first = index_files(SMALL, ids, {"network": "x", "weights": {"name": "y", "sha256": "z"}})
    assert first == index_files(SMALL, ids, {"weights": {"sha256": "z", "name": "y"}, "network": "x"})
    assert json.loads(first["zarr.json"])["attributes"]["provenance"]["weights"]["sha256"] == "z"


def test_an_id_has_one_row() -> None:
    with pytest.raises(ValueError, match="an id has two rows"):
        index_files(SMALL, ["a", "a"], {})
