"""Stages that fill a Zarr array with a row, or a run of rows, for each id: one unit is the index, the others shards."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stage_forms.earlier_rows import SOURCES, EarlierRows
from xmodal.features import store
from xmodal.features.feature_spec import FeatureSpec
from xmodal.root.outputs import Output

MOST_AT_ONCE = 8  # batches of rows, if few of them are made anew

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class ArrayIndex:
    """The work of the unit that writes all but the shards."""

    ids: tuple[str, ...]
    about: Mapping[str, Any]  # joins the provenance in the array's metadata


@dataclass(frozen=True)
class ArrayShard:
    """The work of a unit that writes one shard."""

    first: int
    ids: tuple[str, ...]
    reads: Any  # plain values that decide the rows, such as checksums of files

    @property
    def rows(self) -> range:
        return range(self.first, self.first + len(self.ids))


ArrayWork = ArrayIndex | ArrayShard


@dataclass(frozen=True, eq=False)
class PlannedArray:
    """An array before it is filled."""

    spec: FeatureSpec
    ids: Sequence[str]
    reads: Callable[[range], Any] = lambda rows: None  # gives `ArrayShard.reads`
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ArrayWriter:
    """The part of a stage that a worker opens once."""

    spec: FeatureSpec
    provenance: Mapping[str, Any]
    fill: Callable[[ArrayShard, Sink, EarlierRows], Counts]  # writes one shard with `write_items`
    table: pa.Schema = SOURCES  # of what it writes beside, for `EarlierRows`


def array_stage(
    name: str,
    config: C,
    inputs: tuple[Stage[Any, Any] | Output, ...],
    version: int,
    planned: Callable[[C, Inputs], PlannedArray],
    opened: Callable[[C, Inputs], ArrayWriter],
) -> Stage[C, ArrayWork]:
    """Units are reused; `dataclasses.replace` adds what else is needed, such as `resources`."""

    def plan(config: C, inputs: Inputs) -> Iterator[tuple[str, ArrayWork]]:
        array = planned(config, inputs)
        yield "index", ArrayIndex(tuple(array.ids), array.about)
        for shard, rows in enumerate(store.shard_ranges(array.spec, len(array.ids))):
            ids = tuple(array.ids[rows.start : rows.stop])
            yield f"shard-{shard:05d}", ArrayShard(rows.start, ids, array.reads(rows))

    def start(config: C, inputs: Inputs) -> Callable[[ArrayWork, Sink], Counts]:
        writer = opened(config, inputs)
        earlier = EarlierRows(made(config, inputs), writer.table)

        def write(work: ArrayWork, sink: Sink) -> Counts:
            if isinstance(work, ArrayShard):
                return writer.fill(work, sink, earlier)
            write_files(sink, store.index_files(writer.spec, work.ids, {**writer.provenance, **work.about}))
            return {}

        return write

    def made(config: C, inputs: tuple[Stage[Any, Any] | Output, ...]) -> Stage[C, ArrayWork]:
        return Stage(name, config, plan, start, inputs, version, reuse=True)

    return made(config, inputs)


def write_files(sink: Sink, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        with sink.file(name) as file:
            file.write(data)


def write_table(sink: Sink, name: str, table: pa.Table) -> None:
    with sink.file(name) as file:
        pq.write_table(table, file, compression="zstd", store_schema=False)


def blocks_of(
    looked_up: Iterable[tuple[NDArray[Any] | None, T | None]], make: Callable[[list[T]], NDArray[Any]], at_once: int
) -> Iterator[NDArray[Any]]:
    """Blocks of rows in order: a pair has a row that is there, or what one is made of, `at_once` together."""
    rows, left = list[NDArray[Any] | None](), list[T]()

    def block() -> NDArray[Any]:
        made = iter(make(left) if left else ())
        done = np.stack([next(made) if row is None else row for row in rows])
        rows.clear()
        left.clear()
        return done

    for row, thing in looked_up:
        rows.append(row)
        left += [] if thing is None else [thing]
        if len(left) == at_once or len(rows) == MOST_AT_ONCE * at_once:
            yield block()
    if rows:
        yield block()


def write_sources(sink: Sink, ids: Sequence[str], sources: Sequence[str | None]) -> None:
    """Writes what each row of a unit was made of, for `EarlierRows`."""
    write_table(sink, f"sources/{sink.unit}.parquet", pa.table([ids, sources], schema=SOURCES))


def write_items(sink: Sink, spec: FeatureSpec, items: range, arrays: Iterable[NDArray[Any]]) -> int:
    """Writes one shard of blocks of rows, or if ragged of each item's rows; counts the rows."""
    shard = items.start // spec.shard_items
    with sink.file(store.shard_file(spec, shard)) as file:
        if not spec.ragged:
            store.write_shard(file, spec, items, arrays, sink.key or "")
            return len(items)
        extents = store.write_ragged_shard(file, spec, items, arrays, sink.key or "")
    write_files(sink, {store.extents_file(spec, shard): extents})
    return int(np.frombuffer(extents, "<i8").reshape(-1, 2)[:, 1].sum())
