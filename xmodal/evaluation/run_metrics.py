"""How well a model finds texts for visual items and items for texts: every metric of a split, beside chance.

Both sides are encoded block by block, once, and compared a block with a block: the whole matrix is never there.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import torch
from torch import nn

from xmodal.batches.dataset import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.opening import made_by, open_features
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Metrics, all_metrics, eccv, labels_of
from xmodal.metrics.reports import OWN, Report
from xmodal.metrics.similarities import cached_on_disk
from xmodal.models import Scorer, Storing
from xmodal.progress import Progress, Silence
from xmodal.recipes import Config, Tokens, View
from xmodal.records.views import items
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output
from xmodal.root.selection import choose
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import Fronted, front_without_weights
from xmodal.training.picture_crops import pictures
from xmodal.training.run_folder import Run
from xmodal.training.validation import BLOCKS, _gallery, _similarities, check_device


def load(
    run: str, device: str = "cpu", features: FeatureStore | None = None, distance: str | None = None
) -> Scorer[Any, Any]:
    """The model of a run as its best validation left it; `features` are those it read, where it has their network too.

    `distance` is another score of the same weights, where the model has several.
    """
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
        model = front_without_weights(model, features)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{run}/{run_folder.BEST} are no weights of its recipe: {error}") from error
    return cast(Scorer[Any, Any], model.to(device).eval())


def with_distance(model: Config, distance: str, name: str) -> Config:
    """Another score of the same weights; `name` is what has none."""
    config: Any = model
    if not hasattr(config, "distance"):
        raise UserError(f"{name} has one score, so {distance!r} cannot be chosen")
    try:
        return cast(Config, replace(config, distance=distance))
    except ValueError as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A model, what it is asked about, and what its report says of both; fields are called as in the report."""

    scorer: Scorer[Any, Any]
    reader: Reader
    records: Output
    view: View
    recipe: str
    fingerprint: str
    features: str
    weights: str
    learned: View | None  # what it was trained on, where that is known
    chosen: View | None  # what decided which of its weights were kept

    def report(self, extended: Path | None, progress: Progress, device: str) -> Report:
        examples = self.reader.examples
        return Report(
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            records=self.records.identity,
            features=self.features,
            weights=self.weights,
            corpus=self.view.corpus,
            split=self.view.split,
            relevance=OWN,
            items=len(examples.ids),
            captions=len(examples.words),
            absent=examples.absent,
            silent=examples.silent,
            seen=self._of(self.learned),
            chosen=self._of(self.chosen),
            metrics=_metrics(self.scorer, self.reader, self.records, extended, progress, device),
            floats_per_item=_floats_per_item(self.scorer),
        )

    def _of(self, view: View | None) -> int | None:
        """How many of the items that it is asked about are of a view."""
        return None if view is None else len(items(self.records, view).intersection(self.reader.examples.ids))


def _floats_per_item(scorer: Scorer[Any, Any]) -> int | None:
    model = scorer.model if isinstance(scorer, Fronted) else scorer
    return model.floats_per_item if isinstance(model, Storing) else None


def evaluate(
    run: str,
    root: str,
    split: str,
    *,
    device: str = "cpu",
    distance: str | None = None,
    extended: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Every metric of a run on a split of its corpus, from the same records and features as it was trained on.

    `distance` is another score of the same weights (PCME), `extended` a folder with ECCV-Caption's files.
    """
    asked = opened(run, root, split, device, distance)
    recipe, read = asked.started.recipe, asked.reader.store.output
    further = ", trained further from pixels" if isinstance(asked.scorer, Fronted) else ""
    evaluated = Evaluated(
        asked.scorer,
        asked.reader,
        asked.records,
        replace(recipe.validation, split=split),
        recipe=recipe.name + (f" by {distance}" if distance else ""),
        fingerprint=fingerprint(recipe),
        features=f"{read.stage}/{read.identity}",
        weights=made_by(asked.features) + further,
        learned=recipe.view,
        chosen=recipe.validation,
    )
    return evaluated.report(extended, progress or Silence(), device)


@dataclass(frozen=True, eq=False)
class Opened:
    """A run with its model and what it is asked about; `reader` reads pictures where weights were trained from them."""

    started: Run
    records: Output
    features: FeatureStore
    scorer: Scorer[Any, Any]
    reader: Reader


def opened(run: str, root: str, split: str, device: str = "cpu", distance: str | None = None) -> Opened:
    """On a split of its corpus, from the same records and features as it was trained on."""
    check_device(device)
    started = run_folder.read(run)
    recipe = started.recipe
    records = choose(root, "records", started.records, corpus=recipe.view.corpus)
    store = open_features(root, recipe.visual.stage, started.features, records, recipe.model)
    examples = Examples.of(records, replace(recipe.validation, split=split), store, started.vocabulary)
    scorer = load(run, device, store, distance)
    reader = Reader(examples, store, recipe.visual, recipe.text if isinstance(recipe.text, Tokens) else None)
    return Opened(started, records, store, scorer, _as_trained(reader, scorer, started, root, records))


def _as_trained(reader: Reader, scorer: Scorer[Any, Any], started: Run, root: str, records: Output) -> Reader:
    """Weights that were trained from pictures are asked about pictures."""
    if not isinstance(scorer, Fronted):
        return reader
    plans = [phase.pixels for phase in started.recipe.phases if phase.pixels]
    return pictures(reader, open_features(root, "pixels", started.pixels, records), plans[-1])


def _metrics(
    scorer: Scorer[Any, Any],
    reader: Reader,
    records: Output,
    extended: Path | None,
    progress: Progress,
    device: str,
) -> Metrics:
    gallery = _gallery(reader.examples)
    positives = eccv(extended, gallery) if extended else None
    with torch.inference_mode(), TemporaryFile() as file:
        similarities = _similarities(scorer, reader, progress, device, BLOCKS)
        with progress.over("compare", sum(1 for _ in similarities.cells()), unit="tiles") as tick:
            cached = cached_on_disk(similarities, file, tick)
            return all_metrics(cached, gallery, labels_of(records, gallery.ids), positives)
