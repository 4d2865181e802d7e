"""Bands of overlap: regions that are positive or negative for an annotated box (Two-Branch, Algorithm 1)."""

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.box_geometry import Boxes, iou

POSITIVE, NEITHER, NEGATIVE = 1, 0, -1


def overlap_bands(
    regions_K4: Boxes, annotated_A4: Boxes, least: float = 0.7, below: float = 0.3, inclusive: bool = True
) -> NDArray[np.int8]:
    """Labels regions, then the annotated boxes themselves, for each annotated box: (A, K + A).

    A region is positive if it overlaps by `least` or more, negative if by less than `below`; a box is positive to
    itself. Flickr30k Entities' own code counts pixels, so that right and bottom are inclusive.
    """
    assert 0 <= below <= least <= 1
    overlaps = iou(annotated_A4, np.concatenate([regions_K4, annotated_A4]), inclusive)
    bands = np.where(overlaps >= least, POSITIVE, np.where(overlaps < below, NEGATIVE, NEITHER)).astype(np.int8)
    own = np.arange(len(annotated_A4))
    bands[own, len(regions_K4) + own] = POSITIVE
    return bands
