"""The run folder: what was trained, on what, and how far it came.

<run>/recipe.json       the recipe, the records and features it was trained on, the inputs of its network
      vocabulary.txt    the words by their ids
      model.py          a copy of the user's file that defines the model, never executed
      log.jsonl         a line every few steps and one for each validation; equal runs write equal lines
      last.pt           weights, optimiser and place after the last whole epoch: where training goes on
      best.pt           weights of the validation with the highest rsum
      _lock             held while somebody trains here; says who
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal import __version__, models, recipes
from xmodal.errors import UserError, few
from xmodal.models import Inputs, Scorer
from xmodal.recipes import Recipe
from xmodal.root.identity import canonical_json, fingerprint, to_plain
from xmodal.root.storage import LocalStorage
from xmodal.text.vocabularies import Vocabulary

RECIPE, VOCABULARY, LOG, LAST, BEST, LOCK = "recipe.json", "vocabulary.txt", "log.jsonl", "last.pt", "best.pt", "_lock"
DETECTOR, DETECTOR_WEIGHTS = "detector.json", "detector.pt"  # of a run of `xmodal train detector`
LAYOUT = 4
TOLD = (
    "weights",
    "text_width",
    "annotated",
    "cites",
    "xmodal",
)  # facts of recipe.json that two equal runs may differ in
SHOWN = 6  # differences of two runs
# of recipe.json
TEXTS = ("cites", "fingerprint", "model", "records", "features", "vocabulary")
FACTS = {"recipe": dict, "visual_width": int, "instances": int} | dict.fromkeys(TEXTS, str)


@dataclass(frozen=True)
class Run:  # what it was started with
    recipe: Recipe
    records: str  # the identity of an output, as are `features` and `pixels`
    features: str
    vocabulary: Vocabulary
    visual_width: int
    instances: int
    weights: str = ""  # the features' network: not compared, as `features` decides it
    vectors: str = ""  # sha256 of the file that words start from
    pixels: str = ""  # that later phases read
    texts: str = ""  # captions as features
    text_width: int = 0  # of those: not compared, as `texts` decides it
    clusters: str = ""  # classes that k-means found; absent from the facts of runs without
    annotated: str = ""  # features of phrases' boxes: not compared, as `records` and `features` decide them

    @property
    def inputs(self) -> Inputs:
        return Inputs(self.visual_width, self.text_width or len(self.vocabulary), self.instances)

    @property
    def outputs(self) -> list[str]:
        """The identities of all outputs that the run reads."""
        views = (self.recipe.view, self.recipe.validation, self.recipe.unannotated)
        captions = [view.text.partition("/")[2] for view in views if view]
        return [
            *dict.fromkeys(
                filter(
                    None,
                    (self.records, self.features, self.pixels, self.texts, self.clusters, self.annotated, *captions),
                )
            )
        ]

    def facts(self) -> dict[str, Any]:
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.clusters:
            del facts["clusters"]
        return facts | {
            "layout": LAYOUT,
            "xmodal": __version__,
            "cites": self.recipe.cites,
            "recipe": to_plain(self.recipe),
            "fingerprint": fingerprint(self.recipe),
            "model": models.reference(self.recipe.model),
            "vocabulary": fingerprint(self.vocabulary),
        }


def start(folder: str, run: Run) -> None:
    refuse_another(folder, run)
    if not _has(folder, RECIPE):
        storage = LocalStorage(folder)
        storage.write(VOCABULARY, run.vocabulary.to_bytes())
        storage.write(RECIPE, canonical_json(run.facts()))
        if source := models.source_of(run.recipe.model):
            storage.write(models.SOURCE, source)


def refuse_another(folder: str, run: Run) -> None:
    refuse_other_facts(folder, _facts(folder) if _has(folder, RECIPE) else None, run.facts())


def refuse_other_facts(folder: str, there: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> None:
    """Refuses a folder that is not empty, unless it holds this very run; `there` are the facts of its run, if any."""
    if there is not None:
        if changed := list(_changes(there, json.loads(canonical_json(facts)))):
            or_anew = (
                "" if _is_saved(folder) or _is_held(folder) else "nothing of it is saved, so remove the folder, or "
            )
            raise UserError(
                f"{folder} holds another run: {few(changed, SHOWN)}: {or_anew}choose another folder for this"
            )
    elif others := [name for name in LocalStorage(folder).names("") if name != VOCABULARY and name[0] not in "_."]:
        raise UserError(f"{folder} is no run and not empty (it has {others[0]}): choose another folder")


def _is_saved(folder: str) -> bool:
    return has_state(folder) or _has(folder, BEST)


def _is_held(folder: str) -> bool:
    try:
        with (Path(folder) / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nobody ever trained here
        return False
    return False


def has_state(folder: str) -> bool:
    return _has(folder, LAST)


def _has(folder: str, name: str) -> bool:
    return LocalStorage(folder).size(name) is not None


@contextlib.contextmanager
def held(folder: str) -> Iterator[None]:
    """Locks the folder until the process ends."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = (Path(folder) / LOCK).open("a+")
    except OSError as error:
        raise UserError(f"run {folder} cannot be written ({error.strerror}): choose another folder for it") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            raise UserError(f"{folder} is being trained by {holder}: wait for it, or choose another folder") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def anew(folder: str) -> str:
    return f"remove {folder}/{LAST} and train again, from the beginning"


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Names what differs as `--set` does; the fingerprint only if nothing else differs."""
    old, new = (dict(_leaves(facts, "")) for facts in (before, now))
    names = [name for name in dict.fromkeys((*new, *old)) if name not in TOLD]
    found = [name for name in names if _said(old, name) != _said(new, name)]
    for name in found:
        if name != "fingerprint" or len(found) == 1:
            yield f"{name} is {_said(old, name)} there and {_said(new, name)} here"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for part, inner in value.items():
            yield from _leaves(inner, f"{name}.{part}".lstrip(".").removeprefix("recipe."))
    elif name == "phases" and isinstance(value, list):
        yield name, len(value)
        for number, phase in enumerate(value, 1):
            yield from _leaves(phase, f"phase{number}")
    else:
        yield name, value


def _said(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "nothing"


def read(folder: str) -> Run:
    if _has(folder, DETECTOR):
        use = f"`xmodal build CORPUS/regions --set regions.detector=small --file detector={folder}/{DETECTOR_WEIGHTS}`"
        raise UserError(f"{folder} is a run of a detector, which finds regions: {use}")
    if not _has(folder, RECIPE):
        there = f"it has no {RECIPE}" if Path(folder).exists() else "there is no such folder"
        raise UserError(f"{folder} is no run: {there}")
    facts, vocabulary = _facts(folder), _vocabulary(folder)
    recipe = recipe_of(facts["recipe"], facts["model"], facts["cites"])
    if (fingerprint(recipe), fingerprint(vocabulary)) != (facts["fingerprint"], facts["vocabulary"]):
        raise UserError(f"{folder}: {RECIPE} and {VOCABULARY} are not what the run was started with: {_afresh(folder)}")
    told = {field.name: facts[field.name] for field in fields(Run) if field.name in facts}
    return Run(**told | {"recipe": recipe, "vocabulary": vocabulary})


def network(folder: str, run: Run, word_vectors: NDArray[np.float32] | None = None) -> Scorer[Any, Any]:
    if word_vectors is not None:
        wide, there = getattr(run.recipe.model, "word_width", None), word_vectors.shape[1]
        if wide not in (None, there):
            raise UserError(
                f"recipe {run.recipe.name!r} has words of {wide} numbers, the word vectors have {there}: "
                f"other vectors, or --set model.word_width={there}"
            )
    try:
        return run.recipe.model.build(replace(run.inputs, word_vectors=word_vectors))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{folder}/{RECIPE} describes a network that cannot be built: {error}") from error


def read_vocabulary(folder: str) -> Vocabulary | None:
    return _vocabulary(folder) if _has(folder, RECIPE) else None


def _afresh(folder: str) -> str:
    return f"remove the folder {folder} and train again"


def recipe_of(plain: Mapping[str, Any], model: str, cites: str = "") -> Recipe:
    """Makes a recipe of its canonical form, from dataclasses of recipes and of the model alone."""
    named = vars(recipes) | vars(models.load(model))
    classes = {name: known for name, known in named.items() if isinstance(known, type) and is_dataclass(known)}
    try:
        recipe = _from_plain({"cites": cites, **plain}, classes)
        _ = fingerprint(recipe)
        if not isinstance(recipe, Recipe):
            raise TypeError(f"it is a {type(recipe).__name__}")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(
            f"a recipe of model {model} does not fit this version of xmodal ({error}): use that of the run"
        ) from error
    return recipe


def _from_plain(value: Any, classes: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(item, classes) for item in value)
    if not isinstance(value, dict):
        return value
    plain = {name: _from_plain(item, classes) for name, item in value.items() if name != "_type"}
    return classes[value["_type"]](**plain) if "_type" in value else plain


def _facts(folder: str) -> dict[str, Any]:
    where = f"{folder}/{RECIPE}"
    try:
        facts: dict[str, Any] = json.loads(LocalStorage(folder).read(RECIPE))
        if facts.get("layout") != LAYOUT:
            raise UserError(f"{where} was written by another version of xmodal: use that one")
        if wrong := [name for name, kind in FACTS.items() if not isinstance(facts.get(name), kind)]:
            raise ValueError(f"it has no usable {', '.join(wrong)}")
    except (AttributeError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged ({error}): {_afresh(folder)}") from error
    return facts


def _vocabulary(folder: str) -> Vocabulary:
    where, cure = f"{folder}/{VOCABULARY}", _afresh(folder)
    try:
        return Vocabulary.from_bytes(LocalStorage(folder).read(VOCABULARY), where)
    except FileNotFoundError:
        raise UserError(f"{where} is missing: {cure}") from None
    except UserError as trouble:
        raise UserError(f"{trouble}: {cure}") from None
    except ValueError as error:
        raise UserError(f"{where} is damaged ({error}): {cure}") from error
