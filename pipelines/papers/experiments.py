"""Reads the papers' tables, figures and numbers of corpora from the TOML files here, and says which can be run.

A file is one paper and keeps what it prints, misprints too, which its notes name.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from pipelines import stages
from pipelines.papers import recipe_runs
from xmodal import corpora
from xmodal.batches.cluster_classes import CLUSTERS
from xmodal.corpora import Printed
from xmodal.errors import UserError
from xmodal.metrics import protocols
from xmodal.metrics.phrase_localisation import FIRST
from xmodal.recipes import WRITTEN, Features, Recipe, clusters_of

FOLDER = Path(__file__).parent
KINDS = {"Table": ("table", "tab", "t", ""), "Figure": ("figure", "fig", "f", ""), "§": ("section", "sec", "text", "")}
NUMERALS = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV"  # as Dual-Path counts its tables
ROMAN = {str(number): numeral for number, numeral in enumerate(NUMERALS.split(), 1)}
OF_PHRASES = "phrase "  # begins columns of localisation
SIDES = {"i2t": "visual_to_text", "v2t": "visual_to_text", "t2i": "text_to_visual", "t2v": "text_to_visual"}


@dataclass(frozen=True)
class Row:
    """A row of a table, or a point or bar of a figure."""

    name: str
    printed: str = ""  # a value a column, "-" where the paper has none; empty where it prints no number
    recipe: str = ""  # it may not exist yet; none where numbers are quoted, or need no training
    settings: tuple[str, ...] = ()  # as `xmodal train --set` takes them
    score: str = ""  # to evaluate by, if another than the run was chosen by
    lacks: str = ""  # unbuilt, and named nowhere else in the row

    @property
    def run(self) -> str:
        """The folder of its run; rows that only measure otherwise share one."""
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
    build: tuple[str, ...] = ()  # settings of its features' stages, as `xmodal build --set` takes them
    compute: str = ""
    on_validation: bool = False  # measured on the split that the recipe chooses on
    commands: tuple[str, ...] = ()  # beside training and evaluation, as typed after `xmodal`
    why_not: str = ""  # why it cannot be reproduced here
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


def papers() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def _read(paper: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{paper}.toml").read_text(encoding="utf-8"))


def printed_of(corpus: str) -> tuple[Printed, ...]:
    return tuple(Printed(**row) for paper in papers() for row in _read(paper).get("printed", {}).get(corpus, ()))


@cache
def of_paper(paper: str) -> tuple[Experiment, ...]:
    tables = _read(paper)["experiments"]
    for table in tables:
        rows = [Row(**_frozen(row)) for row in table.pop("rows", ())]
        table["rows"] = [replace(row, printed=" ".join(row.printed.split())) for row in rows]  # files line values up
    return tuple(Experiment(paper, **_frozen(table)) for table in tables)


def _frozen(table: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def find(text: str) -> tuple[Experiment, ...]:
    """Finds all by "", a paper's by its name, one by `pvse-2`, `PVSE:fig.7` or `dualpath Table VIII`."""
    wanted, known = _squashed(text), {_squashed(paper): of_paper(paper) for paper in papers()}
    if re.search(r"(?<!\S)-\d", text):
        raise UserError(f"no experiment {text!r}: tables and figures are counted from 1, as in pvse table 2")
    if not wanted:
        return tuple(each for experiments in known.values() for each in experiments)
    if wanted in known:
        return known[wanted]
    for start, experiments in known.items():
        if wanted.startswith(start):
            spelled = _spelled(experiments)
            if wanted in spelled:
                return (spelled[wanted],)
            there = ", ".join(each.number for each in experiments)
            raise UserError(f"no experiment {text!r}; of {experiments[0].paper} there are: {there}")
    raise UserError(f"no paper {text!r}; there are: {', '.join(papers())}; name one of its experiments: pvse table 2")


def _spelled(experiments: Iterable[Experiment]) -> dict[str, Experiment]:
    spelled: dict[str, Experiment] = {}
    for kind, words in KINDS.items():
        for each in experiments:
            if each.number.startswith(kind):
                number = each.number.removeprefix(kind).strip()
                for word, digits in product(words, (number, ROMAN.get(number, number))):
                    spelled.setdefault(_squashed(each.paper + word + digits), each)
    return spelled


