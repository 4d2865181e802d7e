"""The feature store beside what else keeps rows of features: random batches warm and cold, tensors, and the writer.

All readers of a comparison take turns in one run, with the same random rows where they store the same ones; every ratio
is the median over the rounds of their seconds over ours. What each reader gives is compared with the truth before.
Each has a process of its own, as with its users, and memory as the system's malloc gives it out there: beside others
lance is up to four times as fast by chance, and those that copy row by row are three times slower than ours or 25.
"""

import collections
import itertools
import math
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import numpy as np

from tests.benchmarks.competitors import (
    BATCH,
    COMPETITORS,
    Material,
    Reader,
    Rows,
    Values,
    h5py_sorted,
    memmap,
    require,
)
from tests.benchmarks.evict import evict, let_go
from tests.benchmarks.measured import Bar, Measured, median, timed
from tests.benchmarks.store_plot import draw
from tests.features.test_features import write_store
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader as BatchReader
from xmodal.batches.texts import Texts
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import FeatureStore, write_shard
from xmodal.features.zarr_arrays import buffer

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
ROUNDS = 15
FIRST, MEASURED = (0.05, 2), (0.1, 3)  # of each reader in a round, seconds and at least so many batches
PLOT = Path(__file__).parent / "store.png"


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    require(COMPETITORS)
    for section in (_grids, _wide, _pooled, _writer):
        with tempfile.TemporaryDirectory() as folder:
            yield section(Path(folder))


def _grids(folder: Path) -> dict[str, Measured]:
    material = _material(folder, GRID, ROWS)
    seconds = _take_turns(["ours", "copy", *(c.key for c in COMPETITORS)], material)
    _draw(seconds)
    results = {f"random_vs_{c.key}": _ratio(seconds, c.key, c.library) for c in COMPETITORS}
    results["random_fp16_vs_memmap"] = results.pop("random_vs_memmap")
    results["random_vs_plain_copy"] = _ratio(seconds, "copy", "neighbours copied by two threads within memory")
    return results | _tensors(material) | _cold(material)


def _wide(folder: Path) -> dict[str, Measured]:
    """Against the fastest that numpy has: a reused buffer, and the mode that does not buffer once more."""
    seconds = _take_turns(["ours", "take"], _material(folder, WIDE, WIDE_ROWS))
    return {"random_fp32_vs_take_memmap": _ratio(seconds, "take", "np.take(memmap, out=, mode='clip')")}


def _pooled(folder: Path) -> dict[str, Measured]:
    some = [c for c in COMPETITORS if c.key in ("memmap", "h5py_sorted")]
    seconds = _take_turns(["ours", *(c.key for c in some)], _material(folder, POOLED, POOLED_ROWS))
    return {f"pooled_vs_{c.key}": _ratio(seconds, c.key, f"{c.library}, rows of 2048 fp16") for c in some}


def _cold(material: Material) -> dict[str, Measured]:
    """Every batch is of rows that none of the readers has touched, since ours looks closer at those.

    Two a round: of a file that was evicted every other batch comes faster, whoever reads it.
    """
    everyone = {
        "ours": (_ours(material), _files(material.array)),
        "memmap": (Reader(memmap(material), ROWS), [material.file]),
        "h5py": (Reader(h5py_sorted(material), ROWS), [material.folder / "values.h5"]),
    }
    seconds: dict[str, list[float]] = {key: [] for key in everyone}
    untouched = np.random.default_rng(1).permutation(ROWS)[: ROUNDS * 2 * BATCH].reshape(ROUNDS, 2, BATCH)
    for turn, batches in enumerate(untouched):
        for key in _shuffled(list(everyone), turn):
            seconds[key].append(sum(_evicted(*everyone[key], rows) for rows in batches) / batches.size)
    return {f"cold_vs_{key}": _ratio(seconds, key, "page cache evicted") for key in ("memmap", "h5py")}


def _evicted(reader: Reader, files: Sequence[Path], rows: Rows) -> float:
    evict(files)
    return timed(lambda: reader.read(rows))


def _tensors(material: Material) -> dict[str, Measured]:
    """Whole epochs of the loader, from the seed to tensors with their words, each beside as many batches of memmap."""
    store, values = _store(material), material.values
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
    return Examples(
        store.ids,
        places,
        store.ids,
        places,
        Texts.of([words] * len(store)),
    )


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


def _material(folder: Path, spec: FeatureSpec, rows: int) -> Material:
    """The same values in a plain file and in our store."""
    random, file, shape = np.random.default_rng(0), folder / "values.bin", (rows, *spec.row_shape)
    with open(file, "xb") as plain:
        for _ in range(0, rows, SHARD.stop):
            plain.write(_random_values(random, SHARD.stop, spec).data)
    output = write_store(folder, spec, np.memmap(file, spec.dtype, "r", shape=shape), BLOCK, {})
    return Material(file, spec.dtype, shape, Path(output.where) / spec.name, folder)


def _store(material: Material) -> FeatureStore:
    return FeatureStore(str(material.array.parent))


