"""Instance loss: the softmax over one class for every training item, and no more logits at a time than `CLASSES`.

Shapes: N rows, C classes, D joint width, K classes of a chunk or of those that are drawn, P processes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from xmodal.batches import distributed

CLASSES = 8192  # of a chunk: with 64 rows 2 MB of logits, and as much again for what is made of them


def instance_loss(
    rows_ND: Tensor,
    weights_CD: Tensor,
    labels_N: Tensor,
    bias_C: Tensor | None = None,
    *,
    draws: int = 0,
    is_split: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N,) each: the cross entropy over all classes, and 1 where another class has the highest logit, else 0.

    Gradients are computed chunk by chunk too, from logits that are computed anew.

    - With `draws`: both over the classes of the rows and so many others, drawn at random, by all processes alike. A
      drawn class counts for as many as it stands for.
    - Split: each process has the logits and gradients of its share of the classes alone, and the same loss.
    """
    if draws:
        classes_K, labels_N, counts_K = _drawn(labels_N, len(weights_CD), draws)
        weights_CD = weights_CD[classes_K]
        bias_C = counts_K.log() if bias_C is None else bias_C[classes_K] + counts_K.log()
    losses_N, wrong_N = _InstanceLoss.apply(rows_ND, weights_CD, labels_N, bias_C, is_split)
    return losses_N, wrong_N


def _drawn(labels_N: Tensor, classes: int, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns classes, first the rows' own; the place of each row's class among them; how many each stands for."""
    own_K, is_other_C = torch.unique(labels_N), torch.ones(classes, dtype=torch.bool)
    is_other_C[own_K.cpu()] = False
    others = is_other_C.nonzero()[:, 0]
    drawn = others[torch.randperm(len(others))[:draws]].to(own_K.device)
    counts_K = torch.ones(len(own_K) + len(drawn), device=own_K.device)
    counts_K[len(own_K) :] *= len(others) / max(len(drawn), 1)
    return torch.cat([own_K, drawn]), torch.searchsorted(own_K, labels_N), counts_K


class _InstanceLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, rows_ND: Tensor, weights_CD: Tensor, labels_N: Tensor, bias_C: Tensor | None, is_split: bool
    ) -> tuple[Tensor, Tensor]:
        own = distributed.own_share(len(weights_CD)) if is_split else slice(0, len(weights_CD))
        total_N = highest_N = rows_ND.new_full((len(rows_ND),), -torch.inf)
        first_N = torch.zeros_like(labels_N)  # the class of the highest logit
        for chunk, logits_NK in _logits(rows_ND, weights_CD, bias_C, own):
            total_N = torch.logaddexp(total_N, logits_NK.logsumexp(1))
            here_N, place_N = logits_NK.max(dim=1)
            first_N = torch.where(here_N > highest_N, chunk.start + place_N, first_N)
            highest_N = torch.maximum(highest_N, here_N)
        if is_split:
            total_N = distributed.stacked(total_N).logsumexp(0)
            place_PN = distributed.stacked(highest_N).argmax(dim=0, keepdim=True)
            first_N = distributed.stacked(first_N).gather(0, place_PN)[0]
        right_N = (rows_ND * weights_CD[labels_N]).sum(1)
        if bias_C is not None:
            right_N = right_N + bias_C[labels_N]
        context.save_for_backward(rows_ND, weights_CD, labels_N, bias_C, total_N)
        context.own, context.is_split = own, is_split
        wrong_N = (first_N != labels_N).to(total_N.dtype)
        context.mark_non_differentiable(wrong_N)
        return total_N - right_N, wrong_N

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        rows_ND, weights_CD, labels_N, bias_C, total_N = context.saved_tensors
        made = torch.zeros_like if context.is_split else torch.empty_like
        of_rows_ND, of_weights_CD = torch.zeros_like(rows_ND), made(weights_CD)
        of_bias_C = None if bias_C is None else made(bias_C)
        for chunk, logits_NK in _logits(rows_ND, weights_CD, bias_C, context.own):
            of_logits_NK = logits_NK.sub_(total_N[:, None]).exp_().mul_(gradient_N[:, None])
            here = torch.nonzero((labels_N >= chunk.start) & (labels_N < chunk.stop))[:, 0]
            of_logits_NK[here, labels_N[here] - chunk.start] -= gradient_N[here]
            of_rows_ND.addmm_(of_logits_NK, weights_CD[chunk])
            torch.mm(of_logits_NK.T, rows_ND, out=of_weights_CD[chunk])
            if of_bias_C is not None:
                of_bias_C[chunk] = of_logits_NK.sum(0)
        if context.is_split:  # each process has the whole loss, and the average over processes is taken of all weights
            of_rows_ND = distributed.stacked(of_rows_ND).sum(dim=0)
            for of_class in (of_weights_CD, of_bias_C):
                if of_class is not None:
                    of_class[context.own] *= distributed.world()
        return of_rows_ND, of_weights_CD, None, of_bias_C, None


def _logits(rows_ND: Tensor, weights_CD: Tensor, bias_C: Tensor | None, own: slice) -> Iterator[tuple[slice, Tensor]]:
    for start in range(own.start, own.stop, CLASSES):
        chunk = slice(start, min(start + CLASSES, own.stop))
        logits_NK = rows_ND @ weights_CD[chunk].T
        yield chunk, logits_NK if bias_C is None else logits_NK.add_(bias_C[chunk])
