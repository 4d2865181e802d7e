"""The feature store: what is written is read by zarr-python and by us alike; what is wrong is refused by name."""

import io
import json
import math
import mmap
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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

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


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing shard": (lambda f: (f / "small/c/1/0/0").unlink(), r"small/c/1/0/0 is missing"),
    "truncated shard": (lambda f: cut(f / "small/c/0/0/0"), r"small/c/0/0/0 is \d+ bytes instead of"),
    "grown shard": (lambda f: grow(f / "small/c/0/0/0"), r"small/c/0/0/0 is \d+ bytes instead of"),
    "crc": (lambda f: flip(f / "small/c/2/0/0", -1), r"small/c/2/0/0 is damaged: it does not hold the index"),
    "index": (lambda f: flip(f / "small/c/2/0/0", -30), r"small/c/2/0/0 is damaged: it does not hold the index"),
    "other shard": (lambda f: shutil.copy(f / "small/c/0/0/0", f / "small/c/2/0/0"), r"small/c/2/0/0 is \d+ bytes"),
    "unfinished": (lambda f: (f / "complete.json").unlink(), r"toy/[0-9a-f]{16} holds no finished features"),
    "other units": (lambda f: flip(f / "units.tsv", 10), r"units.tsv is not what was committed"),
    "no group": (lambda f: (f / "zarr.json").unlink(), r"[0-9a-f]{16}/zarr.json is missing"),
    "no array": (lambda f: (f / "small/zarr.json").unlink(), r"small/zarr.json is missing"),
    "no rows": (lambda f: (f / "rows.parquet").unlink(), r"rows.parquet is missing"),
    "longer rows": (lambda f: grow(f / "rows.parquet"), r"rows.parquet is \d+ bytes instead of"),
    "codec": (lambda f: put(f / "small/zarr.json", b'"little"', b'"bigger"'), r"small/zarr.json is not what was comm"),
    "dtype": (lambda f: put(f / "small/zarr.json", b"float16", b"float99"), r"small/zarr.json is not what was comm"),
    "length": (lambda f: put(f / "small/zarr.json", b"[21,", b"[20,"), r"small/zarr.json is not what was comm"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_directory_is_refused_by_file(output: Output, name: str) -> None:
    spoil, message = SPOILT[name]
    spoil(Path(output.where))
    with pytest.raises(UserError, match=message):
        FeatureStore(output.where)


LENGTHS = [3, 0, 5, 1, 9, 7, 0, 0, 12, 2, 4, 4]
CLIPS = some_items(RAGGED, LENGTHS, 5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Output, Output]:
    """A fixed and a ragged store whose files are spoilt and mended again; nothing is absent."""
    folder = tmp_path_factory.mktemp("pair")
    return write_store(folder / "a", SMALL, VALUES, absent={}), write_store(folder / "b", RAGGED, CLIPS, absent={})


def read_everything(output: Output) -> None:
    """One item after the other; a value that is not what was written fails the test, whatever comes later."""
    store = FeatureStore(output)
    for row in range(len(store)):
        (got,) = store.read([f"id{row}"])
        np.testing.assert_array_equal(got, CLIPS[row] if store.spec.ragged else VALUES[row])


def spoilt_rows(spec: FeatureSpec, shard: int, at: int) -> range:
    """The rows in the chunk that holds this byte of a shard."""
    first = shard * spec.shard_rows + at // (spec.chunk_rows * spec.row_bytes) * spec.chunk_rows
    return range(first, first + spec.chunk_rows)


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.data())
def test_any_flipped_bit_of_a_shard_is_found(pair: tuple[Output, Output], ragged: bool, data: st.DataObject) -> None:
    output, spec = pair[ragged], RAGGED if ragged else SMALL
    shard = data.draw(st.integers(0, 2))
    file = Path(output.where) / shard_file(spec, shard)
    size = file.stat().st_size
    at = data.draw(st.integers(0, size - 1) | st.integers(max(0, size - 150), size - 1))
    chunks = size // (spec.chunk_rows * spec.row_bytes)
    with flipped(file, 8 * at + data.draw(st.integers(0, 7))):
        with pytest.raises(UserError) as caught:
            read_everything(output)
        with pytest.raises(UserError, match=re.escape(shard_file(spec, shard))):
            FeatureStore(output).verify()
    assert f"{output.where}/{shard_file(spec, shard)} is damaged" in str(caught.value)
    if at < chunks * spec.chunk_rows * spec.row_bytes:
        rows = spoilt_rows(spec, shard, at)
        assert f"one of the rows {rows[0]} to {rows[-1]} is not what was written" in str(caught.value)


