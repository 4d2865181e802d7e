"""Phrase localisation: at which rank the proposals of a picture show what a phrase names.

A proposal is right if it overlaps the phrase's annotated box enough (docs/models.md#phrase-localisation).

Shapes: P phrases, A annotated boxes, V pictures, N proposals of all pictures, K proposals of the picture with most.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.box_geometry import Boxes, iou_by_sides, suppress
from xmodal.number_rules import above_zero, shares
from xmodal.ranking.similarities import Integers, Numbers, cuts

FIRST = (1, 5, 10)
LEAST_OVERLAP = 0.5
PHRASES_AT_ONCE = 1024  # their scores and overlaps are in memory together
NOT_FOUND = np.iinfo(np.int64).max
ScoresOf = Callable[[slice], Numbers]  # of some phrases and their pictures' proposals, (phrases, K); greater is closer


@dataclass(frozen=True, eq=False)
class LocalisationTask:
    """Phrases, and the proposals of each picture, among which its phrases are looked for.

    Boxes are left, top, right, bottom; right and bottom are the last pixels, as the published code has them.
    """

    annotated_A4: Boxes
    pictures_A: Integers
    boxes_P: Integers  # places of annotated boxes; several phrases may name what one box shows
    proposals_N4: Boxes
    starts_V1: Integers  # where each picture's proposals begin, and where the last one's end

    def __post_init__(self) -> None:
        assert len(self.annotated_A4) == len(self.pictures_A)
        assert self.starts_V1[-1] == len(self.proposals_N4)

    @property
    def counts_P(self) -> Integers:
        """How many proposals each phrase's picture has."""
        counts_P: Integers = np.diff(self.starts_V1)[self.pictures_A[self.boxes_P]]
        return counts_P

    def phrases_of(self, box: int) -> NDArray[np.int64]:
        """The phrases that name what an annotated box shows."""
        order_P, starts_A1 = self._phrases_by_box
        return order_P[starts_A1[box] : starts_A1[box + 1]]

    @cached_property
    def _phrases_by_box(self) -> tuple[NDArray[np.int64], Integers]:
        counts_A = np.bincount(self.boxes_P, minlength=len(self.annotated_A4))
        return np.argsort(self.boxes_P, kind="stable"), np.concatenate([[0], np.cumsum(counts_A)])

    @property
    def most(self) -> int:
        """K."""
        return int(np.diff(self.starts_V1).max(initial=0))

    @cached_property
    def sides_4N(self) -> NDArray[np.float64]:
        """Lefts, tops, rights and bottoms of the proposals."""
        return np.ascontiguousarray(self.proposals_N4.T, np.float64)

    def right(self, phrases: slice, least: float, inclusive: bool) -> NDArray[np.bool_]:
        """Says which proposals show what the phrases name: (phrases, K), False beyond a picture's proposals."""
        used_A, places_P = np.unique(self.boxes_P[phrases], return_inverse=True)  # five captions name the same things
        used_V, places_A = np.unique(self.pictures_A[used_A], return_inverse=True)
        if not self.most:
            return np.zeros((len(places_P), 0), np.bool_)
        rows_VK = self.starts_V1[used_V][:, None] + np.arange(self.most)
        is_there_VK = rows_VK < self.starts_V1[used_V + 1][:, None]
        proposals_4AK = self.sides_4N.take(rows_VK, axis=1, mode="clip").take(places_A, axis=1)
        annotated_4A1 = self.annotated_A4[used_A].T[:, :, None].astype(np.float64)
        right_AK = iou_by_sides(annotated_4A1, proposals_4AK, inclusive) >= least
        right_AK &= is_there_VK[places_A]
        return right_AK.take(places_P, axis=0)

    def checked(self, scores: ScoresOf, phrases: slice) -> Numbers:
        """Scores of the phrases' proposals, (phrases, K), -inf beyond these; refuses others that are not finite."""
        scores_PK = scores(phrases)
        is_there_PK = np.arange(self.most) < self.counts_P[phrases][:, None]
        assert scores_PK.shape == is_there_PK.shape
        is_wrong_PK = ~np.isfinite(scores_PK) & is_there_PK
        if is_wrong_PK.any():
            row, column = np.argwhere(is_wrong_PK)[0].tolist()
            where = f"phrase {phrases.start + row} and proposal {column}, from 0,"
            raise ValueError(f"the score of {where} is {scores_PK[row, column]}; only finite numbers can be ranked")
        return scores_PK if is_there_PK.all() else np.where(is_there_PK, scores_PK, -np.inf)

    def kept(self, scores_PK: Numbers, phrases: slice, suppression: float, inclusive: bool) -> NDArray[np.bool_]:
        """Says which proposals no better one of the phrase overlaps by more than `suppression`: (phrases, K)."""
        pictures_P = self.pictures_A[self.boxes_P[phrases]]
        kept_PK = np.zeros(scores_PK.shape, np.bool_)
        for picture in np.unique(pictures_P):
            proposals_K4 = self.proposals_N4[self.starts_V1[picture] : self.starts_V1[picture + 1]]
            if count := len(proposals_K4):
                its_P = np.flatnonzero(pictures_P == picture)
                scores_KP = scores_PK[its_P, :count].T.astype(np.float64)
                kept_PK[its_P, :count] = suppress(proposals_K4, scores_KP, suppression, inclusive).T
        return kept_PK


