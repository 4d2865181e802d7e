"""Recall and precision of pairs of attribute and class: what a hit is, and that it counts once."""

import numpy as np
import pytest

from xmodal.detection.pair_recall import NamedBox, PairScores, named_boxes, pair_scores
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.records.tables import Region

BOX = (10.0, 10.0, 30.0, 30.0)
WORDS = DetectorWords(("moon", "star"), ("blue", "red"))


def region(box: tuple[float, ...] = BOX, name: str = "star", *attributes: str) -> Region:
    return Region("1", "picture", None, *box, (name,), attributes)


def scored(found: list[NamedBox], recorded: list[Region]) -> tuple[int, int, int]:
    scores = pair_scores([(found, recorded)])
    return scores.hits, scores.found, scores.recorded


@pytest.mark.parametrize(
    ("found", "hits"),
    [
        (NamedBox(BOX, "star", "red"), 1),
        (NamedBox((10, 10, 30, 20), "star", "red"), 1),  # an IoU of a half
        (NamedBox((10, 10, 30, 19.9), "star", "red"), 0),
        (NamedBox(BOX, "moon", "red"), 0),
        (NamedBox(BOX, "star", "blue"), 0),
        (NamedBox(BOX, "star", None), 0),
    ],
)
def test_a_hit_has_the_box_the_class_and_the_attribute(found: NamedBox, hits: int) -> None:
    assert scored([found], [region(BOX, "star", "red", "striped")]) == (hits, 1, 1)


def test_a_region_without_attributes_says_nothing_of_them() -> None:
    assert scored([NamedBox(BOX, "star", "blue")], [region()]) == (1, 1, 1)
    assert scored([NamedBox(BOX, "star", None)], [region()]) == (1, 1, 1)


def test_a_hit_counts_once() -> None:
    assert scored([NamedBox(BOX, "star", "red")] * 2, [region(BOX, "star", "red")]) == (1, 2, 1)
    assert scored([NamedBox(BOX, "star", "red")], [region(BOX, "star", "red")] * 2) == (1, 1, 2)


def test_a_box_takes_the_region_that_it_overlaps_most() -> None:
    near, exact = region((12, 12, 32, 32)), region()
    boxes = [NamedBox(BOX, "star", None), NamedBox((12, 12, 32, 32), "star", None)]
    assert scored(boxes, [near, exact]) == scored(boxes, [exact, near]) == (2, 2, 2)


def test_where_nothing_is_nothing_is_divided() -> None:
    assert scored([], [region()]) == (0, 0, 1)
    assert scored([NamedBox(BOX, "star", None)], []) == (0, 1, 0)
    assert (pair_scores([]).recall, pair_scores([]).precision) == (0.0, 0.0)
    assert (PairScores(1, 4, 2).recall, PairScores(1, 4, 2).precision) == (0.5, 0.25)


def test_what_is_sure_is_named_the_best_first() -> None:
    boxes_K4 = np.array([BOX, (11, 11, 31, 31), (50, 50, 60, 60), (70, 70, 80, 80)], np.float32)
    classes_KC = np.array([[0.2, 0, 0.8], [0.1, 0, 0.9], [0.4, 0.6, 0], [0.6, 0.4, 0]], np.float32)
    attributes_KA = np.array([[0, 0, 1], [0, 0.3, 0.7], [0.95, 0.04, 0.01], [0, 1, 0]], np.float32)
    regions = Regions(boxes_K4, np.zeros((4, 2), np.float32), (100, 100), classes_KC, attributes_KA)
    assert named_boxes(regions, WORDS) == [
        NamedBox((11, 11, 31, 31), "star", "red"),  # the first box is the same star
        NamedBox((50, 50, 60, 60), "moon", None),  # none of its attributes is likely
    ]
    assert named_boxes(regions[np.zeros(0, np.int64)], WORDS) == []


def test_a_detector_without_attributes_names_classes_alone() -> None:
    box_14 = np.array([BOX], np.float32)
    found = Regions(box_14, np.zeros((1, 2), np.float32), (100, 100), np.array([[0, 0, 1]], np.float32))
    assert named_boxes(found, DetectorWords(("moon", "star"))) == [NamedBox(BOX, "star", None)]
