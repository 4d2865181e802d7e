"""The feature store beside what else keeps rows of features: random batches warm and cold, tensors, and the writer.

All readers of a comparison take turns in one run, with the same random rows where they store the same ones; every ratio
is the median over the rounds of their seconds over ours. What each reader gives is compared with the truth before.
"""

import collections
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from tests.benchmarks.competitors import BATCH, COMPETITORS, Material, Reader, Rows, Values, memmap, require
from tests.benchmarks.evict import evict
from tests.benchmarks.measured import Bar, Measured, median, timed
from tests.benchmarks.store_plot import draw
from tests.test_features import write_store
from xmodal.arrays import buffer
from xmodal.batches import Loader
from xmodal.batches import Reader as BatchReader
from xmodal.dataset import Examples, Texts
from xmodal.features import FeatureSpec, FeatureStore, write_shard

BARS = {
    "random_fp16_vs_memmap": Bar(minimum=0.90),
    "random_fp32_vs_take_memmap": Bar(minimum=0.90),
    "tensors_vs_memmap": Bar(minimum=0.70),
    "cold_vs_memmap": Bar(minimum=3.0),
    "cold_vs_h5py": Bar(minimum=1.5),
    "random_vs_h5py_sorted": Bar(minimum=1.5),
    "random_vs_h5py_per_item": Bar(minimum=3.0),
    "random_vs_lmdb": Bar(minimum=2.0),
    "random_vs_tensorstore": Bar(minimum=4.0),
    "random_vs_mosaic": Bar(minimum=5.0),
    "random_vs_webdataset": Bar(minimum=15.0),
    "random_vs_litdata": Bar(minimum=10.0),
    "random_vs_lance": Bar(minimum=20.0),
    "random_vs_zarr_python": Bar(minimum=100.0),
    "write_vs_raw_file": Bar(minimum=0.8),
    "writer_extra_mb": Bar(maximum=16),
    "random_vs_hf_datasets": Bar(),
    "random_vs_litdata_row_decode": Bar(),
    "random_vs_memmap_per_item": Bar(),
    "random_vs_zarrs": Bar(),
    "random_vs_plain_copy": Bar(),
    "pooled_vs_memmap": Bar(),
    "pooled_vs_h5py_sorted": Bar(),
}
GRID = FeatureSpec("grid", (36, 2048))
WIDE = FeatureSpec("wide", (36, 2048), "float32")
POOLED = FeatureSpec("pooled", (2048,))
ROWS, WIDE_ROWS, POOLED_ROWS = 4_096, 3_072, 65_536  # so few that all formats together stay in 7 GB of page cache
BLOCK = 64  # rows that the writer is given at a time
SHARD = range(GRID.shard_rows)
ROUNDS = 9
FIRST, BATCHES = 2, 3  # of each reader in a round: not measured, and measured
PLOT = Path(__file__).parent / "store.png"


def measure(anchors: Path | None) -> dict[str, Measured]:
    require(COMPETITORS)
    results = {}
    for section in (_grids, _wide, _pooled, _writer):
        with tempfile.TemporaryDirectory() as folder:
            results |= section(Path(folder))
    return results


def _grids(folder: Path) -> dict[str, Measured]:
    material, store = _material(folder, GRID, ROWS)
    readers = {c.key: c.reader(material) for c in COMPETITORS}
    _warm(folder)
    seconds = _take_turns({"ours": _ours(store), "copy": _ceiling(material.values)} | readers, material.values)
    _draw(seconds)
    results = {f"random_vs_{c.key}": _ratio(seconds, c.key, c.library) for c in COMPETITORS}
    results["random_fp16_vs_memmap"] = results.pop("random_vs_memmap")
    results["random_vs_plain_copy"] = _ratio(seconds, "copy", "neighbours copied by two threads within memory")
    results |= _tensors(store, material.values)
    return results | _cold(material, readers["h5py_sorted"])


def _wide(folder: Path) -> dict[str, Measured]:
    """Against the fastest that numpy has: a reused buffer, and the mode that does not buffer once more."""
    material, store = _material(folder, WIDE, WIDE_ROWS)
    _warm(folder)
    out = buffer((BATCH, *WIDE.row_shape), WIDE.dtype)
    take = Reader(lambda rows: (rows, np.take(material.values, rows, axis=0, out=out, mode="clip")), WIDE_ROWS)
    seconds = _take_turns({"ours": _ours(store), "take": take}, material.values)
    return {"random_fp32_vs_take_memmap": _ratio(seconds, "take", "np.take(memmap, out=, mode='clip')")}


def _pooled(folder: Path) -> dict[str, Measured]:
    material, store = _material(folder, POOLED, POOLED_ROWS)
    some = [c for c in COMPETITORS if c.key in ("memmap", "h5py_sorted")]
    _warm(folder)
    seconds = _take_turns({"ours": _ours(store)} | {c.key: c.reader(material) for c in some}, material.values)
    return {f"pooled_vs_{c.key}": _ratio(seconds, c.key, f"{c.library}, rows of 2048 fp16") for c in some}


