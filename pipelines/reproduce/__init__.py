"""Every table, figure and experiment in the text of the five papers: what it takes, its recipes, whether it can be run.

A module is one paper, found because it exists. What a paper prints is kept as printed, misprints too: notes name them.
Whether an experiment is ready is written down nowhere: it follows from the recipes, corpora, stages, commands and
measures that there are. A recipe that a row names and that does not exist yet is the name it will have.
"""

import importlib
import math
import pkgutil
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pipelines import cli, experiments
from pipelines.corpus import STAGES
from xmodal import corpora
from xmodal.judging import OWN
from xmodal.metrics import RECALLS, Direction
from xmodal.models import Features, Recipe
from xmodal.reports import Report
from xmodal.trouble import Trouble

KINDS = {"Table": ("table", "tab", "t", ""), "Figure": ("figure", "fig", "f", ""), "§": ("section", "sec", "text", "")}
SIDES = {"i2t": "visual_to_text", "v2t": "visual_to_text", "t2i": "text_to_visual", "t2v": "text_to_visual"}
MEASURES = {f"R@{k}": "recall" for k in RECALLS} | {
    "Med R": "median_rank",
    "nMR": "normalised_median",
}  # as papers call them, to fields of Direction
LISTS = ("R-P", "PMRP")  # these a report has beside


@dataclass(frozen=True)
class Row:
    """One row of a table, one point or bar of a figure; without a recipe it is quoted, or nothing is trained for it."""

    name: str
    printed: str = ""  # a value a column, "-" where the paper has none; nothing at all where it prints no number
    recipe: str = ""
    settings: tuple[str, ...] = ()  # as `xmodal train --set` takes them
    score: str = ""  # by which the run is evaluated, where it is not the one it was chosen by
    lacks: str = ""  # what is not built and no name tells

    @property
    def run(self) -> str:
        """The folder of its run: rows that differ in nothing but how a run is measured share one."""
        return ",".join((self.recipe, *self.settings)).replace("/", "-")


@dataclass(frozen=True)
class Experiment:
    paper: str
    number: str  # "Table 2", "Figure 7", "§5.3"; a letter tells experiments of one section apart
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    corpora: tuple[str, ...] = ()
    data: str = ""
    features: str = ""
    compute: str = ""
    on_validation: bool = False  # measured on the split that the recipe chooses on, not on the test split
    commands: tuple[str, ...] = ()  # beside training and evaluation, as typed after `xmodal`
    why_not: str = ""  # it cannot be reproduced here
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.printed and len(row.printed.split()) != len(self.columns):
                raise ValueError(f"{self.name}, {row.name}: {row.printed!r} is not {len(self.columns)} values")

    @property
    def name(self) -> str:
        return f"{self.paper} {self.number}"

    @property
    def recipes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.recipe for row in self.rows if row.recipe))


def across(sides: Iterable[str], measures: Iterable[str]) -> tuple[str, ...]:
    """Columns: every measure of every side."""
    return tuple(f"{side} {measure}" for side in sides for measure in measures)


def steps(epochs: int, pairs: int, batch: int) -> str:
    return f"{epochs} epochs x {math.ceil(pairs / batch):,} steps ({pairs:,} pairs in batches of {batch:,})"


def through(network: str, pictures: int) -> str:
    """What it costs to train a CNN on so many pictures of 224 x 224: forward, and twice that for the gradients."""
    products = {"VGG-16": 15.5e9, "VGG-19": 19.6e9, "ResNet-50": 4.1e9, "ResNet-152": 11.5e9}[network]
    return (
        f"{pictures / 1e6:.1f} million pictures forward and back through {network}, {6 * products * pictures:.0e} FLOP"
    )


# ------------------------------------------------------------------------------------------------------ what there is


def papers() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def of_paper(paper: str) -> tuple[Experiment, ...]:
    found = importlib.import_module(f"{__name__}.{paper}").EXPERIMENTS
    assert isinstance(found, tuple)
    return found


def find(text: str) -> tuple[Experiment, ...]:
    """Nothing names all, a paper its own; `pvse table 2`, `pvse-2`, `PVSE:fig.7` and `dualpath Table VIII` name one."""
    wanted, known = _squashed(text), {_squashed(paper): paper for paper in papers()}
    if not wanted:
        return tuple(each for paper in papers() for each in of_paper(paper))
    if wanted in known:
        return of_paper(known[wanted])
    for start, paper in known.items():
        if wanted.startswith(start):
            spelled = _spelled(of_paper(paper))
            if wanted not in spelled:
                there = ", ".join(each.number for each in of_paper(paper))
                raise Trouble(f"no experiment {text!r}; of {paper} there are: {there}")
            return (spelled[wanted],)
    raise Trouble(
        f"no paper {text!r}; there are: {', '.join(papers())}; name one, or one of its experiments: pvse table 2"
    )


