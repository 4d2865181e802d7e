"""Every number of the main recipes and where it comes from."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest

from pipelines.papers.recipe_runs import recipe_with, train
from xmodal.errors import UserError
from xmodal.models import load, names, recipes_of
from xmodal.recipes import Recipe
from xmodal.root.identity import to_plain
from xmodal.training.run_setup import Setup

VSEPP = "docs/models.md#vsepp"
PVSE, PCME = "docs/models.md#pvse", "docs/models.md#pcme"
INPUTS, PIE_NET, ENCODERS = "docs/models.md#pvse-inputs", "docs/models.md#pvse-pie-net", "docs/models.md#pvse-encoders"
LOSSES, TRAINING = "docs/models.md#pvse-losses", "docs/models.md#pvse-training"
FRAMES, VOCABULARY, RECALL = "docs/models.md#frame-sampling", "docs/models.md#vocabulary", "docs/models.md#recall"
PCME_ENCODERS, PCME_SAMPLES = "docs/models.md#pcme-encoders", "docs/models.md#pcme-samples"
PCME_LOSSES, PCME_SCORES = "docs/models.md#pcme-losses", "docs/models.md#pcme-scores"
PCME_TRAINING = "docs/models.md#pcme-training"
PLATEAU = {"_type": "Plateau", "factor": 0.5, "patience": 10, "minimum": 1e-10}
FREE = ["scale", "shift"]

# By model: its recipes, and rows of a field, its section ([P] is the paper), and its value in each of the recipes.
TABLES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str, tuple[Any, ...]], ...]]] = {
    "vsepp": (
        ("vsepp", "vse0"),
        (
            ("batch_size", VSEPP, (128, 128)),
            ("precision", "ours", ("single", "single")),
            ("seed", "ours", (0, 0)),
            ("unannotated", VSEPP, (None, None)),
            ("view.captions_per_item", RECALL, (5, 5)),
            ("visual.frames", VSEPP, (None, None)),
            ("visual.ends", VSEPP, (0, 0)),
            ("visual.rule", VSEPP, ("official", "official")),
            ("text.tokenizer", VOCABULARY, ("nltk", "nltk")),
            ("text.minimum_count", VOCABULARY, (4, 4)),
            ("text.cleaning", VOCABULARY, ("none", "none")),
            ("text.longest", VOCABULARY, (None, None)),
            ("text.vectors", VSEPP, (None, None)),
            ("text.marked", VSEPP, (0, 0)),
            ("text.deleted", VSEPP, (0, 0)),
            ("model.width", VSEPP, (1024, 1024)),
            ("model.word_width", INPUTS, (300, 300)),
            ("model.margin", VSEPP, (0.2, 0.2)),
            ("model.negatives", VSEPP, ("hardest", "all")),
            ("model.similarity", VSEPP, ("cosine", "cosine")),
            ("model.normalise_features", VSEPP, (True, True)),
            ("model.normalise_image", VSEPP, (True, False)),
            ("phases.0.epochs", VSEPP, (30, 30)),
            ("phases.0.weights.ranking", VSEPP, (1, 1)),
            ("phases.0.frozen", VSEPP, ([], [])),
            ("phases.0.pixels", "ours", (None, None)),
            ("phases.0.sampler", VSEPP, (None, None)),
            ("phases.0.validate_every", VSEPP, (1, 1)),
            ("phases.0.patience", VSEPP, (None, None)),
            ("phases.0.optimiser.rule", VSEPP, ("adam", "adam")),
            ("phases.0.optimiser.learning_rate", VSEPP, (2e-4, 2e-4)),
            ("phases.0.optimiser.weight_decay", VSEPP, (0, 0)),
            ("phases.0.optimiser.momentum", VSEPP, (0, 0)),
            ("phases.0.optimiser.clip_norm", VSEPP, (2, 2)),
            ("phases.0.optimiser.unclipped", VSEPP, ([], [])),
            ("phases.0.optimiser.multipliers", VSEPP, ([], [])),
            ("phases.0.optimiser.schedule", VSEPP, 2 * ({"_type": "Step", "after": [15], "factor": 0.1},)),
        ),
    ),
    "pvse": (
        ("pvse-coco", "pvse-tgif", "pvse-mrw"),
        (
            ("batch_size", f"{TRAINING} [P]", (128, 128, 128)),
            ("precision", "ours", ("single",) * 3),
            ("seed", "ours", (0, 0, 0)),
            ("unannotated", PVSE, (None,) * 3),
            ("view.captions_per_item", f"{RECALL}, {VOCABULARY}", (5, 1, None)),
            ("visual.frames", f"{TRAINING}, {FRAMES}", (None, 8, 4)),
            ("visual.ends", FRAMES, (0, 6, 0)),
            ("visual.rule", FRAMES, ("official",) * 3),
            ("text.tokenizer", VOCABULARY, ("nltk",) * 3),
            ("text.minimum_count", VOCABULARY, (4, 1, 1)),
            ("text.cleaning", VOCABULARY, ("none", "none", "mrw")),
            ("text.longest", VOCABULARY, (None,) * 3),
            ("text.vectors", ENCODERS, ("glove.840B.300d",) * 3),
            ("text.marked", VOCABULARY, (0, 0, 0)),
            ("text.deleted", VOCABULARY, (0, 0, 0)),
            ("model.visual", INPUTS, ("image", "video", "video")),
            ("model.embeddings", TRAINING, (2, 3, 5)),
            ("model.width", INPUTS, (1024,) * 3),
            ("model.word_width", INPUTS, (300,) * 3),
            ("model.margin", TRAINING, (0.1,) * 3),
            ("model.negatives", TRAINING, ("hardest", "all", "all")),
            ("model.reduction", LOSSES, ("mean",) * 3),
            ("model.similarity", LOSSES, ("cosine",) * 3),
            ("model.mil", LOSSES, (True,) * 3),
            ("model.fusion", PIE_NET, ("residual",) * 3),
            ("model.kernel", LOSSES, ("laplacian_l2",) * 3),
            ("model.gamma", LOSSES, (0.5,) * 3),
            ("model.dropout", TRAINING, (0, 0, 0)),
            ("model.legacy_last_output", ENCODERS, (False,) * 3),
            ("model.xavier_image", ENCODERS, (False,) * 3),
            ("phases.0.frozen", TRAINING, (["words.*"],) * 3),
            ("phases.1.frozen", TRAINING, ([],) * 3),
            ("phases.0.pixels", TRAINING, (None,) * 3),
            ("phases.1.pixels.crop", TRAINING, ("resized",) * 3),
            ("phases.1.pixels.flip", TRAINING, (True,) * 3),
            ("phases.1.pixels.jitter", TRAINING, (False, True, True)),
            ("phases.1.pixels.erase", TRAINING, (0, 0, 0)),
            ("phases.1.pixels.evaluation", TRAINING, ("centre",) * 3),
            ("phases.*.epochs", f"{TRAINING} [P]", (50,) * 3),
            ("phases.*.weights.ranking", LOSSES, (1, 1, 1)),
            ("phases.*.weights.diversity", TRAINING, (0.1,) * 3),
            ("phases.*.weights.mmd", TRAINING, (0.01,) * 3),
            ("phases.*.sampler", TRAINING, (None,) * 3),
            ("phases.*.validate_every", TRAINING, (1, 1, 1)),
            ("phases.*.patience", TRAINING, (None,) * 3),
            ("phases.*.optimiser.rule", TRAINING, ("amsgrad",) * 3),
            ("phases.*.optimiser.learning_rate", TRAINING, (2e-4,) * 3),
            ("phases.*.optimiser.weight_decay", TRAINING, (0, 0, 0)),
            ("phases.*.optimiser.momentum", TRAINING, (0, 0, 0)),
            ("phases.*.optimiser.clip_norm", TRAINING, (2, 2, 2)),
            ("phases.*.optimiser.unclipped", TRAINING, ([],) * 3),
            ("phases.*.optimiser.multipliers", TRAINING, ([],) * 3),
            ("phases.*.optimiser.schedule", TRAINING, (PLATEAU,) * 3),
        ),
    ),
    "pcme": (
        ("pcme-coco", "pcme-coco-mu", "pcme-cub", "pcme-cub-mu"),
        (
            ("batch_size", PCME_TRAINING, (128, 128, 150, 150)),
            ("precision", PCME_TRAINING, ("single",) * 4),
            ("seed", "ours", (0,) * 4),
            ("unannotated", PCME, (None,) * 4),
            ("view.captions_per_item", f"{RECALL}, {PCME_TRAINING}", (5, 5, None, None)),
            ("visual.frames", PCME_ENCODERS, (None,) * 4),
            ("visual.ends", PCME_ENCODERS, (0,) * 4),
            ("visual.rule", PCME_ENCODERS, ("official",) * 4),
            ("text.tokenizer", VOCABULARY, ("nltk",) * 4),
            ("text.minimum_count", f"{VOCABULARY}, {PCME_TRAINING}", (4,) * 4),
            ("text.cleaning", VOCABULARY, ("none",) * 4),
            ("text.longest", VOCABULARY, (None,) * 4),
            ("text.vectors", ENCODERS, ("glove.840B.300d",) * 4),
            ("text.marked", PCME_TRAINING, (0.1,) * 4),
            ("text.deleted", PCME_TRAINING, (0.1,) * 4),
            ("model.width", PCME_ENCODERS, (1024, 1024, 512, 512)),
            ("model.word_width", PCME_ENCODERS, (300,) * 4),
            ("model.samples", PCME_SAMPLES, (7, 0, 7, 0)),
            ("model.scale", PCME_LOSSES, (15, 15, 5, 5)),
            ("model.shift", PCME_LOSSES, (15, 15, 5, 5)),
            ("model.sigmoid_scale", PCME_LOSSES, (2,) * 4),
            ("model.kl", PCME_LOSSES, ("official", "off", "official", "off")),
            ("model.uniformity", PCME_LOSSES, ("off", "off", "distinct", "distinct")),
            ("model.distance", PCME_SCORES, ("match_probability", "mean", "match_probability", "mean")),
            ("phases.0.frozen", PCME_TRAINING, (["words.*"],) * 4),
            ("phases.1.frozen", PCME_TRAINING, ([],) * 4),
            ("phases.0.epochs", PCME_TRAINING, (30, 30, 10, 10)),
            ("phases.1.epochs", PCME_TRAINING, (30, 30, 50, 50)),
            ("phases.0.optimiser.learning_rate", PCME_TRAINING, (2e-4, 2e-4, 1e-4, 1e-4)),
            ("phases.1.optimiser.learning_rate", PCME_TRAINING, (2e-5, 2e-5, 1e-4, 1e-4)),
            ("phases.0.pixels", "ours", (None,) * 4),
            ("phases.1.pixels.crop", PCME_TRAINING, ("resized", "resized", "centre", "centre")),
            ("phases.1.pixels.flip", PCME_TRAINING, (True, True, False, False)),
            ("phases.1.pixels.jitter", PCME_TRAINING, (False,) * 4),
            ("phases.1.pixels.erase", PCME_TRAINING, (0.2,) * 4),
            ("phases.1.pixels.evaluation", PCME_TRAINING, ("centre",) * 4),
            ("phases.*.weights.matching", PCME_LOSSES, (1,) * 4),
            ("phases.*.weights.uniformity", PCME_LOSSES, (0, 0, 10, 10)),
            ("phases.*.weights.kl", PCME_LOSSES, (1e-5, 1e-5, 1e-3, 1e-3)),
            ("phases.*.sampler", PCME_TRAINING, (None, None, {"_type": "OnePerClass"}, {"_type": "OnePerClass"})),
            ("phases.*.validate_every", PCME_TRAINING, (10, 10, 50, 50)),
            ("phases.*.patience", PCME_TRAINING, (None,) * 4),
            ("phases.*.optimiser.rule", PCME_TRAINING, ("adamp",) * 4),
            ("phases.*.optimiser.weight_decay", PCME_TRAINING, (0,) * 4),
            ("phases.*.optimiser.momentum", PCME_TRAINING, (0,) * 4),
            ("phases.*.optimiser.clip_norm", PCME_TRAINING, (2,) * 4),
            ("phases.*.optimiser.unclipped", PCME_TRAINING, (FREE,) * 4),
            ("phases.*.optimiser.multipliers", PCME_TRAINING, ([],) * 4),
            (
                "phases.*.optimiser.schedule",
                PCME_TRAINING,
                (*2 * ({"_type": "Cosine", "epochs": 30},), *2 * ({"_type": "Cosine", "epochs": 50},)),
            ),
        ),
    ),
}
NAMES = ("name", "cites", "view.corpus", "view.split", "view.text", "validation", "visual.stage")
CASES = [(model, recipe) for model, (recipes, _) in TABLES.items() for recipe in recipes]


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Fields by their dotted names, also of phases; a schedule, a sampler and a list of names are one field."""
    if isinstance(value, dict) and not path.endswith((".schedule", ".sampler")):
        for name, part in value.items():
            yield from numbers(part, f"{path}.{name}") if name != "_type" else ()
    elif path == ".phases":
        for number, part in enumerate(value):
            yield from numbers(part, f"{path}.{number}")
    else:
        yield path[1:], value


