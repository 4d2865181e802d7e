"""Proposals without classes: 200 Edge Boxes a picture, and Fast R-CNN's VGG features of them or of given boxes.

Edge Boxes (Zitnick and Dollar, ECCV 2014) group edges into boxes. OpenCV has their grouping, and no model of edges: the
edges here are Sobel's, not the structured ones of the paper, whose recall Two-Branch reports.

Shapes: H, W pixels, K boxes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.errors import UserError, extra_needed
from xmodal.features import torchvision_models
from xmodal.features.weight_files import OF_FILE, check_device, check_weights_name, reproducible
from xmodal.media.images import DEVIATION, MEAN
from xmodal.raw.caffe_files import read_caffemodel
from xmodal.raw.tensor_files import format_of

if TYPE_CHECKING:
    from torch import Tensor, nn

DEPTHS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}  # convolutions before each pooling
CAFFE_MEAN = (102.9801, 115.9465, 122.7717)  # of blue, green and red
WIDTH = 4096
SHORTER_SIDE, LONGEST_SIDE = 600, 1000  # of Fast R-CNN's pictures
STRIDE, POOLED = 16, 7  # pixels between positions of conv5_3; positions a side of a box
MOST_BOXES = 200
SIGMA = 2.0  # pixels; less makes more groups of edges, which is slower and finds less
SMALLEST_SHARE = 0.002  # of the picture that a box covers at least; OpenCV's default is 1000 pixels
CLEAR = 16.0  # grey levels of a step; where no edge is clearer, those of a tenth of it or less are left out
LEAST_SIDE = 16  # pixels of a picture that has boxes


def edge_boxes(image_HW3: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Boxes (K, 4) and their scores, best first; none where there are no edges."""
    cv2 = _opencv()
    height, width = image_HW3.shape[:2]
    edges_HW, directions_HW = _edges(image_HW3)
    if min(height, width) < LEAST_SIDE or not edges_HW.any():  # OpenCV makes boxes of no edges at times
        return np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
    finder = cv2.ximgproc.createEdgeBoxes(maxBoxes=MOST_BOXES, minBoxArea=max(1.0, SMALLEST_SHARE * height * width))
    found, scores = finder.getBoundingBoxes(edges_HW, directions_HW)
    boxes_K4 = np.asarray(found, np.float32).reshape(-1, 4)  # left, top, width, height; () if there are none
    boxes_K4[:, 2:] += boxes_K4[:, :2]
    scores_K = np.zeros(0, np.float32) if scores is None else np.asarray(scores, np.float32).ravel()
    return boxes_K4, scores_K  # scores are (K, 1) by OpenCV 4


def _opencv() -> Any:
    with extra_needed("proposals", "Edge Boxes need OpenCV with its contributed modules"):
        import cv2
    return cv2


