"""Detectors of torchvision, trained on COCO's 80 classes: torchvision/fasterrcnn_resnet50_fpn_v2 and its kin.

They know class words and no attributes. A feature is the head's 1024 numbers of a proposal; its box is regressed for
its best class, as these networks do. All proposals are given, of which `xmodal/detection` selects.

Shapes: K proposals, 91 classes of torchvision, C columns of words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.errors import UserError, extra_needed
from xmodal.features.weight_files import (
    check_device,
    check_weights_name,
    download,
    filled_network,
    load_exactly,
    reproducible,
)
from xmodal.media.images import UnreadableImage

if TYPE_CHECKING:
    from torch import Tensor, nn

NETWORKS = (
    *("fasterrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn"),
    *("fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn"),
)
UNUSED = "N/A"  # ids of COCO that have no class
WIDTH = 1024
# Gains of normalisations with random weights: else ResNet's 16 blocks overflow, and MobileNet's maps vanish.
RESIDUAL, MOBILE = 0.3, 2.5


def check(name: str, weights: str) -> None:
    if name not in NETWORKS:
        raise UserError(f"no detector torchvision/{name}; there are: {', '.join(NETWORKS)}")
    check_weights_name(weights, f"torchvision/{name}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> "TorchvisionDetector":
    check(name, weights)
    with extra_needed("train", "detectors need torch and torchvision"):
        from torchvision.models import get_model_weights  # type: ignore[import-untyped]
    check_device(device)
    published = get_model_weights(name).DEFAULT

    def fill(network: "nn.Module", state: "Mapping[str, Tensor]") -> None:
        load_exactly(network, state, ())

    network, digest = filled_network(
        f"torchvision/{name}",
        weights,
        files.get("detector"),
        lambda: _untrained(name),
        fill,
        lambda: download(published.url, f"weights of torchvision/{name}"),
    )
    categories = tuple(published.meta["categories"])
    return TorchvisionDetector(name, weights, digest, device, categories, network.requires_grad_(False).to(device))


def _untrained(name: str) -> "nn.Module":
    from torch.nn import BatchNorm2d, init
    from torchvision.models import get_model

    network: Any = get_model(name, weights=None, weights_backbone=None)
    for layer, module in network.backbone.body.named_modules():
        if "mobilenet" in name and isinstance(module, BatchNorm2d):
            init.constant_(module.weight, MOBILE)
        elif layer.endswith(".bn3"):
            init.constant_(module.weight, RESIDUAL)
    return network  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class TorchvisionDetector:
    name: str
    weights: str
    weights_sha256: str
    device: str
    categories: tuple[str, ...]  # of torchvision's 91 columns, the first of which is the background
    network: "nn.Module"

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def words(self) -> DetectorWords:
        return DetectorWords(tuple(self.categories[column] for column in self._columns[1:]))

    @property
    def _columns(self) -> list[int]:
        return [column for column, name in enumerate(self.categories) if name != UNUSED]

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        """Looks at each picture alone, as pictures beside it would pad it."""
        given = [None] * len(images) if boxes is None else boxes
        return [self._regions(image, at) for image, at in zip(images, given, strict=True)]

    def _regions(self, image_HW3: NDArray[np.uint8], boxes_K4: NDArray[np.float32] | None) -> Regions:
        import torch
        from torchvision.models.detection.transform import resize_boxes  # type: ignore[import-untyped]
        from torchvision.ops import clip_boxes_to_image  # type: ignore[import-untyped]

        network: Any = self.network
        sides = image_HW3.shape[:2]
        scale = min(network.transform.min_size[-1] / min(sides), network.transform.max_size / max(sides))
        if int(min(sides) * scale) < 1:
            raise UnreadableImage(f"{sides[1]} x {sides[0]} pixels are too narrow to resize")
        with reproducible(), torch.inference_mode():
            pixels_3HW = torch.from_numpy(image_HW3.copy()).to(self.device).permute(2, 0, 1).float() / 255
            seen, _ = network.transform([pixels_3HW])
            maps = network.backbone(seen.tensors)
            if boxes_K4 is None:
                (proposals_K4,), _ = network.rpn(seen, maps)
            else:
                given_K4 = torch.from_numpy(boxes_K4).to(self.device)
                proposals_K4 = resize_boxes(given_K4, sides, seen.image_sizes[0])
            pooled = network.roi_heads.box_roi_pool(maps, [proposals_K4], seen.image_sizes)
            features_KD = network.roi_heads.box_head(pooled)
            logits_K91, changes = network.roi_heads.box_predictor(features_KD)
            scores_KC = logits_K91.softmax(1)[:, self._columns]
            if boxes_K4 is None:
                found_K4 = self._regressed(proposals_K4, changes, scores_KC)
                found_K4 = clip_boxes_to_image(found_K4, seen.image_sizes[0])
                boxes_K4 = resize_boxes(found_K4, seen.image_sizes[0], sides).cpu().numpy()
        assert boxes_K4 is not None
        return Regions(boxes_K4, features_KD.cpu().numpy(), (sides[1], sides[0]), scores_KC.cpu().numpy())

    def _regressed(self, proposals_K4: "Tensor", changes: "Tensor", scores_KC: "Tensor") -> "Tensor":
        """The box of each proposal's best class, in pixels of the resized picture."""
        import torch

        network: Any = self.network
        decoded = network.roi_heads.box_coder.decode(changes, [proposals_K4])  # (K, 91, 4)
        columns = torch.tensor(self._columns, device=decoded.device)
        best_K = columns[1 + scores_KC[:, 1:].argmax(1)]
        chosen: Tensor = decoded.reshape(len(best_K), -1, 4)[torch.arange(len(best_K)), best_K]
        return chosen

    def provenance(self) -> Mapping[str, Any]:
        transform: Any = self.network.transform
        preprocessing = {"shorter_side": transform.min_size[-1], "longest_side": transform.max_size}
        preprocessing |= {"mean": transform.image_mean, "deviation": transform.image_std, "colours": "RGB"}
        return {
            "network": f"torchvision/{self.name}",
            "weights": self.weights,
            "weights_sha256": self.weights_sha256,
            "device": self.device,
            "preprocessing": preprocessing,
            "boxes": "regressed for the best class",
            "versions": {name: version(name) for name in ("torch", "torchvision")} | {"xmodal": __version__},
        }
