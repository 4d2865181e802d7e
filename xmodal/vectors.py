"""Word vectors in GloVe's text format: a line a word, its numbers after it, with single spaces between."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.trouble import Trouble


def read_vectors(path: Path, words: Sequence[str]) -> NDArray[np.float32]:
    """(words, width), NaN for a word that the file has not; one pass, and only what is wanted is kept."""
    spellings = [list(_spellings(word)) for word in words]
    wanted = {spelling.encode() for some in spellings for spelling in some}
    found = dict(_lines(path, wanted))
    if not found:
        raise Trouble(f"{path} has a vector for none of {len(words):,} words: is it in GloVe's text format?")
    width = len(next(iter(found.values())))
    vectors = np.full((len(words), width), np.nan, np.float32)
    for row, some in enumerate(spellings):
        known = next((spelling.encode() for spelling in some if spelling.encode() in found), None)
        if known is not None:
            vectors[row] = found[known]
    return vectors


def _spellings(word: str) -> Sequence[str]:
    """As it is, then without marks, then what is before a slash (spec, models, 1.4)."""
    bare = word.replace("-", "").replace(".", "").replace("'", "")
    return tuple(dict.fromkeys(filter(None, (word, bare, bare.partition("/")[0]))))


def _lines(path: Path, wanted: set[bytes]) -> list[tuple[bytes, NDArray[np.float32]]]:
    found = list[tuple[bytes, NDArray[np.float32]]]()
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            word, _, numbers = line.partition(b" ")
            if word in wanted:
                found.append((word, _numbers(path, number, numbers, len(found[0][1]) if found else None)))
    return found


def _numbers(path: Path, number: int, text: bytes, width: int | None) -> NDArray[np.float32]:
    try:
        values = np.array(text.split(), np.float32)
    except ValueError as error:
        raise Trouble(f"{path}, line {number}: {error}") from None
    if not len(values) or (width is not None and len(values) != width) or not np.isfinite(values).all():
        raise Trouble(f"{path}, line {number} has {len(values)} finite numbers, others have {width}")
    return values
