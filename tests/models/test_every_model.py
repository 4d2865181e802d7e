"""What holds for every model: a new one brings its small configs in `SMALL`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.toy_root import coded, make_root, recipe
from tests.toy_root import one_thread as one_thread
from xmodal import models
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts
from xmodal.checks import model_contract
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import open_run
from xmodal.features.opening import open_features
from xmodal.models import Inputs
from xmodal.progress import Silence
from xmodal.recipes import SENTENCES, Features, Positional, Recipe, View
from xmodal.root.selection import find_output
from xmodal.text.vocabularies import SPECIALS, Vocabulary
from xmodal.training import run_folder
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import measure

CASES = [
    pytest.param(recipe, id=f"{name}{number}")
    for name in models.names()
    for number, recipe in enumerate(model_contract.small_recipes(models.load(name)))
]


@pytest.mark.parametrize("name", models.names())
def test_it_declares_what_a_model_must(name: str) -> None:
    assert list(model_contract.declaration_faults(models.load(name))) == []


@pytest.mark.parametrize("name", models.names())
def test_the_objective_of_every_recipe_gives_what_its_phases_weigh(name: str) -> None:
    assert {one.name: list(model_contract.objective_names(one)) for one in models.recipes_of(name)} == {
        one.name: [] for one in models.recipes_of(name)
    }


@pytest.mark.parametrize(
    ("small", "check"),
    [
        pytest.param(small, check, id=f"{case.id}-{check}")
        for case in CASES
        for small in case.values
        for check in model_contract.checks_of(small)
    ],
)
def test_it_keeps_the_contract(small: Recipe, check: str) -> None:
    assert list(model_contract.checks_of(small)[check](small)) == []


@pytest.fixture(scope="module")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("root"), items=40)
    coded(root)
    return root


@pytest.mark.parametrize("small", CASES)
def test_a_model_that_chooses_among_positions_refuses_a_store_of_one(
    small: Recipe, toy_root: str, tmp_path: Path
) -> None:
    """Where a run is opened, too; a grid is read by all."""
    config = small.model
    records, grids = find_output(toy_root, "records"), make_root(tmp_path / "grids", items=20, places=2)
    _ = open_features(grids, "resnet", None, find_output(grids, "records"), config)
    store = open_features(toy_root, "resnet", None, records)
    started = Run(
        recipe(model=config, phases=()), records.identity, store.output.identity, Vocabulary("nltk", SPECIALS), 64, 8
    )
    run_folder.start(str(tmp_path / "run"), started)
    if not (isinstance(config, Positional) and config.looks_at_positions):
        _ = open_features(toy_root, "resnet", None, records, config)
        with pytest.raises(UserError, match="train it first"):
            open_run(str(tmp_path / "run"), Setup(toy_root), "toy/test")
        return
    chooser = type(config).__name__.removesuffix("Config")
    message = f"has one position an item, and {chooser} chooses among several: .*--set resnet.output=grid"
    with pytest.raises(UserError, match=message):
        open_features(toy_root, "resnet", None, records, config)
    with pytest.raises(UserError, match=message):
        open_run(str(tmp_path / "run"), Setup(toy_root), "toy/test")


@pytest.mark.parametrize("small", CASES)
def test_it_is_measured_but_never_on_an_empty_gallery(small: Recipe, toy_root: str) -> None:
    records, vocabulary = find_output(toy_root, "records"), Vocabulary("nltk", (*SPECIALS, "a", "and", "red", "blue"))
    store = open_features(toy_root, "resnet", None, records)
    are_vectors = isinstance(small.text, Features) and small.text.stage == SENTENCES
    sentences = coded(toy_root) if are_vectors else None
    examples = Examples.of(records, View("pictures", "toy/train", captions_per_item=2), store, sentences or vocabulary)
    width = sentences.spec.row_shape[-1] if sentences else len(vocabulary)
    model = model_contract.built(small, inputs=Inputs(64, width, len(examples.ids)))
    scores = measure(model, Reader(examples, store), Silence(), blocks=(7, 13))
    assert 0 < scores["all"].rsum <= 600
    none = Texts(np.zeros(0, np.int32), np.zeros(1, np.int64))
    empty = replace(examples, caption_ids=(), caption_items=np.zeros(0, np.int64), words=none)
    with pytest.raises(ValueError, match="an empty gallery cannot be searched"):
        measure(model, Reader(empty, store), Silence())
    nothing = replace(empty, ids=(), rows=np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="an empty gallery cannot be searched: 0 visual rows, 0 text rows"):
        measure(model, Reader(nothing, store), Silence())
