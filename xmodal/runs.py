"""A run's directory: what was trained, on what, and how far it came. Plain files; nothing in them is executed.

<run>/recipe.json       the recipe, the records and features it was trained on, the inputs of its network
      vocabulary.txt    the words by their ids
      log.jsonl         a line every few steps and one for each validation; equal runs write equal lines
      last.pt           weights, optimiser and place after the last whole epoch: where training goes on
      best.pt           weights of the validation with the highest rsum
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal import models
from xmodal.corpora import View
from xmodal.identity import canonical_json, fingerprint, to_plain
from xmodal.models import Inputs, Recipe, Scorer
from xmodal.storage import LocalStorage
from xmodal.text import Vocabulary
from xmodal.trouble import Trouble

RECIPE, VOCABULARY, LOG, LAST, BEST = "recipe.json", "vocabulary.txt", "log.jsonl", "last.pt", "best.pt"
LAYOUT = 1
FACTS = {"recipe": dict, "visual_width": int, "instances": int} | dict.fromkeys(
    ("fingerprint", "model", "records", "features", "vocabulary"), str
)  # of recipe.json, with their kinds


@dataclass(frozen=True)
class Run:
    """What a run was started with. `records` and `features` are identities of outputs."""

    recipe: Recipe
    records: str
    features: str
    vocabulary: Vocabulary
    visual_width: int
    instances: int
    weights: str = ""  # the network that made the features: told, not compared, as `features` decides it
    vectors: str = ""  # sha256 of the file of word vectors that the words start from
    pixels: str = ""  # the identity of the pictures that later phases read

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.visual_width, len(self.vocabulary), self.instances)

    def facts(self) -> dict[str, Any]:
        """recipe.json."""
        return {
            "layout": LAYOUT,
            "recipe": to_plain(self.recipe),
            "fingerprint": fingerprint(self.recipe),
            "model": type(self.recipe.model).__module__.rpartition(".")[2],
            "records": self.records,
            "features": self.features,
            "vocabulary": fingerprint(self.vocabulary),
            "visual_width": self.visual_width,
            "instances": self.instances,
            "weights": self.weights,
            "vectors": self.vectors,
            "pixels": self.pixels,
        }


def start(folder: str, run: Run) -> None:
    """Writes what the run is; a folder that holds another run is refused, the same one goes on."""
    storage = LocalStorage(folder)
    if storage.size(RECIPE) is not None:
        before, now = _facts(storage), json.loads(canonical_json(run.facts()))
        names = (before.keys() | now.keys()) - {"weights"}
        changed = sorted(name for name in names if before.get(name) != now.get(name))
        if changed:
            raise Trouble(f"{folder} holds another run (other {', '.join(changed)}): choose another folder for this")
        return
    if others := [name for name in storage.names("") if name != VOCABULARY and name[0] not in "_."]:
        raise Trouble(f"{folder} is no run and not empty (it has {others[0]}): choose another folder")
    storage.write(VOCABULARY, run.vocabulary.to_bytes())
    storage.write(RECIPE, canonical_json(run.facts()))


def read(folder: str) -> Run:
    storage = LocalStorage(folder)
    if storage.size(RECIPE) is None:
        raise Trouble(f"{folder} is no run: it has no {RECIPE}")
    facts = _facts(storage)
    vocabulary = _vocabulary(storage)
    recipe = recipe_of(facts["recipe"], facts["model"])
    if (fingerprint(recipe), fingerprint(vocabulary)) != (facts["fingerprint"], facts["vocabulary"]):
        raise Trouble(f"{folder}: {RECIPE} and {VOCABULARY} are not what the run was started with")
    names = ("records", "features", "visual_width", "instances")
    facts = {"weights": "", "vectors": "", "pixels": ""} | facts
    return Run(
        recipe, vocabulary=vocabulary, **{name: facts[name] for name in (*names, "weights", "vectors", "pixels")}
    )


def network(folder: str, run: Run, word_vectors: NDArray[np.float32] | None = None) -> Scorer[Any, Any]:
    """The run's network before training; sizes that no network has are refused as damage of the run."""
    try:
        return run.recipe.model.build(replace(run.inputs, word_vectors=word_vectors))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Trouble(f"{folder}/{RECIPE} describes a network that cannot be built: {error}") from error


def read_vocabulary(folder: str) -> Vocabulary | None:
    """None where a run has not started."""
    storage = LocalStorage(folder)
    if storage.size(RECIPE) is None:
        return None
    return _vocabulary(storage)


def recipe_of(plain: Mapping[str, Any], model: str) -> Recipe:
    """A recipe from its canonical form; nothing is made but the dataclasses of recipes and of the named model."""
    named = vars(models) | vars(models.load(model)) | {"View": View}
    classes = {name: known for name, known in named.items() if isinstance(known, type) and is_dataclass(known)}
    try:
        recipe = _from_plain(plain, classes)
        _ = fingerprint(recipe)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Trouble(
            f"a recipe of model {model} does not fit this version of xmodal ({error}): use that of the run"
        ) from error
    if not isinstance(recipe, Recipe):
        raise Trouble(f"{RECIPE} holds no recipe but a {type(recipe).__name__}: the run is damaged")
    return recipe


def _from_plain(value: Any, classes: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(item, classes) for item in value)
    if not isinstance(value, dict):
        return value
    plain = {name: _from_plain(item, classes) for name, item in value.items() if name != "_type"}
    return classes[value["_type"]](**plain) if "_type" in value else plain


def _facts(storage: LocalStorage) -> dict[str, Any]:
    """recipe.json with every fact in it, of its kind."""
    where = f"{storage.url}/{RECIPE}"
    try:
        facts = json.loads(storage.read(RECIPE))
    except (ValueError, RecursionError) as error:
        raise Trouble(f"{where} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise Trouble(f"{where} is damaged: it holds a {type(facts).__name__}")
    if facts.get("layout") != LAYOUT:
        raise Trouble(f"{where} was written by another version of xmodal: use that one")
    if wrong := [name for name, kind in FACTS.items() if not isinstance(facts.get(name), kind)]:
        raise Trouble(f"{where} is damaged: it has no usable {', '.join(wrong)}")
    return facts


def _vocabulary(storage: LocalStorage) -> Vocabulary:
    where = f"{storage.url}/{VOCABULARY}"
    if storage.size(VOCABULARY) is None:
        raise Trouble(f"{where} is missing: train again, in another folder")
    try:
        return Vocabulary.from_bytes(storage.read(VOCABULARY), where)
    except ValueError as error:
        raise Trouble(f"{where} is damaged: {error}") from error
