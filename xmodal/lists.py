"""Rows of anybody's list of pictures and captions, one at a time: Parquet, CSV, TSV, JSONL and Arrow streams.

CSV and TSV are UTF-8 with a header and quotes where needed; JSONL has an object a line; an Arrow stream is what the
`save_to_disk` of Hugging Face datasets writes. A column that is asked for must be there; a file that is not what its
name says is a Trouble with file and line (of Parquet and Arrow: file and row, counted from 1).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xmodal.corpora import Raw
from xmodal.readers import lines, named_columns, refuse_doubled, refuse_missing
from xmodal.trouble import Trouble

ROWS_AT_ONCE = 256  # also of rows that hold pictures: few enough for memory
BUFFER = 1 << 20

Cells = tuple[str, list[Any]]  # its place, and the cells of the columns that were asked for


def rows(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    """The cells of these columns, row by row."""
    yield from READERS[ending(path)](raw, path, columns)


def ending(path: str) -> str:
    """`.csv` of a list's name, empty for what is no list."""
    found = path[path.rfind(".") :].lower() if "." in path else ""
    return found if found in READERS else ""


def _csv(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    yield from named_columns(raw, path, columns)


def _tsv(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    yield from named_columns(raw, path, columns, "\t")


def _jsonl(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    for where, line in lines(raw, path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Trouble(f"{where} is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise Trouble(f"{where} is no JSON object")
        refuse_missing(where, columns, list(record))
        yield where, [record[name] for name in columns]


def _parquet(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    """Read in pieces, and without Arrow's threads: processes die of them at exit."""
    with raw.open(path) as file, _refusing_damage(path):
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)
        _refuse_unclear(path, columns, table.schema_arrow.names)
        batches = table.iter_batches(ROWS_AT_ONCE, columns=list(dict.fromkeys(columns)), use_threads=False)
        yield from _numbered(path, batches, columns)


def _arrow(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    with raw.open(path) as file, _refusing_damage(path), pa.ipc.open_stream(file) as stream:
        _refuse_unclear(path, columns, stream.schema.names)
        yield from _numbered(path, _pieces(stream), columns)


def _pieces(stream: Any) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        yield from (batch.slice(first, ROWS_AT_ONCE) for first in range(0, batch.num_rows, ROWS_AT_ONCE))


def _numbered(path: str, batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[Cells]:
    number = 0
    for batch in batches:
        for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield f"{path}:{number}", list(cells)


READERS = {".csv": _csv, ".tsv": _tsv, ".jsonl": _jsonl, ".parquet": _parquet, ".arrow": _arrow}


def _refuse_unclear(where: str, columns: Sequence[str], there: Sequence[str]) -> None:
    refuse_missing(where, columns, there)
    refuse_doubled(where, columns, there)


@contextmanager
def _refusing_damage(path: str) -> Iterator[None]:
    """What Arrow raises of damaged bytes; an OSError with a number is the disk's."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Trouble(f"{path} is damaged, or not what its name says: {error}") from error
