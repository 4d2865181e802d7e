"""Uncertainty probes: how unsure a model is of inputs made ambiguous on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from xmodal.batches.batch import Padded
from xmodal.errors import UserError
from xmodal.evaluation.attention_pictures import _floats, _network
from xmodal.evaluation.run_metrics import Opened, opened
from xmodal.evaluation.uncertainty import Bin, cut_out, geometric_mean_sigma, mark_unknown, mix, recall_by_uncertainty
from xmodal.features.networks import STRIDE
from xmodal.losses.gaussians import Gaussians
from xmodal.metrics.ranks import Ranks
from xmodal.metrics.similarities import cuts
from xmodal.progress import Progress, Silence
from xmodal.training.picture_crops import PictureReader
from xmodal.training.validation import BLOCKS, own_ranks

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # a picture that is mixed further is the other one
BINS = 10  # figure 6


@dataclass(frozen=True)
class Probed:
    """Mean uncertainties where that share of each caption's words, or of each picture, was changed."""

    share: float
    unknown: float
    erased: float | None  # None where pictures cannot be probed
    mixed: float | None


@dataclass(frozen=True)
class Uncertainty:
    """Bins are of the queries as they are, with their R@1; `unprobed` is why pictures were not probed."""

    run: str
    split: str
    items: int
    captions: int
    probes: tuple[Probed, ...]
    visual_to_text: tuple[Bin, ...]
    text_to_visual: tuple[Bin, ...]
    unprobed: str | None


def probe(run: str, root: str, split: str, *, device: str = "cpu", progress: Progress | None = None) -> Uncertainty:
    """Uncertainty is the geometric mean of an item's sigmas; a probe's is the mean over all items, or all captions."""
    asked, progress = opened(run, root, split, device), progress or Silence()
    _refuse_points(asked, run, device)
    grid, unprobed = _grid_or_reason(asked)
    items, captions, steps = len(asked.reader.examples.ids), len(asked.reader.examples.words), len(SHARES)
    total = captions * (1 + steps) + items * (1 + 2 * steps * bool(grid))
    with torch.inference_mode(), progress.over("probe", total, unit="rows") as tick:
        pictures = _Side(asked.scorer.encode_visual, items, BLOCKS[0], device, tick)
        texts = _Side(asked.scorer.encode_text, captions, BLOCKS[1], device, tick)
        plain_V, plain_T = pictures.uncertainties(partial(_visual, asked)), texts.uncertainties(asked.reader.text)
        probes = [Probed(0.0, _mean(plain_T), _mean(plain_V), _mean(plain_V))]
        for share in SHARES:
            unknown = _mean(texts.uncertainties(_unknown(asked, share)))
            changes = [change(asked, grid, share) if grid else None for change in (_erased, _mixed)]
            seen = [_mean(pictures.uncertainties(change)) if change else None for change in changes]
            probes.append(Probed(share, unknown, *seen))
    both = own_ranks(asked.scorer, asked.reader, progress, device)
    of_items, of_captions = (_bins(*pair) for pair in zip((plain_V, plain_T), both, strict=True))
    return Uncertainty(run, split, items, captions, tuple(probes), of_items, of_captions, unprobed)


def _refuse_points(asked: Opened, run: str, device: str) -> None:
    with torch.inference_mode():
        first = asked.scorer.encode_visual(_visual(asked, slice(0, 1)).to(device))
    if not isinstance(first, Gaussians) or not first.log_sigma.isfinite().all():
        raise UserError(f"{run}: {asked.started.recipe.name} has no uncertainty to probe, as its items are points")


def _grid_or_reason(asked: Opened) -> tuple[tuple[int, int] | None, str | None]:
    """Rows and columns of what the run reads of a picture, or why it cannot be probed."""
    if len(asked.reader.examples.ids) < 2:
        return None, "a mixture takes two"
    if isinstance(asked.reader, PictureReader):
        return (asked.reader.crop, asked.reader.crop), None
    try:
        side = _network(asked).crop // STRIDE
    except UserError as trouble:
        return None, str(trouble)
    return (side, side), None


@dataclass(frozen=True, eq=False)
class _Side:
    """Items or captions, encoded a block at a time."""

    encode: Callable[[Padded], Gaussians]
    count: int
    block: int
    device: str
    tick: Callable[[int], None]

    def uncertainties(self, read: Callable[[slice], Padded]) -> NDArray[np.float32]:
        return np.concatenate([self._of(rows, read(rows)) for rows in cuts(self.count, self.block)])

    def _of(self, rows: slice, given: Padded) -> NDArray[np.float32]:
        found = geometric_mean_sigma(self.encode(given.to(self.device)).log_sigma)
        self.tick(rows.stop - rows.start)
        return found.cpu().numpy()


def _visual(asked: Opened, rows: slice, beyond: int = 0) -> Padded:
    """Of so many rows further on, the first ones following the last one."""
    places = (np.arange(rows.start, rows.stop) + beyond) % len(asked.reader.examples.ids)
    return _floats(asked.reader.visual(places))


def _unknown(asked: Opened, share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)
    return lambda rows: mark_unknown(asked.reader.text(rows), share, chance)


def _erased(asked: Opened, grid: tuple[int, int], share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)
    return lambda rows: _as_read(cut_out(_positions(_visual(asked, rows)), grid, share, chance), asked, grid)


def _mixed(asked: Opened, grid: tuple[int, int], share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)

    def read(rows: slice) -> Padded:
        some, others = (_positions(_visual(asked, rows, beyond)) for beyond in (0, 1))
        return _as_read(mix(some, others, grid, share, chance), asked, grid)

    return read


def _positions(visual: Padded) -> Padded:
    """Pixels (B, 1, 3, H, W) as (B, H * W, 3); features are positions already."""
    return Padded.whole(visual.values.squeeze(1).flatten(2).mT) if visual.values.ndim > 3 else visual


def _as_read(positions: Padded, asked: Opened, grid: tuple[int, int]) -> Padded:
    pixels = isinstance(asked.reader, PictureReader)
    return Padded.whole(positions.values.mT.reshape(-1, 1, 3, *grid)) if pixels else positions


def _mean(values: NDArray[np.float32]) -> float:
    return float(values.mean(dtype=np.float64))


def _bins(uncertainties: NDArray[np.float32], found: Ranks) -> tuple[Bin, ...]:
    return tuple(recall_by_uncertainty(uncertainties, found.ranks, min(BINS, len(uncertainties))))
