"""Kills at random moments: a short draw from tests/chaos/schedules.py, which runs as many as one likes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from pipelines.engine.building import build
from tests.chaos.driver import work
from tests.chaos.schedules import Schedule, Victim, run
from tests.conftest import tree_digest
from xmodal.root.storage import open_storage


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("undisturbed"))
    build(work(), open_storage(root))
    return tree_digest(root)


KILLS: list[tuple[Victim, int, float]] = [
    ("driver", 2, 0.3),
    ("worker", 1, 0.4),
    ("worker", 4, 0.1),
    ("raylet", 2, 0.2),
]


@pytest.mark.parametrize(("victim", "workers", "delay"), KILLS)
def test_a_kill_leaves_no_trace(tmp_path: Path, undisturbed: str, victim: Victim, workers: int, delay: float) -> None:
    _survive(str(tmp_path), Schedule(workers, ((victim, delay),)), undisturbed)


def test_kills_leave_no_trace_on_s3(s3_root: str, undisturbed: str) -> None:
    _survive(s3_root, Schedule(2, (("driver", 0.4), ("worker", 0.3))), undisturbed)


def _survive(root: str, schedule: Schedule, undisturbed: str) -> None:
    assert run(root, schedule) == len(schedule.kills)
    assert tree_digest(root) == undisturbed


def test_a_node_that_is_lost_does_not_stop_the_build(tmp_path: Path, undisturbed: str) -> None:
    """Two nodes of one CPU; the one without the driver loses its raylet while units are at work on it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        command = [sys.executable, "-m", "tests.chaos.driver", str(tmp_path / "root"), "4", cluster.address]
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        _wait_for_a_commit(tmp_path / "root")
        cluster.remove_node(lost, allow_graceful=False)
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors.decode()
    finally:
        cluster.shutdown()
    assert tree_digest(str(tmp_path / "root")) == undisturbed


def _wait_for_a_commit(root: Path) -> None:
    until = time.monotonic() + 60
    while not list(root.glob("*/*/data/*")) and time.monotonic() < until:
        time.sleep(0.05)
