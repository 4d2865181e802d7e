"""A toy of each kind goes through the whole contract, and the papers' recipes can be written down."""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.fixtures.toy_model import Toy, ToyConfig
from xmodal import models
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.errors import UserError
from xmodal.models import Inputs, Scorer, Solvable, Trainable
from xmodal.recipes import (
    Candidates,
    Cosine,
    Features,
    Neighbours,
    OnePerClass,
    Optimiser,
    Phase,
    Phrases,
    Pixels,
    Plateau,
    Recipe,
    Relative,
    Step,
    Tokens,
    View,
)
from xmodal.root.identity import fingerprint


class Averages:
    """A closed form: texts are dense, and both sides are centred on what `solve` saw."""

    def solve(self, stream: Iterable[Stream]) -> None:
        visual, text, count = torch.zeros(()), torch.zeros(()), 0
        for block in stream:
            visual = visual + block.visual.average().sum(0)
            text = text + block.text.average().sum(0)
            count += len(block.visual)
        self.visual, self.text = visual / count, text / count

    def encode_visual(self, visual: Padded) -> Tensor:
        return visual.average() - self.visual

    def encode_text(self, text: Padded) -> Tensor:
        return text.average() - self.text

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return visual @ text.T


def toy_stream(rows: int = 6) -> Stream:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 5)).astype("float32") for row in range(rows)])
    text = Padded.of([random.integers(0, 20, size=1 + row % 4) for row in range(rows)])
    return Stream.paired(visual, text, torch.arange(rows), torch.arange(rows))


def toy() -> Toy:
    torch.manual_seed(0)
    return ToyConfig().build(Inputs(visual_width=5, text_width=20, instances=6))


def test_toys_satisfy_the_contracts_they_should() -> None:
    trainable: Trainable[Tensor, Tensor] = toy()
    solvable: Solvable[Tensor, Tensor] = Averages()
    assert isinstance(trainable, Trainable)
    assert not isinstance(trainable, Solvable)
    assert isinstance(solvable, Solvable)
    assert not isinstance(solvable, Trainable)
    assert isinstance(trainable, Scorer)
    assert isinstance(solvable, Scorer)


def test_one_step_lowers_the_objective() -> None:
    model, batch = toy(), Batch({"annotated": toy_stream()}, progress=0.5)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = sum(model.objective(batch).values(), torch.zeros(()))
    before.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    assert sum(model.objective(batch).values()) < before


def test_tiles_equal_the_whole() -> None:
    model, stream = toy().eval(), toy_stream()
    whole = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text))
    visual, text = model.encode_visual(stream.visual[2:4]), model.encode_text(stream.text[1:5])
    torch.testing.assert_close(model.similarity(visual, text), whole[2:4, 1:5])


def test_a_closed_form_solves_in_blocks_what_it_would_at_once() -> None:
    random = torch.Generator().manual_seed(0)
    features = Padded.whole(torch.randn(6, 1, 4, generator=random))
    blocks = [
        Stream.paired(features[rows], features[rows], torch.arange(3), torch.arange(3))
        for rows in (slice(3), slice(3, 6))
    ]
    at_once, in_blocks = Averages(), Averages()
    at_once.solve([Stream.paired(features, features, torch.arange(6), torch.arange(6))])
    in_blocks.solve(iter(blocks))
    torch.testing.assert_close(at_once.encode_text(features), in_blocks.encode_text(features))


ADAM = Optimiser("amsgrad", 2e-4, clip_norm=2.0, schedule=Plateau(0.5, 10, 1e-10))
PHASE = Phase(30, ADAM, {"matching": 1.0})
RECIPE = Recipe(
    name="toy",
    cites="ours",
    view=View("coco", "karpathy/train"),
    validation=View("coco", "karpathy/val"),
    visual=Features("grid"),
    text=Tokens("nltk", minimum_count=4),
    model=ToyConfig(),
    phases=(PHASE,),
    batch_size=128,
)


WARM_UP = replace(PHASE, weights={"mil": 1.0, "diversity": Relative(0.1, to="mil")}, frozen=("words.*",))
CLASSES = replace(PHASE, sampler=OnePerClass(), validate_every=50)
PIXELS = Pixels("random", True, evaluation="whole_and_flipped")
MINED = replace(PHASE, sampler=Candidates(texts=2), pixels=PIXELS)
OPTIMISERS = (
    Optimiser("adamp", 1e-4, clip_norm=2.0, unclipped=("scale", "shift"), schedule=Cosine(50)),
    Optimiser("sgd", 0.1, weight_decay=5e-4, momentum=0.9, schedule=Step((10, 20), 0.1)),
    Optimiser("nesterov", 0.1, momentum=0.9, multipliers=(("trunk.*.bias", 0.02), ("trunk.*", 0.001))),
)


