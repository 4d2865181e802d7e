"""Dual-Path's text input: a caption's words as a code of fixed length (docs/models.md#dual-path-text-input).

Shapes: T texts, L positions of a code, S shifted codes of all texts; B codes of a batch, U different ones, R rows. A
code has ids from 1 on, and 0 for no word: row 0 of a table of word vectors must stay zero.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


class Places:
    """Places of B codes. Those that see the same words are one of R rows, where nothing sees what is on its right.

    `before_R` is the row of the place on the left, R where there is none; `counts_R` the places of the first `own`
    codes that are each row.
    """

    def __init__(self, rows_BL: Tensor, own: int) -> None:
        rows = len(torch.unique(rows_BL))
        self.rows_BL, self.own, self.before_R = rows_BL, own, rows_BL.new_full((rows,), rows)
        self.before_R[rows_BL[:, 1:]] = rows_BL[:, :-1]
        self.counts_R = rows_BL[:own].flatten().bincount(minlength=rows)

    def every_second(self) -> tuple[Tensor, "Places"]:
        """Returns the rows that are kept as well."""
        kept_R, rows_BL = torch.unique(self.rows_BL[:, ::2], return_inverse=True)
        return kept_R, Places(rows_BL, self.own)


def places_of(codes_BL: Tensor, own: int) -> Places:
    """Gives places one row where all words up to there are the same."""
    sorted_UL, numbers_B = torch.unique(codes_BL, dim=0, return_inverse=True)
    # next to each other, codes that begin alike: a place is new where a code differs from the last one up to there
    is_new_UL = torch.ones_like(sorted_UL, dtype=torch.bool)
    is_new_UL[1:] = (sorted_UL[1:] != sorted_UL[:-1]).cumsum(dim=1) > 0
    rows_LU = is_new_UL.T.flatten().cumsum(dim=0).view(is_new_UL.T.shape) - 1  # place by place
    return Places(rows_LU.T[numbers_B], own)
