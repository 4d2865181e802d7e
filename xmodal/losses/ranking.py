"""Ranking losses: every pair should beat each wrong partner by a margin (VSE++, PVSE), or one chosen one (Dual-Path).

Shapes: V visual rows, T text rows, P pairs, D joint width; Q rows of either side that ask the G of the other; N rows of
a batch, H half of them.
"""

from typing import Literal

import torch
from torch import Tensor

Negatives = Literal["hardest", "all"]
Reduction = Literal["mean", "sum"]


def order_similarity(visual_VD: Tensor, text_TD: Tensor) -> Tensor:
    """How far a text is from being more general than a visual row; a row at a time, as (V, T, D) would not fit."""
    rows = [-torch.linalg.vector_norm((text_TD - visual_D).clamp(min=0), dim=1) for visual_D in visual_VD]
    return torch.stack(rows)


def ranking_loss(
    similarity_VT: Tensor, positives_P2: Tensor, margin: float, negatives: Negatives, reduction: Reduction
) -> Tensor:
    """The shortfall of every pair in its visual row and in its text's column."""
    of_visual = shortfall(similarity_VT, positives_P2, margin, negatives, reduction)
    return of_visual + shortfall(similarity_VT.T, positives_P2.flip(1), margin, negatives, reduction)


def shortfall(
    similarity_QG: Tensor, positives_P2: Tensor, margin: float, negatives: Negatives, reduction: Reduction
) -> Tensor:
    """Sums up, or averages, how far each pair is from beating the wrong partners in its row by the margin."""
    query_P, right_P = positives_P2.T
    right_QG = torch.zeros_like(similarity_QG, dtype=torch.bool)
    right_QG[query_P, right_P] = True
    pair_P1 = similarity_QG[query_P, right_P, None]
    lacking_PG = (margin + similarity_QG[query_P] - pair_P1).clamp(min=0).masked_fill(right_QG[query_P], 0)
    return reduced(lacking_PG.max(dim=1).values if negatives == "hardest" else lacking_PG, reduction)


def reduced(values: Tensor, reduction: Reduction) -> Tensor:
    return values.mean() if reduction == "mean" else values.sum()


def hinges(visual_ND: Tensor, text_ND: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """(H,) each: how far each pair is from beating the second half's text, and its picture, by the margin."""
    first, second = halves(len(visual_ND))
    pairs_H = (visual_ND[first] * text_ND[first]).sum(1)
    of_pictures_H = margin - pairs_H + (visual_ND[first] * text_ND[second]).sum(1)
    of_texts_H = margin - pairs_H + (text_ND[first] * visual_ND[second]).sum(1)
    return of_pictures_H.clamp(min=0), of_texts_H.clamp(min=0)


def halves(rows: int) -> tuple[slice, slice]:
    """The pairs and the negatives of a batch; the last of an odd number is neither."""
    return slice(0, rows // 2), slice(rows // 2, rows // 2 * 2)
