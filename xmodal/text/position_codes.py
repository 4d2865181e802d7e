"""Dual-Path's text input: the words that word2vec has, as a code of fixed length in which they may stand anywhere.

    words = captions(records, view)  # of `xmodal.records.views`; Examples are of `xmodal.batches.dataset`, Reader of
    `xmodal.batches.loader` dictionary = Dictionary.build(words, "dual-path", partial(read_vectors, path, exact=True))
    reader = Reader(Examples.of(records, view, store, dictionary), store, tokens=Codes(32))

Shapes: T texts, L positions of a code, S shifted codes of all texts. A code has ids from 1 on, and 0 where no word is:
a column of zeros in the paper, so that row 0 of a table of word vectors must stay zero.

Words are split by the tokenizers `dual-path` and `dual-path-coco`, which keep letters as word2vec has them. The
official code also builds its dictionaries by other splits: Flickr30k's at white space alone, COCO's without `?`. Here
one split serves both, as words that only the other one gives can never be met, or never be known
(docs/models.md#dual-path-text-input).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import Tokenizer, by_frequency, check_names, count_words, tokenizer
from xmodal.text.vocabularies import PAD, SPECIALS, check_words, read_words_file, words_file

Ids: TypeAlias = NDArray[np.int32]
Vectors: TypeAlias = Callable[[Sequence[str]], NDArray[np.float32]]  # (words, width), NaN for a word that has none
NO_WORD = SPECIALS[PAD]
KIND = "codes"


@dataclass(frozen=True)
class Dictionary:
    """Words by their ids, <pad> for no word first, and the tokenizer that they come from.

    As a file: a line with `codes`, the tokenizer, the number of words and a checksum, then one word a line.
    """

    tokenizer: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        check_names(self.tokenizer, "none")
        check_words("dictionary", self.words, (NO_WORD,))

    @classmethod
    def build(cls, captions: Iterable[str], tokenizer_name: str, vectors: Vectors) -> "Dictionary":
        """Of the captions' words those that have a vector: `partial(read_vectors, path, exact=True)` is asked once.

        The captions are those to train on; the paper's Flickr30k counts those to validate on too.
        """
        words = [word for word in by_frequency(count_words(captions, tokenizer_name).items()) if word != NO_WORD]
        known = [words[row] for row in np.flatnonzero(~np.isnan(vectors(words)).any(axis=1))]
        if not known:
            raise UserError(
                f"none of the captions' {len(words):,} words has a vector: is it the file of their language?"
            )
        return cls(tokenizer_name, (NO_WORD, *known))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str) -> Ids:
        """Of the words in the dictionary, which may be none; others are skipped. `Codes` keeps the first of them."""
        found = (self._ids.get(word) for word in self._split(caption))
        return np.array([number for number in found if number], np.int32)

    def to_bytes(self) -> bytes:
        return words_file(self.words, KIND, self.tokenizer)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Dictionary":
        """`where` is named if the file is cut, edited or no dictionary."""
        words, kind, *rest = read_words_file(data, f"{where} is not the dictionary")
        if kind != KIND or len(rest) != 1:
            raise UserError(f"{where} holds no dictionary of codes: {' '.join((kind, *rest))}")
        return cls(rest[0], words)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer)


@dataclass(frozen=True)
class Codes:
    """A text's first words at a fixed length. In training it is `shifted`, else it stands at the left.

    The length is 32, for CUHK-PEDES 56. Evaluation reads codes at the left: a model that was trained on shifted ones
    takes `all_shifts` of them.
    """

    length: int = 32
    shifted: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a code has 1 position or more, not {self.length}")


def shifted(codes_TL: Ids, shifts_T: NDArray[np.int64]) -> Ids:
    """Each code that stands at the left moved so far to the right, which may not push a word out."""
    words_TL = codes_TL != PAD
    if (words_TL[:, 1:] & ~words_TL[:, :-1]).any():
        raise ValueError("a code to shift has its words at the left, without a gap")
    length = codes_TL.shape[1]
    if ((shifts_T < 0) | (shifts_T > length - words_TL.sum(axis=1))).any():
        raise ValueError("a code is shifted by 0 or more positions, and by no more than it has free")
    return np.take_along_axis(codes_TL, (np.arange(length) - shifts_T[:, None]) % length, axis=1)


def all_shifts(codes_TL: Ids) -> tuple[Ids, NDArray[np.int64]]:
    """(S, L): every code at every place where it fits, text by text from the left on; and (S,) the text of each.

    At test a text's feature is the sum over its shifts, normalised after that: `features.index_add_(0, texts, each)`.
    A text of n words has L + 1 - n of them, so one without words has L + 1 that are all empty.
    """
    counts_T = codes_TL.shape[1] + 1 - (codes_TL != PAD).sum(axis=1)
    texts_S = np.repeat(np.arange(len(codes_TL)), counts_T)
    firsts_T = np.cumsum(counts_T) - counts_T
    return shifted(codes_TL[texts_S], np.arange(len(texts_S)) - firsts_T[texts_S]), texts_S
