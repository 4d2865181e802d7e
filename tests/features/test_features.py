"""The feature store: what is written is read by zarr-python and by us alike; what is wrong is refused by name."""

import io
import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from xmodal.errors import UserError
from xmodal.features import zarr_arrays
from xmodal.features.feature_spec import Dtype, FeatureSpec
from xmodal.features.store import (
    FeatureStore,
    extents_file,
    index_files,
    shard_file,
    shard_ranges,
    write_ragged_shard,
    write_shard,
)
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

SMALL = FeatureSpec("small", (8, 64), rows_per_chunk=2, rows_per_shard=8)  # 1 KiB a row
RAGGED = FeatureSpec("clips", (64,), "float16", True, rows_per_chunk=4, rows_per_shard=32, items_per_shard=5)
ABSENT = {"id3": "gone", "id12": "broken"}
Files = dict[str, bytes]


@dataclass(frozen=True)
class Nothing:
    pass


def write_store(
    root: Path | str,
    spec: FeatureSpec,
    values: Any,
    block: int = 3,
    absent: Mapping[str, str] = ABSENT,
    change: Callable[[Files], Files] = lambda files: files,
) -> Output:
    """A unit for the metadata and one a shard, as every feature stage has; ids are id0, id1, …

    Of a ragged array `values` are a list, with the rows of each item. `change` is what another version wrote otherwise.
    """
    ids = [f"id{row}" for row in range(len(values))]

    def plan(config: Nothing, inputs: Inputs) -> Iterator[tuple[str, range]]:
        yield "index", range(0)
        yield from ((f"shard-{n:05d}", items) for n, items in enumerate(shard_ranges(spec, len(values))))

    def work(items: range, sink: Sink) -> Counts:
        if not items:
            for name, data in change(index_files(spec, ids, {"network": "none"})).items():
                with sink.file(name) as file:
                    file.write(data)
            return {}
        shard = items.start // spec.shard_items
        with sink.file(shard_file(spec, shard)) as file:
            if spec.ragged:
                extents = write_ragged_shard(file, spec, items, (values[item] for item in items))
            else:
                starts = range(items.start, items.stop, block)
                write_shard(file, spec, items, (values[start : min(start + block, items.stop)] for start in starts))
        if spec.ragged:
            with sink.file(extents_file(spec, shard)) as file:
                file.write(extents)
        for id in ids[items.start : items.stop]:
            if id in absent:
                sink.fail(id, "unreadable", absent[id])
        return {"rows": len(items)}

    return build(Stage("toy", Nothing(), plan, lambda config, inputs: work), open_storage(str(root)))


