"""Uncertainty probes: how unsure a model is of inputs made ambiguous on purpose (PCME, section 4.4, figures 6 to 8).

Words become <unk>; in a picture a rectangle is erased, or taken from the next item: of pixels if the run was trained
from pictures, else of its features' grid. Positions saw beyond their place: that takes away more sharply, but less.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from xmodal.batches.batch import Padded
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.evaluation.attention_pictures import grid_network
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.features.torchvision_models import STRIDE
from xmodal.losses.gaussians import Gaussians
from xmodal.ranking.similarities import cuts
from xmodal.text.vocabularies import END, START, UNKNOWN
from xmodal.training.picture_crops import PictureReader
from xmodal.training.run_setup import Setup
from xmodal.training.validation import BLOCKS, floats, own_ranks

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # mixed further, a picture is the other one
BINS = 10  # figure 6


@dataclass(frozen=True)
class Bin:
    """Queries of about one uncertainty, and their recall in percent."""

    count: int
    least: float
    mean: float
    greatest: float
    recall: float


@dataclass(frozen=True)
class Probed:
    """Mean uncertainties after a share of each input was changed."""

    share: float
    unknown: float
    erased: float | None  # None where pictures cannot be probed
    mixed: float | None


@dataclass(frozen=True)
class Uncertainty:
    """Probes, and bins of the unchanged queries; `unprobed` says why pictures were not probed."""

    run: str
    split: str
    items: int
    captions: int
    probes: tuple[Probed, ...]
    visual_to_text: tuple[Bin, ...]
    text_to_visual: tuple[Bin, ...]
    unprobed: str | None


def probe(run: str, setup: Setup, split: str | None = None) -> Uncertainty:
    asked = open_run(run, setup, split)
    reader, scorer = asked.reader, asked.scorer
    with torch.inference_mode():
        first = scorer.encode_visual(floats(reader.visual(slice(0, 1)), setup.device))
    if not isinstance(first, Gaussians) or not first.log_sigma.isfinite().all():
        raise UserError(f"{run}: {asked.started.recipe.name} has no uncertainty to probe, as its items are points")
    grid, unprobed = _grid_or_reason(asked)
    items, captions, steps = len(reader.examples.ids), len(reader.examples.words), len(SHARES)
    total = captions * (1 + steps) + items * (1 + 2 * steps if grid else 1)
    with torch.inference_mode(), setup.progress.over("probe", total, unit="rows") as tick:
        of_pictures = partial(_uncertainties, scorer.encode_visual, setup.device, tick)
        of_texts = partial(_uncertainties, scorer.encode_text, setup.device, tick)
        plain_V, plain_T = of_pictures(_pictures(reader)), of_texts(_texts(reader, 0.0))
        probes = [Probed(0.0, _mean(plain_T), _mean(plain_V), _mean(plain_V))]
        for share in SHARES:
            unknown, erased, mixed = _mean(of_texts(_texts(reader, share))), None, None
            if grid:
                erased = _mean(of_pictures(_pictures(reader, grid, share, mixed=False)))
                mixed = _mean(of_pictures(_pictures(reader, grid, share, mixed=True)))
            probes.append(Probed(share, unknown, erased, mixed))
    both = own_ranks(scorer, reader, setup.progress, setup.device)
    of_items, of_captions = (
        tuple(recall_by_uncertainty(uncertainties, found.ranks, min(BINS, len(uncertainties))))
        for uncertainties, found in zip((plain_V, plain_T), both, strict=True)
    )
    return Uncertainty(run, asked.view.split, items, captions, tuple(probes), of_items, of_captions, unprobed)


def _grid_or_reason(asked: OpenedRun) -> tuple[tuple[int, int] | None, str | None]:
    if len(asked.reader.examples.ids) < 2:
        return None, "a mixture takes two"
    try:
        reader = asked.reader
        side = reader.crop if isinstance(reader, PictureReader) else grid_network(asked).crop // STRIDE
    except UserError as trouble:
        return None, str(trouble)
    return (side, side), None


def _uncertainties(
    encode: Callable[[Padded], Gaussians], device: str, tick: Callable[[int], None], blocks: Iterable[Padded]
) -> NDArray[np.float32]:
    found = []
    for block in blocks:
        found.append(geometric_mean_sigma(encode(block.to(device)).log_sigma).cpu().numpy())
        tick(len(block))
    return np.concatenate(found)


def _texts(reader: Reader, share: float) -> Iterator[Padded]:
    chance = Generator().manual_seed(0)
    for rows in cuts(len(reader.examples.words), BLOCKS[1]):
        yield mark_unknown(reader.text(rows), share, chance)


def _pictures(
    reader: Reader, grid: tuple[int, int] | None = None, share: float = 0.0, mixed: bool = False
) -> Iterator[Padded]:
    chance, items = Generator().manual_seed(0), len(reader.examples.ids)
    for rows in cuts(items, BLOCKS[0]):
        block = floats(reader.visual(rows), "cpu")
        if grid:
            block = _positions(block)
            if mixed:
                following = (np.arange(rows.start, rows.stop) + 1) % items
                block = mix(block, _positions(floats(reader.visual(following), "cpu")), grid, share, chance)
            else:
                block = cut_out(block, grid, share, chance)
            if isinstance(reader, PictureReader):
                block = Padded.whole(block.values.mT.reshape(-1, 1, 3, *grid))
        yield block


def _positions(visual: Padded) -> Padded:
    """Pixels (B, 1, 3, H, W) as (B, H * W, 3); features are positions already."""
    return Padded.whole(visual.values.squeeze(1).flatten(2).mT) if visual.values.ndim > 3 else visual


def _mean(values: NDArray[np.float32]) -> float:
    return float(values.mean(dtype=np.float64))


def geometric_mean_sigma(log_sigma_BD: Tensor) -> Tensor:
    return log_sigma_BD.mean(1).exp()


def mark_unknown(text: Padded, share: float, generator: Generator) -> Padded:
    """Makes a rounded `share` of each caption's words <unk>, but neither <start> nor <end>."""
    _check_share(share)
    words_BL = text.mask & (text.values != START) & (text.values != END)
    order_BL = torch.rand(words_BL.shape, generator=generator).to(words_BL.device).masked_fill(~words_BL, math.inf)
    wanted_B1 = (share * words_BL.sum(1, keepdim=True)).round()
    chosen_BL = order_BL.argsort(1).argsort(1) < wanted_B1
    return Padded(text.values.masked_fill(chosen_BL, UNKNOWN), text.lengths)


