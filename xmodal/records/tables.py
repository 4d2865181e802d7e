"""The tables of records, which every corpus becomes: one row class, one Arrow schema, one Parquet file each."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any, BinaryIO, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from xmodal.errors import UserError
from xmodal.root.outputs import Output

Kind = Literal["image", "clip"]
CAPTIONS_OF_PAPERS = 5  # that papers count of an item which has more


@dataclass(frozen=True)
class Item:
    """One picture or clip. `media` is its path in the media set: a file, or `archive.zip!member`."""

    id: str
    media: str
    kind: Kind = "image"
    width: int | None = None
    height: int | None = None
    licence: str | None = None
    url: str | None = None


@dataclass(frozen=True)
class Caption:
    """`position` counts an item's captions of one `source` from 0: "the first five" is `position < 5`.

    `source` is "human", or what produced the text ("semantics" for the words of detected regions).
    """

    id: str
    item: str
    position: int
    text: str
    source: str = "human"


@dataclass(frozen=True)
class Split:
    """An item belongs to a named split, such as "karpathy/train"; it may be in several."""

    item: str
    name: str


@dataclass(frozen=True)
class Region:
    """A box in pixels, from 0, right and bottom edges excluded; the scene as a whole has no coordinates.

    Regions of one `group`, a coreference chain or an object id, show one thing.
    """

    id: str
    item: str
    group: str | None = None
    left: float | None = None
    top: float | None = None
    right: float | None = None
    bottom: float | None = None
    names: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Label:
    """A category that an item shows, or the class or identity that it belongs to."""

    item: str
    kind: Literal["category", "class", "identity", "attribute"]
    name: str


@dataclass(frozen=True)
class Match:
    """Text that belongs to something shown: a phrase to a group of regions, or a caption to another item."""

    caption: str
    item: str
    group: str | None = None
    start: int | None = None  # characters of the caption; None: all of it
    end: int | None = None
    types: tuple[str, ...] = ()
    source: str = "human"  # who judged


@dataclass(frozen=True)
class Oddity:
    """A fault in the publisher's files that a rule of the corpus deals with."""

    rule: str  # "caption without picture: left out"
    where: str  # "captions.tsv:12"
    item: str | None = None


Row = Item | Caption | Split | Region | Label | Match | Oddity
ROWS: Mapping[str, type[Row]] = {
    "items": Item,
    "captions": Caption,
    "splits": Split,
    "regions": Region,
    "labels": Label,
    "matches": Match,
    "oddities": Oddity,
}
TABLES = {row: name for name, row in ROWS.items()}
ARROW = {  # types of fields that are not text
    int: pa.int64(),
    float: pa.float64(),
    tuple[str, ...]: pa.list_(pa.field("element", pa.string(), nullable=False)),
}
MOST_ROWS_A_BYTE = 16
BATCH = 1 << 16  # rows that are Python objects at once
R = TypeVar("R", Item, Caption, Split, Region, Label, Match, Oddity)


def schema(row: type[Row]) -> pa.Schema:
    """The Arrow schema of a row class: a field that may be None is nullable, a tuple is a list."""
    found = []
    for name, declared in get_type_hints(row).items():
        options = get_args(declared)
        is_nullable = type(None) in options
        arrow = ARROW.get(options[0] if is_nullable else declared, pa.string())
        found.append(pa.field(name, arrow, nullable=is_nullable))
    return pa.schema(found)


class Tables:
    """Writes rows as they come, each kind to its own file; it holds one row group of each."""

    def __init__(self, files: Mapping[str, BinaryIO], row_group: int) -> None:
        self.counts = dict.fromkeys(ROWS, 0)
        self._row_group = row_group
        self._rows: dict[str, list[Row]] = {name: [] for name in ROWS}
        options: dict[str, Any] = {"compression": "zstd", "store_schema": False, "write_page_index": True}
        self._writers = {name: pq.ParquetWriter(files[name], schema(row), **options) for name, row in ROWS.items()}

    def add(self, row: Row) -> str:
        """Returns the name of the row's table."""
        if type(row) not in TABLES:
            raise UserError(f"parse yields a {type(row).__name__}, which is no row of xmodal.records.tables")
        name = TABLES[type(row)]
        self._rows[name].append(row)
        self.counts[name] += 1
        if len(self._rows[name]) == self._row_group:
            self._flush(name)
        return name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        with ExitStack() as closing:
            for writer in self._writers.values():
                closing.callback(writer.close)
            for name in ROWS:
                if self._rows[name] and kind is None:  # else the caller throws away what was written
                    self._flush(name)

    def _flush(self, name: str) -> None:
        rows = self._rows[name]
        self._writers[name].write_table(_table(ROWS[name], rows), row_group_size=self._row_group)
        rows.clear()


def _table(kind: type[Row], rows: Sequence[Row]) -> pa.Table:
    columns, types = {f.name: [getattr(row, f.name) for row in rows] for f in fields(kind)}, schema(kind)
    for name, declared in get_type_hints(kind).items():
        if get_origin(declared) is Literal and (wrong := {*columns[name]} - {*get_args(declared)}):
            there = ", ".join(get_args(declared))
            raise UserError(f"parse yields a {kind.__name__} of {name} {min(wrong, key=repr)!r}; there are: {there}")
    try:
        return pa.table(columns, schema=types)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise UserError(f"parse yields {_wrong_field(rows, types)}: {error}") from error


def _wrong_field(rows: Sequence[Row], types: pa.Schema) -> str:
    for row, field in itertools.product(rows, types):
        try:
            pa.array([getattr(row, field.name)], field.type)
        except (pa.ArrowException, TypeError, OverflowError):
            return f"{row!r:.200}, whose {field.name} is no {field.type}"
    raise AssertionError("each value is of its column's type")


def read_columns(output: Output, name: str, *columns: str) -> pa.Table:
    with open_table(output, name) as file:
        return file.read(columns=list(columns), use_threads=False).select(columns)


def read_batches(output: Output, name: str, *columns: str) -> Iterator[pa.RecordBatch]:
    with open_table(output, name) as file:
        for batch in file.iter_batches(BATCH, columns=list(columns), use_threads=False):
            yield batch.select(list(columns))


def read_rows(records: Output, row: type[R]) -> Iterator[R]:
    name, expected = f"{TABLES[row]}.parquet", [field.name for field in fields(row)]
    lists = [field.name for field in fields(row) if get_origin(field.type) is tuple]
    with open_table(records, name) as file:
        if file.schema_arrow.names != expected:
            raise ValueError(f"{name} is no table of {row.__name__}: it has {file.schema_arrow.names}, not {expected}")
        for batch in file.iter_batches(use_threads=False):
            for values in batch.to_pylist():
                yield row(**values | {name: tuple(values[name]) for name in lists})


@contextmanager
def open_table(output: Output, name: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file of an output, whose rows are no more than its bytes can hold: equal ones take none."""
    data = output.read(name)
    try:
        # for a file by name, and with `use_threads`, Arrow starts threads, of which processes die at their exit
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > MOST_ROWS_A_BYTE * len(data):
            rows = f"{file.metadata.num_rows:,} rows in {len(data):,} bytes"
            raise UserError(f"{output.where}/{name} has {rows}, which xmodal does not write: {output.cure}")
        yield file
    except (pa.ArrowException, KeyError) as error:
        raise UserError(f"{output.where}/{name} is corrupt ({error}): {output.cure}") from error
