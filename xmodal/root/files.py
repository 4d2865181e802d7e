"""Files of this machine: checksums, copies, and new files that appear whole."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from xmodal.errors import UserError


def sha256_of(file: str | Path | BinaryIO) -> str:
    """Hashes a file, or what is left of an open one."""
    if isinstance(file, str | Path):
        with open(file, "rb") as opened:
            return sha256_of(opened)
    return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def copy_and_hash(source: BinaryIO, target: Any) -> str:
    """Copies what is left of an open file and returns its sha256."""
    digest = hashlib.sha256()
    while piece := source.read(2**20):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


@contextmanager
def new_file(path: Path, replace: bool = False) -> Iterator[BinaryIO]:
    """Opens a file that gets its name once its bytes are on the disk; an error leaves nothing."""
    if not replace:
        check_free(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, it never replaces another file
    except FileExistsError:
        check_free(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_free(path: Path) -> None:
    """Refuses a name that is taken or whose folder is missing."""
    if path.exists():
        raise UserError(f"{path} exists already: remove it first, or name another file")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is no folder, so that {path.name} cannot be written there")
