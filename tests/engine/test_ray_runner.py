"""The Ray runner: the same bytes as the serial one, and what it does when workers and units misbehave."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.engine import ray_runner
from pipelines.engine.building import build, pending
from pipelines.engine.ray_runner import RayRunner
from pipelines.engine.stage import Resources
from tests.conftest import tree_digest
from tests.toy_stages import Letters, Words, deadly, failing, letters, words
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
