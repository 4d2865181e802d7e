"""The reader: features and words of given samples."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xmodal.batches.batch import Padded
from xmodal.batches.buffers import Buffers
from xmodal.batches.examples import Examples
from xmodal.batches.sample_order import Integers, SampleRandom, evaluation_frames, training_frames
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import Features, Tokens
from xmodal.text.vocabularies import UNKNOWN

WHOLE_CLIPS = Features(stage="")  # a reader uses its frames alone


@dataclass(frozen=True, eq=False)
class Reader:
    examples: Examples
    store: FeatureStore
    frames: Features = WHOLE_CLIPS  # how many of a clip, by which rule
    tokens: Tokens | None = None  # how long a caption may be, and what training leaves out
    classes: Integers | None = None  # (items,)
    buffers: Buffers = field(default_factory=lambda: Buffers(pinned=False))

    def __repr__(self) -> str:
        return f"Reader({self.examples!r}, {self.store.output.where})"

    def __post_init__(self) -> None:
        if self.frames.frames is not None and not self.store.spec.ragged:
            raise UserError(f"{self.store.output.where} holds no clips to take {self.frames.frames} frames of")
        if not self.store.spec.row_shape:
            raise UserError(f"{self.store.output.where} has single numbers, which are no features")

    def visual(self, items: Integers | slice, draws: SampleRandom | None = None) -> Padded:
        """Reads items as sequences of positions: a grid is flattened, a vector is a sequence of one.

        With `draws` the frames of a clip are drawn, for each of their samples.
        """
        rows = self.examples.rows[items]
        if not self.store.spec.ragged:
            values = self.store.take(rows, self._room(self.store, len(rows)))
            return Padded.whole(torch.from_numpy(values.reshape(len(rows), -1, values.shape[-1])))
        lengths = self._lengths(rows)
        if self.frames.frames is None:
            values = self.store.take_padded(rows, None, self._room(self.store, len(rows), int(lengths.max(initial=0))))
            return Padded(torch.from_numpy(values), torch.from_numpy(lengths))
        places = self._places(lengths, draws)
        values = self.store.take_padded(rows, places, self._room(self.store, *places.shape))
        return Padded.whole(torch.from_numpy(values))

    def text(self, captions: Integers | slice, draws: SampleRandom | None = None) -> Padded:
        """Reads captions as ids of words or as numbers of concepts (T, L), or as vectors (T, 1, D)."""
        whole = range(len(self.examples.words))
        places = np.asarray(whole[captions], np.int64) if isinstance(captions, slice) else captions
        if (sentences := self.examples.sentences) is not None:
            rows = self.examples.words.numbers[places]
            if sentences.spec.ragged:
                return Padded(torch.from_numpy(sentences.take_padded(rows)), torch.from_numpy(sentences.lengths(rows)))
            vectors = sentences.take(rows, self._room(sentences, len(places)))
            return Padded.whole(torch.from_numpy(vectors)[:, None])
        tokens = self.tokens
        thinning = draws if tokens is not None and (tokens.marked or tokens.deleted) else None
        if tokens is None or (tokens.longest is None and thinning is None):
            return Padded(*map(torch.from_numpy, self.examples.words.padded(places)))
        words = [self.examples.words[place] for place in places.tolist()]
        if tokens.longest is not None:
            words = [shortened(some, tokens.longest) for some in words]
        if thinning is not None:
            chance = [np.random.default_rng([thinning.seed, thinning.epoch, place]) for place in places.tolist()]
            words = [thinned(some, tokens, one) for some, one in zip(words, chance, strict=True)]
        return Padded.of(words)

    def _places(self, lengths: Integers, draws: SampleRandom | None) -> Integers:
        count, rule = self.frames.frames, self.frames.rule
        assert count
        if draws is None:
            return evaluation_frames(lengths, count, rule, self.frames.ends)
        return training_frames(lengths, count, rule, draws)

    def _lengths(self, rows: Integers) -> Integers:
        lengths = self.store.lengths(rows)
        if not lengths.all():
            id = self.store.ids[rows[lengths == 0][0]]
            raise UserError(f"{self.store.output.where}: {id!r} has no {self.store.spec.name}")
        return lengths

    def _room(self, store: FeatureStore, *shape: int) -> NDArray[Any]:
        return self.buffers.take((*shape, *store.spec.row_shape), np.dtype(store.spec.dtype))


def shortened(words: NDArray[np.int32], longest: int) -> NDArray[np.int32]:
    """Keeps the first words; <start> and <end> stay and are not counted."""
    return words if len(words) - 2 <= longest else np.concatenate([words[: longest + 1], words[-1:]])


def thinned(words: NDArray[np.int32], tokens: Tokens, chance: np.random.Generator) -> NDArray[np.int32]:
    """Makes some words <unk>, then deletes a share of all; never <start> or <end> (docs/models.md#pcme-training)."""
    inner = words[1:-1].copy()
    inner[chance.random(len(inner)) < tokens.marked] = UNKNOWN
    kept = np.sort(chance.permutation(len(inner))[int(tokens.deleted * len(inner)) :])
    return np.concatenate([words[:1], inner[kept], words[-1:]])
