"""Time and memory until a training of COCO's size takes its first step, beside one plain pass over its captions.

The records and the pooled features are generated. `xmodal train vsepp` runs as a user would start it, and the first
line of its log marks the first step of the optimiser. The plain pass imports torch, reads the captions with pyarrow,
splits each once and counts and encodes its words: what any training on these captions has to do.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from tests.benchmarks.measured import Bar, Measured, timed
from tests.benchmarks.text_tokens import _captions
from tests.records.test_sparse import tables
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import index_files, shard_file, shard_ranges, write_shard
from xmodal.records.tables import Caption, Item, Split
from xmodal.root.storage import open_storage

BARS = {"first_step_vs_one_pass": Bar(maximum=1.5), "first_step_mb": Bar(maximum=1500)}
TRAIN, VALIDATION, TEST, CAPTIONS = 113_287, 5_000, 5_000, 616_767  # of COCO, as Karpathy divides it
WORDS = 11_751  # that COCO's training captions have four times or more
SPEC = FeatureSpec("pooled", (2048,))
ROUNDS = 3
ONE_PASS = [sys.executable, "-m", "tests.benchmarks.one_pass"]
LONGEST = 300  # seconds until a run that takes no step counts as broken


@dataclass(frozen=True)
class Pooled:
    items: int = TRAIN + VALIDATION


def measure() -> dict[str, Measured]:
    with tempfile.TemporaryDirectory() as folder:
        captions = make_root(Path(folder) / "root")
        rounds = []
        for number in range(ROUNDS):
            plain = timed(lambda: subprocess.run([*ONE_PASS, captions], check=True))
            rounds.append((plain, *first_step(f"{folder}/root", f"{folder}/run{number}")))
    plain, step, peak = (statistics.median(figures) for figures in zip(*rounds, strict=True))
    ratios, peaks = tuple(round(step / plain, 3) for plain, step, _ in rounds), tuple(mb for *_, mb in rounds)
    told = f"torch imported, {CAPTIONS:,} captions read, counted and encoded once: {plain:.1f} s; ours {step:.1f} s"
    return {
        "first_step_vs_one_pass": Measured(statistics.median(ratios), "x", told, ratios),
        "first_step_mb": Measured(peak, "MB", "peak RSS of the process until then, with mapped pages", peaks),
    }


def make_root(root: Path) -> str:
    """Records of COCO's size with features of the items to train and to choose on; the path of the captions."""
    records = tables(root, "coco", _rows())
    build(Stage("resnet", Pooled(), _plan, _open), open_storage(str(root)))
    return str(root / records.folder / "captions.parquet")


def _rows() -> Iterator[Item | Caption | Split]:
    texts = _captions(CAPTIONS, WORDS)
    items = TRAIN + VALIDATION + TEST
    sixth = CAPTIONS - 5 * items  # so many items have a sixth caption
    for item in range(items):
        part = "train" if item < TRAIN else "val" if item < TRAIN + VALIDATION else "test"
        yield Item(f"{item}", f"zips/pictures.zip!{item}.jpg", width=640, height=480)
        yield Split(f"{item}", f"karpathy/{part}")
        for position in range(6 if item < sixth else 5):
            yield Caption(f"{item}#{position}", f"{item}", position, next(texts))


def _plan(config: Pooled, inputs: Inputs) -> Iterator[tuple[str, range]]:
    yield "index", range(0)
    yield from ((f"shard-{n:05d}", items) for n, items in enumerate(shard_ranges(SPEC, config.items)))


def _open(config: Pooled, inputs: Inputs) -> Callable[[range, Sink], Counts]:
    def write(items: range, sink: Sink) -> Counts:
        if not items:
            for name, data in index_files(SPEC, [f"{item}" for item in range(config.items)], {}).items():
                with sink.file(name) as file:
                    file.write(data)
            return {}
        values = np.random.default_rng(items.start).random((len(items), 2048), np.float32).astype(np.float16)
        with sink.file(shard_file(SPEC, items.start // SPEC.shard_items)) as file:
            write_shard(file, SPEC, items, [values])
        return {"rows": len(items)}

    return write


def first_step(root: str, run: str) -> tuple[float, float]:
    """Seconds from the command to the first line of the log, and the MB of the process' peak until then."""
    command = [sys.executable, "-m", "pipelines.cli", "train", "vsepp", "--root", root, "--run", run]
    log, began = Path(run) / "log.jsonl", time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        try:
            while not (log.exists() and log.stat().st_size):
                if training.poll() is not None or time.perf_counter() - began > LONGEST:
                    raise RuntimeError(f"the training ended with {training.poll()} and took no step")
                time.sleep(0.005)
            seconds = time.perf_counter() - began
            peak = _peak(training.pid)
        finally:
            training.kill()
    return seconds, peak


def _peak(process: int) -> float:
    """The peak RSS in MB, mapped pages included: ru_maxrss, which for a child begins with what its parent has."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024
