"""Phrase localisation beside its definition: pixels counted by hand, one phrase and one proposal at a time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden import golden
from xmodal.detection.box_geometry import iou
from xmodal.detection.merged_boxes import merge_groups
from xmodal.detection.overlap_bands import NEGATIVE, POSITIVE, overlap_bands
from xmodal.metrics import phrase_localisation
from xmodal.metrics.phrase_localisation import FIRST, NOT_FOUND, LocalisationTask, LocalisedPhrases, localise
from xmodal.records.tables import Region

SIDE = 12  # pixels of a picture
Scores = np.ndarray[Any, np.dtype[Any]]


def task_of(pictures: Sequence[tuple[Any, Any]], phrases: Sequence[int]) -> LocalisationTask:
    """`pictures` are annotated boxes and proposals, `phrases` the places of their boxes among all annotated ones."""
    annotated, proposals = ([np.reshape(boxes, (-1, 4)) for boxes in some] for some in zip(*pictures, strict=True))
    starts = np.concatenate([[0], np.cumsum([len(boxes) for boxes in proposals])])
    owners = np.repeat(np.arange(len(pictures)), [len(boxes) for boxes in annotated])
    boxes = (np.concatenate(some).astype(np.float32) for some in (annotated, proposals))
    return LocalisationTask(next(boxes), owners, np.array(phrases, np.int64), next(boxes), starts)


def pixels(box: Sequence[float], inclusive: bool) -> set[tuple[int, int]]:
    left, top, right, bottom = (int(side) for side in box)
    return {(x, y) for x in range(left, right + inclusive) for y in range(top, bottom + inclusive)}


def slow(task: LocalisationTask, scores: Scores, least: float, inclusive: bool) -> list[tuple[int | None, int]]:
    """For each phrase, the rank of its best right proposal, or None, and how many are right."""
    found = list[tuple[int | None, int]]()
    for phrase, box in enumerate(task.boxes_P.tolist()):
        start, stop = task.starts_V1[task.pictures_A[box] :][:2].tolist()
        seen = pixels(task.annotated_A4[box].tolist(), inclusive)
        right, wrong = list[float](), list[float]()
        for place in range(start, stop):
            other = pixels(task.proposals_N4[place].tolist(), inclusive)
            shared, both = len(seen & other), len(seen | other)
            (right if both and shared / both >= least else wrong).append(float(scores[phrase, place - start]))
        found.append((sum(score >= max(right) for score in wrong) if right else None, len(right)))
    return found


def as_told(found: LocalisedPhrases) -> list[tuple[int | None, int]]:
    pairs = zip(found.ranks_P.tolist(), found.right_P.tolist(), strict=True)
    return [(rank if right else None, right) for rank, right in pairs]


@pytest.mark.parametrize("convention", ["inclusive", "exclusive"])
def test_boxes_overlaps_ranks_and_recalls_are_those_of_the_reference(convention: str) -> None:
    known, is_inclusive = golden("indep_phrase_localization"), convention == "inclusive"
    regions = [
        Region(f"{number}", f"{known['chain_pictures'][chain]}", f"{chain}", *box)
        for number, (chain, box) in enumerate(zip(known["chains"], known["boxes"].tolist(), strict=True))
    ]
    merged = [[one.left, one.top, one.right, one.bottom] for one in merge_groups(regions)]
    np.testing.assert_array_equal(merged, known["merged"])
    task = LocalisationTask(
        known["merged"], known["chain_pictures"], known["phrase_chains"], known["proposals"], known["starts"]
    )
    found = localise(task, lambda rows: known["scores"][rows], inclusive=is_inclusive)
    ranks = known[f"ranks_{convention}"]
    np.testing.assert_array_equal(found.ranks_P, np.where(ranks < 0, NOT_FOUND, ranks))
    np.testing.assert_allclose([*map(found.recall, FIRST)], known[f"recall_{convention}"], 1e-5)
    assert found.bound == pytest.approx(float(known[f"bound_{convention}"]), 1e-5)
    for phrase, chain in enumerate(task.boxes_P.tolist()):
        start, stop = task.starts_V1[task.pictures_A[chain] :][:2]
        box_14, proposals_K4 = task.annotated_A4[chain][None], task.proposals_N4[start:stop]
        overlaps_K = iou(box_14, proposals_K4, is_inclusive)[0]
        np.testing.assert_allclose(overlaps_K, known[f"iou_{convention}"][phrase, : stop - start], 1e-5)
        bands_K = overlap_bands(proposals_K4, box_14, inclusive=is_inclusive)[0, :-1]
        for name, band in (("positive", POSITIVE), ("negative", NEGATIVE)):
            np.testing.assert_array_equal(bands_K == band, known[f"{name}_{convention}"][phrase, : stop - start])


sides = st.integers(0, SIDE - 1)
boxes = st.tuples(sides, sides, sides, sides).map(
    lambda ends: (min(ends[0], ends[2]), min(ends[1], ends[3]), max(ends[0], ends[2]), max(ends[1], ends[3]))
)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]), st.booleans(), st.integers(1, 5))
def test_ranks_are_those_of_the_definition(data: Any, least: float, inclusive: bool, at_once: int) -> None:
    pictures = data.draw(st.lists(st.tuples(st.lists(boxes, max_size=3), st.lists(boxes, max_size=7)), min_size=1))
    count = sum(len(annotated) for annotated, _ in pictures)
    phrases = data.draw(st.lists(st.integers(0, count - 1), max_size=12)) if count else []
    task = task_of(pictures, phrases)
    scores = np.array([[data.draw(st.integers(0, 3)) for _ in range(task.most)] for _ in phrases], np.float32)
    scores = scores.reshape(len(phrases), task.most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrase_localisation, "PHRASES_AT_ONCE", at_once)
        found = localise(task, lambda rows: scores[rows], least, inclusive)
    expected = slow(task, scores, least, inclusive)
    assert as_told(found) == expected
    if phrases:
        for first in (*FIRST, 2, 3):
            hits = sum(rank is not None and rank < first for rank, _ in expected)
            assert found.recall(first) == pytest.approx(100 * hits / len(phrases))
        assert found.bound == pytest.approx(100 * sum(right > 0 for _, right in expected) / len(phrases))


def test_a_box_at_the_very_threshold_is_right_and_conventions_differ_by_a_pixel() -> None:
    annotated, half = [(0, 0, 9, 9)], [(0, 0, 9, 4)]
    task = task_of([(annotated, half)], [0])
    one = np.zeros((1, 1))
    assert localise(task, lambda rows: one[rows]).bound == 100, "50 of 100 pixels"
    assert localise(task, lambda rows: one[rows], inclusive=False).bound == 0, "36 of 81"
    assert localise(task, lambda rows: one[rows], least=0.51).bound == 0


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([0.25, 0.5, 1.0]), st.booleans())
def test_suppression_ranks_what_no_better_box_covers(data: Any, most: float, inclusive: bool) -> None:
    """The bound stays; a phrase may lose its only right proposal to a wrong one.

    Single precision has each of these thresholds exactly, as overlaps at a threshold decide.
    """
    annotated = data.draw(st.lists(boxes, min_size=2, max_size=2))
    task = task_of([(annotated, data.draw(st.lists(boxes, min_size=1, max_size=7)))], [0, 1])
    order = [data.draw(st.permutations(range(task.most))) for _ in range(2)]
    scores = np.array(order, np.int64)
    found = localise(task, lambda rows: scores[rows], 0.5, inclusive, most)
    for phrase in range(2):
        kept = list[int]()
        seen = [pixels(one.tolist(), inclusive) for one in task.proposals_N4]
        for place in np.argsort(-scores[phrase]).tolist():
            covered = (len(seen[place] & seen[one]) / max(1, len(seen[place] | seen[one])) > most for one in kept)
            if not any(covered):
                kept.append(place)
        named = pixels(annotated[phrase], inclusive)
        right = [len(named & seen[place]) / max(1, len(named | seen[place])) >= 0.5 for place in kept]
        assert found.ranks_P[phrase] == (right.index(True) if any(right) else NOT_FOUND)
    assert found.bound == localise(task, lambda rows: scores[rows], 0.5, inclusive).bound


def test_constant_scores_find_nothing_while_a_wrong_proposal_is_there() -> None:
    task = task_of([([(0, 0, 5, 5)], [(0, 0, 5, 5), (7, 7, 9, 9)]), ([(0, 0, 5, 5)], [(0, 0, 5, 5)])], [0, 1])
    same = np.ones((2, 2))
    found = localise(task, lambda rows: same[rows])
    assert [found.recall(1), found.recall(2), found.bound] == [50, 100, 100]
    assert [found.chance(1), found.chance(2)] == [75, 100]


def test_a_picture_without_proposals_hides_its_phrases_and_nobody_elses() -> None:
    task = task_of([([(0, 0, 5, 5)], []), ([(0, 0, 5, 5)], [(0, 0, 5, 5), (7, 7, 9, 9), (0, 0, 1, 1)])], [0, 1])
    scores = np.array([[np.nan] * 3, [3, 2, 1]])
    found = localise(task, lambda rows: scores[rows])
    assert (found.recall(1), found.bound, found.chance(10), found.counts_P.tolist()) == (50, 50, 50, [0, 3])
    empty = task_of([([(0, 0, 5, 5)], [])], [0])
    assert localise(empty, lambda rows: np.zeros((1, 0))).bound == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_cannot_be_ranked_is_refused_by_its_place(bad: float) -> None:
    task = task_of([([(0, 0, 5, 5)], [(0, 0, 5, 5)]), ([(0, 0, 5, 5)], [(0, 0, 5, 5), (7, 7, 9, 9)])], [0, 1, 1])
    scores = np.zeros((3, 2))
    scores[0, 1] = bad  # beyond the proposals of its picture
    localise(task, lambda rows: scores[rows])
    scores[2, 1] = bad
    with pytest.raises(ValueError, match=f"phrase 2 and proposal 1, from 0, is {bad}; only finite numbers"):
        localise(task, lambda rows: scores[rows])


@pytest.mark.parametrize("least", [0, -0.5, 1.5, np.nan])
def test_an_overlap_that_says_nothing_is_refused(least: float) -> None:
    with pytest.raises(ValueError, match=r"least .* must be"):
        localise(task_of([([], [])], []), lambda rows: np.zeros((0, 0)), least)
    with pytest.raises(ValueError, match=r"suppression .* must be"):
        localise(task_of([([], [])], []), lambda rows: np.zeros((0, 0)), suppression=least)


def test_chance_is_the_mean_over_all_orders() -> None:
    """Two of five are right: among the first two of 10 pairs, 3 have none."""
    some = LocalisedPhrases(np.array([0, 0]), np.array([2, 0]), np.array([5, 5]))
    assert some.chance(2) == pytest.approx(100 * 0.7 / 2)
    assert some.chance(9) == pytest.approx(50)
