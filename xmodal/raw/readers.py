r"""Readers of text and tables: every piece comes with its place in the file.

Text is UTF-8, with or without a byte order mark; lines end in \n or \r\n.

A list is Parquet, CSV, TSV, JSONL, JSON (an array of objects) or an Arrow stream (`save_to_disk` of Hugging Face
datasets), by its ending, after which `.gz` may stand. CSV and TSV have a header, unless a caller says not, and maybe
quotes. Rows of Parquet and Arrow are counted from 1.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from typing import IO, Any, AnyStr, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from xmodal.errors import UserError
from xmodal.raw.archives import open_file, unzipped
from xmodal.raw.json_values import LONGEST, json_elements
from xmodal.raw.raw_files import Raw

ROWS_AT_ONCE = 256  # few, as rows may hold pictures
BUFFER = 1 << 20
GZ = ".gz"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
TSV_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^\t]*))\t')  # in quotes, or not

Cells = tuple[str, list[Any]]  # place of a row, and its cells of some columns
Id = TypeVar("Id", int, str)


def lines(raw: Raw, path: str) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, after its place ("captions.tsv:12"); `path` as in `open_file`."""
    with open_file(raw, path) as file:
        yield from lines_of(file, path)


def lines_of(file: IO[bytes], path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_bounded(file, path), 1):
        where = f"{path}:{number}"
        data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        try:
            text = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{where} is not UTF-8, at its byte {error.start + 1}: save it as UTF-8") from None
        if text:
            yield where, text


def _bounded(file: IO[AnyStr], path: str) -> Iterator[AnyStr]:
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:  # of a zipped file it may be far more
            raise UserError(f"{path}:{number} has {LONGEST:,} characters or more: break it into lines")
        yield line


def columns(raw: Raw, path: str, count: int) -> Iterator[tuple[str, list[str]]]:
    """The `count` fields of each line of a table with tabs."""
    for where, line in lines(raw, path):
        fields = line.split("\t")
        if len(fields) != count:
            raise UserError(f"{where} has {len(fields)} columns, not {count}")
        yield where, fields


def split_files(raw: Raw, files: Mapping[str, str], id_of: Callable[[str, str], Id]) -> dict[Id, tuple[str, str]]:
    """Split and place of each id, from files {path: split} with an id a line."""
    return splits_by_id({split: id_list(path, lines(raw, path), id_of) for path, split in files.items()})


def splits_by_id(lists: Mapping[str, Mapping[Id, str]]) -> dict[Id, tuple[str, str]]:
    """Split and place of each id, which is in one list alone."""
    found: dict[Id, tuple[str, str]] = {}
    for split, places in lists.items():
        for id, where in places.items():
            if id in found:
                raise UserError(f"{where}: {id} is in {found[id][0]} too")
            found[id] = split, where
    return found


def id_list(name: str, lines: Iterable[tuple[str, str]], id_of: Callable[[str, str], Id]) -> dict[Id, str]:
    """The place of each id of a list, which has one, and none twice."""
    places: dict[Id, str] = {}
    for where, line in lines:
        places[once(places, id_of(line.strip(), where), where)] = where
    if not places:
        raise UserError(f"{name} is empty")
    return places


def once(seen: Container[Id], id: Id, where: str) -> Id:
    """An id that is not in `seen` yet; it is added to a set."""
    if id in seen:
        raise UserError(f"{where}: id {id} is there a second time")
    if isinstance(seen, set):
        seen.add(id)
    return id


