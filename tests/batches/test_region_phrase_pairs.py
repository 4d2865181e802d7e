"""Region-phrase batches beside algorithm 1, read one phrase and one region at a time."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.metrics.test_phrase_localisation import pixels, task_of
from xmodal.batches.region_phrase_pairs import pairs, triplets
from xmodal.metrics.phrase_localisation import LocalisationTask
from xmodal.recipes import Phrases

RULE = Phrases(0.7, 0.3, 2)


@pytest.fixture(scope="module", params=range(4))
def task(request: pytest.FixtureRequest) -> LocalisationTask:
    """Some pictures lack proposals, others boxes that overlap little; some chains have one phrase."""
    draw, pictures = np.random.default_rng(request.param), []
    for number in range(8):
        annotated = _boxes(draw, draw.integers(1, 4))
        near = (annotated[draw.integers(0, len(annotated), 12)] + draw.integers(-1, 2, (12, 4))).clip(0)
        near[:, 2:] = np.maximum(near[:, :2], near[:, 2:])
        pictures.append((annotated, np.concatenate([near, _boxes(draw, 6)])[: (0, 3, 12, 18)[number % 4]]))
    boxes = sum(len(annotated) for annotated, _ in pictures)
    return task_of(pictures, np.sort(draw.integers(0, boxes, 40)).tolist())


def _boxes(draw: np.random.Generator, count: int) -> Any:
    corners = draw.integers(0, 12, (count, 2))
    return np.hstack([corners, corners + draw.integers(3, 10, (count, 2))])


def slow(task: LocalisationTask, phrase: int, rule: Phrases = RULE) -> tuple[set[int], set[int]]:
    """Numbers of the regions that are right and wrong for a phrase."""
    box = int(task.boxes_P[phrase])
    right, wrong = {len(task.proposals_N4) + box}, set[int]()
    start, stop = task.starts_V1[task.pictures_A[box] :][:2].tolist()
    seen = pixels(task.annotated_A4[box].tolist(), True)
    for number in range(start, stop):
        other = pixels(task.proposals_N4[number].tolist(), True)
        overlap = len(seen & other) / max(1, len(seen | other))
        right |= {number} if overlap >= rule.positive_overlap else set()
        wrong |= {number} if overlap < rule.negative_overlap else set()
    return right, wrong


@pytest.mark.parametrize("rule", [RULE, Phrases(0.5, 0.5, 3), Phrases(1.0, 0.1, 1)])
def test_triplets_are_those_of_the_algorithm(task: LocalisationTask, rule: Phrases) -> None:
    batch = np.random.default_rng(0).permutation(40)[:12]
    found = triplets(task, batch, rule, 1, 2)
    assert found.phrases_Q[:12].tolist() == batch.tolist()
    assert len(set(found.phrases_Q.tolist())) == len(found.phrases_Q)
    for place, phrase in enumerate(found.phrases_Q.tolist()):
        wrong = slow(task, phrase, rule)[1]
        assert set(found.regions_R[found.wrong_regions_QR[place]].tolist()) == wrong
    told = [(int(found.regions_R[region]), int(found.phrases_Q[phrase])) for region, phrase in found.pairs_M2]
    assert [phrase for _, phrase in told[:12]] == batch.tolist()
    assert all(region in slow(task, phrase, rule)[0] for region, phrase in told)
    assert len(set(told)) == len(told)
    for region, phrase in told[:12]:
        regions = {other for other, one in told if one == phrase}
        phrases = {one for other, one in told if other == region}
        mates = np.count_nonzero(task.boxes_P == task.boxes_P[phrase])
        assert len(regions) >= min(rule.neighbours, len(slow(task, phrase, rule)[0]))
        assert len(phrases) >= min(rule.neighbours, mates)
    if rule.neighbours == 1:
        assert len(told) == len(found.phrases_Q) == 12


def test_pairs_are_those_of_the_algorithm(task: LocalisationTask) -> None:
    """All right regions of each phrase, and a wrong one beside each; no phrase that has no wrong ones."""
    batch = np.arange(0, 40, 2)
    found = pairs(task, batch, RULE, 1, 2)
    expected, without = set[tuple[int, int]](), 0
    for phrase in batch.tolist():
        right, wrong = slow(task, phrase)
        expected |= {(region, phrase) for region in right if wrong}
        without += not wrong
    told = zip(found.right_M.tolist(), found.phrases_M.tolist(), strict=True)
    assert Counter(told) == Counter(expected)
    assert len(set(found.phrases_M.tolist())) == len(batch) - without < len(batch)
    for wrong_region, phrase in zip(found.wrong_M.tolist(), found.phrases_M.tolist(), strict=True):
        assert wrong_region in slow(task, phrase)[1]


def test_draws_follow_from_seed_epoch_and_phrase_alone_and_reach_everything(task: LocalisationTask) -> None:
    batch = np.array([7, 3, 30])
    one, again = (triplets(task, batch, RULE, 1, 0) for _ in range(2))
    assert (one.pairs_M2 == again.pairs_M2).all()
    alone = triplets(task, batch[1:2], RULE, 1, 0)
    assert alone.regions_R[alone.pairs_M2[0, 0]] == one.regions_R[one.pairs_M2[1, 0]]
    drawn, paired = {int(phrase): set[int]() for phrase in batch}, {int(phrase): set[int]() for phrase in batch}
    for epoch in range(150):
        found, some = triplets(task, batch, RULE, 1, epoch), pairs(task, batch, RULE, 1, epoch)
        for region, phrase in found.pairs_M2[:3]:
            drawn[int(found.phrases_Q[phrase])].add(int(found.regions_R[region]))
        for region, phrase in zip(some.wrong_M.tolist(), some.phrases_M.tolist(), strict=True):
            paired[phrase].add(region)
    for phrase in drawn:
        assert drawn[phrase] == slow(task, phrase)[0]
        assert paired[phrase] == slow(task, phrase)[1]


def test_a_picture_without_proposals_leaves_the_annotated_box() -> None:
    task = task_of([([(0, 0, 5, 5)], []), ([(0, 0, 5, 5)], [])], [0, 0, 1])
    found = triplets(task, np.array([0, 2]), RULE, 0, 0)
    assert (found.regions_R.tolist(), found.phrases_Q.tolist()) == ([0, 1], [0, 2, 1])
    assert found.pairs_M2.tolist() == [[0, 0], [1, 1], [0, 2]]
    assert not found.wrong_regions_QR.any()
    some = pairs(task, np.array([0, 2]), RULE, 0, 0)
    assert len(some.right_M) == len(some.wrong_M) == len(some.phrases_M) == 0
