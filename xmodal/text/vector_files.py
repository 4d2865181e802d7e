"""Published word-vector files, read in one pass; a file's content says its format.

    GloVe text        one line a word, then its numbers, after single spaces; some words of glove.840B.300d have spaces,
                      so numbers are counted from the end
    word2vec text     the same after a first line with the number of words and their width
    word2vec binary   the same first line, then for each word the word, a space, its floats, and perhaps a line feed

A file may be plain, in gzip, or alone in a zip; one that is cut is refused.
"""

import codecs
import contextlib
import gzip
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from xmodal.errors import UserError

BUFFER, BLOCK = 2**16, 2**18  # bytes
BATCH = 1024  # words
LONGEST_LINE, LONGEST_WORD, LONG_WORD = 2**20, 2**12, 64  # bytes
LINE_FEED = ord("\n")

Packed = Literal["", "gzip", "zip"]
Tick = Callable[[int], object]
Vectors = tuple[list[bytes], NDArray[np.float32]]  # words, and a row for each


@dataclass(frozen=True)
class VectorFile:
    path: Path
    packed: Packed
    kind: Literal["GloVe text", "word2vec text", "word2vec binary"]
    width: int
    count: int | None  # words that its first line promises
    start: int  # byte of the first word

    @classmethod
    def open(cls, path: Path) -> "VectorFile":
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        packed: Packed = "zip" if magic == b"PK\3\4" else ""
        if magic[:2] == b"\x1f\x8b":
            packed = "gzip"
        with _opened(path, packed) as file:
            head = file.read(LONGEST_LINE)
        if not head:
            raise UserError(f"{path} is empty")
        if head.startswith(codecs.BOM_UTF8):
            raise UserError(f"{path} begins with a byte order mark: remove it")
        first, ends, rest = head.partition(b"\n")
        # two whole numbers are a count and a width, never the word "12" with one number
        if promised := re.fullmatch(rb"\s*([1-9]\d{0,11}) ([1-9]\d{0,5})\s*", first):
            count, width = map(int, promised.groups())
            if not packed and width > path.stat().st_size:
                raise UserError(f"{path} was cut or damaged: its first line says {width:,} numbers a word, at byte 0")
            kind: Any = "word2vec text" if _is_text(rest, width) else "word2vec binary"
            return cls(path, packed, kind, width, count, len(first) + 1)
        width = len(first.split()) - 1
        if width < 1 or (not ends and len(head) == LONGEST_LINE) or not _is_text(first, width):
            raise UserError(
                f"{path}, line 1 (byte 0) is neither a word with numbers, a space apart, nor how many words follow"
            )
        return cls(path, packed, "GloVe text", width, None, 0)

    def entries(self, wanted: Collection[bytes] | None = None, tick: Tick = lambda size: None) -> Iterator[Vectors]:
        """Yields all words or the wanted ones with their vectors; `tick` gets the bytes read."""
        with _opened(self.path, self.packed, tick) as file:
            if file.read(self.start).count(b"\n") != (self.start > 0):
                raise UserError(f"{self.path} was changed while it was read")
            yield from (self._binary if self.kind == "word2vec binary" else self._text)(file, wanted)

    def _text(self, file: BufferedReader, wanted: Collection[bytes] | None) -> Iterator[Vectors]:
        starts = None if wanted is None else {word.partition(b" ")[0] for word in wanted}
        headers = int(self.count is not None)
        number, batch = headers, list[tuple[str, bytes, bytes]]()  # place, word and numbers
        for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1 + headers):
            is_cut = line[-1] != LINE_FEED
            if starts is None or is_cut or line[: line.find(b" ")] in starts:
                place = f"{self.path}, line {number} (byte {file.tell() - len(line)})"
                if is_cut and len(line) == LONGEST_LINE:
                    raise UserError(f"{place} has no end")
                if is_cut and not self.packed:  # packed files have a checksum
                    raise UserError(f"{place} ends without a line feed: its last number may be cut; add one if not")
                batch.append((place, *self._split(place, line)))
            if len(batch) == BATCH:
                yield self._read(batch, wanted)
                batch = []
        yield self._read(batch, wanted)
        if self.count not in (None, number - headers):
            found = f"{number - headers:,} words follow, to byte {file.tell()}"
            raise UserError(f"{self.path} was cut or damaged: {found}, where its first line says {self.count:,}")

    def _split(self, place: str, line: bytes) -> tuple[bytes, bytes]:
        word, _, numbers = (stripped := line.rstrip()).partition(b" ")
        if numbers.count(b" ") + 1 == self.width:
            return word, numbers
        word, *last = stripped.rsplit(b" ", self.width)
        if len(last) == self.width and not any(map(_NUMBER.fullmatch, word.split(b" ")[1:])):
            return word, b" ".join(last)
        of = "its first line says" if self.count else "the first line has"
        gaps = "; between them is more than a single space" if re.search(rb"  |\t", line) else ""
        raise UserError(f"{place} has {len(numbers.split())} numbers, where {of} {self.width}{gaps}")

    def _read(self, batch: list[tuple[str, bytes, bytes]], wanted: Collection[bytes] | None) -> Vectors:
        try:
            values = _numbers([numbers for _, _, numbers in batch], self.width)
        except ValueError as error:
            for line in batch if len(batch) > 1 else ():  # names the one that is wrong
                self._read([line], None)
            reason = str(error).replace("Invalid UTF8 payload", "bytes in no number")
            if bad := re.search(r"'(.*)'", reason, re.DOTALL):
                reason = f"{bad[1]!r} where a number should be"
            raise UserError(f"{batch[0][0]} has {reason}") from None
        rows = [row for row, (_, word, _) in enumerate(batch) if wanted is None or word in wanted]
        return [batch[row][1] for row in rows], values[rows]

    def _binary(self, file: BufferedReader, wanted: Collection[bytes] | None) -> Iterator[Vectors]:
        assert self.count is not None
        names = None if wanted is None else {*wanted, *(b"\n" + word for word in wanted)}
        size, words, places, rows = 4 * self.width, list[bytes](), list[int](), list[bytes]()
        block, before, at, is_fed = b"", self.start, 0, False  # `before` are the bytes before the block
        for number in range(self.count):
            space = block.find(b" ", at, at + LONGEST_WORD)
            if space < 0 or space + 1 + size > len(block):
                block, before, at = block[at:] + file.read(max(BLOCK, LONGEST_WORD + size)), before + at, 0
                space = block.find(b" ", 0, LONGEST_WORD)
                self._check_whole(block, space, before, number)
            if (block[at] == LINE_FEED) != is_fed:
                if number != 1:  # all others begin as the second
                    raise UserError(f"{self.path} is damaged before byte {before + at}: words begin otherwise there")
                is_fed = True
            if space - at > LONG_WORD:
                self._check_word(block[at:space], before + at)
            word = block[at:space]
            if names is None or word in names:
                words.append(word := word.lstrip(b"\n"))
                places.append(before + space - len(word))
                rows.append(block[space + 1 : space + 1 + size])
                if len(words) == BATCH:
                    yield self._finite(words, places, rows)
                    words, places, rows = [], [], []
            at = space + 1 + size
        yield self._finite(words, places, rows)
        if (block[at:] + file.read(BUFFER)).strip(b"\n"):
            raise UserError(f"{self.path} goes on at byte {before + at} after the {self.count:,} words it promises")

    def _check_whole(self, block: bytes, space: int, before: int, number: int) -> None:
        if space < 0 and len(block) >= LONGEST_WORD:
            self._check_word(block[:LONGEST_WORD] + b"\0", before)
        if space < 0 or space + 1 + 4 * self.width > len(block):
            ends = f"ends at byte {before + len(block)}, after {number:,} words and within the next"
            raise UserError(f"{self.path} was cut or damaged: it {ends}, of {self.count:,}")

    def _check_word(self, word: bytes, place: int) -> None:
        """Refuses control bytes: numbers are read as words after a lost byte."""
        if strange := re.search(rb"[\0-\x1f]", word.lstrip(b"\n")):
            raise UserError(f"{self.path} is damaged before byte {place + strange.start()}: no word begins at {place}")

    def _finite(self, words: list[bytes], places: list[int], rows: list[bytes]) -> Vectors:
        values = np.frombuffer(b"".join(rows), "<f4").astype(np.float32, copy=False).reshape(-1, self.width)
        if not (finite := np.isfinite(values).all(axis=1)).all():
            bad = int(np.argmin(finite))
            word = words[bad].decode(errors="backslashreplace")
            raise UserError(f"{self.path}, byte {places[bad]}: {word!r} has a number that is NaN or infinite")
        return words, values


