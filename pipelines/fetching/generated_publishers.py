"""Roots of the demo remember that their publishers are generated: the files differ from those that corpora pin."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xmodal.corpora import Corpus, Source
from xmodal.root.storage import Storage

NOTE = "_runs/publishers/{}.json"


@dataclass(frozen=True)
class GeneratedPublisher:
    """A corpus with the sources that were generated for it, and the folder where they lie."""

    corpus: Corpus
    folder: Path


def describe(corpus: Corpus) -> dict[str, Any]:
    """The sources and counts of a generated corpus, as plain values."""
    return {"sources": [asdict(source) for source in corpus.sources], "counts": dict(corpus.counts)}


def as_described(corpus: Corpus, facts: Mapping[str, Any]) -> Corpus:
    sources = tuple(Source(**source | {"mirrors": tuple(source["mirrors"])}) for source in facts["sources"])
    return replace(corpus, sources=sources, counts=facts["counts"])


def remember(storage: Storage, corpus: Corpus, folder: Path) -> None:
    facts = json.dumps(describe(corpus) | {"folder": str(folder.absolute())}).encode()
    key = NOTE.format(corpus.name)
    if storage.size(key) is None or storage.read(key) != facts:
        storage.write(key, facts)


def recall(storage: Storage, corpus: Corpus) -> GeneratedPublisher | None:
    """The generated publisher that this root was built from, if there was one."""
    try:
        facts = json.loads(storage.read(NOTE.format(corpus.name)))
    except FileNotFoundError:
        return None
    return GeneratedPublisher(as_described(corpus, facts), Path(facts["folder"]))
