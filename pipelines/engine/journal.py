"""Journals: facts about names, appended as sorted immutable segments and read as one sorted stream.

A line is `name<TAB>JSON`. Segments are named by their content: adding one twice adds it once, and two drivers may merge
at once.
"""

import hashlib
import heapq
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import BinaryIO, cast

from xmodal.errors import UserError, forget_command
from xmodal.root.files import copy_and_hash
from xmodal.root.storage import Storage

MANY_SEGMENTS = 64  # more are merged
IN_MEMORY_BYTES = 2**21
_ATTEMPTS = 5


class Journal:
    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def add(self, lines: Iterable[bytes]) -> str:
        """Adds one durable segment, and returns its name."""
        data = b"".join(sorted(lines))
        name = _name_of(hashlib.sha256(data).hexdigest())
        if data:
            self._storage.write(f"{self._folder}/{name}", data)
        return name

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replaces all lines; meanwhile readers see both."""
        old, name = self._segments(), self.add(lines)
        self._storage.delete(*(f"{self._folder}/{other}" for other in old if other != name))

    def lines(self, more: Iterable[bytes] = ()) -> Iterator[bytes]:
        """Reads each fact once, sorted by name, in bounded memory; `more` are sorted lines among them."""
        with ExitStack() as files:
            yield from _each_once([*self._open_all(files), more])

    def damaged(self) -> Iterator[str]:
        """The keys of segments that are not what was written."""
        for name in self._segments():
            try:
                with suppress(FileNotFoundError), ExitStack() as files:  # another driver has just merged it
                    self._open_checked(name, files)
            except UserError:
                yield f"{self._folder}/{name}"

    def merge(self) -> None:
        """Merges the smaller half of the segments if there are many."""
        if len(names := self._segments()) > MANY_SEGMENTS:
            sizes = {name: self._storage.size(f"{self._folder}/{name}") or 0 for name in names}
            smaller = sorted(sizes, key=sizes.__getitem__)[: len(names) // 2]
            with suppress(FileNotFoundError), ExitStack() as files:  # another driver has just merged them
                merged = self.add(_each_once([self._open_checked(name, files) for name in smaller]))
                self._storage.delete(*(f"{self._folder}/{name}" for name in smaller if name != merged))

    def _segments(self) -> list[str]:
        return [name for name in self._storage.names(self._folder) if name.endswith(".tsv")]

    def _open_all(self, files: ExitStack) -> list[BinaryIO]:
        for _ in range(_ATTEMPTS):  # another driver merged a segment that vanishes
            try:
                return [self._open_checked(name, files) for name in self._segments()]
            except FileNotFoundError:
                files.close()
        raise UserError(f"{self._storage.url}/{self._folder} keeps changing: is another driver at work? Try again")

    def _open_checked(self, name: str, files: ExitStack) -> BinaryIO:
        # a copy, as another driver's merge may delete the segment meanwhile
        copy = files.enter_context(tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES))  # noqa: SIM115 - the stack closes it
        with self._storage.open(f"{self._folder}/{name}") as file:
            digest = copy_and_hash(file, copy)
        if _name_of(digest) != name:
            cure = f"{forget_command(self._storage.url)} removes it, then run again"
            raise UserError(f"{self._storage.url}/{self._folder}/{name} is corrupt: {cure}")
        copy.seek(0)
        return cast(BinaryIO, copy)


def _each_once(segments: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    return (line for line, _ in itertools.groupby(heapq.merge(*segments)))


def _name_of(digest: str) -> str:
    return digest[:32] + ".tsv"
