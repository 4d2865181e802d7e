"""The demo: the whole way on a generated world, honest recall far above chance, and nothing done twice."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

import xmodal
from pipelines.cli import main
from pipelines.commands.installation.demo import text
from pipelines.demo import coco
from pipelines.demo.run import demo, learned, recipes, shows
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.papers import recipe_runs
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.conftest import tree_digest
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.root.storage import open_storage
from xmodal.training.run_setup import Setup

TINY = {"resnet.resize": 64, "resnet.crop": 64, "resnet.rows_per_shard": 128, "pixels.side": 64}


def test_everything_is_built_once_and_then_up_to_date(tmp_path: Path) -> None:
    site, world = BuildOptions(open_storage(str(tmp_path / "root")), settings=TINY), World(120, image_size=64)
    first = demo(site, tmp_path, world)
    assert all(row["built"] for row in first["outputs"])
    before = tree_digest(str(tmp_path / "root"))
    assert f"look tgif --root {os.path.relpath(tmp_path / 'root')} --frames" in " ".join(text(first))
    second = demo(site, tmp_path, world)
    assert not any(row["built"] for row in second["outputs"])
    assert not any(one["training"]["trained"] for one in second["runs"])
    assert [one["evaluation"] for one in second["runs"]] == [one["evaluation"] for one in first["runs"]]
    assert tree_digest(str(tmp_path / "root")) == before
    for corpus, features in (("coco", "resnet"), ("tgif", "clips"), ("mrw", "clips")):
        assert xmodal.open(str(tmp_path / "root"), corpus).store().output.stage == features


def test_pvse_finds_clips_of_scenes_that_it_was_not_trained_on(tmp_path: Path) -> None:
    site = BuildOptions(open_storage(str(tmp_path / "root")), settings=TINY)
    found = learned(site, tmp_path, shows(World(1000))[1:])
    assert [one["evaluation"]["recipe"] for one in found["runs"]] == ["demo-pvse-tgif", "demo-pvse-mrw"]
    for one in found["runs"]:
        recall, chance = (sum_of(one["evaluation"]["scores"]["all"], what) for what in ("recall", "chance"))
        assert recall > chance + 100


def sum_of(scores: dict[str, Any], what: str) -> float:
    """rsum, of what was found or of chance."""
    return float(sum(sum(scores[side][what].values()) for side in ("text_to_visual", "visual_to_text")))


def test_without_pyav_the_clips_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "av" else find(name, *rest))
    site = BuildOptions(open_storage(str(tmp_path / "root")), settings=TINY)
    result = demo(site, tmp_path, World(20, image_size=64))
    assert result["left_out"] == ["tgif", "mrw"]
    assert {row["corpus"] for row in result["outputs"]} == {"coco"}
    assert "tgif and mrw are left out, as their clips need PyAV: pip install -e '.[video]'" in " ".join(text(result))
    assert "--frames" not in " ".join(text(result))


def test_the_demo_names_its_random_weights_wherever_it_shows_features(tmp_path: Path) -> None:
    site = BuildOptions(open_storage(str(tmp_path / "root")), settings=TINY)
    row = demo(site, tmp_path, World(60, image_size=64))["outputs"][3]
    assert json.loads((Path(row["path"]) / "stage.json").read_text())["config"]["weights"] == "random:0"
    assert main(["publish", "coco", "--root", site.storage.url, "--out", str(tmp_path / "dataset")]) == 0
    assert "random:0" in (tmp_path / "dataset/README.md").read_text()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_recall_on_scenes_that_were_not_trained_on_is_far_above_chance(seed: int, tmp_path: Path) -> None:
    """Chosen on validation, asked once on test; over three times what chance would find, in each direction."""
    raw, root = tmp_path / "raw", tmp_path / "root"
    corpus = coco.write(World(600, seed=seed, image_size=64), raw)
    settings = {"resnet.network": "resnet18", "resnet.weights": f"random:{seed}"} | TINY
    settings |= {"codebook.method": "tfidf", "codebook.split": "karpathy/train"}
    site = BuildOptions(open_storage(str(root)), raw=raw, settings=settings)
    build_stages(CorpusBuild(site, corpus), ["records", "resnet", "sentences"])
    setup = Setup(str(root), threads=1)
    known = {recipe.name: recipe for recipe in recipes()} | {"cca": recipe_runs.recipes()["cca"]}
    for name in ("demo-vse0", "demo-two-branch", "cca"):
        recipe_runs.train(known[name], setup, tmp_path / name)
        report = evaluate(str(tmp_path / name), setup, "karpathy/test")
        scores = report.scores["all"]
        assert report.items == 60
        for side in (scores.visual_to_text, scores.text_to_visual):
            assert side["R@1"] > 3 * side["R@1 by chance"], name
            found, chance = (sum(side[f"R@{k}{by}"] for k in (1, 5, 10)) for by in ("", " by chance"))
            assert found > 3 * chance, name


def test_a_world_without_a_scene_to_test_on_is_refused_at_once(tmp_path: Path) -> None:
    site = BuildOptions(open_storage(str(tmp_path / "root")))
    with pytest.raises(UserError, match="the demo needs at least 10"):
        demo(site, tmp_path, World(9))
    assert not list(tmp_path.iterdir())
