"""Stages that fill a Zarr array with a row, or a run of rows, for each id: one unit is the index, the others shards.

A batch never reaches beyond a shard, so that the bytes are the same for any number of workers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import extents_file, index_files, shard_file, shard_ranges, write_ragged_shard, write_shard

C = TypeVar("C")


@dataclass(frozen=True)
class ArrayIndex:
    """The work of the unit that writes what the array is, and the ids of its rows."""

    ids: tuple[str, ...]
    about: Mapping[str, Any]  # joins the provenance in the array's metadata


@dataclass(frozen=True)
class ArrayShard:
    """The work of a unit that writes one shard; `reads` is plain and decides the values, as checksums of files do."""

    first: int
    ids: tuple[str, ...]
    reads: Any

    @property
    def rows(self) -> range:
        return range(self.first, self.first + len(self.ids))


@dataclass(frozen=True, eq=False)
class PlannedArray:
    """An array before it is filled: its layout, its ids, and what each range of them is made from."""

    spec: FeatureSpec
    ids: Sequence[str]
    reads: Callable[[range], Any] = lambda rows: None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ArrayWriter:
    """The part of a stage that a worker opens once; `fill` writes one shard with `write_items`."""

    spec: FeatureSpec
    provenance: Mapping[str, Any]
    fill: Callable[[ArrayShard, Sink], Counts]


def array_stage(
    name: str,
    config: C,
    inputs: Inputs,
    version: int,
    planned: Callable[[C, Inputs], PlannedArray],
    opened: Callable[[C, Inputs], ArrayWriter],
    resources: Resources | None = None,
    passing: tuple[str, ...] = (),
    reuse: bool = True,
) -> Stage[C, ArrayIndex | ArrayShard]:
    plan, open_ = partial(_plan, planned), partial(_open, opened)
    return Stage(name, config, plan, open_, inputs, version, resources or Resources(), reuse, passing)


def _plan(
    planned: Callable[[C, Inputs], PlannedArray], config: C, inputs: Inputs
) -> Iterator[tuple[str, ArrayIndex | ArrayShard]]:
    array = planned(config, inputs)
    yield "index", ArrayIndex(tuple(array.ids), array.about)
    for shard, rows in enumerate(shard_ranges(array.spec, len(array.ids))):
        yield f"shard-{shard:05d}", ArrayShard(rows.start, tuple(array.ids[rows.start : rows.stop]), array.reads(rows))


def _open(
    opened: Callable[[C, Inputs], ArrayWriter], config: C, inputs: Inputs
) -> Callable[[ArrayIndex | ArrayShard, Sink], Counts]:
    writer = opened(config, inputs)

    def write(work: ArrayIndex | ArrayShard, sink: Sink) -> Counts:
        if isinstance(work, ArrayShard):
            return writer.fill(work, sink)
        for name, data in index_files(writer.spec, work.ids, {**writer.provenance, **work.about}).items():
            with sink.file(name) as file:
                file.write(data)
        return {}

    return write


def write_table(sink: Sink, name: str, columns: Mapping[str, Any], schema: pa.Schema | None = None) -> None:
    with sink.file(name) as file:
        pq.write_table(pa.table(columns, schema), file, compression="zstd", store_schema=False)


def write_items(sink: Sink, spec: FeatureSpec, items: range, arrays: Iterable[NDArray[Any]]) -> int:
    """Writes blocks of rows, or for a ragged array the rows of each item and their extents; gives how many rows."""
    shard = items.start // spec.shard_items
    with sink.file(shard_file(spec, shard)) as file:
        if not spec.ragged:
            write_shard(file, spec, items, arrays)
            return len(items)
        extents = write_ragged_shard(file, spec, items, arrays)
    with sink.file(extents_file(spec, shard)) as file:
        file.write(extents)
    return int(np.frombuffer(extents, "<i8").reshape(-1, 2)[:, 1].sum())
