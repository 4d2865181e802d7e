"""Features from and to what people have: SCAN's `*_ims.npy`, HDF5, a file an item, webdataset tar, any Zarr v3 array.

A source is looked at once and is plain data after that, so that it can be sent to workers, which read their rows of it.
It may come from anybody: nothing is unpickled, nothing is as long as it says of itself before that was compared with
its file, nothing leads to another file, and all damage is a UserError that names what is damaged.
"""

import json
import math
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Literal, Protocol, cast, get_args

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.features.store import Dtype, FeatureSpec
from xmodal.features.zarr_arrays import Rows, ScatteredRows, open_array
from xmodal.raw.archives import DAMAGE, LARGEST

COPIES = 5  # of each picture in SCAN's files, and its captions of each
BLOCK = 8 * 2**20
HDF5 = (".h5", ".hdf5")
IDS = ("ids", "image_ids")
Arrays = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
Header = tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"]]


class Source(Protocol):
    """Features of somebody else's. `files` are all that decides the values; `dtype` is theirs, not that of `spec`."""

    @property
    def ids(self) -> tuple[str, ...]: ...
    @property
    def files(self) -> tuple[str, ...]: ...
    @property
    def key(self) -> str | None: ...
    @property
    def dtype(self) -> str: ...
    @property
    def copies(self) -> int: ...
    def spec(self, name: str) -> FeatureSpec: ...
    def rows(self, items: range) -> Iterator[NDArray[Any]]:
        """As `write_shard` and `write_ragged_shard` take them; what is not finite is a UserError that names its id."""


def open_source(path: Path, ids: Path | None = None, key: str | None = None) -> Source:
    """`ids` is a file with one a line, where the source does not hold them; `key` names one of several arrays."""
    kind = _kind(path)
    if kind in ("npy", "zarr", "h5"):
        source: Source = _look_at_array(path, kind, ids, key)
    else:
        if ids is not None:
            raise UserError(f"{path}: its files are named by the ids: leave out --ids")
        source = _look_at_items(path, kind, key)
    if not source.ids:
        raise UserError(f"{path} is empty")
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
    within = (
        {file.suffix for file in path.iterdir() if file.name[0] != "."} & {".npz", ".npy", ".tar"}
        if path.is_dir()
        else set()
    )
    if len(within) != 1:
        found = f"{', '.join(sorted(within))} together" if within else "nothing of these"
        raise UserError(
            f"{path} is {found}: give x.npy, x.h5, x.tar, a Zarr v3 array, or a folder of .npz, .npy or .tar"
        )
    (suffix,) = within
    return {".npz": "npz", ".npy": "npy an item", ".tar": "tar"}[suffix]


