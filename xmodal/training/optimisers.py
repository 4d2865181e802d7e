"""Optimisers of a phase: which parameters move, by which rule, and how fast."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from xmodal.errors import UserError
from xmodal.recipes import Cosine, Optimiser, Phase, Plateau, Relative, Step
from xmodal.training.adamp import AdamP

RISE = 1e-4  # the share by which an rsum must beat the best to be a rise, as in torch's ReduceLROnPlateau


def rate(optimiser: Optimiser, epoch: int, rsums: Sequence[float]) -> float:
    """The learning rate of an epoch, from 0, after validations with these rsums."""
    first = optimiser.learning_rate
    match optimiser.schedule:
        case Step(after, factor):
            return first * factor ** sum(epoch >= passed for passed in after)
        case Cosine(epochs):
            return first * (1 + math.cos(math.pi * min(epoch, epochs) / epochs)) / 2
        case Plateau() as plateau:
            return _after_plateaus(first, plateau, rsums)
        case None:
            return first


def are_weighed(terms: Mapping[str, Tensor], weights: Mapping[str, float | Relative]) -> bool:
    """Whether each term that has a gradient is weighed; one without may be in the log alone."""
    return weights.keys() <= terms.keys() and not any(
        terms[name].requires_grad for name in terms.keys() - weights.keys()
    )


def check_terms(terms: Mapping[str, Tensor], weights: Mapping[str, float | Relative]) -> None:
    if not are_weighed(terms, weights):
        raise UserError(
            f"the objective has the terms {', '.join(sorted(terms))}, but a phase weighs {', '.join(sorted(weights))}: "
            "weigh each term by its name"
        )


def total(terms: Mapping[str, Tensor], weights: Mapping[str, float | Relative]) -> Tensor:
    """The weighted sum; a relative weight is a constant to the gradient."""
    check_terms(terms, weights)
    return torch.stack(
        [_weight(terms, name, weights[name]) * term for name, term in terms.items() if name in weights]
    ).sum()


def check(model: nn.Module, phase: Phase) -> None:
    """Refuses patterns that match no parameter; names of the trunk are not known yet."""
    patterns = (*phase.frozen, *phase.optimiser.unclipped, *dict(phase.optimiser.multipliers))
    _refuse_unmatched(model, (pattern for pattern in patterns if not pattern.startswith("trunk")))
    if not phase.pixels and all(_matches(name, phase.frozen) for name, _ in model.named_parameters()):
        raise UserError(f"frozen={','.join(phase.frozen)} leaves no parameter to train")


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    _refuse_unmatched(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not _matches(name, patterns))
        parameter.grad = None  # else it counts in the clipped norm, but not in a run that goes on here


def evaluate_frozen(model: nn.Module) -> None:
    for module in model.modules():
        moving = [parameter.requires_grad for parameter in module.parameters()]
        if moving and not any(moving):
            module.eval()


def build(model: nn.Module, optimiser: Optimiser) -> Optimizer:
    rule, kind = optimiser.rule, cast(Any, Adam)
    settings: dict[str, Any] = {"lr": optimiser.learning_rate, "weight_decay": optimiser.weight_decay}
    match rule:
        case "adam" | "amsgrad":
            settings["amsgrad"] = rule == "amsgrad"
        case "adamp":
            kind = AdamP
        case "sgd" | "nesterov":
            # fused: else a step holds two more copies of the largest weights
            kind, settings["fused"] = SGD, True
            settings["momentum"], settings["nesterov"] = optimiser.momentum, rule == "nesterov"
    return _uncompiled(kind)(_groups(model, optimiser), **settings)


@cache
def _uncompiled(rule: Any) -> Callable[..., Optimizer]:
    """The rule without torch's compiler, whose import takes seconds and 150 MB."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(rule, name)) for name in names}
    methods["step"] = torch.no_grad()(inspect.unwrap(rule.step))
    uncompiled: Callable[..., Optimizer] = type(rule.__name__, (rule,), methods)
    return uncompiled


def clip(model: nn.Module, optimiser: Optimiser) -> Tensor:
    """Returns the norm before clipping."""
    clipped = [p for name, p in model.named_parameters() if not _matches(name, optimiser.unclipped)]
    return nn.utils.clip_grad_norm_(clipped, optimiser.clip_norm or math.inf)


def _groups(model: nn.Module, optimiser: Optimiser) -> list[dict[str, Any]]:
    _refuse_unmatched(model, [*optimiser.unclipped, *dict(optimiser.multipliers)])
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found = (factor for pattern, factor in optimiser.multipliers if fnmatchcase(name, pattern))
            groups.setdefault(next(found, 1.0), []).append(parameter)
    return [{"params": parameters, "multiplier": multiplier} for multiplier, parameters in groups.items()]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _weight(terms: Mapping[str, Tensor], name: str, weight: float | Relative) -> float | Tensor:
    if not isinstance(weight, Relative):
        return weight
    term = terms[name].detach()
    return weight.factor * torch.where(term == 0, 0.0, terms[weight.to].detach() / term)  # what is off stays so


def _after_plateaus(first: float, plateau: Plateau, rsums: Sequence[float]) -> float:
    best, waited, now = -math.inf, 0, first
    for rsum in rsums:
        best, waited = (rsum, 0) if rsum > best * (1 + RISE) else (best, waited + 1)
        if waited > plateau.patience:  # also as torch counts
            now, waited = max(now * plateau.factor, plateau.minimum), 0
    return now


def _refuse_unmatched(model: nn.Module, patterns: Iterable[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(f"no parameter is named {pattern!r}; there are: {', '.join(names)}")
