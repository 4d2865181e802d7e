"""Derived splits: shares of a split for sparse corpora, and random splits that a paper drew.

    karpathy/train@10%                   the annotated part: the first tenth of the shuffled items
    karpathy/train@10%x2                 two captions of each, drawn among those that the view has
    karpathy/train@10%x2:unannotated     the other items; by this name nobody can read their captions
    karpathy/train@10%x2#7               the same with seed 7; without a number the seed is 0
    two_branch/train, two_branch#7/test  drawn from all items of a corpus, as many as its `drawn` says

A seed shuffles once, by the SHA-256 of seed and id: the 5 % are among the 10 %, the one caption is one of the two. A
share is rounded down to whole items.
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
_MEANT = re.compile(r"@[^/@]*%")
_DRAWN = re.compile(r"(?P<who>[^#/]+)(#(?P<seed>\d+))?/(?P<part>train|val|test)")


@dataclass(frozen=True)
class Share:
    """The annotated share of the split `whole`, or the rest."""

    whole: str
    percent: int
    captions: int | None = None  # of each item; None is all
    seed: int = 0
    annotated: bool = True

    @classmethod
    def of(cls, split: str) -> "Share | None":
        """Reads the name of a share; None for other splits."""
        if not (found := _SHARE.fullmatch(split)):
            if _MEANT.search(split):
                forms = "NAME@10%, NAME@10%x2 (captions of each), NAME@10%#7 (seed), each also with :unannotated"
                raise UserError(f"split {split!r} is no share, which is of whole percents, 1 to 100: {forms}")
            return None
        captions, percent = int(found["captions"]) if found["captions"] else None, int(found["percent"])
        if not 1 <= percent <= 100 or captions == 0:
            raise UserError(f"split {split!r}: a share is of 1 to 100 %, and keeps a caption or more")
        return cls(found["whole"], percent, captions, int(found["seed"] or 0), not found["other"])

    @property
    def name(self) -> str:
        captions = f"x{self.captions}" if self.captions else ""
        seed = f"#{self.seed}" if self.seed else ""
        rest = "" if self.annotated else ":unannotated"
        return f"{self.whole}@{self.percent}%{captions}{seed}{rest}"

    @property
    def words(self) -> "Share":
        """The annotated share, whose captions make the vocabulary."""
        return replace(self, annotated=True)

    @property
    def rest(self) -> "Share":
        """The un-annotated items."""
        return replace(self, annotated=False)

    def items(self, whole: Collection[str]) -> set[str]:
        order = shuffled(whole, "items", self.seed)
        count = len(order) * self.percent // 100
        return set(order[:count] if self.annotated else order[count:])

    def hides(self, source: str) -> bool:
        """Tells whether texts of this source must not be read, as people wrote them."""
        return not self.annotated and source in WRITTEN

    def drawn_captions(self, ids: Sequence[str], owners: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """(captions,): the ones that the share keeps; `owners` is the item of each, ascending."""
        kept = np.zeros(len(ids), bool)
        edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(ids)]
        for start, stop in pairwise(edges):
            places = {ids[place]: place for place in range(start, stop)}
            for id in shuffled(places, "captions", self.seed)[: self.captions]:
                kept[places[id]] = True
        return kept


@dataclass(frozen=True)
class RandomSplitSizes:
    """Numbers of items that a paper drew at random; the others train."""

    val: int
    test: int


@dataclass(frozen=True)
class DrawnSplit:
    who: str
    part: str  # train, val or test
    seed: int = 0

    @classmethod
    def of(cls, split: str, drawn: Mapping[str, RandomSplitSizes]) -> "DrawnSplit | None":
        found = _DRAWN.fullmatch(split)
        return cls(found["who"], found["part"], int(found["seed"] or 0)) if found and found["who"] in drawn else None

    @cached_property
    def training(self) -> str:
        return f"{self.who}#{self.seed}/train" if self.seed else f"{self.who}/train"

    def items(self, every: Collection[str], sizes: RandomSplitSizes, others: Collection[str]) -> set[str]:
        """Draws the split's items; names `others` that there are, if all items are too few."""
        if len(every) <= sizes.val + sizes.test:
            wanted = f"{sizes.test:,} items to test and {sizes.val:,} to validate on: {len(every):,} are too few"
            cure = "--set view.split=NAME --set validation.split=NAME, or --split NAME to evaluate"
            raise UserError(f"{self.who} draws {wanted}; name other splits ({cure}): {', '.join(others)}")
        order, cut = shuffled(every, "split", self.seed), sizes.test + sizes.val
        parts = {"test": order[: sizes.test], "val": order[sizes.test : cut], "train": order[cut:]}
        return set(parts[self.part])


def shuffled(ids: Iterable[str], what: str, seed: int) -> list[str]:
    """The one shuffle of a seed; `what` is shuffled gives the same ids another order."""
    head = f"{what} {seed}\n".encode()
    return sorted(ids, key=lambda id: (hashlib.sha256(head + id.encode()).digest(), id))
