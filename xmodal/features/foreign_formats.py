"""Reads features in other formats: SCAN's `*_ims.npy`, HDF5, one file an item, webdataset tar, any Zarr v3 array.

`open_foreign` returns plain data for workers, each of which reads its rows. Files may come from anybody: nothing is
unpickled, no length is believed before it was compared with the file's, nothing may lead to another file.
"""

import math
import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError, few
from xmodal.features.feature_spec import Dtype, FeatureSpec
from xmodal.raw.archives import LARGEST
from xmodal.raw.array_files import (
    HDF5,
    Head,
    hdf5_dataset,
    hdf5_texts_of,
    npy_header,
    open_hdf5,
    open_zarr,
    reading,
)

COPIES = 5  # rows of each picture in SCAN's files, one a caption
BLOCK = 8 * 2**20
IDS = ("ids", "image_ids")


def open_foreign(path: Path, ids: Path | None = None, key: str | None = None) -> "ForeignFeatures":
    """Looks at files of features; `ids` is a file of one id a line, `key` names one of several arrays."""
    kind = _kind(path)
    look = _look_at_array if kind in ("npy", "zarr", "h5") else _look_at_items
    source: ForeignFeatures = look(path, kind, ids, key)
    refuse_twice(source.ids, path)
    return source


def _kind(path: Path) -> str:
    if not path.exists():
        raise UserError(f"there is no {path}")
    kinds = {".npy": "npy", ".tar": "tar"} | dict.fromkeys(HDF5, "h5")
    if path.is_file() and path.suffix in kinds:
        return kinds[path.suffix]
    if (path / "zarr.json").is_file():
        return "zarr"
    known = {".npz": "npz", ".npy": "npy an item", ".tar": "tar"}
    within = sorted(known.keys() & {file.suffix for file in files_in(path)}) if path.is_dir() else []
    if len(within) == 1:
        return known[within[0]]
    found = f"{', '.join(within)} together" if within else "nothing of these"
    raise UserError(f"{path} is {found}: give x.npy, x.h5, x.tar, a Zarr v3 array, or a folder of .npz, .npy or .tar")


def files_in(folder: Path) -> list[Path]:
    """Files in a folder and in those below it, in order; none that are hidden."""
    found = (file for file in folder.rglob("*") if file.is_file())
    return sorted(file for file in found if not any(part[0] == "." for part in file.relative_to(folder).parts))


def id_of(file: Path, folder: Path, ending: str) -> str:
    """The id that a file of a folder is named by, as a/b.npz of "a/b"."""
    return file.relative_to(folder).as_posix().removesuffix(ending)


def stored_as(dtype: np.dtype[Any]) -> Dtype:
    name = "float32" if dtype.name == "float64" else dtype.name
    if name not in get_args(Dtype):
        raise ValueError(f"a feature is one of {', '.join(get_args(Dtype))}, or float64 made float32; not {dtype}")
    return cast(Dtype, name)


def _stored(values: NDArray[Any], ids: Sequence[str], path: str) -> NDArray[Any]:
    """Converts rows of several items, or all rows of one, to a dtype of the store."""
    with np.errstate(over="ignore"):
        found = np.asarray(values, stored_as(values.dtype), order="C")
    if found.dtype.kind == "f" and not (finite := np.isfinite(found)).all():
        place = 0 if len(ids) == 1 else int(np.argwhere(~finite)[0][0])
        raise UserError(f"{path}: the features of {ids[place]!r} are NaN or infinite, or too large for {found.dtype}")
    return found


def refuse_twice(ids: Sequence[str], where: object) -> None:
    if "" in ids:
        raise UserError(f"{where}: an id is empty")
    if twice := next((id for id, count in Counter(ids).items() if count > 1), None):
        raise UserError(f"{where}: id {twice!r} is there twice")


