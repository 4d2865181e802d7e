"""Seeded kill schedules: what is killed, when and how often is drawn from the seed; the build must still end right.

    python -m tests.chaos.schedules 50        fifty schedules, on a local root and on S3 by turns

A schedule kills drivers, workers or raylets at random moments, starts the driver again, and compares the finished root
with one that was never disturbed. What dies a second later (Ray's agents, a dead driver's workers) is left to die. Some
kills come too late and hit nothing; how many hit is printed. That a crash at each single change of the file system does
no harm is tests/engine/test_engine.py's to show.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Literal

import psutil

from pipelines.engine.building import build
from tests.chaos.driver import work
from tests.conftest import new_bucket, s3_server, tree_digest
from xmodal.root.storage import open_storage

Victim = Literal["driver", "worker", "raylet"]
VICTIMS: tuple[Victim, ...] = ("driver", "worker", "raylet")
LONGEST_RUN_SECONDS = 120.0


@dataclass(frozen=True)
class Schedule:
    """`kills` are (victim, seconds after the first worker has started)."""

    workers: int
    kills: tuple[tuple[Victim, float], ...]


def schedule(seed: int) -> Schedule:
    draw = random.Random(seed)
    kills = tuple((draw.choice(VICTIMS), draw.uniform(0.0, 1.2)) for _ in range(draw.randint(1, 3)))
    return Schedule(draw.choice((1, 2, 4)), kills)


def run(root: str, planned: Schedule) -> int:
    """Drives the root to its end in spite of the kills; gives how many of them hit something."""
    hits = 0
    for victim, delay in planned.kills:
        driver = _start(root, planned.workers)
        _wait_for_workers(driver)
        time.sleep(delay)
        hits += _kill(victim, driver)
        if victim != "worker":
            _end(driver)  # a driver whose raylet died may take long to see it
        elif driver.wait(LONGEST_RUN_SECONDS) != 0:
            raise AssertionError("a killed worker stopped the build")
    driver = _start(root, planned.workers)
    if driver.wait(LONGEST_RUN_SECONDS) != 0:
        raise AssertionError("the last, undisturbed run failed")
    return hits


def _start(root: str, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.chaos.driver", root, str(workers)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _wait_for_workers(driver: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while driver.poll() is None and not _processes("worker", driver) and time.monotonic() < until:
        time.sleep(0.05)


def _kill(victim: Victim, driver: subprocess.Popen[bytes]) -> int:
    if victim == "driver":
        alive = driver.poll() is None
        driver.kill()
        return alive
    for process in _processes(victim, driver)[:1]:
        process.send_signal(signal.SIGKILL)
        return 1
    return 0


def _processes(victim: Victim, driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Ray's processes of this driver: actors at work, or the raylet that started them."""
    mark = "_Actor" if victim == "worker" else "raylet/raylet"
    found = []
    try:
        for process in psutil.Process(driver.pid).children(recursive=True):
            try:
                if mark in " ".join(process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
    except psutil.NoSuchProcess:
        return []
    return found


def _end(driver: subprocess.Popen[bytes]) -> None:
    """A driver whose raylet died is ended by Ray after some 15 seconds; meanwhile it must do no harm."""
    try:
        driver.wait(3)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, s3_server() as endpoint:
        build(work(), open_storage(f"{folder}/undisturbed"))
        expected = tree_digest(f"{folder}/undisturbed")
        hit = 0
        for seed in range(count):
            started = time.monotonic()
            root = new_bucket(endpoint) if seed % 2 else f"{folder}/{seed}"
            hits = run(root, schedule(seed))
            seconds = time.monotonic() - started
            assert tree_digest(root) == expected, f"seed {seed}: {schedule(seed)} left another tree"
            hit += hits
            print(f"seed {seed}: {schedule(seed)}, {hits} hits, same bytes, {seconds:.0f} s", flush=True)
        assert hit >= count / 2, f"only {hit} kills hit anything: the schedules show nothing"


if __name__ == "__main__":
    main(int(sys.argv[1]))
