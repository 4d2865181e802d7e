"""AdamP against steps of the published optimiser, its definition written slowly, and what the trainer asks of it."""

import math
from io import BytesIO

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.training.adamp import AdamP

Array = NDArray[np.float64]


def test_ten_steps_are_those_of_the_published_optimiser() -> None:
    official = {key: torch.from_numpy(np.asarray(value)) for key, value in golden("adamp_steps").items()}
    weights, biases = (nn.Parameter(official[name][0].clone()) for name in ("weights", "biases"))
    optimiser = AdamP([weights, biases], lr=float(official["lr"]))
    for step in range(10):
        weights.grad, biases.grad = official["grads_w"][step], official["grads_b"][step]
        optimiser.step()
        torch.testing.assert_close(weights.detach(), official["weights"][step + 1], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(biases.detach(), official["biases"][step + 1], atol=1e-6, rtol=1e-6)


def slow_steps(weights: Array, gradients: Array, rate: float, decay: float) -> list[Array]:
    mean, square, found = np.zeros_like(weights), np.zeros_like(weights), []
    for number, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        step = mean / (1 - 0.9**number) / (np.sqrt(square / (1 - 0.999**number)) + 1e-8)
        shrink = 1.0
        for parts in (list(range(len(weights))), [slice(None)]) if weights.ndim > 1 else ():
            if all(abs(cosine(gradient[part], weights[part])) < 0.1 / math.sqrt(weights[part].size) for part in parts):
                for part in parts:
                    along = (weights[part] * step[part]).sum() / (weights[part] ** 2).sum()
                    step[part] -= along * weights[part]
                shrink = 0.1
                break
        weights = weights * (1 - rate * decay * shrink) - rate * step
        found.append(weights)
    return found


def cosine(first: Array, second: Array) -> float:
    return float((first * second).sum() / np.linalg.norm(first.ravel()) / np.linalg.norm(second.ravel()))


def orthogonal(gradient: Array, weights: Array, parts: list[int | slice]) -> Array:
    found = gradient.copy()
    for part in parts:
        found[part] -= (gradient[part] * weights[part]).sum() / (weights[part] ** 2).sum() * weights[part]
    return found


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["rows", "whole", "aligned"])
@pytest.mark.parametrize("shape", [(5, 7), (3, 2, 3, 3), (6,)])
def test_steps_are_their_definition_whether_projected_by_rows_as_a_whole_or_not(
    shape: tuple[int, ...], kind: str, decay: float
) -> None:
    random = np.random.default_rng(0)
    weights = random.normal(size=shape)
    parts: list[int | slice] = list(range(len(weights))) if kind == "rows" else [slice(None)]
    gradients = random.normal(size=(3, *shape))
    if kind != "aligned":
        gradients = np.stack([orthogonal(gradient, weights, parts) for gradient in gradients])
    parameter = nn.Parameter(torch.from_numpy(weights.copy()))
    optimiser = AdamP([parameter], lr=1e-4, weight_decay=decay)
    for gradient, expected in zip(gradients, slow_steps(weights, gradients, 1e-4, decay), strict=True):
        parameter.grad = torch.from_numpy(gradient)
        optimiser.step()
        torch.testing.assert_close(parameter.detach(), torch.from_numpy(expected), atol=1e-12, rtol=1e-12)


def test_a_step_on_weights_that_have_a_direction_alone_is_orthogonal_to_them() -> None:
    torch.manual_seed(0)
    targets = torch.randn(20, 32)

    def greatest_part_along(weights: nn.Parameter, optimiser: torch.optim.Optimizer) -> float:
        parts = []
        for target in targets:
            before = weights.detach().clone()
            optimiser.zero_grad()
            (nn.functional.normalize(weights, dim=1) @ target).sum().backward()
            optimiser.step()
            parts.append(torch.cosine_similarity(weights.detach() - before, before).abs().max())
        return float(torch.stack(parts).max())

    ours, adams = nn.Parameter(torch.randn(8, 32)), nn.Parameter(torch.randn(8, 32))
    assert greatest_part_along(ours, AdamP([ours], lr=0.01)) < 1e-4
    assert greatest_part_along(adams, torch.optim.Adam([adams], lr=0.01)) > 0.1


def test_rows_of_zeros_and_without_gradient_stay_finite() -> None:
    weights = nn.Parameter(torch.zeros(3, 4))
    unused = nn.Parameter(torch.ones(2, 2))
    weights.grad = torch.tensor([[0.0] * 4, [1.0] * 4, [0.0] * 4])
    AdamP([weights, unused], lr=0.1).step()
    torch.testing.assert_close(weights.detach(), torch.tensor([[0.0] * 4, [-0.1] * 4, [0.0] * 4]))
    assert torch.equal(unused, torch.ones(2, 2))


def test_it_goes_on_from_a_saved_state_as_it_would_have() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 4, 5)

    def walk(parameter: nn.Parameter, optimiser: AdamP, some: Tensor) -> None:
        for gradient in some:
            parameter.grad = gradient
            optimiser.step()

    at_once = nn.Parameter(torch.ones(4, 5))
    walk(at_once, AdamP([at_once], lr=0.01, weight_decay=0.1), gradients)
    parameter = nn.Parameter(torch.ones(4, 5))
    first = AdamP([parameter], lr=0.01, weight_decay=0.1)
    walk(parameter, first, gradients[:3])
    buffer = BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = AdamP([parameter], lr=1.0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    walk(parameter, second, gradients[3:])
    assert torch.equal(parameter, at_once)


def test_a_closure_is_called_with_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2, 3))
    optimiser = AdamP([parameter], lr=0.01)

    def closure() -> float:
        optimiser.zero_grad()
        loss = parameter.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    assert optimiser.step(closure) == 6.0
    assert (parameter < 1).all()


@pytest.mark.parametrize("changes", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"delta": -0.1}, {"weight_decay": -1.0}])
def test_numbers_that_mean_nothing_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="betas must be"):
        AdamP([nn.Parameter(torch.ones(1))], **changes)  # type: ignore[arg-type]
