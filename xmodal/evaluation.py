"""How well a model finds texts for visual items and items for texts: every metric of a split, beside chance.

Both sides are encoded block by block, once, and compared a block with a block: the whole matrix is never there.
"""

import json
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from xmodal import runs
from xmodal.batches import Padded, Reader
from xmodal.dataset import Examples, choose, items, made_by, open_features
from xmodal.identity import fingerprint
from xmodal.metrics import RECALLS, WHOLE, Direction, Numbers, Pairs, Scores, Similarities, cuts, fold_windows, ranks
from xmodal.models import Scorer
from xmodal.storage import LocalStorage
from xmodal.trouble import Trouble

BLOCKS = (256, 1024)  # visual rows and texts that are encoded, and compared, at once
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OverflowError),
    *(LookupError, TypeError, AttributeError, AssertionError),
)  # what reading a checkpoint raises when its bytes are not what was written
OWN = "pairs: a caption is right for its own item alone"


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


@dataclass(frozen=True)
class Report:
    """What a table prints. `scores` go by the gallery: "all", and "1K" as the mean over its folds."""

    recipe: str
    fingerprint: str  # of the recipe
    records: str
    features: str
    weights: str  # the network that made the features, its weights and their checksum
    corpus: str
    split: str
    relevance: str
    items: int
    captions: int
    absent: int  # items of the split without features: nobody was asked about them
    silent: int  # and without captions
    seen: int  # items asked about that the run was trained on
    scores: Mapping[str, Scores]

    def to_json(self) -> str:
        scores = {name: asdict(scores) | {"rsum": scores.rsum} for name, scores in self.scores.items()}
        return json.dumps(asdict(self) | {"scores": scores}, indent=2)

    def to_text(self) -> str:
        seen = f"; {self.seen:,} of them were trained on" * bool(self.seen)
        left_out = f"; left out: {self.absent} without features, {self.silent} without captions"
        return "\n".join(
            [
                f"{self.recipe} ({self.fingerprint[:12]}) on {self.corpus} {self.split}: "
                f"{self.items:,} items, {self.captions:,} captions"
                + seen
                + left_out * bool(self.absent or self.silent),
                f"records {self.records}, features {self.features} by {self.weights}; {self.relevance}",
                "",
                f"{'':22}{'visual to text':^40}  {'text to visual':^40}",
                f"{'gallery':22}{_HEAD}  {_HEAD}    rsum",
                *(line for name, scores in self.scores.items() for line in _lines(name, scores)),
            ]
        )


_HEAD = "".join(f"{f'R@{k}':>8}" for k in RECALLS) + f"{'median':>8}{'mean':>8}"


def _lines(name: str, scores: Scores) -> Iterator[str]:
    sides = (scores.visual_to_text, scores.text_to_visual)
    folds = f" ({scores.galleries} folds)" if scores.galleries > 1 else ""
    yield f"{name + folds:22}{'  '.join(map(_cells, sides))}{scores.rsum:8.1f}"
    chances = ["".join(f"{side.chance[k]:8.2f}" for k in RECALLS) + " " * 16 for side in sides]
    yield f"{'  by chance':22}{'  '.join(chances)}{sum(sum(side.chance.values()) for side in sides):8.1f}"


def _cells(side: Direction) -> str:
    return "".join(f"{side.recall[k]:8.2f}" for k in RECALLS) + f"{side.median_rank:8.1f}{side.mean_rank:8.1f}"


def load(run: str, device: str = "cpu") -> Scorer[Any, Any]:
    """The model of a run as its best validation left it."""
    started = runs.read(run)
    state = read_tensors(run, runs.BEST)
    model = runs.network(run, started)
    assert isinstance(model, nn.Module)
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise Trouble(f"{run}/{runs.BEST} are no weights of its recipe: {error}") from error
    return model.to(device).eval()


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
        raise Trouble(f"{run}/{name} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise Trouble(f"{run}/{name} is damaged: it holds a {type(found).__name__}, not tensors by name")
    return found


def evaluate(run: str, root: str, split: str, *, device: str = "cpu", progress: Progress | None = None) -> Report:
    """Every metric of a run on a split of its corpus, from the same records and features as it was trained on."""
    check_device(device)
    started = runs.read(run)
    recipe = started.recipe
    records = choose(root, "records", started.records, corpus=recipe.view.corpus)
    store = open_features(root, recipe.visual.stage, started.features, records)
    examples = Examples.of(records, replace(recipe.validation, split=split), store, started.vocabulary)
    return Report(
        recipe=recipe.name,
        fingerprint=fingerprint(recipe),
        records=started.records,
        features=f"{recipe.visual.stage}/{started.features}",
        weights=made_by(store),
        corpus=recipe.view.corpus,
        split=split,
        relevance=OWN,
        items=len(examples.ids),
        captions=len(examples.words),
        absent=examples.absent,
        silent=examples.silent,
        seen=len(items(records, recipe.view).intersection(examples.ids)),
        scores=measure(load(run, device), Reader(examples, store, recipe.visual), progress or Silence(), device),
    )


def measure(
    scorer: Scorer[Any, Any],
    reader: Reader,
    progress: Progress,
    device: str = "cpu",
    blocks: tuple[int, int] = BLOCKS,
) -> dict[str, Scores]:
    """Over all items, and over folds of 1,000 where they are whole ones; `blocks` changes memory and speed alone."""
    examples = reader.examples
    relevance = Pairs.of_texts(examples.caption_items, len(examples.ids))
    folds = fold_windows(examples.caption_items, len(examples.ids))
    with torch.inference_mode():
        similarities = _similarities(scorer, reader, progress, device, blocks)
        whole, *parts = ranks(similarities, relevance, [WHOLE, *folds])
    return {"all": Scores.of([whole])} | ({"1K": Scores.of(parts)} if parts else {})


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
            _ticked(scorer.encode_text(reader.text(rows).to(device)), rows, tick) for rows in cuts(shape[1], blocks[1])
        ]

    def tile(visual_rows: slice, text_rows: slice) -> Numbers:
        some, others = visual[visual_rows.start // blocks[0]], text[text_rows.start // blocks[1]]
        return np.asarray(scorer.similarity(some, others).cpu().numpy())

    return Similarities(shape, blocks, tile)


def _numbers(visual: Padded, device: str) -> Padded:
    """On the device; features are stored and moved in half precision, and computed with in single."""
    return Padded(visual.values.to(device).float(), visual.lengths)


def _ticked(encoded: Any, rows: slice, tick: Callable[[int], None]) -> Any:
    tick(rows.stop - rows.start)
    return encoded
