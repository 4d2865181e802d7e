"""Dual-Path's text input: a caption's words as a code of fixed length (docs/models.md#dual-path-text-input).

Shapes: T texts, K words of a text, W words, L positions of a code, S shifted codes of all texts; B codes of a batch, U
different ones, R rows. A code has ids from 1 on, and 0 for no word: row 0 of a table of word vectors must stay zero.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, pad

from xmodal.text.vocabularies import PAD

Ids = NDArray[np.int32]


def left_codes(ids_TK: Tensor, known_W: Tensor, length: int) -> Tensor:
    """(T, L): the first words of each text that are known, at the left."""
    kept_TK = known_W[ids_TK]
    places_TK = (kept_TK.cumsum(dim=1) - 1).where(kept_TK, length).clamp(max=length)
    codes_TL = ids_TK.new_zeros(len(ids_TK), length + 1)
    return codes_TL.scatter_(1, places_TK, ids_TK)[:, :length]  # the last column took what is not kept


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
    """Places of B codes: those that see the same words, up to themselves, are one of R rows.

    - `numbers_R`: the number that a row's places were given; of every second place, its row among all.
    - `rows_BL`: the row of each place.
    - `counts_R`: how many places of the first `own` codes are a row.
    """

    def __init__(self, numbers_BL: Tensor, own: int) -> None:
        self.own = own
        self.numbers_R, self.rows_BL = torch.unique(numbers_BL, return_inverse=True)
        rows = len(self.numbers_R)
        self.counts_R = self.rows_BL[:own].flatten().bincount(minlength=rows)
        self._left_R = self.of_rows(pad(self.rows_BL[:, :-1], (1, 0), value=rows))

    def of_rows(self, values_BL: Tensor) -> Tensor:
        """(R,): the value that all places of a row have."""
        return values_BL.new_empty(len(self.numbers_R)).index_put_((self.rows_BL,), values_BL)

    # by `embedding`, since several threads would add up the gradients of an index in any order

    def of_codes(self, maps_RC: Tensor) -> Tensor:
        return embedding(self.rows_BL, maps_RC)

    def on_the_left(self, maps_RC: Tensor) -> Tensor:
        """(R, C): zero at the first place of a code."""
        return embedding(self._left_R, pad(maps_RC, (0, 0, 0, 1)))

    def every_second(self) -> "Places":
        return Places(self.rows_BL[:, ::2], self.own)


def places_of(codes_BL: Tensor, own: int) -> Places:
    """Gives places one number where all words up to there are the same."""
    sorted_UL, codes_B = torch.unique(codes_BL, dim=0, return_inverse=True)
    is_new_UL = torch.ones_like(sorted_UL, dtype=torch.bool)
    is_new_UL[1:] = (sorted_UL[1:] != sorted_UL[:-1]).cumsum(dim=1) > 0  # codes that begin alike are neighbours
    # place by place, new ones are counted: another has the number of the code above it
    numbers_LU = is_new_UL.T.flatten().cumsum(dim=0).view(is_new_UL.T.shape)
    return Places(numbers_LU.T[codes_B], own)
