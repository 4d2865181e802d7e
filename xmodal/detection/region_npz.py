"""MILVLG's folder of regions: ID.npz with x, bbox, num_bbox, image_h, image_w and info.

An id with a slash names a file in a folder below.
`info` is a pickled dict with objects_id, objects_conf, attrs_id and attrs_conf; it is read by an unpickler that knows
arrays and nothing else. The keys are those of MILVLG/bottom-up-attention.pytorch@4dbce86:utils/extract_utils.py.
"""

import io
import math
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.region_store import Named, PictureRegions
from xmodal.features.foreign_formats import id_of
from xmodal.raw.archives import LARGEST
from xmodal.raw.array_files import Head, npy_header, reading, unchecked_header
from xmodal.raw.pickled_arrays import read_object_array

SIDES = ("image_w", "image_h")
ENDING = ".npz"


def is_milvlg(file: Path) -> bool:
    with reading(file), zipfile.ZipFile(file) as archive:
        return {"x.npy", "bbox.npy"} <= set(archive.namelist())


def look_at_npz(folder: Path, files: list[Path]) -> tuple[list[str], int, Any, str]:
    """Returns ids, numbers of a feature, a function that reads some pictures, and the features' dtype."""
    heads = list[Head]()
    for file in files:
        with reading(file), zipfile.ZipFile(file) as archive:
            x, bbox = (_head(archive, name) for name in ("x", "bbox"))
            if len(x[0]) != 2 or bbox[0] != (x[0][0], 4):
                raise ValueError(f"x is {x[0]} and bbox {bbox[0]}, not (K, D) and (K, 4)")
            if heads and (x[0][1], x[1]) != (heads[0][0][1], heads[0][1]):
                raise ValueError(f"x is {x[0]} {x[1]}, unlike {files[0].name}, where it is {heads[0][0]} {heads[0][1]}")
            heads.append(x)
    ids = tuple(id_of(file, folder, ENDING) for file in files)
    read = partial(_read, ids, tuple(map(str, files)))
    return [*ids], heads[0][0][1], read, str(heads[0][1])


def write_npz(folder: Path, pictures: Iterable[PictureRegions]) -> None:
    folder.mkdir()
    for picture in pictures:
        count = len(picture.boxes_K4)
        info: dict[str, Any] = {"image_id": picture.id, "num_boxes": count}
        size = dict(zip(SIDES, picture.size, strict=True)) if picture.size else {}
        for kind, named in (("objects", picture.classes), ("attrs", picture.attributes)):
            if named:
                info |= {f"{kind}_id": named.ids_K, f"{kind}_conf": named.scores_K}
        arrays: dict[str, Any] = {"x": picture.features_KD, "bbox": picture.boxes_K4, "num_bbox": count, **size}
        file = folder / f"{picture.id}{ENDING}"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **arrays, info=np.array(info | size, object))


def _read(ids: tuple[str, ...], files: tuple[str, ...], items: range) -> Iterator[PictureRegions]:
    for item in items:
        name = files[item]
        with reading(name), zipfile.ZipFile(name) as archive:
            there = set(archive.namelist())
            values = {key: _array(archive, key) for key in ("x", "bbox", *SIDES) if f"{key}.npy" in there}
            info = _info(archive) if "info.npy" in there else {}
            named = [_named(info, kind) for kind in ("objects", "attrs")]
            size = _picture_size({side: values[side] for side in SIDES if side in values})
        yield PictureRegions(ids[item], values["bbox"].astype("f4"), values["x"], size, *named)


def _picture_size(sides: dict[str, NDArray[Any]]) -> tuple[int, int] | None:
    if len(sides) == 1:
        raise ValueError(f"it has {next(iter(sides))} alone: give image_w and image_h, or neither")
    for side, value in sides.items():
        if value.size != 1 or value.dtype.kind not in "iuf" or not abs(value.item()) < 2**31:
            raise ValueError(f"{side} is no number of pixels, but {value.shape} {value.dtype}: {value.ravel()[:3]}")
    return (int(sides["image_w"].item()), int(sides["image_h"].item())) if sides else None


def _head(archive: zipfile.ZipFile, key: str) -> Head:
    with archive.open(f"{key}.npy") as file:
        return npy_header(file, _size(archive, key))[:2]  # type: ignore[arg-type]


def _size(archive: zipfile.ZipFile, key: str) -> int:
    size = archive.getinfo(f"{key}.npy").file_size
    if size > LARGEST:
        raise ValueError(f"{key} is {size:,} bytes long, more than a picture has")
    return size


def _array(archive: zipfile.ZipFile, key: str) -> NDArray[Any]:
    with archive.open(f"{key}.npy") as file:
        shape, dtype, order = npy_header(file, _size(archive, key))  # type: ignore[arg-type]
        data = file.read(math.prod(shape) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape, order=order) if data else np.empty(shape, dtype)


def _info(archive: zipfile.ZipFile) -> dict[str, Any]:
    with archive.open("info.npy") as file:
        objects = read_objects(io.BytesIO(file.read(_size(archive, "info"))))
    if len(objects) != 1 or not isinstance(objects[0], dict):
        raise ValueError("info is no dict")
    return objects[0]


def read_objects(file: BinaryIO) -> list[Any]:
    """Reads a .npy of objects, which are plain values, arrays, or dicts of them."""
    if not unchecked_header(file)[2].hasobject:
        raise ValueError("it holds no objects")
    return read_object_array(file)


def _named(info: dict[str, Any], kind: str) -> Named | None:
    if f"{kind}_id" not in info:
        return None
    ids, scores = np.asarray(info[f"{kind}_id"]), np.asarray(info[f"{kind}_conf"])
    if ids.dtype.kind not in "iu" or scores.dtype.kind != "f":
        raise ValueError(f"{kind}_id and {kind}_conf of info are no numbers")
    return Named(ids.astype("i4"), scores.astype("f4")) if len(ids) else None
