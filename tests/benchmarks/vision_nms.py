"""Suppression of all classes at once, beside torchvision's nms called for each of 1,600 classes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import nms

from tests.benchmarks.measured import Bar, Measured, median, timed
from xmodal.detection.box_geometry import suppress
from xmodal.detection.region_selection import OVERLAP
from xmodal.features.weight_files import reproducible

BARS = {"nms_vs_class_loop": Bar(minimum=2.0)}
BOXES, CLASSES, ROUNDS = 300, 1600, 9


def measure(folder: Path) -> Iterator[dict[str, Measured]]:
    """By turns, each time for another picture, and equal bit for bit."""
    spent: list[tuple[float, float]] = []

    def times(number: int) -> float:
        boxes, scores = _candidates(number)
        kept = list[NDArray[np.bool_]]()
        ways = [
            lambda: kept.append(suppress(boxes, scores, OVERLAP, inclusive=True)),
            lambda: kept.append(_class_by_class(boxes, scores)),
        ]
        turn = 1 if number % 2 else -1
        seconds = [timed(way) for way in ways[::turn]][::turn]
        assert np.array_equal(*kept)
        spent.append((seconds[0], seconds[1]))
        return seconds[1] / seconds[0]

    with reproducible():  # one thread, as where features are made
        times(0)
        spent.clear()
        found = median(times, ROUNDS, "x", "")
    ours, theirs = (1000 * float(np.median(some)) for some in zip(*spent, strict=True))
    told = (
        f"{CLASSES:,} calls of torchvision's nms for {BOXES} boxes, equal bit for bit: {theirs:.0f} ms, ours {ours:.0f}"
    )
    yield {"nms_vs_class_loop": Measured(found.value, "x", told, found.runs)}


def _candidates(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Boxes as a region proposal network leaves them, after a suppression at 0.7, with probabilities of classes."""
    draw = np.random.default_rng(seed)
    corners, sides = draw.uniform(0, 500, (2000, 2)), draw.uniform(20, 300, (2000, 2))
    boxes = np.hstack([corners, corners + sides]).astype(np.float32)
    boxes = boxes[nms(torch.from_numpy(boxes), torch.arange(2000.0), 0.7)[:BOXES]]
    return boxes, draw.dirichlet(np.full(CLASSES, 0.05), BOXES).astype(np.float32)


def _class_by_class(boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    kept = np.zeros(scores.shape, bool)
    ends, rows = torch.from_numpy(boxes + np.array([0, 0, 1, 1], np.float32)), torch.from_numpy(scores).T.contiguous()
    for number, row in enumerate(rows):
        kept[nms(ends, row, OVERLAP).numpy(), number] = True
    return kept
