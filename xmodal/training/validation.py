"""Validation: recalls of a split."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from xmodal.batches.batch import Padded
from xmodal.batches.examples import Examples
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.batches.phrase_loader import vectors
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.metrics.phrase_localisation import FIRST, localise
from xmodal.metrics.protocols import NO_LABELS, Gallery, Labels, Scores, recall_by_gallery
from xmodal.models import ComparingTexts, MeasuringDistances, Observing, Scorer
from xmodal.progress import Progress
from xmodal.ranking.ranks import Both, ranks
from xmodal.ranking.similarities import Numbers, Similarities, cuts
from xmodal.recipes import Recipe, View
from xmodal.training.picture_crops import PixelReader

BLOCKS = (256, 1024)  # visual rows and texts encoded and compared at once


def check_device(device: str) -> None:
    asked = None
    with suppress(RuntimeError):
        asked = torch.device(device)
    if asked is None or asked.type not in ("cpu", "cuda"):
        raise UserError(f"no device {device!r}; there are: cpu, cuda")
    if asked.type == "cuda" and (asked.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {device!r}: torch sees {torch.cuda.device_count()} GPUs here; cpu always works")


def measure(
    scorer: Scorer[Any, Any],
    reader: Reader,
    progress: Progress,
    device: str = "cpu",
    blocks: tuple[int, int] = BLOCKS,
    labels: Labels = NO_LABELS,
) -> dict[str, Scores]:
    """Computes the metrics of ranks, by gallery."""
    with torch.inference_mode():
        similarities = encode(scorer, reader, progress, device, blocks).similarities
        return recall_by_gallery(similarities, gallery_of(reader.examples), labels)


def refuse_common(view: View, train: Sequence[str], recipe: Recipe, validation: Sequence[str]) -> None:
    if common := sorted(set(train).intersection(validation)):
        raise UserError(
            f"recipe {recipe.name!r}: {len(common):,} items are in both {view.split!r} and "
            f"{recipe.validation.split!r}, such as {common[0]!r}: validate on items that are not trained on"
        )


def measure_phrases(
    scorer: Scorer[Any, Any], features: PhraseFeatures, progress: Progress, device: str = "cpu"
) -> dict[str, float]:
    """Computes the recalls of localisation."""
    scores_PK = proposal_scores(scorer, features, progress, device)
    found = localise(features.task, lambda rows: scores_PK[rows])
    return {f"R@{first}": found.recall(first) for first in FIRST}


def proposal_scores(
    scorer: Scorer[Any, Any], features: PhraseFeatures, progress: Progress, device: str = "cpu"
) -> Numbers:
    """(P, K): how close each phrase is to the proposals of its picture, and zeros where there are none."""
    if isinstance(scorer, nn.Module):
        scorer.eval()
    found_PK = np.zeros((len(features), features.task.most), np.float32)
    if isinstance(scorer, Observing):
        visual = (vectors(features.regions(numbers), device) for _, numbers in _by_picture(features))
        scorer.observe(visual, (vectors(features.text(rows), device) for rows, _ in _by_picture(features)))
    with torch.inference_mode(), progress.over("localise", len(features), unit="phrases") as tick:
        for rows, numbers in _by_picture(features):
            encoded = scorer.encode_visual(vectors(features.regions(numbers), device))
            scores_KP = scorer.similarity(encoded, scorer.encode_text(vectors(features.text(rows), device)))
            found_PK[rows, : len(numbers)] = scores_KP.T.float().cpu().numpy()
            tick(rows.stop - rows.start)
    return found_PK


def _by_picture(features: PhraseFeatures) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """The phrases of each picture, and the numbers of its proposals; only where there are both."""
    starts = np.searchsorted(features.pictures_P, np.arange(len(features.task.starts_V1))).tolist()
    for rows, (first, last) in zip(pairwise(starts), pairwise(features.task.starts_V1.tolist()), strict=True):
        if rows[0] < rows[1] and first < last:
            yield slice(*rows), np.arange(first, last)


def refuse_other_scores(scorer: Scorer[Any, Any], visual: Padded, text: Padded) -> None:
    """Refuses a model whose scores are not a row for each item and a column for each text."""
    if isinstance(scorer, Observing):
        scorer.observe(iter([visual]), iter([text]))
    with torch.inference_mode():
        scores = scorer.similarity(scorer.encode_visual(visual), scorer.encode_text(text))
    shape, wanted = tuple(getattr(scores, "shape", ())), (len(visual), len(text))
    if shape != wanted:
        turned = ", its transpose" if shape == wanted[::-1] else ""
        raise UserError(
            f"similarity() of {type(scorer).__name__} gives {shape}{turned}, for {wanted[0]} visual and {wanted[1]} "
            f"text rows: return {wanted}; `xmodal check` tries what else a model must keep"
        )


def own_ranks(scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str = "cpu") -> Both:
    with torch.inference_mode():
        return ranks(encode(scorer, reader, progress, device).similarities, gallery_of(reader.examples).own)[0]


def gallery_of(examples: Examples) -> Gallery:
    return Gallery(examples.ids, examples.caption_ids, examples.caption_items)


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Both sides of a split, in blocks, compared in tiles when asked."""

    scorer: Scorer[Any, Any]
    blocks: tuple[int, int]
    shape: tuple[int, int]
    visual: list[Any]
    text: list[Any]

    @property
    def similarities(self) -> Similarities:
        def tile(visual_rows: slice, text_rows: slice) -> Numbers:
            some, others = self.visual[visual_rows.start // self.blocks[0]], self._texts(text_rows)
            return np.asarray(self.scorer.similarity(some, others).cpu().numpy())

        return Similarities(self.shape, self.blocks, tile)

    @property
    def distances(self) -> Similarities:
        """Euclidean distances in place of similarities, of a scorer that measures them."""
        scorer = self.scorer
        assert isinstance(scorer, MeasuringDistances)

        def tile(visual_rows: slice, text_rows: slice) -> Numbers:
            some = self.visual[visual_rows.start // self.blocks[0]]
            return np.asarray(scorer.distance(some, self._texts(text_rows)).cpu().numpy())

        return Similarities(self.shape, self.blocks, tile)

    @property
    def text_similarities(self) -> Similarities | None:
        """Captions with captions, if the scorer compares them."""
        if not isinstance(scorer := self.scorer, ComparingTexts):
            return None

        def tile(queries: slice, gallery: slice) -> Numbers:
            return np.asarray(scorer.text_similarity(self._texts(queries), self._texts(gallery)).cpu().numpy())

        return Similarities((self.shape[1], self.shape[1]), (self.blocks[1], self.blocks[1]), tile)

    def _texts(self, rows: slice) -> Any:
        return self.text[rows.start // self.blocks[1]]


def encode(
    scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str, blocks: tuple[int, int] = BLOCKS
) -> EncodedSplit:
    """Encodes both sides once."""
    if isinstance(scorer, nn.Module):
        scorer.eval()
    if isinstance(reader, PixelReader):  # as many pictures at once, not items
        blocks = max(1, blocks[0] // reader.pictures_of_item), blocks[1]
    shape = len(reader.examples.ids), len(reader.examples.words)
    visual_rows, text_rows = (list(cuts(length, size)) for length, size in zip(shape, blocks, strict=True))

    def visual_of(rows: slice) -> Padded:
        return floats(reader.visual(rows), device)

    def text_of(rows: slice) -> Padded:
        return on_device(reader.text(rows), device)

    if isinstance(scorer, Observing):
        scorer.observe(map(visual_of, visual_rows), map(text_of, text_rows))
    found = EncodedSplit(scorer, blocks, shape, [], [])
    with progress.over("encode", sum(shape), unit="rows") as tick:
        for rows in visual_rows:
            found.visual.append(scorer.encode_visual(visual_of(rows)))
            tick(rows.stop - rows.start)
        for rows in text_rows:
            found.text.append(scorer.encode_text(text_of(rows)))
            tick(rows.stop - rows.start)
    return found


def floats(features: Padded, device: str) -> Padded:
    """Moves features in half precision, as stored; makes them single there."""
    return Padded(features.values.to(device).float(), features.lengths)


def on_device(text: Padded, device: str) -> Padded:
    """Moves texts, of which vectors become single there."""
    return floats(text, device) if text.values.is_floating_point() else text.to(device)
