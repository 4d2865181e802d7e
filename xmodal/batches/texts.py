"""Texts as numbers of words, and the vocabulary of a view."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from xmodal.recipes import Tokens, View
from xmodal.records.views import ViewCaptions, caption_texts, starts_of
from xmodal.root.outputs import Output, made_of
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vocabularies import END, PAD, START, Vocabulary

VOCABULARY, WORDS = "vocabulary", "vocabulary.txt"  # the stage that counts words, and its file


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts as numbers of words, end to end: an array for each would take far more memory."""

    numbers: NDArray[np.int32]
    starts: NDArray[np.int64]  # (texts + 1,)

    def __repr__(self) -> str:
        return f"Texts({len(self):,} texts, {len(self.numbers):,} words)"

    @classmethod
    def of(cls, texts: "Iterable[NDArray[np.int32] | array[int]]") -> "Texts":
        numbers, starts = array("i"), array("q", [0])
        for text in texts:
            numbers.frombytes(text.tobytes())
            starts.append(len(numbers))
        return cls(np.frombuffer(numbers, np.int32), np.frombuffer(starts, np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> NDArray[np.int32]:
        return self.numbers[self.starts[place] : self.starts[place + 1]]

    def at(self, kept: NDArray[np.bool_]) -> "Texts":
        lengths = np.diff(self.starts)
        return Texts(self.numbers[np.repeat(kept, lengths)], starts_of(lengths[kept]))

    def shortened(self, longest: int) -> "Texts":
        """Keeps the first words of each text; <start> and <end> stay and are not counted."""
        lengths = np.diff(self.starts)
        if not (lengths > longest + 2).any():
            return self
        ends = np.repeat(self.starts[1:], lengths) - np.arange(len(self.numbers))  # 1 is <end>
        kept = (np.repeat(lengths, lengths) - ends <= longest) | (ends == 1)
        return Texts(self.numbers[kept], starts_of(np.minimum(lengths, longest + 2)))

    def padded(self, places_T: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(T, L) with zeros behind each text, and lengths."""
        starts_T = self.starts[places_T]
        lengths_T = self.starts[places_T + 1] - starts_T
        steps_L = np.arange(lengths_T.max(initial=0))
        numbers = self.numbers if len(self.numbers) else np.zeros(1, np.int32)  # nothing is taken of nothing
        numbers_TL = numbers.take(starts_T[:, None] + steps_L, mode="clip")
        numbers_TL[steps_L >= lengths_T[:, None]] = 0
        return numbers_TL, lengths_T


def note_of_cuts(setting: str, lengths_T: NDArray[np.int64], longest: int, words: str = "words") -> str:
    """Says how many captions a setting cuts."""
    cut = np.count_nonzero(lengths_T > longest)
    return f"{setting}={longest} cuts {cut:,} of {len(lengths_T):,} captions to their first {longest:,} {words}"


def vocabulary(records: Output, view: View, tokens: Tokens) -> Vocabulary:
    return _built_vocabulary(records, view, tokens) or Vocabulary.build(
        caption_texts(records, view), tokens.tokenizer, tokens.minimum_count, tokens.cleaning
    )


def vocabulary_and_texts(
    records: Output, view: View, captions: Sequence[ViewCaptions], tokens: Tokens, known: Vocabulary | None
) -> tuple[Vocabulary, list[Texts]]:
    """Counts the words of a view's captions, and of those beside it, and encodes all; `known` is that of a run."""
    split, words = tokenizer(tokens.tokenizer, tokens.cleaning), defaultdict[str, int](count().__next__)
    every = [Texts.of(array("i", map(words.__getitem__, split(text))) for text in some.texts) for some in captions]
    totals = sum(np.bincount(texts.numbers, minlength=len(words)) for texts in every)
    counts = zip(words, np.asarray(totals).tolist(), strict=True)
    known = known or (_built_vocabulary(records, view, tokens) if len(captions) == 1 else None)
    known = known or Vocabulary.of_counts(counts, tokens.tokenizer, tokens.minimum_count, tokens.cleaning)
    ids = np.array([known.id_of(word) for word in words], np.int32)
    return known, [_between_ends(texts, ids) for texts in every]


def _between_ends(texts: Texts, ids: NDArray[np.int32]) -> Texts:
    """Gives each word its id, and each text a <start> and an <end>."""
    starts = texts.starts + 2 * np.arange(len(texts.starts))
    numbers = np.zeros(starts[-1], np.int32)
    numbers[starts[:-1]], numbers[starts[1:] - 1] = START, END
    numbers[numbers == PAD] = ids[texts.numbers]
    return Texts(numbers, starts)


def _built_vocabulary(records: Output, view: View, tokens: Tokens) -> Vocabulary | None:
    """Reads what `xmodal build CORPUS/vocabulary` made from the same captions in the same way."""
    wanted = {name: getattr(view, name) for name in ("split", "captions_per_item", "text")}
    wanted |= {name: getattr(tokens, name) for name in ("tokenizer", "cleaning", "minimum_count")}
    for output in made_of(records, VOCABULARY):
        if wanted.items() <= output.config.items():
            return Vocabulary.from_bytes(output.read(WORDS), f"{output.where}/{WORDS}")
    return None
