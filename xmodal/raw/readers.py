"""Readers of text, tables and JSON: every piece comes with its place in the file.

Text is UTF-8, with or without a byte order mark; lines end in \n or \r\n. Anything else is a UserError with its place.

A list is Parquet, CSV, TSV, JSONL or an Arrow stream, by its ending. CSV and TSV have a header, and maybe quotes; JSONL
has an object a line; an Arrow stream is what `save_to_disk` of Hugging Face datasets writes. The place of a row of
Parquet or Arrow is file and row, counted from 1.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from xmodal.errors import UserError
from xmodal.raw.archives import open_member
from xmodal.raw.raw_files import Raw

PIECE, LONGEST = 1 << 20, 1 << 25  # characters: read at once, and of the longest value
NOT_SPACE = re.compile(r"\S")
ROWS_AT_ONCE = 256  # few, as rows may hold pictures
BUFFER = 1 << 20

Cells = tuple[str, list[Any]]  # place of a row, and its cells of some columns
T = TypeVar("T")
Id = TypeVar("Id", int, str)


class NotUnicode(UserError):
    """Text that is not UTF-8, with file and line."""


def lines(raw: Raw, path: str) -> Iterator[tuple[str, str]]:
    """Each line of a text file that is not blank, without its end, after its place ("captions.tsv:12")."""
    with raw.open(path) as file:
        yield from lines_of(file, path)


def lines_of(file: BinaryIO | IO[bytes], path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file, 1):
        where = f"{path}:{number}"
        data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        try:
            text = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise NotUnicode(f"{where} is not UTF-8, at its byte {error.start + 1}") from None
        if text:
            yield where, text


def columns(raw: Raw, path: str, count: int, separator: str = "\t") -> Iterator[tuple[str, list[str]]]:
    """The fields of each line of a table without quotes. Each line must have `count` of them."""
    for where, line in lines(raw, path):
        fields = line.split(separator)
        if len(fields) != count:
            raise UserError(f"{where} has {len(fields)} columns, not {count}")
        yield where, fields


def named_columns(raw: Raw, path: str, names: Sequence[str], separator: str = ",") -> Iterator[tuple[str, list[str]]]:
    """The named columns, in this order, of a table with a header and maybe quotes."""
    with raw.open(path) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="") as text:
        table = csv.reader(_whole_lines(text, path), delimiter=separator, strict=True)
        try:
            header = next(table, [])
            refuse_columns(f"{path}:1", names, header)
            places = [header.index(name) for name in names]
            for fields in table:
                where = f"{path}:{table.line_num}"
                if fields and len(fields) != len(header):
                    raise UserError(f"{where} has {len(fields)} columns, not the {len(header)} of its header")
                if fields:
                    yield where, [fields[place] for place in places]
        except csv.Error as error:
            raise UserError(f"{path}: after line {table.line_num}: {error}") from error


def refuse_columns(where: str, columns: Sequence[str], there: Sequence[str]) -> None:
    """Refuses a header without one of the columns, or with two of that name."""
    if missing := [name for name in columns if name not in there]:
        raise UserError(f"{where} has no column {missing[0]!r}; its columns are {', '.join(there) or 'none'}")
    if twice := [name for name in columns if list(there).count(name) > 1]:
        raise UserError(f"{where} has several columns {twice[0]!r}")


def _whole_lines(text: IO[str], path: str) -> Iterator[str]:
    for number, line in enumerate(text, 1):
        if wrong := re.search("[\ud800-\udfff]", line):  # what is no UTF-8 was decoded to surrogates
            before = len(line[: wrong.start()].encode())
            raise NotUnicode(f"{path}:{number} is not UTF-8, at its byte {before + 1}")
        yield line


def split_files(raw: Raw, files: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Split and place of each id, from files {path: split} with an id a line. No file is empty, no id comes twice."""
    found: dict[str, tuple[str, str]] = {}
    for path, split in files.items():
        ids = id_list(f"{path}: {split}", ((where, line.strip()) for where, line in lines(raw, path)))
        found |= {once(found, id, where): (split, where) for id, where in ids.items()}
    return found


