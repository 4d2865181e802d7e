"""The clusters stage: classes that k-means finds among a split's pictures, and training on them as on items."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.cli import main
from pipelines.engine.building import build, serial
from pipelines.papers.experiments import Available, find
from pipelines.papers.reproduction import to_run
from pipelines.stages.clusters import ClustersConfig
from tests.conftest import tree_digest
from tests.made import made
from tests.toy_root import fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_trunk import make_root as make_pictures
from xmodal import find as find_outputs
from xmodal.batches.cluster_classes import k_means, pooled_rows, read_classes
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.store import FeatureStore
from xmodal.models.dual_path import FLICKR30K, DualPathConfig
from xmodal.recipes import View
from xmodal.records.views import members
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.run_setup import Setup

COUNT, SPLIT, ABSENT = 5, "toy/train", 3
CONFIG = ClustersConfig(COUNT, SPLIT)
MODEL = DualPathConfig((1, 1, 1, 1), channels=16, width=32, word_width=12, length=16, dropout=0.2, clusters=COUNT)
SMALL = recipe(model=MODEL, phases=(replace(FLICKR30K.phases[0], epochs=1),))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """47 pictures to train on, whose features are grids of two places."""
    return make_root(tmp_path_factory.mktemp("clusters"), items=60, absent=(ABSENT,), places=2)


@pytest.fixture(scope="module")
def clusters(root: str) -> Output:
    return clustered(root, CONFIG)


def clustered(root: str, config: ClustersConfig, into: str = "") -> Output:
    (records,), (resnet,) = (find_outputs(root, stage) for stage in ("records", "resnet"))
    return build(made("clusters", config, records=records, resnet=resnet), open_storage(into or root), serial)


def groups(output: Output, ids: list[str]) -> list[list[str]]:
    found = read_classes(output, ids)
    return [[id for id, one in zip(ids, found.tolist(), strict=True) if one == number] for number in range(COUNT)]


def test_every_picture_of_the_split_is_nearest_to_the_mean_of_its_class(root: str, clusters: Output) -> None:
    (records,), (resnet,) = (find_outputs(root, stage) for stage in ("records", "resnet"))
    store = FeatureStore(resnet)
    ids = sorted(members(records, SPLIT) - {f"p{ABSENT:04d}"})
    assert clusters.totals["counts"] == {"items": len(ids), "classes": COUNT}
    rows = store.read(ids).astype(np.float64).mean(axis=1)
    np.testing.assert_allclose(pooled_rows(store, ids), rows, atol=1e-3)
    found = read_classes(clusters, ids)
    means = np.array([rows[found == number].mean(axis=0) for number in range(COUNT)])  # a NaN if one were empty
    distances = ((rows[:, None] - means) ** 2).sum(axis=2)
    np.testing.assert_array_equal(distances.argmin(axis=1), found)


def test_it_gives_the_same_bytes_again_and_others_by_another_seed(root: str, clusters: Output, tmp_path: Path) -> None:
    again = clustered(root, CONFIG, str(tmp_path))
    assert tree_digest(again.where) == tree_digest(clusters.where)
    other = clustered(root, replace(CONFIG, seed=1), str(tmp_path))
    (records,) = find_outputs(root, "records")
    ids = sorted(members(records, SPLIT) - {f"p{ABSENT:04d}"})
    assert groups(other, ids) != groups(clusters, ids)


def test_more_classes_than_there_are_pictures_or_different_rows_are_refused(root: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"47 pictures of 'toy/train' have features, too few for 48 classes: --set cl"):
        clustered(root, replace(CONFIG, count=48), str(tmp_path))
    with pytest.raises(UserError, match="k-means cannot make 3 classes"):
        k_means(np.array([[1.0], [2.0], [1.0], [2.0]], np.float32), 3, 10, 0)


def test_a_run_learns_the_clusters_and_stays_with_them(root: str, clusters: Output, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    outcome = fit(SMALL, root, run)
    assert len(read_tensors(run, run_folder.BEST)["classifier.weight"]) == COUNT
    assert run_folder.read(run).clusters == clusters.identity
    assert evaluate(run, Setup(root), "toy/val").items > 0
    assert not fit(SMALL, root, run).trained
    assert outcome.trained
    plain = str(tmp_path / "plain")
    fit(replace(SMALL, model=replace(MODEL, clusters=0)), root, plain)
    assert "clusters" not in json.loads((Path(plain) / "recipe.json").read_text())  # as runs were before


def test_clusters_that_are_not_there_are_asked_for(root: str, clusters: Output, tmp_path: Path) -> None:
    other = replace(SMALL, model=replace(MODEL, clusters=7))
    settings = "--set clusters.count=7 --set clusters.split=toy/train"
    told = rf"no 7 clusters of toy/train by .*build it first \(`.*pictures/clusters --root [^`]* {settings}`\)"
    with pytest.raises(UserError, match=told):
        fit(other, root, str(tmp_path / "run"))
    copy = make_root(tmp_path / "copy", items=60, places=2)
    for seed in (0, 1):
        clustered(copy, replace(CONFIG, seed=seed))
    with pytest.raises(UserError, match=r"several 5 clusters of toy/train.*seed=(0|1).*seed=(0|1)"):
        fit(SMALL, copy, str(tmp_path / "run"))


def test_the_command_for_clusters_names_the_features_that_are_read(tmp_path: Path) -> None:
    views = {"view": View("pictures", "train"), "validation": View("pictures", "val")}
    with pytest.raises(UserError) as told:
        fit(replace(SMALL, **views), make_pictures(tmp_path, "pooled"), str(tmp_path / "run"))
    settings = "--set resnet.network=resnet18 --set resnet.weights=random:0 --set resnet.output=pooled"
    assert settings in str(told.value)


def test_classes_of_other_pictures_are_refused(clusters: Output) -> None:
    with pytest.raises(UserError, match="has no class of 'p9999' and 0 others: build it again"):
        read_classes(clusters, ["p0000", "p9999"])


def test_the_rows_of_the_paper_name_what_to_build() -> None:
    (table,) = find("dual_path table 4")
    commands = to_run(table, Available.now(["train", "evaluate", "build"]))
    for count in (3000, 10_000):
        recipe = f"dual-path-coco-{count}-classes-stage1"
        (built,) = (one for one in commands if f"clusters.count={count} " in one)
        assert built.startswith("xmodal build coco/clusters --root data ")
        assert "resnet.output=pooled" in built
        assert built.endswith("--set clusters.split=karpathy/train")
        assert any(one.startswith(f"xmodal train {recipe} ") for one in commands)


def test_the_table_is_written_for_any_reader(clusters: Output) -> None:
    table = pq.read_table(Path(clusters.where) / "clusters.parquet")
    assert table.column_names == ["item", "class"]
    assert set(table["class"].to_pylist()) == set(range(COUNT))


def test_the_command_line_knows_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "coco/clusters"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("clusters.count", "clusters.split", "clusters.rounds", "clusters.seed"))
