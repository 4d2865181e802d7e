"""Reads large JSON files value by value: each comes with its place in the file."""

import io
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from xmodal.errors import UserError
from xmodal.raw.archives import open_file
from xmodal.raw.raw_files import Raw

PIECE, LONGEST = 1 << 20, 1 << 25  # characters: read at once, and of the longest value
NOT_SPACE = re.compile(r"\S")
DECODER = json.JSONDecoder()

T = TypeVar("T")


@dataclass(slots=True)
class JsonRecord:
    """A JSON value that should be an object, with its place in the file."""

    content: Any
    where: str

    def value(self, name: str, kind: type[T]) -> T:
        """A field of this type; true is no number."""
        if not isinstance(self.content, dict) or name not in self.content:
            raise UserError(f"{self.where} has no {name!r}")
        value = self.content[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"{self.where}: {name!r} is {value!r:.40}, no {kind.__name__}")
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        """A field; None if it is absent, null or empty."""
        is_there = isinstance(self.content, dict) and self.content.get(name) not in (None, "")
        return self.value(name, kind) if is_there else None

    def each(self, name: str) -> Iterator["JsonRecord"]:
        for number, element in enumerate(self.value(name, list)):
            yield JsonRecord(element, f"{self.where}: {name}[{number}]")

    def texts(self, name: str) -> Iterator[str]:
        for number, text in enumerate(self.value(name, list)):
            if not isinstance(text, str):
                raise UserError(f"{self.where}: {name}[{number}] is {text!r:.40}, no text")
            yield text

    def split(self, known: Collection[str]) -> str:
        split = self.value("split", str)
        if split not in known:
            raise UserError(f"{self.where} is in an unknown split {split!r}; there are: {', '.join(known)}")
        return split


def json_members(raw: Raw, path: str) -> Iterator[tuple[str, JsonRecord]]:
    """Key and value of each element of the arrays in a JSON object; `path` as in `open_file`."""
    with open_file(raw, path) as file, io.TextIOWrapper(file, "utf-8-sig") as text:
        values = _Json(text, path)
        yield from values.members()
        values.end()


def json_elements(raw: Raw, path: str) -> Iterator[JsonRecord]:
    """Each element of a JSON array; `path` as in `open_file`."""
    with open_file(raw, path) as file:
        yield from json_elements_of(file, path)


def json_elements_of(file: IO[bytes], path: str) -> Iterator[JsonRecord]:
    with io.TextIOWrapper(file, "utf-8-sig") as text:
        values = _Json(text, path)
        yield from values.elements(path)
        values.end()


class _Json:
    """Reads values one by one: the text is too long for memory."""

    def __init__(self, file: IO[str], path: str) -> None:
        self._file, self._path = file, path
        self._text, self._at, self._dropped = "", 0, 0

    def members(self) -> Iterator[tuple[str, JsonRecord]]:
        for _ in self._inside("{", "}"):
            key = self._read()
            self._take(":")
            if self._next() == "[":
                yield from ((key, element) for element in self.elements(f"{self._path}: {key}"))
            else:
                self._read()

    def elements(self, where: str) -> Iterator[JsonRecord]:
        for number, _ in enumerate(self._inside("[", "]")):
            yield JsonRecord(self._read(), f"{where}[{number}]")

    def end(self) -> None:
        """Refuses text after the last value."""
        if found := self._next(may_end=True):
            raise self._broken(f"{found!r} after its end", self._at)

    def _inside(self, start: str, end: str) -> Iterator[None]:
        """Stops before each element, which the caller reads."""
        self._take(start)
        while self._next() != end:
            yield
            if self._next() != end:
                self._take(",")
        self._take(end)

    def _read(self) -> Any:
        self._next()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._broken(error.msg, error.pos) from error
            except RecursionError as error:
                raise self._broken("it is nested too deep", self._at) from error
            else:
                if end < len(self._text) or not self._more():  # a number may continue in the next piece
                    self._at = end
                    return value

    def _next(self, may_end: bool = False) -> str:
        """The next character that is not white space; '' at the end."""
        while (found := NOT_SPACE.search(self._text, self._at)) is None:
            self._at = len(self._text)
            if not self._more():
                if may_end:
                    return ""
                raise self._broken("it ends too early", self._at)
        self._at = found.start()
        return found[0]

    def _take(self, expected: str) -> None:
        if (found := self._next()) != expected:
            cure = ", of a list of objects, [{…}, …]" if expected == "[" else ""
            raise self._broken(f"{expected!r} expected{cure}, not {found!r}", self._at)
        self._at += 1

    def _more(self) -> bool:
        try:
            piece = self._file.read(PIECE) if len(self._text) - self._at < LONGEST else ""
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path} is not UTF-8: {error}") from error
        if piece:
            self._dropped += self._at
            self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)

    def _broken(self, why: str, at: int) -> UserError:
        return UserError(f"{self._path} is not the JSON it should be, at character {self._dropped + at}: {why}")
