"""Ragged arrays of features: items of any length are read as they were written, and refused where they are not."""

import io
import math
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from tests.features.test_features import (
    CLIPS,
    RAGGED,
    SMALL,
    Nothing,
    dtypes,
    rows_to_a_page,
    some_items,
    tensorstore_reads,
    write_store,
)
from tests.features.test_features import clips as clips
from tests.features.test_features import output as output
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import (
    FeatureStore,
    extents_file,
    index_files,
    shard_file,
    write_ragged_shard,
    write_shard,
)
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage


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
