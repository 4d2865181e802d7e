"""Regional semantics: the surest region first, attributes above a threshold, and how many words captions share."""

from pathlib import Path

import numpy as np
import pytest

from tests.detection.test_region_store import make_store
from xmodal.detection.region_arrays import DetectorWords
from xmodal.detection.region_semantics import labels_of_regions, phrases_of, semantics_of, vocabulary_overlap
from xmodal.detection.region_store import Named, PictureRegions, RegionStore

WORDS = DetectorWords(("car", "stop sign", "dog"), ("blue", "light brown"))


def named(ids: list[int], scores: list[float]) -> Named:
    return Named(np.array(ids, np.int32), np.array(scores, np.float32))


def test_the_surest_region_comes_first_and_equal_ones_stay() -> None:
    classes = named([0, 1, 2, 0], [0.3, 0.9, 0.3, 0.9])
    attributes = named([0, 1, 1, 0], [0.5, 0.05, 0.11, 0.1])
    assert semantics_of(WORDS, classes, attributes) == "stop sign car blue car light brown dog"
    assert semantics_of(WORDS, classes, attributes, shown=0.5) == "stop sign car car dog", "more than the threshold"
    assert semantics_of(WORDS, classes, attributes, shown=0.0).startswith("light brown stop sign blue car blue car")


def test_an_attribute_at_the_threshold_is_not_said() -> None:
    just = float(np.nextafter(np.float32(0.1), np.float32(1)))
    said = [semantics_of(WORDS, named([2], [1.0]), named([0], [score])) for score in (0.1, just, 0.1 - 1e-6)]
    assert said == ["dog", "blue dog", "dog"]


def test_detectors_without_attributes_or_classes() -> None:
    assert semantics_of(WORDS, named([2, 0], [0.1, 0.2]), None) == "car dog"
    assert semantics_of(WORDS, None, None) == ""
    assert semantics_of(WORDS, named([], []), named([], [])) == ""


def test_labels_are_the_different_classes_that_are_sure_and_have_an_area(tmp_path: Path) -> None:
    """Classes are circle, square and star; the last region is sure, and has no area."""
    boxes = np.array([[0, 0, 9, 9]] * 4 + [[3, 3, 3, 9]], np.float32)
    classes = named([2, 0, 2, 1, 1], [0.5, 0.9, 0.7, 0.4, 0.99])
    pictures = [PictureRegions(id, boxes, boxes[:, :4], None, known) for id, known in (("a", classes), ("b", None))]
    regions = RegionStore(make_store(tmp_path, pictures))
    assert labels_of_regions(regions, "a", 0.5) == ["circle", "star"]
    assert labels_of_regions(regions, "a", 0.95) == labels_of_regions(regions, "b", 0.1) == []


@pytest.mark.parametrize(
    ("ones", "others", "share"),
    [(["a", "b", "c"], ["b", "c", "d"], 0.5), (["a", "a"], ["a"], 1.0), (["a"], ["b"], 0.0), ([], [], 0.0)],
)
def test_overlap_is_of_both_over_either(ones: list[str], others: list[str], share: float) -> None:
    assert vocabulary_overlap(ones, others) == vocabulary_overlap(others, ones) == share


def test_without_words_numbers_are_said() -> None:
    classes, attributes = named([17, 2], [0.9, 0.3]), named([3, 1], [0.5, 0.01])
    assert phrases_of(DetectorWords(), classes, attributes) == ["attribute 3 class 17", "class 2"]
    assert phrases_of(DetectorWords(("car",) * 20), classes, attributes) == ["attribute 3 car", "car"]
