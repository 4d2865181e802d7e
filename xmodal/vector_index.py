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
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from google_crc32c import extend, value
from numpy.typing import NDArray

from xmodal.trouble import Trouble
from xmodal.vector_files import BATCH, Tick, VectorFile, Vectors

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
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    @classmethod
    def open(cls, path: Path) -> "VectorIndex":
        data = path.read_bytes() if path.stat().st_size < 4096 else _last(path, 4096)
        length, checksum = np.frombuffer(data[-TAIL:].rjust(TAIL), "<u4").tolist()
        about = data[-TAIL - length : -TAIL]
        if len(about) != length or value(about) != checksum:
            raise Trouble(f"{path} is damaged or cut within its last {TAIL + length} of {path.stat().st_size} bytes")
        index = cls(path, **json.loads(about))
        if index._size(length) != path.stat().st_size:
            raise Trouble(f"{path} is damaged: {path.stat().st_size} bytes, not {index._size(length)}")
        return index

    def entries(self, wanted: Collection[bytes] | None = None, tick: Tick = lambda size: None) -> Iterator[Vectors]:
        """Of each word one: the last, if its source had several. In the order of their hashes where all are wanted."""
        with self._mapped() as tables:
            places = np.arange(self.count) if wanted is None else tables.find(wanted)
            for start in range(0, len(places), BATCH):
                words, values = tables.read(places[start : start + BATCH])
                tick(4 * values.size)
                kept = [row for row, word in enumerate(words) if wanted is None or word in wanted]
                yield [words[row] for row in kept], values[kept]

    def _size(self, length: int) -> int:
        return self._words_at + self.letters + length + TAIL

    @property
    def _hashes_at(self) -> int:
        return len(MAGIC) + 4 * self.rows * self.width

    @property
    def _words_at(self) -> int:
        return self._hashes_at + self.count * (8 + ENTRY.itemsize)

    @contextmanager
    def _mapped(self) -> Iterator["_Tables"]:
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            tables = _Tables(self, data)
            if value(data[self._hashes_at : self._hashes_at + 8 * self.count]) != self.hashes_crc:
                raise Trouble(f"{self.path} is damaged: its hashes from byte {self._hashes_at} are not as written")
            yield tables


class _Tables:
    """Arrays that copy nothing; what they give away is copied, so that the map can close."""

    def __init__(self, index: VectorIndex, data: mmap.mmap) -> None:
        self._index, self._data = index, data

    def _array(self, dtype: Any, count: int, offset: int) -> NDArray[Any]:
        return np.frombuffer(self._data, dtype, count, offset)

    def find(self, wanted: Collection[bytes]) -> NDArray[np.int64]:
        """The places whose hashes are those of wanted words."""
        hashes = self._array("<u8", self._index.count, self._index._hashes_at)
        asked = np.unique(np.fromiter(map(_hash, wanted), np.uint64, len(wanted)))
        first, behind = (np.searchsorted(hashes, asked, side) for side in ("left", "right"))
        del hashes
        return np.concatenate([np.arange(a, b) for a, b in zip(first, behind, strict=True)] or [np.arange(0)])

    def read(self, places: NDArray[np.int64]) -> Vectors:
        index = self._index
        entries = self._array(ENTRY, index.count, index._hashes_at + 8 * index.count)
        ends, before = entries["end"][places].tolist(), entries["end"][places - 1].tolist()
        before = [end if place else 0 for place, end in zip(places.tolist(), before, strict=True)]
        rows, checksums = entries["row"][places], entries["crc"][places].tolist()
        del entries
        if (outside := rows >= index.rows).any():
            raise self._damaged(places[outside][0])
        words = [self._data[index._words_at + a : index._words_at + b] for a, b in zip(before, ends, strict=True)]
        values = self._array("<f4", index.rows * index.width, len(MAGIC)).reshape(-1, index.width)[rows]
        for place, word, row, checksum in zip(places, words, values, checksums, strict=True):
            if extend(value(word), row.tobytes()) != checksum:
                raise self._damaged(place)
        return words, values.astype(np.float32, copy=False)

    def _damaged(self, place: np.int64) -> Trouble:
        index = self._index
        entry = index._hashes_at + 8 * index.count + ENTRY.itemsize * int(place)
        return Trouble(f"{index.path} is damaged: the entry at byte {entry}, its word or its row is not as written")


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
        with source.path.open("rb") as original:
            about["source_sha256"] = hashlib.file_digest(original, "sha256").hexdigest()
        index = VectorIndex(path, source.width, len(checksums), len(rows), **about)
        described = json.dumps({name: told for name, told in asdict(index).items() if name != "path"}).encode()
        file.write(described + len(described).to_bytes(4, "little") + value(described).to_bytes(4, "little"))
    return index


def _write_tables(file: BinaryIO, rows: dict[bytes, int], checksums: NDArray[np.uint32]) -> dict[str, Any]:
    words = list(rows)
    hashes = np.fromiter(map(_hash, words), "<u8", len(words))
    order = np.argsort(hashes, kind="stable")
    entries = np.empty(len(words), ENTRY)
    entries["row"] = np.fromiter(rows.values(), np.uint32, len(words))[order]
    entries["crc"] = checksums[entries["row"]]
    entries["end"] = np.cumsum(np.array([*map(len, words)], np.uint64)[order])
    hashes_data = hashes[order].tobytes()
    file.write(hashes_data + entries.tobytes())
    file.write(b"".join(words[place] for place in order))
    return {"letters": sum(map(len, words)), "hashes_crc": value(hashes_data)}


def _hash(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")


def _last(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        return file.read()


@contextmanager
def arriving(path: Path) -> Iterator[BinaryIO]:
    """A file that has its name when all of it is on the disk; one that is there already stays as it is."""
    if path.exists():
        raise Trouble(f"{path} exists already: remove it first, or name another file")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