def some_values(spec: FeatureSpec, rows: int, seed: int = 0) -> NDArray[Any]:
    """Any bits that are finite numbers; some rows are all zeros, which other writers would leave out."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 256, rows * spec.row_bytes, np.uint8).view(spec.dtype).reshape(rows, *spec.row_shape)
    values = np.where(np.isfinite(bits), bits, np.array(1, spec.dtype))
    values[random.random(rows) < 0.3] = 0
    return values


def some_items(spec: FeatureSpec, lengths: Iterable[int], seed: int = 0) -> list[NDArray[Any]]:
    """An item of each length."""
    return [some_values(spec, length, seed + item) for item, length in enumerate(lengths)]


row_shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)
dtypes = st.sampled_from(get_args(Dtype))


def rows_to_a_page(row_shape: tuple[int, ...], dtype: str) -> int:
    return 4096 // math.gcd(4096, math.prod(row_shape) * np.dtype(dtype).itemsize)


@st.composite
def specs(draw: st.DrawFn) -> FeatureSpec:
    row_shape, dtype, chunk = draw(row_shapes), draw(dtypes), draw(st.sampled_from([1, 2, 3, 8]))
    shard = math.lcm(rows_to_a_page(row_shape, dtype), chunk) * draw(st.integers(1, 2))
    return FeatureSpec("any", row_shape, dtype, False, chunk, shard)


@settings(max_examples=15, deadline=None)
@given(specs(), st.floats(0, 2.5), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_zarr_and_we_read_what_was_written(spec: FeatureSpec, shards: float, block: int, seed: int) -> None:
    values = some_values(spec, int(spec.shard_rows * shards), seed)
    order = np.random.default_rng(seed).permutation(len(values))
    with tempfile.TemporaryDirectory() as root:
        output = write_store(root, spec, values, block, absent={})
        array = zarr.open_group(output.where, mode="r")["any"]
        assert isinstance(array, zarr.Array)
        assert (array.shape, array.dtype) == (values.shape, values.dtype)
        np.testing.assert_array_equal(array[...], values)
        store = FeatureStore(output)
        assert store.spec == spec
        np.testing.assert_array_equal(store.take(order), values[order])
        store.verify()


def tensorstore_reads(folder: str) -> Any:
    tensorstore = pytest.importorskip("tensorstore")
    return tensorstore.open({"driver": "zarr3", "kvstore": f"file://{folder}/"}).result()


@settings(max_examples=10, deadline=None)
@given(specs(), st.floats(0.1, 2.5), st.integers(0, 2**32 - 1))
def test_tensorstore_reads_what_was_written(spec: FeatureSpec, shards: float, seed: int) -> None:
    values = some_values(spec, int(spec.shard_rows * shards), seed)
    with tempfile.TemporaryDirectory() as root:
        output = write_store(root, spec, values, 1000, absent={})
        found = tensorstore_reads(f"{output.where}/any").read().result()
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return write_store(tmp_path, SMALL, VALUES)


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
        with pytest.raises(UserError, match=r"toy/[0-9a-f]{16} has no features of 'id3': leave out"):
            read()


def test_wrong_ids_and_rows_are_named(output: Output) -> None:
    store = FeatureStore(output)
    with pytest.raises(UserError, match=r"has no row for 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more"):
        store.rows(["id1", *(f"x{n}" for n in range(7))])
    for row in (-1, 21):
        with pytest.raises(IndexError, match=f"row {row} is outside the 21 rows of"):
            store.take([0, row])
    for rows in ([0.0], [True], [[0]], 0):
        with pytest.raises(TypeError, match="rows are a sequence of integers"):
            store.take(rows)


@pytest.mark.parametrize(
    ("ids", "said"),
    [("id1", r"give a list of ids: \['id1'\]"), ([1], "ids are text: '1', not 1"), ([0], "ids are text: '0', not 0")],
)
def test_a_single_id_and_ids_that_are_no_text_are_refused(output: Output, ids: Any, said: str) -> None:
    for read in (FeatureStore(output).read, FeatureStore(output).rows):
        with pytest.raises(TypeError, match=said):
            read(ids)


def test_a_store_is_shown_in_one_line(output: Output) -> None:
    assert re.fullmatch(r"<FeatureStore \w+: 21 items, [\d x]+, float\d+, in .*/toy/\w+>", repr(FeatureStore(output)))


def test_a_store_is_read_only(output: Output) -> None:
    FeatureStore(output).take([0])[:] = 7
    np.testing.assert_array_equal(FeatureStore(output).take([0]), VALUES[:1])


def test_a_store_survives_pickling(output: Output) -> None:
    store = pickle.loads(pickle.dumps(FeatureStore(output, "small")))
    np.testing.assert_array_equal(store.read(["id9"]), VALUES[[9]])
    assert store.absent == {"id3", "id12"}


CHILDREN = """
import multiprocessing, sys, threading
from xmodal.features.store import FeatureStore
where, context = sys.argv[1:]
store = FeatureStore(where)
asked = [[n % 3, 4 + n % 8, 13 + n % 8] for n in range(40)]
expected = FeatureStore(where).take(range(13, 21))
with multiprocessing.get_context(context).Pool(2) as pool:
    found = pool.map_async(store.take, asked)
    mine = [store.take(rows) for rows in asked]
    theirs = found.get(60)
print(all((a == b).all() and (a[2] == expected[rows[2] - 13]).all() for rows, a, b in zip(asked, mine, theirs)))
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_store_is_read_by_children_and_their_parent_at_once(output: Output, context: str) -> None:
    command = [sys.executable, "-c", CHILDREN, output.where, context]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (found.stdout, found.stderr) == ("True\n", "")


