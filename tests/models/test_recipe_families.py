"""Every recipe of Two-Branch, CCA and Dual-Path: all numbers of one, and those that the others have in their place."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.models.test_recipes import numbers
from xmodal.models import recipes_of
from xmodal.root.identity import to_plain

Numbers = dict[str, Any]  # by the dotted names of fields


def phase(number: int, found: Mapping[str, Any]) -> Numbers:
    return {f"phases.{number}.{name}": value for name, value in found.items()}


def on(corpus: str, splits: str, captions: int | None = 5) -> Numbers:
    views = {"view": "train", "validation": "val"}
    return {
        f"{view}.{name}": value
        for view, split in views.items()
        for name, value in (("corpus", corpus), ("split", f"{splits}/{split}"), ("captions_per_item", captions))
    }


USUAL = {
    "view.text": "human",
    "validation.text": "human",
    "visual.frames": None,
    "visual.ends": 0,
    "visual.rule": "official",
    "precision": "single",
    "seed": 0,
    "unannotated": None,
}
USUAL_PHASE = {
    "frozen": [],
    "pixels": None,
    "validate_every": 1,
    "patience": None,
    "optimiser.clip_norm": None,
    "optimiser.unclipped": [],
}

# Two-Branch and CCA: docs/models.md#two-branch-evaluation, for phrases docs/models.md#two-branch-phrases

FISHER = {"text.method": "hglmm", "text.frames": None, "text.ends": 0, "text.rule": "official"}
SENTENCES = USUAL | FISHER | {"visual.stage": "features", "text.stage": "sentences"} | on("flickr30k", "plummer")
PHRASES = USUAL | FISHER | {"visual.stage": "proposals", "text.stage": "phrases"}
PHRASES |= on("flickr30k_entities", "plummer", None)
COCO = on("coco", "two_branch")

# docs/models.md#two-branch-embedding
BRANCHES = {"model.width": 512, "model.layout": "paper", "model.statistics": "training"}
LINEAR = {"model.layout": "linear"}

# docs/models.md#two-branch-losses; how many epochs is ours for sentences
STEP = {"_type": "Step", "after": [10, 20], "factor": 0.1}
SGD = {"optimiser.rule": "sgd", "optimiser.learning_rate": 0.1, "optimiser.weight_decay": 5e-4}
SGD |= {"optimiser.momentum": 0.9, "optimiser.schedule": STEP, "optimiser.multipliers": []}
ADAM = {"optimiser.rule": "adam", "optimiser.learning_rate": 1e-3, "optimiser.weight_decay": 0.005}
ADAM |= {"optimiser.momentum": 0, "optimiser.schedule": None, "optimiser.multipliers": []}
FOR_SENTENCES = BRANCHES | {"model.hidden": 2048, "model.dropout": 0.5, "model.reduction": "mean", "batch_size": 1500}
FOR_SENTENCES |= phase(0, USUAL_PHASE | SGD | {"epochs": 30, "sampler": None})
FOR_PHRASES = BRANCHES | {"model.hidden": 1024, "model.dropout": 0, "model.reduction": "sum", "batch_size": 100}
FOR_PHRASES |= phase(0, USUAL_PHASE | ADAM | {"epochs": 8})
DISTANCES = {"model.margin": 0.1, "model.offset": 0, "model.neighbour": "each"}
OFFICIAL_CODE = {"batch_size": 500, "model.layout": "code", "model.margin": 0.05, "model.most": 10}
OFFICIAL_CODE |= {"model.offset": 1e-4, "model.neighbour": "farthest"}
OFFICIAL_CODE |= phase(0, ADAM | {"optimiser.learning_rate": 1e-4, "optimiser.weight_decay": 0})


def weights(visual: float, text: float, visual_neighbours: float, text_neighbours: float) -> Numbers:
    sides = {"weights.visual": visual, "weights.text": text}
    return sides | {"weights.visual_neighbours": visual_neighbours, "weights.text_neighbours": text_neighbours}


ONE_DIRECTION, BOTH = phase(0, weights(0, 1, 0, 0)), phase(0, weights(1, 2, 0, 0))
LOGISTIC = {"model.layers": 3, "phases.0.weights.logistic": 1}  # docs/models.md#two-branch-similarity

# docs/models.md#two-branch-sampling
TWO = {"phases.0.sampler": {"_type": "Neighbours", "captions": 2}}
NONE = {"phases.0.sampler": None}


def sampler(positive: float, neighbours: int, draws: str) -> Numbers:
    known = {"_type": "Phrases", "positive_overlap": positive, "negative_overlap": 0.3}
    return {"sampler": known | {"neighbours": neighbours, "draws": draws}}


AUGMENTED, SINGLE, SAMPLED = (sampler(*rule, "triplets") for rule in ((0.7, 1), (1, 1), (0.7, 2)))
LAST_EPOCH = USUAL_PHASE | ADAM | {"epochs": 1} | SAMPLED | weights(1, 4, 0.1, 0.1)

# docs/models.md#cca; eta is ours
KLEIN = {"batch_size": 1024, "model.eta": 1e-4, "model.ridge": 1e-8, "model.width": None}
KLEIN |= {"model.weights": "correlations", "model.power": 1}
GONG = {"model.eta": 0, "model.ridge": 1e-4, "model.power": 4}
MEAN = {"text.method": "mean"}

# Dual-Path: docs/models.md#dual-path-text-net

NETWORK = {"model.depths": [3, 4, 6, 1], "model.channels": 256, "model.width": 2048, "model.word_width": 300}
NETWORK |= {"model.pool": "maximum", "model.head": "official"}

# docs/models.md#dual-path-text-input
WORDS = {"text.tokenizer": "dual-path", "text.minimum_count": 1, "text.cleaning": "none", "text.longest": None}
WORDS |= {"text.vectors": "word2vec", "text.marked": 0, "text.deleted": 0}
WORDS |= {"model.length": 32, "model.alignment": "shifted"}

# docs/models.md#dual-path-losses
CLASSES = {"model.class_bias": True, "model.learns_identities": False, "model.margin": 1}
MINED = {"phases.1.sampler": {"_type": "Candidates", "texts": 256}}
RANDOM = {"phases.1.sampler": None}


def losses(stage: int, instance_visual: float, instance_text: float, ranking: float) -> Numbers:
    terms = {"instance_visual": instance_visual, "instance_text": instance_text, "ranking": ranking}
    return phase(stage, {f"weights.{name}": value for name, value in terms.items()})


# docs/models.md#dual-path-training
OF_WORDS = ["text.words.*", 1e-3]
RESNET_TRUNK = [["trunk.0.*", 1e-4], ["trunk.1.*", 0.02], ["trunk.*.bn?.*", 0.02], ["trunk.*.downsample.1.*", 0.02]]
VGG_TRUNK = [["trunk.0.*", 1e-4], ["trunk.*.bias", 0.02]]
NESTEROV = {"optimiser.rule": "nesterov", "optimiser.learning_rate": 0.1, "optimiser.weight_decay": 1e-4}
NESTEROV |= {"optimiser.momentum": 0.9}
PIXELS = {"crop": "random", "flip": True, "jitter": False, "erase": 0, "evaluation": "whole_and_flipped"}
STAGE_1 = USUAL_PHASE | NESTEROV | {"captions": "one", "sampler": None}
STAGE_1 |= {"optimiser.multipliers": [OF_WORDS], "optimiser.schedule": None}
STAGE_2 = USUAL_PHASE | NESTEROV | {"captions": "one"} | {f"pixels.{name}": value for name, value in PIXELS.items()}
del STAGE_2["pixels"]


def rates(trunk: list[list[Any]]) -> Numbers:
    return {"phases.1.optimiser.multipliers": [OF_WORDS, *trunk, ["trunk.*", 1e-3]]}


def epochs(first: int, second: int, *falls: int) -> Numbers:
    schedule = {"_type": "Step", "after": list(falls), "factor": 0.1}
    return {"phases.0.epochs": first, "phases.1.epochs": second, "phases.1.optimiser.schedule": schedule}


DUAL_PATH = USUAL | on("flickr30k", "plummer") | {"visual.stage": "resnet", "visual.network": "resnet50"}
DUAL_PATH |= NETWORK | WORDS | CLASSES | {"model.dropout": 0.75, "batch_size": 32}
DUAL_PATH |= phase(0, STAGE_1) | phase(1, STAGE_2) | epochs(240, 60, 40) | rates(RESNET_TRUNK)
DUAL_PATH |= losses(0, 1, 1, 0) | losses(1, 1, 1, 1) | MINED
DUAL_COCO = on("coco", "karpathy") | {"text.tokenizer": "dual-path-coco", "model.class_bias": False}
DUAL_COCO |= {"model.dropout": 0.5} | epochs(90, 21, 15, 20)
PEDES = on("cuhk_pedes", "cuhk_pedes", None) | {"model.learns_identities": True, "model.length": 56}
PEDES |= {"model.dropout": 0.8} | epochs(180, 60, 40) | RANDOM
RESNET_152 = {"visual.network": "resnet152"}
DEEP = RESNET_152 | {"model.depths": [3, 8, 36, 3]}
ANY = {"visual.network": ""}  # as A3VSE's tables do not say which


def vgg(number: int) -> Numbers:
    return {"visual.stage": "features", "visual.network": f"torchvision/vgg{number}"} | rates(VGG_TRUNK)


def share(split: str, *lengths: int) -> Numbers:  # docs/models.md#sparse-splits
    return {"view.split": split} | epochs(*lengths)


# By recipe: another one, whose numbers it has but for its own; "" is none.
RECIPES: dict[str, tuple[str, Numbers]] = {
    "two-branch-flickr30k-bidirectional": ("", SENTENCES | FOR_SENTENCES | DISTANCES | {"model.most": 50} | BOTH),
    "two-branch-flickr30k-one-direction": ("two-branch-flickr30k-bidirectional", ONE_DIRECTION),
    "two-branch-flickr30k-linear": ("two-branch-flickr30k-bidirectional", LINEAR),
    "two-branch-flickr30k-linear-one-direction": ("two-branch-flickr30k-one-direction", LINEAR),
    "two-branch-flickr30k-sampling": ("two-branch-flickr30k-bidirectional", TWO),
    "two-branch-flickr30k-constraints": ("two-branch-flickr30k-sampling", phase(0, weights(1, 2, 0, 0.2))),
    "two-branch-flickr30k-official-code": (
        "two-branch-flickr30k-sampling",
        OFFICIAL_CODE | phase(0, weights(1, 1.5, 0, 0.05)),
    ),
    "similarity-flickr30k": ("", SENTENCES | FOR_SENTENCES | LOGISTIC),
    "two-branch-coco-bidirectional": ("two-branch-flickr30k-bidirectional", COCO),
    "two-branch-coco-sampling": ("two-branch-flickr30k-sampling", COCO),
    "two-branch-coco-constraints": ("two-branch-flickr30k-constraints", COCO),
    "two-branch-coco-official-code": ("two-branch-flickr30k-official-code", COCO),
    "similarity-coco": ("similarity-flickr30k", COCO),
    "two-branch-phrases": (
        "",
        PHRASES | FOR_PHRASES | DISTANCES | {"model.most": 30} | phase(0, weights(1, 4, 0, 0) | AUGMENTED),
    ),
    "two-branch-phrases-single": ("two-branch-phrases", phase(0, SINGLE)),
    "two-branch-phrases-one-direction": ("two-branch-phrases-single", ONE_DIRECTION),
    "two-branch-phrases-linear": ("two-branch-phrases-one-direction", LINEAR),
    "two-branch-phrases-sampling": ("two-branch-phrases", phase(0, SAMPLED)),
    "two-branch-phrases-constraints": ("two-branch-phrases-sampling", phase(1, LAST_EPOCH)),
    "similarity-phrases": ("", PHRASES | FOR_PHRASES | LOGISTIC | phase(0, sampler(0.7, 1, "pairs"))),
    "similarity-phrases-single": ("similarity-phrases", phase(0, sampler(1, 1, "pairs"))),
    "similarity-phrases-linear": ("similarity-phrases", LINEAR),
    "similarity-phrases-linear-single": ("similarity-phrases-single", LINEAR),
    "cca-flickr30k": ("", SENTENCES | KLEIN),
    "cca-coco": ("cca-flickr30k", COCO),
    "cca-phrases": ("cca-flickr30k", PHRASES),
    "normalised-cca-flickr30k": ("cca-flickr30k", GONG),
    "normalised-cca-coco": ("cca-coco", GONG),
    "normalised-cca-phrases": ("cca-phrases", GONG),
    "mean-vector-flickr30k": ("cca-flickr30k", MEAN),
    "mean-vector-coco": ("cca-coco", MEAN),
    "dual-path-flickr30k-resnet50": ("", DUAL_PATH),
    "dual-path-flickr30k-resnet152": ("dual-path-flickr30k-resnet50", DEEP),
    "dual-path-flickr30k-vgg19": ("dual-path-flickr30k-resnet50", vgg(19)),
    "dual-path-flickr30k-ranking": ("dual-path-flickr30k-resnet50", losses(1, 0, 0, 1)),
    "dual-path-flickr30k-instance": ("dual-path-flickr30k-resnet50", losses(1, 1, 1, 0)),
    "dual-path-flickr30k-full": ("dual-path-flickr30k-resnet50", ANY | on("flickr30k", "karpathy")),
    "dual-path-flickr30k-10-5": ("dual-path-flickr30k-full", share("karpathy/train@10%x5", 600, 150, 100)),
    "dual-path-flickr30k-20-5": ("dual-path-flickr30k-full", share("karpathy/train@20%x5", 480, 120, 80)),
    "dual-path-flickr30k-50-2": ("dual-path-flickr30k-full", share("karpathy/train@50%x2", 288, 72, 48)),
    "dual-path-flickr30k-50-5": ("dual-path-flickr30k-full", share("karpathy/train@50%x5", 288, 72, 48)),
    "dual-path-coco-resnet50": ("dual-path-flickr30k-resnet50", DUAL_COCO),
    "dual-path-coco-resnet152": ("dual-path-coco-resnet50", DEEP),
    "dual-path-coco-vgg19": ("dual-path-coco-resnet50", vgg(19)),
    "dual-path-coco-official": ("dual-path-coco-resnet50", losses(1, 1, 0.1, 2)),
    "dual-path-coco-full": ("dual-path-coco-resnet50", ANY),
    "dual-path-coco-10-1": ("dual-path-coco-full", share("karpathy/train@10%x1", 225, 52, 38, 50)),
    "dual-path-coco-50-2": ("dual-path-coco-full", share("karpathy/train@50%x2", 108, 25, 18, 24)),
    "dual-path-cuhk-pedes-resnet50": ("dual-path-flickr30k-resnet50", PEDES),
    "dual-path-cuhk-pedes-vgg16": ("dual-path-cuhk-pedes-resnet50", vgg(16)),
}
# Of stage I alone, where there is no recipe of both stages.
FIRST_STAGES: dict[str, tuple[str, Numbers]] = {
    "dual-path-flickr30k-resnet152-text50": ("dual-path-flickr30k-resnet50", RESNET_152),
    "dual-path-flickr30k-ranking": ("dual-path-flickr30k-resnet50", losses(0, 0, 0, 1)),
    "dual-path-flickr30k-random-words": ("dual-path-flickr30k-resnet50", {"text.vectors": None}),
    "dual-path-flickr30k-left": ("dual-path-flickr30k-resnet50", {"model.alignment": "left"}),
    "dual-path-coco-resnet152-text50": ("dual-path-coco-resnet50", RESNET_152),
    "dual-path-coco-3000-classes": ("dual-path-coco-resnet50", {"model.clusters": 3000}),
    "dual-path-coco-10000-classes": ("dual-path-coco-resnet50", {"model.clusters": 10_000}),
}
OURS = {"cca"}  # for a corpus of any size: no paper has it


def expected(name: str) -> Numbers:
    whole = name.removesuffix("-stage1")
    like, own = FIRST_STAGES[whole] if name != whole and whole in FIRST_STAGES else RECIPES[whole]
    found = (expected(like) if like else {}) | own
    return found if name == whole else {path: value for path, value in found.items() if not path.startswith("phases.1")}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model, one.name)
        for model in ("two_branch", "cca", "dual_path")
        for one in recipes_of(model)
        if one.name not in OURS
    ],
)
def test_every_recipe_has_the_numbers_of_its_row_and_no_others(model: str, name: str) -> None:
    (recipe,) = (one for one in recipes_of(model) if one.name == name)
    found = {path: value for path, value in numbers(to_plain(recipe)) if path != "name"}
    assert {"visual.network": ""} | found == {"visual.network": ""} | expected(name)