def test_a_flip_harms_no_other_row_and_is_found_again(pair: tuple[Output, Output]) -> None:
    file = Path(pair[0].where) / shard_file(SMALL, 1)
    with flipped(file, 8 * 5000):  # byte 5000 of the shard: rows 12 and 13
        store = FeatureStore(pair[0])
        others = [row for row in range(21) if row not in (12, 13)]
        np.testing.assert_array_equal(store.take(others), VALUES[others])
        for _ in range(2):
            with pytest.raises(UserError, match=r"small/c/1/0/0 is damaged: one of the rows 12 to 13 is not what"):
                store.take([0, 13])
        with pytest.raises(UserError, match=r"small/c/1/0/0 is not what was committed"):
            store.verify()
    np.testing.assert_array_equal(store.take([13]), VALUES[[13]])  # mended: nobody had believed it


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.data())
def test_any_flipped_bit_of_a_small_file_is_found(
    pair: tuple[Output, Output], ragged: bool, data: st.DataObject
) -> None:
    """rows.parquet, zarr.json of the group and of each array, and the extents."""
    output, spec = pair[ragged], RAGGED if ragged else SMALL
    name = data.draw(st.sampled_from([n for n in output.files if not n.startswith(f"{spec.name}/c/")]))
    file = Path(output.where) / name
    named = re.escape(f"{output.where}/{name} is not what was committed")
    bit = data.draw(st.integers(0, 8 * file.stat().st_size - 1))
    with flipped(file, bit), pytest.raises(UserError, match=named):
        FeatureStore(Output(output.storage, output.folder))


@settings(max_examples=30, deadline=None)
@given(st.booleans(), st.sampled_from([0, 1, 2]), st.floats(0, 0.999), st.integers(1, 5000))
def test_a_shard_of_another_length_is_refused(
    pair: tuple[Output, Output], ragged: bool, shard: int, part: float, more: int
) -> None:
    output, spec = pair[ragged], RAGGED if ragged else SMALL
    file = Path(output.where) / shard_file(spec, shard)
    right = file.read_bytes()
    for wrong in (right[: int(len(right) * part)], right + bytes(more), right + right):
        file.write_bytes(wrong)
        with pytest.raises(UserError, match=re.escape(f"{shard_file(spec, shard)} is {len(wrong)} bytes instead of")):
            FeatureStore(output)
    file.write_bytes(right)
    read_everything(output)


VERSIONS: dict[str, tuple[bytes, bytes]] = {
    "an earlier one": (b'"layout":4', b'"layout":1'),
    "a later one": (b'"layout":4', b'"layout":5'),
}


@pytest.mark.parametrize("name", VERSIONS)
def test_a_store_of_another_version_is_refused(tmp_path: Path, name: str) -> None:
    old, new = VERSIONS[name]
    output = write_store(tmp_path, SMALL, VALUES, change=partial(replaced, "zarr.json", old, new))
    with pytest.raises(UserError, match=r"toy/[0-9a-f]{16} is a store of another version of xmodal"):
        FeatureStore(output)


