"""A detector of coloured quarters of a picture, whose every number a test can work out.

A quarter that is not white is a region: its feature the mean colour, its class the strongest colour, dark or bright.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from xmodal import detectors
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.detectors import Detector
from xmodal.errors import UserError

WORDS = DetectorWords(("red", "green", "blue"), ("dark", "bright"))
CALLS = list[tuple[int, ...]]()  # the shape of each picture that was looked at


@pytest.fixture
def toy_detector(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Adds the detector `toy`; gives the shapes of the pictures that it looks at."""
    monkeypatch.setitem(detectors.KINDS, "toy", detectors.DetectorKind("toy_detector", 0.0))
    monkeypatch.setitem(sys.modules, "xmodal.detectors.toy_detector", sys.modules[__name__])
    CALLS.clear()
    return CALLS


class ToyDetector:
    words = WORDS
    width = 3

    def __init__(self, weights: str, factor: float) -> None:
        self._weights, self._factor = weights, factor

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        given = [None] * len(images) if boxes is None else boxes
        return [self._look(image, own) for image, own in zip(images, given, strict=True)]

    def provenance(self) -> Mapping[str, Any]:
        return {"network": "toy", "weights": self._weights, "weights_sha256": "ab" * 32}

    def _look(self, image: NDArray[np.uint8], boxes: NDArray[np.float32] | None) -> Regions:
        CALLS.append(image.shape)
        height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
        if boxes is None:
            corners = [(left, top) for top in (0, height // 2) for left in (0, width // 2)]
            every = np.array([(x, y, x + width // 2, y + height // 2) for x, y in corners], np.float32)
            boxes = np.array([box for box in every if self._colour(image, box).min() < 250]).reshape(-1, 4)
        colours = np.array([self._colour(image, box) for box in boxes], np.float32).reshape(-1, 3)
        classes = np.pad(colours / 255, ((0, 0), (1, 0))).astype(np.float32)
        bright = colours.mean(1, keepdims=True) / 255
        attributes = np.concatenate([np.zeros_like(bright), 1 - bright, bright], axis=1).astype(np.float32)
        return Regions(boxes, colours * self._factor, (image.shape[1], image.shape[0]), classes, attributes)

    @staticmethod
    def _colour(image: NDArray[np.uint8], box: NDArray[np.float32]) -> NDArray[np.float64]:
        left, top, right, bottom = box.astype(int)
        part = image[top : max(bottom, top + 1), left : max(right, left + 1)]
        return np.asarray(part.reshape(-1, 3).mean(0)) if part.size else np.zeros(3)


def check(name: str, weights: str) -> None:
    if name:
        raise UserError(f"no detector toy/{name}")


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> Detector:
    """A file is a factor of the features."""
    factor = int.from_bytes(files["detector"].read_bytes()) if "detector" in files else 1
    return ToyDetector(weights, float(factor))