_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_OF_NUMBERS = b"0123456789+-.eEnaifNAIF \r"


def _is_text(entries: bytes, width: int) -> bool:
    """True if written numbers follow the first word, perhaps with damaged digits."""
    numbers = entries.partition(b" ")[2].partition(b"\n")[0]
    known = len(numbers) - len(numbers.translate(None, _OF_NUMBERS))
    return 2 * len(numbers.split()) > width and known >= 0.9 * len(numbers)


def _numbers(texts: Sequence[bytes], width: int) -> NDArray[np.float32]:
    """Parses as Python does: by float64."""
    tokens = pa.compute.split_pattern(pa.array(texts, pa.binary()), " ").flatten()
    values = pa.compute.cast(pa.compute.cast(tokens, pa.string()), pa.float64()).to_numpy()
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = values.astype(np.float32).reshape(len(texts), width)
    if not np.isfinite(found).all():
        raise ValueError("a number that is NaN or infinite")
    return found


class _Ticking(FileIO):
    def __init__(self, path: Path, tick: Tick) -> None:
        super().__init__(path, "rb")
        self._tick = tick

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        self._tick(count)
        return count


_UNREADABLE = (EOFError, OSError, zlib.error, zipfile.BadZipFile)  # while an archive is read
_NO_ARCHIVE = (*_UNREADABLE, ValueError, RuntimeError, struct.error)  # and while it is opened: encrypted, …


@contextlib.contextmanager
def _opened(path: Path, packed: Packed, tick: Tick = lambda size: None) -> Iterator[BufferedReader]:
    with _Ticking(path, tick) as raw:
        file: Any = BufferedReader(raw, BUFFER)
        expected: tuple[type[Exception], ...] = _NO_ARCHIVE
        try:
            if packed == "gzip":
                file = BufferedReader(cast(Any, gzip.GzipFile(fileobj=file)), BUFFER)
            elif packed == "zip":
                file = BufferedReader(_only_file(path, zipfile.ZipFile(file)), BUFFER)
            expected = _UNREADABLE
            with file:
                yield file
        except expected as error:
            place = 0 if raw.closed else raw.tell()
            raise UserError(f"{path} was cut or damaged, at byte {place} or before: {error}") from None


def _only_file(path: Path, archive: zipfile.ZipFile) -> Any:
    files = [info for info in archive.infolist() if not info.is_dir() and not info.filename.startswith("__MACOSX/")]
    if len(files) != 1:
        names = ", ".join(info.filename for info in files)
        raise UserError(f"{path} has {len(files)} files in it, so unpack the one that is meant: {names}")
    return archive.open(files[0])
