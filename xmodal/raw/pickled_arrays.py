"""Arrays in pickles (.pkl), as detectron2's model files are, read without running anything that is in them."""

import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError

NUMBERS = re.compile(r"[<|=]?[fiub][1248]")  # names of dtypes of plain numbers
DAMAGED = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
    *(OverflowError, MemoryError, RecursionError),
)


def read_pickled_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a pickled mapping, or of its part "model", by their names; other values are left out."""
    try:
        with path.open("rb") as file:
            found = _ArraysOnly(file, encoding="latin1").load()  # latin1: bytes as Python 2 wrote them
        # a pickle can give an OrderedDict any attribute, so that its own methods are not to be trusted
        model = dict.get(found, "model", found) if isinstance(found, dict) else None
        if isinstance(model, dict):
            return {str(name): value.values for name, value in dict.items(model) if isinstance(value, _Array)}
    except OSError as error:
        raise UserError(f"weights {path} cannot be read: {error.strerror}") from error
    except DAMAGED as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(
            f"weights {path} are refused, as no pickle of arrays alone: {line or 'it ends early'}"
        ) from error
    raise UserError(f"weights {path} are no mapping of names to arrays: give a model's file")


class _Dtype:
    """Stands for numpy.dtype, which would believe any state that a pickle gives it."""

    def __init__(self, name: str, *flags: object) -> None:
        if not NUMBERS.fullmatch(name):
            raise pickle.UnpicklingError(f"it has an array of {name[:20]!r}, not of numbers")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands for numpy.ndarray, and for the function that makes an empty one to be filled."""

    def __init__(self, *kind: object) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, is_fortran, data = state
        self.fill(data, kind, shape, "F" if is_fortran else "C")

    def fill(self, data: bytes | str, kind: _Dtype, shape: tuple[int, ...], order: Any) -> None:
        numbers = data.encode("latin1") if isinstance(data, str) else data
        self.values = np.frombuffer(numbers, kind.dtype).reshape(shape, order=order)


class _FilledArray(_Array):
    """Stands for the function that makes an array of bytes, from pickle's protocol 5 on."""

    def __init__(self, data: bytes, kind: _Dtype, shape: tuple[int, ...], order: str) -> None:
        self.fill(data, kind, shape, order)


# Classes only: a pickle could change the defaults of a function that it is given.
ALLOWED: dict[tuple[str, str], type] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _Array for core in ("core", "_core")},  # before and since numpy 2
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FilledArray for core in ("core", "_core")},
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_object_array(file: BinaryIO) -> list[Any]:
    """The objects of a pickled numpy array of objects: plain values, arrays, and dicts of these."""
    try:
        array = _WithObjects(file).load()
        if not isinstance(array, _ObjectArray) or not isinstance(array.objects, list):
            raise pickle.UnpicklingError("it is no array of objects")
        return [
            {str(name): _plain(value) for name, value in dict.items(each)} if isinstance(each, dict) else _plain(each)
            for each in array.objects
        ]
    except DAMAGED as error:
        line = " ".join(str(error).split())[:200]
        raise ValueError(f"it holds other objects than arrays, which are never read ({line})") from error


def _plain(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value


class _ObjectDtype(_Dtype):
    """Stands for numpy.dtype, also of objects."""

    def __init__(self, name: str, *flags: object) -> None:
        if name == "O8":
            self.dtype = np.dtype(object)
        else:
            super().__init__(name, *flags)


class _ObjectArray(_Array):
    objects: list[Any] | None = None

    def fill(self, data: Any, kind: _Dtype, shape: tuple[int, ...], order: Any) -> None:
        if kind.dtype.hasobject:
            self.objects = data
        else:
            super().fill(data, kind, shape, order)


class _Scalar(_Array):
    """Stands for the function that makes a single number."""

    def __init__(self, kind: _Dtype, data: bytes) -> None:
        self.fill(data, kind, (), "C")


class _WithObjects(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if name == "scalar" and module.endswith(".multiarray"):
            return _Scalar
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return {_Array: _ObjectArray, _Dtype: _ObjectDtype}.get(ALLOWED[module, name], ALLOWED[module, name])
