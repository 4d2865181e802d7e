"""Progress: where long work says how far it is, and silence for callers who want none."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

MB = 10**6
# characters that move a cursor, ring, hide or turn text around, and halves of characters that cannot be printed
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Progress(Protocol):
    """Where long work says how far it is; `pipelines.engine.progress_line.Progress` is one."""

    def say(self, text: str) -> None: ...
    def over(
        self, name: str, total: int, done: int = 0, unit: str = "units"
    ) -> AbstractContextManager[Callable[[int], None]]: ...


class Silence:
    """The progress of a caller who wants none."""

    def say(self, text: str) -> None:
        return

    @contextmanager
    def over(self, name: str, total: int, done: int = 0, unit: str = "units") -> Iterator[Callable[[int], None]]:
        yield lambda count: None


def printable(text: str) -> str:
    """Shows control characters by their numbers: names and messages of others never reach a terminal as they are."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def in_megabytes(tick: Callable[[int], object]) -> Callable[[int], None]:
    """Turns a count of whole megabytes, as a progress line has it, into one that takes bytes."""
    waiting = 0

    def count(size: int) -> None:
        nonlocal waiting
        waiting += size
        tick(waiting // MB)
        waiting %= MB

    return count
