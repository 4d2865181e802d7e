"""Word vectors for the words of a vocabulary, from a published file or from an index of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import by_frequency
from xmodal.text.vector_files import Tick, VectorFile
from xmodal.text.vector_index import VectorIndex

MB = 10**6


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
    others = dict.fromkeys(spelling for some in tried for spelling in some if spelling not in slots)
    slots |= zip(others, count(len(words)), strict=False)
    source = open_vectors(path)
    vectors = np.empty((len(words) + len(others), source.width), np.float32)
    found = np.zeros(len(vectors), bool)
    for some, values in source.entries(slots.keys(), tick):
        places = [slots[word] for word in some]
        vectors[places], found[places] = values, True
    if len(words) and not found.any():
        raise UserError(f"{path} ({source.kind}) has a vector for none of {len(words):,} words")
    for row in np.flatnonzero(~found[: len(words)]).tolist():
        slot = next((slots[spelling] for spelling in tried[row] if found[slots[spelling]]), None)
        vectors[row] = np.nan if slot is None else vectors[slot]
    return vectors[: len(words)]


def spellings(word: str) -> Sequence[str]:
    """How a word is looked up: as it is, then without `-`, `.` and `'`, then of that what is before a slash.

    So the official code of PVSE does (docs/models.md#pvse-encoders). Case stays: a lower-cased vocabulary never takes
    the vector of "Paris" for "paris", though glove.840B.300d has both.
    """
    if word.isalnum():  # as most are: there is nothing to leave out
        return (word,)
    bare = word.replace("-", "").replace(".", "").replace("'", "")
    return tuple(dict.fromkeys(filter(None, (word, bare, bare.partition("/")[0]))))


def open_vectors(path: Path) -> VectorFile | VectorIndex:
    return VectorIndex.open(path) if VectorIndex.is_one(path) else VectorFile.open(path)


def vectors_sha256(path: Path) -> str:
    """Of the file's bytes; of an index, of the file that it was made of.

    A file whose beginning is none of word vectors is refused.
    """
    source = open_vectors(path)
    return source.source_sha256 if isinstance(source, VectorIndex) else source.sha256()


def in_megabytes(tick: Tick) -> Tick:
    """Told of bytes it tells of whole megabytes, as progress counts them."""
    waiting = 0

    def count(size: int) -> None:
        nonlocal waiting
        waiting += size
        tick(waiting // MB)
        waiting %= MB

    return count


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
        missing = tuple(by_frequency((word, counts.get(word, 0)) for word in missing))
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
    """Bytes of a file that are no UTF-8 are lone surrogates in a word, as Python has them in names of files.

    Other surrogates are no file's.
    """
    try:
        return word.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return word.encode(errors="surrogatepass")