@contextmanager
def reading(path: object) -> Iterator[None]:
    """What damaged, strange or hostile bytes raise when they are read, as one line that names them."""
    try:
        yield
    except (*DAMAGE, tarfile.TarError, LookupError, OverflowError, ModuleNotFoundError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read: {told}") from error


def _stored_as(dtype: np.dtype[Any]) -> Dtype:
    name: Any = "float32" if dtype.name == "float64" else dtype.name
    if name not in get_args(Dtype):
        raise ValueError(f"a feature is one of {', '.join(get_args(Dtype))}, or float64 made float32; not {dtype}")
    return cast(Dtype, name)


def _stored(values: NDArray[Any], ids: Sequence[str], path: str) -> NDArray[Any]:
    """As the store has them: rows of several items, or whatever one item has."""
    with np.errstate(over="ignore"):
        found = np.asarray(values, _stored_as(values.dtype), order="C")
    if found.dtype.kind == "f" and not (finite := np.isfinite(found)).all():
        place = 0 if len(ids) == 1 else int(np.argwhere(~finite)[0][0])
        raise UserError(f"{path}: the features of {ids[place]!r} are NaN or infinite, or too large for {found.dtype}")
    return found


def refuse_twice(ids: Sequence[str], where: object) -> None:
    seen = set[str]()
    for id in ids:
        if id in seen or not id:
            raise UserError(f"{where}: {f'id {id!r} is there twice' if id else 'an id is empty'}")
        seen.add(id)


# ----------------------------------------------------------------------------------------------- one array of all items


@dataclass(frozen=True)
class ArraySource:
    """A row an item, or `copies` of it one after the other; ragged where offsets say whose the rows are."""

    path: str
    kind: str
    key: str | None
    ids: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    offsets: tuple[int, ...] | None = None

    @property
    def copies(self) -> int:
        return self.shape[0] // len(self.ids) if self.offsets is None else 1

    @property
    def files(self) -> tuple[str, ...]:
        folder = Path(self.path)
        if self.kind != "zarr":
            return (self.path,)
        return tuple(sorted(str(file) for file in folder.rglob("*") if file.is_file()))

    def spec(self, name: str) -> FeatureSpec:
        return FeatureSpec(name, self.shape[1:], _stored_as(np.dtype(self.dtype)), self.offsets is not None)

    def rows(self, items: range) -> Iterator[NDArray[Any]]:
        with reading(self.path), _array(self.path, self.kind, self.key) as array:
            if (array.shape, str(array.dtype)) != (self.shape, self.dtype):
                raise ValueError("it has changed meanwhile")
            if self.offsets is not None:
                for item in items:
                    rows = array.rows(*self.offsets[item : item + 2])
                    yield _stored(rows, self.ids[item : item + 1], self.path)
                return
            length = max(1, BLOCK // (self.copies * math.prod(self.shape[1:]) * array.dtype.itemsize))
            for start in range(items.start, items.stop, length):
                stop = min(start + length, items.stop)
                rows = array.rows(start * self.copies, stop * self.copies)
                yield self._one_of_each(_stored(rows, self._ids_of_rows(start, stop), self.path), start)

    def _ids_of_rows(self, start: int, stop: int) -> list[str]:
        return [id for id in self.ids[start:stop] for _ in range(self.copies)]

    def _one_of_each(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        if self.copies == 1:
            return rows
        copies = rows.reshape(-1, self.copies, *rows.shape[1:])
        differs = (copies != copies[:, :1]).reshape(len(copies), -1).any(axis=1)
        if differs.any():
            id = self.ids[first + int(differs.argmax())]
            raise UserError(f"{self.path}: the {self.copies} rows of {id!r} are not the same: give an id for every row")
        return copies[:, 0]


def _look_at_array(path: Path, kind: str, ids: Path | None, key: str | None) -> ArraySource:
    if key is not None and kind != "h5":
        raise UserError(f"{path} is one array: leave out --key")
    with reading(path):
        key = _choose_dataset(path, key) if kind == "h5" else None
        names = _ids_within(path) if kind == "h5" and ids is None else read_ids(ids or _ids_beside(path))
        with _array(str(path), kind, key) as array:
            shape, dtype = array.shape, array.dtype
        _stored_as(dtype)
        offsets = _offsets_within(path, len(names), shape[0]) if kind == "h5" and shape else None
    if not shape or not names or not shape[0]:
        raise UserError(f"{path} has no rows" if names else f"{path} has no ids")
    if offsets is None and shape[0] not in (len(names), COPIES * len(names)):
        raise UserError(f"{path} has {shape[0]:,} rows, but there are {len(names):,} ids")
    return ArraySource(str(path.absolute()), kind, key, names, shape, str(dtype), offsets)


@dataclass(frozen=True)
class _Array:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[int, int], NDArray[Any]]


@contextmanager
def _array(path: str, kind: str, key: str | None) -> Iterator[_Array]:
    """Of the file, while it is open; nothing is read before it is asked for."""
    if kind == "h5":
        with open_hdf5(path) as file:
            found = _dataset(file, str(key))
            yield _Array(found.shape, found.dtype, lambda start, stop: found[start:stop])
    elif kind == "zarr":
        _refuse_lost_shards(path)
        array = open_array(path)
        if isinstance(array, ScatteredRows) and (lacking := array.lacking()):
            raise UserError(f"{lacking} was never written as a whole: what it lacks would be read as zeros")
        yield _Array(array.shape, array.dtype, lambda start, stop: _taken(array, np.arange(start, stop)))
    else:
        with open(path, "rb") as npy_file:
            shape, dtype, order = _header(npy_file, os.path.getsize(path))
            begin = npy_file.tell()
        mapped = np.memmap(path, dtype, "r", begin, shape, order) if 0 not in shape else np.empty(shape, dtype)
        yield _Array(shape, dtype, lambda start, stop: mapped[start:stop])


def _refuse_lost_shards(path: str) -> None:
    """What is not there reads as zeros: right for others' arrays, unless somebody lost the files.

    What a compressed shard lacks is not looked at.
    """
    try:
        with open(f"{path}/zarr.json", "rb") as file:
            about = json.load(file)
        is_ours = "checksums" in about.get("attributes", {})
        grid, keys = about["chunk_grid"]["configuration"]["chunk_shape"], about["chunk_key_encoding"]
        prefix, usual = ("c", "/") if keys["name"] == "default" else ("", ".")
        separator = keys.get("configuration", {}).get("separator", usual)
        counts = [range(-(-length // chunk)) for length, chunk in zip(about["shape"], grid, strict=True)]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}/zarr.json describes no array ({error!r})") from error
    if is_ours:
        raise UserError(
            f"{path} is of a store of xmodal: `xmodal export` knows which of its items are absent, this does not"
        )
    names = (separator.join(filter(None, (prefix, *map(str, place)))) for place in product(*counts))
    if lost := next((name for name in names if not Path(path, name).is_file()), None):
        raise UserError(f"{path} has no file {lost}: what is not there would be read as zeros")


def _taken(array: Rows, rows: NDArray[np.int64]) -> NDArray[Any]:
    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    array.take(rows, out)
    return out


def _header(file: BinaryIO, size: int) -> Header:
    """Of the .npy that begins here and is so many bytes long; leaves the file where the values begin."""
    begin, version = file.tell(), npy.read_magic(file)
    if version != (1, 0):  # all but arrays of many named fields
        raise ValueError(f"it is .npy of version {version}, no plain array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numpy's, of headers by Python 2, which SCAN's files have
        try:
            shape, fortran, dtype = npy.read_array_header_1_0(file)
        except (TokenError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError("it has no readable header") from error
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which may do anything when they are read")
    whole = file.tell() - begin + math.prod(shape) * dtype.itemsize
    if size != whole or min(shape, default=0) < 0:
        raise ValueError(
            f"it is {size:,} bytes long, not the {whole:,} of {shape} {dtype}: it was cut off, or is more than an array"
        )
    return shape, dtype, "F" if fortran else "C"


def read_ids(path: Path) -> tuple[str, ...]:
    with reading(path):
        lines = path.read_text("utf-8-sig").split("\n")
    return tuple(line.strip() for line in (lines if lines[-1] else lines[:-1]))


def _ids_beside(path: Path) -> Path:
    places = [path.with_name(f"{path.stem}_ids.txt"), path.with_name("ids.txt")]
    found = [place for place in places if place.is_file()]
    if not found:
        raise UserError(f"{path} holds no ids: give a file with one a line by --ids, or as {places[0].name} beside it")
    return found[0]


# ----------------------------------------------------------------------------------------------------------------- HDF5


def open_hdf5(path: str | Path, mode: str = "r") -> Any:
    try:
        import h5py  # type: ignore[import-untyped]  # only these files need it
    except ModuleNotFoundError:
        raise UserError(f"{path}: h5py is not installed: pip install -e '.[exchange]' in the checkout") from None
    return h5py.File(path, mode)


def _dataset(file: Any, name: str) -> Any:
    """Values that lie in other files are no part of the digest, and whose they are nobody knows."""
    found = file[name]
    if not hasattr(found, "shape"):
        raise ValueError(f"{name} is no array")
    if found.file.filename != file.filename or found.external or found.is_virtual:
        raise ValueError(f"{name} lies in another file")
    if found.chunks is None:
        lacks = found.nbytes > found.id.get_storage_size()
    else:
        lengths = zip(found.shape, found.chunks, strict=True)
        lacks = found.id.get_num_chunks() < math.prod(-(-length // chunk) for length, chunk in lengths)
    if lacks:
        raise ValueError(f"{name} was never written as a whole: what it lacks would be read as zeros")
    return found


def _choose_dataset(path: Path, key: str | None) -> str:
    found = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]()

    def see(name: str, node: Any) -> None:
        if getattr(node, "shape", None) is not None and name not in (*IDS, "offsets"):
            found[name] = node.shape, node.dtype

    with open_hdf5(path) as file:
        if key is not None and key in file:
            return key
        file.visititems(see)
    return _choose(found, key)


def _choose(arrays: Arrays, key: str | None) -> str:
    names = [name for name in arrays if key in (None, name)]
    if key is None and len(names) > 1:
        names = [name for name in names if arrays[name][1].kind in "fiu" and len(arrays[name][0]) >= 2]
    if len(names) != 1:
        if not arrays:
            raise ValueError("there is no array in it")
        what = "has several arrays, so say which by --key" if key is None else f"has no array {key!r}"
        names = sorted(arrays)
        more = f" and {len(names) - 8} more" * (len(names) > 8)
        raise ValueError(f"it {what}; there are: {', '.join(names[:8])}{more}")
    return names[0]


def _ids_within(path: Path) -> tuple[str, ...]:
    with open_hdf5(path) as file:
        name = next((name for name in IDS if name in file), None)
        if name is None:
            raise ValueError(f"it has no dataset {' or '.join(IDS)}: give a file with one id a line by --ids")
        found = _dataset(file, name)
        if found.shape is None:
            raise ValueError(f"its dataset {name} is empty")
        values = np.asarray(found[()]).reshape(-1).tolist()
    return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values)


def _offsets_within(path: Path, items: int, rows: int) -> tuple[int, ...] | None:
    """None where a file has none, or others, that are about something else."""
    with open_hdf5(path) as file:
        if "offsets" not in file:
            return None
        offsets = np.asarray(_dataset(file, "offsets")[()])
    if offsets.shape != (items + 1,) or offsets.dtype.kind not in "iu":
        return None
    found = offsets.astype(np.int64)
    whole = found[0] == 0 and found[-1] == rows and (np.diff(found) >= 0).all()
    return tuple(found.tolist()) if whole else None


# ----------------------------------------------------------------------------------------------------- an array an item


@dataclass(frozen=True)
class Piece:
    """Where the .npy of an item lies, or its .npz."""

    id: str
    path: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.id})"


@dataclass(frozen=True)
class ItemSource:
    pieces: tuple[Piece, ...]
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
        """Fixed where all shapes are the same, ragged where they differ in their first dimension alone."""
        shape = self.shapes[0]
        return FeatureSpec(name, shape[1:] if self._ragged else shape, _stored_as(np.dtype(self.dtype)), self._ragged)

    @property
    def _ragged(self) -> bool:
        return any(shape != self.shapes[0] for shape in self.shapes)

    def rows(self, items: range) -> Iterator[NDArray[Any]]:
        ragged = self._ragged
        for item in items:
            piece, expected = self.pieces[item], self.shapes[item]
            with reading(piece), _opened(piece, self.key) as (file, size):
                shape, dtype, order = _header(file, size)
                if (shape, str(dtype)) != (expected, self.dtype):
                    raise ValueError("it has changed meanwhile")
                data = file.read(math.prod(shape) * dtype.itemsize)
                values = np.frombuffer(data, dtype, math.prod(shape)).reshape(shape, order=order)
            found = _stored(values, [piece.id], piece.path)
            yield found if ragged else found[None]


def _look_at_items(path: Path, kind: str, key: str | None) -> ItemSource:
    ending = ".npz" if kind == "npz" else f".{key}.npy" if key else ".npy"
    with reading(path):
        files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.name[0] != ".")
        if kind == "tar":
            pieces = _of_one_array([member for file in files for member in _members(file, key)])
        else:
            pieces = tuple(piece for file in files for piece in _whole(file, ending))
    if not pieces:
        raise UserError(f"{path} holds no {ending}")
    if kind == "npz":
        with reading(pieces[0]):
            key = _choose(_arrays_in(pieces[0]), key)
    heads = [_head(piece, key) for piece in pieces]
    first_shape, first_dtype = heads[0]
    for piece, (shape, dtype) in zip(pieces, heads, strict=True):
        like = shape == first_shape or (shape and first_shape and shape[1:] == first_shape[1:])
        if dtype != first_dtype or not like:
            raise UserError(f"{piece} is {shape} {dtype}, unlike {pieces[0]}, which is {first_shape} {first_dtype}")
    return ItemSource(pieces, tuple(shape for shape, _ in heads), str(first_dtype), key)


def _head(piece: Piece, key: str | None) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with reading(piece), _opened(piece, key) as (file, size):
        shape, dtype, _ = _header(file, size)
        _stored_as(dtype)
        return shape, dtype


def _whole(path: Path, ending: str) -> Iterator[Piece]:
    if path.name.endswith(ending):
        yield Piece(path.name.removesuffix(ending), str(path.absolute()), 0, path.stat().st_size)


def _of_one_array(members: Sequence[tuple[str, Piece]]) -> tuple[Piece, ...]:
    if len(names := sorted({name for name, _ in members})) > 1:
        raise ValueError(f"it has several arrays a sample, so say which by --key; there are: {', '.join(names[:8])}")
    return tuple(piece for _, piece in members)


def _members(path: Path, key: str | None) -> Iterator[tuple[str, Piece]]:
    """Each with its array's name, as webdataset has them: 7.clip.npy is `clip` of 7, and 7.npy its `npy`.

    Nothing is extracted: where each member lies is enough. A tar without its end was cut off, and is refused.
    """
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
            yield name, Piece(os.path.join(folder, id), str(path.absolute()), member.offset_data, member.size)
        end = archive.offset
    with open(path, "rb") as data:
        data.seek(end)
        if data.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise UserError(f"{path} cannot be read: it is damaged or cut off after {end:,} bytes")


@contextmanager
def _opened(piece: Piece, key: str | None) -> Iterator[tuple[BinaryIO, int]]:
    """A file at the .npy of an item, and how long that is. What an archive says of it may be a bomb."""
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(piece.path, "rb"))
        size = piece.size
        if piece.path.endswith(".npz"):
            archive = stack.enter_context(zipfile.ZipFile(file))
            size = archive.getinfo(f"{key}.npy").file_size
            file = stack.enter_context(archive.open(f"{key}.npy"))
        else:
            file.seek(piece.start)
        if size > LARGEST:
            raise ValueError(f"it is {size:,} bytes long, more than an item has")
        yield file, size


def _arrays_in(piece: Piece) -> Arrays:
    with zipfile.ZipFile(piece.path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    found = {}
    for name in names:
        with _opened(piece, name) as (file, size):
            found[name] = _header(file, size)[:2]
    return found
