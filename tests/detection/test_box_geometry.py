import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.ops import nms

from xmodal.detection.box_geometry import iou, suppress


def test_overlaps_of_boxes_with_and_without_their_last_pixel() -> None:
    left, right = np.array([[0, 0, 10, 10]]), np.array([[5, 0, 15, 10], [10, 0, 20, 10], [0, 0, 10, 10]])
    assert iou(left, right).tolist() == [[50 / 150, 0, 1]]
    assert iou(left, right, inclusive=True).tolist() == [[66 / 176, 11 / 231, 1]]


def test_an_empty_box_overlaps_nothing_not_even_itself() -> None:
    empty = np.array([[5.0, 5, 5, 5], [0, 0, 10, 10]], np.float32)
    assert iou(empty, empty).tolist() == [[0, 0], [0, 1]]
    assert suppress(empty[[0, 0]], np.ones((2, 1), np.float32), 0.0).all()


def random_boxes(count: int, seed: int) -> NDArray[np.float32]:
    """Whole pixels in a small square, so that equal boxes and equal overlaps come up."""
    draw = np.random.default_rng(seed)
    corners = draw.integers(0, 30, (count, 2))
    return np.hstack([corners, corners + draw.integers(0, 20, (count, 2))]).astype(np.float32)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("inclusive", [False, True])
def test_suppression_keeps_what_torchvision_keeps_class_by_class(count: int, inclusive: bool) -> None:
    boxes = random_boxes(count, count)
    scores = np.random.default_rng(1).integers(0, 9, (count, 40)).astype(np.float32) / 9  # with many ties
    wanted = np.zeros(scores.shape, bool)
    ends = torch.tensor([0, 0, 1, 1]) * int(inclusive)
    for number in range(scores.shape[1]):
        wanted[nms(torch.from_numpy(boxes) + ends, torch.from_numpy(scores[:, number]), 0.3), number] = True
    np.testing.assert_array_equal(suppress(boxes, scores, 0.3, inclusive), wanted)


def test_suppression_by_the_definition() -> None:
    boxes, scores = random_boxes(40, 0), np.random.default_rng(2).random((40, 3), np.float32)
    kept = suppress(boxes, scores, 0.5)
    overlaps = iou(boxes, boxes)
    for number in range(3):
        chosen: list[int] = []
        for place in sorted(range(40), key=lambda place: -scores[place, number]):
            if all(overlaps[place, better] <= 0.5 for better in chosen):
                chosen.append(place)
        assert np.flatnonzero(kept[:, number]).tolist() == sorted(chosen)


def test_an_overlap_just_at_the_bound_is_compared_as_torchvision_does() -> None:
    """3 / 10 in single precision is above 0.3 in double precision."""
    boxes, scores = np.array([[0, 0, 10, 1], [0, 0, 3, 1]], np.float32), np.array([[0.9], [0.8]], np.float32)
    assert suppress(boxes, scores, 0.3)[:, 0].tolist() == [True, False]
    assert nms(torch.from_numpy(boxes), torch.from_numpy(scores[:, 0]), 0.3).tolist() == [0]
    halves = np.array([[0, 0, 10, 1], [0, 0, 5, 1]], np.float32)
    assert suppress(halves, scores, 0.5).all(), "as much as the bound is not more"


def test_of_equal_scores_the_first_box_stays() -> None:
    boxes = np.array([[0, 0, 9, 9]] * 3, np.float32)
    assert suppress(boxes, np.ones((3, 2), np.float32), 0.3).tolist() == [[True, True], [False, False], [False, False]]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_is_suppressed_of_nothing(shape: tuple[int, int]) -> None:
    assert suppress(random_boxes(shape[0], 0), np.zeros(shape, np.float32), 0.3).shape == shape
