"""Dual-Path's text input: a caption's word2vec words as a code of fixed length (docs/models.md#dual-path-text-input).

    words = captions(records, view)  # from xmodal.records.views
    dictionary = Dictionary.build(words, "dual-path", partial(read_vectors, path, exact=True))
    reader = Reader(Examples.of(records, view, store, dictionary), store, tokens=Codes(32))  # from xmodal.batches

Shapes: T texts, L positions of a code, S shifted codes of all texts. A code has ids from 1 on, and 0 for no word: row 0
of a table of word vectors must stay zero.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import by_frequency, count_words
from xmodal.text.vocabularies import PAD, SPECIALS, WordList

Ids = NDArray[np.int32]
Vectors = Callable[[Sequence[str]], NDArray[np.float32]]  # (words, width), NaN for a word that has none
NO_WORD = SPECIALS[PAD]


class Dictionary(WordList):
    """Words by their ids, <pad> for no word first."""

    specials = (NO_WORD,)
    kind = "codes"

    @classmethod
    def build(cls, captions: Iterable[str], tokenizer_name: str, vectors: Vectors) -> "Dictionary":
        """Collects a training split's words with a vector; the paper's Flickr30k adds validation."""
        words = [word for word in by_frequency(count_words(captions, tokenizer_name).items()) if word != NO_WORD]
        known = [words[row] for row in np.flatnonzero(~np.isnan(vectors(words)).any(axis=1))]
        if not known:
            raise UserError(f"none of the captions' {len(words):,} words has a vector: is it their language's file?")
        return cls(tokenizer_name, (NO_WORD, *known))

    def encode(self, caption: str) -> Ids:
        found = (self._ids.get(word) for word in self._split(caption))
        return np.array([number for number in found if number], np.int32)


@dataclass(frozen=True)
class Codes:
    """Asks for a text's first words as a code of fixed length.

    Evaluation reads it at the left; a model trained on shifted codes takes `all_shifts` of it.
    """

    length: int = 32  # 56 for CUHK-PEDES
    shifted: bool = True  # at random, in training

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a code has 1 position or more, not {self.length}")


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
