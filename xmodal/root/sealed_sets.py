"""Sealed sets: the bytes that a corpus was built from. `dataset.lock` has one line a planned file, sorted by path.

    {"bytes":408860810,"path":"dataset_coco.json","sha256":"af76…"}
    {"absent":true,"path":"train2014/COCO_train2014_000000000009.jpg"}

It has no times or addresses, so that the same bytes make the same lock. The bytes lie under `blobs/`, by their
checksum, so that sets share equal files.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from xmodal.errors import UserError
from xmodal.root.files import sha256_of
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import CURE, Output
from xmodal.root.storage import Storage

LOCK = "dataset.lock"
RECORDS = "_runs/records/{}"


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


def sealed_now(storage: Storage, folder: str, name: str) -> Output | None:
    """The set that builds use now, as the ledger says; `folder` is sources or media."""
    return _named_by(storage, f"_runs/ledger/{folder}/{name}/sealed", folder)


def records_now(storage: Storage, corpus: str) -> Output | None:
    """The records of a corpus' last build."""
    return _named_by(storage, RECORDS.format(corpus), "records")


def _named_by(storage: Storage, key: str, stage: str) -> Output | None:
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
    with sealed.open(LOCK) as file:
        if sha256_of(file) != sealed.config["lock_sha256"]:
            raise UserError(f"{sealed.where}/{LOCK} has changed: {CURE}")
        file.seek(0)
        for line in file:
            facts = json.loads(line)
            yield Locked(facts["path"], facts.get("bytes", 0), facts.get("sha256"))
