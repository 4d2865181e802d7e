"""Region-phrase batches of Two-Branch, algorithm 1: regions and phrases that are right or wrong for each other.

Regions have numbers: first all proposals of a task, then its annotated boxes, so N + a is the annotated box a. Right
for a phrase is its annotated box and what overlaps this enough; wrong are proposals of its picture that overlap it
little. All draws follow from the seed, the epoch and the phrase.

Shapes: B phrases of a batch, Q of them and their neighbours, R regions, C candidates of a phrase: the proposals of its
picture, and last its annotated box; M pairs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xmodal.batches.sample_order import CHAIN_MEMBER, RIGHT_REGION, STEPS, WRONG_REGION, SampleRandom
from xmodal.detection.overlap_bands import NEGATIVE, NEITHER, POSITIVE, overlap_bands
from xmodal.metrics.phrase_localisation import LocalisationTask
from xmodal.recipes import Phrases

Integers = NDArray[np.int64]
Table = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RegionPhraseTriplets:
    """Right pairs, and what is wrong for each, of which the embedding network's loss takes the hardest."""

    regions_R: Integers  # numbers, ascending
    phrases_Q: Integers  # those of the batch in its order, then neighbours
    pairs_M2: Integers  # places in `regions_R` and `phrases_Q`; the first B are of the phrases of the batch
    targets_M2: Table  # whether wrong phrases are sought for a pair's region, and wrong regions for its phrase
    wrong_regions_QR: Table  # wrong phrases are those of other chains


@dataclass(frozen=True, eq=False)
class RegionPhrasePairs:
    """Right pairs, each with a wrong region for its phrase, as the similarity network is trained."""

    right_M: Integers  # numbers of regions
    wrong_M: Integers
    phrases_M: Integers


@dataclass(frozen=True, eq=False)
class _Candidates:
    numbers_QC: Integers  # of regions
    bands_QC: NDArray[np.int8]
    samples_QC: Integers  # for draws: another number for each phrase and region


def triplets(task: LocalisationTask, phrases_B: Integers, rule: Phrases, seed: int, epoch: int) -> RegionPhraseTriplets:
    """Draws a right region for each phrase, and neighbours until each has `rule.neighbours`, or all there are.

    Neighbours of a region are phrases of the same chain, those of a phrase other right regions.
    """
    assert rule.neighbours >= 1
    assert len(np.unique(phrases_B)) == len(phrases_B)
    regions_M, phrases_M, targets_M2 = _right_pairs(task, phrases_B, rule, seed, epoch)
    phrases_Q = np.concatenate([phrases_B, np.setdiff1d(phrases_M, phrases_B)])
    found = _candidates(task, phrases_Q, rule)
    rows, columns = np.nonzero(found.bands_QC == NEGATIVE)
    wrong = found.numbers_QC[rows, columns]
    regions_R = np.unique(np.concatenate([regions_M, wrong]))
    wrong_QR = np.zeros((len(phrases_Q), len(regions_R)), np.bool_)
    wrong_QR[rows, np.searchsorted(regions_R, wrong)] = True
    order = np.argsort(phrases_Q)
    places_M = order[np.searchsorted(phrases_Q, phrases_M, sorter=order)]
    pairs_M2 = np.stack([np.searchsorted(regions_R, regions_M), places_M], axis=1)
    return RegionPhraseTriplets(regions_R, phrases_Q, pairs_M2, targets_M2, wrong_QR)


def _right_pairs(
    task: LocalisationTask, phrases_B: Integers, rule: Phrases, seed: int, epoch: int
) -> tuple[Integers, Integers, Table]:
    """Numbers of regions and phrases: the pair of each phrase, its neighbours, and then those of its region.

    The neighbours of a phrase are right for it as a target, those of a region for the region.
    """
    found = _candidates(task, phrases_B, rule)
    rows, columns = _drawn(found, rule.neighbours, seed, epoch)
    regions_M, phrases_M = found.numbers_QC[rows, columns], phrases_B[rows]
    added = [
        (region, phrase)
        for region in np.unique(regions_M[: len(phrases_B)]).tolist()
        for phrase in _chain_mates(task, phrases_M[regions_M == region], rule.neighbours, seed, epoch)
    ]
    added_M2 = np.array(added, np.int64).reshape(-1, 2)
    places_M = np.arange(len(regions_M) + len(added))
    is_phrase_M = places_M < len(regions_M)
    targets_M2 = np.stack([(places_M < len(phrases_B)) | ~is_phrase_M, is_phrase_M], axis=1)
    return np.concatenate([regions_M, added_M2[:, 0]]), np.concatenate([phrases_M, added_M2[:, 1]]), targets_M2


