"""What a corpus makes of a folder of its publisher's files, as its tests look at it."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Row

R = TypeVar("R", bound=Row)


def parser_of(corpus: ModuleType) -> Callable[[Path], list[Row]]:
    return lambda folder: list(corpus.parse(Raw.folder(folder)))


def of(rows: list[Row], kind: type[R]) -> list[R]:
    """The rows of one table."""
    return [row for row in rows if isinstance(row, kind)]
