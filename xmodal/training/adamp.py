"""AdamP (Heo et al., ICLR 2021): Adam whose step does not grow the norm of weights that have a direction alone.

If a gradient is nearly orthogonal to weights w, the part along w is taken out of Adam's step p: in rows of a matrix,
else in the whole tensor; vectors and scalars get the step of Adam.

    cosine(gradient, w) < delta / sqrt(size of w), for all rows at once   →   p - w (w . p) / |w|^2 in each row

Weight decay is RATIO of itself where the step was projected. The numbers are PCME's (docs/models.md#pcme-training), and
there is no Nesterov momentum.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torch.optim import Optimizer

BETAS, EPSILON, DELTA, RATIO = (0.9, 0.999), 1e-8, 0.1, 0.1


class AdamP(Optimizer):
    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float = 0.0) -> None:
        if min(lr, weight_decay) < 0:
            raise ValueError(f"neither may be below 0: {lr=} {weight_decay=}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _move(parameter, parameter.grad, self.state[parameter], group["lr"], group["weight_decay"])


def _move(parameter: Tensor, gradient: Tensor, state: dict[str, Any], rate: float, decay: float) -> None:
    step = _adam_step(parameter, gradient, state)
    projected = _projected(parameter, gradient, step) if parameter.ndim > 1 else None
    parameter.mul_(1 - rate * (decay if projected is None else decay * RATIO))
    parameter.sub_(step if projected is None else projected, alpha=rate)


def _adam_step(parameter: Tensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
    state["step"] += 1
    of_mean, of_square = BETAS
    state["mean"].lerp_(gradient, 1 - of_mean)
    state["square"].mul_(of_square).addcmul_(gradient, gradient, value=1 - of_square)
    mean: Tensor = state["mean"] / (1 - of_mean ** state["step"])
    root: Tensor = state["square"].sqrt() / math.sqrt(1 - of_square ** state["step"])
    step: Tensor = mean / (root + EPSILON)
    return step


def _projected(parameter: Tensor, gradient: Tensor, step: Tensor) -> Tensor | None:
    """The step without its part along the weights; None where the weights have a length."""
    for rows in (len(parameter), 1):
        weights, slopes, steps = (tensor.reshape(rows, -1) for tensor in (parameter, gradient, step))
        alignment = cosine_similarity(slopes, weights, dim=1, eps=EPSILON).abs().max()
        if alignment < DELTA / math.sqrt(weights.shape[1]):
            directions = normalize(weights, dim=1, eps=EPSILON)
            along = (directions * steps).sum(1, keepdim=True)
            return (steps - directions * along).view_as(parameter)
    return None
