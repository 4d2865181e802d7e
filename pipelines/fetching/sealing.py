"""Sealing: the ledger's present state becomes an immutable set with a dataset.lock, and build uses it from now on."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, single
from pipelines.fetching.ledger import FOLDERS, Ledger
from xmodal.corpora import Source
from xmodal.errors import UserError
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import LOCK, Locked


@dataclass(frozen=True)
class Sealed:
    """A set's identity is its lock; `planned` says for which list of files, so that a longer list is fetched anew."""

    name: str
    planned: str
    lock_sha256: str


def planned(sources: list[Source]) -> str:
    """A fingerprint of which files there are, and which bytes of them: their addresses are circumstance."""
    return fingerprint(sorted([s.path, s.bytes, s.sha256] for s in sources))


def seal(ledger: Ledger, sources: list[Source], of_files: str) -> Output:
    """The ledger's state of these files, of which `of_files` is `planned`; the same output if nothing has changed."""
    sources = sorted(sources, key=lambda source: source.path)
    digest = hashlib.sha256()
    for locked in _locked(ledger, sources):
        digest.update(locked.line())
    config = Sealed(ledger.name, of_files, digest.hexdigest())

    def write(config: Sealed, inputs: Inputs, sink: Sink) -> Counts:
        digest, counts = hashlib.sha256(), {"present": 0, "absent": 0}
        with sink.file(LOCK) as file:
            for locked in _locked(ledger, sources):
                line = locked.line()
                file.write(line)
                digest.update(line)
                counts["present" if locked.sha256 else "absent"] += 1
        if digest.hexdigest() != config.lock_sha256:
            raise UserError(f"the ledger of {config.name} changed while it was sealed: seal again")
        return counts

    output = build(single(FOLDERS[ledger.part], config, (), 1, "lock", write), ledger.storage)
    ledger.use(output.identity)
    return output


def _locked(ledger: Ledger, sources: list[Source]) -> Iterator[Locked]:
    """The planned files and the ledger's states, both sorted by path, merged."""
    states = ledger.states()
    state = next(states, None)
    for source in sources:
        while state and state.path < source.path:
            state = next(states, None)
        if state and state.path == source.path and state.provides(source):
            yield Locked(source.path, state.size, state.sha256)
        else:
            yield Locked(source.path)
