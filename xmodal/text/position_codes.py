"""Dual-Path's text input: a caption's words as a code of fixed length (docs/models.md#dual-path-text-input).

Shapes: T texts, L positions of a code, S shifted codes of all texts. A code has ids from 1 on, and 0 for no word: row 0
of a table of word vectors must stay zero.
"""

import numpy as np
from numpy.typing import NDArray

from xmodal.text.vocabularies import PAD

Ids = NDArray[np.int32]


def shifted(codes_TL: Ids, shifts_T: NDArray[np.int64]) -> Ids:
    """Moves words to the right; none may be pushed out."""
    words_TL, length = codes_TL != PAD, codes_TL.shape[1]
    assert not (words_TL[:, 1:] & ~words_TL[:, :-1]).any()  # no gap, and none before the words
    assert ((shifts_T >= 0) & (shifts_T <= length - words_TL.sum(axis=1))).all()
    return np.take_along_axis(codes_TL, (np.arange(length) - shifts_T[:, None]) % length, axis=1)


def all_shifts(codes_TL: Ids) -> tuple[Ids, NDArray[np.int64]]:
    """Returns (S, L) codes at every place where they fit, text by text, and (S,) the text of each.

    At test a text's feature is the normalised sum over its shifts: `features.index_add_(0, texts, each)`.
    """
    counts_T = codes_TL.shape[1] + 1 - (codes_TL != PAD).sum(axis=1)
    texts_S = np.repeat(np.arange(len(codes_TL)), counts_T)
    firsts_T = np.cumsum(counts_T) - counts_T
    return shifted(codes_TL[texts_S], np.arange(len(texts_S)) - firsts_T[texts_S]), texts_S
