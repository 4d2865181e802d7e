"""Damaged stores: every flipped bit, cut file and foreign description is refused by name."""

import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from tests.features.test_features import CLIPS, RAGGED, SMALL, VALUES, Files, Nothing, write_store
from tests.features.test_features import output as output
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import (
    FeatureStore,
    index_files,
    shard_file,
)
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

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
