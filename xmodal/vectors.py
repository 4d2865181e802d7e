"""Word vectors in GloVe's text format: a line a word, its numbers after it, with single spaces between."""

from collections.abc import Iterator, Sequence
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


def _lines(path: Path, wanted: set[bytes]) -> Iterator[tuple[bytes, NDArray[np.float32]]]:
    """Words may have spaces in them (published files have such), so numbers are counted from a line's end."""
    with open(path, "rb") as file:
        width = len(file.readline().split()) - 1
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.partition(b" ")[0] in wanted:
                word, *numbers = line.rstrip().rsplit(b" ", width)
                if word in wanted:
                    yield word, _numbers(f"{path}, line {number}", numbers, width)


def _numbers(where: str, texts: Sequence[bytes], width: int) -> NDArray[np.float32]:
    if len(texts) != width or not width:
        raise Trouble(f"{where} has {len(texts)} numbers, the first line {width}")
    try:
        values = np.array(texts, np.float32)
    except ValueError as error:
        raise Trouble(f"{where}: {error}") from None
    if not np.isfinite(values).all():
        raise Trouble(f"{where} has a number that is NaN or infinite")
    return values
