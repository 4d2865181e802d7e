"""Reproduction: describes the papers' experiments, and runs one (`xmodal reproduce`)."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.papers import recipe_runs
from pipelines.papers.experiments import (
    OF_PHRASES,
    Available,
    Experiment,
    Row,
    find,
    is_measured,
    is_ready,
    lacks,
    parts_of,
    recipe_of,
    stages_of,
    state,
    texts_of,
)
from pipelines.stages import with_needs
from pipelines.stages.proposals import ProposalsConfig
from pipelines.stages.resnet import ResNetConfig
from xmodal.batches.cluster_classes import CLUSTERS
from xmodal.errors import UserError
from xmodal.features.opening import describe_network, network_setting
from xmodal.metrics.reports import Report
from xmodal.recipes import PHRASES, SENTENCES, Features, Recipe, Tokens, clusters_of
from xmodal.records.views import has_split, splits
from xmodal.root.outputs import Output, made_of
from xmodal.training import run_folder
from xmodal.training.run_folder import has_state
from xmodal.training.run_setup import Setup

RUNS = Path("runs")
RECORDS, REGIONS_OF_PHRASES = "records", "regions of phrases"
WORDS_OF_REGIONS = (  # the default detector's weights and words
    " --file detector=vg.pkl --file object_words=objects_vocab.txt --file attribute_words=attributes_vocab.txt"
)


def overview() -> list[dict[str, Any]]:
    """Lists every experiment without its state, which takes seconds."""
    told = ("name", "title", "corpora", "why_not")
    return [{name: getattr(each, name) for name in told} for each in find("")]


def reproduce(text: str, setup: Setup | None, runs: Path, commands: Iterable[str]) -> list[dict[str, Any]]:
    """Describes the experiments named; with a setup, trains and evaluates the one."""
    found, available = find(text), Available.now(commands)
    if setup is None:
        return [about(each, available) for each in found]
    first, *others = found
    if others:
        raise UserError(f"--root trains one table: name it, such as {first.name}")
    rows = run(first, available, setup, runs)
    return [about(first, available) | {"rows": rows, "to_run": _others(first, available, setup.root, runs)}]


def about(experiment: Experiment, available: Available) -> dict[str, Any]:
    rows = [
        asdict(row) | {"ready": is_ready(row, available) if row.recipe else None, "lacks": lacks(row, available)}
        for row in experiment.rows
    ]
    derived = {"name": experiment.name, "recipes": experiment.recipes, "state": state(experiment, available)}
    return asdict(experiment) | derived | {"rows": rows, "to_run": to_run(experiment, available)}


def to_run(experiment: Experiment, available: Available, setup: Setup | None = None, runs: Path = RUNS) -> list[str]:
    """Lists the commands of an experiment; with a setup, without builds that its root has."""
    built, trained, root = dict[str, None](), list[str](), setup.root if setup else "data"
    for row in _ready_runs(experiment, available):
        recipe, folder, at = recipe_of(row, available), shlex.quote(str(runs / row.run)), _at(root)
        lacking = _lacking(recipe, setup) if setup else {}
        for stage, command in _builds(recipe, experiment, root).items():
            if not setup or RECORDS in lacking or ": build " in lacking.get(stage, ""):  # not only: say which
                built[command] = None
        vectors = f" --vectors {_vectors(recipe)}.txt" if _vectors(recipe) else ""
        trained.append(f"xmodal train {row.recipe}{at} --run {folder}{vectors}{_set(row.settings)}")
        split = f" --split {recipe.validation.split}" if experiment.on_validation else ""
        for score in dict.fromkeys(each.score for each in experiment.rows if each.run == row.run):
            distance = f" --distance {score}" if score else ""
            trained.append(f"xmodal evaluate {folder}{at}{split}{distance}")
    return [*built, *trained, *_others(experiment, available, root, runs)]


def _at(root: str) -> str:
    return f" --root {shlex.quote(root)}"


def _builds(recipe: Recipe, experiment: Experiment, root: str) -> dict[str, str]:
    """Commands by stage. All give a stage that several read the same settings and files: other ones, other outputs."""
    corpus, at = recipe.view.corpus, _at(root)
    commands = {RECORDS: f"xmodal build {corpus}{at}"}
    for stage in [*stages_of(recipe), *texts_of(recipe)]:
        read = {*with_needs([stage])}
        settings = _set(_settings(read, recipe, experiment))
        if "regions" in read and "regions.detector=" not in settings:
            settings += WORDS_OF_REGIONS
        if stage in (SENTENCES, PHRASES):
            settings += _set_codebook(recipe)
        if stage == CLUSTERS:
            settings += _set((f"clusters.count={clusters_of(recipe.model)}", f"clusters.split={recipe.view.split}"))
        commands[stage] = f"xmodal build {corpus}/{stage}{at}{settings}"
    if recipe.reads_phrases:
        detector = f"regions.detector={ProposalsConfig().detector}"
        commands[REGIONS_OF_PHRASES] = f"xmodal build {corpus}/regions{at}{_set([detector, 'regions.boxes=phrases'])}"
    return commands


def _settings(read: set[str], recipe: Recipe, experiment: Experiment) -> Iterator[str]:
    """Settings of the stages that one reads, and of itself: the recipe's network, and those of the experiment."""
    if recipe.visual.network and recipe.visual.stage in read:
        yield network_setting(recipe.visual.stage, recipe.visual.network)
    yield from (setting for setting in experiment.build if setting.partition(".")[0] in read)


