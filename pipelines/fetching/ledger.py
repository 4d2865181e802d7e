"""The ledger of every attempt at every file, under `_runs/ledger/<part>/<name>/`.

Attempts are only ever added, by any number of workers and drivers; a file's state is their sum.
"""

import json
import os
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from typing import Any, Literal

from pipelines.engine.journal import Journal
from xmodal.corpora import Part, Source
from xmodal.errors import UserError
from xmodal.root.identity import canonical_json
from xmodal.root.sealed_sets import Locked, blob_key, read_lock, sealed_now
from xmodal.root.storage import Storage

FOLDERS: dict[Part, str] = {"annotations": "sources", "media": "media"}
DAMAGED, CHANGED = LOST = ("damaged", "changed")  # classes of files whose bytes were here
PRUNED = "pruned"  # a file whose bytes were removed as nothing needed them: what was tried before is forgotten
BY_HAND = "by_hand"  # a file without an address that is not at hand
LINK = "link"  # a file that only a link takes into the folder at hand
FETCHED = "urls"  # files of a list of addresses, whose folders mean nothing
Status = Literal["ok", "local", "failed"]


@dataclass(frozen=True)
class FetchAttempt:
    path: str
    status: Status
    at: float  # seconds since 1970
    seconds: float
    size: int = 0
    sha256: str = ""
    kind: str = ""  # the class of a failure: http_404, timeout, …
    reason: str = ""  # for a person
    modified: int = 0  # when a file of this machine was last written to: nanoseconds since 1970
    changed: int = 0  # its ctime, which nobody can set: a rename or a write changes it
    inode: int = 0

    def line(self) -> bytes:
        facts = {name: value for name, value in vars(self).items() if name != "path"}
        return self.path.encode() + b"\t" + canonical_json(facts) + b"\n"


@dataclass(frozen=True)
class State:
    """A file's last success or loss of its bytes, else its last failure."""

    path: str
    status: Status
    attempts: int
    first_at: float
    last_at: float
    size: int
    sha256: str
    kind: str
    reason: str
    modified: int = 0
    changed: int = 0
    inode: int = 0

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    @property
    def trouble(self) -> str:
        return f"{self.kind}: {self.reason}" if self.failed else "checksum: these are not the bytes that are pinned"

    def looks_like(self, file: os.stat_result) -> bool:
        """Whether a file of this machine is the one that was taken, as far as its size and times tell."""
        noted = (self.size, self.modified) == (file.st_size, file.st_mtime_ns)
        is_same = (self.changed, self.inode) in ((0, 0), (file.st_ctime_ns, file.st_ino))
        return self.status == "local" and noted and is_same

    def lost(self, source: Source) -> bool:
        """Whether its bytes were here and are damaged, or are not those that are pinned now."""
        return self.kind in LOST or (not self.failed and not self.provides(source))

    def provides(self, source: Source) -> bool:
        """Whether its bytes are here and are those that are pinned now."""
        pins = ((source.bytes, self.size), (source.sha256, self.sha256))
        return not self.failed and all(pinned in (None, actual) for pinned, actual in pins)


def folder_of(path: str) -> str:
    return FETCHED if path.startswith(f"{FETCHED}/") else path.rpartition("/")[0]


def incomplete_folders(files: Counter[str], absent: Counter[str]) -> dict[str, dict[str, int]]:
    """Folders that lack files, the worst first; none of a single folder."""
    lacking = [(folder, count) for folder, count in absent.most_common() if count and len(files) > 1]
    return {f"{folder or '.'}/": {"absent": count, "files": files[folder]} for folder, count in lacking}


def reasons_of(failures: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, Any]]:
    """How many failures of each class there are, and the first of them; takes path, class and reason."""
    found = dict[str, dict[str, Any]]()
    for path, kind, reason in failures:
        found.setdefault(kind, {"files": 0, "path": path, "reason": reason})["files"] += 1
    return found