def test_a_store_of_the_first_layout_is_refused(tmp_path: Path) -> None:
    """As the first version wrote it: one array, `values`, and other attributes."""
    attributes = {"feature": {"layout": 1, "name": "small"}, "provenance": {}}
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()
    output = write_store(tmp_path, SMALL, VALUES, change=lambda files: files | {"zarr.json": group})
    with pytest.raises(UserError, match=r"toy/[0-9a-f]{16} .* of this layout|of another version"):
        FeatureStore(output)


FOREIGN: dict[str, tuple[str, bytes, bytes]] = {
    "no JSON": ("zarr.json", b'{"', b'["'),
    "no features": ("zarr.json", b'"features"', b'"otherwise"'),
    "fewer rows": ("small/zarr.json", b"[21,", b"[20,"),
    "more rows": ("small/zarr.json", b"[21,", b"[22,"),
    "big-endian": ("small/zarr.json", b'"little"', b'"big"'),
    "unknown dtype": ("small/zarr.json", b'"float16"', b'"float99"'),
    "other fill": ("small/zarr.json", b'"fill_value":0', b'"fill_value":1'),
    "index at start": ("small/zarr.json", b'"end"', b'"start"'),
    "no checksums": ("small/zarr.json", b'"checksums"', b'"something"'),
    "no shards": ("small/zarr.json", b'"sharding_indexed"', b'"bytes"'),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_metadata_that_we_would_not_write_are_refused(tmp_path: Path, name: str) -> None:
    """Committed as they are, so that no checksum tells."""
    output = write_store(tmp_path, SMALL, VALUES, change=partial(replaced, *FOREIGN[name]))
    with pytest.raises(UserError, match=r"toy/[0-9a-f]{16} describes no feature array of this layout"):
        FeatureStore(output)


@pytest.mark.parametrize("rows", [b"no table at all", b""])
def test_rows_that_are_no_table_are_refused(tmp_path: Path, rows: bytes) -> None:
    output = write_store(tmp_path, SMALL, VALUES, change=lambda files: files | {"rows.parquet": rows})
    with pytest.raises(UserError, match=r"rows.parquet is corrupt"):
        FeatureStore(output)


def replaced(name: str, old: bytes, new: bytes, files: Files) -> Files:
    assert old in files[name]
    return files | {name: files[name].replace(old, new)}


def test_a_shard_that_lacks_chunks_is_refused(tmp_path: Path) -> None:
    """As of another array, with fewer rows: whole in itself. Beyond them lies no memory."""
    more = index_files(SMALL, [f"id{row}" for row in range(16)], {})
    output = write_store(tmp_path, SMALL, VALUES[:12], absent={}, change=lambda files: more)
    with pytest.raises(UserError, match="small/c/1/0/0 does not hold its rows"):
        FeatureStore(output)


def test_an_output_that_holds_no_features_is_refused(tmp_path: Path) -> None:
    def plan(config: Nothing, inputs: Inputs) -> Iterator[tuple[str, None]]:
        yield "all", None

    def work(unit: None, sink: Sink) -> Counts:
        with sink.file("words.txt") as file:
            file.write(b"hello")
        return {}

    output = build(Stage("other", Nothing(), plan, lambda config, inputs: work), open_storage(str(tmp_path)))
    with pytest.raises(UserError, match=r"is of other, which makes no features"):
        FeatureStore(output)


def test_an_array_that_is_not_there_is_refused_by_name(output: Output) -> None:
    assert FeatureStore(output).names == ("small",)
    with pytest.raises(UserError, match=r"has no array 'large'; there are: small"):
        FeatureStore(output, "large")


@pytest.mark.parametrize("size", [16_384, 65_536])
def test_shards_that_do_not_end_on_larger_pages_are_refused(
    output: Output, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """As on machines whose pages have 16 or 64 KiB."""
    monkeypatch.setattr(mmap, "PAGESIZE", size)
    message = (
        rf"shards of 8 rows do not end on .* pages of {size:,} bytes: build them with rows_per_shard a multiple of"
    )
    with pytest.raises(UserError, match=rf"{message} {size // 1024}$"):
        FeatureStore(output)


def test_the_advice_for_larger_pages_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = write_store(tmp_path, replace(SMALL, rows_per_shard=16), VALUES)
    monkeypatch.setattr(mmap, "PAGESIZE", 16_384)
    np.testing.assert_array_equal(FeatureStore(output).take([20, 0]), VALUES[[20, 0]])


def test_no_directory_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere holds no finished features: no complete\.json; build them, or name"):
        FeatureStore(str(tmp_path / "nowhere"))


def test_a_copied_directory_is_a_store(output: Output, tmp_path: Path) -> None:
    copy = shutil.copytree(output.where, tmp_path / "elsewhere")
    np.testing.assert_array_equal(FeatureStore(str(copy)).read(["id9"]), VALUES[[9]])


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + bytes(1000))


def flip(file: Path, at: int, bit: int = 1) -> None:
    """In place, as a disk does it."""
    with file.open("r+b") as opened:
        opened.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ bit]))


