"""Validation: recalls of a split."""

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from xmodal.batches.batch import Padded
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.metrics.protocols import NO_LABELS, Gallery, Labels, Scores, recall_by_gallery
from xmodal.metrics.ranks import Both, ranks
from xmodal.metrics.similarities import Numbers, Similarities, cuts
from xmodal.models import Scorer
from xmodal.progress import Progress
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
        similarities = compared(scorer, reader, progress, device, blocks)
        return recall_by_gallery(similarities, gallery_of(reader.examples), labels)


def own_ranks(scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str = "cpu") -> Both:
    with torch.inference_mode():
        return ranks(compared(scorer, reader, progress, device), gallery_of(reader.examples).own)[0]


def gallery_of(examples: Examples) -> Gallery:
    return Gallery(examples.ids, examples.caption_ids, examples.caption_items)


def compared(
    scorer: Scorer[Any, Any], reader: Reader, progress: Progress, device: str, blocks: tuple[int, int] = BLOCKS
) -> Similarities:
    """Encodes both sides once, and computes tiles when asked."""
    if isinstance(scorer, nn.Module):
        scorer.eval()
    if isinstance(reader, PixelReader):  # as many pictures at once, not items
        blocks = max(1, blocks[0] // reader.pictures_of_item), blocks[1]
    shape = len(reader.examples.ids), len(reader.examples.words)
    with progress.over("encode", sum(shape), unit="rows") as tick:
        visual, text = [], []
        for rows in cuts(shape[0], blocks[0]):
            visual.append(scorer.encode_visual(floats(reader.visual(rows), device)))
            tick(rows.stop - rows.start)
        for rows in cuts(shape[1], blocks[1]):
            read = reader.text(rows)
            text.append(
                scorer.encode_text(floats(read, device) if read.values.is_floating_point() else read.to(device))
            )
            tick(rows.stop - rows.start)

    def tile(visual_rows: slice, text_rows: slice) -> Numbers:
        some, others = visual[visual_rows.start // blocks[0]], text[text_rows.start // blocks[1]]
        return np.asarray(scorer.similarity(some, others).cpu().numpy())

    return Similarities(shape, blocks, tile)


def floats(features: Padded, device: str) -> Padded:
    """Moves features in half precision, as stored; makes them single there."""
    return Padded(features.values.to(device).float(), features.lengths)
