"""Splits that follow from others by a seed: parts of a split for sparse corpora, and those that a paper drew itself.

    karpathy/train@10%                   the annotated part: the first tenth of the shuffled items
    karpathy/train@10%x2                 and of each two captions, drawn among those that the view has
    karpathy/train@10%x2:unannotated     the other items, whose captions nobody can read by this name
    karpathy/train@10%x2#7               of another shuffle, seed 7; without a number the seed is 0
    two_branch/train, two_branch#7/test  of all items of a corpus, as many as its `drawn` says

A seed shuffles once: 5 % are among the 10 %, one caption is one of the two. The order is that of SHA-256 of the seed
and the id, so no library, no order of records and no other item decides it. A part is rounded down to whole items.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.recipes import WRITTEN

_SHARE = re.compile(r"(?P<whole>.+)@(?P<percent>\d+)%(x(?P<captions>\d+))?(#(?P<seed>\d+))?(?P<other>:unannotated)?")
_DRAWN = re.compile(r"(?P<who>[^#/]+)(#(?P<seed>\d+))?/(?P<part>train|val|test)")


@dataclass(frozen=True)
class Share:
    """A part of the split `whole`: the annotated one, or what is left."""

    whole: str
    percent: int
    captions: int | None = None  # of each item; None is all
    seed: int = 0
    annotated: bool = True

    @classmethod
    def of(cls, split: str) -> "Share | None":
        """What the name says; None where it is a split's own."""
        found = _SHARE.fullmatch(split)
        if not found:
            return None
        captions, percent = int(found["captions"]) if found["captions"] else None, int(found["percent"])
        if not 1 <= percent <= 100 or captions == 0:
            raise UserError(f"split {split!r}: a share is of 1 to 100 %, and keeps a caption or more")
        return cls(found["whole"], percent, captions, int(found["seed"] or 0), not found["other"])

    @property
    def name(self) -> str:
        captions, seed = f"x{self.captions}" if self.captions else "", f"#{self.seed}" if self.seed else ""
        return f"{self.whole}@{self.percent}%{captions}{seed}" + ":unannotated" * (not self.annotated)

    @property
    def words(self) -> "Share":
        """The part whose captions make the vocabulary: the annotated one of the same shuffle."""
        return replace(self, annotated=True)

    def items(self, whole: Collection[str]) -> set[str]:
        order = shuffled(whole, "items", self.seed)
        count = len(order) * self.percent // 100
        return set(order[:count] if self.annotated else order[count:])

    def hides(self, source: str) -> bool:
        """Whether texts of this source are what nobody may read here."""
        return not self.annotated and source in WRITTEN

    def drawn_captions(self, ids: Sequence[str], owners: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """(captions,): which captions of each item the share keeps; `owners` says whose each is, ascending."""
        kept = np.zeros(len(ids), bool)
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(ids)]
        for start, stop in pairwise(edges):
            places = {ids[place]: place for place in range(start, stop)}
            for id in shuffled(places, "captions", self.seed)[: self.captions]:
                kept[places[id]] = True
        return kept


@dataclass(frozen=True)
class RandomSplitSizes:
    """How many items a paper drew at random to validate and to test on, where it tells no more; the others train."""

    val: int
    test: int


@dataclass(frozen=True)
class DrawnSplit:
    """One part of what a paper drew itself: who, of which seed, and train, val or test."""

    who: str
    part: str
    seed: int = 0

    @classmethod
    def of(cls, split: str, drawn: Mapping[str, RandomSplitSizes]) -> "DrawnSplit | None":
        found = _DRAWN.fullmatch(split)
        return cls(found["who"], found["part"], int(found["seed"] or 0)) if found and found["who"] in drawn else None

    @cached_property
    def training(self) -> str:
        return f"{self.who}#{self.seed}/train" if self.seed else f"{self.who}/train"

    def items(self, every: Collection[str], sizes: RandomSplitSizes) -> set[str]:
        if len(every) <= sizes.val + sizes.test:
            raise UserError(
                f"{self.who} draws {sizes.test:,} items to test and {sizes.val:,} to validate on: {len(every):,} are "
                "too few"
            )
        order, cut = shuffled(every, "split", self.seed), sizes.test + sizes.val
        parts = {"test": order[: sizes.test], "val": order[sizes.test : cut], "train": order[cut:]}
        return set(parts[self.part])


def shuffled(ids: Iterable[str], what: str, seed: int) -> list[str]:
    """The one shuffle of a seed; `what` is shuffled tells orders of the same ids from each other."""
    head = f"{what} {seed}\n".encode()
    return sorted(ids, key=lambda id: (hashlib.sha256(head + id.encode()).digest(), id))
