"""Regions as files of others, and the way in and out, for tests."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.publishing.feature_export import export_features
from pipelines.publishing.feature_import import import_features
from tests.detection.test_region_store import some_regions
from xmodal.detection.region_formats import open_regions
from xmodal.detection.region_store import PictureRegions, RegionStore
from xmodal.root.storage import open_storage

QUIET = ProgressLine(quiet=True)
FORMATS = ("x.tsv", "x_ims.npy", "x.h5", "folder")
MANY = [some_regions(id, count) for id, count in (("a", 3), ("b", 0), ("Straße-日本", 5), ("7", 1))]


def export(where: str, out: Path) -> dict[str, Any]:
    return export_features(where, out, None, None, None, None, QUIET)


def bring_in(path: Path, root: Path, ids: Path | None = None) -> RegionStore:
    source = open_regions(path, ids)
    assert source is not None
    return RegionStore(import_features(open_storage(str(root)), "mine", source, (), serial, QUIET)["path"])


def without_words(picture: PictureRegions) -> PictureRegions:
    return PictureRegions(picture.id, picture.boxes_K4, picture.features_KD, picture.size)


def b64(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values, dtype).tobytes()).decode()


def fields_of(picture: PictureRegions) -> dict[str, str]:
    """One line, written the slow way."""
    assert picture.size
    found = {"image_id": picture.id, "image_w": str(picture.size[0]), "image_h": str(picture.size[1])}
    found |= {"num_boxes": str(len(picture.boxes_K4)), "boxes": b64(picture.boxes_K4, "f4")}
    found |= {"features": b64(picture.features_KD, "f4")}
    for name, named in (("objects", picture.classes), ("attrs", picture.attributes)):
        if named:
            found |= {f"{name}_id": b64(named.ids_K, "i8"), f"{name}_conf": b64(named.scores_K, "f4")}
    return found


def tsv(path: Path, lines: Sequence[dict[str, str]], names: Sequence[str] = (), end: str = "\r\n") -> Path:
    rows = ["\t".join(line[name] for name in names or line) for line in lines]
    path.write_text("".join(row + end for row in rows), "utf-8", newline="")
    return path
