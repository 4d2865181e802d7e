"""Doctor: what this machine has and lacks, said so that one can act on it."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections import namedtuple
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipelines import stages
from pipelines.cli import main
from pipelines.upkeep.machine import Check, examine, how_to_install

ROOT = Path(__file__).parents[2]
SITE = Path(importlib.metadata.distribution("pyarrow").locate_file(""))  # type: ignore[arg-type]
LIGHT = {  # what each distribution puts among the packages
    "pyarrow": ("pyarrow",),
    "numpy": ("numpy",),
    "fsspec": ("fsspec",),
    "google-crc32c": ("google_crc32c",),
    "pillow": ("PIL", "pillow"),
    "cloudpickle": ("cloudpickle",),
}
CALL = "import sys; from pipelines.cli import main; sys.exit(main())"
Usage = namedtuple("Usage", "total used free")


def by_name(root: str | None = None) -> dict[str, Check]:
    return {check.name: check for check in examine(root)}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A site-packages folder with the packages that parsing needs, as after an install without extras."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in chain.from_iterable(LIGHT.values()):
        for found in SITE.glob(f"{name}*"):
            (folder / found.name).symlink_to(found)
    return folder


def run_bare(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-B", "-S", "-c", CALL, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_every_check_says_what_it_is_for_and_what_is_amiss_has_a_remedy() -> None:
    for check in examine(None):
        assert check.purpose
        assert check.found
        assert check.verdict == "ok" or check.remedy


def test_what_is_installed_is_found_with_its_version() -> None:
    found = by_name()
    assert found["pyarrow"].verdict == "ok"
    assert found["pyarrow"].found == importlib.metadata.version("pyarrow")
    assert found["python"].found.startswith(f"3.{sys.version_info.minor}.")


def test_a_machine_without_extras_is_fine_and_hears_what_each_would_give(bare: Path) -> None:
    said = run_bare(bare, "doctor", "--json")
    assert (said.returncode, said.stderr) == (0, "")
    checks: dict[str, Any] = {check["name"]: check for check in json.loads(said.stdout)}
    assert {name for name, check in checks.items() if check["verdict"] == "missing"} == {
        *(
            "nltk",
            "shtab",
            "ray",
            "s3fs",
            "torch",
            "torchvision",
            "safetensors",
            "timm",
            "transformers",
            "opencv-contrib-python-headless",
            "av",
            "simplejpeg",
            "scikit-learn",
            "spacy",
            "gensim",
            "opencv-contrib-python-headless",
        ),
        *(
            "stage clips",
            "stage clusters",
            "stage codebook",
            "stage frames",
            "stage resnet",
            "stage features",
            "stage clip_features",
        ),
        *("stage regions", "stage proposals", "stage tags"),
    }
    assert checks["stage frames"]["found"] == "without av"
    assert checks["stage frames"]["remedy"] == "av is not installed: pip install -e '.[video]' in the checkout"
    assert checks["stage clips"]["found"] == "without torch and torchvision and simplejpeg; reads --file weights=PATH"
    assert "pip install -e '.[train]'" in checks["stage clips"]["remedy"]
    assert checks["ray"]["remedy"] == "pip install -e '.[cluster]' in the checkout"
    assert "--serial" in checks["ray"]["purpose"]
    assert checks["torch"]["remedy"] == "pip install -e '.[train]' in the checkout"


@pytest.mark.parametrize("package", LIGHT)
def test_a_machine_without_a_package_that_everything_needs_is_told_so(package: str, bare: Path) -> None:
    for name in LIGHT[package]:
        for found in bare.glob(f"{name}*"):
            found.unlink()
    said = run_bare(bare, "doctor")
    assert said.returncode == 1
    assert "Traceback" not in said.stderr
    assert f"pip install {package}" in said.stdout + said.stderr


def test_a_build_without_ray_says_how_to_get_it_or_do_without(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.txt").write_text("a")
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from xmodal.corpora import Corpus, Source\n"
        "CORPUS = Corpus('toy', '', 'CC0', 'toy', (Source('a.txt', how='ask'),), parse=lambda raw: iter(()))\n"
    )
    build = ("build", str(mine), "--root", str(tmp_path / "root"), "--raw", str(tmp_path / "raw"))
    said = run_bare(bare, *build, "--workers", "1")
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("xmodal: ray is not installed: pip install -e '.[cluster]'")
    assert "--serial" in said.stderr
    assert run_bare(bare, *build).returncode == 0, "a small build needs no Ray"
    assert run_bare(bare, *build, "--workers", "1").returncode == 0, "nor does what is up to date"


def test_doctor_says_of_each_stage_what_it_declares() -> None:
    """Declarations are read as text, so they must be literals."""
    found = by_name()
    for kind in stages.all():
        told = found[f"stage {kind.name}"].found if kind.packages or kind.files else ""
        assert all(package in told for package in kind.packages)
        assert all(f"--file {file}=PATH" in told for file in kind.files)
        assert all(how_to_install(package) for package in kind.packages), "an extra brings it"


def test_a_good_root_is_tried_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    checks = by_name(str(root))
    assert checks[f"root {root}"].verdict == "ok"
    assert "GB free" in checks["disk of the root"].found
    assert list(root.rglob("*")) == []


def test_a_root_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    assert by_name(str(tmp_path / "new/root"))[f"root {tmp_path}/new/root"].verdict == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_root_that_is_a_file_is_broken_and_doctor_exits_non_zero(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert main(["doctor", "--root", f"{tmp_path}/file{below}"]) == 1
    said = capsys.readouterr()
    assert "choose a folder you can write to" in said.out + said.err
    assert "Traceback" not in said.err


def test_a_root_on_s3_is_tried_too(s3_root: str) -> None:
    assert by_name(s3_root)[f"root {s3_root}"].verdict == "ok"


@pytest.mark.parametrize("root", ["nowhere://bucket/x", "s3://no-such-bucket-here/x"])
def test_a_root_that_cannot_be_reached_is_broken_and_no_traceback(
    root: str, s3_endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--root", root]) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert root in said.out + said.err


def test_little_shared_memory_and_little_disk_are_said_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.upkeep.machine.shutil.disk_usage", lambda path: Usage(2**26, 0, 2**26))
    checks = by_name(str(tmp_path))
    assert checks["/dev/shm"].verdict == "broken"
    assert "--shm-size" in checks["/dev/shm"].remedy
    assert (checks["disk of the root"].verdict, checks["disk of the root"].remedy) == ("broken", "free some space")
    assert not any(check.needed for check in (checks["/dev/shm"], checks["disk of the root"]))


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="there is no torchvision to fit")
def test_a_torch_that_does_not_fit_its_torchvision_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name()["torch for torchvision"].verdict == "ok"
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = by_name()["torch for torchvision"]
    assert (check.verdict, check.found) == ("broken", "RuntimeError: operator torchvision::nms does not exist")
    assert check.remedy.startswith("pip install ")
