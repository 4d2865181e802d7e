"""Weights in Caffe's files (.caffemodel), read from protobuf's wire format without Caffe.

A NetParameter has its layers in field 100, or, before 2015, in field 2; BVLC/caffe@9b89154:src/caffe/proto/caffe.proto.
Of a damaged or hostile file nothing is believed: every length is compared with the bytes that there are.
"""

import math
import mmap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # wire types
NAME_AND_BLOBS = {100: (1, 7), 2: (4, 6)}  # the fields of a layer, by its own field in the network
DATA, SHAPE, DOUBLE_DATA, LEGACY_SIDES = 5, 7, 8, (1, 2, 3, 4)  # the fields of a blob
MOST_SIDES = 32  # of a blob, as in Caffe
MOST_BLOBS = 32  # of a layer; Caffe's own have five at most

BEGINS = (b"\x0a", b"\x12", b"\xa2\x06")  # tags of a network's name, or of its first layer where it has none

Field = tuple[int, int | memoryview]  # its number, and a number or bytes


def read_caffemodel(path: Path) -> dict[str, list[NDArray[np.float32]]]:
    """Blobs of each layer that has some, by its name; blobs of old files have four sides, as (1, 1, 1, N)."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise UserError(f"weights {path} cannot be read: {error}") from error
    layers: dict[str, list[NDArray[np.float32]]] = {}
    try:
        for field, layer in _fields(data):
            if field in NAME_AND_BLOBS and isinstance(layer, memoryview):
                name, blobs = _layer(layer, *NAME_AND_BLOBS[field])
                if blobs and name in layers:
                    raise ValueError(f"layer {name} is there twice")
                if blobs:
                    layers[name] = blobs
    except (ValueError, OverflowError) as error:
        raise UserError(f"weights {path} are no whole .caffemodel ({error}): get the file again") from error
    if not layers:
        raise UserError(f"weights {path} have no layer with numbers: give a .caffemodel")
    return layers


def _layer(data: memoryview, name_field: int, blobs_field: int) -> tuple[str, list[NDArray[np.float32]]]:
    name, blobs = "", []
    for field, value in _fields(data):
        if isinstance(value, memoryview) and field == name_field:
            name = bytes(value).decode()
        elif isinstance(value, memoryview) and field == blobs_field:
            blobs.append(_blob(value))
        if len(blobs) > MOST_BLOBS:
            raise ValueError("a layer has too many blobs")
    return name, blobs


def _blob(data: memoryview) -> NDArray[np.float32]:
    flat, sides, legacy = np.empty(0, np.float32), list[int](), dict[int, int]()
    for field, value in _fields(data):
        if field in (DATA, DOUBLE_DATA):
            if len(flat) or not isinstance(value, memoryview):
                raise ValueError("numbers of a blob are not in one piece")
            flat = np.frombuffer(value, "<f4" if field == DATA else "<f8").astype(np.float32)
        elif field == SHAPE and isinstance(value, memoryview):
            sides += islice(_shape(value), MOST_SIDES)
        elif field in LEGACY_SIDES and isinstance(value, int):
            legacy[field] = value
    shape = sides or [legacy.get(field, 1) for field in LEGACY_SIDES if legacy] or [len(flat)]
    if math.prod(shape) != len(flat):
        raise ValueError(f"a blob of {len(flat):,} numbers says that it has other sides")
    return flat.reshape(shape)


def _shape(data: memoryview) -> Iterator[int]:
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            yield value
        elif field == 1 and isinstance(value, memoryview):  # packed
            place = 0
            while place < len(value):
                side, place = _varint(value, place)
                yield side


def _fields(data: memoryview) -> Iterator[Field]:
    """Each field of a message; groups, which Caffe never has, are refused."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == BYTES:
            length, place = _varint(data, place)
        elif kind in (FIXED_32, FIXED_64):
            length = 4 if kind == FIXED_32 else 8
        else:
            raise ValueError("it is in another format")
        if length > len(data) - place:
            raise ValueError("it ends too early")
        yield number, data[place : place + length]
        place += length


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = 0
    for position, byte in enumerate(data[place : place + 10]):
        value |= (byte & 127) << 7 * position
        if byte < 128:
            return value, place + position + 1
    raise ValueError("a number in it does not end")
