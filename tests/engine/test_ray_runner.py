"""The Ray runner: the same bytes as the serial one, and what it does when workers and units misbehave."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import sleep

import psutil
import pytest

from pipelines.engine import ray_runner
from pipelines.engine.building import build, pending
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.stage import Resources
from tests.conftest import tree_digest
from tests.toy_stages import Letters, Words, deadly, failing, letters, together, words
from xmodal.errors import UserError
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_bytes_of_a_serial_run(any_root: str, tmp_path: Path, workers: int) -> None:
    stage = words(letters(Letters(30)), Words())
    build(stage, open_storage(any_root), RayRunner(workers))
    build(stage, open_storage(str(tmp_path / "serial")))
    assert tree_digest(any_root) == tree_digest(str(tmp_path / "serial"))


def test_a_unit_that_kills_its_worker_is_named_and_costs_no_other_unit(tmp_path: Path) -> None:
    storage, stage = open_storage(str(tmp_path)), deadly(40, victim=17)
    with pytest.raises(UserError, match="unit 00017 has killed its worker 3 times"):
        build(stage, storage, RayRunner(2))
    assert not Output(storage, stage.folder).complete


def test_an_exception_in_a_worker_reaches_the_driver_with_its_unit(tmp_path: Path) -> None:
    storage, stage = open_storage(str(tmp_path)), failing(40, victim=17)
    with pytest.raises(ZeroDivisionError) as caught:
        build(stage, storage, RayRunner(2))
    assert "in unit 00017 of stage failing" in caught.value.__notes__
    total, left = pending(stage, storage)
    assert total == 40
    assert left < 40  # what was done before the failure stays done


def test_a_worker_that_is_too_big_for_the_cluster_is_refused(tmp_path: Path) -> None:

    stage = replace(letters(Letters(3)), resources=Resources(cpus=1, gpus=3))
    with pytest.raises(UserError, match=r"no node of the Ray cluster has room for a worker: it needs 1 CPU, 3 GPU"):
        build(stage, open_storage(str(tmp_path)), RayRunner())


def test_what_ended_clusters_left_is_swept_after_a_day(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folders = {name: tmp_path / f"session_2026-01-01_00-00-00_000001_{name}" for name in (ended.pid, os.getpid(), "x")}
    young = tmp_path / f"session_2026-01-02_00-00-00_000001_{ended.pid}"
    for folder in (*folders.values(), young):
        (folder / "logs").mkdir(parents=True)
        os.utime(folder, None if folder == young else (0, 0))
    ray_runner._sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([folders[os.getpid()], folders["x"], young])


def test_a_worker_with_a_gpu_does_units_at_once_on_all_cpus_of_its_machine(tmp_path: Path) -> None:
    """Two decode on the two CPUs, one is at the network, one writes: none of them ends before all four are begun."""
    ends_as_a_serial_run(on_a_gpu(tmp_path / "ray", "together", 8, 4), tmp_path)


def test_ctrl_c_ends_all_units_of_a_worker_and_the_next_build_does_them(tmp_path: Path) -> None:
    """Four are begun, which wait for a fifth."""
    driver = on_a_gpu(tmp_path / "ray", "together", 8, 5)
    while driver.poll() is None and len([*tmp_path.glob("ray/together/*/_runs/attempts/*/_said")]) < 4:
        sleep(0.05)
    workers = [
        one for one in psutil.Process(driver.pid).children(recursive=True) if "_Actor" in " ".join(one.cmdline())
    ]
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate()
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert not psutil.wait_procs(workers, 60)[1]
    ends_as_a_serial_run(on_a_gpu(tmp_path / "ray", "together", 8, 4), tmp_path)


def test_a_unit_that_kills_its_worker_is_named_among_those_at_work_with_it(tmp_path: Path) -> None:
    driver = on_a_gpu(tmp_path, "deadly", 12, 5)
    assert "unit 00005 has killed its worker 3 times" in driver.communicate()[1]


def on_a_gpu(root: Path, stage: str, *numbers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engine.gpu_driver", str(root), stage, *map(str, numbers)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def ends_as_a_serial_run(driver: subprocess.Popen[str], folder: Path) -> None:
    _, errors = driver.communicate()
    assert driver.returncode == 0, errors
    build(together(8, 1), open_storage(str(folder / "serial")))
    assert tree_digest(str(folder / "ray")) == tree_digest(str(folder / "serial"))
