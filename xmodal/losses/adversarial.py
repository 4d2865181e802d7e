"""Adversarial losses: a discriminator learns which domain rows are from, and the encoder that it cannot tell.

Gradients of the discriminator's loss are reversed where they leave it (Ganin and Lempitsky, ICML 2015).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class Discriminator(nn.Module):
    """Tells rows of two domains apart; gives the logit of the first."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for layer in (self.layers[0], self.layers[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, rows_ND: Tensor) -> Tensor:
        logits_N1: Tensor = self.layers(rows_ND)
        return logits_N1[:, 0]


def domain_loss(first_N: Tensor, second_M: Tensor) -> Tensor:
    """The cross entropy of both domains' logits: the negative of A3VSE's equation 4."""
    return softplus(-first_N).mean() + softplus(second_M).mean()


def reversed_gradient(rows: Tensor, strength: float) -> Tensor:
    """The same rows, whose gradient comes back times -strength."""
    reversed_rows: Tensor = _Reversal.apply(rows, strength)
    return reversed_rows


def reversal_strength(progress: float, steepness: float = 10.0) -> float:
    """Rises from 0 to almost 1 with the share of the training that is done."""
    return 2 / (1 + math.exp(-steepness * progress)) - 1


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, strength: float) -> Tensor:
        context.strength = strength
        return rows.view_as(rows)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -context.strength * gradient, None