@pytest.mark.parametrize(("model", "name"), CASES)
def test_a_recipe_has_the_numbers_of_its_paper_and_no_others(model: str, name: str) -> None:
    recipes, rows = TABLES[model]
    recipe = next(recipe for recipe in load(model).RECIPES if recipe.name == name)
    found = {path: value for path, value in numbers(to_plain(recipe)) if not path.startswith(NAMES)}
    expected: dict[str, Any] = {}
    for path, _, values in rows:
        for phase in range(len(recipe.phases)) if "*" in path else (0,):
            expected[path.replace("*", str(phase))] = values[recipes.index(name)]
    assert found == expected


# Every field that names one of a few values, in each kind of config that a model's recipes have.
CHOICES = [
    pytest.param(recipe, name, id=f"{type(recipe.model).__name__}-{name}")
    for model in names()
    for recipe in {type(one.model): one for one in recipes_of(model)}.values()
    for name, kind in get_type_hints(type(recipe.model)).items()
    if get_origin(kind) is Literal
]


@pytest.mark.parametrize(("recipe", "field"), CHOICES)
def test_a_choice_that_there_is_not_is_refused_and_the_known_ones_are_named(recipe: Recipe, field: str) -> None:
    known = ", ".join(map(str, get_args(get_type_hints(type(recipe.model))[field])))
    with pytest.raises(ValueError, match=re.escape(f"no {field} 'hard'; there are: {known}")):
        replace(cast(Any, recipe.model), **{field: "hard"})
    with pytest.raises(UserError, match=re.escape(f"--set model.{field}=hard: not one of {known}") + "$"):
        recipe_with(recipe.name, [f"model.{field}=hard"])


@pytest.mark.parametrize("name", ["vsepp", "scan-flickr30k-full", "dan-coco-full", "order-coco", "corrae-coco"])
def test_vectors_that_a_model_does_not_take_are_refused_before_they_are_asked_for(name: str, tmp_path: Path) -> None:
    asked = recipe_with(name, ["text.vectors=glove.840B.300d"])
    with pytest.raises(UserError, match=r"word vectors, which its model does not take \(leave out text\.vectors\)$"):
        train(asked, Setup(str(tmp_path)), tmp_path / "run")
