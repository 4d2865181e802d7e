"""Recipes by name or from a user's file, with settings, trained and evaluated."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.typed_settings import apply, nearest, parse_settings
from xmodal import models
from xmodal.errors import UserError
from xmodal.progress import Silence
from xmodal.recipes import Config, Features, Phase, Recipe, Tokens, View
from xmodal.records.derived_splits import Share
from xmodal.records.views import splits
from xmodal.root.storage import open_storage
from xmodal.text.tokenizers import tokenizer
from xmodal.training.run_setup import Setup

if TYPE_CHECKING:
    from xmodal.metrics.reports import Report

PARTS = ("model", "view", "validation", "visual", "text")
PHASE_PARTS = ("optimiser", "weights")


def recipes() -> dict[str, Recipe]:
    """Recipes by name, but names that two models have."""
    return {name: there[0] for name, there in _recipes_by_name()[0].items() if len(there) == 1}


def find_recipe(text: str) -> Recipe:
    """The recipe of that name, or of a user's file: `mine.py`, or `mine.py:NAME` where it has several."""
    path, _, name = (text, "", "") if text.endswith(".py") else text.rpartition(":")
    if path.endswith(".py"):
        declared = models.recipes_of(path)
        found = [recipe for recipe in declared if name in ("", recipe.name)]
        there = ", ".join(f"{path}:{recipe.name}" for recipe in declared) or "none"
        if not found:
            raise UserError(f"{path} has no recipe {name!r}; there are: {there}")
        if twice := [one for one, times in Counter(recipe.name for recipe in found).items() if times > 1]:
            raise UserError(f"{path} has several recipes {twice[0]!r}: give each its own name")
        if len(found) > 1:
            raise UserError(f"{path} has several recipes, so say which; there are: {there}")
        return found[0]
    known, refused = _recipes_by_name()
    if text not in known:
        meant = nearest(text, {one: one for one in known})
        raise UserError("; ".join([f"no recipe {text!r}{meant}; there are: {', '.join(known)}", *refused]))
    if len(known[text]) > 1:
        files = " and ".join(f"xmodal/models/{models.reference(recipe.model)}.py" for recipe in known[text])
        raise UserError(f"recipe {text!r} is defined twice, in {files}: give one of them another name")
    return known[text][0]


def _recipes_by_name() -> tuple[dict[str, list[Recipe]], list[str]]:
    found, refused = defaultdict[str, list[Recipe]](list), []
    for model in models.names():
        try:
            for recipe in models.recipes_of(model):
                found[recipe.name].append(recipe)
        except UserError as trouble:
            refused.append(str(trouble))
    return dict(found), refused


def recipe_with(name: str, settings: list[str]) -> Recipe:
    """The recipe with settings: `batch_size=64`, `model.width=512`, `phase1.optimiser.learning_rate=0.001`.

    A phase of no epochs is left out (`phase2.epochs=0`); the others keep their numbers.
    """
    recipe = find_recipe(name)
    left_out, settings = _left_out(recipe, settings)
    parsed = parse_settings(settings, configs_of(recipe))
    try:
        parts = {name: apply(getattr(recipe, name), name, parsed) for name in PARTS}
        phases = {f"phase{number}": phase for number, phase in enumerate(recipe.phases, 1)}
        kept = tuple(_phase_with(phase, name, parsed) for name, phase in phases.items() if name not in left_out)
        if isinstance(parts["text"], Tokens):
            tokenizer(parts["text"].tokenizer, parts["text"].cleaning)
        changed = replace(apply(recipe, "recipe", parsed), phases=kept, **parts)
        unannotated = recipe.unannotated and _beside(recipe.unannotated, recipe.view, changed.view)
        return replace(changed, unannotated=unannotated)
    except ValueError as error:
        raise UserError(f"--set {' '.join(settings)}: {error}") from None


def _beside(unannotated: View, before: View, view: View) -> View:
    """The un-annotated items after `--set` has changed the annotated ones: the rest of the same split."""
    share = Share.of(before.split)
    if unannotated.split != (share and share.rest.name) or view.split == before.split:
        return replace(unannotated, corpus=view.corpus)
    if (share := Share.of(view.split)) is None:
        raise UserError(
            f"--set view.split={view.split}: the recipe also learns from un-annotated items, those that a share of a "
            f"split leaves: name a share, such as {view.split}@10%, or another recipe"
        )
    return replace(unannotated, corpus=view.corpus, split=share.rest.name)


def _phase_with(phase: Phase, name: str, parsed: Mapping[str, object]) -> Phase:
    inner = {part: apply(getattr(phase, part), f"{name}.{part}", parsed) for part in PHASE_PARTS}
    return replace(apply(phase, name, parsed), **inner)


