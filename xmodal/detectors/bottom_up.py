"""Bottom-up attention: the detector of 1,600 things and 400 attributes on whose regions a decade of papers stands.

Anderson et al. 2018; github.com/peteanderson80/bottom-up-attention. Candidates are the 300 likeliest proposals of the
network (1,000 in MILVLG's detectron2 mode), the likeliest first. Their boxes are those whose features were computed, as
in the published features; `bottom_up/refined` moves each as its likeliest class would, as airsplay's demos do.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__
from xmodal.detection.region_arrays import DetectorWords, Regions, read_words
from xmodal.errors import UserError, extra_needed
from xmodal.features.weight_files import OF_FILE, RANDOM, check_device, enough_memory, reproducible, weights_sha256
from xmodal.root.files import sha256_of

if TYPE_CHECKING:
    from xmodal.detectors._bottom_up_network import BottomUpNetwork

VARIANTS = ("", "refined")
WEIGHTS = "--file detector=PATH"
MAKERS = "peteanderson80/bottom-up-attention, airsplay/py-bottom-up-attention and MILVLG/bottom-up-attention.pytorch"


def check(name: str, weights: str) -> None:
    if name not in VARIANTS:
        raise UserError(f"no detector bottom_up/{name}; there are: bottom_up, bottom_up/refined")
    if weights == "published":
        raise UserError(
            f"weights of bottom_up were published by {MAKERS} on GitHub, but cannot be downloaded any more: "
            f"give a file of any of them by {WEIGHTS}"
        )
    if not re.fullmatch(rf"{RANDOM}\d{{1,18}}|{OF_FILE}[0-9a-f]{{64}}", weights):
        raise UserError(f"no weights {weights!r} for bottom_up; there are: random:<seed>, and the file of {WEIGHTS}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> "BottomUp":
    """`files` may have "object_words" and "attribute_words", one line a class; without them there are no words."""
    check(name, weights)
    with extra_needed("train", "bottom_up needs torch and torchvision"):
        from xmodal.detectors._bottom_up_weights import random_network, read_network
    check_device(device)
    if weights.startswith(RANDOM):
        network, told = random_network(int(weights.removeprefix(RANDOM)), device), {"layout": "caffe"}
        digest = _sha256_of_numbers(network)
    else:
        file = files.get("detector")
        if file is None or weights != f"{OF_FILE}{weights_sha256(file)}":
            raise UserError(f"weights {weights} are those of a file, which {file} is not: give it by {WEIGHTS}")
        network, told = read_network(file, device)
        digest = weights_sha256(file)
    classes, attributes = (len(network.weights[f"{head}.weight"]) - 1 for head in ("cls_score", "attr_score"))
    words = DetectorWords(_words(files, "object_words", classes), _words(files, "attribute_words", attributes))
    told |= {"weights": weights, "weights_sha256": digest, "device": device}
    told |= {name: sha256_of(file) for name, file in files.items() if name.endswith("_words")}
    return BottomUp(network, words, name == "refined", told)


def _words(files: Mapping[str, Path], name: str, count: int) -> tuple[str, ...]:
    """The first name in each line, in small letters."""
    if name not in files:
        return ()
    words = read_words(files[name])
    if len(words) != count:
        raise UserError(
            f"{files[name]} has {len(words):,} lines, but the weights tell {count:,} apart: give their list"
        )
    return words


def _sha256_of_numbers(network: "BottomUpNetwork") -> str:
    numbers = hashlib.sha256()
    for name, values in sorted(network.weights.items()):
        numbers.update(name.encode() + values.cpu().numpy().tobytes())
    return numbers.hexdigest()


@dataclass(frozen=True, eq=False)
class BottomUp:
    """The network, and what is known of its weights."""

    network: "BottomUpNetwork"
    words: DetectorWords
    is_refined: bool
    told: Mapping[str, str]

    @property
    def width(self) -> int:
        return self.network.weights["cls_score.weight"].shape[1]

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        """One picture at a time, without padding, so that rows of a picture never depend on another."""
        import torch

        given = [None] * len(images) if boxes is None else boxes
        with reproducible(), torch.inference_mode(), enough_memory(1):
            return [self._regions(image, some) for image, some in zip(images, given, strict=True)]

    def _regions(self, image_HW3: NDArray[np.uint8], given_K4: NDArray[np.float32] | None) -> Regions:
        import torch

        pixels_13HW, scales_4 = self.network.prepare(image_HW3)
        maps_1DHW = self.network.maps(pixels_13HW)
        height, width = pixels_13HW.shape[2:]
        if given_K4 is None:
            boxes_K4 = self.network.propose(maps_1DHW, (height, width), scales_4)
        else:
            given_K4 = given_K4.astype(np.float32)
            assert np.isfinite(given_K4).all()
            boxes_K4 = torch.from_numpy(given_K4).to(scales_4.device) * scales_4
        found = self.network.look(maps_1DHW, boxes_K4)
        if self.is_refined and given_K4 is None:
            boxes_K4 = self.network.refined(found, (height, width))
        return Regions(
            given_K4 if given_K4 is not None else (boxes_K4 / scales_4).cpu().numpy(),
            found.features_KD.cpu().numpy(),
            (image_HW3.shape[1], image_HW3.shape[0]),
            found.class_scores_KC.cpu().numpy(),
            found.attribute_scores_KA.cpu().numpy(),
        )

    def provenance(self) -> dict[str, Any]:
        family = self.network.family
        interpolation = "bilinear" if family.exact_scale else "bilinear, antialiased"
        sides = {"shorter_side": family.shorter_side, "longest_side": family.longest_side}
        return {
            "network": "bottom_up/refined" if self.is_refined else "bottom_up",
            **self.told,
            "proposals": family.proposals,
            "preprocessing": {"mean": family.mean, "interpolation": interpolation, "colours": "BGR"} | sides,
            "versions": {name: version(name) for name in ("numpy", "pillow", "torch", "torchvision")}
            | {"xmodal": __version__},
        }
