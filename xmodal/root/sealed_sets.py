"""Sealed sets: the bytes that a corpus was built from. `dataset.lock` has one line a planned file, sorted by path.

    {"bytes":408860810,"path":"dataset_coco.json","sha256":"af76…"}
    {"absent":true,"path":"train2014/COCO_train2014_000000000009.jpg"}

It has no times, addresses or reasons for absent files (the ledger has them): the same bytes make the same lock. The
bytes lie under `blobs/`, by their checksum, so that sets share equal files.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from xmodal.errors import UserError
from xmodal.root.files import sha256_of
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import CURE, SHA256, Output
from xmodal.root.storage import LocalStorage, Storage

LOCK = "dataset.lock"
RECORDS = "_runs/records/{}"
LONGEST_LINE = 2**16
BLOB_CURE = "`xmodal verify --forget` removes it, then build again"
READ_AT_ONCE = 2**24  # bytes of a file that is read whole to be compared; a larger one is compared once a process
_compared = set[tuple[str, int, int, int]]()  # large local files, as they were then


@dataclass(frozen=True)
class Locked:
    """One planned file; without a checksum it is absent."""

    path: str
    size: int = 0
    sha256: str | None = None

    def line(self) -> bytes:
        facts = {"bytes": self.size, "sha256": self.sha256} if self.sha256 else {"absent": True}
        return canonical_json({"path": self.path} | facts) + b"\n"


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def open_blob(sealed: Output, locked: Locked) -> BinaryIO:
    """Opens a file of a sealed set, and refuses bytes that are not those that were sealed.

    A large file of an object store is compared by its size alone: each worker would fetch all of an archive to read a
    part of it. The members of a zip have checksums of their own.
    """
    assert locked.sha256
    storage, key = sealed.storage, blob_key(locked.sha256)
    size = storage.size(key)
    if size != locked.size:
        raise _not_as_sealed(
            sealed, locked, "missing" if size is None else f"{size:,} bytes instead of {locked.size:,}"
        )
    file = storage.open(key)
    if size <= READ_AT_ONCE:
        with file:
            data = file.read()
        file, is_same = io.BytesIO(data), hashlib.sha256(data).hexdigest() == locked.sha256
    else:
        is_same = not isinstance(storage, LocalStorage) or _is_same(file, storage.path(key), locked.sha256)
    if is_same:
        return file
    file.close()
    raise _not_as_sealed(sealed, locked, "not the bytes that were sealed")


def _is_same(file: BinaryIO, path: str, sha256: str) -> bool:
    """Whether a large file has this checksum; looked at again only if it was changed since."""
    facts = os.fstat(file.fileno())
    seen = (path, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
    if seen not in _compared:
        if sha256_of(file) != sha256:
            return False
        file.seek(0)
        _compared.add(seen)
    return True


def _not_as_sealed(sealed: Output, locked: Locked, problem: str) -> UserError:
    blob = f"{sealed.storage.url}/{blob_key(locked.sha256 or '')}"
    return UserError(f"{locked.path} of {sealed.where} is {problem} ({blob}): {BLOB_CURE}")


def sealed_now(storage: Storage, folder: str, name: str) -> Output | None:
    """The set that builds use now; `folder` is sources or media. The ledger writes its name."""
    return _named_by(storage, f"_runs/ledger/{folder}/{name}/sealed", folder)


def records_now(storage: Storage, corpus: str) -> Output | None:
    """The records of the corpus' last build, which later stages read unless others are named."""
    return _named_by(storage, RECORDS.format(corpus), "records")


def _named_by(storage: Storage, key: str, stage: str) -> Output | None:
    """The complete output whose identity a file has."""
    try:
        identity = storage.read(key).decode(errors="replace")
    except FileNotFoundError:
        return None
    output = Output(storage, f"{stage}/{identity}")
    return output if identity.isalnum() and output.complete else None


def use_records(records: Output) -> None:
    """Makes them the ones that later stages read; where they are already, the root may be read-only."""
    corpus = records.config["corpus"]
    now = records_now(records.storage, corpus)
    if now is None or now.folder != records.folder:
        records.storage.write(RECORDS.format(corpus), records.identity.encode())


def read_lock(sealed: Output) -> Iterator[Locked]:
    """Every planned file of a sealed set."""
    where = f"{sealed.where}/{LOCK}"
    with sealed.open(LOCK) as file:
        if sha256_of(file) != sealed.config.get("lock_sha256"):
            raise UserError(f"{where} has changed: {CURE}")
        file.seek(0)
        while line := file.readline(LONGEST_LINE):
            yield _locked(line, where)


def _locked(line: bytes, where: str) -> Locked:
    """One line of a lock, in which anybody may have written anything."""
    try:
        facts = json.loads(line)
        path, size, sha256 = facts["path"], facts.get("bytes", 0), facts.get("sha256")
        is_sound = isinstance(path, str) and type(size) is int and size >= 0
        is_sound &= sha256 is None or SHA256.fullmatch(sha256) is not None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise UserError(f"{where} has a line that xmodal does not write, {line[:60]!r}: {CURE}")
    return Locked(path, size, sha256)
