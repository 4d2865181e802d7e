"""The network of bottom-up attention: Faster R-CNN on four stages of a ResNet-101, with attributes of each region.

One network computes what Caffe's original and its three ports compute; a `Family` has the facts in which they differ.

Shapes: H and W pixels or positions, A anchors a position, N boxes, K regions, D numbers a feature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import log, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torchvision.ops import nms, roi_align, roi_pool  # type: ignore[import-untyped]

from xmodal.detectors._scaled_pixels import scaled

Depths = tuple[int, int, int, int]
DEPTHS: Depths = (3, 4, 23, 3)  # blocks of the stages res2 to res5 of a ResNet-101
STRIDE = 16  # pixels between positions of res4
WINDOW = 14  # positions a side of a region that is pooled
RANKED, RPN_OVERLAP = 6000, 0.7  # proposals that are compared, and how much two of them may overlap
LEAST_SIDE = 16  # of a proposal in Caffe, in pixels of the original picture
CHUNK = 75  # regions at once: more take longer and need more memory
THINNEST = 3  # pixels a side that the first two layers need
LARGEST = log(1000 / 16)  # growth of a side; the limit is detectron2's, Caffe cuts such boxes to the picture

# Ratios of height to width 1/2, 1, 2; for each, four sizes: py-faster-rcnn's, rounded as it rounds, around 7.5.
CAFFE_ANCHORS = (
    *((-38, -16, 53, 31), (-84, -40, 99, 55), (-176, -88, 191, 103), (-360, -184, 375, 199)),
    *((-24, -24, 39, 39), (-56, -56, 71, 71), (-120, -120, 135, 135), (-248, -248, 263, 263)),
    *((-14, -36, 29, 51), (-36, -80, 51, 95), (-80, -168, 95, 183), (-168, -344, 183, 359)),
)


def centred_anchors(*sizes: int) -> tuple[tuple[float, ...], ...]:
    """detectron2's anchors: around 0, not rounded; for each size, three ratios."""
    sides = [(size / sqrt(ratio), size * sqrt(ratio)) for size, ratio in product(sizes, (0.5, 1, 2))]
    return tuple((-width / 2, -height / 2, width / 2, height / 2) for width, height in sides)


@dataclass(frozen=True)
class Family:
    """How those who made a checkpoint wrote its rows, prepared pictures and counted pixels."""

    anchors: tuple[tuple[float, ...], ...] = CAFFE_ANCHORS
    mean: tuple[float, float, float] = (102.9801, 115.9465, 122.7717)  # blue, green, red
    shorter_side: int = 600
    longest_side: int = 1000
    exact_scale: bool = True  # floats are resized, a scale apart; else whole colours, old over new sides apart
    last_pixel: bool = True  # proposals have their last pixel as right and bottom, and small ones go before ranking
    last_pixel_refined: bool = True  # the same where a class refines a box
    paired_objectness: bool = True  # a softmax of background and object, not a logit
    padded_stem: bool = False  # else the first pooling has an incomplete window at its end
    halved: bool = False  # res5 has stride 2, and regions are aligned; else it is dilated, and they are rounded
    proposals: int = 300
    box_weights: tuple[float, float, float, float] = (1, 1, 1, 1)
    background_first: bool = True  # else it is the last class; then it has no box
    no_attribute: int | None = 0  # row of "no attribute"; with another than 0, it has no part in the softmax


CAFFE = Family()
AIRSPLAY = Family(
    anchors=centred_anchors(64, 128, 256, 512),
    shorter_side=800,
    longest_side=1333,
    exact_scale=False,
    last_pixel=False,
    last_pixel_refined=False,
    paired_objectness=False,
    box_weights=(10, 10, 5, 5),
    background_first=False,
    no_attribute=-1,
)
MILVLG_DETECTRON2 = Family(
    anchors=centred_anchors(32, 64, 128, 256, 512),
    mean=(103.53, 116.28, 123.675),  # detectron2's default, which configs/d2/test-d2-r101.yaml leaves as it is
    last_pixel=False,
    paired_objectness=False,
    padded_stem=True,
    halved=True,
    proposals=1000,
    box_weights=(10, 10, 5, 5),
    background_first=False,
    no_attribute=None,
)


@dataclass(frozen=True, eq=False)
class Found:
    """Regions in pixels of the network's picture; background and "no attribute" are column 0."""

    boxes_K4: Tensor
    features_KD: Tensor
    class_scores_KC: Tensor
    attribute_scores_KA: Tensor


