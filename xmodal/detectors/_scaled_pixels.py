"""Pictures resized as Caffe's detectors resize them."""

import torch
from torch import Tensor


def scaled(pixels_HW3: Tensor, shorter_side: int, longest_side: int, least: int) -> tuple[Tensor, float]:
    """Resizes as Fast R-CNN does by cv2.resize(fx=scale, fy=scale): (1, 3, H, W), no side below `least`, and the scale.

    OpenCV rounds the size and keeps the scale, which torch.nn.functional.interpolate cannot. Places of pixels need
    double precision, as edges else differ from OpenCV's by hundredths.
    """
    sides = pixels_HW3.shape[:2]
    scale = shorter_side / min(sides)
    if round(scale * max(sides)) > longest_side:
        scale = longest_side / max(sides)
    size = [max(least, round(side * scale)) for side in sides]
    pixels_13HW = pixels_HW3.permute(2, 0, 1)[None].double()
    return torch.ops.aten.upsample_bilinear2d(pixels_13HW, size, False, scale, scale).float(), scale
