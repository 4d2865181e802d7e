"""Geometry of boxes, (left, top, right, bottom): overlaps, and suppression of what overlaps a better box.

Shapes: A, B and K boxes, C classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.floating[Any]]


def iou(boxes_A4: Boxes, boxes_B4: Boxes, inclusive: bool = False) -> NDArray[np.float64]:
    """Intersection over union, (A, B); 0 where both boxes are empty.

    `inclusive` takes right and bottom for the last pixel, as Caffe's code does: widths are one more.
    """
    a_A4, b_B4 = boxes_A4.astype(np.float64), boxes_B4.astype(np.float64)
    intersections_AB, unions_AB = _areas(a_A4, b_B4, inclusive)
    overlaps_AB: NDArray[np.float64] = np.zeros_like(unions_AB)
    np.divide(intersections_AB, unions_AB, out=overlaps_AB, where=unions_AB > 0)
    return overlaps_AB


def _areas(a_A4: Boxes, b_B4: Boxes, inclusive: bool) -> tuple[Any, Any]:
    """Areas of intersections and of unions, computed in the type of the boxes and in the order of torchvision's nms."""
    (a_A4, b_B4) = (np.hstack([boxes[:, :2], boxes[:, 2:] + int(inclusive)]) for boxes in (a_A4, b_B4))
    a_A, b_B = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (a_A4, b_B4))
    corners_AB2 = np.maximum(a_A4[:, None, :2], b_B4[None, :, :2])
    sides_AB2 = np.minimum(a_A4[:, None, 2:], b_B4[None, :, 2:]) - corners_AB2
    intersections_AB = np.maximum(sides_AB2, 0).prod(2)
    return intersections_AB, a_A[:, None] + b_B - intersections_AB


def suppress(
    boxes_K4: NDArray[np.float32], scores_KC: NDArray[np.float32], most: float, inclusive: bool = False
) -> NDArray[np.bool_]:
    """Which boxes each class keeps, (K, C): no two of a class overlap by more than `most`, and the better one stays.

    Of equal scores the first box is the better one. Equals one torchvision nms a class, bit for bit, for all classes
    at once: a step looks at the next best box of every class, and a box's overlaps are 64 bits a word.
    """
    count, classes = scores_KC.shape
    intersections_KK, unions_KK = _areas(boxes_K4, boxes_K4, inclusive)
    with np.errstate(invalid="ignore"):  # 0 / 0 of two empty boxes does not overlap
        overlaps_KK = (intersections_KK / unions_KK).astype(np.float64) > most  # torchvision compares doubles, too
    np.fill_diagonal(overlaps_KK, False)
    padded = np.pad(overlaps_KK, [(0, 0), (0, -count % 64)])
    overlaps_KW = np.packbits(padded, axis=1, bitorder="little").view("<u8")
    ranked_KC = np.argsort(-scores_KC.T, axis=1, kind="stable").T
    word_KC, bit_KC = ranked_KC // 64, (ranked_KC % 64).astype("<u8")
    gone_CW = np.zeros((classes, overlaps_KW.shape[1]), "<u8")
    rows_C = np.arange(classes)
    for best_C, word_C, bit_C in zip(ranked_KC, word_KC, bit_KC, strict=True):
        kept_C = gone_CW[rows_C, word_C] >> bit_C & 1 == 0
        gone_CW |= np.where(kept_C[:, None], overlaps_KW[best_C], 0)
    gone_CK = np.unpackbits(gone_CW.view(np.uint8), axis=1, bitorder="little", count=count)
    kept_KC: NDArray[np.bool_] = gone_CK.T == 0
    return kept_KC
