"""Recipes by name or from a user's file, with settings, trained and evaluated on the outputs of a root."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.typed_settings import apply, nearest, parse_settings
from xmodal import models
from xmodal.errors import UserError
from xmodal.features.contact_sheets import contact_sheet
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.opening import open_features
from xmodal.recipes import Config, Features, Recipe, Tokens, View
from xmodal.records.derived_splits import Share
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import members, splits
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.text.tokenizers import tokenizer

PARTS = ("model", "view", "validation", "visual", "text")


def recipes() -> dict[str, Recipe]:
    """Every recipe that can be trained by its name. A name that two models have is not among them."""
    return {name: of_models[0][1] for name, of_models in _recipes_by_name()[0].items() if len(of_models) == 1}


def find_recipe(text: str) -> Recipe:
    """The recipe of that name, or the one of a user's file: `mine.py`, or `mine.py:NAME` where it has several."""
    path, _, name = text.rpartition(":")
    if text.endswith(".py"):
        return _recipe_in_file(text, "")
    if path.endswith(".py"):
        return _recipe_in_file(path, name)
    known, refused = _recipes_by_name()
    if text not in known:
        meant = nearest(text, {one: one for one in known})
        raise UserError("; ".join([f"no recipe {text!r}{meant}; there are: {', '.join(known)}", *refused]))
    if len(known[text]) > 1:
        files = " and ".join(f"xmodal/models/{model}.py" for model, _ in known[text])
        raise UserError(f"recipe {text!r} is defined twice, in {files}: give one of them another name")
    return known[text][0][1]


def _recipes_by_name() -> tuple[dict[str, list[tuple[str, Recipe]]], list[str]]:
    """The recipes of each name with their models, and why a model has none."""
    found: dict[str, list[tuple[str, Recipe]]] = {}
    refused = []
    for model in models.names():
        try:
            for recipe in models.recipes_of(model):
                found.setdefault(recipe.name, []).append((model, recipe))
        except UserError as trouble:
            refused.append(str(trouble))
    return found, refused


def _recipe_in_file(path: str, name: str) -> Recipe:
    declared = models.recipes_of(path)
    named = [recipe for recipe in declared if name in ("", recipe.name)]
    there = ", ".join(f"{path}:{recipe.name}" for recipe in declared) or "none"
    if not named:
        raise UserError(f"{path} has no recipe {name!r}; there are: {there}")
    if len(named) > 1:
        raise UserError(f"{path} has several recipes{f' {name!r}' if name else ''}, so say which; there are: {there}")
    return named[0]


def recipe_with(name: str, settings: list[str]) -> Recipe:
    """The recipe with settings: `epochs=3`, `batch_size=64`, `model.width=512`, `view.captions_per_item=none`.

    A phase of no epochs is left out (`phase2.epochs=0`); the others keep their numbers in what is set.
    """
    recipe = find_recipe(name)
    left_out, settings = _left_out(recipe, settings)
    parsed = parse_settings(settings, configs_of(recipe))
    numbered = {f"phase{number}": phase for number, phase in enumerate(recipe.phases, 1)}
    phases = tuple(apply(phase, name, parsed) for name, phase in numbered.items() if name not in left_out)
    parts = {name: apply(getattr(recipe, name), name, parsed) for name in PARTS}
    try:
        if isinstance(parts["text"], Tokens):
            tokenizer(parts["text"].tokenizer, parts["text"].cleaning)
        return replace(apply(recipe, "recipe", parsed), phases=phases, **parts)
    except ValueError as error:
        raise UserError(f"--set {' '.join(settings)}: {error}") from None


def on_corpus(recipe: Recipe, root: str, corpus: str, records: str | None = None) -> Recipe:
    """The recipe on another corpus under a root: each of its views in the split of that name, or whose name ends so."""
    there = splits(find_output(root, "records", records, corpus=corpus))

    def moved(view: View) -> View:
        share = Share.of(view.split)
        whole = share.whole if share else view.split
        ending = whole.rpartition("/")[2]
        found = [whole] if whole in there else [name for name in there if name.rpartition("/")[2] == ending]
        if len(found) != 1:
            what = f"no split {ending!r}" if not found else f"several splits {ending!r}: --set view.split=… names one"
            raise UserError(f"{corpus} has {what}; there are: {', '.join(sorted(there))}")
        return replace(view, corpus=corpus, split=replace(share, whole=found[0]).name if share else found[0])

    unannotated = recipe.unannotated and moved(recipe.unannotated)
    return replace(recipe, view=moved(recipe.view), validation=moved(recipe.validation), unannotated=unannotated)


def _left_out(recipe: Recipe, settings: list[str]) -> tuple[set[str], list[str]]:
    """The phases of no epochs, and the settings that do not say so: no phase can be made of 0 epochs."""
    phases = [f"phase{number}" for number in range(1, len(recipe.phases) + 1)]
    last = {name: value for name, _, value in (text.partition("=") for text in settings)}
    left_out = {phase for phase in phases if last.get(f"{phase}.epochs", "").strip() == "0"}
    if left_out and len(left_out) == len(phases):
        raise UserError(f"--set {' '.join(settings)}: every phase of {recipe.name} is left out, so nothing is trained")
    return left_out, [text for text in settings if text.partition("=")[0] not in {f"{one}.epochs" for one in left_out}]


def configs_of(recipe: Recipe) -> Mapping[str, object]:
    """A setting names the recipe, one of its parts, or a phase, counted from 1."""
    phases: dict[str, object] = {f"phase{number}": phase for number, phase in enumerate(recipe.phases, 1)}
    return {"recipe": recipe} | {name: getattr(recipe, name) for name in PARTS} | phases


