"""Parts of a publication, and which of them a corpus' release class lets through."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from xmodal.corpora import Corpus, Part, ReleaseClass
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import LOCK

NEEDED: Mapping[str, tuple[Part, ReleaseClass]] = {  # every other column is the annotations themselves
    "id": ("annotations", "ids"),
    "caption_ids": ("annotations", "ids"),
    "url": ("media", "ids"),
}


@dataclass(frozen=True)
class Publication:
    """Only sets that may be named, only features that may be passed on."""

    corpus: Corpus
    records: Output
    sealed: Mapping[Part, Output]
    features: list[Output]


def may(corpus: Corpus, part: Part, what: ReleaseClass) -> bool:
    """Whether a part's release goes as far as this; "all" includes "features", and that "ids"."""
    classes = get_args(ReleaseClass)
    return classes.index(corpus.release.get(part, "nothing")) <= classes.index(what)


def may_column(corpus: Corpus, column: str) -> bool:
    return may(corpus, *NEEDED.get(column, ("annotations", "all")))


def withheld(corpus: Corpus) -> dict[str, str]:
    return {part: corpus.release.get(part, "nothing") for part in get_args(Part) if not may(corpus, part, "all")}


def made_from(output: Output) -> Iterator[Output]:
    """Yields the outputs that an output was made from, directly or through others."""
    for made in output.about["inputs"]:
        before = Output(output.storage, f"{made['stage']}/{made['identity']}")
        yield before
        yield from made_from(before)


def lock_name(part: Part) -> str:
    return LOCK if part == "annotations" else f"{part}.lock"
