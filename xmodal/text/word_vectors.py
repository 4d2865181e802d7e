"""Word vectors of a vocabulary, read from a published file or an index of one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.root.files import sha256_of
from xmodal.text.tokenizers import by_frequency
from xmodal.text.vector_files import Tick, VectorFile
from xmodal.text.vector_index import VectorIndex


def read_vectors(
    path: Path, words: Sequence[str], *, exact: bool = False, tick: Tick = lambda size: None
) -> NDArray[np.float32]:
    """Reads (words, width) in one pass: a word's vector, that of the first of its `spellings` unless `exact`, or NaN.

    Of two vectors of a word the last counts, as in torchtext, which PVSE and PCME use.
    """
    tried = [[_encoded(spelling) for spelling in ((word,) if exact else spellings(word))] for word in words]
    slots = {some[0]: row for row, some in reversed([*enumerate(tried)]) if some}  # each spelling's row
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
    """The forms by which PVSE looks up a word (docs/models.md#pvse-encoders); case stays."""
    bare = word.replace("-", "").replace(".", "").replace("'", "")
    return tuple(dict.fromkeys(filter(None, (word, bare, bare.partition("/")[0]))))


def open_vectors(path: Path) -> VectorFile | VectorIndex:
    return VectorIndex.open(path) if VectorIndex.is_one(path) else VectorFile.open(path)


def vectors_sha256(path: Path) -> str:
    """The sha256 of a file, also by an index of it."""
    source = open_vectors(path)
    return source.source_sha256 if isinstance(source, VectorIndex) else sha256_of(source.path)


@dataclass(frozen=True)
class Coverage:
    words: int
    missing: tuple[str, ...]  # by frequency, if that is known
    occurrences: int | None = None
    occurrences_missing: int | None = None

    @classmethod
    def of(
        cls, words: Sequence[str], vectors: NDArray[np.float32], counts: Mapping[str, int] | None = None
    ) -> "Coverage":
        missing = [words[row] for row in np.flatnonzero(np.isnan(vectors).any(axis=1)).tolist()]
        if counts is None:
            return cls(len(words), tuple(missing))
        found = Counter(counts)
        missing = by_frequency((word, found[word]) for word in missing)
        return cls(len(words), tuple(missing), sum(found[word] for word in words), sum(found[word] for word in missing))

    def __str__(self) -> str:
        text = f"{_share(self.words - len(self.missing), self.words)} words have a vector"
        if self.occurrences is not None and self.occurrences_missing is not None:
            text += f", {_share(self.occurrences - self.occurrences_missing, self.occurrences)} that occur"
        if self.missing:
            text += f"; without: {' '.join(self.missing[:8])}"
        if len(self.missing) > 8:
            text += " …"
        return text


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / max(whole, 1):.1%})"


def _encoded(word: str) -> bytes:
    try:
        return word.encode(errors="surrogateescape")  # bytes that are no UTF-8, as in Python's file names
    except UnicodeEncodeError:
        return word.encode(errors="surrogatepass")
