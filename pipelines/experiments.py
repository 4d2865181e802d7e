"""What `xmodal train` and `xmodal evaluate` do: recipes by name, with settings, on the outputs of a root."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.progress import Progress
from pipelines.settings import apply, parse_settings
from xmodal import models
from xmodal.models import Recipe, Tokens
from xmodal.storage import open_storage
from xmodal.text import tokenizer
from xmodal.trouble import Trouble

PARTS = ("model", "view", "validation", "visual", "text")


def recipes() -> dict[str, Recipe]:
    """Every recipe of every model, by its name."""
    return {recipe.name: recipe for model in models.names() for recipe in models.load(model).RECIPES}


def recipe_with(name: str, settings: list[str]) -> Recipe:
    """The recipe with settings: `epochs=3`, `batch_size=64`, `model.width=512`, `view.captions_per_item=none`."""
    known = recipes()
    if name not in known:
        raise Trouble(f"no recipe {name!r}; there are: {', '.join(known)}")
    recipe = known[name]
    parsed = parse_settings(settings, configs_of(recipe))
    phases = tuple(apply(phase, f"phase{n}", parsed) for n, phase in enumerate(recipe.phases, 1))
    parts = {name: apply(getattr(recipe, name), name, parsed) for name in PARTS}
    try:
        if isinstance(parts["text"], Tokens):
            tokenizer(parts["text"].tokenizer)
        return replace(apply(recipe, "recipe", parsed), phases=phases, **parts)
    except ValueError as error:
        raise Trouble(f"--set {' '.join(settings)}: {error}") from None


def configs_of(recipe: Recipe) -> Mapping[str, object]:
    """What a setting may name: the recipe, its parts, and its phases, counted from 1."""
    phases: dict[str, object] = {f"phase{number}": phase for number, phase in enumerate(recipe.phases, 1)}
    return {"recipe": recipe} | {name: getattr(recipe, name) for name in PARTS} | phases


def train(recipe: Recipe, root: str, run: Path, **circumstances: Any) -> dict[str, Any]:
    """`circumstances` are the keywords of `xmodal.training.fit`."""
    from xmodal.training import fit

    outcome = fit(recipe, root, str(run), **{"progress": Progress()} | circumstances)
    return {"recipe": recipe.name, "root": root} | asdict(outcome)


def train_on_ray(
    recipe: Recipe, root: str, run: Path, workers: int, address: str | None, **circumstances: Any
) -> dict[str, Any]:
    """By so many processes of a Ray cluster; all its nodes see root and run."""
    from pipelines.ray_runner import train_together

    run.parent.mkdir(parents=True, exist_ok=True)
    gpu = circumstances.get("device", "cpu").startswith("cuda")
    act = partial(_train_showing, recipe, open_storage(root).url, run.resolve(), circumstances)
    return train_together(act, workers, str(run.parent), gpu, address)


def _train_showing(recipe: Recipe, root: str, run: Path, circumstances: dict[str, Any], said: str) -> dict[str, Any]:
    with open(said, "a", buffering=1) as stream:
        return train(recipe, root, run, progress=Progress(stream), **circumstances)


def evaluate(run: Path, root: str, split: str | None, device: str, progress: Progress, **asked: Any) -> Any:
    """A run on a split of its corpus; without one, on the test split beside that of its training. `asked`: `distance`
    and `extended` of `xmodal.evaluation.evaluate`.
    """
    from xmodal import runs
    from xmodal.evaluation import evaluate

    chosen = split or runs.read(str(run)).recipe.view.split.rpartition("/")[0] + "/test"
    return evaluate(str(run), root, chosen.lstrip("/"), device=device, progress=progress, **asked)
