"""Bottom-up attention's TSV: one line a picture, its boxes and features as base64 of float32.

    image_id  image_w  image_h  num_boxes  boxes  features  [objects_id  objects_conf  [attrs_id  attrs_conf]]

There is no header. LXMERT's files have the same ten columns in another order; both are read. Ids count from 0, without
the background. Lines end in LF, or in CRLF as Python's csv module writes them.
"""

import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.region_store import Named, PictureRegions
from xmodal.errors import UserError
from xmodal.raw.array_files import reading

PICTURE = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
OBJECTS, ATTRIBUTES = ("objects_id", "objects_conf"), ("attrs_id", "attrs_conf")
LAYOUTS = (PICTURE, PICTURE + OBJECTS, PICTURE + OBJECTS + ATTRIBUTES)
LXMERT = ("image_id", "image_h", "image_w", *OBJECTS, *ATTRIBUTES, "num_boxes", "boxes", "features")
LONGEST = 64 * 2**20  # bytes of a line: 100 regions of 2048 are 1.1 MB
Fields = Mapping[str, bytes]


@dataclass(frozen=True)
class TsvLine:
    number: int  # from 1
    start: int
    size: int


def look_at_tsv(path: Path) -> tuple[list[str], int, Any]:
    """Returns ids, numbers of a feature, and a function that reads some pictures; the file is read once, by line."""
    ids, lines, width, columns = list[str](), list[TsvLine](), 0, tuple[str, ...]()
    with reading(path), path.open("rb") as file:
        while line := file.readline(LONGEST + 1):
            where = TsvLine(len(lines) + 1, file.tell() - len(line), len(line))
            try:
                columns = columns or _columns(line)
                fields = _fields(line, columns)
                found = _width(fields)
                if found and width and found != width:
                    raise ValueError(f"its features have {found:,} numbers, those above {width:,}")
                ids.append(fields["image_id"].decode())
            except ValueError as error:
                raise UserError(f"{path}, line {where.number:,}: {error}") from error
            lines.append(where)
            width = width or found
    return ids, width, partial(_read, str(path), tuple(lines), columns, width)


def write_tsv(path: Path, pictures: Iterable[PictureRegions], columns: int) -> None:
    """Writes 6 columns; 8 with objects; or 10 with attributes, too."""
    with path.open("xb") as file:
        for picture in pictures:
            if picture.size is None:
                raise UserError(f"the size of picture {picture.id!r} is not known, which a .tsv has: export to x.h5")
            width, height = picture.size
            texts = [picture.id, str(width), str(height), str(len(picture.boxes_K4))]
            fields = [text.encode() for text in texts]
            fields += [_base64(picture.boxes_K4, "<f4"), _base64(picture.features_KD, "<f4")]
            for named in (picture.classes, picture.attributes):
                fields += [_base64(named.ids_K, "<i8"), _base64(named.scores_K, "<f4")] if named else [b"", b""]
            file.write(b"\t".join(fields[:columns]) + b"\n")


def _base64(values: NDArray[Any], dtype: str) -> bytes:
    return b64encode(np.ascontiguousarray(values, dtype).tobytes())


def _read(
    path: str, lines: tuple[TsvLine, ...], columns: tuple[str, ...], width: int, items: range
) -> Iterator[PictureRegions]:
    with reading(path), open(path, "rb") as file:
        for line in lines[items.start : items.stop]:
            yield _picture(path, file, line, columns, width)


def _picture(path: str, file: BinaryIO, line: TsvLine, columns: tuple[str, ...], width: int) -> PictureRegions:
    file.seek(line.start, os.SEEK_SET)
    try:
        fields = _fields(file.read(line.size), columns)
        count, sides = int(fields["num_boxes"]), (int(fields["image_w"]), int(fields["image_h"]))
        boxes = _numbers(fields, "boxes", 4 * count, "f").reshape(count, 4)
        features = _numbers(fields, "features", width * count, "f").reshape(count, width)
        named = [_named(fields, names, count) for names in (OBJECTS, ATTRIBUTES)]
    except ValueError as error:
        raise UserError(f"{path}, line {line.number:,}: {error}") from error
    return PictureRegions(fields["image_id"].decode(), boxes, features, sides, *named)


def _columns(line: bytes) -> tuple[str, ...]:
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) == len(LXMERT) and not fields[3].isdigit():
        return LXMERT
    for columns in LAYOUTS:
        if len(fields) == len(columns):
            return columns
    raise ValueError(f"it has {len(fields)} columns; a TSV of regions has 6, 8 or 10 and no header")


def _fields(line: bytes, columns: tuple[str, ...]) -> Fields:
    if len(line) > LONGEST:
        raise ValueError(f"it has more than the {LONGEST:,} bytes of a picture's regions")
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != len(columns):
        raise ValueError(f"it has {len(fields)} columns, not {len(columns)}: it was cut off, or is of another file")
    found = dict(zip(columns, fields, strict=True))
    for name in ("image_w", "image_h", "num_boxes"):
        if not found[name].isdigit() or len(found[name]) > 9:
            raise ValueError(f"{name} is {found[name][:20]!r}, no number")
    return found


def _width(fields: Fields) -> int:
    """Numbers of a feature by the lengths alone; 0 where there is no region."""
    count, sizes = int(fields["num_boxes"]), {name: _bytes(fields[name]) for name in ("boxes", "features")}
    if sizes["boxes"] != 16 * count:
        raise ValueError(f"boxes has {sizes['boxes']:,} bytes, not the {16 * count:,} of {count:,} boxes")
    if sizes["features"] % (4 * max(count, 1)) or bool(sizes["features"]) != bool(count):
        raise ValueError(f"features has {sizes['features']:,} bytes, which {count:,} rows of float32 do not have")
    return sizes["features"] // (4 * count) if count else 0


def _bytes(text: bytes) -> int:
    return len(text) // 4 * 3 - text[-2:].count(b"=")


def _named(fields: Fields, names: tuple[str, str], count: int) -> Named | None:
    if not fields.get(names[0]):
        return None
    ids, scores = (_numbers(fields, name, count, kind) for name, kind in zip(names, "if", strict=True))
    return Named(ids, scores)


def _numbers(fields: Fields, name: str, count: int, kind: str) -> NDArray[Any]:
    """Decodes int32 or int64, told apart by the length, or float32."""
    try:
        data = b64decode(fields[name], validate=True)
    except ValueError as error:
        raise ValueError(f"{name} is no base64: {error}") from error
    size = 8 if kind == "i" and count and len(data) == 8 * count else 4
    if len(data) != size * count:
        raise ValueError(f"{name} has {len(data):,} bytes, not the {size * count:,} of {count:,} numbers")
    return np.frombuffer(data, f"<{kind}{size}").astype(f"{kind}4")