def train(recipe: Recipe, root: str, run: Path, **circumstances: Any) -> dict[str, Any]:
    """`circumstances` are the keywords of `xmodal.training.fit.fit`."""
    from xmodal.training.fit import fit

    outcome = fit(recipe, root, str(run), **{"progress": ProgressLine()} | circumstances)
    return {"recipe": recipe.name, "root": root} | asdict(outcome)


def train_on_ray(
    recipe: Recipe, root: str, run: Path, workers: int, address: str | None, quiet: bool = False, **circumstances: Any
) -> dict[str, Any]:
    """By so many processes of a Ray cluster; all its nodes see root and run."""
    from pipelines.engine.ray_runner import train_together

    run.parent.mkdir(parents=True, exist_ok=True)
    gpu = circumstances.get("device", "cpu").startswith("cuda")
    act = partial(_train_showing, recipe, open_storage(root).url, run.resolve(), quiet, circumstances)
    return train_together(act, workers, str(run.parent), gpu, address)


def _train_showing(
    recipe: Recipe, root: str, run: Path, quiet: bool, circumstances: dict[str, Any], said: str
) -> dict[str, Any]:
    with open(said, "a", buffering=1) as stream:
        return train(recipe, root, run, progress=ProgressLine(stream, quiet), **circumstances)


def evaluate(run: Path, root: str, split: str | None, device: str, progress: ProgressLine, **asked: Any) -> Any:
    """Evaluates a run on a split of its corpus (default: the test split beside that of its training).

    `asked` are `distance` and `extended` of `xmodal.evaluation.run_metrics.evaluate`.
    """
    from xmodal.evaluation.run_metrics import evaluate

    return evaluate(str(run), root, _split_of(run, root, split), device=device, progress=progress, **asked)


def evaluate_released(
    path: Path, vocabulary: Path, root: str, corpus: str, split: str | None, settings: list[str], **circumstances: Any
) -> Any:
    """Evaluates a released file on a split of a corpus (default: the test split), read as the paper's recipe reads it.

    `settings` change that: `visual.stage=clips`, `view.captions_per_item=none`. `circumstances` are the keywords of
    `xmodal.evaluation.released_weights.evaluate`.
    """
    from xmodal.evaluation import released_weights

    released = released_weights.read(path)
    view, visual = read_for(released.config, root, corpus, split, circumstances.get("records"))
    parts: dict[str, Any] = {"view": view, "visual": visual}
    parsed = parse_settings(settings, parts)
    asked = {name: apply(part, name, parsed) for name, part in parts.items()}
    return released_weights.evaluate(path, vocabulary, root, released=released, **asked, **circumstances)


def read_for(config: Config, root: str, corpus: str, split: str | None, records: str | None) -> tuple[View, Features]:
    """As the first recipe of such a model on the corpus reads; without one, all captions, and the usual features."""
    from xmodal.evaluation.matrix_metrics import test_split

    known = [r for r in recipes().values() if type(r.model) is type(config) and r.view.corpus == corpus]
    if known:
        return replace(known[0].validation, split=split or _test_split(known[0])), known[0].visual
    tables = find_output(root, "records", records, corpus=corpus)
    return View(corpus, split or test_split(tables, corpus)), Features("resnet")


def _split_of(run: Path, root: str, split: str | None) -> str:
    from xmodal.training import run_folder

    if split:
        return split
    started = run_folder.read(str(run))
    recipe, found = started.recipe, _test_split(started.recipe)
    records = find_output(root, "records", started.records, corpus=recipe.view.corpus)
    try:
        members(records, found)
    except UserError as trouble:
        said = f"{run} was trained on {recipe.view.split}: say with --split what to ask it"
        raise UserError(f"{said}; {trouble}") from None
    return found


def _test_split(recipe: Recipe) -> str:
    """Beside that of its training."""
    return (recipe.view.split.rpartition("/")[0] + "/test").lstrip("/")


def look(
    run: Path, root: str, split: str | None, device: str, progress: ProgressLine, folder: Path | None, **some: Any
) -> dict[str, Any]:
    """Draws attention in a folder, `some` being `items` or `first` of `draw`; without a folder, probes uncertainty."""
    from xmodal.evaluation.attention_pictures import draw
    from xmodal.evaluation.uncertainty_probes import probe

    where = (str(run), root, _split_of(run, root, split))
    if folder is None:
        return asdict(probe(*where, device=device, progress=progress))
    drawn = draw(*where, folder, device=device, progress=progress, **some)
    return {"folder": str(folder), "pictures": [asdict(one) for one in drawn]}


def look_at_clips(
    corpus: str,
    root: str,
    folder: Path,
    progress: ProgressLine,
    *,
    items: Sequence[str] = (),
    first: int = 8,
    split: str | None = None,
    features: str | None = None,
) -> dict[str, Any]:
    """A contact sheet of each of the items in a folder, or of the first ones that have frames."""
    records = find_output(root, "records", corpus=corpus)
    store = FrameStore(open_features(root, FRAMES, features, records).output)
    among = set(store.ids) if split is None else members(records, split)
    ids = list(items) or [id for id in store.ids if id in store and id in among][:first]
    if not ids and first:
        raise UserError(f"no clip of {split or corpus} has frames: `xmodal status --root {shlex.quote(root)}` says why")
    first_captions = (one for one in read_rows(records, Caption) if one.source == "human" and not one.position)
    caption_of = dict.fromkeys(ids, "") | {one.item: one.text for one in first_captions if one.item in ids}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with progress.over("draw", len(ids), unit="clips") as tick:
        for id in ids:
            path = folder / f"{quote(id, safe='')}.png"
            contact_sheet(store, id, caption_of[id]).save(path)
            drawn.append({"item": id, "caption": caption_of[id], "path": str(path)})
            tick(1)
    return {"folder": str(folder), "pictures": drawn}
