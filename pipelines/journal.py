"""A journal: facts about names, appended as sorted immutable segments and read as one sorted stream.

A line is `name<TAB>JSON`; lines sort by name. Segments are named by their content, so that adding one twice is adding
it once, and two drivers that compact at the same time leave the same facts behind. Nothing is ever changed in place.
"""

import hashlib
import heapq
import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO, cast

from xmodal.storage import Storage
from xmodal.trouble import Trouble

MANY_SEGMENTS = 64  # merged beyond this
SMALL_BYTES = 2**20
_ATTEMPTS = 5


class Journal:
    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def add(self, lines: Iterable[bytes]) -> None:
        """One new segment, durable when this returns."""
        data = b"".join(sorted(lines))
        if data:
            self._storage.create(f"{self._folder}/{_name_of(hashlib.sha256(data).hexdigest())}", data)

    def lines(self) -> Iterator[bytes]:
        """Every fact once, in order of the names, in bounded memory."""
        return self._merged(self._segments)

    def merge(self) -> None:
        """The smaller half of many segments becomes one; harmless beside a reader or another driver that merges."""
        if len(names := self._segments()) > MANY_SEGMENTS:
            sizes = {name: self._storage.size(f"{self._folder}/{name}") or 0 for name in names}
            smaller = sorted(sizes, key=sizes.__getitem__)[: len(names) // 2]
            self.add(self._merged(lambda: smaller))
            self._storage.delete(*(f"{self._folder}/{name}" for name in smaller))

    def _segments(self) -> list[str]:
        return [name for name in self._storage.names(self._folder) if name.endswith(".tsv") and name[0] != "."]

    def _merged(self, segments: Callable[[], list[str]]) -> Iterator[bytes]:
        with ExitStack() as files:
            merged = heapq.merge(*self._open_all(segments, files))
            yield from (line for line, _ in itertools.groupby(merged))

    def _open_all(self, segments: Callable[[], list[str]], files: ExitStack) -> list[BinaryIO]:
        """All at once; one that vanished meanwhile was merged by somebody, so the folder is listed again."""
        for _ in range(_ATTEMPTS):
            try:
                return [self._open_checked(name, files) for name in segments()]
            except FileNotFoundError:
                files.close()
        raise Trouble(f"{self._storage.url}/{self._folder} keeps changing: is another driver at work on it? Try again")

    def _open_checked(self, name: str, files: ExitStack) -> BinaryIO:
        """A large segment stays open; of small ones there may be more than a process may open."""
        key = f"{self._folder}/{name}"
        file = files.enter_context(self._storage.open(key))
        if _name_of(hashlib.file_digest(cast(Any, file), "sha256").hexdigest()) != name:
            raise Trouble(f"{self._storage.url}/{key} is corrupt: delete it and run again; what it held is done again")
        small = file.tell() < SMALL_BYTES
        file.seek(0)
        if not small:
            return file
        with file:
            return io.BytesIO(file.read())


def _name_of(digest: str) -> str:
    return digest[:32] + ".tsv"