def _squashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("§", "section"))


@dataclass(frozen=True)
class Available:
    recipes: Mapping[str, Recipe]
    corpora: frozenset[str]
    stages: frozenset[str]
    commands: frozenset[str]

    @classmethod
    def now(cls, commands: Iterable[str]) -> "Available":
        return cls(recipe_runs.recipes(), frozenset(corpora.names()), frozenset(stages.targets()), frozenset(commands))


def state(experiment: Experiment, available: Available) -> str:
    """`ready`, `not yet: …` with what is missing, or `not reproducible here: …` with the reason."""
    if experiment.why_not:
        return f"not reproducible here: {experiment.why_not}"
    kinds = dict[str, str]()
    for lacking in missing(experiment, available):
        kind, _, name = lacking.partition(" ")
        kinds[kind] = f"{kinds[kind]}, {name}" if kind in kinds else f"no {kind} {name}"
    return f"not yet: {'; '.join(kinds.values())}" if kinds else "ready"


def missing(experiment: Experiment, available: Available) -> tuple[str, ...]:
    """Lists what the experiment waits for: `corpus mrw`, `recipe sg-coco`."""
    found = [f"corpus {name}" for name in experiment.corpora if name not in available.corpora]
    for name in (text.split()[0] for text in experiment.commands):
        if name not in available.commands:
            found.append(
                f"command `xmodal {name}`, which would find what it shows; the runs that it reads can be trained"
            )
    found += [lack for row in experiment.rows for lack in lacks(row, available)]
    if experiment.recipes:
        found += [f"measure {column!r}" for column in experiment.columns if not is_measured(column)]
    return tuple(dict.fromkeys(found))


def lacks(row: Row, available: Available) -> list[str]:
    from xmodal.training.training_data import unbuilt

    found = [row.lacks] if row.lacks else []
    if not row.recipe:
        return found
    if row.recipe not in available.recipes:
        return [*found, f"recipe {row.recipe}"]
    try:
        recipe = recipe_of(row, available)
    except UserError:
        return [*found, f"setting {' '.join(row.settings)} of recipe {row.recipe}"]
    views = (recipe.view, recipe.validation)
    found += [f"corpus {view.corpus}" for view in views if view.corpus not in available.corpora]
    needed = [*stages_of(recipe), *texts_of(recipe)]
    found += [f"stage {name}" for name in needed if name not in available.stages]
    return [*found, *(f"training with {name}" for name in unbuilt(recipe))]


def recipe_of(row: Row, available: Available) -> Recipe:
    if row.settings:
        return recipe_runs.recipe_with(row.recipe, list(row.settings))
    return available.recipes[row.recipe]


def stages_of(recipe: Recipe) -> list[str]:
    read = [read.stage for read in (recipe.visual, recipe.text) if isinstance(read, Features)]
    if recipe.visual.frames is None and any(phase.pixels for phase in recipe.phases):
        read.append("pixels")  # frames are built before features of clips
    return [*read, CLUSTERS] if clusters_of(recipe.model) else read


def texts_of(recipe: Recipe) -> list[str]:
    """The stages that write the captions which a recipe reads, where no people wrote them."""
    views = (recipe.view, recipe.validation, recipe.unannotated)
    return sorted({view.source for view in views if view} - WRITTEN)


def is_ready(row: Row, available: Available) -> bool:
    return bool(row.recipe) and not lacks(row, available)


def parts_of(column: str) -> tuple[str, str, str]:
    """Splits `1K i2t R@1` into gallery, direction and measure; every gallery but 1K is "all"."""
    match = re.fullmatch(r"(?:(1K|5K) )?(?:(i2t|v2t|t2i|t2v) )?(.+)", column)
    assert match is not None
    return "1K" if match[1] == "1K" else "all", SIDES.get(match[2] or "", ""), match[3]


def is_measured(column: str) -> bool:
    """True if evaluation computes the column where a corpus has its labels."""
    if column.startswith(OF_PHRASES):
        return column.removeprefix(OF_PHRASES) in {f"R@{first}" for first in FIRST}
    _, side, measure = parts_of(column)
    columns = protocols.columns()
    if side:
        return measure in {each.name for each in columns}
    return measure in {each.adds_to for each in columns} | {
        each.name for each in protocols.columns(protocols.Comparison)
    }
