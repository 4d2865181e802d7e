"""Rows that other outputs of a stage have already, found by the sha256 of what each was made of.

A list that grew, shrank or was edited has other shards, but most of its rows are those of before. Whatever is committed
is lent, of unfinished outputs too, if its bytes have their checksums.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.engine.building import lenders
from pipelines.engine.stage import Sink, Stage
from xmodal.errors import UserError
from xmodal.features import store
from xmodal.features.feature_spec import FeatureSpec
from xmodal.media.frame_times import PASSING
from xmodal.records.tables import open_table
from xmodal.root.outputs import Output, Unit

SOURCE = "sha256"  # the column that says what a row was made of

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
    """Looks into other outputs once a row is wanted; the column `named` of their tables names rows."""

    def __init__(self, stage: Stage[Any, Any], named: str = "id") -> None:
        self._stage, self._named = stage, named
        self._open = lru_cache(maxsize=4)(lambda number, spec: _open(*self._units[number], spec))

    def find(self, sha256: str | None, spec: FeatureSpec | None = None) -> EarlierRow | None:
        """A row made of this, if its bytes are sound; `spec` is of its values, if it has some."""
        sources, places = self._index
        at = int(np.searchsorted(sources, (sha256 or "").encode()))
        if sha256 is None or at == len(sources) or sources[at].decode() != sha256:
            return None
        number, place = places[at].tolist()
        with suppress(UserError, LookupError, ValueError):
            table, values = self._open(number, spec)
            facts = table.slice(place, 1).to_pylist()[0]
            failures = (failure for failure in self._units[number][1].failures if failure[0] == facts[self._named])
            return EarlierRow(facts, values(place), tuple((kind, reason) for _, kind, reason in failures))
        return None

    @cached_property
    def _units(self) -> list[tuple[Output, Unit]]:
        read = self._stage.inputs[0]
        assert isinstance(read, Output)
        return [(output, unit) for output in lenders(self._stage, read.storage) for unit in output.units()]

    @cached_property
    def _index(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The sources of rows, ascending, with the unit and place of each; without rows that another try may mend."""
        sources, places = list[bytes](), list[tuple[int, int]]()
        for number, (output, unit) in enumerate(self._units):
            again = {row for row, kind, _ in unit.failures if kind in PASSING}
            with suppress(UserError, LookupError):
                rows = _table(output, unit).select([self._named, SOURCE]).to_pylist()
                for place, row in enumerate(rows):
                    if row[SOURCE] and row[self._named] not in again:
                        sources.append(str(row[SOURCE]).encode())
                        places.append((number, place))
        found, first = np.unique(np.array(sources, "S64"), return_index=True)
        return found, np.array(places, np.int64).reshape(-1, 2)[first]


def _table(output: Output, unit: Unit) -> pa.Table:
    name = next((file for file in unit.files if file.endswith(".parquet")), "")
    with open_table(output, name) as file:
        return file.read(use_threads=False)


def _open(output: Output, unit: Unit, spec: FeatureSpec | None) -> tuple[pa.Table, Values]:
    """The table of a unit, and what reads its rows."""
    table = _table(output, unit)
    if spec is None:
        return table, lambda place: np.empty(0)
    shard = int(unit.name.rpartition("-")[2])
    file = output.open(store.shard_file(spec, shard))
    extents = np.stack([np.arange(len(table)), np.ones(len(table), np.int64)], axis=1)
    if spec.ragged:
        extents = np.frombuffer(output.read(store.extents_file(spec, shard)), "<i8").reshape(-1, 2)
        extents = extents - (shard * spec.shard_rows, 0)

    def values(place: int) -> NDArray[Any]:
        first, length = extents[place].tolist()
        file.seek(first * spec.row_bytes)
        rows = np.frombuffer(file.read(length * spec.row_bytes), spec.dtype).reshape(-1, *spec.row_shape)
        return rows if spec.ragged else rows[0]

    return table, values
