"""The recipe of the detector that anybody can train, with settings, and its training."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.engine.typed_settings import apply, parse_settings
from xmodal.recipes import DetectorRecipe
from xmodal.training.run_setup import Setup

RECIPE = DetectorRecipe()


def detector_with(corpus: str | None, settings: list[str]) -> DetectorRecipe:
    """The recipe on a corpus, with settings: `steps=2000`, `side=320`."""
    parsed = parse_settings(settings, {RECIPE.name: RECIPE})
    recipe = apply(RECIPE, RECIPE.name, parsed)
    return replace(recipe, corpus=corpus) if corpus else recipe


def train_detector(recipe: DetectorRecipe, setup: Setup, run: Path) -> dict[str, Any]:
    from xmodal.training.detector_fit import fit_detector

    outcome = asdict(fit_detector(recipe, setup, str(run)))
    return {"recipe": recipe.name, "corpus": recipe.corpus, "root": setup.root} | outcome
