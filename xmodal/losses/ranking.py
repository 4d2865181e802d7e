"""Ranking losses: every pair should beat each wrong partner by a margin (VSE++, PVSE).

Shapes: V visual rows, T text rows, P pairs, D joint width.
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
    visual_P, text_P = positives_P2.T
    right_VT = torch.zeros_like(similarity_VT, dtype=torch.bool)
    right_VT[visual_P, text_P] = True
    pair_P1 = similarity_VT[visual_P, text_P, None]
    of_visual_PT = (margin + similarity_VT[visual_P] - pair_P1).clamp(min=0).masked_fill(right_VT[visual_P], 0)
    of_text_PV = (margin + similarity_VT.T[text_P] - pair_P1).clamp(min=0).masked_fill(right_VT.T[text_P], 0)
    if negatives == "hardest":
        of_visual_PT, of_text_PV = of_visual_PT.max(dim=1).values, of_text_PV.max(dim=1).values
    return reduced(of_visual_PT, reduction) + reduced(of_text_PV, reduction)


def reduced(values: Tensor, reduction: Reduction) -> Tensor:
    return values.mean() if reduction == "mean" else values.sum()
