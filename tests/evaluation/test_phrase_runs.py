"""Runs of regions and phrases on a generated world, whose boxes are known: what they find, and its bound by hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.demo.world import World
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.evaluation.test_phrase_metrics import Box, asked_of, overlap, to_find
from tests.phrase_root import make_root, proposals
from tests.toy_root import fit
from tests.toy_root import one_thread as one_thread
from tests.training.test_phrase_training import EMBEDDING, SIMILARITY
from xmodal.batches.phrase_loader import vectors
from xmodal.checks.phrase_pictures import found_phrases
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import ALL
from xmodal.evaluation.phrase_runs import evaluate_combined, evaluate_phrases, open_phrase_run, run_scores
from xmodal.evaluation.run_metrics import open_run
from xmodal.models.two_branch import RECIPES
from xmodal.recipes import Features, Phase
from xmodal.training.run_setup import Setup

WORLD = World(items=90, image_size=48, captions_per_item=2, seed=6, partiality=0.3, synonymy=0.0, noise=0.0)
LONGER = replace(EMBEDDING, phases=(replace(EMBEDDING.phases[0], epochs=5), EMBEDDING.phases[1]))
PAIRS = replace(SIMILARITY, phases=(replace(SIMILARITY.phases[0], epochs=6),))


@pytest.fixture(scope="module")
def proposed() -> dict[str, list[Box]]:
    """One of the tested pictures has none, another none near what it shows."""
    unproposed, hidden, *_ = (picture.id for picture in asked_of(WORLD))
    return {**proposals(WORLD, without=(unproposed,)), hidden: [(0, 0, 2, 2), (1, 1, 3, 3)]}


@pytest.fixture(scope="module")
def root(proposed: Mapping[str, list[Box]], tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("phrases"), WORLD, proposed)


@pytest.fixture(scope="module")
def run(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return fit(LONGER, root, str(tmp_path_factory.mktemp("embedding") / "run")).run


def by_hand(proposed: Mapping[str, list[Box]]) -> float:
    hits = [any(overlap(one.box or (), box) >= 0.5 for box in proposed.get(one.picture, ())) for one in to_find(WORLD)]
    return 100 * sum(hits) / len(hits)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recipe", [LONGER, PAIRS], ids=["embedding", "similarity"])
def test_phrases_are_found_far_above_chance(
    recipe: object, seed: int, root: str, proposed: Mapping[str, list[Box]], tmp_path: Path
) -> None:
    assert recipe in (LONGER, PAIRS)
    chosen = LONGER if recipe is LONGER else PAIRS
    found = fit(replace(chosen, seed=seed), root, str(tmp_path / "run"))
    report = evaluate_phrases(found.run, Setup(root))
    chance, bound = report.value("R@1 by chance"), report.value("bound")
    assert chance is not None
    assert bound == pytest.approx(by_hand(proposed))
    assert 60 < bound < 97
    first, fifth = report.value("R@1"), report.value("R@5")
    assert first is not None
    assert fifth is not None
    assert first > chance + 0.5 * (bound - chance)
    assert first <= fifth <= bound
    assert chance < 45


@pytest.mark.parametrize("name", ["two-branch-phrases", "similarity-phrases", "similarity-phrases-linear"])
def test_recipes_learn_with_their_own_losses_rate_and_decay(name: str, root: str, tmp_path: Path) -> None:
    """A decay of 0.005 outweighs the gradients of means; of a similarity network little is left."""
    (recipe,) = (one for one in RECIPES if one.name == name)
    model: Any = recipe.model
    small = replace(model, hidden=64, width=32)
    phases = (replace(recipe.phases[0], epochs=16),)
    found = fit(replace(recipe, model=small, text=Features("phrases"), phases=phases), root, str(tmp_path / "run"))
    report = evaluate_phrases(found.run, Setup(root), "plummer/train")
    assert report.rows[ALL]["R@1 by chance"] < 20
    assert report.rows[ALL]["R@1"] > 60


def test_a_report_tells_what_was_asked_and_what_could_not_be(root: str, run: str, xmodal: Xmodal) -> None:
    said = xmodal("evaluate", run, "--root", root, "--json").json
    assert said == json.loads(evaluate_phrases(run, Setup(root)).to_json())
    assert (said["recipe"], said["corpus"], said["split"]) == ("toy-phrases", "flickr30k_entities", "plummer/test")
    assert said["proposals"].startswith("proposals/")
    phrases = to_find(WORLD)
    assert said["phrases"] == len(phrases)
    unproposed = asked_of(WORLD)[0].id
    assert said["pictures_without_proposals"] == 1
    assert said["phrases_without_proposals"] == sum(one.picture == unproposed for one in phrases) > 0
    assert min(said["left_out"].values()) >= 0 < max(said["left_out"].values())
    kinds = {kind for one in phrases for kind in one.types}
    assert kinds < said["rows"].keys()
    for kind in kinds:
        assert said["rows"][kind]["phrases"] == sum(kind in one.types for one in phrases)
    fewer = xmodal("evaluate", run, "--root", root, "--suppression", 0.1, "--json").json
    assert fewer["rows"][ALL]["R@1"] == said["rows"][ALL]["R@1"]
    assert fewer["rows"][ALL]["R@10"] <= said["rows"][ALL]["R@10"]
    assert (fewer["suppression"], said["suppression"]) == (0.1, None)
    assert "not found:" in xmodal("evaluate", run, "--root", root).out
    validation = xmodal("evaluate", Path(run) / "best.pt", "--root", root, "--split", "plummer/val", "--json").json
    assert validation["split"] == "plummer/val"
    recalls = validation["rows"][ALL]
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    best = max(line["rsum"] for line in lines if "rsum" in line)
    assert sum(recalls[f"R@{first}"] for first in (1, 5, 10)) == pytest.approx(best)


def test_a_report_says_how_many_pictures_were_trained_on_or_chose_the_weights(
    root: str, run: str, xmodal: Xmodal
) -> None:
    train, validation, test = (
        evaluate_phrases(run, Setup(root), f"plummer/{name}") for name in ("train", "val", "test")
    )
    assert (train.seen, train.chosen) == (train.pictures, 0)
    assert (validation.seen, validation.chosen) == (0, validation.pictures)
    assert (test.seen, test.chosen) == (0, 0)
    said = xmodal("evaluate", run, "--root", root, "--split", "plummer/train").out
    assert f"; {train.pictures} of the pictures were trained on\n" in said
    assert f"; the weights were chosen by {validation.pictures} of the pictures\n" in validation.to_text()
    assert "trained on" not in test.to_text()
    assert "chosen" not in test.to_text()


def test_what_a_run_found_is_drawn(root: str, run: str, tmp_path: Path, xmodal: Xmodal) -> None:
    said = xmodal("look", run, "--root", root, "--phrases", tmp_path / "out", "--first", 3, "--json").json
    drawn = list(dict.fromkeys(one.picture for one in to_find(WORLD)))[:3]
    assert [one["item"] for one in said["pictures"]] == drawn
    assert all(Path(one["path"]).stat().st_size > 1000 for one in said["pictures"])
    scored = run_scores(run, Setup(root))
    found = [one.overlap >= 0.5 for id in scored.phrases.pictures for one in found_phrases(scored, id)]
    assert sum(found) / len(found) > 0.5


def test_what_does_not_go_with_phrases_is_said_in_a_line(root: str, run: str, xmodal: Xmodal) -> None:
    assert (
        "leave out --distance, --eccv and --with"
        in xmodal("evaluate", run, "--root", root, "--distance", "elk").complaint
    )
    said = xmodal("evaluate", run, "--root", root, "--share", 0.3).complaint
    assert "--share belongs to --with" in said, "without it nothing is mixed"
    assert "has no split 'other/test'" in xmodal("evaluate", run, "--root", root, "--split", "other/test").complaint
    with pytest.raises(UserError, match="compares regions with phrases, not items with captions"):
        open_run(run, Setup(root))


def test_distances_of_two_runs_are_mixed_as_equation_8_says(
    root: str, run: str, tmp_path: Path, xmodal: Xmodal
) -> None:
    """Pictures by the mean of their proposals; beside loops over phrases and proposals."""
    phase = Phase(3, EMBEDDING.phases[0].optimiser, {**EMBEDDING.phases[0].weights, "text": 2.0})
    recipe = replace(EMBEDDING, name="toy-whole", text=Features("sentences"), phases=(phase,))
    whole = fit(recipe, root, str(tmp_path / "whole")).run
    asked, found = open_run(whole, Setup(root)), open_phrase_run(run, Setup(root))
    examples, features = asked.reader.examples, found.features
    with torch.inference_mode():
        images = asked.scorer.encode_visual(asked.reader.visual(slice(0, None)))
        sentences = asked.scorer.encode_text(asked.reader.text(slice(0, None)))
        wholes = np.linalg.norm(images.numpy()[:, None] - sentences.numpy()[None], axis=2)
        parts = wholes.copy()
        phrases = found.scorer.encode_text(vectors(features.text(slice(0, None)))).numpy()
        for place, id in enumerate(examples.ids):
            regions = found.scorer.encode_visual(vectors(features.proposals.read([id])[0])).numpy()
            for column, caption in enumerate(examples.caption_ids):
                its = [n for n, one in enumerate(features.phrases.matches) if one.caption == caption]
                if its:
                    nearest = np.linalg.norm(phrases[its][:, None] - regions[None], axis=2).min(axis=1)
                    parts[place, column] = nearest.mean()
    for share in (0.2, 0.9):
        mixed = (1 - share) * wholes + share * parts
        ranks = (mixed < mixed[examples.caption_items, np.arange(len(mixed.T))]).sum(axis=0)
        report = evaluate_combined(whole, run, Setup(root), share=share)
        for first in (1, 5):
            expected = 100 * np.mean(ranks < first)
            assert report.metrics.value(f"R@{first}", "text_to_visual", "all") == pytest.approx(expected)
    command = ["evaluate", whole, "--with", run, "--root", root, "--json"]
    said, alone = xmodal(*command).json, xmodal("evaluate", whole, "--root", root, "--json").json
    assert said == json.loads(evaluate_combined(whole, run, Setup(root)).to_json())
    assert said["recipe"] == "toy-whole with 0.2 of toy-phrases"
    assert xmodal(*command, "--share", 0).json["scores"] == alone["scores"] != said["scores"]
    assert "--share is from 0 to 1, not 2" in xmodal(*command, "--share", 2).complaint
    assert (
        "compares items with captions, not regions"
        in xmodal("evaluate", whole, "--with", whole, "--root", root).complaint
    )
    assert "leave it out, or --with" in xmodal(*command, "--distance", "elk").complaint


def test_statistics_of_what_is_evaluated_are_a_switch(root: str, tmp_path: Path) -> None:
    phase = Phase(1, EMBEDDING.phases[0].optimiser, EMBEDDING.phases[0].weights, sampler=EMBEDDING.phases[0].sampler)
    found = dict[str, object]()
    for statistics in ("training", "test"):
        recipe = replace(EMBEDDING, phases=(phase,), model=replace(EMBEDDING.model, statistics=statistics))  # type: ignore[type-var]
        report = evaluate_phrases(fit(recipe, root, str(tmp_path / statistics)).run, Setup(root))
        found[statistics] = report.rows[ALL]
    assert found["training"] != found["test"]