@dataclass(frozen=True)
class ForeignArray:
    """One array of all items: a row each, or `copies` equal rows; ragged if `offsets` says whose the rows are."""

    path: str
    kind: str
    key: str | None
    ids: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str  # of the file
    offsets: tuple[int, ...] | None = None

    @property
    def copies(self) -> int:
        return self.shape[0] // len(self.ids) if self.offsets is None else 1

    @property
    def files(self) -> tuple[str, ...]:
        if self.kind != "zarr":
            return (self.path,)
        return tuple(sorted(str(file) for file in Path(self.path).rglob("*") if file.is_file()))

    def spec(self, name: str) -> FeatureSpec:
        return FeatureSpec(name, self.shape[1:], stored_as(np.dtype(self.dtype)), self.offsets is not None)

    def rows(self, items: range) -> Iterator[NDArray[Any]]:
        """Yields blocks of rows; of a ragged array each item's rows."""
        with reading(self.path), _open_array(self.path, self.kind, self.key) as array:
            if (array.shape, str(array.dtype)) != (self.shape, self.dtype):
                raise ValueError("it has changed meanwhile")
            if self.offsets is not None:
                for item in items:
                    rows = array[slice(*self.offsets[item : item + 2])]
                    yield _stored(rows, self.ids[item : item + 1], self.path)
                return
            length = max(1, BLOCK // (self.copies * math.prod(array.shape[1:]) * array.dtype.itemsize))
            for start in range(items.start, items.stop, length):
                ids = self.ids[start : min(start + length, items.stop)]
                rows = array[start * self.copies : (start + len(ids)) * self.copies]
                stored = _stored(rows, np.repeat(ids, self.copies).tolist(), self.path)
                copies = stored.reshape(len(ids), self.copies, *stored.shape[1:])
                differs = (copies != copies[:, :1]).reshape(len(ids), -1).any(axis=1)
                if differs.any():
                    whose = f"the {self.copies} rows of {ids[int(differs.argmax())]!r}"
                    raise UserError(f"{self.path}: {whose} are not the same: give an id for every row")
                yield copies[:, 0]


def _look_at_array(path: Path, kind: str, ids: Path | None, key: str | None) -> ForeignArray:
    if key is not None and kind != "h5":
        raise UserError(f"{path} is one array: leave out --key")
    offsets = None
    with reading(path):
        if kind == "h5":
            key, names, offsets = _look_into_hdf5(path, ids, key)
        else:
            names = read_ids(ids or ids_beside(path))
        with _open_array(str(path), kind, key) as array:
            shape, dtype = array.shape, array.dtype
        stored_as(dtype)
    if not shape or not names or not shape[0]:
        raise UserError(f"{path} has no rows" if names else f"{path} has no ids")
    if offsets is None and shape[0] not in (len(names), COPIES * len(names)):
        raise UserError(f"{path} has {shape[0]:,} rows, but there are {len(names):,} ids")
    return ForeignArray(str(path.absolute()), kind, key, names, shape, str(dtype), offsets)


@contextmanager
def _open_array(path: str, kind: str, key: str | None) -> Iterator[Any]:
    """Opens what has a shape, a dtype and slices of rows."""
    if kind == "h5":
        with open_hdf5(path) as file:
            yield hdf5_dataset(file, str(key))
    elif kind == "zarr":
        yield open_zarr(path)
    else:
        with open(path, "rb") as npy_file:
            shape, dtype, order = npy_header(npy_file, os.path.getsize(path))
            begin = npy_file.tell()
        yield np.memmap(path, dtype, "r", begin, shape, order) if 0 not in shape else np.empty(shape, dtype)


def read_ids(path: Path) -> tuple[str, ...]:
    with reading(path):
        lines = path.read_text("utf-8-sig").split("\n")
    return tuple(line.strip() for line in (lines if lines[-1] else lines[:-1]))


def ids_beside(path: Path) -> Path:
    names = (f"{path.stem}_ids.txt", f"{path.stem.removesuffix('_ims')}_ids.txt", "ids.txt")  # the second is SCAN's
    for place in map(path.with_name, names):
        if place.is_file():
            return place
    raise UserError(f"{path} holds no ids: give a file with one a line by --ids, or as {path.stem}_ids.txt beside it")


def _look_into_hdf5(
    path: Path, ids: Path | None, key: str | None
) -> tuple[str, tuple[str, ...], tuple[int, ...] | None]:
    """Returns the features' name, their ids, and where each item's rows begin, if the file says it."""
    found = dict[str, Head]()

    def see(name: str, node: Any) -> None:
        if getattr(node, "shape", None) is not None and name not in (*IDS, "offsets"):
            found[name] = node.shape, node.dtype

    with open_hdf5(path) as file:
        if key is None or key not in file:
            file.visititems(see)
            key = _choose(found, key)
        names = read_ids(ids) if ids else _ids_within(file)
        shape = hdf5_dataset(file, key).shape
        given = np.asarray(hdf5_dataset(file, "offsets")[()]) if "offsets" in file else np.empty(0)
    if not shape or given.shape != (len(names) + 1,) or given.dtype.kind not in "iu":
        return key, names, None
    offsets = given.astype(np.int64)
    fits = offsets[0] == 0 and offsets[-1] == shape[0] and (np.diff(offsets) >= 0).all()
    if not fits and shape[0] not in (len(names), COPIES * len(names)):
        ends = f"they begin with {offsets[0]:,} and end with {offsets[-1]:,}"
        raise ValueError(f"its offsets must rise from 0 to the {shape[0]:,} rows of {key}: {ends}")
    return key, names, tuple(offsets.tolist()) if fits else None


def _choose(arrays: Mapping[str, Head], key: str | None) -> str:
    names = [name for name in arrays if key in (None, name)]
    if key is None and len(names) > 1:
        names = [name for name in names if arrays[name][1].kind in "fiu" and len(arrays[name][0]) >= 2]
    if len(names) == 1:
        return names[0]
    if not arrays:
        raise ValueError("there is no array in it")
    what = "has several arrays, so say which by --key" if key is None else f"has no array {key!r}"
    raise ValueError(f"it {what}; there are: {few(sorted(arrays), 8)}")


def _ids_within(file: Any) -> tuple[str, ...]:
    name = next((name for name in IDS if name in file), None)
    if name is None:
        raise ValueError(f"it has no dataset {' or '.join(IDS)}: give a file with one id a line by --ids")
    return hdf5_texts_of(file, name)


@dataclass(frozen=True)
class ItemFile:
    """The bytes of a file that are an item's .npy or .npz."""

    id: str
    path: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.id})"


