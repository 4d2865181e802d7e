"""Phrase localisation of all phrases at once, beside a loop a phrase, as published evaluators have it."""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measured import Bar, Measured, median, timed
from xmodal.metrics.phrase_localisation import FIRST, LEAST_OVERLAP, LocalisationTask, localise

BARS = {"localisation_vs_pair_loop": Bar(minimum=20)}
PICTURES, CHAINS, PHRASES, PROPOSALS, TYPES = (
    1000,
    5,
    14,
    200,
    8,
)  # Plummer's test split: 14 phrases a picture that have a box
ROUNDS = 9


def measure() -> dict[str, Measured]:
    spent = list[tuple[float, float]]()

    def times(number: int) -> float:
        world = _world(number)
        found = list[list[float]]()
        ways = [lambda: found.append(_all_at_once(*world)), lambda: found.append(_phrase_by_phrase(*world))]
        seconds = [timed(way) for way in ways]
        np.testing.assert_allclose(*found, rtol=1e-12)
        spent.append((seconds[0], seconds[1]))
        return seconds[1] / seconds[0]

    times(0)
    spent.clear()
    found = median(times, ROUNDS, "x", "")
    ours, theirs = np.median(spent, axis=0).tolist()
    told = (
        f"{PICTURES * PHRASES:,} phrases of {PICTURES:,} pictures of {PROPOSALS} proposals, the same recalls and bound:"
        f" a loop with numpy within a phrase takes {theirs:.2f} s, ours {ours:.3f}"
    )
    return {"localisation_vs_pair_loop": Measured(found.value, "x", told, found.runs)}


def _world(seed: int) -> tuple[LocalisationTask, NDArray[np.float32], NDArray[np.int64]]:
    """A task, the scores of its phrases, and the type of each phrase."""
    draw = np.random.default_rng(seed)
    annotated, proposals = (
        np.hstack([corners := draw.integers(0, 350, (count, 2)), corners + draw.integers(30, 150, (count, 2))])
        for count in (PICTURES * CHAINS, PICTURES * PROPOSALS)
    )
    owners = np.repeat(np.arange(PICTURES), PHRASES)
    task = LocalisationTask(
        annotated.astype(np.float32),
        np.repeat(np.arange(PICTURES), CHAINS),
        owners * CHAINS + draw.integers(0, CHAINS, len(owners)),
        proposals.astype(np.float32),
        np.arange(PICTURES + 1) * PROPOSALS,
    )
    return task, draw.standard_normal((len(owners), PROPOSALS), np.float32), draw.integers(0, TYPES, len(owners))


def _all_at_once(task: LocalisationTask, scores: NDArray[np.float32], types: NDArray[np.int64]) -> list[float]:
    found = localise(task, lambda rows: scores[rows])
    tables = [found, *(found[types == number] for number in range(TYPES))]
    return [value for some in tables for value in (*map(some.recall, FIRST), some.bound)]


def _phrase_by_phrase(task: LocalisationTask, scores: NDArray[np.float32], types: NDArray[np.int64]) -> list[float]:
    """As MDETR's and its descendants' evaluators: boxes in order, their overlaps, and a tally of each K and type."""
    hits = defaultdict[tuple[int, int], int](int)
    for phrase, box in enumerate(task.boxes_P.tolist()):
        picture = task.pictures_A[box]
        proposals = task.proposals_N4[task.starts_V1[picture] : task.starts_V1[picture + 1]]
        overlaps = _overlaps(proposals[np.argsort(-scores[phrase])], task.annotated_A4[box : box + 1])
        for first in (*FIRST, PROPOSALS):
            if overlaps[:first].max() >= LEAST_OVERLAP:
                hits[0, first] += 1
                hits[1 + types[phrase], first] += 1
    counts = [len(types), *np.bincount(types, minlength=TYPES).tolist()]
    return [100 * hits[table, first] / count for table, count in enumerate(counts) for first in (*FIRST, PROPOSALS)]


def _overlaps(boxes_K4: NDArray[np.float32], others_A4: NDArray[np.float32]) -> NDArray[np.float32]:
    areas_K, areas_A = (np.prod(boxes[:, 2:] - boxes[:, :2] + 1, axis=1) for boxes in (boxes_K4, others_A4))
    corners_KA2 = np.maximum(boxes_K4[:, None, :2], others_A4[:, :2])
    sides_KA2 = (np.minimum(boxes_K4[:, None, 2:], others_A4[:, 2:]) - corners_KA2 + 1).clip(min=0)
    common_KA = sides_KA2[:, :, 0] * sides_KA2[:, :, 1]
    return np.asarray(common_KA / (areas_K[:, None] + areas_A - common_KA))
