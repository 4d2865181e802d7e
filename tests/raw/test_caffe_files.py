from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.detectors.bottom_up_checkpoints import block, caffemodel, varint
from xmodal.errors import UserError
from xmodal.raw.caffe_files import read_caffemodel

LAYERS = {
    "conv1": [np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), np.array([0.5, -1], np.float32)],
    "fc6": [np.arange(6, dtype=np.float32).reshape(2, 3)],
}


def read(data: bytes, folder: Path) -> dict[str, list[NDArray[np.float32]]]:
    file = folder / "some.caffemodel"
    file.write_bytes(data)
    return read_caffemodel(file)


@pytest.mark.parametrize("double", [False, True])
def test_layers_with_their_blobs(double: bool, tmp_path: Path) -> None:
    found = read(caffemodel({**LAYERS, "relu": []}, double=double), tmp_path)
    assert found.keys() == LAYERS.keys()
    for name, blobs in LAYERS.items():
        assert [blob.tolist() for blob in found[name]] == [blob.tolist() for blob in blobs]


def test_blobs_of_old_files_have_four_sides(tmp_path: Path) -> None:
    found = read(caffemodel(LAYERS, is_old=True), tmp_path)
    assert [blob.shape for blob in found["conv1"]] == [(2, 3, 2, 2), (1, 1, 1, 2)]
    assert found["fc6"][0].tolist() == [[[[0, 1, 2], [3, 4, 5]]]]


def test_a_shape_may_be_packed_or_not_and_other_fields_are_passed_over(tmp_path: Path) -> None:
    side_by_side = varint(1 << 3) + varint(2) + varint(1 << 3) + varint(1)
    data = np.array([7, 8], "<f4").tobytes()
    blob = block(7, side_by_side) + block(5, data) + block(6, data) + varint(99 << 3) + varint(2**63)
    layer = block(1, b"some") + block(7, blob) + varint(20 << 3 | 1) + bytes(8)
    assert read(block(100, layer), tmp_path)["some"][0].tolist() == [[7], [8]]


def test_every_truncation_is_refused_or_has_fewer_layers(tmp_path: Path) -> None:
    data = caffemodel(LAYERS)
    ends = {len(caffemodel({"conv1": LAYERS["conv1"]})), len(data)}
    for length in range(len(data)):
        if length not in ends:
            with pytest.raises(UserError, match=r"some\.caffemodel"):
                read(data[:length], tmp_path)


def one_blob(blob: bytes) -> bytes:
    return block(100, block(1, b"some") + block(7, blob))


NUMBERS = block(5, np.arange(4, dtype="<f4").tobytes())


@pytest.mark.parametrize(
    "data",
    [
        varint(100 << 3 | 2) + varint(2**62),  # a layer longer than any file
        b"\xff" * 40,  # a number without end
        varint(100 << 3 | 3),  # a group
        one_blob(NUMBERS + block(7, block(1, varint(2**40)))),  # more numbers than there are
        one_blob(NUMBERS + block(7, block(1, varint(2) * 1000))),
        one_blob(block(7, block(1, varint(0) + varint(2**63) + varint(2**63)))),
        one_blob(block(5, b"123")),  # three quarters of a number
        one_blob(NUMBERS + NUMBERS),
        one_blob((varint(5 << 3 | 5) + bytes(4)) * 2),  # numbers one by one
        one_blob(varint(5 << 3) + varint(1)),
        block(100, block(1, b"\xff\xfe") + block(7, NUMBERS)),  # a name that is no text
        block(100, block(1, b"some") + block(7, b"") * 1000),
        one_blob(NUMBERS) * 2,
        block(1, b"a network without layers"),
        b"<html>no such file</html>",
    ],
)
def test_hostile_files_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"some\.caffemodel"):
        read(data, tmp_path)


def test_files_that_are_empty_or_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(b"", tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_caffemodel(tmp_path / "none")
