"""The ledger: every attempt at every file, for as long as the world may still change its mind.

It lies under `_runs/ledger/<part>/<name>/`, beside the outputs and outside their promise. Attempts are only ever added,
by any number of workers and drivers; a file's state is their sum. `seal` turns the state into a fact.
"""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from pipelines.engine.journal import Journal
from xmodal.corpora import Part, Source
from xmodal.root.identity import canonical_json
from xmodal.root.sealed_sets import sealed_now
from xmodal.root.storage import Storage

FOLDERS: dict[Part, str] = {"annotations": "sources", "media": "media"}
DAMAGED = "damaged"
FETCHED = "urls"  # files of a list of addresses: their folders are made from the addresses, and mean nothing
Status = Literal["ok", "local", "failed"]


@dataclass(frozen=True)
class FetchAttempt:
    """One try at one file. `kind` is the class of a failure (http_404, timeout, …), `reason` what a person reads."""

    path: str
    status: Status
    at: float  # seconds since 1970
    seconds: float
    size: int = 0
    sha256: str = ""
    kind: str = ""
    reason: str = ""

    @staticmethod
    def damaged(path: str) -> "FetchAttempt":
        """Bytes that were there and are lost: only this undoes an earlier success."""
        reason = "its bytes under this root were damaged"
        return FetchAttempt(path, "failed", time.time(), 0.0, kind=DAMAGED, reason=reason)

    def line(self) -> bytes:
        facts = asdict(self)
        del facts["path"]
        return self.path.encode() + b"\t" + canonical_json(facts) + b"\n"


@dataclass(frozen=True)
class State:
    """Sums up a file's attempts: the last success counts, else the last failure.

    A later failure undoes no success, for another driver may have been slower; a loss of the bytes does.
    """

    path: str
    status: Status
    attempts: int
    first_at: float
    last_at: float
    size: int
    sha256: str
    kind: str
    reason: str

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def trouble(self) -> str:
        return f"{self.kind}: {self.reason}" if self.failed else "checksum: these are not the bytes that are pinned"

    def lost(self, source: Source) -> bool:
        """Whether its bytes were here and no longer are, or are not those that are pinned now."""
        return self.kind == DAMAGED or (not self.failed and not self.provides(source))

    def provides(self, source: Source) -> bool:
        """Whether its bytes are here and are those that the corpus pins, which may be later than the download."""
        pins = ((source.bytes, self.size), (source.sha256, self.sha256))
        return not self.failed and all(pinned in (None, actual) for pinned, actual in pins)


class AbsentByFolder:
    """Counts files and absent files of each folder: an incomplete copy of an archive lacks whole folders."""

    def __init__(self) -> None:
        self._files, self._absent = Counter[str](), Counter[str]()

    def add(self, path: str, absent: bool) -> None:
        folder = FETCHED if path.startswith(f"{FETCHED}/") else path.rpartition("/")[0]
        self._files[folder] += 1
        self._absent[folder] += absent

    @property
    def folders(self) -> dict[str, dict[str, int]]:
        """Folders that lack files, the worst first; none where all files are in one folder."""
        return {
            f"{folder or '.'}/": {"absent": absent, "files": self._files[folder]}
            for folder, absent in self._absent.most_common()
            if absent and len(self._files) > 1
        }


class Ledger:
    """The attempts at the annotations of one corpus, or at one media set."""

    def __init__(self, storage: Storage, part: Part, name: str) -> None:
        self.storage, self.part, self.name = storage, part, name
        self.folder = f"_runs/ledger/{FOLDERS[part]}/{name}"
        self._journal = Journal(storage, self.folder)

    def add(self, attempts: list[FetchAttempt]) -> bytes:
        """Durable when this returns; gives the lines that were added."""
        lines = sorted(attempt.line() for attempt in attempts)
        self._journal.add(lines)
        return b"".join(lines)

    def compact(self) -> None:
        self._journal.merge()

    def states(self) -> Iterator[State]:
        """Every file that was tried, in order of the paths."""
        for path, lines in groupby(self._journal.lines(), key=lambda line: line.partition(b"\t")[0]):
            yield _sum_up(path.decode(), [json.loads(line.partition(b"\t")[2]) for line in lines])

    def summary(self) -> dict[str, Any]:
        """Files by status, failures by class, a few of each class to look at, and folders that lack files."""
        statuses, kinds, attempts, total = Counter[str](), Counter[str](), 0, 0
        examples: dict[str, list[dict[str, Any]]] = {}
        by_folder = AbsentByFolder()
        for state in self.states():
            statuses[state.status] += 1
            attempts += state.attempts
            total += state.size
            by_folder.add(state.path, state.failed)
            if state.failed:
                kinds[state.kind] += 1
                if kinds[state.kind] <= 3:
                    examples.setdefault(state.kind, []).append(asdict(state))
        files = {"files": dict(statuses), "attempts": attempts, "bytes": total}
        return files | {"failures": dict(kinds), "examples": examples, "folders": by_folder.folders}

    def download_speed(self) -> float | None:
        """Bytes a second of one download: the mean of all that succeeded."""
        total = seconds = 0.0
        for line in self._journal.lines():
            attempt = json.loads(line.partition(b"\t")[2])
            if attempt["status"] == "ok":
                total, seconds = total + attempt["size"], seconds + attempt["seconds"]
        return total / seconds if seconds else None

    @property
    def sealed(self) -> str | None:
        """The identity of the set that `build` uses now."""
        sealed = sealed_now(self.storage, FOLDERS[self.part], self.name)
        return sealed.folder.rpartition("/")[2] if sealed else None

    def use(self, identity: str) -> None:
        self.storage.write(f"{self.folder}/sealed", identity.encode())

    def note_driver(self) -> None:
        """Notes the process that fetches; a worker that does not find the note does not see this root."""
        self.storage.write(f"{self.folder}/driver", f"{socket.gethostname()} {os.getpid()}\n".encode())

    @property
    def in_sight(self) -> bool:
        return self.storage.size(f"{self.folder}/driver") is not None

    def lose(self, paths: list[str]) -> None:
        """Marks files whose bytes are damaged: the next build fetches and seals them again."""
        self.add([FetchAttempt.damaged(path) for path in paths])
        self.storage.delete(f"{self.folder}/sealed")


def ledgers(storage: Storage) -> Iterator[tuple[Part, str, Ledger]]:
    for part, folder in FOLDERS.items():
        for name in storage.names(f"_runs/ledger/{folder}"):
            yield part, name, Ledger(storage, part, name)


def _sum_up(path: str, attempts: list[dict[str, Any]]) -> State:
    attempts.sort(key=lambda attempt: attempt["at"])
    decisive = ([a for a in attempts if a["status"] != "failed" or a["kind"] == DAMAGED] or attempts)[-1]
    facts = {name: decisive[name] for name in ("status", "size", "sha256", "kind", "reason")}
    return State(path, attempts=len(attempts), first_at=attempts[0]["at"], last_at=attempts[-1]["at"], **facts)
