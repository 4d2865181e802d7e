"""Reads and writes regions as others do: bottom-up attention's TSV, MILVLG's npz, SCAN's arrays, and HDF5.

`open_regions` returns plain data for workers, each of which reads some pictures. Files may come from anybody: nothing
in them is executed, and no length is believed before it was compared with the file's.

SCAN's arrays are x_ims.npy (pictures, K, D), x_ims_bbx.npy (pictures, K, 4) and x_ims_size.npy with fields image_w and
image_h, as CrossmodalGroup/GSMN@dcc0f61:data.py reads them; where a picture has fewer regions, rows of zeros follow.
HDF5 has features and boxes of all regions one after another, and `offsets`, where those of each picture begin.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from xmodal.detection.region_npz import is_milvlg, look_at_npz, read_objects, write_npz
from xmodal.detection.region_store import WORDS, Named, PictureRegions
from xmodal.detection.region_tsv import LAYOUTS, look_at_tsv, write_tsv
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.foreign_formats import ForeignArray, files_in, ids_beside, open_foreign, refuse_twice, stored_as
from xmodal.raw.array_files import HDF5, hdf5_dataset, npy_header, open_hdf5, reading, unchecked_header

SCAN, BOXES, SIZES = "_ims.npy", "_bbx.npy", "_size.npy"  # of endings of names; the last two follow x_ims
TSV = re.compile(r".+\.tsv(\.\d+)?")  # the makers' own are in parts, x.tsv.0, x.tsv.1, …
SIDES = np.dtype([("image_w", "<i4"), ("image_h", "<i4")])
Pictures = Callable[[range], Iterator[PictureRegions]]


@dataclass(frozen=True)
class ForeignRegions:
    """Regions of pictures in files of others, which `import_features` takes as it takes `ForeignFeatures`."""

    files: tuple[str, ...]
    ids: tuple[str, ...]
    width: int  # numbers of a feature
    dtype: str  # of the file
    read: Pictures
    key: None = None
    copies: int = 1

    def spec(self, name: str) -> FeatureSpec:
        return FeatureSpec(name, (self.width,), stored_as(np.dtype(self.dtype)), ragged=True)

    def pictures(self, items: range) -> Iterator[PictureRegions]:
        """Yields checked regions of some pictures, with features of a dtype of the store."""
        for picture in self.read(items):
            yield _checked(picture, self)


def open_regions(path: Path, ids: Path | None = None) -> ForeignRegions | None:
    """Looks at files of regions; None for what holds features without boxes. `ids` is a file of one id a line."""
    found = None
    if TSV.fullmatch(path.name) and path.is_file():
        if ids:
            raise UserError(f"{path}: its lines begin with the ids: leave out --ids")
        names, width, read = look_at_tsv(path)
        found = ForeignRegions((str(path.absolute()),), tuple(names), width, "float32", read)
    elif path.is_dir() and ids is None:
        found = _look_into_folder(path)
    elif path.name.endswith(SCAN) and (boxes := _beside(path, BOXES)).is_file():
        found = _look_at_scan(path, boxes, ids or ids_beside(path))
    elif path.suffix in HDF5 and path.is_file():
        found = _look_into_hdf5(path, ids)
    if found:
        refuse_twice(found.ids, path)
        if not found.width:
            raise UserError(f"{path} has no regions")
    return found


def writer_for(out: Path) -> Callable[[Path, "RegionsToWrite"], None] | None:
    """The writer of a name: x.tsv, x_ims.npy, x.h5, or without an ending a folder."""
    if out.name.endswith(SCAN):
        return _write_scan
    return {".tsv": _write_tsv, "": _write_folder, **dict.fromkeys(HDF5, _write_hdf5)}.get(out.suffix)


def names_beside(out: Path) -> tuple[str, ...]:
    """The other files that are written with `out`."""
    return (_beside(out, BOXES).name, _beside(out, SIZES).name) if out.name.endswith(SCAN) else ()


def holds_words(out: Path) -> bool:
    """Whether the format of a name has the numbers of classes and attributes."""
    return writer_for(out) is not None and not out.name.endswith(SCAN)


@dataclass(frozen=True, eq=False)
class RegionsToWrite:
    """Regions of pictures in their order, how many each has, and what is known of them."""

    pictures: Iterable[PictureRegions]
    ids: Sequence[str]
    lengths: NDArray[np.int64]
    width: int
    dtype: str
    has_classes: bool
    has_attributes: bool


def refuse_reversed(file: Path | str, id: str, boxes: Iterable[Sequence[float]]) -> None:
    for number, (left, top, right, bottom) in enumerate(boxes, 1):
        if right < left or bottom < top:
            box = f"box {number} of {id!r}, {left:g}, {top:g}, {right:g}, {bottom:g},"
            how = "give left, top, right and bottom, not a width and a height"
            raise UserError(f"{file}: {box} ends before it begins: {how}")


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name.removesuffix(".npy") + ending)


def _checked(picture: PictureRegions, source: ForeignRegions) -> PictureRegions:
    where = f"{source.files[0]}: the regions of {picture.id!r}"
    count = len(picture.features_KD)
    with np.errstate(over="ignore"):
        features = np.asarray(picture.features_KD, stored_as(picture.features_KD.dtype), order="C")
    words = [named for named in (picture.classes, picture.attributes) if named]
    if picture.boxes_K4.shape != (count, 4) or any({len(w.ids_K), len(w.scores_K)} != {count} for w in words):
        raise UserError(f"{where} have not as many boxes or words as features")
    numbers = (features, picture.boxes_K4, *(named.scores_K for named in words))
    if not all(np.isfinite(values).all() for values in numbers):
        raise UserError(f"{where} have numbers that are NaN or infinite, or too large for {features.dtype}")
    if any((named.ids_K < 0).any() for named in words):
        raise UserError(f"{where} have words with negative numbers")
    if picture.size and min(picture.size) < 1:
        width, height = picture.size
        raise UserError(f"{where} are of a picture of {width} x {height} pixels: give its width and height, above 0")
    refuse_reversed(source.files[0], picture.id, picture.boxes_K4.tolist())
    return PictureRegions(picture.id, picture.boxes_K4, features, picture.size, picture.classes, picture.attributes)


# ---------------------------------------------------------------------------------------------------------------- files


def _write_tsv(path: Path, regions: RegionsToWrite) -> None:
    write_tsv(path, regions.pictures, len(LAYOUTS[regions.has_classes + regions.has_attributes]))


def _look_into_folder(folder: Path) -> ForeignRegions | None:
    files = [file for file in files_in(folder) if file.suffix == ".npz"]
    if not files or not is_milvlg(files[0]):
        return None
    names, width, read, dtype = look_at_npz(folder, files)
    return ForeignRegions(tuple(str(file.absolute()) for file in files), tuple(names), width, dtype, read)


def _write_folder(path: Path, regions: RegionsToWrite) -> None:
    write_npz(path, regions.pictures)


# ----------------------------------------------------------------------------------------------------------------- SCAN


def _look_at_scan(path: Path, boxes_file: Path, ids: Path) -> ForeignRegions:
    features, boxes = open_foreign(path, ids), open_foreign(boxes_file, ids)
    assert isinstance(features, ForeignArray)
    assert isinstance(boxes, ForeignArray)
    if len(features.shape) != 3 or boxes.shape[1:] != (features.shape[1], 4):
        raise UserError(f"{path} is {features.shape}, which the {boxes.shape} of {boxes_file.name} do not fit")
    sizes = _sizes(_beside(path, SIZES), len(features.ids))
    files = (features.path, boxes.path, *([str(_beside(path, SIZES).absolute())] if sizes else []))
    read = partial(_read_scan, features, boxes, sizes)
    return ForeignRegions(files, features.ids, features.shape[2], features.dtype, read)


def _sizes(file: Path, count: int) -> tuple[tuple[int, int], ...] | None:
    """Widths and heights: of our plain file, or of one with a pickled dict a picture."""
    if not file.is_file():
        return None
    with reading(file), file.open("rb") as opened:
        is_pickled = unchecked_header(opened)[2].hasobject
        opened.seek(0)
        found = read_objects(opened) if is_pickled else _sides(opened, file.stat().st_size)
        if is_pickled and not all(isinstance(size, dict) for size in found):
            raise ValueError("it holds no dicts")
        sizes = tuple((int(size["image_w"]), int(size["image_h"])) for size in found)
    copies, rest = divmod(len(sizes), count)
    if rest or copies not in (1, 5):
        raise UserError(f"{file} has {len(sizes):,} sizes of {count:,} pictures")
    return sizes[::copies]


def _sides(file: BinaryIO, size: int) -> NDArray[Any]:
    shape, dtype, _ = npy_header(file, size)
    return np.frombuffer(file.read(), dtype, math.prod(shape))


def _read_scan(
    features: ForeignArray, boxes: ForeignArray, sizes: tuple[tuple[int, int], ...] | None, items: range
) -> Iterator[PictureRegions]:
    rows = (row for block in features.rows(items) for row in block)
    box_rows = (row for block in boxes.rows(items) for row in block)
    for item, features_KD, boxes_K4 in zip(items, rows, box_rows, strict=True):
        filled = np.flatnonzero(boxes_K4.any(axis=1) | features_KD.any(axis=1))
        count = int(filled[-1]) + 1 if filled.size else 0  # rows of zeros after them are none
        size = sizes[item] if sizes else None
        known = None if size == (0, 0) else size
        yield PictureRegions(features.ids[item], boxes_K4[:count].astype("f4"), features_KD[:count], known)


def _write_scan(path: Path, regions: RegionsToWrite) -> None:
    shape, most = (len(regions.ids),), int(regions.lengths.max(initial=0))
    if not most:
        raise UserError("no picture has regions, which no .npy can be: export to x.h5")
    wanted = ((path, regions.dtype, (most, regions.width)), (_beside(path, BOXES), "<f4", (most, 4)))
    features, boxes = (npy.open_memmap(file, "w+", dtype, (*shape, *row)) for file, dtype, row in wanted)
    sizes = np.zeros(shape, SIDES)
    for place, picture in enumerate(regions.pictures):
        count = len(picture.boxes_K4)
        features[place, :count], boxes[place, :count] = picture.features_KD, picture.boxes_K4
        sizes[place] = picture.size or (0, 0)
    np.save(_beside(path, SIZES), sizes)


# ----------------------------------------------------------------------------------------------------------------- HDF5


def _look_into_hdf5(path: Path, ids: Path | None) -> ForeignRegions | None:
    with reading(path), open_hdf5(path) as file:
        if not {"features", "boxes", "offsets"} <= set(file):
            return None
        rows = {name: hdf5_dataset(file, name).shape for name in ("features", "boxes", *WORDS) if name in file}
        sizes = hdf5_dataset(file, "sizes").shape if "sizes" in file else None
    features = open_foreign(path, ids, "features")
    assert isinstance(features, ForeignArray)
    if features.offsets is None or len(features.shape) != 2 or sizes not in (None, (len(features.ids), 2)):
        raise UserError(f"{path}: offsets or sizes are not those of its {len(features.ids):,} pictures")
    for name, shape in rows.items():
        if shape[:1] != features.shape[:1] or (name == "boxes" and shape[1:] != (4,)):
            raise UserError(f"{path}: {name} is {shape}, but there are {features.shape[0]:,} regions")
    return ForeignRegions(
        features.files, features.ids, features.shape[1], features.dtype, partial(_read_hdf5, features)
    )


def _read_hdf5(features: ForeignArray, items: range) -> Iterator[PictureRegions]:
    assert features.offsets is not None
    with reading(features.path), open_hdf5(features.path) as file:
        for item, features_KD in zip(items, features.rows(items), strict=True):
            place = slice(*features.offsets[item : item + 2])
            with np.errstate(over="ignore"):  # infinite ones are refused
                boxes_K4 = np.asarray(hdf5_dataset(file, "boxes")[place], "f4")
            named = [_named_in_hdf5(file, kind, place) for kind in ("class", "attribute")]
            sides = tuple(hdf5_dataset(file, "sizes")[item].tolist()) if "sizes" in file else (0, 0)
            yield PictureRegions(features.ids[item], boxes_K4, features_KD, sides if any(sides) else None, *named)


def _named_in_hdf5(file: Any, kind: str, place: slice) -> Named | None:
    if f"{kind}_ids" not in file or place.start == place.stop:
        return None
    ids = np.asarray(hdf5_dataset(file, f"{kind}_ids")[place], "i4")
    return None if (ids < 0).all() else Named(ids, np.asarray(hdf5_dataset(file, f"{kind}_scores")[place], "f4"))


def _write_hdf5(path: Path, regions: RegionsToWrite) -> None:
    total = int(regions.lengths.sum())
    with open_hdf5(path, "x") as file:
        file["ids"] = np.array(regions.ids, object)
        file["offsets"] = np.concatenate([[0], np.cumsum(regions.lengths)])
        features = file.create_dataset("features", (total, regions.width), regions.dtype)
        boxes = file.create_dataset("boxes", (total, 4), "float32")
        sizes = np.zeros((len(regions.ids), 2), "int32")
        kinds = [
            kind for kind, known in (("class", regions.has_classes), ("attribute", regions.has_attributes)) if known
        ]
        ids = {kind: np.full(total, -1, "int32") for kind in kinds}
        scores = {kind: np.zeros(total, "float32") for kind in kinds}
        row = 0
        for item, picture in enumerate(regions.pictures):
            place = slice(row, row := row + len(picture.boxes_K4))
            features[place], boxes[place] = picture.features_KD, picture.boxes_K4
            sizes[item] = picture.size or (0, 0)
            for kind in kinds:
                named = picture.classes if kind == "class" else picture.attributes
                if named:
                    ids[kind][place], scores[kind][place] = named.ids_K, named.scores_K
        file["sizes"] = sizes
        for kind in kinds:
            file[f"{kind}_ids"], file[f"{kind}_scores"] = ids[kind], scores[kind]