@dataclass(frozen=True, eq=False)
class BottomUpNetwork:
    """`weights` has convolutions with their normalisation folded in, by the names of `_bottom_up_layouts.shapes`."""

    family: Family
    weights: Mapping[str, Tensor]
    anchors_A4: Tensor
    depths: Depths = DEPTHS

    def prepare(self, image_HW3: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Pixels as the network takes them, (1, 3, H, W), and the factors of a picture's boxes, (4,)."""
        return self._scaled(image_HW3) if self.family.exact_scale else self._antialiased(image_HW3)

    def _scaled(self, image_HW3: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """The mean is subtracted, then floats are resized, as by cv2.resize(fx=…)."""
        family = self.family
        centred_HW3 = np.subtract(image_HW3[:, :, ::-1], family.mean).astype(np.float32)
        pixels_HW3 = torch.from_numpy(centred_HW3).to(self.anchors_A4.device)
        pixels_13HW, scale = scaled(pixels_HW3, family.shorter_side, family.longest_side, THINNEST)
        return pixels_13HW, pixels_13HW.new_tensor([scale] * 4)

    def _antialiased(self, image_HW3: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Pillow resizes whole colours, averaging where it shrinks, then the mean is subtracted.

        airsplay/py-bottom-up-attention@85ec9b7:detectron2/data/transforms/transform_gen.py, which its demos use.
        """
        family, sides_2 = self.family, np.array(image_HW3.shape[:2])
        wanted_2 = sides_2 * (family.shorter_side / sides_2.min())
        wanted_2[sides_2.argmin()] = family.shorter_side  # exactly, as sides that end in a half are rounded up
        wanted_2 = wanted_2 * min(1, family.longest_side / wanted_2.max())
        height, width = (max(THINNEST, int(side + 0.5)) for side in wanted_2)
        image = Image.fromarray(image_HW3).resize((width, height), Image.Resampling.BILINEAR)
        centred_HW3 = np.subtract(np.asarray(image)[:, :, ::-1], family.mean).astype(np.float32)
        pixels_13HW = torch.from_numpy(centred_HW3).to(self.anchors_A4.device).permute(2, 0, 1)[None]
        down, across = (height, width) / sides_2
        return pixels_13HW, pixels_13HW.new_tensor([across, down, across, down])

    def maps(self, pixels_13HW: Tensor) -> Tensor:
        """The output of res4, (1, D, H / 16, W / 16)."""
        maps_1DHW = self._convolve(pixels_13HW, "stem", stride=2, padding=3).relu()
        if self.family.padded_stem:
            maps_1DHW = functional.max_pool2d(maps_1DHW, 3, 2, padding=1)
        else:
            maps_1DHW = functional.max_pool2d(maps_1DHW, 3, 2, ceil_mode=True)
        for stage in (2, 3, 4):
            maps_1DHW = self._stage(maps_1DHW, stage, stride=1 if stage == 2 else 2)
        return maps_1DHW

    def propose(self, maps_1DHW: Tensor, size: tuple[int, int], scales_4: Tensor) -> Tensor:
        """Boxes of likely objects, the likeliest first, (N, 4); `size` is the height and width of the pixels."""
        family = self.family
        hidden_1DHW = self._convolve(maps_1DHW, "rpn_conv", padding=1).relu()
        scores_AHW = self._convolve(hidden_1DHW, "objectness")[0]
        if family.paired_objectness:  # all of the background come first, then all of objects
            scores_AHW = scores_AHW.reshape(2, -1, *scores_AHW.shape[1:]).softmax(0)[1]
        scores_N = scores_AHW.permute(1, 2, 0).flatten()
        deltas_N4 = self._convolve(hidden_1DHW, "anchor_deltas")[0].permute(1, 2, 0).reshape(-1, 4)
        anchors_N4 = self._anchors_everywhere(*maps_1DHW.shape[2:])
        boxes_N4 = self._cut(refine(anchors_N4, deltas_N4, (1, 1, 1, 1), family.last_pixel), size)
        sides_N2 = boxes_N4[:, 2:] - boxes_N4[:, :2]
        ranked_N = scores_N.argsort(descending=True, stable=True)
        if family.last_pixel:
            large_N = (sides_N2 + 1 >= LEAST_SIDE * scales_4[:2]).all(1)
        else:  # detectron2 drops empty boxes after it has chosen the best, Caffe small ones before
            large_N = (sides_N2 > 0).all(1)
            ranked_N = ranked_N[:RANKED]
        ranked_N = ranked_N[large_N[ranked_N]][:RANKED]
        boxes_N4, scores_N = boxes_N4[ranked_N], scores_N[ranked_N]
        ends_4 = boxes_N4.new_tensor([0, 0, 1, 1]) * int(family.last_pixel)
        return boxes_N4[nms(boxes_N4 + ends_4, scores_N, RPN_OVERLAP)[: family.proposals]]

    def look(self, maps_1DHW: Tensor, boxes_K4: Tensor) -> Found:
        """Features, classes and attributes of boxes."""
        maps_1DHW = maps_1DHW.contiguous()  # once, not for each chunk
        chunks = [boxes_K4[start : start + CHUNK] for start in range(0, max(1, len(boxes_K4)), CHUNK)]
        features_KD = torch.cat([self._pooled(maps_1DHW, chunk_K4) for chunk_K4 in chunks])
        classes_KC = self._linear(features_KD, "cls_score")
        # the likeliest of all classes, background included, says which attributes are likely
        likeliest_KE = self.weights["cls_embedding.weight"][classes_KC.argmax(1)]
        hidden_KE = self._linear(torch.cat([features_KD, likeliest_KE], 1), "fc_attr").relu()
        attributes_KA = self._linear(hidden_KE, "attr_score")
        if self.family.no_attribute != 0:
            attributes_KA[:, 0] = -torch.inf
        return Found(boxes_K4, features_KD, classes_KC.softmax(1), attributes_KA.softmax(1))

    def refined(self, found: Found, size: tuple[int, int]) -> Tensor:
        """The box of each region as its likeliest class would have it, (K, 4)."""
        family, classes_K = self.family, found.class_scores_KC[:, 1:].argmax(1)
        deltas_KC4 = self._linear(found.features_KD, "bbox_pred").reshape(len(classes_K), -1, 4)
        deltas_K4 = deltas_KC4[torch.arange(len(classes_K)), classes_K]
        return self._cut(refine(found.boxes_K4, deltas_K4, family.box_weights, family.last_pixel_refined), size)

    def _pooled(self, maps_1DHW: Tensor, boxes_K4: Tensor) -> Tensor:
        if self.family.halved:
            windows = roi_align(maps_1DHW, [boxes_K4], WINDOW, 1 / STRIDE, sampling_ratio=2, aligned=True)
            return self._stage(windows, 5, stride=2).mean((2, 3))
        windows = roi_pool(maps_1DHW, [boxes_K4], WINDOW, 1 / STRIDE)
        return self._stage(windows, 5, dilation=2).mean((2, 3))

    def _stage(self, maps_NDHW: Tensor, stage: int, stride: int = 1, dilation: int = 1) -> Tensor:
        """Residual blocks; the first one's 1 x 1 convolutions have the stride."""
        maps_NDHW = maps_NDHW.contiguous(memory_format=torch.channels_last)
        for block in range(self.depths[stage - 2]):
            name, step = f"res{stage}.{block}", stride if block == 0 else 1
            hidden = self._convolve(maps_NDHW, f"{name}.conv1", stride=step).relu_()
            hidden = self._convolve(hidden, f"{name}.conv2", padding=dilation, dilation=dilation).relu_()
            added = maps_NDHW if block else self._convolve(maps_NDHW, f"{name}.shortcut", stride=step)
            maps_NDHW = self._convolve(hidden, f"{name}.conv3").add_(added).relu_()
        return maps_NDHW

    def _convolve(self, maps: Tensor, name: str, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return functional.conv2d(maps, weight, bias, stride, padding, dilation)

    def _linear(self, rows: Tensor, name: str) -> Tensor:
        return functional.linear(rows, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _anchors_everywhere(self, height: int, width: int) -> Tensor:
        """Anchors of all positions, row by row, (H * W * A, 4)."""
        down, across = (STRIDE * torch.arange(side, device=self.anchors_A4.device) for side in (height, width))
        y_HW, x_HW = torch.meshgrid(down, across, indexing="ij")
        return (torch.stack([x_HW, y_HW, x_HW, y_HW], 2)[:, :, None] + self.anchors_A4).reshape(-1, 4)

    def _cut(self, boxes_N4: Tensor, size: tuple[int, int]) -> Tensor:
        height, width = (side - int(self.family.last_pixel) for side in size)
        return boxes_N4.minimum(boxes_N4.new_tensor([width, height, width, height])).clamp(min=0)


def refine(boxes_N4: Tensor, deltas_N4: Tensor, weights: tuple[float, ...], last_pixel: bool) -> Tensor:
    """Boxes moved and grown by what a network says: parts of their sides, and logarithms of growth."""
    sides_N2 = boxes_N4[:, 2:] - boxes_N4[:, :2] + int(last_pixel)
    middles_N2 = boxes_N4[:, :2] + 0.5 * sides_N2
    deltas_N4 = deltas_N4 / deltas_N4.new_tensor(weights)
    middles_N2 = deltas_N4[:, :2] * sides_N2 + middles_N2
    sides_N2 = deltas_N4[:, 2:].clamp(max=LARGEST).exp() * sides_N2
    return torch.cat([middles_N2 - 0.5 * sides_N2, middles_N2 + 0.5 * sides_N2], 1)
