"""Every table, figure and experiment in the text of the five papers: what it takes, its recipes, whether it can be run.

A module is one paper, found because it exists. What a paper prints is kept as printed, misprints too: notes name them.
Whether an experiment is ready is written down nowhere: it follows from the recipes, corpora, stages, commands and
measures that there are. A recipe that a row names and that does not exist yet is the name it will have.
"""

import importlib
import math
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from pipelines import cli, stages
from pipelines.papers import recipe_runs
from xmodal import corpora
from xmodal.errors import UserError
from xmodal.metrics.ranks import RECALLS, Direction
from xmodal.recipes import Features, Recipe

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
    build: tuple[str, ...] = ()  # settings of the stages that make its features, as `xmodal build --set` takes them
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
                raise UserError(f"no experiment {text!r}; of {paper} there are: {there}")
            return (spelled[wanted],)
    raise UserError(
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
            recipes = recipe_runs.recipes()
        except ModuleNotFoundError as error:
            raise UserError(f"{error.name} is not installed: pip install 'xmodal[train]'") from error
        return cls(recipes, frozenset(corpora.names()), frozenset(stages.targets()), frozenset(cli.COMMANDS))


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
        recipe = recipe_runs.recipe_with(row.recipe, list(row.settings)) if row.settings else known.recipes[row.recipe]
    except UserError:
        return [*found, f"setting {' '.join(row.settings)} of recipe {row.recipe}"]
    return [*found, *_unbuilt(recipe, known)]


def _unbuilt(recipe: Recipe, known: Known) -> Iterator[str]:
    from xmodal.training.fit import unbuilt

    for view in (recipe.view, recipe.validation):
        if view.corpus not in known.corpora:
            yield f"corpus {view.corpus}"
    for read in (recipe.visual, recipe.text):
        if isinstance(read, Features) and read.stage not in known.stages:
            yield f"stage {read.stage}"
    if sees_pictures(recipe) and "pixels" not in known.stages:
        yield "stage pixels"
    yield from (f"training with {name}" for name in unbuilt(recipe))


def sees_pictures(recipe: Recipe) -> bool:
    return any(phase.pixels for phase in recipe.phases)


def is_ready(row: Row, known: Known) -> bool:
    return bool(row.recipe) and not lacks(row, known)


def parts_of(column: str) -> tuple[str, str, str]:
    """Gallery, direction and measure of `1K i2t R@1`; the gallery is all where it is not 1K."""
    match = re.fullmatch(r"(?:(1K|5K) )?(?:(i2t|v2t|t2i|t2v) )?(.+)", column)
    assert match is not None
    return "1K" if match[1] == "1K" else "all", SIDES.get(match[2] or "", ""), match[3]


def is_measured(column: str) -> bool:
    _, side, measure = parts_of(column)
    return (
        measure == "rsum"
        or (bool(side) and measure in LISTS)
        or (bool(side) and MEASURES.get(measure) in {field.name for field in fields(Direction)})
    )