def _random_values(random: np.random.Generator, rows: int, spec: FeatureSpec) -> Values:
    """Half of them zero, as after a ReLU; the bits of the others are any that make a number from 0 to 2."""
    count, bits = rows * math.prod(spec.row_shape), np.dtype(f"u{np.dtype(spec.dtype).itemsize}")
    values = np.frombuffer(random.bytes(count * bits.itemsize), bits) & np.array(np.iinfo(bits).max >> 2, bits)
    values *= np.unpackbits(np.frombuffer(random.bytes(math.ceil(count / 8)), np.uint8), count=count)
    return values.view(spec.dtype).reshape(rows, *spec.row_shape)


def _ours(material: Material) -> Reader:
    store, out = _store(material), buffer((BATCH, *material.shape[1:]), material.dtype)
    return Reader(lambda rows: (rows, store.take(rows, out)), len(store))


def _take(material: Material) -> Reader:
    values, out = material.values, buffer((BATCH, *material.shape[1:]), material.dtype)
    return Reader(lambda rows: (rows, np.take(values, rows, axis=0, out=out, mode="clip")), len(values))


def _ceiling(material: Material) -> Reader:
    """What the memory of the machine gives at most: no file, no mapping, and rows that lie one behind the other."""
    whole, out = np.array(material.values), buffer((BATCH, *material.shape[1:]), material.dtype)
    second = ThreadPoolExecutor(1)

    def copy(rows: Rows) -> tuple[Rows, Values]:
        first, half = int(rows[0]) // BATCH * BATCH, BATCH // 2
        handed = second.submit(np.copyto, out[:half], whole[first : first + half])
        np.copyto(out[half:], whole[first + half : first + BATCH])
        handed.result()
        return np.arange(first, first + BATCH), out

    return Reader(copy, len(whole))


READERS = {"ours": _ours, "take": _take, "copy": _ceiling} | {c.key: c.reader for c in COMPETITORS}


def _take_turns(keys: Sequence[str], material: Material) -> dict[str, list[float]]:
    """Seconds a row in every round; one in which the disk had to be read does not count as warm."""
    with ExitStack() as stack:
        spawn = multiprocessing.get_context("spawn")
        processes = {key: stack.enter_context(ProcessPoolExecutor(1, spawn)) for key in keys}
        for key in keys:
            processes[key].submit(_open, key, material).result()
        files = _files(material.folder)
        for key in keys:
            processes[key].submit(let_go, files).result()
        _warm(files)
        for key in keys:
            processes[key].submit(_read_all, key, material).result()
        os.sync()  # or what was just written would be going to the disk meanwhile
        rounds: list[dict[str, float]] = []
        for turn in range(3 * ROUNDS):
            order = _shuffled(list(keys), turn)
            found = {key: processes[key].submit(_seconds_a_row, key, material, turn).result() for key in order}
            if all(from_disk < 0.01 for _, from_disk in found.values()):
                rounds.append({key: seconds for key, (seconds, _) in found.items()})
            if len(rounds) == ROUNDS:
                return {key: [spent[key] for spent in rounds] for key in keys}
    raise RuntimeError("the files do not stay in the page cache: too little memory is free to measure warm reads")


@cache
def _reader(key: str, material: Material) -> Reader:
    return READERS[key](material)


def _open(key: str, material: Material) -> None:
    """Writes what it reads, where that is not there."""
    _reader(key, material)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]


def _warm(files: Sequence[Path]) -> None:
    """Everybody's files alike, from start to end: what is kept as it was written is kept in pieces of other sizes."""
    evict(files)
    for file in files:
        with open(file, "rb", buffering=0) as data:
            while data.read(8 << 20):
                pass


def _bytes_from_disk() -> int:
    return 512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock


def _seconds_a_row(key: str, material: Material, turn: int) -> tuple[float, float]:
    """By the median of the round's batches: one in which the processor was taken away does not count.

    Nor do the first ones, for anybody: they pay for what the reader before left in the processor's caches, and for
    threads that are only waking up. And the share of the bytes read that had to come from the disk.
    """
    reader, before = _reader(key, material), _bytes_from_disk()
    batches = (_random_rows(reader.rows, turn, batch) for batch in itertools.count())
    spent = (timed(lambda rows=rows: reader.read(rows)) for rows in batches)
    first, measured = _lasting(spent, *FIRST), _lasting(spent, *MEASURED)
    bytes_read = (len(first) + len(measured)) * BATCH * material.values[0].nbytes
    return statistics.median(measured) / BATCH, (_bytes_from_disk() - before) / bytes_read


def _lasting(spent: Iterator[float], seconds: float, least: int) -> list[float]:
    taken: list[float] = []
    while len(taken) < least or sum(taken) < seconds:
        taken.append(next(spent))
    return taken


def _read_all(key: str, material: Material) -> None:
    """Warms what it reads, and compares it."""
    reader, truth = _reader(key, material), material.values
    for rows in np.random.default_rng(2).permutation(reader.rows).reshape(-1, BATCH):
        came, values = reader.read(rows)
        if len(came) != BATCH or values.dtype != truth.dtype or not np.array_equal(values, truth[came]):
            raise RuntimeError(f"{key} does not give the values that were stored")


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
