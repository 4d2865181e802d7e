"""An index of a file of word vectors: mapped into memory, so that the next vocabulary reads its own rows alone.

    a line that says what it is | float32 rows in the file's order | hashes of the words, sorted | their entries | words
    | a JSON object: width, rows, words, bytes of words, checksums | its length and checksum

All little-endian. An entry is where a word ends, its row, and the crc32c of the word and its row. What is looked up is
checked, and so are the hashes, which say that a word is not there. An index has its name once it is whole.
"""

import hashlib
import json
import mmap
import os
import uuid
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from google_crc32c import extend, value
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.vector_files import BATCH, Tick, VectorFile, Vectors

MAGIC = b"xmodal: an index of word vectors, version 1; see its last bytes\n"
ENTRY = np.dtype([("end", "<u8"), ("row", "<u4"), ("crc", "<u4")])
TAIL = 8  # bytes: the length and the checksum of the JSON


@dataclass(frozen=True)
class VectorIndex:
    kind: ClassVar[str] = "an index"
    path: Path
    width: int
    rows: int
    count: int
    letters: int  # bytes of all words
    hashes_crc: int
    source_sha256: str

    @staticmethod
    def is_one(path: Path) -> bool:
        try:
            with path.open("rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:  # which whoever reads it as something else will tell of
            return False

    @classmethod
    def open(cls, path: Path) -> "VectorIndex":
        data = path.read_bytes() if path.stat().st_size < 4096 else _last(path, 4096)
        length, checksum = np.frombuffer(data[-TAIL:].rjust(TAIL), "<u4").tolist()
        about = data[-TAIL - length : -TAIL]
        if not length or len(about) != length or value(about) != checksum:
            raise UserError(f"{path} is damaged or cut at its end: it has {path.stat().st_size} bytes")
        index = cls(path, **json.loads(about))
        if index._size(length) != path.stat().st_size:
            raise UserError(f"{path} is damaged: {path.stat().st_size} bytes, not {index._size(length)}")
        return index

    def entries(self, wanted: Collection[bytes] | None = None, tick: Tick = lambda size: None) -> Iterator[Vectors]:
        """Of each word one: the last, if its source had several. In the order of their hashes where all are wanted."""
        tables = _Tables.of(self)
        places = np.arange(self.count) if wanted is None else tables.find(wanted)
        for start in range(0, len(places), BATCH):
            words, values = tables.read(places[start : start + BATCH])
            tick(values.nbytes)
            kept = [row for row, word in enumerate(words) if wanted is None or word in wanted]
            yield [words[row] for row in kept], values[kept]

    def _size(self, length: int) -> int:
        return self._words_at + self.letters + length + TAIL

    @property
    def _hashes_at(self) -> int:
        return len(MAGIC) + 4 * self.rows * self.width

    @property
    def _words_at(self) -> int:
        return self._entries_at + self.count * ENTRY.itemsize

    @property
    def _entries_at(self) -> int:
        return self._hashes_at + 8 * self.count


@dataclass(frozen=True, eq=False)
class _Tables:
    """What is in the file, which stays mapped as long as any of it is in use."""

    index: VectorIndex
    data: mmap.mmap
    values: NDArray[np.float32]  # (rows, width)
    hashes: NDArray[np.uint64]
    entries: NDArray[Any]

    @classmethod
    def of(cls, index: VectorIndex) -> "_Tables":
        with index.path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if value(data[index._hashes_at : index._entries_at]) != index.hashes_crc:
            raise UserError(f"{index.path} is damaged: its hashes from byte {index._hashes_at} are not as written")
        values = np.frombuffer(data, "<f4", index.rows * index.width, len(MAGIC)).reshape(-1, index.width)
        hashes = np.frombuffer(data, "<u8", index.count, index._hashes_at)
        return cls(index, data, values, hashes, np.frombuffer(data, ENTRY, index.count, index._entries_at))

    def find(self, wanted: Collection[bytes]) -> NDArray[np.int64]:
        """The places whose hashes are those of wanted words: of two words there may be one hash."""
        asked = np.unique(_hashes(wanted))
        first, behind = (np.searchsorted(self.hashes, asked, side) for side in ("left", "right"))
        counts = behind - first
        return np.repeat(behind - np.cumsum(counts), counts) + np.arange(counts.sum())

    def read(self, places: NDArray[np.int64]) -> Vectors:
        entries, words_at = self.entries[places], self.index._words_at
        if (outside := entries["row"] >= self.index.rows).any():
            raise self._damaged(places[outside][0])
        before = np.where(places > 0, self.entries["end"][places - 1], 0)
        ends = zip((words_at + before).tolist(), (words_at + entries["end"]).tolist(), strict=True)
        words, values = [self.data[start:end] for start, end in ends], self.values[entries["row"]]
        for place, word, row, checksum in zip(places, words, values, entries["crc"].tolist(), strict=True):
            if extend(value(word), row.tobytes()) != checksum:
                raise self._damaged(place)
        return words, values.astype(np.float32, copy=False)

    def _damaged(self, place: np.int64) -> UserError:
        entry = self.index._entries_at + ENTRY.itemsize * int(place)
        return UserError(f"{self.index.path} is damaged: the entry at byte {entry}, its word or row is not as written")


def write_index(source: VectorFile, path: Path, tick: Tick = lambda size: None) -> VectorIndex:
    """Every word is read and checked; of a word that is there twice the last vector counts."""
    rows, checksums = dict[bytes, int](), array("I")  # the row of each word; the checksum of each row
    with arriving(path) as file:
        file.write(MAGIC)
        for words, values in source.entries(None, tick):
            data = values.astype("<f4", copy=False)
            file.write(data.tobytes())
            rows.update(zip(words, range(len(checksums), len(checksums) + len(words)), strict=True))
            checksums.extend(extend(value(word), row.tobytes()) for word, row in zip(words, data, strict=True))
        about = _write_tables(file, rows, np.frombuffer(checksums, np.uint32))
        about |= {"source_sha256": source.sha256()}
        index = VectorIndex(path, source.width, len(checksums), len(rows), **about)
        described = json.dumps({name: told for name, told in asdict(index).items() if name != "path"}).encode()
        file.write(described + len(described).to_bytes(4, "little") + value(described).to_bytes(4, "little"))
    return index


def _write_tables(file: BinaryIO, rows: dict[bytes, int], checksums: NDArray[np.uint32]) -> dict[str, Any]:
    words = list(rows)
    hashes = _hashes(words)
    order = np.argsort(hashes, kind="stable")
    entries = np.empty(len(words), ENTRY)
    entries["row"] = np.fromiter(rows.values(), np.uint32, len(words))[order]
    entries["crc"] = checksums[entries["row"]]
    entries["end"] = np.cumsum(np.array([*map(len, words)], np.uint64)[order])
    hashes_data = hashes[order].tobytes()
    file.write(hashes_data + entries.tobytes())
    file.write(b"".join(words[place] for place in order))
    return {"letters": sum(map(len, words)), "hashes_crc": value(hashes_data)}


def _hashes(words: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(hashlib.blake2b(word, digest_size=8).digest() for word in words), "<u8")


def _last(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        return file.read()


@contextmanager
def arriving(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name when all of it is on the disk; one that is there already stays as it is."""
    check_free(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # which does not replace another, as renaming would
    except FileExistsError:
        check_free(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_free(path: Path) -> None:
    """What `arriving` asks for, for those who have long to work before they write."""
    if path.exists():
        raise UserError(f"{path} exists already: remove it first, or name another file")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is no folder, so that {path.name} cannot be written there")