@dataclass(frozen=True)
class ForeignItems:
    """An array of its own for every item; ragged if their first dimensions differ."""

    pieces: tuple[ItemFile, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    key: str | None
    copies: int = 1

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(piece.id for piece in self.pieces)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(piece.path for piece in self.pieces))

    def spec(self, name: str) -> FeatureSpec:
        shape = self.shapes[0][1:] if self._ragged else self.shapes[0]
        return FeatureSpec(name, shape, stored_as(np.dtype(self.dtype)), self._ragged)

    @property
    def _ragged(self) -> bool:
        return len(set(self.shapes)) > 1

    def rows(self, items: range) -> Iterator[NDArray[Any]]:
        ragged = self._ragged
        for item in items:
            piece = self.pieces[item]
            with reading(piece), _opened(piece, self.key) as (file, size):
                shape, dtype, order = npy_header(file, size)
                if (shape, str(dtype)) != (self.shapes[item], self.dtype):
                    raise ValueError("it has changed meanwhile")
                values = np.frombuffer(file.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape, order=order)
            found = _stored(values, [piece.id], piece.path)
            yield found if ragged else found[None]


def _look_at_items(path: Path, kind: str, ids: Path | None, key: str | None) -> ForeignItems:
    if ids is not None:
        raise UserError(f"{path}: its files are named by the ids: leave out --ids")
    ending = f".{key}.npy" if key else ".npy"
    if kind == "npz":
        ending = ".npz"
    with reading(path):
        files = files_in(path) if path.is_dir() else [path]
        if kind == "tar":
            members = [member for file in files for member in _members(file, key)]
            if len(names := sorted({name for name, _ in members})) > 1:
                there = ", ".join(names[:8])
                raise ValueError(f"it has several arrays a sample, so say which by --key; there are: {there}")
            pieces = tuple(piece for _, piece in members)
        else:
            named = {id_of(file, path, ending): file for file in files if file.name.endswith(ending)}
            pieces = tuple(ItemFile(id, str(file.absolute()), 0, file.stat().st_size) for id, file in named.items())
    if not pieces:
        raise UserError(f"{path} holds no {ending}")
    if kind == "npz":
        with reading(pieces[0]):
            with zipfile.ZipFile(pieces[0].path) as archive:
                names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            key = _choose({name: _head(pieces[0], name) for name in names}, key)
    heads = list[Head]()
    for piece in pieces:
        with reading(piece):
            heads.append(_head(piece, key))
            stored_as(heads[-1][1])
        (first, first_dtype), (shape, dtype) = heads[0], heads[-1]
        if dtype != first_dtype or len(shape) != len(first) or shape[1:] != first[1:]:
            raise UserError(f"{piece} is {shape} {dtype}, unlike {pieces[0]}, which is {first} {first_dtype}")
    return ForeignItems(pieces, tuple(shape for shape, _ in heads), str(heads[0][1]), key)


def _head(piece: ItemFile, key: str | None) -> Head:
    with _opened(piece, key) as (file, size):
        return npy_header(file, size)[:2]


def _members(path: Path, key: str | None) -> Iterator[tuple[str, ItemFile]]:
    """Yields a tar's arrays by name: 7.clip.npy is `clip` of 7, and 7.npy its `npy`, as in webdataset."""
    if path.suffix != ".tar":
        return
    with tarfile.open(path, "r:") as archive, reading(path):
        for member in archive:
            place = member.name.removeprefix("./")
            folder, _, file = place.rpartition("/")
            id, _, extension = file.partition(".")
            name = extension.removesuffix(".npy")
            if not file.endswith(".npy") or key not in (None, name):
                continue
            if place.startswith("/") or ".." in place.split("/") or not member.isreg() or member.issparse():
                raise ValueError(f"member {member.name!r} leads elsewhere, or is no plain file")
            yield name, ItemFile(os.path.join(folder, id), str(path.absolute()), member.offset_data, member.size)
        end = archive.offset
    with open(path, "rb") as data:
        data.seek(end)
        if data.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise UserError(f"{path} cannot be read: it is damaged or cut off after {end:,} bytes")


@contextmanager
def _opened(piece: ItemFile, key: str | None) -> Iterator[tuple[BinaryIO, int]]:
    """Opens an item's .npy and tells its length, which is limited: an archive may be a bomb."""
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(piece.path, "rb"))
        file.seek(piece.start)
        size = piece.size
        if piece.path.endswith(".npz"):
            archive = stack.enter_context(zipfile.ZipFile(file))
            size = archive.getinfo(f"{key}.npy").file_size
            file = stack.enter_context(archive.open(f"{key}.npy"))
        if size > LARGEST:
            raise ValueError(f"it is {size:,} bytes long, more than an item has")
        yield file, size


ForeignFeatures: TypeAlias = ForeignArray | ForeignItems
