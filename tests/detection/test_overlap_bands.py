"""Bands of overlap, at their edges and beside the definition."""

import numpy as np
import pytest

from xmodal.detection.overlap_bands import NEGATIVE, NEITHER, POSITIVE, overlap_bands


@pytest.mark.parametrize(
    ("width", "inclusive", "band"),
    [
        (100, False, POSITIVE),
        (70, False, POSITIVE),  # 0.7 exactly
        (69, False, NEITHER),
        (30, False, NEITHER),  # 0.3 exactly
        (29, False, NEGATIVE),
        (0, False, NEGATIVE),
        (70, True, POSITIVE),  # 71 of 101 pixels
        (29, True, NEGATIVE),  # 30 of 101
    ],
)
def test_a_region_is_in_its_band(width: int, inclusive: bool, band: int) -> None:
    annotated, region = np.array([[0, 0, 100, 100]], "f4"), np.array([[0, 0, width, 100]], "f4")
    assert overlap_bands(region, annotated, inclusive=inclusive).tolist() == [[band, POSITIVE]]


def test_the_annotated_boxes_stand_after_the_regions_and_are_their_own_positives() -> None:
    annotated = np.array([[0, 0, 10, 10], [0, 0, 10, 8], [50, 50, 50, 50]], "f4")  # the last one is empty
    bands = overlap_bands(np.zeros((0, 4), "f4"), annotated, inclusive=False)
    assert bands.tolist() == [
        [POSITIVE, POSITIVE, NEGATIVE],
        [POSITIVE, POSITIVE, NEGATIVE],
        [NEGATIVE, NEGATIVE, POSITIVE],
    ]
    assert overlap_bands(annotated, np.zeros((0, 4), "f4")).shape == (0, 3)