def id_list(name: str, ids: Iterable[tuple[str, Id]]) -> dict[Id, str]:
    """The place of each id of a list, which is not empty and has no id twice."""
    places: dict[Id, str] = {}
    for where, identity in ids:
        places[once(places, identity, where)] = where
    if not places:
        raise UserError(f"{name} is empty")
    return places


def matched(pattern: str, text: str, where: str, expected: str) -> re.Match[str]:
    """The match of a whole text, which must be as expected."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise UserError(f"{where}: {text!r:.100} is no {expected}")
    return found


def words_of(text: str, where: str) -> str:
    """A caption with single spaces between its words. There must be one."""
    words = " ".join(text.split())
    if not words:
        raise UserError(f"{where} is empty")
    return words


def optional(record: object, name: str, kind: type[T], where: str) -> T | None:
    """A field of a JSON object as `value` gives it; None if it is absent, null or empty."""
    is_there = isinstance(record, dict) and record.get(name) not in (None, "")
    return value(record, name, kind, where) if is_there else None


def value(record: object, name: str, kind: type[T], where: str) -> T:
    """A field of a JSON object, which must exist and be of this type; true is no number."""
    if not isinstance(record, dict) or name not in record:
        raise UserError(f"{where} has no {name!r}")
    value = record[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"{where}: {name!r} is {value!r:.40}, no {kind.__name__}")
    return value


def split_of(record: object, known: Collection[str], where: str) -> str:
    """The field "split" of a JSON object, which must be a known one."""
    split = value(record, "split", str, where)
    if split not in known:
        raise UserError(f"{where} is in an unknown split {split!r}; there are: {', '.join(known)}")
    return split


def once(seen: Container[Id], identity: Id, where: str) -> Id:
    """Returns an id that must not be in `seen` yet, and adds it if that is a set."""
    if identity in seen:
        raise UserError(f"{where}: id {identity} is there a second time")
    if isinstance(seen, set):
        seen.add(identity)
    return identity


def json_members(raw: Raw, path: str, member: str) -> Iterator[tuple[str, int, Any]]:
    """Key, number and value of each element of the arrays in a zipped JSON object, read piece by piece."""
    with open_member(raw, path, member) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
        yield from _Text(text, f"{path}!{member}").members()


def json_elements(raw: Raw, path: str, member: str | None = None) -> Iterator[tuple[str, Any]]:
    """Each element of a JSON array, in a file or a zip's member, after its place ("captions.json[12]")."""
    if member is None:
        with raw.open(path) as file:
            yield from json_elements_of(file, path)
    else:
        with open_member(raw, path, member) as zipped:
            yield from json_elements_of(zipped, f"{path}!{member}")


def json_elements_of(file: BinaryIO | IO[bytes], path: str) -> Iterator[tuple[str, Any]]:
    """Each element of a JSON array in an open file, which is closed at the end."""
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        try:
            array = _Text(text, path)
            for number, element in enumerate(array.elements()):
                yield f"{path}[{number}]", element
            array.end()
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8: {error}") from error


