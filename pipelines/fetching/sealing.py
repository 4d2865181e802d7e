"""Sealing: the ledger's present state becomes an immutable set with a dataset.lock, and builds use it from now on."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, single
from pipelines.fetching.ledger import FOLDERS, Ledger, State
from xmodal.corpora import Part, Source
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import LOCK, Locked, sealed_now
from xmodal.root.storage import Storage


@dataclass(frozen=True)
class Sealed:
    """A set's identity is its lock; with another `planned` list, files are fetched anew."""

    name: str
    planned: str
    lock_sha256: str


@dataclass(eq=False)
class FileSet:
    storage: Storage
    part: Part
    name: str  # of the corpus, or of the media set, which corpora may share
    required: tuple[Source, ...]  # named by the corpus: nothing goes on while one is missing
    listed: tuple[Source, ...] = ()  # named inside the annotations: those that are gone are sealed as absent

    def __post_init__(self) -> None:
        self.sources = [*self.required, *self.listed]
        self.ledger = Ledger(self.storage, self.part, self.name)

    @cached_property
    def planned(self) -> str:
        """A fingerprint of the files and their bytes, whatever their addresses."""
        return fingerprint(sorted([s.path, s.bytes, s.sha256] for s in self.sources))

    @cached_property
    def sealed(self) -> Output | None:
        """The set that was sealed last, if of just these files."""
        output = sealed_now(self.storage, FOLDERS[self.part], self.name)
        return output if output and output.config["planned"] == self.planned else None

    def lacking(self, sources: Collection[Source]) -> list[Source]:
        return _lacking(sources, self.ledger.states_by_path()) if sources else []

    def to_fetch(self) -> list[Source]:
        """The files that a build tries; listed ones that failed wait for `retry`, unless their bytes were lost."""
        states = self.ledger.states_by_path()
        new = [s for s in self.listed if s.path not in states or states[s.path].lost(s)]
        return _lacking(self.required, states) + new

    def seal(self) -> Output:
        """Makes the ledger's state of these files a set, the same one if nothing has changed."""
        states, files = self.ledger.states_by_path(), list[Locked]()
        for source in sorted(self.sources, key=lambda source: source.path):
            state = states.get(source.path)
            is_there = state and state.provides(source)
            files.append(Locked(source.path, state.size, state.sha256) if state and is_there else Locked(source.path))
        self.sealed = sealed = seal(self.storage, self.part, self.name, self.planned, files)
        self.ledger.use(sealed.identity)
        return sealed


def seal(storage: Storage, part: Part, name: str, planned: str, files: Collection[Locked]) -> Output:
    """Makes files, in order of their paths, a set."""
    lock = b"".join(file.line() for file in files)
    present = sum(file.sha256 is not None for file in files)

    def write(config: Sealed, inputs: Inputs, sink: Sink) -> Counts:
        with sink.file(LOCK) as file:
            file.write(lock)
        return {"present": present, "absent": len(files) - present}

    config = Sealed(name, planned, hashlib.sha256(lock).hexdigest())
    return build(single(FOLDERS[part], config, (), 1, "lock", write), storage)


def _lacking(sources: Collection[Source], states: Mapping[str, State]) -> list[Source]:
    return [s for s in sources if s.path not in states or not states[s.path].provides(s)]