@dataclass(frozen=True, eq=False)
class LocalisedPhrases:
    """Holds, for each phrase, the rank of its best right proposal, and how many are right."""

    ranks_P: Integers  # from 0; NOT_FOUND if there is none
    right_P: Integers
    counts_P: Integers  # of proposals

    def __len__(self) -> int:
        return len(self.ranks_P)

    def __getitem__(self, chosen_P: NDArray[np.bool_] | Integers) -> "LocalisedPhrases":
        return LocalisedPhrases(self.ranks_P[chosen_P], self.right_P[chosen_P], self.counts_P[chosen_P])

    def recall(self, first: int) -> float:
        """The percentage of phrases with a right proposal among the first ones."""
        return 100 * float(np.mean(self.ranks_P < first))

    @property
    def bound(self) -> float:
        """The percentage of phrases with any right proposal: no scores find more."""
        return 100 * float(np.mean(self.right_P > 0))

    def chance(self, first: int) -> float:
        """The recall of random scores, on average."""
        missed_P, wrong_P = np.ones(len(self)), self.counts_P - self.right_P
        for drawn in range(first):
            left_P = self.counts_P - drawn
            missed_P *= np.where(left_P > 0, np.maximum(wrong_P - drawn, 0) / np.maximum(left_P, 1), 1)
        return 100 * float(np.mean(1 - missed_P))


def localise(
    task: LocalisationTask,
    scores: ScoresOf,
    least: float = LEAST_OVERLAP,
    inclusive: bool = True,
    suppression: float | None = None,
) -> LocalisedPhrases:
    """Ranks the proposals of each phrase's picture, some phrases at a time.

    A right proposal stands behind every wrong one that scores as much. A phrase whose picture has no proposals is
    among those not found. With `suppression`, proposals that overlap a better one by more are not ranked, but still
    count for the bound.
    """
    for rule in (above_zero, shares):
        rule(least=least, suppression=suppression)
    ranks_P, right_P = np.zeros((2, len(task.boxes_P)), np.int64)
    for rows in cuts(len(task.boxes_P), PHRASES_AT_ONCE):
        scores_PK, is_right_PK = task.checked(scores, rows), task.right(rows, least, inclusive)
        right_P[rows] = _counted(is_right_PK)
        if suppression is not None:
            is_kept_PK = task.kept(scores_PK, rows, suppression, inclusive)
            scores_PK = np.where(is_kept_PK, scores_PK, -np.inf)
        best_P = np.where(is_right_PK, scores_PK, -np.inf).max(axis=1, initial=-np.inf)
        is_ahead_PK = (scores_PK >= best_P[:, None]) & ~is_right_PK
        ranks_P[rows] = np.where(best_P > -np.inf, _counted(is_ahead_PK), NOT_FOUND)
    return LocalisedPhrases(ranks_P, right_P, task.counts_P)


def _counted(is_so_PK: NDArray[np.bool_]) -> Integers:
    """Counts within rows; in bits, which is several times as fast as a sum of booleans."""
    counts_P: Integers = np.bitwise_count(np.packbits(is_so_PK, axis=1)).sum(axis=1, dtype=np.int64)
    return counts_P
