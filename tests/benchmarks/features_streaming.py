"""A feature stage on Ray, against the bare network on the same cores, and beside an accelerator that is simulated.

Both ways of the first note when each batch is done. What counts is the time when all processes compute: neither Ray's
start nor the network's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from pipelines.engine import ray_runner
from pipelines.engine.building import KEPT_BYTES, build
from pipelines.engine.killable_worker import keep_memory
from pipelines.engine.stage import Resources, Stage
from pipelines.engine.stage_kind import Needs
from pipelines.stage_forms.media_stages import PictureExtractor, picture_stage, resnet_extractor
from pipelines.stages.resnet import ResNetConfig
from tests.benchmarks.bench_trust import picture
from tests.benchmarks.measured import Bar, Measured, median
from tests.stages.test_resnet_stage import sealed
from xmodal.features.networks import load
from xmodal.media.images import normalised
from xmodal.media.preparation import square
from xmodal.records.tables import Item
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

BARS = {"ray_stage_vs_bare_loop": Bar(minimum=0.95), "simulated_accelerator_busy": Bar(minimum=0.95)}
CONFIG = ResNetConfig("resnet18", "random:0")
CORES = os.cpu_count() or 1
UNITS_A_CORE, ROUNDS = 3, 5
PICTURES = 96  # different ones; what is written behind its end makes each file's bytes its own
LATENCY, BATCHES = 0.1, 128  # seconds of a batch of 32: two cores decode as many in 0.06

Notes = list[tuple[float, int]]  # when a batch was done, and its pictures


def measure(folder: Path) -> Iterator[dict[str, Measured]]:
    pictures = [picture(number) for number in range(PICTURES)]
    against = f"pictures a second of the bare resnet18 in {CORES} processes, when all compute"
    ray_runner.connect()
    ratio = median(lambda turn: _ratio(pictures, folder / f"{turn}", turn), ROUNDS, "x", against)
    ray_runner.disconnect()
    yield {"ray_stage_vs_bare_loop": ratio}
    told = f"of the time from its first batch to its last; it takes {1000 * LATENCY:.0f} ms for 32 pictures of 90 kB"
    busy = median(lambda turn: _busy(pictures, folder / f"busy-{turn}"), ROUNDS, "", f"share {told}, {CORES} cores")
    yield {"simulated_accelerator_busy": busy}


def _media(pictures: Sequence[bytes], count: int, root: str) -> tuple[Output, tuple[Item, ...]]:
    files = {f"{number:05d}.jpg": pictures[number % PICTURES] + b"%d" % number for number in range(count)}
    return sealed(open_storage(root), files), tuple(Item(name, name) for name in files)


def _stage(
    media: Output, items: tuple[Item, ...], opened: Callable[[ResNetConfig], PictureExtractor]
) -> Stage[Any, Any]:
    return picture_stage("resnet", CONFIG, Needs({"media": media}, {}, lambda: items), 1, opened)


def _ratio(pictures: Sequence[bytes], folder: Path, turn: int) -> float:
    count = CORES * UNITS_A_CORE * (CONFIG.rows_per_shard or 0)
    media, items = _media(pictures, count, str(folder / "root"))
    files = [str(path) for path in sorted((folder / "root/blobs").rglob("*")) if path.is_file()]
    assert len(files) == count
    ways: Mapping[str, Callable[[str], object]] = {
        "stage": lambda notes: build(
            _stage(media, items, partial(_noted_network, notes)), media.storage, ray_runner.RayRunner(CORES)
        ),
        "bare": lambda notes: _bare(files, notes),
    }
    rates = {}
    for way in ("stage", "bare")[:: 1 if turn % 2 else -1]:
        notes = folder / way
        notes.mkdir()
        ways[way](str(notes))
        rates[way] = rate([_read(path) for path in notes.iterdir()])
    return rates["stage"] / rates["bare"]


def rate(processes: Sequence[Notes]) -> float:
    """Pictures a second while all processes compute, from their first batches, when they are warm."""
    began = max(notes[0][0] for notes in processes)
    ended = min(notes[-1][0] for notes in processes)
    found = 0.0
    for notes in processes:
        during = [(when, count) for when, count in notes if began <= when <= ended]
        found += sum(count for _, count in during[1:]) / (during[-1][0] - during[0][0])
    return found


def _read(path: Path) -> Notes:
    return [(float(when), int(count)) for when, count in map(str.split, path.read_text().splitlines())]


def _noted(rows: Callable[[Any], NDArray[Any]], notes: str) -> Callable[[Any], NDArray[Any]]:
    file = open(f"{notes}/{os.getpid()}", "a", buffering=1)  # noqa: SIM115 - ends with its process

    def noted(pictures: Any) -> NDArray[Any]:
        found = rows(pictures)
        file.write(f"{time.monotonic()} {len(pictures)}\n")
        return found

    return noted


def _noted_network(notes: str, config: ResNetConfig) -> PictureExtractor:
    extractor = resnet_extractor(None, config)
    return replace(extractor, rows=_noted(extractor.rows, notes))


def _bare(files: Sequence[str], notes: str) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.features_streaming", notes]
    processes = [
        subprocess.Popen([*command, *files[first::CORES]], env={**os.environ, "OMP_NUM_THREADS": "1"})
        for first in range(CORES)
    ]
    assert [process.wait() for process in processes] == [0] * CORES


def bare_loop(notes: str, files: Sequence[str]) -> list[NDArray[Any]]:
    """Reads and decodes a batch, and computes its rows, which stay in memory."""
    keep_memory(KEPT_BYTES)  # as in a worker
    rows, left = _noted(load(CONFIG), notes), iter(files)
    found = list[NDArray[Any]]()
    while batch := list(islice(left, CONFIG.batch_size)):
        pixels = [normalised(square(Path(file).read_bytes(), CONFIG.resize, CONFIG.crop)) for file in batch]
        found.append(rows(np.stack(pixels)))
    return found


def _busy(pictures: Sequence[bytes], folder: Path) -> float:
    media, items = _media(pictures, BATCHES * CONFIG.batch_size, str(folder / "root"))
    (folder / "notes").mkdir()
    stage = _stage(media, items, partial(_simulated, str(folder / "notes")))
    ray.init(address="local", num_cpus=CORES, num_gpus=1, include_dashboard=False, logging_level="ERROR")
    build(replace(stage, resources=Resources(gpus=1)), media.storage, ray_runner.RayRunner())
    ray_runner.disconnect()
    (notes,) = (_read(path) for path in (folder / "notes").iterdir())
    assert len(notes) == BATCHES
    return LATENCY * BATCHES / (notes[-1][0] - notes[0][0] + LATENCY)


def _simulated(notes: str, config: ResNetConfig) -> PictureExtractor:
    """Decodes as the network's extractor does, and sleeps as Python does while a GPU computes."""
    spec = config.spec

    def rows(pictures: list[NDArray[Any]]) -> NDArray[Any]:
        np.stack(pictures)
        time.sleep(LATENCY)
        return np.zeros((len(pictures), *spec.row_shape), spec.dtype)

    return replace(resnet_extractor(None, config), rows=_noted(rows, notes))


if __name__ == "__main__":
    bare_loop(sys.argv[1], sys.argv[2:])