def _edges(image_HW3: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Edges from 0 to 1, thinned to lines, and their direction from 0 to pi."""
    cv2 = _opencv()
    smooth_HW3 = cv2.GaussianBlur(image_HW3.astype(np.float32), (0, 0), SIGMA)
    slopes = (cv2.Sobel(smooth_HW3, cv2.CV_32F, *order) for order in ((1, 0), (0, 1)))
    strength_HW = np.hypot(*slopes).max(axis=2)
    strongest = 8 * CLEAR / (SIGMA * np.sqrt(2 * np.pi))  # of a step of so many grey levels, by Sobel's kernel
    strength_HW /= max(strongest, float(strength_HW.max()))
    strength_HW[strength_HW < 0.1] = 0
    wide_HW = cv2.GaussianBlur(strength_HW, (0, 0), 2 * SIGMA)
    orders = ((2, 0), (1, 1), (0, 2))
    along_xx, along_xy, along_yy = (cv2.Sobel(wide_HW, cv2.CV_32F, *order, ksize=5) for order in orders)
    normal_HW = np.arctan(along_yy * np.sign(-along_xy) / (along_xx + 1e-5)) % np.pi
    return _thinned(strength_HW, normal_HW), normal_HW.astype(np.float32)


def _thinned(strength_HW: NDArray[np.float32], normal_HW: NDArray[np.float32]) -> NDArray[np.float32]:
    """Keeps the edges that are no weaker than their two neighbours across the edge."""
    cv2 = _opencv()
    rows, columns = np.indices(strength_HW.shape, np.float32)
    across, down = np.cos(normal_HW), np.sin(normal_HW)
    kept = strength_HW.copy()
    for step in (-1, 1):
        places = (columns + step * across).astype(np.float32), (rows + step * down).astype(np.float32)
        beside_HW = cv2.remap(strength_HW, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        kept[strength_HW * 1.01 < beside_HW] = 0
    return kept


def check(name: str, weights: str) -> None:
    if name not in DEPTHS:
        raise UserError(f"no detector proposals/{name}; there are: {', '.join(f'proposals/{n}' for n in DEPTHS)}")
    check_weights_name(weights, f"proposals/{name}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> "EdgeBoxProposals":
    """The file has a state_dict of torchvision's network, or is Fast R-CNN's .caffemodel."""
    check(name, weights)
    with extra_needed("train", "networks need torch and torchvision"):
        check_device(device)
    file = files.get("detector")
    is_caffe = weights.startswith(OF_FILE) and file is not None and file.is_file() and format_of(file) == "caffe"
    read = partial(caffe_state, name) if is_caffe else None
    weights = "IMAGENET1K_V1" if weights == "published" else weights
    network, digest = torchvision_models.load(name, weights, file, read=read)
    return EdgeBoxProposals(name, weights, digest, device, is_caffe, network.requires_grad_(False).to(device))


def caffe_state(name: str, file: Path) -> "dict[str, Tensor]":
    """Fast R-CNN's layers by torchvision's names; its classes and what else it has are left out."""
    import torch

    layers, state = read_caffemodel(file), dict[str, torch.Tensor]()
    for theirs, (ours, shape) in _caffe_layers(name).items():
        blobs = layers.get(theirs, ())
        if len(blobs) != 2:
            raise ValueError(f"it lacks layer {theirs}")
        state[f"{ours}.weight"] = torch.from_numpy(blobs[0].reshape(shape))
        state[f"{ours}.bias"] = torch.from_numpy(blobs[1].ravel())
    return state


def _caffe_layers(name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Where each layer of Caffe is in torchvision's network, and the shape of its weights there."""
    found, place, taken = dict[str, tuple[str, tuple[int, ...]]](), 0, 3
    for block, (width, depth) in enumerate(zip((64, 128, 256, 512, 512), DEPTHS[name], strict=True), 1):
        for number in range(1, depth + 1):
            found[f"conv{block}_{number}"] = f"features.{place}", (width, taken, 3, 3)
            place, taken = place + 2, width  # a ReLU follows
        place += 1  # so does pooling
    found["fc6"] = "classifier.0", (WIDTH, taken * POOLED**2)
    return found | {"fc7": ("classifier.3", (WIDTH, WIDTH))}


@dataclass(frozen=True, eq=False)
class EdgeBoxProposals:
    """Boxes have no scores of classes; they are in the order of Edge Boxes, best first."""

    name: str
    weights: str
    weights_sha256: str
    device: str
    is_caffe: bool  # colours, and how pooling rounds, are Caffe's
    network: "nn.Module"

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def words(self) -> DetectorWords:
        return DetectorWords()

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        chosen = [edge_boxes(image)[0] for image in images] if boxes is None else boxes
        return [
            Regions(boxes_K4, self._features(image, boxes_K4), (image.shape[1], image.shape[0]))
            for image, boxes_K4 in zip(images, chosen, strict=True)
        ]

    def _features(self, image_HW3: NDArray[np.uint8], boxes_K4: NDArray[np.float32]) -> NDArray[np.float32]:
        """fc7 after its ReLU, of conv5_3 (no pool5) pooled within each box."""
        import torch
        from torch import nn
        from torch.nn import functional
        from torchvision.ops import roi_pool  # type: ignore[import-untyped]

        if not len(boxes_K4):
            return np.zeros((0, WIDTH), np.float32)
        network: Any = self.network
        with reproducible(), torch.inference_mode():
            pixels_13HW, scale = self._pixels(image_HW3)
            maps = pixels_13HW
            for layer in network.features[:-1]:
                maps = (
                    functional.max_pool2d(maps, 2, ceil_mode=self.is_caffe)
                    if isinstance(layer, nn.MaxPool2d)
                    else layer(maps)
                )
            boxes = torch.from_numpy(boxes_K4).to(self.device) * scale
            pooled = roi_pool(maps, [boxes], POOLED, 1 / STRIDE).flatten(1)
            hidden = network.classifier[0](pooled).relu()
            features_KD: NDArray[np.float32] = network.classifier[3](hidden).relu().cpu().numpy()
        return features_KD

    def _pixels(self, image_HW3: NDArray[np.uint8]) -> "tuple[Tensor, float]":
        """The resized picture, and by how much it was resized."""
        import torch

        from xmodal.detectors._scaled_pixels import scaled

        pixels = torch.from_numpy(image_HW3.copy()).to(self.device).float()
        if self.is_caffe:
            pixels = pixels.flip(2) - pixels.new_tensor(CAFFE_MEAN)
        else:
            pixels = (pixels / 255 - pixels.new_tensor(MEAN)) / pixels.new_tensor(DEVIATION)
        return scaled(pixels, SHORTER_SIDE, LONGEST_SIDE, STRIDE)

    def provenance(self) -> Mapping[str, Any]:
        preprocessing: dict[str, Any] = {"shorter_side": SHORTER_SIDE, "longest_side": LONGEST_SIDE}
        preprocessing |= {"interpolation": "bilinear"}
        if self.is_caffe:
            preprocessing |= {"colours": "BGR", "mean": CAFFE_MEAN}
        else:
            preprocessing |= {"colours": "RGB", "mean": MEAN, "deviation": DEVIATION}
        edges = {"boxes": MOST_BOXES, "sigma": SIGMA, "smallest_share": SMALLEST_SHARE, "clear": CLEAR}
        versions = {name: version(name) for name in ("torch", "torchvision")}
        return {
            "network": f"proposals/{self.name}",
            "weights": self.weights,
            "weights_sha256": self.weights_sha256,
            "device": self.device,
            "preprocessing": preprocessing,
            "edge_boxes": edges,
            "versions": versions | {"opencv": _opencv().__version__, "xmodal": __version__},
        }
