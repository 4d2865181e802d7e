"""Triplet losses: right pairs should be nearer than the wrong partners of their anchors by a margin (Two-Branch).

The K triplets of the largest loss of a pair have the K nearest wrong partners of its anchor, whatever the pair's own
distance: one choice an anchor serves all of its pairs, and a table of triplets is never built.

Shapes: A anchors, G rows of the gallery that they are compared with, N right pairs, K wrong rows an anchor, D width.
"""

import torch
from torch import Tensor

from xmodal.losses.ranking import Reduction


def squared_distances(anchors_AD: Tensor, gallery_GD: Tensor, offset: float = 0.0) -> Tensor:
    """(A, G), by one product: differences would be (A, G, D)."""
    lengths_G = gallery_GD.square().sum(1) + offset
    products_AG = torch.addmm(lengths_G, anchors_AD, gallery_GD.T, alpha=-2)
    return products_AG.add_(anchors_AD.square().sum(1, keepdim=True))


def triplet_loss(
    squared_AG: Tensor, right_N2: Tensor, wrong_AG: Tensor, margin: float, most: int | None, reduction: Reduction
) -> Tensor:
    """Sums up, or averages, the shortfall of right pairs from beating the `most` nearest wrong rows by the margin.

    Pairs are (anchor, row of the gallery). Triplets without a shortfall count in the average. It is 0 without triplets.
    """
    anchors_N, rows_N = right_N2.unbind(1)
    with torch.no_grad():
        kept = min(most or squared_AG.shape[1], squared_AG.shape[1])
        nearest_AK = squared_AG.masked_fill(~wrong_AG, torch.inf).topk(kept, largest=False, sorted=False).indices
        is_wrong_AK = wrong_AG.gather(1, nearest_AK)  # not where an anchor has fewer
    wrong_AK, right_N = _root(squared_AG.gather(1, nearest_AK)), _root(squared_AG[anchors_N, rows_N])
    lacking_NK = (margin + right_N[:, None] - wrong_AK[anchors_N]).clamp(min=0)
    is_triplet_NK = is_wrong_AK[anchors_N]
    total = lacking_NK.masked_fill(~is_triplet_NK, 0).sum()
    return total / is_triplet_NK.sum().clamp(min=1) if reduction == "mean" else total


def farthest(squared_AG: Tensor, right_AG: Tensor) -> Tensor:
    """(N, 2): the farthest right row of every anchor that has one."""
    rows_A = squared_AG.detach().masked_fill(~right_AG, -torch.inf).argmax(1)
    anchors_N = right_AG.any(1).nonzero()[:, 0]
    return torch.stack([anchors_N, rows_A[anchors_N]], dim=1)


def _root(squared: Tensor) -> Tensor:
    """Takes roots; below a square that is all rounding, distances are equal and have no gradient."""
    return squared.clamp(min=torch.finfo(squared.dtype).eps).sqrt()
