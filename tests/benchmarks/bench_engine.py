"""What the engine itself costs: units that do nothing, a million planned rows, resuming over 100,000 units."""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipelines.engine import ray_runner
from pipelines.engine.building import Runner, build, serial
from pipelines.engine.journal import Journal
from tests.benchmarks.measured import Bar, Measured, median
from tests.benchmarks.noop_stage import Noop, noop
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Unit
from xmodal.root.storage import LocalStorage, open_storage

BARS = {
    "unit_overhead_serial_ms": Bar(maximum=0.5),
    "unit_overhead_ray_ms": Bar(maximum=1.0),
    "driver_mb_1e6_rows_over_1e3": Bar(maximum=200),
    "resume_s_100k_units": Bar(maximum=10),
    "status_s_100k_units": Bar(maximum=5),
    "help_s": Bar(maximum=0.5),
}
UNITS = 10_000
MANY = 100_000


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    with tempfile.TemporaryDirectory() as folder:
        ray_runner.connect()
        build(noop(Noop(1)), open_storage(f"{folder}/warm"), ray_runner.RayRunner(2))
        on_ray = median(
            lambda n: _overhead(f"{folder}/ray{n}", ray_runner.RayRunner(2)),
            5,
            "ms",
            "10,000 no-op units, many to a record, two workers",
        )
        ray_runner.disconnect()
        yield {
            "unit_overhead_serial_ms": median(
                lambda n: _overhead(f"{folder}/serial{n}", serial),
                5,
                "ms",
                "10,000 no-op units, committed with fsync, many to a record",
            ),
            "unit_overhead_ray_ms": on_ray,
            "driver_mb_1e6_rows_over_1e3": median(
                lambda n: _driver_mb(folder, n, 1_000_000) - _driver_mb(folder, n, 1_000), 1, "MB", "one row a unit"
            ),
            "resume_s_100k_units": median(
                lambda n: _resume(f"{folder}/resume{n}"), 3, "s", "all committed, unfinished"
            ),
            "status_s_100k_units": median(lambda n: _status(f"{folder}/resume{n}"), 3, "s", "finished and unfinished"),
            "help_s": median(lambda n: _seconds("--help"), 9, "s", "cold process"),
        }


def _overhead(root: str, run: Runner) -> float:
    started = time.perf_counter()
    build(noop(Noop(UNITS)), open_storage(root), run)
    return 1e3 * (time.perf_counter() - started) / UNITS


def _driver_mb(folder: str, number: int, units: int) -> float:
    """The peak of a driver's memory while two Ray workers do the units."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_engine", f"{folder}/driver{number}-{units}", str(units)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _resume(root: str) -> float:
    """100,000 units with a file each are on record in an unfinished directory: all are read and compared."""
    storage, stage = LocalStorage(root), noop(Noop(MANY))
    storage.write(f"{stage.folder}/stage.json", canonical_json(stage.about()))
    for begin in range(0, MANY, UNITS):
        names = [f"{number:09d}" for number in range(begin, begin + UNITS)]
        lines = [Unit(name, {f"{name}.bin": (1000, (name * 8)[:64])}, {"rows": 1}).line() for name in names]
        Journal(storage, f"{stage.folder}/_runs/commits").add(lines)
    started = time.perf_counter()
    build(stage, storage)
    return time.perf_counter() - started


def _status(root: str) -> float:
    """The slower of a finished root and one whose 100,000 units are on record but not finished."""
    finished = _seconds("status", "--root", root, "--json")
    storage, stage = LocalStorage(root), noop(Noop(MANY))
    storage.delete(f"{stage.folder}/complete.json")
    return max(finished, _seconds("status", "--root", root, "--json"))


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pipelines.cli", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    build(noop(Noop(int(sys.argv[2]))), open_storage(sys.argv[1]), ray_runner.RayRunner(2))
    ray_runner.disconnect()
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