class _Text:
    """JSON values, read one after the other from a text that is too long for memory."""

    def __init__(self, file: IO[str], where: str) -> None:
        self._file, self._where = file, where
        self._text, self._at, self._dropped = "", 0, 0

    def members(self) -> Iterator[tuple[str, int, Any]]:
        self._take("{")
        while self._next() != "}":
            key = self._read()
            self._take(":")
            if self._next() == "[":
                yield from ((key, number, value) for number, value in enumerate(self.elements()))
            else:
                self._read()
            if self._next() != "}":
                self._take(",")
        self._take("}")
        self.end()

    def elements(self) -> Iterator[Any]:
        self._take("[")
        while self._next() != "]":
            yield self._read()
            if self._next() != "]":
                self._take(",")
        self._take("]")

    def end(self) -> None:
        """Refuses text after the last value."""
        while (found := NOT_SPACE.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._more():
                return
        raise self._broken(f"{found[0]!r} after its end", found.start())

    def _read(self) -> Any:
        self._next()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error.msg, error.pos) from error
            except RecursionError as error:
                raise self._broken("it is nested too deep", self._at) from error
            else:
                if end < len(self._text) or not self._more():  # a number may continue in the next piece
                    self._at = end
                    return value

    def _next(self) -> str:
        """The next character that is not white space."""
        while (found := NOT_SPACE.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._more():
                raise self._broken("it ends too early", self._at)
        self._at = found.start()
        return found[0]

    def _take(self, expected: str) -> None:
        if self._next() != expected:
            raise self._broken(f"{expected!r} expected, not {self._text[self._at]!r}", self._at)
        self._at += 1

    def _more(self) -> bool:
        piece = self._file.read(PIECE) if len(self._text) - self._at < LONGEST else ""
        if piece:
            self._dropped += self._at
            self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)

    def _broken(self, why: str, at: int) -> UserError:
        return UserError(f"{self._where} is not the JSON it should be, at character {self._dropped + at}: {why}")


# ------------------------------------------------------------------------------------------------------------ lists


def rows(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    """Reads these columns of a list, row by row."""
    try:
        yield from READERS[ending(path)](raw, path, columns)
    except NotUnicode as error:
        raise UserError(f"{error}: save it as UTF-8") from None


def heading(raw: Raw, path: str) -> list[str]:
    """The columns of a valid list; for JSONL, of its first line."""
    kind = ending(path)
    if kind == ".jsonl":
        return list(json.loads(next(lines(raw, path))[1]))
    with raw.open(path) as file:
        if kind == ".parquet":
            return list(pq.read_schema(file).names)
        if kind == ".arrow":
            with pa.ipc.open_stream(file) as stream:
                return list(stream.schema.names)
        with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            return next(csv.reader(text, delimiter="\t" if kind == ".tsv" else ","))


def ending(path: str) -> str:
    """The ending of a list's name, such as `.csv`; empty if it is no list."""
    found = path[path.rfind(".") :].lower() if "." in path else ""
    return found if found in READERS else ""


def _jsonl(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    for where, line in lines(raw, path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise UserError(f"{where} is no JSON object")
        refuse_columns(where, columns, list(record))
        yield where, [record[name] for name in columns]


def _parquet(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    with raw.open(path) as file, _refusing_damage(path):
        table = pq.ParquetFile(file, pre_buffer=False, buffer_size=BUFFER)
        refuse_columns(path, columns, table.schema_arrow.names)
        # Arrow's threads can crash a process at its exit.
        batches = table.iter_batches(ROWS_AT_ONCE, columns=list(dict.fromkeys(columns)), use_threads=False)
        yield from _numbered(path, batches, columns)


def _arrow(raw: Raw, path: str, columns: Sequence[str]) -> Iterator[Cells]:
    with raw.open(path) as file, _refusing_damage(path), pa.ipc.open_stream(file) as stream:
        refuse_columns(path, columns, stream.schema.names)
        starts = ((batch, first) for batch in stream for first in range(0, batch.num_rows, ROWS_AT_ONCE))
        yield from _numbered(path, (batch.slice(first, ROWS_AT_ONCE) for batch, first in starts), columns)


def _numbered(path: str, batches: Iterator[pa.RecordBatch], columns: Sequence[str]) -> Iterator[Cells]:
    number = 0
    for batch in batches:
        for cells in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
            number += 1
            yield f"{path}:{number}", list(cells)


READERS: dict[str, Callable[[Raw, str, Sequence[str]], Iterator[Cells]]] = {
    ".csv": named_columns,
    ".tsv": partial(named_columns, separator="\t"),
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".arrow": _arrow,
}


@contextmanager
def _refusing_damage(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's
        raise UserError(f"{path} is damaged, or not what its name says: {error}") from error