def _spelled(of: Iterable[Experiment]) -> dict[str, Experiment]:
    """A number alone is a table's before it is a figure's, and a figure's before it is a section's."""
    spelled: dict[str, Experiment] = {}
    for kind, words in KINDS.items():
        for each in of:
            if each.number.startswith(kind):
                number = each.number.removeprefix(kind).strip()
                for word in words:
                    for digits in (number, _roman(number)):
                        spelled.setdefault(_squashed(each.paper + word + digits), each)
    return spelled


def _squashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("§", "section"))


def _roman(number: str) -> str:
    """Dual-Path counts its tables so; there are fewer than twenty of anything."""
    units = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
    return "X" * (int(number) // 10) + units[int(number) % 10] if number.isdigit() else number


# ------------------------------------------------------------------------------------------------- whether it is ready


@dataclass(frozen=True)
class Known:
    """What an experiment may find here."""

    recipes: Mapping[str, Recipe]
    corpora: frozenset[str]
    stages: frozenset[str]
    commands: frozenset[str]

    @classmethod
    def now(cls) -> "Known":
        try:
            recipes = experiments.recipes()
        except ModuleNotFoundError as error:
            raise Trouble(f"{error.name} is not installed: pip install 'xmodal[train]'") from error
        return cls(recipes, frozenset(corpora.names()), frozenset(STAGES), frozenset(cli.COMMANDS))


def state(experiment: Experiment, known: Known) -> str:
    """`ready`, `not yet` or `not reproducible here`; the last two say what is missing, or why."""
    if experiment.why_not:
        return f"not reproducible here: {experiment.why_not}"
    kinds: dict[str, list[str]] = {}
    for lacking in missing(experiment, known):
        kind, _, which = lacking.partition(" ")
        kinds.setdefault(kind, []).append(which)
    said = [f"no {kind} {', '.join(which)}" for kind, which in kinds.items()]
    return f"not yet: {'; '.join(said)}" if said else "ready"


def missing(experiment: Experiment, known: Known) -> tuple[str, ...]:
    found = [f"corpus {name}" for name in experiment.corpora if name not in known.corpora]
    found += [f"command {text.split()[0]}" for text in experiment.commands if text.split()[0] not in known.commands]
    found += [lack for row in experiment.rows for lack in lacks(row, known)]
    if experiment.recipes:
        found += [f"measure {column!r}" for column in experiment.columns if not is_measured(column)]
    return tuple(dict.fromkeys(found))


def lacks(row: Row, known: Known) -> list[str]:
    """What this row alone is waiting for."""
    found = [row.lacks] if row.lacks else []
    if not row.recipe:
        return found
    if row.recipe not in known.recipes:
        return [*found, f"recipe {row.recipe}"]
    try:
        recipe = experiments.recipe_with(row.recipe, list(row.settings)) if row.settings else known.recipes[row.recipe]
    except Trouble:
        return [*found, f"setting {' '.join(row.settings)} of recipe {row.recipe}"]
    return [*found, *_unbuilt(recipe, known)]


def _unbuilt(recipe: Recipe, known: Known) -> Iterator[str]:
    from xmodal.training import unbuilt

    for view in (recipe.view, recipe.validation):
        if view.corpus not in known.corpora:
            yield f"corpus {view.corpus}"
    for read in (recipe.visual, recipe.text):
        if isinstance(read, Features) and read.stage not in known.stages:
            yield f"stage {read.stage}"
    yield from (f"training with {name}" for name in unbuilt(recipe))


# ---------------------------------------------------------------------------------------------------- how it is run


def reproduce(text: str, root: str | None, runs: Path, **circumstances: Any) -> list[dict[str, Any]]:
    """What the text names; with a root it must be one experiment, which is trained and evaluated there."""
    found, known = find(text), Known.now()
    if root is None:
        return [about(each, known) for each in found]
    if len(found) != 1:
        raise Trouble(f"--root trains one table: name it, such as {found[0].name}")
    return [about(found[0], known) | {"rows": run(found[0], known, root, runs, **circumstances), "to_run": []}]


def about(experiment: Experiment, known: Known) -> dict[str, Any]:
    """All there is to say of it, for JSON."""
    rows = [asdict(row) | {"ready": _is_ready(row, known)} for row in experiment.rows]
    derived = {"name": experiment.name, "recipes": experiment.recipes, "state": state(experiment, known)}
    return asdict(experiment) | derived | {"rows": rows, "to_run": to_run(experiment, known)}


def to_run(experiment: Experiment, known: Known, root: str = "data", runs: str = "runs") -> list[str]:
    """The commands for its ready rows: what is up to date already they leave as it is."""
    built, trained = dict[str, None](), list[str]()
    for row in _ready_runs(experiment, known):
        recipe, run = known.recipes[row.recipe], shlex.quote(str(Path(runs) / row.run))
        read = [recipe.visual.stage] + ([recipe.text.stage] if isinstance(recipe.text, Features) else [])
        names = [recipe.view.corpus, *(f"{recipe.view.corpus}/{stage}" for stage in read)]
        built |= {f"xmodal build {name} --root {root}": None for name in names}
        settings = "".join(f" --set {shlex.quote(setting)}" for setting in row.settings)
        trained.append(f"xmodal train {row.recipe} --root {root} --run {run}{settings}")
        split = f" --split {recipe.validation.split}" if experiment.on_validation else ""
        scores = [f" --distance {each.score}" * bool(each.score) for each in experiment.rows if each.run == row.run]
        trained += [f"xmodal evaluate {run} --root {root}{split}{score}" for score in dict.fromkeys(scores)]
    others = [f"xmodal {text}" for text in experiment.commands if text.split()[0] in known.commands]
    return [*built, *trained, *others]


def run(experiment: Experiment, known: Known, root: str, runs: Path, **circumstances: Any) -> list[dict[str, Any]]:
    """Trains and evaluates every row that is ready; a finished run is only evaluated. `circumstances` are `fit`'s.

    Each row, with what was measured by column; a column that evaluation does not give is left out.
    """
    ready = _ready_runs(experiment, known)
    if not ready:
        raise Trouble(f"{experiment.name} has no row that can be run; {state(experiment, known)}")
    device, progress = circumstances["device"], circumstances["progress"]
    for row in ready:
        recipe = experiments.recipe_with(row.recipe, list(row.settings))
        experiments.train(recipe, root, runs / row.run, **circumstances)
    measured = []
    for row in experiment.rows:
        found = None
        if _is_ready(row, known):
            split = known.recipes[row.recipe].validation.split if experiment.on_validation else None
            report = experiments.evaluate(runs / row.run, root, split, device, progress, distance=row.score or None)
            found = {column: _measured(report, column) for column in _given(experiment, report)}
        measured.append(asdict(row) | {"measured": found})
    return measured


def _ready_runs(experiment: Experiment, known: Known) -> list[Row]:
    return list({row.run: row for row in experiment.rows if _is_ready(row, known)}.values())


def _is_ready(row: Row, known: Known) -> bool:
    return bool(row.recipe) and not lacks(row, known)


def _parts(column: str) -> tuple[str, str, str]:
    """Gallery, direction and measure of `1K i2t R@1`; the gallery is all where it is not 1K."""
    match = re.fullmatch(r"(?:(1K|5K) )?(?:(i2t|v2t|t2i|t2v) )?(.+)", column)
    assert match is not None
    return "1K" if match[1] == "1K" else "all", SIDES.get(match[2] or "", ""), match[3]


def is_measured(column: str) -> bool:
    _, side, measure = _parts(column)
    return (
        measure == "rsum"
        or (bool(side) and measure in LISTS)
        or (bool(side) and MEASURES.get(measure) in {field.name for field in fields(Direction)})
    )


def _given(experiment: Experiment, report: Report) -> list[str]:
    return [column for column in experiment.columns if is_measured(column) and _has(report, *_parts(column))]


def _has(report: Report, gallery: str, side: str, measure: str) -> bool:
    if measure == "PMRP":
        return gallery in report.findings.plausible
    return gallery in report.scores and (measure != "R-P" or gallery == "all")


def _measured(report: Report, column: str) -> float:
    gallery, side, measure = _parts(column)
    if measure == "rsum":
        return report.scores[gallery].rsum
    if measure in LISTS:
        of_visual, of_text = _lists(report, gallery, measure)
        return of_visual if side == "visual_to_text" else of_text
    value = getattr(getattr(report.scores[gallery], side), MEASURES[measure])
    return float(value[int(measure.removeprefix("R@"))] if measure.startswith("R@") else value)


def _lists(report: Report, gallery: str, measure: str) -> tuple[float, float]:
    """R-Precision is by classes where a corpus has them."""
    findings = report.findings
    if measure == "PMRP":
        of_visual, of_text = findings.plausible[gallery]
        return of_visual.mean, of_text.mean
    found = findings.lists["class"] if "class" in findings.lists else findings.lists[OWN]
    return found[0].r_precision, found[1].r_precision
