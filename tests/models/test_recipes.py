"""Every number of the main recipes and where it comes from; sections are of spec, models."""

from collections.abc import Iterator
from typing import Any

import pytest

from xmodal.models import load
from xmodal.root.identity import to_plain

PLATEAU = {"_type": "Plateau", "factor": 0.5, "patience": 10, "minimum": 1e-10}
FREE = ["scale", "shift"]

# By model: its recipes, and rows of a field, its section ([P] is the paper), and its value in each of the recipes.
TABLES: dict[str, tuple[tuple[str, ...], tuple[tuple[str, str, tuple[Any, ...]], ...]]] = {
    "vsepp": (
        ("vsepp", "vse0"),
        (
            ("batch_size", "6", (128, 128)),
            ("precision", "ours", ("single", "single")),
            ("seed", "ours", (0, 0)),
            ("unannotated", "6", (None, None)),
            ("view.captions_per_item", "7", (5, 5)),
            ("visual.frames", "6", (None, None)),
            ("visual.ends", "6", (0, 0)),
            ("visual.rule", "6", ("official", "official")),
            ("text.tokenizer", "1.8", ("nltk", "nltk")),
            ("text.minimum_count", "1.8", (4, 4)),
            ("text.cleaning", "1.8", ("none", "none")),
            ("text.longest", "1.8", (None, None)),
            ("text.vectors", "6", (None, None)),
            ("text.marked", "6", (0, 0)),
            ("text.deleted", "6", (0, 0)),
            ("model.width", "6", (1024, 1024)),
            ("model.word_width", "1.1", (300, 300)),
            ("model.margin", "6", (0.2, 0.2)),
            ("model.negatives", "6", ("hardest", "all")),
            ("model.similarity", "6", ("cosine", "cosine")),
            ("model.normalise_features", "6", (True, True)),
            ("model.normalise_image", "6", (True, False)),
            ("phases.0.epochs", "6", (30, 30)),
            ("phases.0.weights.ranking", "6", (1, 1)),
            ("phases.0.frozen", "6", ([], [])),
            ("phases.0.pixels", "ours", (None, None)),
            ("phases.0.sampler", "6", (None, None)),
            ("phases.0.validate_every", "6", (1, 1)),
            ("phases.0.patience", "6", (None, None)),
            ("phases.0.optimiser.rule", "6", ("adam", "adam")),
            ("phases.0.optimiser.learning_rate", "6", (2e-4, 2e-4)),
            ("phases.0.optimiser.weight_decay", "6", (0, 0)),
            ("phases.0.optimiser.momentum", "6", (0, 0)),
            ("phases.0.optimiser.clip_norm", "6", (2, 2)),
            ("phases.0.optimiser.unclipped", "6", ([], [])),
            ("phases.0.optimiser.multipliers", "6", ([], [])),
            ("phases.0.optimiser.schedule", "6", 2 * ({"_type": "Step", "after": [15], "factor": 0.1},)),
        ),
    ),
    "pvse": (
        ("pvse-coco", "pvse-tgif", "pvse-mrw"),
        (
            ("batch_size", "1.6 [P]", (128, 128, 128)),
            ("precision", "ours", ("single",) * 3),
            ("seed", "ours", (0, 0, 0)),
            ("unannotated", "1", (None,) * 3),
            ("view.captions_per_item", "7, 1.8", (5, 1, None)),
            ("visual.frames", "1.6, 1.7", (None, 8, 4)),
            ("visual.ends", "1.7", (0, 6, 0)),
            ("visual.rule", "1.7", ("official",) * 3),
            ("text.tokenizer", "1.8", ("nltk",) * 3),
            ("text.minimum_count", "1.8", (4, 1, 1)),
            ("text.cleaning", "1.8", ("none", "none", "mrw")),
            ("text.longest", "1.8", (None,) * 3),
            ("text.vectors", "1.4", ("glove.840B.300d",) * 3),
            ("text.marked", "1.8", (0, 0, 0)),
            ("text.deleted", "1.8", (0, 0, 0)),
            ("model.visual", "1.1", ("image", "video", "video")),
            ("model.embeddings", "1.6", (2, 3, 5)),
            ("model.width", "1.1", (1024,) * 3),
            ("model.word_width", "1.1", (300,) * 3),
            ("model.margin", "1.6", (0.1,) * 3),
            ("model.negatives", "1.6", ("hardest", "all", "all")),
            ("model.reduction", "1.5", ("mean",) * 3),
            ("model.similarity", "1.5", ("cosine",) * 3),
            ("model.mil", "1.5", (True,) * 3),
            ("model.fusion", "1.3", ("residual",) * 3),
            ("model.kernel", "1.5", ("laplacian_l2",) * 3),
            ("model.gamma", "1.5", (0.5,) * 3),
            ("model.dropout", "1.6", (0, 0, 0)),
            ("model.legacy_last_output", "1.4", (False,) * 3),
            ("model.xavier_image", "1.4", (False,) * 3),
            ("phases.0.frozen", "1.6", (["words.*"],) * 3),
            ("phases.1.frozen", "1.6", ([],) * 3),
            ("phases.0.pixels", "1.6", (None,) * 3),
            ("phases.1.pixels.crop", "1.6", ("resized",) * 3),
            ("phases.1.pixels.flip", "1.6", (True,) * 3),
            ("phases.1.pixels.jitter", "1.6", (False, True, True)),
            ("phases.1.pixels.erase", "1.6", (0, 0, 0)),
            ("phases.1.pixels.evaluation", "1.6", ("centre",) * 3),
            ("phases.*.epochs", "1.6 [P]", (50,) * 3),
            ("phases.*.weights.ranking", "1.5", (1, 1, 1)),
            ("phases.*.weights.diversity", "1.6", (0.1,) * 3),
            ("phases.*.weights.mmd", "1.6", (0.01,) * 3),
            ("phases.*.sampler", "1.6", (None,) * 3),
            ("phases.*.validate_every", "1.6", (1, 1, 1)),
            ("phases.*.patience", "1.6", (None,) * 3),
            ("phases.*.optimiser.rule", "1.6", ("amsgrad",) * 3),
            ("phases.*.optimiser.learning_rate", "1.6", (2e-4,) * 3),
            ("phases.*.optimiser.weight_decay", "1.6", (0, 0, 0)),
            ("phases.*.optimiser.momentum", "1.6", (0, 0, 0)),
            ("phases.*.optimiser.clip_norm", "1.6", (2, 2, 2)),
            ("phases.*.optimiser.unclipped", "1.6", ([],) * 3),
            ("phases.*.optimiser.multipliers", "1.6", ([],) * 3),
            ("phases.*.optimiser.schedule", "1.6", (PLATEAU,) * 3),
        ),
    ),
    "pcme": (
        ("pcme-coco", "pcme-coco-mu", "pcme-cub", "pcme-cub-mu"),
        (
            ("batch_size", "2.4", (128, 128, 150, 150)),
            ("precision", "2.4", ("single",) * 4),
            ("seed", "ours", (0,) * 4),
            ("unannotated", "2", (None,) * 4),
            ("view.captions_per_item", "7, 2.4", (5, 5, None, None)),
            ("visual.frames", "2.1", (None,) * 4),
            ("visual.ends", "2.1", (0,) * 4),
            ("visual.rule", "2.1", ("official",) * 4),
            ("text.tokenizer", "1.8", ("nltk",) * 4),
            ("text.minimum_count", "1.8, 2.4", (4,) * 4),
            ("text.cleaning", "1.8", ("none",) * 4),
            ("text.longest", "1.8", (None,) * 4),
            ("text.vectors", "1.4", ("glove.840B.300d",) * 4),
            ("text.marked", "2.4", (0.1,) * 4),
            ("text.deleted", "2.4", (0.1,) * 4),
            ("model.width", "2.1", (1024, 1024, 512, 512)),
            ("model.word_width", "2.1", (300,) * 4),
            ("model.samples", "2.2", (7, 0, 7, 0)),
            ("model.scale", "2.3", (15, 15, 5, 5)),
            ("model.shift", "2.3", (15, 15, 5, 5)),
            ("model.sigmoid_scale", "2.3", (2,) * 4),
            ("model.kl", "2.3", ("official", "off", "official", "off")),
            ("model.uniformity", "2.3", ("off", "off", "distinct", "distinct")),
            ("model.distance", "2.5", ("match_probability", "mean", "match_probability", "mean")),
            ("phases.0.frozen", "2.4", (["words.*"],) * 4),
            ("phases.1.frozen", "2.4", ([],) * 4),
            ("phases.0.epochs", "2.4", (30, 30, 10, 10)),
            ("phases.1.epochs", "2.4", (30, 30, 50, 50)),
            ("phases.0.optimiser.learning_rate", "2.4", (2e-4, 2e-4, 1e-4, 1e-4)),
            ("phases.1.optimiser.learning_rate", "2.4", (2e-5, 2e-5, 1e-4, 1e-4)),
            ("phases.0.pixels", "ours", (None,) * 4),
            ("phases.1.pixels.crop", "2.4", ("resized", "resized", "centre", "centre")),
            ("phases.1.pixels.flip", "2.4", (True, True, False, False)),
            ("phases.1.pixels.jitter", "2.4", (False,) * 4),
            ("phases.1.pixels.erase", "2.4", (0.2,) * 4),
            ("phases.1.pixels.evaluation", "2.4", ("centre",) * 4),
            ("phases.*.weights.matching", "2.3", (1,) * 4),
            ("phases.*.weights.uniformity", "2.3", (0, 0, 10, 10)),
            ("phases.*.weights.kl", "2.3", (1e-5, 1e-5, 1e-3, 1e-3)),
            ("phases.*.sampler", "2.4", (None, None, {"_type": "OnePerClass"}, {"_type": "OnePerClass"})),
            ("phases.*.validate_every", "2.4", (10, 10, 50, 50)),
            ("phases.*.patience", "2.4", (None,) * 4),
            ("phases.*.optimiser.rule", "2.4", ("adamp",) * 4),
            ("phases.*.optimiser.weight_decay", "2.4", (0,) * 4),
            ("phases.*.optimiser.momentum", "2.4", (0,) * 4),
            ("phases.*.optimiser.clip_norm", "2.4", (2,) * 4),
            ("phases.*.optimiser.unclipped", "2.4", (FREE,) * 4),
            ("phases.*.optimiser.multipliers", "2.4", ([],) * 4),
            (
                "phases.*.optimiser.schedule",
                "2.4",
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
