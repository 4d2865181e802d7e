"""A run's directory says what was trained on what, and nothing else is believed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.toy_root import recipe
from xmodal import runs
from xmodal.models import OnePerClass, Optimiser, Phase, Plateau, Recipe, Relative
from xmodal.text import Vocabulary
from xmodal.trouble import Trouble

ADAM = Optimiser("adam", 5e-3)
RUN = runs.Run(recipe(), "aaaa", "bbbb", Vocabulary.build(["a dog"], "whitespace", 1), visual_width=64, instances=9)


def test_a_run_comes_back_as_it_was_started(tmp_path: Path) -> None:
    runs.start(str(tmp_path), RUN)
    runs.start(str(tmp_path), RUN)
    assert runs.read(str(tmp_path)) == RUN
    assert (RUN.inputs.visual_width, RUN.inputs.text_width, RUN.inputs.instances) == (64, 6, 9)
    with pytest.raises(Trouble, match=r"holds another run \(other features\): choose another folder"):
        runs.start(str(tmp_path), replace(RUN, features="cccc"))


def test_a_folder_that_never_became_a_run_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / runs.VOCABULARY).write_bytes(b"of an attempt that was killed")
    assert runs.read_vocabulary(str(tmp_path)) is None
    with pytest.raises(Trouble, match="is no run"):
        runs.read(str(tmp_path))
    runs.start(str(tmp_path), RUN)
    assert runs.read_vocabulary(str(tmp_path)) == RUN.vocabulary


def test_a_recipe_survives_its_file() -> None:
    everything: Recipe = recipe(
        phases=(
            Phase(1, replace(ADAM, schedule=Plateau(0.5, 3)), {"a": 1.0, "b": Relative(0.5, "a")}, ("words.*",)),
            Phase(2, replace(ADAM, rule="adamp", multipliers=(("x", 0.5),)), {"a": 2.0}, sampler=OnePerClass()),
        )
    )
    facts = json.loads(json.dumps(replace(RUN, recipe=everything).facts()))
    assert runs.recipe_of(facts["recipe"], facts["model"]) == everything


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (runs.RECIPE, lambda data: data.replace(b'"seed":0', b'"seed":1'), "are not what the run was started with"),
        (runs.RECIPE, lambda data: data.replace(b'"layout":1', b'"layout":2'), "another version of xmodal"),
        (runs.RECIPE, lambda data: data.replace(b'"batch_size"', b'"batches"'), "does not fit this version"),
        (runs.RECIPE, lambda data: data.replace(b'"Recipe"', b'"import_module"'), "does not fit this version"),
        (runs.RECIPE, lambda data: data[:-9], r"recipe\.json is damaged"),
        (runs.RECIPE, lambda data: b"[" * 100_000, r"recipe\.json is damaged"),
        (runs.RECIPE, lambda data: b"[]", r"recipe\.json is damaged: it holds a list"),
        (runs.RECIPE, lambda data: data.replace(b'"instances"', b'"instance"'), "has no usable instances"),
        (runs.RECIPE, lambda data: data.replace(b'"batch_size":32', b'"batch_size":0'), "does not fit this version"),
        (runs.RECIPE, lambda data: data.replace(b'"seed":0', b'"seed":NaN'), "does not fit this version"),
        (runs.VOCABULARY, lambda data: data[:-5], "is not the vocabulary that was written"),
    ],
)
def test_a_damaged_run_is_refused(tmp_path: Path, name: str, change: Callable[[bytes], bytes], message: str) -> None:
    runs.start(str(tmp_path), RUN)
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    with pytest.raises(Trouble, match=message):
        runs.read(str(tmp_path))
