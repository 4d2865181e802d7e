"""Raw files of a corpus, by the paths that their publisher gave them."""

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import BinaryIO

from xmodal.errors import UserError
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import open_sealed, read_lock


class Raw:
    def __init__(self, paths: Container[str], open: Callable[[str], BinaryIO]) -> None:
        self._paths, self._open = paths, open

    @staticmethod
    def of_files(files: Mapping[str, Path]) -> "Raw":
        return Raw(files, lambda path: files[path].open("rb"))

    @staticmethod
    def folder(path: str | Path) -> "Raw":
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        return Raw.of_files({file.relative_to(path).as_posix(): file for file in files})

    def open(self, path: str) -> BinaryIO:
        if path not in self._paths:
            raise UserError(f"{path} is not among the publisher's files: fetch it, or give its folder with --raw")
        return self._open(path)

    def __contains__(self, path: str) -> bool:
        return path in self._paths


def raw_of(sealed: Output) -> Raw:
    """The files of a sealed set, for a parser; bytes that are not those that were sealed are refused."""
    present = {locked.path: locked for locked in read_lock(sealed) if locked.sha256}
    return Raw(present, lambda path: open_sealed(sealed, present[path]))
