"""Gaussians with a diagonal covariance, and similarities of two of them (docs/models.md#pcme-scores).

Scores are greater where items are closer. What PCME's official code has wrong stays available as `official_…`;
constants that no ranking sees are left out as there. The model has `match_probability`, which takes learned numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from xmodal.ranking.similarities import cuts

OfMeans = Literal["mean", "l2", "min", "max"]
OfSigmas = Literal[
    "elk", "bhattacharyya", "js", "wasserstein", "kl", "reverse_kl", "official_kl", "official_reverse_kl"
]
OfSamples = Literal["matmul_sum", "matmul_max", "average_l2", "match_probability"]
Distance = Literal[OfMeans, OfSigmas, OfSamples]
MEANS, SAMPLES = get_args(OfMeans), get_args(OfSamples)

AT_ONCE = 16  # visual rows whose samples are compared in one step


@dataclass(frozen=True, eq=False)
class Gaussians:
    mean: Tensor  # (B, D)
    log_sigma: Tensor  # (B, D)
    samples: Tensor | None = None  # (B, J, D), where a score reads them

    @classmethod
    def points(cls, mean_BD: Tensor) -> "Gaussians":
        """Sigmas of zero."""
        return cls(mean_BD, torch.full_like(mean_BD, -torch.inf))

    @property
    def drawn(self) -> Tensor:
        if self.samples is None:
            raise ValueError("these items were encoded without samples, which the score compares")
        return self.samples

    def at(self, noise: Tensor) -> Tensor:
        """The samples that standard normal noise stands for: (B, J, D), or (J, D) for all items."""
        return self.mean[:, None] + noise * self.log_sigma.exp()[:, None]


def floats_per_item(distance: Distance, width: int, samples: int) -> int:
    """The numbers that a gallery keeps of one item, from which its score and its uncertainty are read."""
    return (2 + samples * (distance in SAMPLES)) * width


def similarity(visual: Gaussians, text: Gaussians, distance: Distance) -> Tensor:
    """(V, T)"""
    if distance not in _SIMILARITIES:
        raise ValueError(f"{distance!r} cannot be told from two Gaussians; these can: {', '.join(_SIMILARITIES)}")
    return _SIMILARITIES[distance](visual, text)


def compare_samples(visual: Gaussians, text: Gaussians, score: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """(V, T): `score` of (v, J, D) and (T, J, D), a few visual rows at a time."""
    steps = cuts(len(visual.mean), AT_ONCE)
    return torch.cat([score(visual.drawn[rows], text.drawn) for rows in steps])


def squared_distances(first_ND: Tensor, second_MD: Tensor) -> Tensor:
    """(N, M), by products, because (N, M, D) would not fit."""
    squares_N, squares_M = (torch.einsum("nd,nd->n", side, side) for side in (first_ND, second_MD))
    squares_NM = squares_N[:, None] + squares_M
    return (squares_NM - 2 * first_ND @ second_MD.T).clamp(min=0)


def squared_between_samples(visual_VJD: Tensor, text_TJD: Tensor) -> Tensor:
    squares = squared_distances(visual_VJD.flatten(0, 1), text_TJD.flatten(0, 1))
    return squares.view(*visual_VJD.shape[:2], *text_TJD.shape[:2])


def _greatest_product(visual_VJD: Tensor, text_TJD: Tensor) -> Tensor:
    return torch.einsum("vjd,tkd->vjtk", visual_VJD, text_TJD).amax((1, 3))


def _average_l2(visual_VJD: Tensor, text_TJD: Tensor) -> Tensor:
    return -squared_between_samples(visual_VJD, text_TJD).sqrt().mean((1, 3))


def _squared_gaps(visual: Gaussians, text: Gaussians, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.stack([reduce((mean_D - text.mean).square()) for mean_D in visual.mean])


def _relative_squares(first: Gaussians, second: Gaussians) -> Tensor:
    """sum (d^2 + s^2) / t^2, by products."""
    precision_MD = (-2 * second.log_sigma).exp()
    squares_ND = first.mean.square() + (2 * first.log_sigma).exp()
    own_M = (second.mean.square() * precision_MD).sum(1)
    return squares_ND @ precision_MD.T - 2 * first.mean @ (second.mean * precision_MD).T + own_M


def _kl(first: Gaussians, second: Gaussians, sign: int) -> Tensor:
    log_ratios_NM = second.log_sigma.sum(1) - first.log_sigma.sum(1)[:, None]
    return -_relative_squares(first, second) - sign * 2 * log_ratios_NM


def _joint(visual: Gaussians, text: Gaussians) -> tuple[Tensor, Tensor]:
    """sum d^2 / (s^2 + t^2) and sum log(s^2 + t^2), a visual row at a time."""
    text_TD = (2 * text.log_sigma).exp()
    gaps, volumes = [], []
    for mean_D, log_sigma_D in zip(visual.mean, visual.log_sigma, strict=True):
        variance_TD = (2 * log_sigma_D).exp() + text_TD
        gaps.append(((mean_D - text.mean).square() / variance_TD).sum(1))
        volumes.append(variance_TD.log().sum(1))
    return torch.stack(gaps), torch.stack(volumes)


def _elk(visual: Gaussians, text: Gaussians) -> Tensor:
    gap_VT, volume_VT = _joint(visual, text)
    return -0.5 * (gap_VT + volume_VT)


def _bhattacharyya(visual: Gaussians, text: Gaussians) -> Tensor:
    gap_VT, volume_VT = _joint(visual, text)
    own_VT = visual.log_sigma.sum(1)[:, None] + text.log_sigma.sum(1)
    return -0.25 * (gap_VT + 2 * (volume_VT - own_VT - visual.mean.shape[1] * math.log(2)))


_SIMILARITIES: dict[Distance, Callable[[Gaussians, Gaussians], Tensor]] = {
    "mean": lambda v, t: v.mean @ t.mean.T,
    "l2": lambda v, t: -squared_distances(v.mean, t.mean),
    "min": lambda v, t: -_squared_gaps(v, t, lambda gaps_TD: gaps_TD.amin(1)),
    "max": lambda v, t: -_squared_gaps(v, t, lambda gaps_TD: gaps_TD.amax(1)),
    "elk": _elk,
    "bhattacharyya": _bhattacharyya,
    "js": lambda v, t: -_relative_squares(v, t) - _relative_squares(t, v).T,
    "wasserstein": lambda v, t: (
        -squared_distances(v.mean, t.mean) - squared_distances(v.log_sigma.exp(), t.log_sigma.exp())
    ),
    "kl": lambda v, t: _kl(v, t, 1),
    "reverse_kl": lambda v, t: _kl(t, v, 1).T,
    "official_kl": lambda v, t: _kl(v, t, -1),
    "official_reverse_kl": lambda v, t: _kl(t, v, -1).T,
    "matmul_sum": lambda v, t: v.drawn.sum(1) @ t.drawn.sum(1).T,
    "matmul_max": lambda v, t: compare_samples(v, t, _greatest_product),
    "average_l2": lambda v, t: compare_samples(v, t, _average_l2),
}
