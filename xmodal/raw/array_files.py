"""Opens arrays in .npy, HDF5 and Zarr v3 that may come from anybody: nothing is unpickled, no length is believed."""

import math
import os
import tarfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, Literal

import numpy as np
from google_crc32c import extend
from numpy.lib import format as npy

from xmodal.errors import UserError, extra_needed
from xmodal.raw.archives import DAMAGE

HDF5 = (".h5", ".hdf5")
NO_CHUNK = 2**64 - 1  # offset and length of a missing chunk in the index of a Zarr shard
Head = tuple[tuple[int, ...], np.dtype[Any]]


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turns what damaged or hostile bytes raise into a UserError that names them."""
    try:
        yield
    except (*DAMAGE, tarfile.TarError, LookupError, OverflowError, ModuleNotFoundError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read: {reason}") from error


def npy_header(file: BinaryIO, size: int) -> tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"]]:
    """Reads the header of a .npy of `size` bytes; leaves the file where the values begin."""
    begin = file.tell()
    shape, fortran, dtype = unchecked_header(file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never read")
    whole = file.tell() - begin + math.prod(shape) * dtype.itemsize
    if size != whole or min(shape, default=0) < 0:
        raise ValueError(f"it is {size:,} bytes long, not the {whole:,} of {shape} {dtype}: it was cut off or extended")
    return shape, dtype, "F" if fortran else "C"


def unchecked_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Reads what the header of a .npy says: shape, whether in Fortran's order, dtype."""
    version = npy.read_magic(file)
    if version != (1, 0):  # other versions are for arrays of many named fields
        raise ValueError(f"it is .npy of version {version}, no plain array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # numpy's, about headers by Python 2, as in SCAN's files
        try:
            return npy.read_array_header_1_0(file)
        except (TokenError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise ValueError("it has no readable header") from error


def open_hdf5(path: str | Path, mode: str = "r") -> Any:
    with extra_needed("exchange", f"{path}: h5py is not installed"):
        import h5py  # type: ignore[import-untyped]
    return h5py.File(path, mode)


def hdf5_dataset(file: Any, name: str) -> Any:
    """Refuses datasets with gaps, and those in other files, which the digest would not cover."""
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


def hdf5_texts(path: Path, name: str) -> tuple[str, ...]:
    """Reads a dataset of texts."""
    with reading(path), open_hdf5(path) as file:
        return hdf5_texts_of(file, name)


def hdf5_texts_of(file: Any, name: str) -> tuple[str, ...]:
    found = hdf5_dataset(file, name)
    if found.shape is None:
        raise ValueError(f"its dataset {name} is empty")
    values = np.asarray(found[()]).ravel().tolist()
    return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values)


def open_zarr(path: str) -> Any:
    """Opens a Zarr v3 array that lacks no file; of shards, only uncompressed ones are looked into."""
    with extra_needed("exchange", f"{path}: zarr is not installed"):
        import zarr
    try:
        array: Any = zarr.open_array(path, mode="r", zarr_format=3)
        file_shape = array.shards or array.chunks
        files = [-(-length // size) for length, size in zip(array.shape, file_shape, strict=True)]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{path}/zarr.json describes no array ({error!r})") from error
    if "checksums" in array.attrs:
        raise UserError(f"{path} is of a store of xmodal: `xmodal export` knows which of its items are absent")
    for place in np.ndindex(*files):
        name = array.metadata.encode_chunk_key(place)
        file = Path(path, name)
        if not file.is_file():
            raise UserError(f"{path} has no file {name}: what is not there would be read as zeros")
        if array.shards:
            _check_shard(file, array, place)
    return array


def _check_shard(file: Path, array: Any, place: tuple[int, ...]) -> None:
    """Refuses an uncompressed shard that lacks chunks, or whose index is damaged."""
    (sharding,) = array.metadata.codecs
    codecs = [codec.to_dict()["name"] for codec in (*sharding.codecs, *sharding.index_codecs)]
    if codecs != ["bytes", "bytes", "crc32c"]:
        return
    counts = [shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True)]
    chunk_bytes, index_bytes = math.prod(array.chunks) * array.dtype.itemsize, 16 * math.prod(counts)
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(0 if sharding.index_location.value == "start" else max(0, size - index_bytes - 4))
        index, checksum = opened.read(index_bytes), opened.read(4)
    if int(extend(0, index)).to_bytes(4, "little") != checksum:
        raise UserError(f"{file} is damaged: it does not hold the index of its chunks")
    within = zip(array.shape, place, array.shards, array.chunks, strict=True)
    used = tuple(slice(-(-(length - at * shard) // chunk)) for length, at, shard, chunk in within)
    starts, lengths = np.moveaxis(np.frombuffer(index, "<u8").reshape(*counts, 2)[used], -1, 0)
    if (starts & lengths == NO_CHUNK).any():
        raise UserError(f"{file} was never written as a whole: what it lacks would be read as zeros")
    if size < chunk_bytes or (starts > size - chunk_bytes).any() or (lengths != chunk_bytes).any():
        raise UserError(f"{file} is damaged: its index points outside of it")
