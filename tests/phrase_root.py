"""A root of phrases and regions: Flickr30k Entities' files of a generated world, whose boxes are known.

A region's feature is what its box shows, a few pixels wide; proposals are boxes near those of things, and anywhere.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipelines.demo.world import World, box
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.publishers.flickr30k import pictures
from tests.publishers.flickr30k_entities import write
from xmodal import detectors
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.root.storage import open_storage

CORPUS = "flickr30k_entities"
PROPOSED = 12  # boxes of most pictures
SIDE = 6  # pixels of a feature
DETECTOR = {"detector": "crops", "weights": "random:0", "dtype": "float32"}
SETTINGS: Mapping[str, Any] = {
    **{f"{stage}.{name}": value for stage in ("proposals", "regions") for name, value in DETECTOR.items()},
    "proposals.boxes": "file",
    "regions.boxes": "phrases",
    "codebook.method": "tfidf",
    "codebook.split": "plummer/train",
    "codebook.width": 48,
    "phrases.dtype": "float32",
    "sentences.dtype": "float32",
}
Box = tuple[float, ...]


def make_root(folder: Path, world: World, proposed: Mapping[str, Sequence[Box]], **settings: Any) -> str:
    """Builds what training on phrases reads; a picture without boxes has no proposals."""
    corpus, boxes = write(world, folder / "raw"), folder / "boxes.tsv"
    rows = [(id, *one) for id, some in proposed.items() for one in some]
    boxes.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw", settings={**SETTINGS, **settings})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(detectors.KINDS, "crops", detectors.DetectorKind("crops", 0.0))
        patch.setitem(sys.modules, "xmodal.detectors.crops", sys.modules[__name__])
        for stage in ("proposals", "regions", "phrases", "sentences"):
            files = {"boxes": boxes} if stage == "proposals" else {}
            CorpusBuild(replace(options, files=files), corpus).build(stage)
    return options.storage.url


def proposals(world: World, without: Sequence[str] = ()) -> dict[str, list[Box]]:
    """The box of each thing and boxes near it, then any boxes, in an order that says nothing."""
    draw, found = np.random.default_rng(world.seed), dict[str, list[Box]]()
    for picture in pictures(world):
        if picture.id not in without:
            size = picture.scene.width, picture.scene.height
            true = [box(picture.scene, thing) for thing in picture.scene.things]
            near = [_moved(one, draw, 2) for one in true]
            anywhere = [_moved(true[0], draw, 48) for _ in range(PROPOSED - len(true) - len(near))]
            boxes = [_inside(one, size) for one in (*true, *near, *anywhere)]
            found[picture.id] = [boxes[place] for place in draw.permutation(len(boxes))]
    return found


def _moved(one: Sequence[float], draw: np.random.Generator, most: int) -> Box:
    left, top, right, bottom = one
    x, y = draw.integers(-most, most + 1, 2).tolist()
    return left + x, top + y, right + x, bottom + y


def _inside(one: Box, size: tuple[int, int]) -> Box:
    """Moves a box into its picture."""
    (left, top, right, bottom), (width, height) = one, size
    x, y = max(0, min(left, width - (right - left))), max(0, min(top, height - (bottom - top)))
    return x, y, min(width, x + right - left), min(height, y + bottom - top)


class Crops:
    """A detector that looks at given boxes alone."""

    words = DetectorWords()
    width = 3 * SIDE * SIDE

    def extract(
        self, images: Sequence[NDArray[np.uint8]], boxes: Sequence[NDArray[np.float32]] | None = None
    ) -> list[Regions]:
        assert boxes is not None
        return [
            Regions(some, np.array([*self._features(image, some)], np.float32), (image.shape[1], image.shape[0]))
            for image, some in zip(images, boxes, strict=True)
        ]

    def provenance(self) -> Mapping[str, Any]:
        return {"network": "crops", "weights": "random:0"}

    def _features(self, image: NDArray[np.uint8], boxes: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        picture = Image.fromarray(image)
        for one in boxes.tolist():
            small = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=tuple(one))
            yield np.asarray(small, np.float32).ravel() / 128 - 1


def check(name: str, weights: str) -> None:
    assert not name


def load(name: str, weights: str, files: Mapping[str, Path], device: str) -> Crops:
    return Crops()
