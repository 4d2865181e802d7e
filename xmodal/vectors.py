"""Word vectors for the words of a vocabulary, from a published file or from an index of one."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.trouble import Trouble
from xmodal.vector_files import Tick, VectorFile
from xmodal.vector_index import VectorIndex


def read_vectors(
    path: Path, words: Sequence[str], *, exact: bool = False, tick: Tick = lambda size: None
) -> NDArray[np.float32]:
    """(words, width), NaN for a word that the file has not; one pass, and only what is wanted is kept.

    Each word has the vector of the first of its `spellings` that the file has; `exact` tries no other than its own. Of
    a word that the file has twice the last vector counts, as for torchtext, by which the official code of PVSE and PCME
    reads (gensim keeps the first). `tick` is told of bytes read.
    """
    tried = [[_encoded(spelling) for spelling in ((word,) if exact else spellings(word))] for word in words]
    slots = {some[0]: row for row, some in reversed([*enumerate(tried)]) if some}  # where each spelling's vector goes
    for spelling in chain.from_iterable(tried):
        slots.setdefault(spelling, len(words) + len(slots))
    source, vectors = open_vectors(path), np.empty((0, 0), np.float32)
    found = np.zeros(len(words) + len(slots) + 1, bool)
    for some, values in source.entries(slots.keys(), tick):
        vectors = vectors if len(vectors) else np.full((len(found), source.width), np.nan, np.float32)
        places = [slots[word] for word in some]
        vectors[places], found[places] = values, True
    if not found.any():
        raise Trouble(f"{path} ({source.kind}) has a vector for none of {len(words):,} words")
    for row, some in enumerate(tried):
        slot = next((slots[spelling] for spelling in some if found[slots[spelling]]), row)
        if slot != row:
            vectors[row] = vectors[slot]
    return vectors[: len(words)]


def spellings(word: str) -> Sequence[str]:
    """How a word is looked up: as it is, then without `-`, `.` and `'`, then of that what is before a slash.

    So the official code of PVSE does (spec, models, 1.4). Case stays: a lower-cased vocabulary never takes the vector
    of "Paris" for "paris", though glove.840B.300d has both.
    """
    bare = word.replace("-", "").replace(".", "").replace("'", "")
    return tuple(dict.fromkeys(filter(None, (word, bare, bare.partition("/")[0]))))


def open_vectors(path: Path) -> VectorFile | VectorIndex:
    return VectorIndex.open(path) if VectorIndex.is_one(path) else VectorFile.open(path)


def vectors_sha256(path: Path) -> str:
    """What the vectors are, however they are stored: of an index it is the checksum of the file that it was made of."""
    if VectorIndex.is_one(path):
        return VectorIndex.open(path).source_sha256
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Coverage:
    """How many of the words have a vector, and how much of a text that is, where it is known how often each occurs."""

    words: int
    missing: tuple[str, ...]  # the frequent ones first, where that is known
    occurrences: int | None = None
    occurrences_missing: int | None = None

    @classmethod
    def of(
        cls, words: Sequence[str], vectors: NDArray[np.float32], counts: Mapping[str, int] | None = None
    ) -> "Coverage":
        missing = tuple(words[row] for row in np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist())
        if counts is None:
            return cls(len(words), missing)
        missing = tuple(sorted(missing, key=lambda word: (-counts.get(word, 0), word)))
        return cls(len(words), missing, *(sum(counts.get(word, 0) for word in some) for some in (words, missing)))

    def __str__(self) -> str:
        text = f"{_share(self.words - len(self.missing), self.words)} words have a vector"
        if self.occurrences is not None and self.occurrences_missing is not None:
            text += f", {_share(self.occurrences - self.occurrences_missing, self.occurrences)} that occur"
        some = " ".join(self.missing[:8]) + " …" * (len(self.missing) > 8)
        return text + (f"; without: {some}" if some else "")


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"


def _encoded(word: str) -> bytes:
    """Bytes of a file that are no UTF-8 are lone surrogates in a word, as Python has them in names of files."""
    return word.encode(errors="surrogateescape")
