"""Geometry of boxes, (left, top, right, bottom): overlaps, and suppression of what overlaps a better box.

Shapes: A, B and K boxes, C classes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.floating[Any]]


def has_area(boxes_K4: Boxes) -> NDArray[np.bool_]:
    """Says of each box whether its right and bottom lie beyond its left and top, (K,)."""
    is_beyond_K: NDArray[np.bool_] = np.all(boxes_K4[:, 2:] > boxes_K4[:, :2], axis=1)
    return is_beyond_K


def iou(boxes_A4: Boxes, boxes_B4: Boxes, inclusive: bool = False) -> NDArray[np.float64]:
    """Intersection over union, (A, B); 0 where both boxes are empty.

    `inclusive` takes right and bottom for the last pixel, as Caffe's code does: widths are one more.
    """
    a_4A, b_4B = (np.ascontiguousarray(boxes.T, np.float64) for boxes in (boxes_A4, boxes_B4))
    return iou_by_sides(a_4A[:, :, None], b_4B[:, None], inclusive)


def iou_by_sides(a_4: Boxes, b_4: Boxes, inclusive: bool = False) -> NDArray[np.float64]:
    """Does `iou` for boxes whose sides are in the first dimension, and whose other dimensions are broadcast."""
    intersections, unions = _areas(a_4, b_4, inclusive)
    np.maximum(unions, np.finfo(np.float64).tiny, out=unions)
    overlaps: NDArray[np.float64] = np.divide(intersections, unions, out=intersections)
    return overlaps


def _areas(a_4: Boxes, b_4: Boxes, inclusive: bool) -> tuple[Any, Any]:
    """Areas of intersections and of unions, computed in the type of the boxes and in the order of torchvision's nms."""
    (a_left, a_top, a_right, a_bottom), (b_left, b_top, b_right, b_bottom) = a_4, b_4
    if inclusive:
        a_right, a_bottom, b_right, b_bottom = a_right + 1, a_bottom + 1, b_right + 1, b_bottom + 1
    widths, heights = np.minimum(a_right, b_right), np.minimum(a_bottom, b_bottom)
    widths -= np.maximum(a_left, b_left)
    heights -= np.maximum(a_top, b_top)
    intersections = np.maximum(widths, 0, out=widths)  # in place, as new memory takes longer than the arithmetic
    intersections *= np.maximum(heights, 0, out=heights)
    unions = (a_right - a_left) * (a_bottom - a_top) + (b_right - b_left) * (b_bottom - b_top)
    unions -= intersections
    return intersections, unions


def suppress(
    boxes_K4: Boxes, scores_KC: NDArray[np.floating[Any]], most: float, inclusive: bool = False
) -> NDArray[np.bool_]:
    """Says which boxes each class keeps, (K, C): of two that overlap by more than `most`, the better one.

    Of equal scores the first box is the better one. Equals one torchvision nms a class, bit for bit, for all classes
    at once: a step looks at the next best box of every class, and a box's overlaps are 64 bits a word.
    """
    count, classes = scores_KC.shape
    intersections_KK, unions_KK = _areas(boxes_K4.T[:, :, None], boxes_K4.T[:, None], inclusive)
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