def _set_codebook(recipe: Recipe) -> str:
    method = recipe.text.method if isinstance(recipe.text, Features) else ""
    settings = [f"codebook.method={method}"] if method else []
    return f"{_set([*settings, f'codebook.split={recipe.view.split}'])} --vectors word2vec.bin"


def _others(experiment: Experiment, available: Available, root: str, runs: Path) -> list[str]:
    """The further commands, which files write with the root `data` and the runs `runs`."""
    known = (text for text in experiment.commands if text.split()[0] in available.commands)
    of_runs = "" if runs == RUNS else f" --runs {shlex.quote(str(runs))}"
    commands = []
    for text in known:
        moved = re.sub(r"(?<= )runs/[^ ]+", lambda run: shlex.quote(str(runs / run[0].removeprefix("runs/"))), text)
        command = moved.replace(" --root data", _at(root))
        commands.append(f"xmodal {command}{of_runs if command.startswith('reproduce') else ''}")
    return commands


def _set(settings: Iterable[str]) -> str:
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


def run(experiment: Experiment, available: Available, setup: Setup, runs: Path) -> list[dict[str, Any]]:
    """Trains and evaluates the ready rows; says before the first whatever one misses."""
    recipes = ready_recipes(experiment, available)
    _check(experiment, recipes, setup, runs)
    for name, recipe in recipes.items():
        recipe_runs.train(recipe, setup if _vectors(recipe) else replace(setup, vectors=None), runs / name)
    return evaluated(experiment, recipes, setup, runs)


def ready_recipes(experiment: Experiment, available: Available) -> dict[str, Recipe]:
    """By the folder of the run."""
    ready = _ready_runs(experiment, available)
    if not ready:
        raise UserError(f"{experiment.name} has no row that can be run; {state(experiment, available)}")
    return {row.run: recipe_of(row, available) for row in ready}


def evaluated(experiment: Experiment, recipes: Mapping[str, Recipe], setup: Setup, runs: Path) -> list[dict[str, Any]]:
    """The rows, with what the runs of `recipes` measure."""
    from xmodal.evaluation.phrase_runs import evaluate_phrases
    from xmodal.evaluation.run_metrics import evaluate

    rows = [asdict(row) | {"measured": None, "on": None, "from": None} for row in experiment.rows]
    for row, told in zip(experiment.rows, rows, strict=True):
        if recipe := recipes.get(row.run):
            split = recipe.validation.split if experiment.on_validation else None
            run, columns = str(runs / row.run), experiment.columns
            if recipe.reads_phrases:
                found = evaluate_phrases(run, setup, split)
                of_phrases = [name for name in columns if name.startswith(OF_PHRASES)]
                told["measured"] = {name: found.value(name.removeprefix(OF_PHRASES)) for name in of_phrases}
                told["on"] = {"split": found.split, "items": found.pictures, "phrases": found.phrases}
                told["from"] = {"features": found.proposals, "network": run_folder.read(run).weights}
            else:
                report = evaluate(run, setup, split, distance=row.score or None)
                told["measured"] = measured(report, columns)
                told["on"] = {"split": report.split, "items": report.items, "captions": report.captions}
                told["from"] = {"features": report.features, "network": report.weights}
    return rows