def test_what_the_papers_differ_in_decides_the_identity() -> None:
    recipes = [
        RECIPE,
        replace(RECIPE, visual=Features("clips", frames=8, ends=6)),
        replace(RECIPE, visual=Features("clips", frames=8, ends=6, rule="linspace")),
        replace(RECIPE, text=Features("fisher")),
        replace(RECIPE, text=Tokens("dual-path", 1, longest=32, vectors="word2vec")),
        replace(RECIPE, unannotated=View("coco", "sparse-10-rest", text="semantics")),
        replace(RECIPE, phases=()),
        *(replace(RECIPE, phases=phases) for phases in ((WARM_UP,), (WARM_UP, MINED), (CLASSES,), (MINED,))),
        *(
            replace(RECIPE, phases=(replace(PHASE, sampler=sampler),))
            for sampler in (Neighbours(captions=2), Candidates(texts=2), Phrases(0.7, 0.3, 2))
        ),
        *(replace(RECIPE, phases=(replace(PHASE, optimiser=optimiser),)) for optimiser in OPTIMISERS),
    ]
    assert len({fingerprint(recipe) for recipe in recipes}) == len(recipes)


@pytest.mark.parametrize(("value", "field"), [(RECIPE, "seed"), (PHASE, "epochs"), (ADAM, "learning_rate")])
def test_recipes_are_frozen(value: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, field, 1)


@pytest.mark.parametrize(
    ("value", "changes", "message"),
    [
        (ADAM, {"rule": "adamw"}, "no optimiser 'adamw'; there are: adam, amsgrad, adamp, sgd, nesterov"),
        (ADAM, {"learning_rate": 0.0}, "must be above zero"),
        (ADAM, {"clip_norm": 0.0}, "must be above zero"),
        (ADAM, {"weight_decay": -1.0}, "^weight_decay -1.0 must be 0 or more$"),
        (ADAM, {"rule": "sgd", "momentum": -0.5}, "^momentum -0.5 must be 0 or more$"),
        (ADAM, {"multipliers": (("words.*", -1.0),)}, r"^the multiplier of words\.\* -1.0 must be 0 or more$"),
        (ADAM, {"momentum": 0.9}, "amsgrad with momentum 0.9"),
        (ADAM, {"rule": "nesterov"}, "nesterov with momentum 0.0"),
        (PHASE, {"epochs": 0}, "^epochs 0 must be a whole number, 1 or more$"),
        (PHASE, {"epochs": 2.5}, "^epochs 2.5 must be a whole number, 1 or more$"),
        (PHASE, {"weights": {"hinge": "1"}}, "^the weight of 'hinge' is '1', no number$"),
        (ADAM, {"learning_rate": "1"}, "^learning_rate '1' must be above zero$"),
        (PHASE, {"captions": "two"}, "^no captions 'two'; there are: each, one$"),
        (PIXELS, {"crop": "left"}, "^no crop 'left'; there are: resized, random, centre$"),
        (PIXELS, {"evaluation": "whole"}, "^no evaluation 'whole'; there are: centre, whole_and_flipped$"),
        (PIXELS, {"erase": 1.5}, "^erase 1.5 must be from 0 to 1$"),
        (PHASE, {"weights": {}}, "a term to weigh"),
        (PHASE, {"weights": {"a": 0.0, "b": 0}}, "a term to weigh"),
        (PHASE, {"weights": {"a": 1.0, "b": -0.1}}, "^the weight of 'b' -0.1 must be 0 or more$"),
        (PHASE, {"weights": {"a": math.nan}}, "^the weight of 'a' nan must be 0 or more$"),
        (PHASE, {"weights": {"a": 1.0, "b": Relative(0.1, to="c")}}, "'b' is weighed relative to 'c'"),
        (PHASE, {"weights": {"b": Relative(0.1, to="b")}}, "'b' is weighed relative to 'b'"),
        (RECIPE, {"batch_size": 0}, "^batch_size 0 must be a whole number, 1 or more$"),
        (RECIPE, {"precision": "half"}, "no precision 'half'; there are: single, mixed"),
        (RECIPE, {"view": View("coco", "karpathy/test")}, "train or choose on split 'karpathy/test'"),
        (RECIPE, {"validation": View("coco", "karpathy/test")}, "train or choose on split 'karpathy/test'"),
        (RECIPE, {"unannotated": View("coco", "sparse-10-rest")}, "must not read what people wrote"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    value: Optimiser | Phase | Pixels | Recipe, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(value, **changes)  # type: ignore[arg-type]


@pytest.fixture
def toy_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "toy_model.py").write_text("RECIPES = ()\n")
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    yield
    sys.modules.pop("xmodal.models.toy_model", None)
    vars(models).pop("toy_model", None)


@pytest.mark.usefixtures("toy_module")
def test_a_model_is_found_because_its_module_exists() -> None:
    assert "toy_model" in models.names()
    assert models.load("toy_model").RECIPES == ()


@pytest.mark.usefixtures("toy_module")
@pytest.mark.parametrize("name", ["", "toy", "os", "toy_model.x"])
def test_an_unknown_model_is_answered_with_those_that_exist(name: str) -> None:
    with pytest.raises(UserError, match=f"no model '{name}'; there are: .*toy_model"):
        models.load(name)
