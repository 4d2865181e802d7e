"""Bottom-up attention once more, slowly: each layout in its makers' own way, and boxes one by one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torchvision.ops import roi_align, roi_pool

from tests.detectors.bottom_up_checkpoints import CLASSES, PORT_HEADS

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Facts:
    """What the tables of the makers' code say."""

    anchors: tuple[Box, ...]
    one_more: bool  # proposals end at their last pixel
    one_more_for_classes: bool
    pair: bool
    most: int
    deltas: Box
    background: int
    ranked: int = 6000  # proposals that are compared


def anchors_of_caffe() -> tuple[Box, ...]:
    """py-faster-rcnn's: a box of 16 x 16, then ratios, rounded, then scales."""
    found = list[Box]()
    for ratio in (0.5, 1, 2):
        width = round(math.sqrt(256 / ratio))
        height = round(width * ratio)
        for scale in (4, 8, 16, 32):
            wide, high = width * scale, height * scale
            found.append((7.5 - (wide - 1) / 2, 7.5 - (high - 1) / 2, 7.5 + (wide - 1) / 2, 7.5 + (high - 1) / 2))
    return tuple(found)


def anchors_of_detectron2(sizes: tuple[int, ...]) -> tuple[Box, ...]:
    found = list[Box]()
    for size in sizes:
        for ratio in (0.5, 1, 2):
            width = math.sqrt(size * size / ratio)
            found.append((-width / 2, -width * ratio / 2, width / 2, width * ratio / 2))
    return tuple(found)


CAFFE = Facts(anchors_of_caffe(), True, True, True, 300, (1, 1, 1, 1), 0)
FACTS = {
    "caffe": CAFFE,
    "milvlg_caffe": CAFFE,
    "airsplay": Facts(anchors_of_detectron2((64, 128, 256, 512)), False, False, False, 300, (10, 10, 5, 5), CLASSES),
    "milvlg_detectron2": Facts(
        anchors_of_detectron2((32, 64, 128, 256, 512)), False, True, False, 1000, (10, 10, 5, 5), CLASSES
    ),
}


@dataclass(frozen=True)
class Seen:
    """Rows of candidates, with background and "no attribute" as column 0; boxes in pixels of the network."""

    boxes: NDArray[np.float64]
    refined: NDArray[np.float64]
    features: Tensor
    classes: Tensor
    attributes: Tensor


