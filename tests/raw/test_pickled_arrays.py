import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmodal.errors import UserError
from xmodal.raw.pickled_arrays import read_pickled_arrays


def read(data: bytes, folder: Path) -> dict[str, Any]:
    file = folder / "model.pkl"
    file.write_bytes(data)
    return read_pickled_arrays(file)


ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "turned": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    "big": np.arange(3, dtype=">f4"),
    "whole": np.arange(3, dtype=np.int64),
    "empty": np.zeros((0, 4), np.float16),
}


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("is_wrapped", [True, False])
def test_arrays_of_any_type_and_order_come_back(protocol: int, is_wrapped: bool, tmp_path: Path) -> None:
    told = {"model": OrderedDict(ARRAYS), "__author__": "someone", "matching_heuristics": True}
    found = read(pickle.dumps(told if is_wrapped else ARRAYS, protocol), tmp_path)
    assert found.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Its arrays' bytes are strings, and its numpy has the old name."""
    data = np.array([1.5, 200], np.float32).tobytes()
    pickled = (
        b"\x80\x02}U\x01acnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01K\x02\x85"
        b"cnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U"
        + bytes([len(data)])
        + data
        + b"tbs."
    )
    assert read(pickled, tmp_path)["a"].tolist() == [1.5, 200]


class Calls:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Calls(os.mkdir, "made"),
        Calls(eval, "__import__('os').mkdir('made')"),
        Calls(np.load, "made"),
        Calls(getattr, "text", "upper"),
        np.array([{"objects": 1}], object),
        np.zeros(2, [("a", "f4"), ("b", "O")]),
        np.array(["text"]),
        np.float32(1),
    ],
)
def test_all_but_arrays_of_numbers_is_refused_before_it_runs(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        with pytest.raises(UserError, match="refused"):
            read(pickle.dumps({"model": {}, "other": value}, protocol), tmp_path)
    assert not Path("made").exists()


def built(what: bytes, state: bytes) -> bytes:
    """A pickle that sets the state of an allowed class."""
    return b"\x80\x04c" + what + b"\n" + state + b"b."


@pytest.mark.parametrize("what", [b"numpy\nndarray", b"numpy\ndtype", b"collections\nOrderedDict"])
@pytest.mark.parametrize("state", [b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x08\x00\x00\x00__init__K\x01s\x86"])
def test_a_pickle_cannot_change_what_reads_it(what: bytes, state: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="refused"):
        read(built(what, state), tmp_path)
    assert read(pickle.dumps(ARRAYS), tmp_path).keys() == ARRAYS.keys()


ORDERED = b"ccollections\nOrderedDict\n)R"


@pytest.mark.parametrize("name", [b"items", b"get", b"keys", b"__class__"])
def test_attributes_that_a_pickle_gives_a_mapping_change_nothing(name: bytes, tmp_path: Path) -> None:
    changed = ORDERED + b"}X" + len(name).to_bytes(4, "little") + name + b"K\x01sb"
    assert read(b"\x80\x02" + changed + b".", tmp_path) == {}
    assert read(b"\x80\x02}X\x05\x00\x00\x00model" + changed + b"s.", tmp_path) == {}


def test_an_array_that_was_never_filled_is_refused(tmp_path: Path) -> None:
    """Made by `__new__` alone, without `__init__`."""
    with pytest.raises(UserError, match="refused"):
        read(b"\x80\x02}X\x01\x00\x00\x00acnumpy\nndarray\n)\x81s.", tmp_path)


def array(dtype: bytes, shape: bytes, data: bytes, flags: bytes = b"K\x00") -> bytes:
    return (
        b"\x80\x03}X\x01\x00\x00\x00acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\nX" + len(dtype).to_bytes(4, "little") + dtype + b"K\x00K\x01\x87R"
        b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + flags + b"tb\x89" + data + b"tbs."
    )


def test_sides_that_disagree_with_the_bytes_are_refused(tmp_path: Path) -> None:
    eight = b"C\x08" + bytes(8)
    assert read(array(b"f4", b"K\x02\x85", eight), tmp_path)["a"].tolist() == [0, 0]
    for dtype, shape in (
        (b"f4", b"K\x03\x85"),
        (b"f4", b"J\xff\xff\xff\x7f\x85"),
        (b"O", b"K\x01\x85"),
        (b"f9", b"K\x01\x85"),
    ):
        with pytest.raises(UserError, match="refused"):
            read(array(dtype, shape, eight), tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"\x80", b"\x80\x04.", b"\x80\x04K\x01.", b"\x80\x04]" + b"(" * 99 + b"l.", b"\x80\x09N."]
)
def test_damaged_pickles_are_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.pkl"):
        read(data, tmp_path)


def test_a_pickle_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    for value in ([1], {"model": [1]}, 7):
        with pytest.raises(UserError, match="no mapping"):
            read(pickle.dumps(value), tmp_path)


def test_a_pickle_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_pickled_arrays(tmp_path / "none.pkl")
