"""The order in which training reads samples, and what is drawn for each.

Every draw follows from the seed, the epoch that the batch begins in, and the sample: any number of processes can enter
an order at any point.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from operator import index

import numpy as np
from numpy.typing import NDArray

from xmodal.recipes import FrameRule

Integers = NDArray[np.int64]
SKIPS = 3  # the largest stride in training (docs/models.md#frame-sampling)
FRAME_STRIDE, FRAME_START, CAPTION, CLASS_MEMBER, CODE_SHIFT, NEIGHBOUR, CANDIDATE = range(7)  # purposes
RIGHT_REGION, WRONG_REGION, CHAIN_MEMBER = range(7, 10)  # and those of regions and phrases
STEPS = 1 << 53  # of a number between two others
FIRST_PICTURE_PURPOSE = 16  # and those after it: of crops (`training.picture_crops`)


@dataclass(frozen=True)
class Order:
    """An endless sequence: `count` samples shuffled, then all shuffled anew, and so on."""

    count: int
    seed: int
    stream: int = 0

    def take(self, start: int, stop: int) -> Integers:
        parts = [np.zeros(0, np.int64)]
        while start < stop:
            epoch, first = divmod(start, self.count)
            parts.append(_shuffled(self.count, self.seed, self.stream, epoch)[first : first + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)


@lru_cache(maxsize=4)  # two streams, each at the end of one epoch and the beginning of the next
def _shuffled(count: int, *seeds: int) -> Integers:
    order = np.random.default_rng(seeds).permutation(count)
    order.flags.writeable = False
    return order


@dataclass(frozen=True, eq=False)
class ClassOrder:
    """Batches of a sample of every class: the next shuffled one, and by chance one of every other class.

    So PCME trains on CUB (docs/models.md#pcme-training).
    """

    classes: Integers  # (samples,): from 0, each with a sample
    seed: int
    stream: int = 0

    @property
    def batch(self) -> int:
        return int(self.classes.max()) + 1

    @property
    def count(self) -> int:
        return len(self.classes) // self.batch * self.batch

    def take(self, start: int, stop: int) -> Integers:
        batches, places = np.divmod(np.arange(start, stop), self.batch)
        firsts = self._firsts(batches)
        classes = places - 1 + (places - 1 >= self.classes[firsts])
        members = np.argsort(self.classes, kind="stable")
        counts = np.bincount(self.classes)
        random = SampleRandom(self.seed, 0, batches * self.batch + classes, self.stream)
        drawn = random.integers(counts[classes], CLASS_MEMBER)
        return np.where(places == 0, firsts, members[(np.cumsum(counts) - counts)[classes] + drawn])

    def _firsts(self, batches: Integers) -> Integers:
        epochs, numbers = np.divmod(batches, self.count // self.batch)
        shuffled = partial(_shuffled, len(self.classes), self.seed, self.stream)
        return np.array([shuffled(e)[n] for e, n in zip(epochs.tolist(), numbers.tolist(), strict=True)], np.int64)


@dataclass(frozen=True, eq=False)
class SampleRandom:
    """Random numbers for samples of an epoch."""

    seed: int
    epoch: int
    samples: Integers
    stream: int = 0

    def integers(self, bounds: Integers | int, purpose: int) -> Integers:
        """For each sample a number in 0..bound-1, another for each purpose."""
        # splitmix64's finaliser over a counter: numpy's generators cannot be entered at many places at once
        first = np.random.SeedSequence([self.seed, self.epoch, self.stream, purpose]).generate_state(1, np.uint64)
        mixed = first + self.samples.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        return (mixed % np.asarray(bounds, np.uint64)).astype(np.int64)

    def between(self, low: float, high: float, purpose: int) -> NDArray[np.float64]:
        return low + (high - low) * self.integers(STEPS, purpose) / STEPS


def position_of(state: object, length: int, what: str) -> tuple[int, int, int]:
    """Seed, epoch and cursor of a loader's `state_dict`; refuses what is none for epochs of so many samples."""
    try:
        seed, epoch, cursor = (index(state[name]) for name in ("seed", "epoch", "cursor"))  # type: ignore[index]
    except (KeyError, TypeError):
        seed = epoch = cursor = -1
    if min(seed, epoch, cursor) < 0 or cursor > length:
        raise ValueError(f"{state!r} is no place in epochs of {length:,} {what}: give the dict that state_dict() gave")
    return seed, epoch, cursor


def training_frames(lengths_B: Integers, frames: int, rule: FrameRule, random: SampleRandom) -> Integers:
    """(B, frames) places in clips of these lengths: a random stride and start (docs/models.md#frame-sampling)."""
    if rule == "linspace":
        return _spread(lengths_B, frames)
    skips_B = 1 + random.integers(SKIPS, FRAME_STRIDE)
    starts_B = random.integers(np.maximum(lengths_B - skips_B * frames, 0) + 1, FRAME_START)
    places_BL = starts_B[:, None] + skips_B[:, None] * np.arange(frames)
    return _held(places_BL, lengths_B)


def neighbours(places_B: Integers, counts_B: Integers, captions: int, random: SampleRandom) -> Integers:
    """(B, captions): the place of a caption among its item's, then others: all of them before one comes again.

    The others stand in a circle, which begins at a random one.
    """
    others_B1 = np.maximum(counts_B - 1, 1)[:, None]
    first_B1 = random.integers(others_B1[:, 0], NEIGHBOUR)[:, None]
    steps_BO = 1 + (first_B1 + np.arange(captions - 1)) % others_B1
    steps_BC = np.concatenate([np.zeros_like(first_B1), steps_BO], axis=1)
    return np.asarray((places_B[:, None] + steps_BC) % counts_B[:, None])


def training_shifts(words_T: Integers, length: int, random: SampleRandom) -> Integers:
    """(T,): how far texts move in a code (docs/models.md#dual-path-text-input)."""
    return random.integers(length - words_T + 1, CODE_SHIFT)


def evaluation_frames(lengths_B: Integers, frames: int, rule: FrameRule, ends: int) -> Integers:
    """(B, frames): places at a fixed stride, from the first frame after `ends` dropped ones.

    Clips that are not longer than the two ends keep them.
    """
    if rule == "linspace":
        return _spread(lengths_B, frames)
    ends_B = np.where(lengths_B > 2 * ends, ends, 0)
    kept_B = lengths_B - 2 * ends_B
    skips_B = np.maximum(1, (kept_B + 1) // frames)
    return ends_B[:, None] + _held(skips_B[:, None] * np.arange(frames), kept_B)


def _spread(lengths_B: Integers, frames: int) -> Integers:
    """As numpy's linspace clip by clip; over several clips at once it rounds otherwise."""
    steps_B = (lengths_B - 1) / max(frames - 1, 1)
    return np.rint(np.arange(frames) * steps_B[:, None]).astype(np.int64)


def _held(places_BL: Integers, lengths_B: Integers) -> Integers:
    """Places beyond a clip's end become the last one before it."""
    inside_BL = places_BL < lengths_B[:, None]
    last_B = inside_BL.sum(axis=1) - 1
    held_B1 = np.take_along_axis(places_BL, last_B[:, None], axis=1)
    return np.where(inside_BL, places_BL, held_B1)
