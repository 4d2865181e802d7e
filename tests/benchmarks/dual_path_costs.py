"""What Dual-Path costs: a step of its text path beside one-hot codes that are written out; memory of 113,287 classes.

Shapes: B texts, L positions of a code, C channels, N rows of both sides, D joint width.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.benchmarks.measured import timed
from xmodal.losses.instance import instance_loss
from xmodal.models import Inputs
from xmodal.models.dual_path import EPSILON, SGD, Block, DualPath, DualPathConfig
from xmodal.training import optimisers

TEXTS, WORDS, CLASSES = 32, 20_074, 113_287
WIDTH = DualPathConfig().width


class DenseTextPath(nn.Module):
    """The same network by convolutions over (B, C, 1, L), as a translation of the official code has it."""

    def __init__(self, ours: DualPath) -> None:
        super().__init__()
        words = ours.text.words.weight[1:]
        self.words, self.words_norm = _convolution(words.T), _plain_norm(len(words.T))
        self.blocks = nn.Sequential(*(_DenseBlock(block) for block in ours.text.blocks if isinstance(block, Block)))
        head = next(iter(ours.text_head.parameters()))
        self.head, self.head_norm = _convolution(head), _plain_norm(len(head))

    def forward(self, codes_BL: Tensor) -> Tensor:
        one_hot = torch.zeros(len(codes_BL), WORDS + 1, 1, codes_BL.shape[1])
        one_hot.scatter_(1, codes_BL[:, None, None], 1.0)
        maps = self.blocks(self.words_norm(self.words(one_hot[:, 1:])))  # row 0 is no word
        features: Tensor = self.head_norm(self.head(functional.max_pool2d(maps, (1, maps.shape[3])))).flatten(1)
        return features


class _DenseBlock(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(block.first.weight), _plain_norm(block.first.out_features)
        halves = torch.stack(block.pair.weight.chunk(2, dim=1), dim=2)
        self.pair, self.pair_norm = _convolution(halves, block.stride), _plain_norm(block.pair.out_features)
        self.last, self.last_norm = _convolution(block.last.weight), _plain_norm(block.last.out_features)
        if hasattr(block, "shortcut"):
            self.shortcut = _convolution(block.shortcut.weight, block.stride)
            self.shortcut_norm = _plain_norm(block.shortcut.out_features)

    def forward(self, maps: Tensor) -> Tensor:
        inner = functional.pad(self.first_norm(self.first(maps)).relu(), (1, 0))
        changed = self.last_norm(self.last(self.pair_norm(self.pair(inner)).relu()))
        short = self.shortcut_norm(self.shortcut(maps)) if hasattr(self, "shortcut") else maps
        return (short + changed).relu()  # type: ignore[no-any-return]


def _convolution(weight: Tensor, stride: int = 1) -> nn.Conv2d:
    """1 x 1, or 1 x 2 of a weight (outputs, inputs, 2)."""
    kernel = weight.detach().reshape(*weight.shape[:2], 1, -1).contiguous()
    layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], (1, kernel.shape[3]), stride=(1, stride), bias=False)
    layer.weight.data = kernel.clone()
    return layer


def _plain_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON)


def text_steps() -> tuple[Callable[[], float], Callable[[], float]]:
    """Seconds of a step there and here: the same texts, gradient and optimiser, the same features and words' gradient.

    Texts are of 8 to 17 words, of 10.5 on average in the paper, and lie anywhere, as in training by default.
    """
    torch.manual_seed(0)
    ours = DualPathConfig().build(Inputs(WIDTH, WORDS + 1, 2)).train()
    lengths = torch.randint(8, 18, (TEXTS, 1))
    firsts = (torch.rand(TEXTS, 1) * (33 - lengths)).long()
    is_word = (torch.arange(32) >= firsts) & (torch.arange(32) < firsts + lengths)
    codes_BL = torch.randint(1, WORDS + 1, (TEXTS, 32)) * is_word
    theirs, gradient_BD = DenseTextPath(ours), torch.randn(TEXTS, WIDTH)
    words, kernel = ours.text.words.weight, theirs.words.weight
    ours.text.words.weight.data[0] = 0
    side = nn.ModuleDict({"text": ours.text, "text_head": ours.text_head})
    found = []
    for features in (ours.text_features(codes_BL), theirs(codes_BL)):
        (features * gradient_BD).sum().backward()
        found.append(features.detach())
    assert words.grad is not None
    assert kernel.grad is not None
    _check_near(found[0], found[1], 1e-3)
    _check_near(words.grad[1:], kernel.grad[..., 0, 0].T, 0.05)  # rounding moves some maxima; 1e-10 in double precision

    def stepping(model: nn.Module, features: Callable[[Tensor], Tensor]) -> Callable[[], float]:
        optimiser = optimisers.build(model, replace(SGD, multipliers=()))

        def step() -> None:
            optimiser.zero_grad()
            (features(codes_BL) * gradient_BD).sum().backward()
            optimiser.step()

        step()
        return lambda: timed(step)

    return stepping(theirs, theirs), stepping(side, ours.text_features)


def gigaflops(step: Callable[[], object]) -> float:
    from torch.utils.flop_counter import FlopCounterMode  # takes 74 MB, and processes that measure memory import this

    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() / 1e9


def _check_near(one: Tensor, other: Tensor, share: float) -> None:
    assert (one - other).norm() < share * other.norm()


class Classifier(nn.Module):
    """The shared classifier of COCO alone, from 32 features of each side."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(WIDTH, CLASSES, bias=False)

    def loss(self, rows_ND: Tensor, labels_N: Tensor) -> Tensor:
        return instance_loss(rows_ND, self.classifier.weight, labels_N)[0].mean()


def extra_megabytes(peak: Callable[[], float]) -> float:
    """The peak of three steps beyond the weights, their gradients and their momentum, and beyond what was there."""
    torch.manual_seed(0)
    rows_ND, labels_N = torch.randn(2 * TEXTS, WIDTH, requires_grad=True), torch.randint(CLASSES, (2 * TEXTS,))
    small = nn.Linear(WIDTH, 100, bias=False)
    _train(small, lambda: instance_loss(rows_ND, small.weight, labels_N % 100)[0].mean())  # loads what a step needs
    before = peak()
    model = Classifier()
    _train(model, lambda: model.loss(rows_ND, labels_N))
    return peak() - before - 3 * 4 * WIDTH * CLASSES / 2**20


def _train(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    optimiser = optimisers.build(model, replace(SGD, multipliers=()))
    for _ in range(3):
        optimiser.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimisers.clip(model, SGD)
        optimiser.step()