def cut_out(visual: Padded, grid: tuple[int, int], share: float, generator: Generator) -> Padded:
    """Makes a rectangle of about `share` of the grid zeros, another one in each row."""
    return mix(visual, Padded(torch.zeros_like(visual.values), visual.lengths), grid, share, generator)


def mix(visual: Padded, other: Padded, grid: tuple[int, int], share: float, generator: Generator) -> Padded:
    """Takes a rectangle of about `share` of the grid from the same row of `other`, as CutMix does."""
    _check_share(share)
    if visual.values.shape[1] != math.prod(grid) or visual.values.shape != other.values.shape:
        shapes = f"{tuple(visual.values.shape)} and {tuple(other.values.shape)}"
        raise ValueError(f"both must be grids of {grid[0]} x {grid[1]} positions, not {shapes}")
    rows_BH, columns_BW = (
        _run(torch.randint(side - taken + 1, (len(visual),), generator=generator), taken, side)
        for side, taken in zip(grid, _sides(grid, share), strict=True)
    )
    inside_BHW = rows_BH[:, :, None] & columns_BW[:, None]
    inside_BL1 = inside_BHW.flatten(1)[..., None].to(visual.values.device)
    return Padded(torch.where(inside_BL1, other.values, visual.values), visual.lengths)


def recall_by_uncertainty(
    uncertainty_Q: NDArray[np.floating], ranks_Q: NDArray[np.integer], bins: int = 10, k: int = 1
) -> list[Bin]:
    """Bins of about equal counts, the surest queries first. Ranks count from 0."""
    if uncertainty_Q.shape != ranks_Q.shape or uncertainty_Q.ndim != 1 or not 1 <= bins <= len(ranks_Q):
        raise ValueError(f"{bins} bins need as many queries, not {uncertainty_Q.shape} and {ranks_Q.shape}")
    if not np.isfinite(uncertainty_Q).all():
        raise ValueError("an uncertainty is not finite")
    order_Q = np.argsort(uncertainty_Q, kind="stable")
    found = []
    for rows in np.array_split(order_Q, bins):
        least, mean, greatest = (float(of(uncertainty_Q[rows])) for of in (np.min, np.mean, np.max))
        found.append(Bin(len(rows), least, mean, greatest, recall=100 * float((ranks_Q[rows] < k).mean())))
    return found


def _sides(grid: tuple[int, int], share: float) -> tuple[int, int]:
    """The rectangle nearest in area, and of these the one most like the grid."""
    area = share * math.prod(grid)
    return min(
        ((0, 0), *product(range(1, grid[0] + 1), range(1, grid[1] + 1))),
        key=lambda side: (abs(side[0] * side[1] - area), abs(side[0] * grid[1] - side[1] * grid[0])),
    )


def _run(starts_B: Tensor, length: int, side: int) -> Tensor:
    places_S = torch.arange(side)
    return (places_S >= starts_B[:, None]) & (places_S < starts_B[:, None] + length)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"a share is in 0..1, not {share}")
