import numpy as np
import pytest
from numpy.typing import NDArray

from xmodal.detection.region_arrays import Regions
from xmodal.detection.region_selection import by_confidence, confidences, select

APART = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [60, 0, 69, 9]], np.float32)


def regions(boxes: NDArray[np.float32], scores: list[list[float]]) -> Regions:
    return Regions(boxes, np.zeros((len(boxes), 2), np.float32), (100, 100), np.array(scores, np.float32))


def slow_confidences(regions: Regions) -> NDArray[np.float32]:
    """Class by class, as generate_tsv.py does, with Caffe's overlaps."""
    scores, boxes = regions.class_scores_KC, regions.boxes_K4.astype(float)
    assert scores is not None
    best = np.zeros(len(boxes), np.float32)
    for number in range(1, scores.shape[1]):
        left = sorted(range(len(boxes)), key=lambda place: -scores[place, number])
        while left:
            chosen = left.pop(0)
            best[chosen] = max(best[chosen], scores[chosen, number])
            left = [place for place in left if overlap(boxes[chosen], boxes[place]) <= 0.3]
    return best


def overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0]) + 1
    high = min(one[3], other[3]) - max(one[1], other[1]) + 1
    inside = max(wide, 0) * max(high, 0)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (one, other)]
    return float(inside / (sum(areas) - inside))


def test_confidences_by_the_definition() -> None:
    draw = np.random.default_rng(0)
    corners = draw.uniform(0, 80, (60, 2))
    boxes = np.hstack([corners, corners + draw.uniform(5, 60, (60, 2))]).astype(np.float32)
    scores = draw.dirichlet(np.full(9, 0.3), 60)
    found = regions(boxes, scores.tolist())
    np.testing.assert_array_equal(confidences(found), slow_confidences(found))
    assert (confidences(found) == 0).any()


def test_background_is_no_class() -> None:
    assert confidences(regions(APART[:2], [[0.9, 0.1], [0.2, 0.8]])).tolist() == pytest.approx([0.1, 0.8])


def test_a_box_suppressed_in_one_class_may_lead_in_another() -> None:
    twice = APART[[0, 0]]
    found = confidences(regions(twice, [[0, 0.6, 0.1], [0, 0.5, 0.3]]))
    assert found.tolist() == pytest.approx([0.6, 0.3])


def test_of_two_equal_candidates_the_first_counts() -> None:
    assert confidences(regions(APART[[0, 0]], [[0, 0.6], [0, 0.6]])).tolist() == pytest.approx([0.6, 0])


def test_last_pixels_count_in_overlaps() -> None:
    """Of 10 pixels a side, 5 in common: (5 * 10) / 150 with the last pixel, (4 * 9) / 126 without."""
    boxes = np.array([[0, 0, 9, 9], [5, 0, 14, 9]], np.float32)
    assert confidences(regions(boxes, [[0, 0.9], [0, 0.8]])).tolist() == pytest.approx([0.9, 0])


SURE = np.array([0.1, 0.5, 0.2, 0.9, 0.5, 0.19], np.float32)


def test_a_fitting_number_stays_in_the_order_of_proposals() -> None:
    assert select(SURE, 2, 4).tolist() == [1, 2, 3, 4]  # 0.2 is enough


def test_too_many_and_too_few_are_the_best_by_confidence() -> None:
    assert select(SURE, 1, 3).tolist() == [3, 1, 4]  # of equals the first one first
    assert select(SURE, 5, 6).tolist() == [3, 1, 4, 2, 5]
    assert select(SURE, 3, 3).tolist() == [3, 1, 4]


def test_fewer_candidates_than_asked_for_are_all_kept() -> None:
    assert select(SURE, 36, 36).tolist() == [3, 1, 4, 2, 5, 0]
    assert select(SURE[:0], 10, 100).tolist() == []


def test_without_classes_above_the_threshold_ties_keep_their_order() -> None:
    assert select(np.zeros(12, np.float32)).tolist() == list(range(10))


def test_selected_regions_can_be_sorted_by_confidence() -> None:
    """As A3VSE's semantics are."""
    places = select(SURE, 2, 4)
    assert places[by_confidence(SURE[places])].tolist() == [3, 1, 4, 2]


def test_places_take_regions_of_a_picture() -> None:
    found = regions(APART, [[0, 0.1], [0, 0.7], [0, 0.3], [0, 0.6]])
    chosen = found[select(confidences(found), 1, 2)]
    np.testing.assert_array_equal(chosen.boxes_K4, APART[[1, 3]])
