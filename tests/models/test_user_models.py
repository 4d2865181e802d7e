"""A model in a user's own file: trained and evaluated by its path, and refused in words where it is wrong."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.engine.ray_runner import disconnect
from pipelines.papers.recipe_runs import find_recipe, recipe_with, train_on_ray
from tests.toy_root import make_root
from tests.toy_root import one_thread as one_thread
from xmodal import models
from xmodal.checks.model_contract import faults
from xmodal.errors import UserError
from xmodal.training import run_folder
from xmodal.training.run_setup import Setup

TOY = Path(__file__).parents[1] / "fixtures/toy_model.py"
SECOND = 'RECIPES = (TOY, replace(TOY, name="narrow", model=ToyConfig(8)))\n'


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=60)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Path(shutil.copy(TOY, tmp_path / "mine.py"))


@pytest.fixture
def xmodal(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


def done(said: tuple[int, str, str]) -> Any:
    assert said[0] == 0, said[2]
    return json.loads(said[1])


def test_a_file_is_trained_and_its_run_evaluated(
    xmodal: Callable[..., tuple[int, str, str]], mine: Path, root: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained = done(xmodal("train", mine, "--root", root, "--run", run, "--json"))
    assert trained["recipe"] == "toy"
    report = done(xmodal("evaluate", run, "--root", root, "--json"))
    assert report["split"] == "toy/test"
    assert (run / "model.py").read_bytes() == mine.read_bytes()
    done(xmodal("train", mine, "--root", root, "--run", run, "--json"))


def test_its_settings_are_listed(xmodal: Callable[..., tuple[int, str, str]], mine: Path) -> None:
    names = [row["name"] for row in done(xmodal("settings", mine, "--json"))["settings"]]
    assert {"model.width", "phase1.epochs", "recipe.batch_size"} <= set(names)


def test_of_several_recipes_one_is_named(mine: Path) -> None:
    mine.write_text(mine.read_text().replace("RECIPES = (TOY,)\n", SECOND))
    assert recipe_with(f"{mine}:narrow", ["seed=3"]).seed == 3
    with pytest.raises(UserError, match=r"several recipes, so say which; there are: \S+mine.py:toy, \S+mine.py:narrow"):
        find_recipe(str(mine))
    with pytest.raises(UserError, match=r"has no recipe 'wide'; there are: "):
        find_recipe(f"{mine}:wide")


@pytest.mark.parametrize("named", ["", ":toy"])
def test_two_recipes_of_one_name_are_refused(named: str, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("RECIPES = (TOY,)", "RECIPES = (TOY, replace(TOY, seed=1))"))
    with pytest.raises(UserError, match=r"mine\.py has several recipes 'toy': give each its own name$"):
        find_recipe(f"{mine}{named}")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda file: file.write_text(file.read_text() + "# more\n"), r"was changed since: the run's folder has it as"),
        (lambda file: file.unlink(), r"mine\.py, which is gone: the run's folder has it as model\.py"),
    ],
    ids=["changed", "gone"],
)
def test_a_run_executes_only_the_bytes_it_was_trained_with(
    edit: Callable[[Path], object],
    said: str,
    xmodal: Callable[..., tuple[int, str, str]],
    mine: Path,
    root: str,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    done(xmodal("train", mine, "--root", root, "--run", run, "--set", "epochs=1", "--json"))
    edit(mine)
    with pytest.raises(UserError, match=said):
        run_folder.read(str(run))
    shutil.copy(run / "model.py", mine)
    assert run_folder.read(str(run)).recipe.name == "toy"


def test_a_run_of_a_stranger_names_no_file_by_where_one_happens_to_be(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path, or one through /proc, would be whatever lies in the folder that the run came with."""
    sha256 = models.reference(find_recipe(str(mine)).model).rpartition("@")[2]
    monkeypatch.chdir(tmp_path)
    for path in ("mine.py", "/proc/self/cwd/mine.py", f"{tmp_path}/../{tmp_path.name}/mine.py"):
        with pytest.raises(UserError, match="which is gone"):
            models.load(f"{path}@{sha256}")
    assert models.load(f"{mine}@{sha256}").__file__ == str(mine)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RECIPES = [1]\n", r"defines no RECIPES: a tuple of xmodal\.recipes\.Recipe"),
        ("", r"defines no RECIPES"),
        ("import nowhere_to_be_found\n", r"model file \S+ cannot be loaded: ModuleNotFoundError"),
        ("def build(:\n", r"cannot be loaded: SyntaxError"),
    ],
)
def test_a_file_that_is_no_model_is_refused(text: str, said: str, mine: Path) -> None:
    mine.write_text(text)
    with pytest.raises(UserError, match=said):
        find_recipe(str(mine))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"no model file nowhere/mine\.py: No such file"):
        find_recipe("nowhere/mine.py")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module among the models, as a developer adds one."""
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    yield tmp_path / "added.py"
    sys.modules.pop("xmodal.models.added", None)
    vars(models).pop("added", None)


def test_a_module_without_recipes_is_refused_alone(module: Path) -> None:
    module.write_text("")
    assert find_recipe("vsepp").name == "vsepp"
    with pytest.raises(UserError, match=r"no recipe 'added'; there are: .*vsepp.*; model added defines no RECIPES"):
        find_recipe("added")


def test_two_recipes_of_one_name_are_refused_and_their_modules_named(module: Path) -> None:
    module.write_text(TOY.read_text().replace('name="toy"', 'name="vsepp"'))
    said = r"'vsepp' is defined twice, in xmodal/models/added\.py and xmodal/models/vsepp\.py: give one"
    with pytest.raises(UserError, match=said):
        find_recipe("vsepp")
    assert find_recipe("vse0").name == "vse0"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "visual @ text.T",
            "text @ visual.T",
            r"similarity\(\) of Toy gives \(4, 8\), its transpose, .*: return \(8, 4\)",
        ),
        (
            "visual @ text.T",
            "(visual @ text.T)[0]",
            r"similarity\(\) of Toy gives \(4,\), for 8 visual and 4 text rows",
        ),
        ("similarity(self", "scores(self", "toy: Toy has no similarity, to be trained by"),
    ],
    ids=["transposed", "a row", "none"],
)
def test_scores_that_cannot_be_measured_are_refused_before_training(
    old: str, new: str, said: str, xmodal: Callable[..., tuple[int, str, str]], mine: Path, root: str, tmp_path: Path
) -> None:
    of_loss = "compare_gathered(lambda visual, text: visual @ text.T, visual, text)"  # the loss does without
    text = mine.read_text().replace("compare_gathered(self.similarity, visual, text)", "LOSS")
    mine.write_text(text.replace(old, new).replace("LOSS", of_loss))
    code, _, err = xmodal("train", mine, "--root", root, "--run", tmp_path / "run", "--quiet")
    assert code == 1
    assert re.search(said, err)
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
    assert faults(models.load(str(mine)))


def test_the_toy_keeps_the_contract() -> None:
    assert list(faults(models.load(str(TOY)))) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@dataclass(frozen=True)\n", "@dataclass\n", "ToyConfig is not a frozen dataclass"),
        ("    width: int = 16\n", "    width: object = frozenset({16})\n", "a field that is no plain value"),
        ('{"matching": matching, "length"', '{"match": matching, "length"', r"terms length, match, and phase 1 weighs"),
        (".masked_fill(~text.mask, 0)", "", "what lies beyond an item's length is read"),
        ("visual @ text.T", "visual @ text.T / len(text)", "scores depend on the block"),
        ("visual.average()", "visual.values.nan_to_num().mean(1)", "has another score|changes its scores"),
        ("RECIPES = (TOY,)", "RECIPES = (TOY, TOY)", "2 recipes have the name 'toy'"),
        ("visual @ text.T", "visual @ text.T + nn.Dropout(0.5).train()(visual[:, :1])", "a second time"),
        ("SMALL = (ToyConfig(),)", "SMALL = (ToyConfig(1),)", "steps of Adam at 0.01 on eight pairs find"),
        ("self.visual(visual.average())", "visual.average()[:, :16] * self.visual.weight.shape[0]", "gradient|ends in"),
    ],
)
def test_what_breaks_the_contract_is_said(old: str, new: str, said: str, mine: Path) -> None:
    assert old in mine.read_text()
    mine.write_text(mine.read_text().replace(old, new))
    assert any(re.search(said, fault) for fault in faults(models.load(str(mine))))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_file_is_trained_by_processes_of_a_cluster(mine: Path, root: str, tmp_path: Path) -> None:
    recipe = recipe_with(str(mine), ["epochs=1"])
    try:
        outcome = train_on_ray(recipe, Setup(root, threads=1), tmp_path / "run", workers=2, address=None)
    finally:
        disconnect()
    assert outcome["recipe"] == "toy"
    assert run_folder.read(str(tmp_path / "run")).recipe == recipe
