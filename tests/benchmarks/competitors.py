"""What the feature store is compared with: each format written once in its usual way, then read in batches of rows.

Every library is imported by the function that needs it, and by nothing else: they come with `make bench` alone.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Values = NDArray[Any]
Read = Callable[[Rows], tuple[Rows, Values]]  # which rows came, and their values
BATCH = 128
FEW = 2048  # rows for those who are so slow to write or to read that all would take minutes
SEEN_AT_ONCE = 512  # rows in webdataset's shuffle buffer


@dataclass(frozen=True)
class Material:
    """What a process is told of it is where it lies."""

    file: Path  # the truth, plain
    dtype: str
    shape: tuple[int, ...]
    array: Path  # our store's Zarr v3 array of the same values
    folder: Path  # where competitors write

    @property
    def values(self) -> Values:
        return _mapped(self.file, self.dtype, self.shape)


@cache
def _mapped(file: Path, dtype: str, shape: tuple[int, ...]) -> Values:
    return np.memmap(file, dtype, "r", shape=shape)


@dataclass(frozen=True)
class Reader:
    read: Read
    rows: int


@dataclass(frozen=True)
class Competitor:
    key: str
    label: str
    module: str
    open: Callable[[Material], Read]
    few: bool = False

    def reader(self, material: Material) -> Reader:
        given = replace(material, shape=(FEW, *material.shape[1:])) if self.few else material
        return Reader(self.open(given), given.shape[0])

    @property
    def library(self) -> str:
        distribution = packages_distributions()[self.module][0]
        return f"{distribution} {version(distribution)}"


def require(competitors: tuple[Competitor, ...]) -> None:
    """All or nothing: a table that lacks a row because a library was not there would look like a comparison."""
    lacking = {}
    for module in dict.fromkeys((*(competitor.module for competitor in competitors), "matplotlib")):
        try:
            importlib.import_module(module)
        except ImportError as error:
            lacking[module] = str(error)
    if lacking:
        raise SystemExit(f"`make bench` installs what the store is compared with; not importable: {lacking}")


def memmap(material: Material) -> Read:
    return _in_order(lambda rows: material.values[rows])


def memmap_per_item(material: Material) -> Read:
    """The usual torch Dataset with the usual collation."""
    return _in_order(lambda rows: np.stack([material.values[row] for row in rows]))


def h5py_sorted(material: Material) -> Read:
    """h5py takes rows in ascending order only; within a random batch that order is as good as any."""
    values = _h5py(material)

    def read(rows: Rows) -> tuple[Rows, Values]:
        ascending = np.sort(rows)
        return ascending, values[ascending]

    return read


def h5py_per_item(material: Material) -> Read:
    values = _h5py(material)
    return _in_order(lambda rows: np.stack([values[row] for row in rows]))


def _h5py(material: Material) -> Any:
    import h5py

    file = material.folder / "values.h5"
    if not file.exists():
        with h5py.File(file, "w") as new:
            new.create_dataset("values", data=material.values)
    return h5py.File(file)["values"]


def lmdb_stacked(material: Material) -> Read:
    import lmdb

    folder, room = str(material.folder / "lmdb"), 2 * material.values.nbytes
    with lmdb.open(folder, map_size=room) as new:
        for begin in range(0, len(material.values), 256):
            with new.begin(write=True) as transaction:
                for row in range(begin, min(begin + 256, len(material.values))):
                    transaction.put(row.to_bytes(4, "big"), material.values[row].tobytes())
    transaction = lmdb.open(folder, map_size=room, readonly=True, lock=False).begin()
    shape, dtype = material.values.shape[1:], material.values.dtype

    def one(row: int) -> Values:
        return np.frombuffer(transaction.get(row.to_bytes(4, "big")), dtype).reshape(shape)

    return _in_order(lambda rows: np.stack([one(row) for row in rows.tolist()]))


def hf_datasets(material: Material) -> Read:
    """In its Arrow format, the fastest that it has: its torch format is twenty times slower."""
    import datasets

    datasets.disable_progress_bars()
    folder = str(material.folder / "datasets")
    datasets.Dataset(_arrow(material)).save_to_disk(folder)
    return _in_order(_from_arrow(material, datasets.load_from_disk(folder).with_format("arrow").__getitem__))


def lance_take(material: Material) -> Read:
    import lance

    stored = lance.write_dataset(_arrow(material), str(material.folder / "values.lance"))
    return _in_order(_from_arrow(material, stored.take))


def _arrow(material: Material) -> Any:
    import pyarrow as pa

    flat = pa.array(material.values.reshape(-1))
    width = material.values[0].size
    return pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, width)})


def _from_arrow(material: Material, take: Callable[[Any], Any]) -> Callable[[Rows], Values]:
    def read(rows: Rows) -> Values:
        column = take(rows.tolist()).column("values").combine_chunks()
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, *material.values.shape[1:])

    return read


def tensorstore_array(material: Material) -> Read:
    import tensorstore

    array = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{material.array}/"}).result()
    return _in_order(lambda rows: array[rows].read().result())


def zarr_python(material: Material) -> Read:
    import zarr

    array = zarr.open_array(material.array, mode="r")
    return _in_order(lambda rows: array.oindex[rows])


def zarrs(material: Material) -> Read:
    """Row by row: what it does for a contiguous selection is done in Rust, for a list of rows in zarr-python."""
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        array = zarr.open_array(material.array, mode="r")
    return _in_order(lambda rows: np.stack([array[row] for row in rows.tolist()]))


def mosaic(material: Material) -> Read:
    from streaming import MDSWriter, StreamingDataset

    folder, shape = str(material.folder / "mosaic"), ",".join(map(str, material.values.shape[1:]))
    with MDSWriter(out=folder, columns={"values": f"ndarray:{material.values.dtype}:{shape}"}) as new:
        for values in material.values:
            new.write({"values": values})
    stored = StreamingDataset(local=folder, shuffle=False, batch_size=1)
    return _in_order(lambda rows: np.stack([stored[row]["values"] for row in rows.tolist()]))


def litdata(material: Material) -> Read:
    """It iterates, in an order of its own; as it comes."""
    return _litdata(material, {})


def litdata_row_decode(material: Material) -> Read:
    """Told to decode each row alone, which suits rows as large as these."""
    return _litdata(material, {"batch_decode": 1})


def _litdata(material: Material, settings: dict[str, Any]) -> Read:
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.cache import Cache

    folder = material.folder / "litdata"
    if not folder.exists():
        new = Cache(str(folder), chunk_bytes="64MB")
        for row, values in enumerate(material.values):
            new[row] = {"row": row, "values": torch.from_numpy(values.copy())}
        new.done()
        new.merge()
    stored = StreamingDataset(str(folder), shuffle=True, **settings)
    batches = _for_ever(StreamingDataLoader(stored, batch_size=BATCH, num_workers=0))

    def read(rows: Rows) -> tuple[Rows, Values]:
        batch = next(batches)
        return batch["row"].numpy(), batch["values"].numpy()

    return read


def webdataset(material: Material) -> Read:
    """It iterates through a shuffle buffer, which stays full from one pass to the next."""
    import webdataset

    with webdataset.ShardWriter(f"{material.folder}/%03d.tar", maxcount=1024, verbose=0) as new:
        for row, values in enumerate(material.values):
            new.write({"__key__": str(row), "values.npy": values})
    tars = sorted(map(str, material.folder.glob("*.tar")))
    stored = webdataset.WebDataset(tars, shardshuffle=len(tars)).repeat().shuffle(SEEN_AT_ONCE).decode()
    samples = ((int(sample["__key__"]), sample["values.npy"]) for sample in stored)

    def read(rows: Rows) -> tuple[Rows, Values]:
        numbers, values = zip(*(next(samples) for _ in rows), strict=True)
        return np.array(numbers), np.stack(values)

    return read


def _in_order(read: Callable[[Rows], Values]) -> Read:
    return lambda rows: (rows, read(rows))


def _for_ever(passes: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from passes


COMPETITORS = (
    Competitor("memmap", "np.memmap, values[rows]", "numpy", memmap),
    Competitor("memmap_per_item", "np.memmap, row by row, stacked", "numpy", memmap_per_item),
    Competitor("h5py_sorted", "h5py, rows in order", "h5py", h5py_sorted),
    Competitor("h5py_per_item", "h5py, row by row, stacked", "h5py", h5py_per_item),
    Competitor("lmdb", "lmdb, get and stacked", "lmdb", lmdb_stacked),
    Competitor("hf_datasets", "HF datasets, Arrow format", "datasets", hf_datasets),
    Competitor("tensorstore", "tensorstore (our files)", "tensorstore", tensorstore_array),
    Competitor("mosaic", "MosaicML streaming, random", "streaming", mosaic, few=True),
    Competitor("webdataset", "webdataset, shuffled iteration", "webdataset", webdataset, few=True),
    Competitor("litdata", "litdata, shuffled iteration, as it comes", "litdata", litdata, few=True),
    Competitor("litdata_row_decode", "litdata, batch_decode=1", "litdata", litdata_row_decode, few=True),
    Competitor("zarrs", "zarrs, row by row (our files)", "zarrs", zarrs, few=True),
    Competitor("lance", "lance, take", "lance", lance_take, few=True),
    Competitor("zarr_python", "zarr-python, oindex (our files)", "zarr", zarr_python, few=True),
)
