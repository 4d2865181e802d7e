"""Instance loss: the softmax over one class for every training item, and no more logits at a time than `CLASSES`.

Shapes: N rows, C classes, D joint width, K classes of a chunk.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CLASSES = 8192  # of a chunk: with 64 rows 2 MB of logits, and as much again for what is made of them


def instance_loss(
    rows_ND: Tensor, weights_CD: Tensor, labels_N: Tensor, bias_C: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(N,) each: the cross entropy over all classes, and 1 where another class has the highest logit, else 0.

    Gradients are computed chunk by chunk too, from logits that are computed anew.
    """
    losses_N, wrong_N = _InstanceLoss.apply(rows_ND, weights_CD, labels_N, bias_C)
    return losses_N, wrong_N


class _InstanceLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, rows_ND: Tensor, weights_CD: Tensor, labels_N: Tensor, bias_C: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total_N = highest_N = rows_ND.new_full((len(rows_ND),), -torch.inf)
        first_N = torch.zeros_like(labels_N)  # the class of the highest logit
        for chunk, logits_NK in _logits(rows_ND, weights_CD, bias_C):
            total_N = torch.logaddexp(total_N, logits_NK.logsumexp(1))
            here_N, place_N = logits_NK.max(dim=1)
            first_N = torch.where(here_N > highest_N, chunk.start + place_N, first_N)
            highest_N = torch.maximum(highest_N, here_N)
        right_N = (rows_ND * weights_CD[labels_N]).sum(1)
        if bias_C is not None:
            right_N = right_N + bias_C[labels_N]
        context.save_for_backward(rows_ND, weights_CD, labels_N, bias_C, total_N)
        wrong_N = (first_N != labels_N).to(total_N.dtype)
        context.mark_non_differentiable(wrong_N)
        return total_N - right_N, wrong_N

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        rows_ND, weights_CD, labels_N, bias_C, total_N = context.saved_tensors
        of_rows_ND, of_weights_CD = torch.zeros_like(rows_ND), torch.empty_like(weights_CD)
        of_bias_C = None if bias_C is None else torch.empty_like(bias_C)
        for chunk, logits_NK in _logits(rows_ND, weights_CD, bias_C):
            of_logits_NK = logits_NK.sub_(total_N[:, None]).exp_().mul_(gradient_N[:, None])
            here = torch.nonzero((labels_N >= chunk.start) & (labels_N < chunk.stop))[:, 0]
            of_logits_NK[here, labels_N[here] - chunk.start] -= gradient_N[here]
            of_rows_ND.addmm_(of_logits_NK, weights_CD[chunk])
            torch.mm(of_logits_NK.T, rows_ND, out=of_weights_CD[chunk])
            if of_bias_C is not None:
                of_bias_C[chunk] = of_logits_NK.sum(0)
        return of_rows_ND, of_weights_CD, None, of_bias_C


def _logits(rows_ND: Tensor, weights_CD: Tensor, bias_C: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(weights_CD), CLASSES):
        chunk = slice(start, start + CLASSES)
        logits_NK = rows_ND @ weights_CD[chunk].T
        yield chunk, logits_NK if bias_C is None else logits_NK.add_(bias_C[chunk])