@contextmanager
def flipped(file: Path, bit: int) -> Iterator[None]:
    """One bit of a file, and back again."""
    flip(file, bit // 8, 1 << bit % 8)
    try:
        yield
    finally:
        flip(file, bit // 8, 1 << bit % 8)


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


@st.composite
def ragged_stores(draw: st.DrawFn) -> tuple[FeatureSpec, list[int]]:
    """A spec and lengths that fit it, many of them 0."""
    row_shape, dtype = draw(st.lists(st.integers(1, 4), max_size=2).map(tuple)), draw(dtypes)
    chunk, items = draw(st.sampled_from([1, 3, 64])), draw(st.sampled_from([1, 1, 2, 5]))
    shard = math.lcm(rows_to_a_page(row_shape, dtype), chunk)
    lengths = draw(st.lists(st.integers(0, shard // items) | st.integers(0, 5) | st.just(0), max_size=8))
    return FeatureSpec("any", row_shape, dtype, True, chunk, shard, items), [min(n, shard // items) for n in lengths]


@settings(max_examples=15, deadline=None)
@given(ragged_stores(), st.integers(0, 2**32 - 1))
def test_ragged_arrays_read_as_they_were_written(store: tuple[FeatureSpec, list[int]], seed: int) -> None:
    spec, lengths = store
    items = some_items(spec, lengths, seed)
    random = np.random.default_rng(seed)
    order = random.permutation(np.arange(len(items)).repeat(2))
    with tempfile.TemporaryDirectory() as root:
        output = write_store(root, spec, items, absent={})
        ours = FeatureStore(output)
        assert (ours.spec, len(ours)) == (spec, len(items))
        assert ours.lengths(order).tolist() == [lengths[item] for item in order]
        for got, item in zip(ours.read(f"id{item}" for item in order), order, strict=True):
            assert got.dtype == items[item].dtype
            np.testing.assert_array_equal(got, items[item])
        check_padded(ours, items, order, random)
        check_by_extents(output, spec, items)


def check_padded(store: FeatureStore, items: list[NDArray[Any]], order: NDArray[np.int64], random: Any) -> None:
    longest = max((len(items[item]) for item in order), default=0)
    expected = np.zeros((len(order), longest, *store.spec.row_shape), store.spec.dtype)
    for row, item in zip(expected, order, strict=True):
        row[: len(items[item])] = items[item]
    np.testing.assert_array_equal(store.take_padded(order), expected)
    out = np.full_like(expected, 77)
    assert store.take_padded(order, None, out) is out
    np.testing.assert_array_equal(out, expected)
    some = np.array([item for item in order if len(items[item])], np.int64)
    places = np.array([random.integers(0, len(items[item]), 3) for item in some], np.int64).reshape(-1, 3)
    chosen = np.full((len(some), 3, *store.spec.row_shape), 77, store.spec.dtype)
    assert store.take_padded(some, places, chosen) is chosen
    for got, item, wanted in zip(chosen, some, places, strict=True):
        np.testing.assert_array_equal(got, items[item][wanted])


def check_by_extents(output: Output, spec: FeatureSpec, items: list[NDArray[Any]]) -> None:
    """As anybody else reads it, with zarr-python and tensorstore."""
    group = zarr.open_group(output.where, mode="r")
    values, extents = cast(Any, group["any"]), cast(Any, group["any_extents"])
    assert extents.shape == (len(items), 2)
    afresh = tensorstore_reads(f"{output.where}/any")
    for (start, length), item in zip(extents[...], items, strict=True):
        assert length == len(item)
        np.testing.assert_array_equal(values[start : start + length], item)
        np.testing.assert_array_equal(afresh[int(start) : int(start + length)].read().result(), item)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return FeatureStore(write_store(tmp_path_factory.mktemp("clips"), RAGGED, CLIPS, absent={"id1": "gone"}))


def test_absent_items_of_a_ragged_array_are_refused(clips: FeatureStore) -> None:
    """One that has no rows and no failure is an item without rows."""
    for read in (lambda: clips.read(["id1"]), lambda: clips.take_padded([0, 1]), lambda: clips.lengths([1])):
        with pytest.raises(UserError, match="has no features of 'id1': leave out"):
            read()
    assert [rows.shape for rows in clips.read(["id6", "id0"])] == [(0, 64), (3, 64)]
    assert clips.take_padded([6, 7]).shape == (2, 0, 64)
    assert clips.take_padded([]).shape == (0, 0, 64)
    assert clips.take_padded([6], np.zeros((1, 0), np.int64)).shape == (1, 0, 64)


def test_wrong_items_and_places_are_named(clips: FeatureStore) -> None:
    for row in (-1, 12):
        for read in (clips.lengths, clips.take_padded):
            with pytest.raises(IndexError, match=f"row {row} is outside the 12 rows of"):
                read([0, row])
    for place, row, length in ((3, 0, 3), (-1, 0, 3), (0, 6, 0), (12, 8, 12)):
        with pytest.raises(IndexError, match=f"place {place} is outside the {length} rows of its item"):
            clips.take_padded([8, row], np.array([[0, 11], [0 if length else place, place]]))
    with pytest.raises(ValueError, match=r"out is \(2, 4, 64\) float16, not \(2, 3, 64\) float16"):
        clips.take_padded([0, 3], None, np.zeros((2, 4, 64), np.float16))


@pytest.mark.parametrize("dtype", ["int32", "uint16", "int64"])
def test_places_are_integers_of_any_kind(clips: FeatureStore, dtype: str) -> None:
    found = clips.take_padded([8, 0], np.array([[11, 0], [2, 2]], dtype))
    np.testing.assert_array_equal(found, [CLIPS[8][[11, 0]], CLIPS[0][[2, 2]]])


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 2), (2, 2, 1)])
def test_places_for_another_number_of_items_are_refused(clips: FeatureStore, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - numpy's own words would do
        clips.take_padded([0, 2], np.zeros(shape, np.int64))


def test_fixed_and_ragged_arrays_are_not_mistaken_for_each_other(clips: FeatureStore, output: Output) -> None:
    with pytest.raises(TypeError, match="clips is ragged: take_padded gives its rows"):
        clips.take([0])
    for read in (FeatureStore(output).lengths, FeatureStore(output).take_padded):
        with pytest.raises(TypeError, match="small has a row an item: take gives them"):
            read([0])


def test_items_that_do_not_fit_a_shard_are_named() -> None:
    clips = [np.zeros((length, 64), np.float16) for length in (20, 0, 12, 0, 1)]
    with pytest.raises(
        UserError, match=r"clips: items 5 to 9 have more than the 32 rows of a shard: set fewer items_per_"
    ):
        write_ragged_shard(io.BytesIO(), RAGGED, range(5, 10), clips)
    write_ragged_shard(io.BytesIO(), RAGGED, range(5, 9), clips[:4])  # as many as there is room for


@pytest.mark.parametrize(
    ("clips", "message"),
    [
        ([np.zeros((1, 64), np.float32)] * 5, "^5: rows are"),  # the item
        ([np.zeros((1, 64), np.float16), np.zeros(64, np.float16)], "^6: rows are"),
        ([np.zeros((1, 64), np.float16)] * 6, "longer than"),
        ([np.zeros((1, 64), np.float16)] * 3, "shorter than"),
    ],
)
def test_items_that_do_not_fit_are_refused(clips: list[NDArray[Any]], message: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=message):
        write_ragged_shard(io.BytesIO(), RAGGED, range(5, 10), clips)


def test_what_is_no_ragged_shard_is_refused() -> None:
    for items in (range(0), range(2, 7), range(6)):
        with pytest.raises(AssertionError):
            write_ragged_shard(io.BytesIO(), RAGGED, items, [])
    with pytest.raises(AssertionError):
        write_ragged_shard(io.BytesIO(), SMALL, range(8), [])
    with pytest.raises(AssertionError):
        write_shard(io.BytesIO(), RAGGED, range(5), [])


def test_a_ragged_writer_holds_one_item() -> None:
    spec = FeatureSpec("long", (1024,), "float32", True, items_per_shard=64)
    clip = np.ones((256, 1024), np.float32)
    with tempfile.TemporaryFile() as file:
        tracemalloc.start()
        write_ragged_shard(file, spec, range(64), (clip for _ in range(64)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 2**26 < file.tell() < 2**26 + 2**17  # as long as its rows, whatever it has room for
    assert peak < 2**21


@pytest.mark.parametrize("other", [SMALL, replace(SMALL, dtype="float32"), replace(SMALL, name="clips_extents")])
def test_two_arrays_of_one_name_are_refused(other: FeatureSpec) -> None:
    """Each would be the other's metadata."""
    with pytest.raises(AssertionError, match=other.name):
        index_files([SMALL, RAGGED, other], ["a"], {})


ASTRAY = """
import sys
from xmodal.features.store import FeatureStore
from xmodal.errors import UserError
try:
    print(FeatureStore(sys.argv[1]).read(["id0"]))
except UserError as trouble:
    print("UserError:", trouble)
"""


WIDE = replace(RAGGED, row_shape=(2048,), rows_per_chunk=1)  # a row a page: beyond the last one lies no memory


@pytest.mark.parametrize(
    ("spec", "start", "length"), [(WIDE, 24, 3), (RAGGED, 24, 3), (RAGGED, 0, 40), (RAGGED, -1, 1), (RAGGED, 0, -1)]
)
def test_extents_that_point_at_nothing_are_refused(tmp_path: Path, spec: FeatureSpec, start: int, length: int) -> None:
    """A stage that writes a wrong file must not end its readers: in a process of its own, for it may."""
    extents = np.zeros((5, 2), "<i8")
    extents[0] = start, length

    def plan(config: Nothing, inputs: Inputs) -> Iterator[tuple[str, None]]:
        yield "all", None

    def work(unit: None, sink: Sink) -> Counts:
        for name, data in (index_files(spec, ["id0"], {}) | {extents_file(spec, 0): extents.tobytes()}).items():
            with sink.file(name) as file:
                file.write(data)
        with sink.file(shard_file(spec, 0)) as file:
            write_ragged_shard(file, spec, range(1), [np.ones((3, *spec.row_shape), np.float16)])
        return {}

    output = build(Stage("toy", Nothing(), plan, lambda config, inputs: work), open_storage(str(tmp_path)))
    found = subprocess.run([sys.executable, "-c", ASTRAY, output.where], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout[:10]) == (0, "UserError:")


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