def _cold(material: Material, h5py: Reader) -> dict[str, Measured]:
    """Every batch is of rows that none of the readers has touched, since ours looks closer at those."""
    everyone = {
        "ours": (_ours(_store_at(material)), [file for file in material.array.rglob("*") if file.is_file()]),
        "memmap": (Reader(memmap(material), ROWS), [Path(str(material.values.filename))]),
        "h5py": (h5py, [material.folder / "values.h5"]),
    }
    seconds: dict[str, list[float]] = {key: [] for key in everyone}
    for turn, rows in enumerate(np.random.default_rng(1).permutation(ROWS)[: ROUNDS * BATCH].reshape(ROUNDS, BATCH)):
        for key in _shuffled(list(everyone), turn):
            reader, files = everyone[key]
            evict(files)
            seconds[key].append(timed(lambda reader=reader, rows=rows: reader.read(rows)) / BATCH)
    return {f"cold_vs_{key}": _ratio(seconds, key, "page cache evicted") for key in ("memmap", "h5py")}


def _tensors(store: FeatureStore, values: Values) -> dict[str, Measured]:
    """Whole epochs of the loader, from the seed to tensors with their words, each beside as many batches of memmap."""
    seconds: dict[str, list[float]] = {"ours": [], "memmap": []}
    loader = Loader(BatchReader(_examples(store), store), BATCH)
    for turn in range(ROUNDS):
        batches = np.random.default_rng(turn).permutation(len(store)).reshape(-1, BATCH)
        ways = {"ours": partial(collections.deque, loader, 0), "memmap": partial(_read_by_memmap, values, batches)}
        for key in _shuffled(list(ways), turn):
            seconds[key].append(timed(ways[key]) / len(store))
    return {"tensors_vs_memmap": _ratio(seconds, "memmap", "values[rows], without tensors or words")}


def _read_by_memmap(values: Values, batches: Iterable[Rows]) -> int:
    return sum(len(values[rows]) for rows in batches)


def _examples(store: FeatureStore) -> Examples:
    """An item a row, with a caption of ten words each."""
    places, words = np.arange(len(store)), np.arange(1, 11, dtype=np.int32)
    return Examples(store.ids, places, store.ids, places, Texts.of([words] * len(store)), absent=0, silent=0)


def _writer(folder: Path) -> dict[str, Measured]:
    random = np.random.default_rng(0)
    blocks = [_random_values(random, BLOCK, GRID) for _ in range(0, len(SHARD), BLOCK)]
    ways = {"ours": _write_shard, "raw": _write_raw}
    seconds: dict[str, list[float]] = {key: [] for key in ways}
    for turn in range(2 * ROUNDS):
        for key in _shuffled(list(ways), turn):
            seconds[key].append(timed(lambda key=key: ways[key](folder / key, blocks)) / len(SHARD))
            (folder / key).unlink()
    memory = median(lambda _: _peak_mb(folder / "shard") - _peak_mb(None), 3, "MB", "only making the blocks of 64 rows")
    against = "the same blocks written to a file, with fsync"
    return {"write_vs_raw_file": _ratio(seconds, "raw", against), "writer_extra_mb": memory}


def _write_shard(path: Path, blocks: Iterable[Values]) -> None:
    with open(path, "xb") as file:
        write_shard(file, GRID, SHARD, blocks)
        file.flush()
        os.fsync(file.fileno())


def _write_raw(path: Path, blocks: Iterable[Values]) -> None:
    with open(path, "xb") as file:
        for block in blocks:
            file.write(block.data)
        file.flush()
        os.fsync(file.fileno())


def _peak_mb(path: Path | None) -> float:
    """Of a process that makes a shard's blocks, and writes them if there is a path."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_store", *([str(path)] if path else [])]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    if path:
        path.unlink()
    return float(found.stdout)


def _make_one_shard(path: Path | None) -> float:
    """The peak of resident MB meanwhile. Blocks are made without temporaries, in whose place a writer's could lie."""
    first = _random_values(np.random.default_rng(0), BLOCK, GRID)
    blocks = (first.copy() for _ in range(0, len(SHARD), BLOCK))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    if path:
        _write_shard(path, blocks)
    else:
        for block in blocks:
            block.sum()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) / 1024


def _material(folder: Path, spec: FeatureSpec, rows: int) -> tuple[Material, FeatureStore]:
    """The same values in a plain file and in our store."""
    random, file = np.random.default_rng(0), folder / "values.bin"
    with open(file, "xb") as plain:
        for _ in range(0, rows, SHARD.stop):
            plain.write(_random_values(random, SHARD.stop, spec).data)
    values = np.memmap(file, spec.dtype, "r", shape=(rows, *spec.row_shape))
    output = write_store(folder, spec, values, BLOCK, {})
    return Material(values, Path(output.where) / spec.name, folder), FeatureStore(output)


def _store_at(material: Material) -> FeatureStore:
    return FeatureStore(str(material.array.parent))


