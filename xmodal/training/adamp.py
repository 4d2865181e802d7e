"""AdamP (Heo et al., ICLR 2021): Adam whose step does not grow the norm of weights that have a direction alone.

If a gradient is nearly orthogonal to weights w, the part along w is taken out of Adam's step p: in rows of a matrix,
else in the whole tensor; vectors and scalars get the step of Adam.

    cosine(gradient, w) < delta / sqrt(size of w), for all rows at once   →   p - w (w . p) / |w|^2 in each row

Weight decay is `wd_ratio` of itself where the step was projected. Defaults are the paper's (section 5), without
Nesterov momentum, which PCME has not.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torch.optim import Optimizer


class AdamP(Optimizer):
    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
    ) -> None:
        if min(lr, eps, weight_decay, delta, wd_ratio) < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1) and the rest not below 0: {lr=} {betas=} {eps=} {weight_decay=}")
        about = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, about | {"delta": delta, "wd_ratio": wd_ratio})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _move(parameter, parameter.grad, self.state[parameter], group)
        return loss


def _move(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    step = _adam_step(parameter, gradient, state, group)
    projected = _projected(parameter, gradient, step, group) if parameter.ndim > 1 else None
    decay = group["weight_decay"] * (1.0 if projected is None else group["wd_ratio"])
    parameter.mul_(1 - group["lr"] * decay)
    parameter.sub_(step if projected is None else projected, alpha=group["lr"])


def _adam_step(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
    state["step"] += 1
    of_mean, of_square = group["betas"]
    state["mean"].lerp_(gradient, 1 - of_mean)
    state["square"].mul_(of_square).addcmul_(gradient, gradient, value=1 - of_square)
    mean: Tensor = state["mean"] / (1 - of_mean ** state["step"])
    root: Tensor = state["square"].sqrt() / math.sqrt(1 - of_square ** state["step"])
    step: Tensor = mean / (root + group["eps"])
    return step


def _projected(parameter: Tensor, gradient: Tensor, step: Tensor, group: dict[str, Any]) -> Tensor | None:
    """The step without its part along the weights; None where the weights have a length."""
    for rows in (len(parameter), 1):
        weights, slopes, steps = (tensor.reshape(rows, -1) for tensor in (parameter, gradient, step))
        alignment = cosine_similarity(slopes, weights, dim=1, eps=group["eps"]).abs().max()
        if alignment < group["delta"] / math.sqrt(weights.shape[1]):
            directions = normalize(weights, dim=1, eps=group["eps"])
            along = (directions * steps).sum(1, keepdim=True)
            return (steps - directions * along).view_as(parameter)
    return None