def pairs(task: LocalisationTask, phrases_B: Integers, rule: Phrases, seed: int, epoch: int) -> RegionPhrasePairs:
    """Takes all right regions of each phrase, and draws a wrong one for each; a phrase without wrong ones has none."""
    found = _candidates(task, phrases_B, rule)
    wrong_BC = found.bands_QC == NEGATIVE
    wrong_counts_B = wrong_BC.sum(axis=1)
    rows, columns = np.nonzero((found.bands_QC == POSITIVE) & (wrong_counts_B > 0)[:, None])
    drawn_M = SampleRandom(seed, epoch, found.samples_QC[rows, columns]).integers(wrong_counts_B[rows], WRONG_REGION)
    by_band_BC = np.argsort(~wrong_BC, axis=1, kind="stable")  # the wrong ones first, in their order
    return RegionPhrasePairs(
        found.numbers_QC[rows, columns],
        found.numbers_QC[rows, by_band_BC[rows, drawn_M]],
        phrases_B[rows],
    )


def _candidates(task: LocalisationTask, phrases_Q: Integers, rule: Phrases) -> _Candidates:
    """The bands of a row beyond its picture's proposals are NEITHER."""
    used_A, places_Q = np.unique(task.boxes_P[phrases_Q], return_inverse=True)
    starts_A, stops_A = task.starts_V1[task.pictures_A[used_A]], task.starts_V1[task.pictures_A[used_A] + 1]
    most = int((stops_A - starts_A).max(initial=0))
    bands_AC = np.full((len(used_A), most + 1), NEITHER, np.int8)
    for row, (box, start, stop) in enumerate(zip(used_A, starts_A, stops_A, strict=True)):
        boxes_14, least, below = task.annotated_A4[box][None], rule.positive_overlap, rule.negative_overlap
        found_1C = overlap_bands(task.proposals_N4[start:stop], boxes_14, least, below)
        bands_AC[row, : stop - start], bands_AC[row, most] = found_1C[0, :-1], found_1C[0, -1]
    numbers_AC = starts_A[:, None] + np.arange(most + 1)
    numbers_AC[:, most] = len(task.proposals_N4) + used_A
    regions = len(task.proposals_N4) + len(task.annotated_A4)
    return _Candidates(numbers_AC[places_Q], bands_AC[places_Q], phrases_Q[:, None] * regions + numbers_AC[places_Q])


def _drawn(found: _Candidates, most: int, seed: int, epoch: int) -> tuple[Integers, Integers]:
    """Rows and columns of right regions, at most so many of a row: the first of every row, the second, and so on."""
    is_right_QC = found.bands_QC == POSITIVE
    random = SampleRandom(seed, epoch, found.samples_QC)
    keys_QC = np.where(is_right_QC, random.integers(STEPS, RIGHT_REGION), STEPS)
    order_QN = np.argsort(keys_QC, axis=1, kind="stable")[:, :most]
    ranks, rows = np.nonzero(np.take_along_axis(is_right_QC, order_QN, axis=1).T)
    return rows, order_QN[rows, ranks]


def _chain_mates(task: LocalisationTask, there: Integers, wanted: int, seed: int, epoch: int) -> list[int]:
    """Phrases of the chain of some phrases, drawn from the others, that together are as many as are wanted."""
    others = np.setdiff1d(task.phrases_of(int(task.boxes_P[there[0]])), there)
    keys = SampleRandom(seed, epoch, others).integers(STEPS, CHAIN_MEMBER)
    mates: list[int] = others[np.argsort(keys, kind="stable")][: max(0, wanted - len(np.unique(there)))].tolist()
    return mates
