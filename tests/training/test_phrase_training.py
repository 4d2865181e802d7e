"""Two-Branch networks on regions and phrases of a generated world: they localise, and go on where they stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.demo.world import World
from tests.phrase_root import CORPUS, make_root, proposals
from tests.toy_root import fit
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import Death, assert_same_run, interrupt, log
from xmodal.errors import UserError
from xmodal.evaluation.phrase_runs import evaluate_phrases
from xmodal.models.cca import GONG, KLEIN, CCAConfig
from xmodal.models.two_branch import SimilarityConfig, TwoBranchConfig
from xmodal.recipes import Features, Neighbours, Optimiser, Phase, Phrases, Recipe, View
from xmodal.root.selection import find_output
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.fit import Outcome
from xmodal.training.run_setup import Setup
from xmodal.training.training_data import unbuilt

WORLD = World(items=60, image_size=48, captions_per_item=3, seed=4, partiality=0.3, synonymy=0.0)
ADAM = Optimiser("adam", 3e-3)
WEIGHTS = {"visual": 1.0, "text": 4.0, "visual_neighbours": 0.0, "text_neighbours": 0.0}
SAMPLED = Phase(2, ADAM, WEIGHTS, sampler=Phrases(0.7, 0.3, 2))
LAST = replace(SAMPLED, epochs=1, weights={**WEIGHTS, "visual_neighbours": 0.1, "text_neighbours": 0.1})
TRAIN = View(CORPUS, "plummer/train")
EMBEDDING = Recipe(
    name="toy-phrases",
    cites="ours",
    view=TRAIN,
    validation=replace(TRAIN, split="plummer/val"),
    visual=Features("proposals"),
    text=Features("phrases"),
    model=TwoBranchConfig(hidden=48, width=24, dropout=0.0, most=30),
    phases=(SAMPLED, LAST),
    batch_size=40,
)
SIMILARITY = replace(
    EMBEDDING,
    model=SimilarityConfig(hidden=48, width=24, dropout=0.0),
    phases=(Phase(3, ADAM, {"logistic": 1.0}, sampler=Phrases(0.7, 0.3, draws="pairs")),),
)
RECIPES = {"embedding": EMBEDDING, "similarity": SIMILARITY}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("phrases")
    return make_root(folder, WORLD, proposals(WORLD, without=("16", "23")))


@pytest.fixture(scope="module")
def whole(root: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    done = dict[str, Outcome]()

    def run(name: str) -> Outcome:
        if name not in done:
            done[name] = fit(RECIPES[name], root, str(tmp_path_factory.mktemp(name) / "run"))
        return done[name]

    return run


@pytest.mark.parametrize("name", RECIPES)
def test_networks_learn_and_are_chosen_by_the_recalls_of_localisation(
    name: str, whole: Callable[[str], Outcome], root: str
) -> None:
    found = whole(name)
    validations = [line for line in log(found.run) if "validation" in line]
    assert len(validations) == 3
    assert found.rsum == max(line["rsum"] for line in validations) > 150
    assert all(line["rsum"] == pytest.approx(sum(line["validation"].values())) for line in validations)
    assert validations[0]["validation"].keys() == {"R@1", "R@5", "R@10"}
    started = run_folder.read(found.run)
    stages = {"features": "proposals", "texts": "phrases", "annotated": "regions"}
    assert {fact: getattr(started, fact) for fact in stages} == {
        fact: find_output(root, stage).identity for fact, stage in stages.items()
    }


@pytest.mark.parametrize(("name", "after"), [("embedding", 3), ("embedding", 20), ("similarity", 9)])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    name: str, after: int, whole: Callable[[str], Outcome], root: str, tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(RECIPES[name], root, run, progress=Death(after, interrupt))
    assert replace(fit(RECIPES[name], root, run), run=whole(name).run) == whole(name)
    assert_same_run(whole(name).run, run)


@pytest.mark.parametrize("config", [KLEIN, GONG], ids=["Klein", "Gong"])
def test_a_closed_form_is_solved_from_annotated_boxes_in_any_blocks(
    config: CCAConfig, root: str, tmp_path: Path
) -> None:
    asked = replace(EMBEDDING, name="toy-cca", model=replace(config, eta=0.1, ridge=0.01), phases=())
    runs = [fit(replace(asked, batch_size=size), root, str(tmp_path / str(size))) for size in (7, 1000)]
    (pairs, same), rsums = [run.solved_pairs for run in runs], [run.rsum for run in runs]
    assert pairs == same > 100
    assert rsums[0] == pytest.approx(rsums[1])
    assert min(rsums) > 150
    first, second = (read_tensors(run.run, run_folder.BEST)["correlations"] for run in runs)
    np.testing.assert_allclose(first, second, atol=1e-10)
    assert fit(replace(asked, batch_size=7), root, runs[0].run) == replace(runs[0], trained=False)
    assert evaluate_phrases(runs[0].run, Setup(root)).rows["all"]["R@1"] > 40


def test_what_a_run_misses_is_said_in_one_line(root: str, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    other = make_root(folder, WORLD, {"9": [(0, 0, 20, 20)]}, **{"regions.boxes": "records"})
    said = complaint(EMBEDDING, other, tmp_path)
    assert "has no features of the boxes that its phrases name, by crops random:0" in said
    assert "--set regions.detector=crops --set regions.boxes=phrases --set regions.dtype=float32`, with" in said
    said = complaint(replace(EMBEDDING, text=Features("phrases", method="hglmm")), root, tmp_path)
    assert "has no phrases by hglmm" in said
    assert f"(`xmodal build {CORPUS}/phrases --root {root} --set codebook.method=hglmm`)" in said
    misspelt = complaint(replace(EMBEDDING, text=Features("phrases", method="tf")), root, tmp_path)
    assert misspelt == "no method 'tf' of phrases; there are: hglmm, gmm, lmm, mean, tfidf"
    assert "no 'frames' under" in complaint(replace(EMBEDDING, visual=Features("frames")), root, tmp_path)
    both = replace(EMBEDDING, validation=TRAIN)
    assert "items are in both 'plummer/train' and 'plummer/train'" in complaint(both, root, tmp_path)
    assert "starts its words from no vectors" in complaint(EMBEDDING, root, tmp_path, vectors=tmp_path / "x")
    assert not (tmp_path / "run").exists()


def complaint(recipe: Recipe, root: str, folder: Path, **setup: Any) -> str:
    with pytest.raises(UserError) as found:
        fit(recipe, root, str(folder / "run"), **setup)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_samplers_of_captions_and_of_phrases_are_not_mixed() -> None:
    captions = replace(EMBEDDING, text=Features("sentences"))
    others = replace(EMBEDDING, phases=(replace(SAMPLED, sampler=Neighbours(captions=2)),))
    for wrong in (captions, others, replace(EMBEDDING, phases=(SAMPLED, replace(LAST, sampler=None)))):
        assert unbuilt(wrong) == ["a sampler of captions for phrases, or of phrases for captions"]
    assert unbuilt(EMBEDDING) == unbuilt(SIMILARITY) == []


@pytest.mark.parametrize(
    "wrong",
    [{"positive_overlap": 1.1}, {"neighbours": 0}, {"negative_overlap": 0.9}, {"draws": "some"}],
)
def test_rules_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Phrases(**{"positive_overlap": 0.7, "negative_overlap": 0.3, **wrong})
