"""`xmodal demo --all`: a detector, semantics and A3VSE on a sparse corpus, once; what is printed was measured."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.commands.installation.demo import text
from pipelines.demo.sparse import recipes, sparse
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from tests.conftest import tree_digest
from tests.toy_root import one_thread as one_thread
from xmodal.evaluation.run_metrics import evaluate
from xmodal.models.a3vse import DOMAINS
from xmodal.recipes import DetectorRecipe
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import members
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.training.run_folder import read
from xmodal.training.run_setup import Setup

WORLD = World(150, image_size=64)
SHORT = DetectorRecipe(steps=4, side=64, width=4, feature=8, proposals=4)


def test_everything_is_done_once_and_what_is_printed_is_measured(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    options = BuildOptions(open_storage(root), settings={"semantics.least_score": 0.0})  # 4 steps make nothing sure
    first = sparse(options, tmp_path, WORLD, SHORT, epochs=1)
    assert [row["stage"] for row in first["outputs"]] == ["records", "media", "records", "regions", "semantics"]
    assert all(row["built"] for row in first["outputs"])
    before, runs = tree_digest(root), tree_digest(str(tmp_path / "runs"))
    second = sparse(options, tmp_path, WORLD, SHORT, epochs=1)
    assert not any(row["built"] for row in second["outputs"])
    assert not any(one["trained"] for one in (second["detector"], *(run["training"] for run in second["runs"])))
    assert [one["evaluation"] for one in second["runs"]] == [one["evaluation"] for one in first["runs"]]
    assert (tree_digest(root), tree_digest(str(tmp_path / "runs"))) == (before, runs)

    assert (first["annotated"], first["unannotated"]) == (12, 108)
    assert first["detector"]["pictures"] <= 120  # those of the other world that train
    records = find_output(root, "records", first["outputs"][2]["identity"])
    run = str(first["runs"][0]["training"]["run"])
    recipe = read(run).recipe
    assert recipe.unannotated
    semantics = first["outputs"][4]["identity"]
    assert recipe.unannotated.text == f"semantics/{semantics}"
    told = {caption.item for caption in read_rows(find_output(root, "semantics", semantics), Caption)}
    assert members(records, recipe.unannotated.split) <= told
    assert not members(records, recipe.unannotated.split) & members(records, recipe.view.split)
    measured = evaluate(run, Setup(root)).scores["all"]

    def lines_of(result: dict[str, Any]) -> list[str]:
        """As the command prints them, with these runs in place of those of the demo without --all."""
        return list(text({"root": root, "left_out": [], "runs": result["runs"], "sparse": result} | result))

    lines = lines_of(first)
    assert lines[0].startswith("corpora were fetched")
    assert lines_of(second)[0] == "everything is up to date"
    assert any("12 of coco's 120 training scenes (10%) have captions" in line for line in lines)
    start = next(place for place, line in enumerate(lines) if line.startswith("A3VSE, where"))
    (row,) = [line for line in lines[start:] if line.startswith("  demo-a3vse   ")]
    assert row.split()[-1] == f"{measured.rsum:.1f}"
    look = [line.split() for line in lines if line.endswith("/tsne")]
    assert [words[1:3] for words in look] == [["look", os.path.relpath(run)]]
    regions = [line.split() for line in lines if "--regions" in line]
    assert [words[1:3] for words in regions] == [["look", "coco"]]
    assert any(line.split()[1:5] == ["train", "detector", "--corpus", "visual_genome"] for line in lines)


def test_rows_differ_in_what_their_names_say_alone() -> None:
    whole, alone, without = recipes()
    assert [one.name for one in (whole, alone, without)] == ["demo-a3vse", "demo-no-adversary", "demo-no-semantics"]
    assert replace(alone, name=whole.name, model=whole.model, phases=whole.phases) == whole
    assert replace(without, name=alone.name, unannotated=alone.unannotated) == alone
    assert set(whole.phases[0].weights) - set(alone.phases[0].weights) == set(DOMAINS)
    assert whole.unannotated
    assert whole.unannotated.split == f"{whole.view.split}:unannotated"


def test_too_few_scenes_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--all", "--items", "50", "--root", str(tmp_path / "demo")]) == 1
    assert "of 50 scenes too few have captions to learn from: --all needs at least 100" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