class Ledger:
    """Attempts at the annotations of a corpus, or at a media set."""

    def __init__(self, storage: Storage, part: Part, name: str) -> None:
        self.storage, self.part, self.name = storage, part, name
        self.folder = f"_runs/ledger/{FOLDERS[part]}/{name}"
        self._journal = Journal(storage, self.folder)

    def add(self, attempts: list[FetchAttempt]) -> None:
        """Durable when this returns."""
        self._journal.add(attempt.line() for attempt in attempts)

    def damaged(self) -> Iterator[str]:
        """The keys of records that cannot be read."""
        return self._journal.damaged()

    def restore(self) -> None:
        """Notes the files of the set in use of which notes are lost; the next build compares those beside a list."""
        sealed, known, now = sealed_now(self.storage, FOLDERS[self.part], self.name), self.states_by_path(), time.time()
        lost = [one for one in read_lock(sealed) if one.sha256 and one.path not in known] if sealed else []
        self.add([_restored(one, now) for one in lost])

    def compact(self) -> None:
        self._journal.merge()

    def states(self) -> Iterator[State]:
        """Every file that was tried, and not pruned since, in order of the paths."""
        for path, lines in groupby(self._journal.lines(), key=lambda line: line.partition(b"\t")[0]):
            attempts = sorted((_facts(line) for line in lines), key=lambda attempt: attempt["at"])
            pruned = max((at for at, attempt in enumerate(attempts) if attempt["kind"] == PRUNED), default=-1)
            if attempts := attempts[pruned + 1 :]:
                yield _sum_up(path.decode(), attempts)

    def states_by_path(self) -> dict[str, State]:
        return {state.path: state for state in self.states()}

    def summary(self) -> dict[str, Any]:
        """Counts of files and failures, three examples of each class, and folders that lack files.

        Files whose bytes were lost are left out once they are listed no longer.
        """
        listed = cache(self._listed)
        statuses, kinds, files, absent = (Counter[str]() for _ in range(4))
        attempts = size = 0
        examples = defaultdict[str, list[dict[str, Any]]](list)
        for state in self.states():
            if state.kind in LOST and (now := listed()) and state.path not in now:
                continue
            folder = folder_of(state.path)
            statuses[state.status] += 1
            attempts += state.attempts
            size += state.size
            files[folder] += 1
            if state.failed:
                absent[folder] += 1
                kinds[state.kind] += 1
                if kinds[state.kind] <= 3:
                    examples[state.kind].append(asdict(state))
        counts = {"files": statuses, "attempts": attempts, "bytes": size, "failures": kinds}
        return counts | {"examples": examples, "folders": incomplete_folders(files, absent)}

    def _listed(self) -> set[str]:
        """The files of the set that builds use; none if that is not known."""
        with suppress(UserError):
            if sealed := sealed_now(self.storage, FOLDERS[self.part], self.name):
                return {locked.path for locked in read_lock(sealed)}
        return set()

    def download_speed(self) -> float | None:
        """Mean bytes a second of the downloads that succeeded."""
        total = seconds = 0.0
        for line in self._journal.lines():
            attempt = _facts(line)
            if attempt["status"] == "ok":
                total, seconds = total + attempt["size"], seconds + attempt["seconds"]
        return total / seconds if seconds else None

    @property
    def sealed(self) -> str | None:
        """The identity of the set that builds use."""
        sealed = sealed_now(self.storage, FOLDERS[self.part], self.name)
        return sealed.folder.rpartition("/")[2] if sealed else None  # also of one whose description is damaged

    def use(self, identity: str) -> None:
        self.storage.write(f"{self.folder}/sealed", identity.encode())

    def note_driver(self) -> None:
        """Notes the process that fetches: a worker without sight of the note does not see this root."""
        self.storage.write(f"{self.folder}/driver", f"{socket.gethostname()} {os.getpid()}\n".encode())

    @property
    def in_sight(self) -> bool:
        return self.storage.size(f"{self.folder}/driver") is not None

    def lose(self, states: list["State"], kind: str = DAMAGED) -> None:
        """Marks files whose bytes are not theirs, which alone undoes a success: the next build fetches them."""
        why = "its bytes under this root were damaged" if kind == DAMAGED else "it has changed beside the list"
        late = [(state.path, max(time.time(), later(state))) for state in states]
        self.add([FetchAttempt(path, "failed", at, 0.0, kind=kind, reason=why) for path, at in late])
        self.storage.delete(f"{self.folder}/sealed")

    @property
    def later(self) -> float:
        """A time after all attempts, also those that pruning made forgotten."""
        return max((float(_facts(line)["at"]) for line in self._journal.lines()), default=0.0) + 0.001

    def prune(self, blobs: Collection[str]) -> None:
        """Has files forgotten whose bytes are about to be removed; attempts meanwhile count."""
        gone = [state for state in self.states() if not state.failed and blob_key(state.sha256) in blobs]
        self.add([FetchAttempt(state.path, "failed", later(state), 0.0, kind=PRUNED) for state in gone])


def later(state: State) -> float:
    """A time after all attempts: a clock that was set back must not put new ones before old ones."""
    return state.last_at + 0.001


def ledgers(storage: Storage) -> Iterator[Ledger]:
    for part, folder in FOLDERS.items():
        for name in storage.names(f"_runs/ledger/{folder}"):
            yield Ledger(storage, part, name)


def blobs_of(storage: Storage) -> list[str]:
    return [f"blobs/{prefix}/{name}" for prefix in storage.names("blobs") for name in storage.names(f"blobs/{prefix}")]


def lose_blobs(storage: Storage, blobs: Collection[str]) -> None:
    """Deletes blobs with other bytes than their names say; files that had them are fetched again."""
    for ledger in ledgers(storage) if blobs else ():
        if lost := [state for state in ledger.states() if not state.failed and blob_key(state.sha256) in blobs]:
            ledger.lose(lost)
    storage.delete(*blobs)


def _restored(locked: Locked, at: float) -> FetchAttempt:
    status: Status = "ok" if folder_of(locked.path) == FETCHED else "local"
    return FetchAttempt(locked.path, status, at, 0.0, locked.size, locked.sha256 or "")


def _facts(line: bytes) -> dict[str, Any]:
    return dict(json.loads(line.partition(b"\t")[2].decode()))


def _sum_up(path: str, attempts: list[dict[str, Any]]) -> State:
    decisive = ([a for a in attempts if a["status"] != "failed" or a["kind"] in LOST] or attempts)[-1]
    facts = {name: decisive[name] for name in ("status", "size", "sha256", "kind", "reason")}
    facts |= {name: decisive.get(name, 0) for name in ("modified", "changed", "inode")}  # not noted at first
    if decisive["status"] == "failed":
        facts["reason"] = attempts[-1]["reason"]  # why it does not come back, if that was tried
    return State(path, attempts=len(attempts), first_at=attempts[0]["at"], last_at=attempts[-1]["at"], **facts)
