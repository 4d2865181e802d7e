"""How well a model finds texts for visual items and items for texts: every metric of a split, beside chance.

Both sides are encoded block by block, once, and compared a block with a block: the whole matrix is never there.
"""

import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import nn

from xmodal import runs
from xmodal.batches import Padded, Reader
from xmodal.chosen import choose, made_by, open_features
from xmodal.corpora import View
from xmodal.dataset import Examples
from xmodal.features import FeatureStore
from xmodal.identity import fingerprint
from xmodal.judging import NO_LABELS, Findings, Gallery, Labels, eccv, judge, labels_of, recalls
from xmodal.metrics import Both, Numbers, Scores, Similarities, cuts, ranks
from xmodal.models import Config, Scorer, Storing, Tokens
from xmodal.outputs import Output
from xmodal.ranked import kept
from xmodal.reports import OWN, Report
from xmodal.runs import Run
from xmodal.storage import LocalStorage
from xmodal.trouble import Trouble
from xmodal.trunk import Fronted, front_without_weights, pictures
from xmodal.views import items

BLOCKS = (256, 1024)  # visual rows and texts that are encoded, and compared, at once
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OverflowError),
    *(LookupError, TypeError, AttributeError, AssertionError),
)  # what reading a checkpoint raises when its bytes are not what was written


class Progress(Protocol):
    """Where long work says how far it is; `pipelines.progress.Progress` is one."""

    def say(self, text: str) -> None: ...
    def over(
        self, name: str, total: int, done: int = 0, unit: str = "units"
    ) -> AbstractContextManager[Callable[[int], None]]: ...


class Silence:
    """The progress of a caller who wants none."""

    def say(self, text: str) -> None:
        return

    @contextmanager
    def over(self, name: str, total: int, done: int = 0, unit: str = "units") -> Iterator[Callable[[int], None]]:
        yield lambda count: None


def load(
    run: str, device: str = "cpu", features: FeatureStore | None = None, distance: str | None = None
) -> Scorer[Any, Any]:
    """The model of a run as its best validation left it; `features` are those it read, where it has their network too.

    `distance` is another score of the same weights, where the model has several.
    """
    started = runs.read(run)
    state = read_tensors(run, runs.BEST)
    if distance is not None:
        changed = with_distance(started.recipe.model, distance, started.recipe.name)
        started = replace(started, recipe=replace(started.recipe, model=changed))
    model = runs.network(run, started)
    assert isinstance(model, nn.Module)
    if any(str(name).startswith("trunk.") for name in state):
        if features is None:
            raise Trouble(f"{run} was trained from pictures: load it with the features that it started from")
        model = front_without_weights(model, features)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise Trouble(f"{run}/{runs.BEST} are no weights of its recipe: {error}") from error
    return cast(Scorer[Any, Any], model.to(device).eval())


def with_distance(model: Config, distance: str, name: str) -> Config:
    """Another score of the same weights; `name` is what has none."""
    config: Any = model
    if not hasattr(config, "distance"):
        raise Trouble(f"{name} has one score, so {distance!r} cannot be chosen")
    try:
        return cast(Config, replace(config, distance=distance))
    except ValueError as error:
        raise Trouble(str(error)) from None


def check_device(device: str) -> None:
    """Refuses what torch cannot compute on here."""
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise Trouble(f"no device {device!r}; there are: cpu, cuda") from None
    if asked.type not in ("cpu", "cuda"):
        raise Trouble(f"no device {device!r}; there are: cpu, cuda")
    if asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
        raise Trouble(f"device {device!r}: torch sees {torch.cuda.device_count()} GPUs here; cpu always works")


def read_tensors(run: str, name: str) -> dict[str, Any]:
    """A file of tensors, on the CPU, and plain values by name; nothing in it is executed.

    Torch does not look at the checksums in it.
    """
    try:
        data = LocalStorage(run).read(name)
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if (broken := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{broken} has changed")
        found = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise Trouble(f"{run} has no {name}: train it first") from None
    except DAMAGE as error:
        raise Trouble(f"{run}/{name} is damaged ({error}): {runs.anew(run)}") from error
    if not isinstance(found, dict):
        raise Trouble(f"{run}/{name} is damaged (it holds a {type(found).__name__}, no tensors): {runs.anew(run)}")
    return found


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
            findings=_findings(self.scorer, self.reader, self.records, extended, progress, device),
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
    started = runs.read(run)
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


def _findings(
    scorer: Scorer[Any, Any],
    reader: Reader,
    records: Output,
    extended: Path | None,
    progress: Progress,
    device: str,
) -> Findings:
    gallery = _gallery(reader.examples)
    positives = eccv(extended, gallery) if extended else None
    with torch.inference_mode(), TemporaryFile() as file:
        similarities = _similarities(scorer, reader, progress, device, BLOCKS)
        with progress.over("compare", sum(1 for _ in similarities.cells()), unit="tiles") as tick:
            return judge(kept(similarities, file, tick), gallery, labels_of(records, gallery.ids), positives)


def measure(
    scorer: Scorer[Any, Any],
    reader: Reader,
    progress: Progress,
    device: str = "cpu",
    blocks: tuple[int, int] = BLOCKS,
    labels: Labels = NO_LABELS,
) -> dict[str, Scores]:
    """As `judging.recalls` has them; `blocks` changes memory and speed alone."""
    with torch.inference_mode():
        return recalls(_similarities(scorer, reader, progress, device, blocks), _gallery(reader.examples), labels)


def own_ranks(scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str = "cpu") -> Both:
    """Of every item the rank of its best own caption, and of every caption that of its item; in the reader's order."""
    with torch.inference_mode():
        return ranks(_similarities(scorer, reader, progress, device, BLOCKS), _gallery(reader.examples).own)[0]


def _gallery(examples: Examples) -> Gallery:
    return Gallery(examples.ids, examples.caption_ids, examples.caption_items)


def _similarities(
    scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str, blocks: tuple[int, int]
) -> Similarities:
    if isinstance(scorer, nn.Module):
        scorer.eval()
    shape = len(reader.examples.ids), len(reader.examples.words)
    with progress.over("encode", sum(shape), unit="rows") as tick:
        visual = [
            _ticked(scorer.encode_visual(_numbers(reader.visual(rows), device)), rows, tick)
            for rows in cuts(shape[0], blocks[0])
        ]
        text = [
            _ticked(scorer.encode_text(_texts(reader, rows, device)), rows, tick) for rows in cuts(shape[1], blocks[1])
        ]

    def tile(visual_rows: slice, text_rows: slice) -> Numbers:
        some, others = visual[visual_rows.start // blocks[0]], text[text_rows.start // blocks[1]]
        return np.asarray(scorer.similarity(some, others).cpu().numpy())

    return Similarities(shape, blocks, tile)


def _texts(reader: Reader, rows: slice, device: str) -> Padded:
    text = reader.text(rows)
    return text.to(device) if reader.examples.sentences is None else _numbers(text, device)


def _numbers(features: Padded, device: str) -> Padded:
    """On the device; features are stored and moved in half precision, and computed with in single."""
    return Padded(features.values.to(device).float(), features.lengths)


def _ticked(encoded: Any, rows: slice, tick: Callable[[int], None]) -> Any:
    tick(rows.stop - rows.start)
    return encoded
