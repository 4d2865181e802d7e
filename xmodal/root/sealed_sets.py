"""Sealed sets: the bytes that a corpus was built from. `dataset.lock` has one line a planned file, sorted by path.

    {"bytes":408860810,"path":"dataset_coco.json","sha256":"af76…"}
    {"absent":true,"path":"train2014/COCO_train2014_000000000009.jpg"}

It has no times or addresses, so that the same bytes make the same lock. The bytes lie under `blobs/`, by their
checksum, so that sets share equal files.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from xmodal.errors import UserError, forget_command
from xmodal.root.checked_files import open_checked
from xmodal.root.files import sha256_of
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import SHA256, Output
from xmodal.root.storage import Storage

LOCK = "dataset.lock"
RECORDS = "_runs/records/{}"
LONGEST_LINE = 2**16


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


def open_sealed(sealed: Output, locked: Locked) -> BinaryIO:
    """Opens a file of a sealed set, and refuses bytes that are not those that were sealed."""
    assert locked.sha256
    try:
        cure = f"{forget_command(sealed.storage.url)} removes it, then build again"
        return open_checked(sealed.storage, blob_key(locked.sha256), locked.size, locked.sha256, cure)
    except UserError as error:
        raise UserError(f"{locked.path} of {sealed.stage}/{sealed.identity}: {error}") from None


def sealed_now(storage: Storage, folder: str, name: str) -> Output | None:
    """The set that builds use now, as the ledger says; `folder` is sources or media."""
    return _named_by(storage, f"_runs/ledger/{folder}/{name}/sealed", folder)


def records_now(storage: Storage, corpus: str) -> Output | None:
    """The records of a corpus' last build."""
    return _named_by(storage, RECORDS.format(corpus), "records")


def _named_by(storage: Storage, key: str, stage: str) -> Output | None:
    if storage.is_irregular(key):  # `verify` tells, and the next build writes it anew
        return None
    try:
        identity = storage.read(key).decode(errors="replace")
    except FileNotFoundError:
        return None
    output = Output(storage, f"{stage}/{identity}")
    return output if identity.isalnum() and output.complete else None


def use_records(records: Output) -> None:
    """Makes them the ones that later stages read."""
    corpus = records.config["corpus"]
    now = records_now(records.storage, corpus)
    if now is None or now.folder != records.folder:  # else the root may be read-only
        records.storage.write(RECORDS.format(corpus), records.identity.encode())


def read_lock(sealed: Output) -> Iterator[Locked]:
    """Every planned file of a sealed set."""
    where = f"{sealed.where}/{LOCK}"
    with sealed.open(LOCK) as file:
        if sha256_of(file) != sealed.config.get("lock_sha256"):
            raise UserError(f"{where} has changed: {sealed.cure}")
        file.seek(0)
        while line := file.readline(LONGEST_LINE):
            yield _locked(line, where, sealed.cure)


def _locked(line: bytes, where: str, cure: str) -> Locked:
    """One line of a lock, in which anybody may have written anything."""
    try:
        facts = json.loads(line)
        path, size, sha256 = facts["path"], facts.get("bytes", 0), facts.get("sha256")
        is_sound = isinstance(path, str) and type(size) is int and size >= 0
        is_sound &= sha256 is None or SHA256.fullmatch(sha256) is not None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        is_sound = False
    if not is_sound:
        raise UserError(f"{where} has a line that xmodal does not write, {line[:60]!r}: {cure}")
    return Locked(path, size, sha256)
