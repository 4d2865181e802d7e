"""Packaging: who may install what, and which files an installation has."""

import re
import subprocess
import tomllib
from importlib.resources import files
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()
DECLARED = [*PROJECT["project"]["dependencies"], *chain(*PROJECT["project"]["optional-dependencies"].values())]


def test_type_checkers_of_users_see_the_types() -> None:
    assert files("xmodal").joinpath("py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["xmodal"]


@pytest.mark.parametrize("python", ["3.11", "3.13", "3.14", "3.15"])
def test_newer_pythons_are_let_in_and_only_decord_stays_out(python: str) -> None:
    requirements = pytest.importorskip("packaging.requirements")
    specifiers = pytest.importorskip("packaging.specifiers")
    assert f"{python}.0" in specifiers.SpecifierSet(PROJECT["project"]["requires-python"])
    asked = [requirements.Requirement(text) for text in DECLARED]
    left_out = {one.name for one in asked if one.marker and not one.marker.evaluate({"python_version": python})}
    assert left_out == ({"decord"} if python in ("3.14", "3.15") else set())


def test_a_newer_torch_is_let_in() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    (torch,) = (one for one in map(requirements.Requirement, DECLARED) if one.name == "torch")
    assert {"2.14.1", "2.15.0"} <= {*torch.specifier.filter(["2.13.0", "2.14.1", "2.15.0"])}


def test_what_everybody_installs_is_pinned_for_tests() -> None:
    pinned = {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in CONSTRAINTS}
    names = {re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", text)[0]).lower() for text in DECLARED}  # type: ignore[index]
    assert names - pinned <= {"xmodal", "packaging"}


def test_a_linked_environment_is_no_change_for_git(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    (tmp_path / ".venv").symlink_to(tmp_path.parent)
    said = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said == "?? .gitignore\n"


def test_files_beside_the_code_are_installed_with_it() -> None:
    packaged = PROJECT["tool"]["setuptools"]["package-data"]
    said = subprocess.run(["git", "ls-files", *packaged], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    beside = [Path(path) for path in said.splitlines() if not path.endswith(".py")]
    patterns = [f"{package}/{pattern}" for package, some in packaged.items() for pattern in some]
    assert [path for path in beside if not any(path.match(pattern) for pattern in patterns)] == []