def test_a_forked_child_reads_the_mapping_it_was_given(output: Output) -> None:
    """Nothing is opened again: the files may be gone."""
    store = FeatureStore(output)
    shutil.rmtree(Path(output.where) / "small")
    code, (read_end, write_end) = 0, os.pipe()
    child = os.fork()
    if not child:
        code = 0 if (store.take([20, 0]) == VALUES[[20, 0]]).all() else 1
        os.write(write_end, bytes([code]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read_end, 1) == b"\0"
    for end in (read_end, write_end):
        os.close(end)


def test_threads_share_a_store(output: Output) -> None:
    """All begin with nothing checked and nothing in memory."""
    wrong = []
    for turn in range(20):
        store, start = FeatureStore(output), threading.Barrier(4)

        def read(seed: int, store: FeatureStore = store, start: threading.Barrier = start) -> None:
            random = np.random.default_rng(seed)
            start.wait()
            for _ in range(20):
                rows = random.choice([row for row in range(21) if row not in (3, 12)], 8)
                if not (store.take(rows) == VALUES[rows]).all():
                    wrong.append(rows)

        threads = [threading.Thread(target=read, args=(4 * turn + n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_an_empty_store(tmp_path: Path) -> None:
    store = FeatureStore(write_store(tmp_path, SMALL, VALUES[:0]))
    assert (len(store), store.ids, store.take([]).shape) == (0, (), (0, 8, 64))


LENGTHS = [3, 0, 5, 1, 9, 7, 0, 0, 12, 2, 4, 4]
CLIPS = some_items(RAGGED, LENGTHS, 5)


write_small = partial(write_shard, io.BytesIO(), SMALL, range(8, 16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_row(bad: float) -> None:
    values = np.zeros((8, 8, 64), np.float16)
    values[5, 3, 7] = bad
    with pytest.raises(UserError, match="small: row 13 is NaN or infinite"):
        write_small([values[:3], values[3:]])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_in_any_array(dtype: Dtype, bad: float) -> None:
    spec = replace(SMALL, dtype=dtype)
    values = np.zeros((8, 8, 64), dtype)
    values[7, 7, 63] = bad
    with pytest.raises(UserError, match="small: row 7 is NaN or infinite"):
        write_shard(io.BytesIO(), spec, range(8), [values])
    with pytest.raises(UserError, match=r"clips: .* is NaN or infinite"):
        write_ragged_shard(io.BytesIO(), replace(RAGGED, dtype=dtype), range(5, 10), spoilt_clips(dtype, bad))


def spoilt_clips(dtype: str, bad: float) -> list[NDArray[Any]]:
    clips = [np.zeros((length, 64), dtype) for length in (4, 0, 3, 5, 1)]
    clips[3][2, 63] = bad
    return clips


def test_an_item_that_is_not_finite_is_named() -> None:
    """Its row among the values of all shards would tell nobody which clip to look at."""
    with pytest.raises(UserError, match=r"clips: .*item 8\b.* is NaN or infinite"):
        write_ragged_shard(io.BytesIO(), RAGGED, range(5, 10), spoilt_clips("float16", np.nan))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_largest_and_the_smallest_numbers_are_written(tmp_path: Path, dtype: Dtype) -> None:
    about = np.finfo(dtype)
    edges = [about.max, about.min, about.tiny, about.smallest_subnormal, -about.smallest_subnormal, -0.0, 0.0, 1.0]
    values = np.array(edges, dtype)[:, None, None] * np.ones((8, 64), dtype)
    found = FeatureStore(write_store(tmp_path, replace(SMALL, dtype=dtype), values, absent={})).take(range(8))
    assert found.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "blocks",
    [
        [np.zeros((8, 8, 64), np.float32)],
        [np.zeros((8, 8, 64), ">f2")],
        [np.zeros((2, 8, 64), np.float16), np.zeros((6, 64, 8), np.float16)],
        [np.zeros((), np.float16)],
        [np.zeros((9, 8, 64), np.float16)],  # longer than the shard
        [np.zeros((3, 8, 64), np.float16)],  # shorter
    ],
)
def test_rows_that_do_not_fit_are_refused(blocks: list[NDArray[Any]]) -> None:
    with pytest.raises(AssertionError):
        write_small(blocks)


@pytest.mark.parametrize("rows", [range(0), range(4, 12), range(9)])
def test_what_is_no_shard_is_refused(rows: range) -> None:
    with pytest.raises(AssertionError):
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
    with pytest.raises(AssertionError, match="an id has two rows"):
        index_files(SMALL, ["a", "a"], {})


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return FeatureStore(write_store(tmp_path_factory.mktemp("clips"), RAGGED, CLIPS, absent={"id1": "gone"}))


@pytest.mark.parametrize("other", [SMALL, replace(SMALL, dtype="float32"), replace(SMALL, name="clips_extents")])
def test_two_arrays_of_one_name_are_refused(other: FeatureSpec) -> None:
    """Each would be the other's metadata."""
    with pytest.raises(AssertionError, match=other.name):
        index_files([SMALL, RAGGED, other], ["a"], {})


def test_what_lies_on_the_disk_alone_is_asked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FeatureSpec("grid", (32, 1024))
    values = np.random.default_rng(0).random((12, *spec.row_shape)).astype(spec.dtype)
    store, asked = FeatureStore(write_store(tmp_path, spec, values, absent={})), list[int]()
    rows = np.array([7, 3, 3, 11])
    monkeypatch.setattr(
        zarr_arrays._Addresses, "will_need", lambda self, start, size: asked.append(start // spec.row_bytes)
    )
    for is_there, expected in ((True, [3, 7, 11]), (True, []), (False, [3, 7, 11])):  # first they are to be checked
        monkeypatch.setattr(zarr_arrays._Addresses, "in_memory", lambda self, offset, there=is_there: there)
        asked.clear()
        np.testing.assert_array_equal(store.take(rows), values[rows])
        assert asked == expected
