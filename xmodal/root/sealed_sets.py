"""Sealed sets: which bytes a corpus was built from. `dataset.lock` has one line a planned file, sorted by path.

    {"bytes":408860810,"path":"dataset_coco.json","sha256":"af76…"}
    {"absent":true,"path":"train2014/COCO_train2014_000000000009.jpg"}

Neither times nor addresses are in it, nor why a file is absent (the ledger knows): the same bytes make the same lock,
whatever happened on the way. The bytes lie under `blobs/`, by their checksum, so that sets share what they have in
common.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from xmodal.errors import UserError
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage

LOCK = "dataset.lock"
RECORDS = "_runs/records/{}"


@dataclass(frozen=True)
class Locked:
    """One planned file; without checksum it is absent."""

    path: str
    size: int = 0
    sha256: str | None = None

    def line(self) -> bytes:
        facts = {"bytes": self.size, "sha256": self.sha256} if self.sha256 else {"absent": True}
        return canonical_json({"path": self.path} | facts) + b"\n"


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256[:2]}/{sha256}"


def sealed_now(storage: Storage, folder: str, name: str) -> Output | None:
    """The set that builds use now, if it is whole: `folder` is sources or media. The ledger (pipelines) says which."""
    try:
        identity = storage.read(f"_runs/ledger/{folder}/{name}/sealed").decode(errors="replace")
    except FileNotFoundError:
        return None
    output = Output(storage, f"{folder}/{identity}")
    return output if identity.isalnum() and output.complete else None


def records_now(storage: Storage, corpus: str) -> Output | None:
    """The records that the corpus' last build made, which all else of it reads unless others are named."""
    try:
        identity = storage.read(RECORDS.format(corpus)).decode(errors="replace")
    except FileNotFoundError:
        return None
    output = Output(storage, f"records/{identity}")
    return output if identity.isalnum() and output.complete else None


def use_records(records: Output) -> None:
    """A root where they are used already may be read-only."""
    corpus = records.config["corpus"]
    now = records_now(records.storage, corpus)
    if now is None or now.folder != records.folder:
        records.storage.write(RECORDS.format(corpus), records.identity.encode())


def read_lock(sealed: Output) -> Iterator[Locked]:
    """Every planned file of a sealed set, in order of the paths."""
    with sealed.open(LOCK) as file:
        if hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != sealed.config["lock_sha256"]:
            raise UserError(f"{sealed.where}/{LOCK} has changed: `xmodal verify --forget`, then build again")
        file.seek(0)
        for line in file:
            facts = json.loads(line)
            yield Locked(facts["path"], facts.get("bytes", 0), facts.get("sha256"))
