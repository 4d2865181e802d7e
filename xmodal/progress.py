"""Progress: where long work says how far it is, and silence for callers who want none."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


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