class SlowBottomUp:
    def __init__(self, layout: str, state: Mapping[str, NDArray[np.float32]], **other: int) -> None:
        self.layout, self.facts = layout, replace(FACTS[layout], **other)
        self.state = {name: torch.from_numpy(values).double() for name, values in state.items()}

    def look(self, pixels: Tensor, scale: float) -> Seen:
        """All in double precision."""
        maps = self._maps(pixels.double())
        height, width = pixels.shape[2:]
        boxes = self._proposals(maps, height, width, scale)
        if self.layout == "milvlg_detectron2":
            windows = roi_align(maps, [torch.tensor(boxes).double()], 14, 1 / 16, sampling_ratio=2, aligned=True)
            features = self._block(windows, "roi_heads.res5.0", stride=2).mean((2, 3))
        else:
            windows = roi_pool(maps, [torch.tensor(boxes).double()], 14, 1 / 16)
            features = self._block(windows, "roi_heads.res5.0", dilation=2).mean((2, 3))
        scores = self._line(features, "roi_heads.box_predictor.cls_score")
        embedding, hidden, last = PORT_HEADS["milvlg_caffe" if self.layout == "caffe" else self.layout]
        embedded = self.state[f"roi_heads.{embedding}.weight"][scores.argmax(1)]
        hidden_rows = self._line(torch.cat([features, embedded], 1), f"roi_heads.{hidden}").relu()
        attributes = self._line(hidden_rows, f"roi_heads.{last}")
        nothing = torch.zeros(len(boxes), 1)
        if "caffe" in self.layout:
            attributes = attributes.softmax(1)
        elif self.layout == "airsplay":
            attributes = torch.cat([nothing, attributes[:, :-1].softmax(1)], 1)
        else:
            attributes = torch.cat([nothing, attributes.softmax(1)], 1)
        order = [self.facts.background, *(n for n in range(CLASSES + 1) if n != self.facts.background)]
        classes = scores.softmax(1)[:, order]
        refined = self._refined(boxes, features, classes, height, width)
        return Seen(np.array(boxes), refined, features, classes, attributes)

    def _maps(self, pixels: Tensor) -> Tensor:
        maps = self._conv(pixels, "backbone.stem.conv1", 2, 3).relu()
        if self.layout == "milvlg_detectron2":
            maps = functional.max_pool2d(maps, 3, 2, 1)
        else:  # windows may end beyond the picture, where the last one still begins inside
            ends = [2 * math.ceil((side - 3) / 2) + 3 - side for side in maps.shape[2:]]
            maps = functional.max_pool2d(functional.pad(maps, (0, ends[1], 0, ends[0]), value=-math.inf), 3, 2)
        for name, stride in (("res2", 1), ("res3", 2), ("res4", 2)):
            maps = self._block(maps, f"backbone.{name}.0", stride=stride)
        return maps

    def _block(self, maps: Tensor, name: str, stride: int = 1, dilation: int = 1) -> Tensor:
        inner = self._conv(maps, f"{name}.conv1", stride).relu()
        inner = self._conv(inner, f"{name}.conv2", 1, dilation, dilation).relu()
        return (self._conv(inner, f"{name}.conv3") + self._conv(maps, f"{name}.shortcut", stride)).relu()

    def _conv(self, maps: Tensor, name: str, stride: int = 1, padding: int = 0, dilation: int = 1) -> Tensor:
        maps = functional.conv2d(maps, self.state[f"{name}.weight"], None, stride, padding, dilation)
        mean, variance, weight, bias = (
            self.state[f"{name}.norm.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(maps, mean, variance, weight, bias, eps=1e-5)

    def _line(self, rows: Tensor, name: str) -> Tensor:
        return rows @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def _proposals(self, maps: Tensor, height: int, width: int, scale: float) -> list[Box]:
        """Caffe filters, takes the best, then suppresses; detectron2 takes the best first."""
        rpn = "proposal_generator.rpn_head"
        hidden = functional.conv2d(maps, self.state[f"{rpn}.conv.weight"], self.state[f"{rpn}.conv.bias"], padding=1)
        scores, deltas = (
            functional.conv2d(hidden.relu(), self.state[f"{rpn}.{name}.weight"], self.state[f"{rpn}.{name}.bias"])[0]
            for name in ("objectness_logits", "anchor_deltas")
        )
        count, more = len(self.facts.anchors), int(self.facts.one_more)
        found = list[tuple[float, Box]]()
        for y, x, number in product(range(maps.shape[2]), range(maps.shape[3]), range(count)):
            if self.facts.pair:
                score = float(torch.stack([scores[number, y, x], scores[count + number, y, x]]).softmax(0)[1])
            else:
                score = float(scores[number, y, x])
            anchor = np.array(self.facts.anchors[number]) + 16 * np.array([x, y, x, y])
            moved = moved_box(anchor, deltas[4 * number : 4 * number + 4, y, x].tolist(), more)
            found.append((score, cut_box(moved, height - more, width - more)))

        def is_large(scored: tuple[float, Box]) -> bool:
            left, top, right, bottom = scored[1]
            least = 16 * scale if more else 1e-9
            return right - left + more >= least and bottom - top + more >= least

        if more:
            found = sorted(filter(is_large, found), key=lambda scored: -scored[0])[: self.facts.ranked]
        else:
            found = list(filter(is_large, sorted(found, key=lambda scored: -scored[0])[: self.facts.ranked]))
        kept = list[Box]()
        for _, box in found:
            if all(overlap(box, other, more) <= 0.7 for other in kept):
                kept.append(box)
        return kept[: self.facts.most]

    def _refined(
        self, boxes: list[Box], features: Tensor, classes: Tensor, height: int, width: int
    ) -> NDArray[np.float64]:
        rows, refined = self._line(features, "roi_heads.box_predictor.bbox_pred"), list[Box]()
        more = int(self.facts.one_more)
        for box, row, scores in zip(boxes, rows, classes, strict=True):
            best = int(scores[1:].argmax()) + (1 if self.facts.background == 0 else 0)
            deltas = [
                float(some) / by for some, by in zip(row[4 * best : 4 * best + 4], self.facts.deltas, strict=True)
            ]
            moved = moved_box(np.array(box), deltas, int(self.facts.one_more_for_classes))
            refined.append(cut_box(moved, height - more, width - more))
        return np.array(refined)


def moved_box(box: NDArray[np.float64], deltas: list[float], more: int) -> Box:
    width, height = box[2] - box[0] + more, box[3] - box[1] + more
    x, y = box[0] + width / 2 + deltas[0] * width, box[1] + height / 2 + deltas[1] * height
    width, height = width * math.exp(deltas[2]), height * math.exp(deltas[3])
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def cut_box(box: Box, bottom: int, right: int) -> Box:
    left, top, far, low = (min(max(side, 0), most) for side, most in zip(box, (right, bottom) * 2, strict=True))
    return left, top, far, low


def overlap(box: Box, other: Box, more: int) -> float:
    wide = min(box[2], other[2]) - max(box[0], other[0]) + more
    high = min(box[3], other[3]) - max(box[1], other[1]) + more
    inside = max(wide, 0) * max(high, 0)
    areas = [(some[2] - some[0] + more) * (some[3] - some[1] + more) for some in (box, other)]
    return inside / (sum(areas) - inside)
