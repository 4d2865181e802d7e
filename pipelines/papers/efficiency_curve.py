"""Efficiency curves: recall of the runs that exist, by the share of pairs they learned from (A3VSE, figure 1)."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.papers.experiments import Available, Experiment, is_measured
from pipelines.papers.reproduction import about, evaluated, ready_recipes, to_run
from xmodal.errors import UserError, few
from xmodal.media.charts import Series, Titles, line_chart
from xmodal.recipes import Learning, Recipe, View
from xmodal.records.derived_splits import Share
from xmodal.records.tables import CAPTIONS_OF_PAPERS
from xmodal.root.identity import fingerprint
from xmodal.training import run_folder
from xmodal.training.run_setup import Setup

SHOWN = 6  # rows in a message


@dataclass(frozen=True)
class Point:
    model: str
    share: float  # of the pairs, in percent
    value: float


def curve(experiment: Experiment, available: Available, setup: Setup, runs: Path, file: Path) -> dict[str, Any]:
    """Evaluates the finished runs, trains none, and draws them; `missing` says why of other rows."""
    if file.is_dir():
        raise UserError(f"{file} is a folder: name the PNG that is to be written")
    if file.suffix.lower() != ".png":
        raise UserError(f"{file}: a curve is a PNG: give it a name that ends with .png")
    recipes = ready_recipes(experiment, available)
    if len({share_of(recipe) for recipe in recipes.values()}) < 2:
        raise UserError(f"{experiment.name} has no curve: its rows do not learn from several shares of the pairs")
    if not any(map(is_measured, experiment.columns[:1])):
        raise UserError(f"{experiment.name} has no curve: it has no recall or other measure")
    why = {name: why_not_measured(recipe, runs / name) for name, recipe in recipes.items()}
    asked = {row.name: why.get(row.run, "cannot be trained yet") for row in experiment.rows if row.recipe}
    missing = {name: reason for name, reason in asked.items() if reason}
    finished = {name: recipe for name, recipe in recipes.items() if not why[name]}
    if not finished:
        reasons = few([f"{name}: {reason}" for name, reason in missing.items()], SHOWN)
        commands = to_run(experiment, available, setup, runs)
        first = next(command for command in commands if command.startswith("xmodal train "))
        every = f"`xmodal reproduce {experiment.name.lower()} --root {shlex.quote(setup.root)} --runs "
        every += f"{shlex.quote(str(runs))}` trains and evaluates what is ready of it"
        raise UserError(
            f"{experiment.name} has no finished run in {runs}, so nothing is drawn ({reasons}): {every}, or train its "
            f"rows one by one (`{first}`), then draw"
        )
    rows = evaluated(experiment, finished, setup, runs)
    points = points_of(experiment, finished, rows)
    draw_curve(experiment, points, file)
    rest = tuple(row for row in experiment.rows if row.run not in finished)
    left = replace(experiment, rows=rest, commands=())  # the command is this one
    drawn = {"curve": str(file), "points": [asdict(point) for point in points], "missing": missing}
    return about(experiment, available) | drawn | {"rows": rows, "to_run": to_run(left, available, setup, runs)}


def why_not_measured(recipe: Recipe, run: Path) -> str:
    """Says why a run cannot stand for a recipe; empty if it can."""
    from xmodal.training.checkpoint import is_finished

    if not (run / run_folder.RECIPE).is_file():
        return "not trained"
    if fingerprint(_with_sources(run_folder.read(str(run)).recipe)) != fingerprint(_with_sources(recipe)):
        return f"{run} has other settings"
    return "" if is_finished(str(run), len(recipe.phases)) else f"{run} is not finished"


def _with_sources(recipe: Recipe) -> Recipe:
    """Names captions by their source alone, as a recipe does; a run names the output."""

    def plain(view: View) -> View:
        return replace(view, text=view.source)

    unannotated = recipe.unannotated and plain(recipe.unannotated)
    return replace(recipe, view=plain(recipe.view), validation=plain(recipe.validation), unannotated=unannotated)


def share_of(recipe: Recipe) -> float:
    """Percent of the pairs that a recipe learns from: those of 10 % of the items with 1 of 5 captions are 2."""
    if isinstance(recipe.model, Learning) and not recipe.model.learns:
        return 0.0
    share = Share.of(recipe.view.split)
    if share is None:
        return 100.0
    of_each = recipe.view.captions_per_item or CAPTIONS_OF_PAPERS
    return share.percent * min(share.captions or of_each, of_each) / of_each


def points_of(experiment: Experiment, recipes: Mapping[str, Recipe], rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Takes the first column of the measured rows; a row's name begins with its model."""
    column = experiment.columns[0]
    return [
        Point(row.name.partition(",")[0], share_of(recipes[row.run]), told["measured"][column])
        for row, told in zip(experiment.rows, rows, strict=True)
        if column in (told["measured"] or {})
    ]


def draw_curve(experiment: Experiment, points: Sequence[Point], file: Path) -> None:
    lines = defaultdict[str, list[tuple[float, float]]](list)
    for point in points:
        lines[point.model].append((point.share, point.value))
    measure, corpora = experiment.columns[0], " and ".join(experiment.corpora)
    note = f"Drawn are {len(points)} of {len(experiment.rows)} rows, those with a finished run."
    if len({(point.model, point.share) for point in points}) < len(points):
        same = "Points above each other are of as many pairs, but of more pictures with fewer captions, or the reverse."
        note = f"{note} {same}"
    titles = Titles(
        f"{experiment.name}: {measure} on {corpora}, by the share of annotated pairs",
        note,
        "annotated pairs that were learned from, % of those of the whole training split",
        measure,
    )
    chart = line_chart([Series(model, np.array(sorted(line))) for model, line in lines.items()], titles)
    file.parent.mkdir(parents=True, exist_ok=True)
    chart.save(file, "PNG")
