"""Detectors of detectron2's model zoo, by the name of their config: detectron2/COCO-Detection/faster_rcnn_R_101_C4_3x.

detectron2 is not on the Python package index, so it is no extra: whoever has it may use it. Class words only. Features
are the means of the last stage for C4 configs, 2048 wide, and the head's 1024 numbers for FPN configs. Boxes are
regressed for their best class.

Its tests of networks need detectron2. They passed by facebookresearch/detectron2@02b5c4e with torch 2.14 on a CPU and
random weights: R50-FPN is 1024 wide, R50-C4 2048, regions are finite, and given boxes are kept. Its model_zoo needs
pkg_resources, which setuptools has below 81.

Shapes: K proposals, C columns: the background, then the classes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.errors import UserError
from xmodal.features.weight_files import (
    check_device,
    check_weights_name,
    download,
    filled_network,
    load_exactly,
    read_state,
    reproducible,
)
from xmodal.raw.pickled_arrays import read_pickled_arrays
from xmodal.raw.tensor_files import format_of

if TYPE_CHECKING:
    from torch import Tensor, nn

HOW = (
    "it is not on the Python package index: how it is built for the torch that is here stands in "
    "https://github.com/facebookresearch/detectron2/blob/main/INSTALL.md"
)
NO_GROWTH = 0.2  # of a block's last normalisation: with random weights 33 blocks would overflow
NOT_WEIGHTS = ("proposal_generator.anchor_generator.", "pixel_")  # of files; the config says them


def check(name: str, weights: str) -> None:
    if not re.fullmatch(r"COCO-Detection/faster_rcnn_\w+", name):
        raise UserError(
            f"no detector detectron2/{name}; there are Faster R-CNNs of its model zoo, "
            "as detectron2/COCO-Detection/faster_rcnn_R_101_C4_3x"
        )
    check_weights_name(weights, f"detectron2/{name}")
    if find_spec("detectron2") is None:
        raise UserError(f"detector detectron2/{name} needs detectron2, which is not here; {HOW}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> "Detectron2Detector":
    check(name, weights)
    check_device(device)
    zoo = _imported("model_zoo")
    config = _imported("config").get_cfg()
    try:
        config.merge_from_file(zoo.get_config_file(f"{name}.yaml"))
    except RuntimeError as error:
        raise UserError(f"no detector detectron2/{name}: {error}") from error
    config.MODEL.DEVICE = device

    def fill(network: "nn.Module", state: "Mapping[str, Tensor]") -> None:
        load_exactly(network, state, NOT_WEIGHTS)

    def published() -> Path:
        return download(zoo.get_checkpoint_url(f"{name}.yaml"), f"weights of detectron2/{name}")

    build, file = partial(_untrained, config), files.get("detector")
    network, digest = filled_network(f"detectron2/{name}", weights, file, build, fill, published, _read)
    data = _imported("data").MetadataCatalog.get(config.DATASETS.TRAIN[0])
    words = DetectorWords(tuple(word.lower() for word in data.thing_classes))
    return Detectron2Detector(name, weights, digest, words, config, network.requires_grad_(False))


def _imported(module: str) -> Any:
    try:
        return import_module(f"detectron2.{module}")
    except ImportError as error:
        raise UserError(f"detectron2 cannot be imported ({error}); {HOW}") from error


def _untrained(config: Any) -> "nn.Module":
    from torch.nn import init

    network: nn.Module = _imported("modeling").build_model(config)
    for name, values in network.named_buffers():
        if name.endswith("conv3.norm.weight"):
            init.constant_(values, NO_GROWTH)
    return network


def _read(file: Path) -> "Mapping[str, Tensor]":
    import torch

    if file.suffix == ".pkl" or format_of(file) == "pickle":
        return {name: torch.from_numpy(np.array(values)) for name, values in read_pickled_arrays(file).items()}
    state: Any = read_state(file)
    return state.get("model", state)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Detectron2Detector:
    name: str
    weights: str
    weights_sha256: str
    words: DetectorWords
    config: Any
    network: "nn.Module"

    @property
    def width(self) -> int:
        network: Any = self.network
        return int(network.roi_heads.box_predictor.cls_score.in_features)

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        """Looks at each picture alone, as pictures beside it would pad it."""
        given = [None] * len(images) if boxes is None else boxes
        return [self._regions(image, at) for image, at in zip(images, given, strict=True)]

    def _regions(self, image_HW3: NDArray[np.uint8], boxes_K4: NDArray[np.float32] | None) -> Regions:
        import torch

        network: Any = self.network
        height, width = image_HW3.shape[:2]
        with reproducible(), torch.inference_mode():
            pixels = self._pixels(image_HW3)
            seen = network.preprocess_image([{"image": pixels, "height": height, "width": width}])
            scale = pixels.new_tensor([seen.image_sizes[0][1] / width, seen.image_sizes[0][0] / height] * 2)
            scale = scale.to(seen.tensor.device)
            given_K4 = None if boxes_K4 is None else torch.from_numpy(boxes_K4).to(scale.device) * scale
            proposals_K4, features_KD, logits_KC, deltas = _looked(network, seen, given_K4)
            scores_KC = logits_KC.softmax(1).roll(1, dims=1)  # the background was last
            if boxes_K4 is None:
                found_K4 = self._regressed(proposals_K4, deltas, scores_KC) / scale
                found_K4[:, 0::2].clamp_(0, width)
                found_K4[:, 1::2].clamp_(0, height)
                boxes_K4 = found_K4.cpu().numpy()
        return Regions(boxes_K4, features_KD.cpu().numpy(), (width, height), scores_KC.cpu().numpy())

    def _pixels(self, image_HW3: NDArray[np.uint8]) -> "Tensor":
        """The resized picture, (3, H, W), in the order of colours that the config says."""
        import torch

        sides = self.config.INPUT
        resize = _imported("data.transforms").ResizeShortestEdge(sides.MIN_SIZE_TEST, sides.MAX_SIZE_TEST)
        ordered = image_HW3[:, :, ::-1] if sides.FORMAT == "BGR" else image_HW3
        resized = resize.get_transform(ordered).apply_image(np.ascontiguousarray(ordered))
        return torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1), np.float32))

    def _regressed(self, proposals_K4: "Tensor", deltas: "Tensor", scores_KC: "Tensor") -> "Tensor":
        import torch

        network: Any = self.network
        transform = network.roi_heads.box_predictor.box2box_transform
        boxes = transform.apply_deltas(deltas, proposals_K4).reshape(len(proposals_K4), -1, 4)
        best_K = scores_KC[:, 1:].argmax(1)
        chosen: Tensor = boxes[torch.arange(len(boxes)), best_K]
        return chosen

    def provenance(self) -> Mapping[str, Any]:
        sides, model = self.config.INPUT, self.config.MODEL
        preprocessing = {"shorter_side": sides.MIN_SIZE_TEST, "longest_side": sides.MAX_SIZE_TEST}
        preprocessing |= {"mean": list(model.PIXEL_MEAN), "deviation": list(model.PIXEL_STD), "colours": sides.FORMAT}
        return {
            "network": f"detectron2/{self.name}",
            "weights": self.weights,
            "weights_sha256": self.weights_sha256,
            "device": model.DEVICE,
            "preprocessing": preprocessing,
            "boxes": "regressed for the best class",
            "versions": {name: version(name) for name in ("detectron2", "torch")} | {"xmodal": __version__},
        }


def _looked(network: Any, seen: Any, boxes_K4: "Tensor | None") -> "tuple[Tensor, Tensor, Tensor, Tensor]":
    """Proposals, or the given boxes; their features; scores of classes before softmax; and how to move the boxes.

    All that is private in detectron2 is used here alone.
    """
    boxes = _imported("structures").Boxes
    maps, heads = network.backbone(seen.tensor), network.roi_heads
    if boxes_K4 is None:
        (proposals,), _ = network.proposal_generator(seen, maps, None)
        boxes_K4 = proposals.proposal_boxes.tensor
    if hasattr(heads, "_shared_roi_transform"):  # C4
        pooled = heads._shared_roi_transform([maps[name] for name in heads.in_features], [boxes(boxes_K4)])
        features_KD = pooled.mean(dim=(2, 3))
    else:
        features_KD = heads.box_head(
            heads.box_pooler([maps[name] for name in heads.box_in_features], [boxes(boxes_K4)])
        )
    assert boxes_K4 is not None
    return boxes_K4, features_KD, *heads.box_predictor(features_KD)