def _random_values(random: np.random.Generator, rows: int, spec: FeatureSpec) -> Values:
    """Half of them zero, as after a ReLU; the bits of the others are any that make a number from 0 to 2."""
    count, bits = rows * math.prod(spec.row_shape), np.dtype(f"u{np.dtype(spec.dtype).itemsize}")
    values = np.frombuffer(random.bytes(count * bits.itemsize), bits) & np.array(np.iinfo(bits).max >> 2, bits)
    values *= np.unpackbits(np.frombuffer(random.bytes(math.ceil(count / 8)), np.uint8), count=count)
    return values.view(spec.dtype).reshape(rows, *spec.row_shape)


def _ours(store: FeatureStore) -> Reader:
    out = buffer((BATCH, *store.spec.row_shape), store.spec.dtype)
    return Reader(lambda rows: (rows, store.take(rows, out)), len(store))


def _ceiling(values: Values) -> Reader:
    """What the memory of the machine gives at most: no file, no mapping, and rows that lie one behind the other."""
    whole, out = np.array(values), buffer((BATCH, *values.shape[1:]), values.dtype)
    second = ThreadPoolExecutor(1)

    def copy(rows: Rows) -> tuple[Rows, Values]:
        first, half = int(rows[0]) // BATCH * BATCH, BATCH // 2
        handed = second.submit(np.copyto, out[:half], whole[first : first + half])
        np.copyto(out[half:], whole[first + half : first + BATCH])
        handed.result()
        return np.arange(first, first + BATCH), out

    return Reader(copy, len(values))


def _take_turns(readers: Mapping[str, Reader], truth: Values) -> dict[str, list[float]]:
    """Seconds a row in every round; one in which the disk had to be read does not count as warm."""
    _read_all(readers, truth)
    rounds: list[dict[str, float]] = []
    bytes_read = len(readers) * (FIRST + BATCHES) * BATCH * truth[0].nbytes
    for turn in range(3 * ROUNDS):
        before = _bytes_from_disk()
        spent = {key: _seconds_a_row(readers[key], turn) for key in _shuffled(list(readers), turn)}
        if _bytes_from_disk() - before < bytes_read / 100:
            rounds.append(spent)
        if len(rounds) == ROUNDS:
            return {key: [spent[key] for spent in rounds] for key in readers}
    raise RuntimeError("the files do not stay in the page cache: too little memory is free to measure warm reads")


def _warm(folder: Path) -> None:
    """Everybody's files alike, from start to end: what is kept as it was written is kept in pieces of other sizes."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    evict(files)
    for file in files:
        with open(file, "rb", buffering=0) as data:
            while data.read(8 << 20):
                pass


def _bytes_from_disk() -> int:
    return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _seconds_a_row(reader: Reader, turn: int) -> float:
    """By the median of the round's batches: one in which the processor was taken away does not count.

    Nor do the first ones, for anybody: they pay for what the reader before left in the processor's caches, and for its
    threads that are still at work.
    """
    batches = [_random_rows(reader.rows, turn, batch) for batch in range(FIRST + BATCHES)]
    spent = [timed(lambda rows=rows: reader.read(rows)) for rows in batches]
    return statistics.median(spent[FIRST:]) / BATCH


def _read_all(readers: Mapping[str, Reader], truth: Values) -> None:
    """Warms what they read, and compares it."""
    for key, reader in readers.items():
        for rows in np.random.default_rng(2).permutation(reader.rows).reshape(-1, BATCH):
            came, values = reader.read(rows)
            if len(came) != BATCH or values.dtype != truth.dtype or not np.array_equal(values, truth[came]):
                raise RuntimeError(f"{key} does not give the values that were stored")
    os.sync()  # or what was just written would be going to the disk meanwhile


def _random_rows(rows: int, turn: int, batch: int) -> Rows:
    return np.random.default_rng([turn, batch]).choice(rows, BATCH, replace=False)


def _shuffled(keys: list[str], turn: int) -> list[str]:
    """So that none always follows the same other."""
    return [keys[place] for place in np.random.default_rng(turn).permutation(len(keys))]


def _ratio(seconds: Mapping[str, list[float]], theirs: str, against: str) -> Measured:
    runs = tuple(round(t / o, 4) for t, o in zip(seconds[theirs], seconds["ours"], strict=True))
    theirs_us, ours_us = (1e6 * statistics.median(seconds[key]) for key in (theirs, "ours"))
    return Measured(statistics.median(runs), "x", f"{against}: {theirs_us:.3g} µs a row, ours {ours_us:.3g}", runs)


def _draw(seconds: Mapping[str, list[float]]) -> None:
    labels = {"ours": "xmodal, take"} | {c.key: c.label for c in COMPETITORS}
    against = {key: zip(seconds["memmap"], seconds[key], strict=True) for key in labels}
    speeds = {label: statistics.median(m / s for m, s in against[key]) for key, label in labels.items()}
    draw(speeds, labels["ours"], labels["memmap"], "Random batches of 128 rows of 36 x 2048 fp16, warm", PLOT)


if __name__ == "__main__":
    print(_make_one_shard(Path(sys.argv[1]) if sys.argv[1:] else None))
