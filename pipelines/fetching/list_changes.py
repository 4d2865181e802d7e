"""Compares a user's list, and the files beside it, with what a root took of them."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.fetching.fetcher import RawFolder
from pipelines.fetching.ledger import BY_HAND, LINK, LOST, FetchAttempt, Ledger, State, later
from xmodal.corpora import Source
from xmodal.records.tables import Item, Oddity, Row
from xmodal.root.files import sha256_of
from xmodal.userdata.embedded_pictures import FOLDER

FEW = 3  # names that are said
ADDED, EDITED, GONE = "added", "edited", "absent there, though the root has its own copy"
TOUCHED = "touched"  # the same bytes, with another time


@dataclass(frozen=True)
class FileChange:
    how: str
    state: State  # as it was
    file: str
    modified: int = 0  # this and the following before it was read
    changed: int = 0
    inode: int = 0

    @property
    def attempt(self) -> FetchAttempt:
        """The note in the ledger of a file that was touched."""
        at, size, sha256 = later(self.state), self.state.size, self.state.sha256
        noted = (self.modified, self.changed, self.inode)
        return FetchAttempt(self.state.path, "local", at, 0.0, size, sha256, self.state.kind, "", *noted)


def file_changes(sources: Iterable[Source], ledger: Ledger, raw: RawFolder) -> list[FileChange]:
    """Files that are not as they were taken; only those whose size, times or inode are others are read."""
    found, there, states = list[FileChange](), 0, ledger.states_by_path()
    for source in sources:
        state, file = states.get(source.path), raw.find(source)
        if state is None:
            continue
        if state.status == "local" and file:
            there, facts = there + 1, os.stat(file)
            if not state.looks_like(facts):
                is_same = facts.st_size == state.size and sha256_of(file) == state.sha256
                noted = (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
                found.append(FileChange(TOUCHED if is_same else EDITED, state, file, *noted))
        elif state.status == "local" and not source.path.startswith(f"{FOLDER}/"):
            found.append(FileChange(GONE, state, ""))
        elif file and state.kind in (BY_HAND, LINK, *LOST) and raw.takes(source, file):
            found.append(FileChange(ADDED, state, file))
    # where none is there they were taken from elsewhere, or their disk is
    return found if there else [change for change in found if change.how != GONE]


def describe_files(changes: Iterable[FileChange]) -> str:
    named = defaultdict[str, list[str]](list)
    for change in changes:
        named[change.how].append(change.state.path)
    named.pop(TOUCHED, None)
    return f"of the files beside the list {_describe(named)}" if named else ""


def describe_items(before: Iterable[Row], now: Iterable[Row]) -> str:
    """Says which items two parses of a list have not in common."""
    old, new = _hashes(before), _hashes(now)
    added, removed = ([id for id in some if id not in others] for some, others in ((new, old), (old, new)))
    edited = [id for id in new if old.get(id, new[id]) != new[id]]
    return _describe({ADDED: added, "removed": removed, EDITED: edited})


def _hashes(rows: Iterable[Row]) -> dict[str, int]:
    """A hash of the rows of each item, in their order."""
    found = dict[str, int]()
    for row in rows:
        if isinstance(row, Oddity):
            continue
        if isinstance(row, Item):  # archives of embedded pictures are named by the bytes of the list
            row = replace(row, media=row.media.rpartition("!")[2])
        id = row.id if isinstance(row, Item) else row.item
        found[id] = hash((found.get(id), row))
    return found


def _describe(named: Mapping[str, Sequence[str]]) -> str:
    """`2 added (a.jpg, b.jpg), 1 edited (c.jpg)`; empty without any."""
    few = {how: ", ".join(names[:FEW]) + (", …" if len(names) > FEW else "") for how, names in named.items()}
    return ", ".join(f"{len(names):,} {how} ({few[how]})" for how, names in named.items() if names)


def checksum_of(ledger: Ledger, file: Path, path: str) -> str:
    """The sha256 of a list, which is read only if its size, times or inode are others than they were."""
    state = ledger.states_by_path().get(path)
    return state.sha256 if state and state.looks_like(file.stat()) else sha256_of(file)
