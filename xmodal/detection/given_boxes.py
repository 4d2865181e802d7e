"""Boxes that are given to a detector, by picture: annotated ones of records, or those of a user's file."""

import math
import re
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from xmodal.detection.merged_boxes import merge_groups
from xmodal.detection.region_formats import open_regions, refuse_reversed
from xmodal.errors import UserError
from xmodal.records.tables import Region, read_rows
from xmodal.root.outputs import Output

FORM = (  # of a user's file
    "a line a box: the picture's id, left, top, right and bottom in pixels, with tabs between, as 'a/0.jpg<tab>10<tab>"
    "20<tab>110.5<tab>90', right and bottom just outside of it; or a .parquet table with id and boxes, four numbers a "
    "box in one list; or regions as `xmodal import` takes them"
)
NUMBER = re.compile(rb"[-+]?\d+(\.\d*)?")
# left, top, right, bottom of each, from 0; then width and height of their picture, where a file of regions tells them
Boxes = tuple[tuple[float, ...], ...]


def boxes_of_records(records: Output) -> dict[str, Boxes]:
    """The annotated boxes of each picture in the order of the records; regions without a box are left out."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for region in read_rows(records, Region):
        sides = (region.left, region.top, region.right, region.bottom)
        if region.left is not None:
            found.setdefault(region.item, []).append(tuple(float(side) for side in sides if side is not None))
    if not found:
        raise UserError(f"{records.config['corpus']} has no annotated boxes: leave out boxes=records")
    return {id: tuple(boxes) for id, boxes in found.items()}


def boxes_of_phrases(records: Output) -> dict[str, Boxes]:
    """The box around all that a phrase names, for each thing of a picture; two things may have the same."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for (picture, _), box in chain_boxes(records).items():
        found.setdefault(picture, []).append(box)
    if not found:
        raise UserError(f"{records.config['corpus']} has no phrases with boxes: leave out boxes=phrases")
    return {id: tuple(dict.fromkeys(boxes)) for id, boxes in found.items()}


def chain_boxes(records: Output) -> dict[tuple[str, str], tuple[float, ...]]:
    """The box around all boxes of each coreference chain that has any, by picture and chain."""
    found = dict[tuple[str, str], tuple[float, ...]]()
    for one in merge_groups(region for region in read_rows(records, Region) if region.group is not None):
        if one.left is not None and one.group is not None:
            sides = (one.left, one.top, one.right, one.bottom)
            found[one.item, one.group] = tuple(float(side) for side in sides if side is not None)
    return found


def boxes_in_file(path: Path) -> dict[str, Boxes]:
    """Reads boxes of a user, each of four numbers, in one of three forms, which FORM says."""
    head = _head(path)
    if head.startswith(b"PAR1"):
        found = _of_table(path)
    elif _begins_with_a_box(head.partition(b"\n")[0]):
        found = _of_lines(path)
    else:
        found = _of_foreign(path)
    for id, boxes in found.items():
        if not all(len(box) >= 4 and all(map(math.isfinite, box)) for box in boxes):
            raise UserError(f"{path}: the boxes of {id!r} are not four finite numbers each: left, top, right, bottom")
        refuse_reversed(path, id, [box[:4] for box in boxes])
    return found


def boxes_within(boxes: Boxes, size: tuple[int, int]) -> NDArray[np.float64]:
    """Boxes in pixels of a picture of this width and height; a detector of others may have seen it at another size."""
    boxes_K6 = np.array([(*box, *size)[:6] for box in boxes], np.float64)
    boxes_K4: NDArray[np.float64] = boxes_K6[:, :4] * np.tile(size / boxes_K6[:, 4:], 2)
    return boxes_K4


def _begins_with_a_box(line: bytes) -> bool:
    """Whether there are five columns, or numbers in those after the first, which no file of regions has."""
    fields = line.split(b"\t")
    return len(fields) == 5 or (len(fields) > 5 and all(NUMBER.fullmatch(field) for field in fields[1:5]))


def _head(path: Path) -> bytes:
    if path.is_dir():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(1 << 16)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _of_lines(path: Path) -> dict[str, Boxes]:
    found: dict[str, Boxes] = {}
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).rstrip().splitlines(), 1):
        try:
            id, *sides = line.decode().split("\t")
            if len(sides) != 4:
                raise ValueError(f"it has {len(sides) + 1} columns" if line.strip() else "it is blank")
            found[id] = (*found.get(id, ()), tuple(map(float, sides)))
        except ValueError as error:
            raise UserError(
                f"{path}:{number} is not id, left, top, right, bottom with tabs between: {error}"
            ) from error
    return found


def _of_table(path: Path) -> dict[str, Boxes]:
    try:
        # Arrow's threads can crash a process at its exit.
        with path.open("rb") as file, pq.ParquetFile(file, pre_buffer=False) as rows:
            table = rows.read(columns=["id", "boxes"], use_threads=False).to_pydict()
        found = {str(id): _by_fours(sides or []) for id, sides in zip(table["id"], table["boxes"], strict=True)}
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no Parquet table with columns id and boxes: {error}") from error
    if len(found) < len(table["id"]):
        raise UserError(f"{path} has an id twice: give each picture one row with all of its boxes")
    return found


def _by_fours(sides: list[float]) -> Boxes:
    return tuple(tuple(map(float, sides[place : place + 4])) for place in range(0, len(sides), 4))


def _of_foreign(path: Path) -> dict[str, Boxes]:
    try:
        regions = open_regions(path)
    except UserError as error:
        raise UserError(f"{error}; boxes alone are {FORM}") from error
    if regions is None:
        raise UserError(f"{path} has no boxes: give {FORM}")
    pictures = regions.pictures(range(len(regions.ids)))
    return {
        picture.id: tuple((*box, *map(float, picture.size or ())) for box in picture.boxes_K4.tolist())
        for picture in pictures
    }
