"""Rows that other outputs of a stage have already, found by the sha256 of what each was made of.

A list that grew, shrank or was edited has other shards, but most of its rows are those of before. Whatever is committed
is lent, of unfinished outputs too, if its bytes have their checksums.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import Lock, local
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.engine.building import lenders
from pipelines.engine.stage import Sink, Stage
from xmodal.errors import UserError
from xmodal.features import store
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.zarr_arrays import ShardReader
from xmodal.media.frame_times import PASSING
from xmodal.records.tables import open_table
from xmodal.root.files import copy_and_hash
from xmodal.root.outputs import Output, Unit
from xmodal.root.storage import LocalStorage, Storage

SOURCE = "sha256"  # the column that says what a row was made of
SOURCES = pa.schema({"id": pa.string(), SOURCE: pa.string()})
NOT_LENT = (UserError, FileNotFoundError, LookupError, ValueError)  # of what is damaged, foreign or being deleted
PLACE = np.dtype([("source", "S64"), ("unit", "i4"), ("row", "i4")])

Values = Callable[[int], NDArray[Any]]  # by the place in a unit


@dataclass(frozen=True, eq=False)
class EarlierRow:
    facts: Mapping[str, Any]  # its row in the table of its unit
    values: NDArray[Any]
    failures: tuple[tuple[str, str], ...]  # class and reason

    def fail_again(self, row: str, sink: Sink) -> None:
        for kind, reason in self.failures:
            sink.fail(row, kind, reason)


class EarlierRows:
    """Looks into other outputs once a row is wanted; the first column of their tables, of this schema, names rows."""

    def __init__(self, stage: Stage[Any, Any], schema: pa.Schema = SOURCES) -> None:
        self._stage, self._schema = stage, schema
        self._opened, self._lock = _Opened(self._try_to_open), Lock()

    def find(self, sha256: str | None, sink: Sink, spec: FeatureSpec | None = None) -> EarlierRow | None:
        """A row made of this, if its bytes are sound, which `sink` counts; `spec` is of its values, if it has some."""
        with self._lock:  # one thread makes it for all
            sources, places = self._index
        source = (sha256 or "").encode()
        at = int(np.searchsorted(sources, source))
        if sha256 is None or at == len(sources) or sources[at] != source:
            return None
        _, number, row = places[at].tolist()
        table, values = self._opened.open(number, spec)
        with suppress(*NOT_LENT):
            facts = table.slice(row, 1).to_pylist()[0]
            name = facts[self._schema.names[0]]
            failures = (failure[1:] for failure in self._units[number][1].failures if failure[0] == name)
            found = EarlierRow(facts, values(row), tuple(failures))
            sink.taken += 1
            return found
        return None

    def _try_to_open(self, number: int, spec: FeatureSpec | None) -> tuple[pa.Table, Values]:
        with suppress(*NOT_LENT):
            return _open(*self._units[number], self._schema, spec)
        return self._schema.empty_table(), lambda row: np.empty(0)

    @cached_property
    def _units(self) -> list[tuple[Output, Unit]]:
        read = self._stage.inputs[0]
        assert isinstance(read, Output)
        return [(output, unit) for output in lenders(self._stage, read.storage) for unit in output.units()]

    @cached_property
    def _index(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The sources of rows, ascending, and the place of each."""
        places = np.fromiter(self._places(), PLACE)
        sources, first = np.unique(places["source"], return_index=True)
        return sources, places[first]

    def _places(self) -> Iterator[tuple[bytes, int, int]]:
        for number, (output, unit) in enumerate(self._units):
            with suppress(*NOT_LENT):
                for place, _, source in _sources(_table(output, unit, self._schema), unit):
                    yield source.encode(), number, place


def earlier_names(stage: Stage[Any, Any], storage: Storage) -> tuple[set[str], set[str]]:
    """The names and the sources of all rows that other outputs have for a stage."""
    names, sources = set[str](), set[str]()
    for output in lenders(stage, storage):
        for unit in output.units():
            with suppress(*NOT_LENT):
                for _, name, source in _sources(_table(output, unit), unit):
                    names.add(name)
                    sources.add(source)
    return names, sources


class _Opened(local):
    """Keeps files open, each thread its own."""

    def __init__(self, open: Callable[..., tuple[pa.Table, Values]]) -> None:
        self.open = lru_cache(maxsize=4)(open)


def _sources(table: pa.Table, unit: Unit) -> Iterator[tuple[int, str, str]]:
    """Places, names and sources of all rows of a unit but those that another try may mend."""
    again = {row for row, kind, _ in unit.failures if kind in PASSING}
    columns = table.select([table.column_names[0], SOURCE]).to_pydict()
    for place, (name, source) in enumerate(zip(*columns.values(), strict=True)):
        if source and isinstance(name, str) and isinstance(source, str) and name not in again:
            yield place, name, source


def _table(output: Output, unit: Unit, schema: pa.Schema | None = None) -> pa.Table:
    name = next((file for file in unit.files if file.endswith(".parquet")), "")
    with open_table(output, name) as file:
        table = file.read(use_threads=False)
        return table if schema is None else table.cast(schema)


def _open(output: Output, unit: Unit, schema: pa.Schema, spec: FeatureSpec | None) -> tuple[pa.Table, Values]:
    """The table of a unit, and what reads its rows."""
    table = _table(output, unit, schema)
    if spec is None:
        return table, lambda place: np.empty(0)
    shard = int(unit.name.rpartition("-")[2])
    name = store.shard_file(spec, shard)
    extents = np.stack([np.arange(len(table)), np.ones(len(table), np.int64)], axis=1)
    if spec.ragged:
        extents = np.frombuffer(output.read(store.extents_file(spec, shard)), "<i8").reshape(-1, 2)
        extents = extents - (shard * spec.shard_rows, 0)
    store.check_extents(extents, output.files[name] // spec.row_bytes, f"{output.where}/{name}", output.cure)
    with ExitStack() as closing:
        shard_file = closing.enter_context(_open_local(output, name))
        reader = ShardReader(shard_file, spec, shard, unit.key or "", f"{output.where}/{name}", output.cure)
        closing.pop_all()

    def values(place: int) -> NDArray[Any]:
        first, length = extents[place].tolist()
        rows = reader.rows(first, first + length)
        return rows if spec.ragged else rows[0]

    weakref.finalize(values, _close, shard_file)
    return table, values


def _close(file: BinaryIO) -> None:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else memory fills with what is not read again
    file.close()


def _open_local(output: Output, name: str) -> BinaryIO:
    """Opens a shard, whose chunks have checksums; an object store's is copied and compared as a whole."""
    output.check(name)
    file = output.storage.open(f"{output.folder}/{name}")
    if isinstance(output.storage, LocalStorage):
        return file
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with file:
        is_same = copy_and_hash(file, copy) == output.checksums[name]
    if not is_same:
        copy.close()
        raise UserError(f"{output.where}/{name} is not what was committed: {output.cure}")
    return copy