def matched(pattern: str, text: str, where: str, expected: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise UserError(f"{where}: {text!r:.100} is no {expected}")
    return found


def words_of(text: str, where: str) -> str:
    """A caption with single spaces between its words, which is not empty."""
    words = " ".join(text.split())
    if not words:
        raise UserError(f"{where} is empty")
    return words


def rows(raw: Raw, path: str, columns: Sequence[str], has_header: bool = True) -> Iterator[Cells]:
    """Yields the columns of a list, which are named 1, 2, … in CSV and TSV without a header."""
    kind = ending(path)
    raw = unzipped(raw, path) if path.lower().endswith(GZ) else raw
    if has_header:
        return READERS[kind](raw, path, columns)
    if kind not in SEPARATORS:
        raise UserError(f"{path} names its columns in itself: only CSV and TSV may have no header")
    return named_columns(raw, path, columns, SEPARATORS[kind], has_header=False)


def has_column(raw: Raw, path: str, name: str) -> bool:
    """Whether a valid list has a column; of JSONL the first line tells."""
    try:
        next(rows(raw, path, [name]), None)
    except UserError:
        return False
    return True


def ending(path: str) -> str:
    """The ending of a list's name, such as `.csv`, also before `.gz`; empty if it is no list."""
    name = path.lower().removesuffix(GZ)
    found = name[name.rfind(".") :]
    return found if found in READERS else ""


def named_columns(
    raw: Raw, path: str, names: Sequence[str], separator: str = ",", has_header: bool = True
) -> Iterator[Cells]:
    """The named columns, in this order, of a table."""
    csv.field_size_limit(LONGEST)  # of the process; Python's is 131,072
    with raw.open(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        table = _split_lines(_bounded(text, path), path, separator)
        try:
            where, header = next(table, ("", []))
            if not header:
                raise UserError(f"{path} is empty: its first line must name its columns")
            first = [] if has_header else [(where, header)]
            header = header if has_header else [str(number) for number in range(1, len(header) + 1)]
            cure = "; if they are a row, add --header no, and name columns by number" if has_header else ""
            if has_header and len(header) == 1 and ";" in header[0]:
                cure = "; it is separated by ';': save it with commas"
            _refuse_columns(f"{path}:1", names, header, cure)
            places = [header.index(name) for name in names]
            for where, fields in chain(first, table):
                if len(fields) != len(header):
                    cure = "; a cell of a TSV ends with its line" if separator == "\t" else ""
                    raise UserError(f"{where} has {len(fields)} columns, not the {len(header)} of its first line{cure}")
                yield where, [fields[place] for place in places]
        except UnicodeDecodeError:
            for _ in lines(raw, path):  # says in which line
                pass
            raise


def _split_lines(lines: Iterator[str], path: str, separator: str) -> Iterator[tuple[str, list[str]]]:
    """Place and cells of each row; in a TSV, a quote that another does not close in its line is a plain character."""
    if separator == "\t":
        for number, line in enumerate(lines, 1):
            if text := line.rstrip("\r\n"):
                cells = TSV_CELL.findall(f"{text}\t")
                yield f"{path}:{number}", [quoted.replace('""', '"') or plain for quoted, plain in cells]
        return
    table, first = csv.reader(lines, delimiter=separator, strict=True), 1
    cure = 'write each quote inside a cell twice, as in """Stop"" says the sign", or the list as JSONL'
    try:
        for cells in table:
            if cells:
                yield f"{path}:{table.line_num}", cells
            first = table.line_num + 1
    except csv.Error:
        raise UserError(f"{path}:{first}: a quote opens a cell, and none ends it: {cure}") from None


def _json(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    yield from _cells_of_objects(((record.where, record.content) for record in json_elements(raw, path)), columns)


def _jsonl(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    yield from _cells_of_objects(((where, _value(where, line)) for where, line in lines(raw, path)), columns)


def _value(where: str, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no JSON: {error}") from error


def _cells_of_objects(values: Iterable[tuple[str, Any]], columns: Sequence[str]) -> Iterator[Cells]:
    for where, record in values:
        if not isinstance(record, dict):
            raise UserError(f"{where} is no JSON object")
        _refuse_columns(where, columns, list(record))
        yield where, [record[name] for name in columns]


def _parquet(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    with raw.open(path) as file, _refusing_damage(path):
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)
        _refuse_columns(path, columns, table.schema_arrow.names)
        # Arrow's threads can crash a process at its exit.
        batches = table.iter_batches(ROWS_AT_ONCE, columns=list(dict.fromkeys(columns)), use_threads=False)
        yield from _numbered(path, batches, columns)


def _arrow(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    with raw.open(path) as file, _refusing_damage(path), pa.ipc.open_stream(file) as stream:
        _refuse_columns(path, columns, stream.schema.names)
        starts = ((batch, first) for batch in stream for first in range(0, batch.num_rows, ROWS_AT_ONCE))
        yield from _numbered(path, (batch.slice(first, ROWS_AT_ONCE) for batch, first in starts), columns)


def _numbered(path: str, batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[Cells]:
    number = count(1)
    for batch in batches:
        for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            yield f"{path}:{next(number)}", list(cells)


READERS: dict[str, Callable[[Raw, str, Sequence[str]], Iterator[Cells]]] = {
    ".csv": named_columns,
    ".tsv": partial(named_columns, separator=SEPARATORS[".tsv"]),
    ".jsonl": _jsonl,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
}


def _refuse_columns(where: str, columns: Sequence[str], there: Sequence[str], cure: str = "") -> None:
    for name in columns:
        if name not in there:
            for like in there:
                if like.lower() == name.lower():
                    cure = f"; {like!r} differs in case: name it as it is written there"
            raise UserError(f"{where} has no column {name!r}; its columns are {', '.join(there) or 'none'}{cure}")
        if list(there).count(name) > 1:
            raise UserError(f"{where} has several columns {name!r}")


@contextmanager
def _refusing_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's
        raise UserError(f"{path} is damaged, or not what its name says: {error}") from error
