"""Uncertainty: sigmas as one number, inputs made ambiguous on purpose, and recall by uncertainty (PCME, section 4.4).

In cached features, positions of a grid have seen beyond their own place: a rectangle there takes away more sharply, but
less, than one in the picture.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from xmodal.batches.batch import Padded
from xmodal.text.vocabularies import END, START, UNKNOWN


@dataclass(frozen=True)
class Bin:
    """Queries of about one uncertainty, and their recall in percent."""

    count: int
    least: float
    mean: float
    greatest: float
    recall: float


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
    """The rectangle nearest in area to the share, and of these the one most like the grid."""
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