def _vectors(recipe: Recipe) -> str | None:
    return recipe.text.vectors if isinstance(recipe.text, Tokens) else None


def _check(experiment: Experiment, recipes: Mapping[str, Recipe], setup: Setup, runs: Path) -> None:
    found = dict[str, None]()
    for name, recipe in recipes.items():
        found |= dict.fromkeys(_without_vectors(recipe, runs / name, setup.vectors))
        found |= dict.fromkeys(_not_built(recipe, experiment, setup))
    if found:
        raise UserError(f"nothing of {experiment.name} is trained yet: {'; '.join(found)}")
    for text in dict.fromkeys(_other_network(recipe, experiment, setup) for recipe in recipes.values()):
        if text:
            setup.progress.say(text)


def _without_vectors(recipe: Recipe, run: Path, file: str | Path | None) -> Iterator[str]:
    if file is not None and not Path(file).is_file():
        yield f"{file} is no file"
    elif _vectors(recipe) and file is None and not has_state(str(run)):
        yield f"{recipe.name} starts its words from {_vectors(recipe)}: give the file (--vectors FILE)"


def _not_built(recipe: Recipe, experiment: Experiment, setup: Setup) -> Iterator[str]:
    commands = _builds(recipe, experiment, setup.root)
    for stage, trouble in _lacking(recipe, setup).items():
        absent, builds, _ = trouble.partition(": build it first")
        yield f"{absent} (`{commands[stage]}`)" if builds else absent


def _lacking(recipe: Recipe, setup: Setup) -> dict[str, str]:
    """What keeps a recipe from reading its outputs, by their stage."""
    try:
        tables = setup.tables(recipe.view.corpus)
    except UserError as trouble:
        return {RECORDS: str(trouble)}
    found = dict[str, str]()
    absent = [view.split for view in (recipe.view, recipe.validation) if not has_split(tables, view.split)]
    if absent:
        there = ", ".join(splits(tables))
        found[RECORDS] = "; ".join(f"{recipe.view.corpus} has no split {one!r}; there are: {there}" for one in absent)
    for stage in texts_of(recipe):
        if not any(made_of(tables, stage)):
            found[stage] = f"there is no {stage} of {recipe.view.corpus}: build it first"
    try:
        setup.with_named_texts(recipe, tables)
    except UserError as trouble:
        found["texts"] = str(trouble)
    for stage in stages_of(recipe):
        try:
            _open(stage, recipe, setup, tables)
        except UserError as trouble:
            found[stage] = str(trouble)
    if recipe.reads_phrases and not setup.has_annotated_boxes(tables):
        boxes = f"the boxes that phrases of {recipe.view.corpus} name"
        found[REGIONS_OF_PHRASES] = f"there are no features of {boxes}: build it first"
    return found


def _open(stage: str, recipe: Recipe, setup: Setup, tables: Output) -> None:
    """Refuses what training would refuse of a stage."""
    if isinstance(recipe.text, Features) and stage == recipe.text.stage:
        setup.texts_of(recipe.text, tables, setup.visual(recipe, tables))
    elif stage == CLUSTERS:
        setup.clusters(recipe, tables, setup.visual(recipe, tables))
    else:
        store = setup.visual(recipe, tables) if stage == recipe.visual.stage else setup.store(stage, tables)
        if store.spec.ragged and any(phase.pixels for phase in recipe.phases):
            setup.pictures(store, tables)


def _other_network(recipe: Recipe, experiment: Experiment, setup: Setup) -> str | None:
    if recipe.visual.stage != "resnet" or recipe.visual.network:  # another one than a recipe names is refused
        return None
    store = setup.visual(recipe, setup.tables(recipe.view.corpus))
    settings = dict(setting.split("=", 1) for setting in experiment.build)
    wanted = settings.get("resnet.network", ResNetConfig().network)
    if store.provenance.get("network") == wanted:
        return None
    return f"{store.output.where} is by {describe_network(store)}, not by the {wanted} of {experiment.name}"


def _ready_runs(experiment: Experiment, available: Available) -> list[Row]:
    return list({row.run: row for row in experiment.rows if is_ready(row, available)}.values())


def measured(report: Report, columns: Iterable[str]) -> dict[str, float]:
    found = {}
    for column in filter(is_measured, columns):
        gallery, side, measure = parts_of(column)
        if (value := report.metrics.value(measure, side, gallery)) is not None:
            found[column] = value
    return found