def configs_of(recipe: Recipe) -> dict[str, object]:
    """The configs by their names in a setting; phases count from 1."""
    configs: dict[str, object] = {"recipe": recipe} | {name: getattr(recipe, name) for name in PARTS}
    for number, phase in enumerate(recipe.phases, 1):
        configs[f"phase{number}"] = phase
        configs |= {f"phase{number}.{part}": getattr(phase, part) for part in PHASE_PARTS}
    return configs


def on_corpus(recipe: Recipe, setup: Setup, corpus: str) -> Recipe:
    """The recipe on another corpus, in splits of the same names or endings."""
    there = splits(setup.tables(corpus))

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


def _left_out(recipe: Recipe, settings: list[str]) -> tuple[list[str], list[str]]:
    """The phases of no epochs, and the other settings."""
    last = dict(text.partition("=")[::2] for text in settings)
    phases = [f"phase{number}" for number, _ in enumerate(recipe.phases, 1)]
    left_out = [phase for phase in phases if last.get(f"{phase}.epochs", "").strip() == "0"]
    if phases and left_out == phases:
        raise UserError(f"--set {' '.join(settings)}: every phase of {recipe.name} is left out")
    return left_out, [text for text in settings if text.partition(".epochs=")[0] not in left_out]


def train(recipe: Recipe, setup: Setup, run: Path, tensorboard: bool = False) -> dict[str, Any]:
    from xmodal.training.fit import fit

    outcome = fit(recipe, setup, str(run), tensorboard=tensorboard)
    return {"recipe": recipe.name, "root": setup.root} | asdict(outcome)


def train_on_ray(
    recipe: Recipe, setup: Setup, run: Path, workers: int, address: str | None, quiet: bool = False, **options: bool
) -> dict[str, Any]:
    """Trains by processes of a Ray cluster, whose nodes all see root and run."""
    from pipelines.engine.ray_runner import train_together

    run = run.resolve()  # other processes work in other folders
    run.parent.mkdir(parents=True, exist_ok=True)
    setup = replace(setup, root=open_storage(setup.root).url, progress=Silence())
    act = partial(_train_showing, recipe, setup, run, quiet, options)
    return train_together(act, workers, str(run.parent), setup.device.startswith("cuda"), address)


def _train_showing(
    recipe: Recipe, setup: Setup, run: Path, quiet: bool, options: Mapping[str, bool], said: str
) -> dict[str, Any]:
    with open(said, "a", buffering=1) as stream:
        return train(recipe, replace(setup, progress=ProgressLine(stream, quiet)), run, **options)


def evaluate_released(
    path: Path, vocabulary: Path, setup: Setup, corpus: str, split: str | None, settings: list[str], **asked: Any
) -> "Report":
    """Evaluates a released file on a split (default: test), read as the paper's recipe does but for the settings."""
    from xmodal.evaluation import released_weights

    released = released_weights.read(path)
    view, visual = read_for(released.config, setup, corpus, split)
    parsed = parse_settings(settings, {"view": view, "visual": visual})
    view, visual = apply(view, "view", parsed), apply(visual, "visual", parsed)
    return released_weights.evaluate(released, vocabulary, setup, view, visual, **asked)


def read_for(config: Config, setup: Setup, corpus: str, split: str | None) -> tuple[View, Features]:
    """Reads as the model's first recipe on the corpus; without one, all captions and resnet features."""
    from xmodal.evaluation.matrix_metrics import test_split
    from xmodal.evaluation.run_metrics import test_split_beside

    known = [r for r in recipes().values() if type(r.model) is type(config) and r.view.corpus == corpus]
    if known:
        return replace(known[0].validation, split=split or test_split_beside(known[0].view)), known[0].visual
    return View(corpus, split or test_split(setup.tables(corpus), corpus)), Features("resnet")


def look(run: Path, setup: Setup, split: str | None, kind: str, folder: Path | None, **some: Any) -> dict[str, Any]:
    """Draws pictures of a kind, such as attention, in a folder; without one, probes uncertainty."""
    from xmodal.evaluation.attention_pictures import draw
    from xmodal.evaluation.embedding_pictures import draw_correlation, draw_plane
    from xmodal.evaluation.uncertainty_probes import probe
    from xmodal.evaluation.word_pictures import draw_words

    if folder is None:
        return asdict(probe(str(run), setup, split))
    drawings: dict[str, Callable[..., Sequence[Any]]] = {
        "attention": draw,
        "tsne": draw_plane,
        "correlation": draw_correlation,
        "words": draw_words,
    }
    pictures = drawings[kind](str(run), setup, split, folder, **some)
    return {"folder": str(folder), "pictures": [asdict(one) for one in pictures]}
