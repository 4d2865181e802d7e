"""Opens files that were committed with a size and a checksum, and refuses other bytes before anybody reads them.

A file of this machine is compared whenever it is opened, a large one once a process as long as nobody changes it. A
large file of an object store is compared by its size alone, since each worker would fetch all of an archive to read a
part of it; the store has checksums of its own, and so have the members of a zip.
"""

import hashlib
import io
import os
from typing import BinaryIO

from xmodal.errors import UserError
from xmodal.root.files import sha256_of
from xmodal.root.storage import IRREGULAR, LocalStorage, Storage

READ_AT_ONCE = 2**24  # bytes; a smaller file is read whole, so that no byte is read twice
_compared = set[tuple[str, int, int, int]]()  # the path, inode and times of large files that had their checksum


def open_checked(storage: Storage, key: str, size: int, sha256: str, cure: str) -> BinaryIO:
    """Opens a file that has this size and checksum; `cure` says what to do where it has not."""
    problem = size_problem(storage, key, size)
    if problem is None:
        file = storage.open(key)
        if size <= READ_AT_ONCE:
            with file:
                data = file.read()
            file, is_same = io.BytesIO(data), hashlib.sha256(data).hexdigest() == sha256
        else:
            is_same = not isinstance(storage, LocalStorage) or _is_same(file, storage.path(key), sha256)
        if is_same:
            return file
        file.close()
        problem = "not what was committed"
    raise UserError(f"{storage.url}/{key} is {problem}: {cure}")


def size_problem(storage: Storage, key: str, size: int) -> str | None:
    """Says how a file is not of this size; None if it is."""
    actual = storage.size(key)
    if actual == size:
        return None
    if actual is None:
        return IRREGULAR.removeprefix("is ") if storage.is_irregular(key) else "missing"
    return f"{actual} bytes instead of {size}"


def _is_same(file: BinaryIO, path: str, sha256: str) -> bool:
    facts = os.fstat(file.fileno())
    seen = (path, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
    if seen not in _compared:
        if sha256_of(file) != sha256:
            return False
        file.seek(0)
        _compared.add(seen)
    return True
