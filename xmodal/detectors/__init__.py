"""The contract of a detector. Every other module here is one, or one library's; all give `Regions`.

`Detector.extract` looks at one picture at a time or at equal ones together, so that no picture changes another's rows.
Which regions are kept, and their words, is decided outside (`xmodal/detection`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.pair_recall import SCORE
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.errors import UserError


class Detector(Protocol):
    """A network with its weights, on its device."""

    @property
    def words(self) -> DetectorWords: ...

    @property
    def width(self) -> int:
        """Numbers of a feature."""

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        """All candidate regions of pictures, (H, W, 3) RGB; or those of the given boxes, (K, 4) of each picture."""

    def provenance(self) -> Mapping[str, Any]:
        """Plain JSON: network, weights and their sha256, preprocessing, vocabularies, versions."""


class DetectorModule(Protocol):
    """A module of this room."""

    def check(self, name: str, weights: str) -> None:
        """Refuses what there is not, without torch: `name` is what follows the module's own name and a slash."""

    def load(self, name: str, weights: str, files: Mapping[str, Path], device: str) -> Detector:
        """`weights` is published, random:<seed>, or sha256:<hex> of files["detector"]."""


@dataclass(frozen=True)
class DetectorKind:
    """Facts of a detector that need neither its module nor torch."""

    module: str
    seconds: float  # of one core, a picture
    fewest: int = 10  # regions of a picture that are kept where no setting says it, as is the next one
    threshold: float = 0.2  # as in bottom-up attention
    says_all: bool = True  # regions below the threshold, which make up the fewest, give words in semantics, too
    files: tuple[str, ...] = ("detector",)  # that `load` reads, as --file names them


KINDS = {  # by the first part of a detector's name: bottom_up, torchvision/NAME, detectron2/CONFIG, small
    "bottom_up": DetectorKind("bottom_up", 17.0, files=("detector", "object_words", "attribute_words")),
    "torchvision": DetectorKind("torchvision_detectors", 6.6),
    "detectron2": DetectorKind("detectron2_detectors", 8.0),
    # Its candidates below the threshold, that of its own validation, are no things; one is kept as a feature.
    "small": DetectorKind("small_faster_rcnn", 0.01, fewest=1, threshold=SCORE, says_all=False),
    "proposals": DetectorKind("edge_box_proposals", 3.0),
}


def kind_of(detector: str) -> DetectorKind:
    first = detector.partition("/")[0]
    if first not in KINDS:
        raise UserError(f"no detector {detector!r}; there are: {', '.join(KINDS)}")
    return KINDS[first]


def module_of(detector: str) -> tuple[DetectorModule, str]:
    """The module of a detector, and the rest of its name."""
    module: Any = import_module(f"{__name__}.{kind_of(detector).module}")
    return module, detector.partition("/")[2]
