"""An index of a word-vector file, memory-mapped: a vocabulary reads only its own rows.

    a line that says what it is | float32 rows in the file's order | sorted hashes of the words | their entries
    | a JSON object: width, rows, words, checksums | its length and checksum

All numbers are little-endian, hashes have 128 bits. An entry is a row's number and the crc32c of word and row.
"""

import hashlib
import json
import os
from array import array
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from google_crc32c import extend, value
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.root.files import new_file, sha256_of
from xmodal.text.vector_files import BATCH, Tick, VectorFile, Vectors

MAGIC = b"xmodal: an index of word vectors, version 2; see its last bytes\n"
ENTRY = np.dtype([("row", "<u4"), ("crc", "<u4")])
TAIL = 8  # bytes: the length and the checksum of the JSON


@dataclass(frozen=True)
class VectorIndex:
    kind: ClassVar[str] = "an index"
    path: Path
    width: int
    rows: int
    count: int  # different words
    hashes_crc: int
    source_sha256: str

    @staticmethod
    def is_one(path: Path) -> bool:
        try:
            with path.open("rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:  # VectorFile.open says why
            return False

    @classmethod
    def open(cls, path: Path) -> "VectorIndex":
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(-min(size, 4096), os.SEEK_END)
            data = file.read()
        length, checksum = np.frombuffer(data[-TAIL:].rjust(TAIL), "<u4").tolist()
        about = data[-TAIL - length : -TAIL]
        if not length or len(about) != length or value(about) != checksum:
            raise UserError(f"{path} is damaged or cut at its end: it has {size} bytes")
        index = cls(path, **json.loads(about))
        expected = index._entries_at + index.count * ENTRY.itemsize + length + TAIL
        if size != expected:
            raise UserError(f"{path} is damaged: {size} bytes, not {expected}")
        return index

    def entries(self, wanted: Collection[bytes], tick: Tick = lambda size: None) -> Iterator[Vectors]:
        data = np.asarray(np.memmap(self.path, np.uint8, "r"))
        hashes = data[self._hashes_at : self._entries_at]
        if value(hashes) != self.hashes_crc:
            raise UserError(f"{self.path} is damaged: its hashes changed, from byte {self._hashes_at} on")
        words = list(wanted)
        asked = np.array([_hash(word) for word in words], "S16")
        places = np.searchsorted(hashes.view("S16"), asked)
        found = np.flatnonzero(hashes.view("S16")[np.minimum(places, self.count - 1)] == asked)
        entries = data[self._entries_at :][: self.count * ENTRY.itemsize].view(ENTRY)[places[found]]
        vectors = data[len(MAGIC) : self._hashes_at].view("<f4").reshape(self.rows, self.width)
        rows = np.minimum(entries["row"], self.rows - 1)  # its checksum finds a damaged one
        for start in range(0, len(found), BATCH):
            some = slice(start, start + BATCH)
            values, named = vectors[rows[some]], [words[number] for number in found[some].tolist()]
            checksums = zip(map(_checksum, named, values), entries["crc"][some].tolist(), strict=True)
            if wrong := [number for number, (found_crc, crc) in enumerate(checksums) if found_crc != crc]:
                at = self._entries_at + ENTRY.itemsize * int(places[found[start + wrong[0]]])
                raise UserError(f"{self.path} is damaged: the entry at byte {at} or its row changed")
            tick(values.nbytes)
            yield named, values.astype(np.float32, copy=False)

    @property
    def _hashes_at(self) -> int:
        return len(MAGIC) + 4 * self.rows * self.width

    @property
    def _entries_at(self) -> int:
        return self._hashes_at + 16 * self.count


def write_index(source: VectorFile, path: Path, tick: Tick = lambda size: None) -> VectorIndex:
    """Writes every word; of two vectors of a word the last counts."""
    rows, checksums = dict[bytes, int](), array("I")  # of each word; of each row
    with new_file(path) as file:
        file.write(MAGIC)
        for words, values in source.entries(None, tick):
            data = values.astype("<f4", copy=False)
            file.write(data.tobytes())
            rows.update(zip(words, range(len(checksums), len(checksums) + len(words)), strict=True))
            checksums.extend(map(_checksum, words, data))
        hashes = np.array([_hash(word) for word in rows], "S16")
        order = np.argsort(hashes)
        entries = np.empty(len(rows), ENTRY)
        entries["row"] = np.fromiter(rows.values(), np.uint32, len(rows))[order]
        entries["crc"] = np.frombuffer(checksums, np.uint32)[entries["row"]]
        sorted_hashes = hashes[order].tobytes()
        file.write(sorted_hashes + entries.tobytes())
        hashes_crc = value(sorted_hashes)
        index = VectorIndex(path, source.width, len(checksums), len(rows), hashes_crc, sha256_of(source.path))
        about = json.dumps({name: fact for name, fact in asdict(index).items() if name != "path"}).encode()
        file.write(about + len(about).to_bytes(4, "little") + value(about).to_bytes(4, "little"))
    return index


def _hash(word: bytes) -> bytes:
    return hashlib.blake2b(word, digest_size=16).digest()


def _checksum(word: bytes, row: NDArray[Any]) -> int:
    return int(extend(value(word), row.tobytes()))
