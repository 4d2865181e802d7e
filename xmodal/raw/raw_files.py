"""Raw files of a corpus, by the paths that their publisher gave them."""

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from xmodal.errors import UserError
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import blob_key, read_lock
from xmodal.root.storage import LocalStorage, Storage


class Raw:
    def __init__(self, storage: Storage, keys: Mapping[str, str]) -> None:
        self._storage, self._keys = storage, keys

    @staticmethod
    def folder(path: str | Path) -> "Raw":
        """The files of a folder; for notebooks and tests."""
        files = [file.relative_to(path) for file in Path(path).rglob("*") if file.is_file()]
        return Raw(LocalStorage(str(path)), {file.as_posix(): str(file) for file in files})

    def open(self, path: str) -> BinaryIO:
        if path not in self._keys:
            raise UserError(f"{path} is not among the publisher's files: fetch it, or give its folder with --raw")
        return self._storage.open(self._keys[path])

    def __contains__(self, path: str) -> bool:
        return path in self._keys


def raw_of(sealed: Output) -> Raw:
    """The files of a sealed set, for a parser."""
    present = {locked.path: blob_key(locked.sha256) for locked in read_lock(sealed) if locked.sha256}
    return Raw(sealed.storage, present)
