"""Metrics of a run on a split."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.opening import describe_network
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Gallery, all_metrics, eccv, labels_of
from xmodal.metrics.reports import Report
from xmodal.models import Scorer, Storing
from xmodal.ranking.similarities import Similarities, cached_on_disk
from xmodal.recipes import Config, Features, Tokens, View
from xmodal.records.views import items_with_captions
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output
from xmodal.text.vocabularies import Vocabulary
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import WithBackbone, attach_empty_backbone
from xmodal.training.picture_crops import picture_reader
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import EncodedSplit, check_device, encode, gallery_of

Compare = Callable[[EncodedSplit, Gallery], Similarities]


def load(
    run: str, device: str = "cpu", features: FeatureStore | None = None, distance: str | None = None
) -> Scorer[Any, Any]:
    """Loads a run's model with its best weights; one trained from pictures needs `features`."""
    started = run_folder.read(run)
    state = read_tensors(run, run_folder.BEST)
    if distance is not None:
        changed = with_distance(started.recipe.model, distance, started.recipe.name)
        started = replace(started, recipe=replace(started.recipe, model=changed))
    model = run_folder.network(run, started)
    assert isinstance(model, nn.Module)
    if any(str(name).startswith("trunk.") for name in state):
        if features is None:
            raise UserError(f"{run} was trained from pictures: load it with the features that it started from")
        model = attach_empty_backbone(model, features)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{run}/{run_folder.BEST} are no weights of its recipe: {error}") from error
    return cast(Scorer[Any, Any], model.to(device).eval())


def with_distance(model: Config, distance: str, name: str) -> Config:
    """Chooses another score of the same weights."""
    if not hasattr(model, "distance"):
        raise UserError(f"{name} has one score, so {distance!r} cannot be chosen")
    try:
        return cast(Config, replace(cast(Any, model), distance=distance))
    except ValueError as error:
        raise UserError(str(error)) from None


def evaluate(
    run: str, setup: Setup, split: str | None = None, *, distance: str | None = None, extended: Path | None = None
) -> Report:
    """Computes every metric on a split, by default the test split beside the training's.

    `distance` is another score of the same weights (PCME), `extended` a folder with ECCV-Caption's files.
    """
    asked = open_run(run, setup, split, distance)
    name = asked.started.recipe.name
    return report_of(asked, setup, extended, f"{name} by {distance}" if distance else name)


def report_of(
    asked: "OpenedRun", setup: Setup, extended: Path | None, name: str, compare: Compare | None = None
) -> Report:
    recipe, read = asked.started.recipe, asked.reader.store.output
    further = ", trained further from pixels" if isinstance(asked.scorer, WithBackbone) else ""
    return report(
        asked.scorer,
        asked.reader,
        setup,
        asked.records,
        asked.view,
        extended,
        compare,
        recipe=name,
        fingerprint=fingerprint(recipe),
        features=f"{read.stage}/{read.identity}",
        weights=describe_network(asked.features) + further,
        seen=count_shared(asked.records, recipe.view, asked.reader.examples.ids),
        chosen=count_shared(asked.records, recipe.validation, asked.reader.examples.ids),
    )


def report(
    scorer: Scorer[Any, Any],
    reader: Reader,
    setup: Setup,
    records: Output,
    view: View,
    extended: Path | None,
    compare: Compare | None = None,
    **about: Any,
) -> Report:
    """Computes every metric, by other similarities if `compare` gives any; `about` are further fields of the report."""
    examples = reader.examples
    if examples.captions_cut:
        setup.progress.say(f"{len(examples.words):,} captions{examples.note_of_cuts}")
    gallery = gallery_of(examples)
    positives = eccv(extended, gallery) if extended else None
    with torch.inference_mode(), tempfile.TemporaryFile() as file:
        encoded = encode(scorer, reader, setup.progress, setup.device)
        similarities = compare(encoded, gallery) if compare else encoded.similarities
        with setup.progress.over("compare", sum(1 for _ in similarities.cells()), unit="tiles") as tick:
            labels = labels_of(records, gallery.ids)
            try:
                cached = cached_on_disk(similarities, file, tick)
                metrics = all_metrics(cached, gallery, labels, positives, encoded.text_similarities)
            except ValueError as error:
                raise UserError(f"{view.split} of {view.corpus} cannot be evaluated: {error}") from error
    model = scorer.model if isinstance(scorer, WithBackbone) else scorer
    return Report(
        records=records.identity,
        corpus=view.corpus,
        split=view.split,
        items=len(examples.ids),
        captions=len(examples.words),
        absent=examples.items_without_features,
        silent=examples.items_without_captions,
        metrics=metrics,
        floats_per_item=model.floats_per_item if isinstance(model, Storing) else None,
        **about,
    )


@dataclass(frozen=True, eq=False)
class OpenedRun:
    started: Run
    view: View
    records: Output
    features: FeatureStore
    scorer: Scorer[Any, Any]
    reader: Reader


def open_run(run: str, setup: Setup, split: str | None = None, distance: str | None = None) -> OpenedRun:
    check_device(setup.device)
    started = run_folder.read(run)
    recipe = started.recipe
    if recipe.reads_phrases:
        raise UserError(f"{run} compares regions with phrases, not items with captions: `xmodal evaluate` measures it")
    setup = replace(
        setup, records=started.records, features=started.features, pixels=started.pixels, texts=started.texts
    )
    records = setup.tables(recipe.view.corpus)
    store = setup.visual(recipe, records)
    view = replace(recipe.validation, split=split or test_split_beside(recipe.view))
    texts: Vocabulary | FeatureStore = started.vocabulary
    if isinstance(recipe.text, Features):
        texts = setup.texts_of(recipe.text, records, store)
    try:
        examples = Examples.of(records, view, store, texts)
    except UserError as trouble:
        said = "" if split else f"{run} was trained on {recipe.view.split}: say with --split what to ask it; "
        raise UserError(f"{said}{trouble}") from None
    scorer = load(run, setup.device, store, distance)
    reader = Reader(examples, store, recipe.visual, recipe.text if isinstance(recipe.text, Tokens) else None)
    if isinstance(scorer, WithBackbone):
        *_, plan = (phase.pixels for phase in recipe.phases if phase.pixels)
        reader = picture_reader(reader, setup.pictures(store, records), plan)
    return OpenedRun(started, view, records, store, scorer, reader)


def test_split_beside(view: View) -> str:
    return (view.split.rpartition("/")[0] + "/test").lstrip("/")


def count_shared(records: Output, view: View, ids: Iterable[str]) -> int:
    """Counts the items that a view of the records has, too."""
    return len(items_with_captions(records, view).intersection(ids))
