"""Distributed training: each process encodes its part of a batch and computes the loss of the whole.

A row's gradient flows back to the process that encoded it; averaged, it is that of one process.
"""

import atexit
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm, pad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.errors import UserError

MOMENTUM = 0.1  # of a batch norm's running statistics, as torch's
PARTED = (
    "the objective compares a part of a batch with itself, so that several processes have another loss than one: "
    "compare rows by compare_gathered and the pairs of gather_pairs (xmodal/batches/distributed.py)"
)


def world() -> int:
    return distributed.get_world_size() if _is_joined() else 1


def rank() -> int:
    return distributed.get_rank() if _is_joined() else 0


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Joins the processes that torchrun started, unless they are joined."""
    if not _is_joined() and distributed.is_available() and distributed.is_torchelastic_launched():
        distributed.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo")
        atexit.register(_leave)
    yield


def _leave() -> None:
    distributed.destroy_process_group()
    time.sleep(0.2)  # torch's threads hold the last message, and abort an interpreter that ended


def own_device(device: str) -> str:
    """A GPU of its own for each process of this machine."""
    return f"cuda:{distributed.get_node_local_rank(rank())}" if device == "cuda" and world() > 1 else device


@dataclass
class WholeBatch:
    """A batch of all processes, each of which has a part of it."""

    borrowed: int = 0  # samples at its end that are there twice
    samples: int = 1  # of one part
    is_gathered: bool = False


_whole = ContextVar[WholeBatch | None]("whole batch", default=None)


@contextmanager
def whole_batch(batch: Batch) -> Iterator[WholeBatch]:
    """Makes `gather` leave out rows that the batch borrowed; refuses an objective of one of several parts."""
    whole = WholeBatch(batch.borrowed, len(batch.streams[ANNOTATED].visual))
    before = _whole.set(whole)
    try:
        yield whole
    finally:
        _whole.reset(before)
    if world() > 1 and not whole.is_gathered:
        raise UserError(f"{PARTED}, or train it by one process")


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, each with equally many; a sample may have several."""
    (_whole.get() or WholeBatch()).is_gathered = True
    return rows if world() == 1 else cast(Tensor, _Gather.apply(rows))[: _of_all(len(rows))]


def own_share(things: int) -> slice:
    """This process' share of things that all processes have."""
    return slice(things * rank() // world(), things * (rank() + 1) // world())


def stacked(values: Tensor) -> Tensor:
    """(processes, …): the values of each, without a gradient."""
    if world() == 1:
        return values[None]
    parts = [torch.empty_like(values) for _ in range(world())]
    distributed.all_gather(parts, values.contiguous())
    return torch.stack(parts)


def gather_padded(items: Padded) -> Padded:
    """The items of all processes, padded to the longest of any."""
    if world() == 1:
        return items
    longest = torch.tensor(items.values.shape[1], device=items.values.device)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    values = pad(items.values, (0, 0, 0, int(longest) - items.values.shape[1]))
    return Padded(gather(values), gather(items.lengths.to(values.device)).cpu())


def compare_gathered(compare: Callable[[Tensor, Tensor], Tensor], visual: Tensor, text: Tensor) -> Tensor:
    """(V, T): how similar the rows of all processes are."""
    visual, text = gather(visual), gather(text)
    with torch.autocast(visual.device.type, enabled=False):  # a margin is finer than half precision
        return compare(visual.float(), text.float())


def gather_pairs(stream: Stream) -> Tensor:
    """(P, 2): the positives of all processes, as rows of what `gather` gives."""
    rows = torch.tensor([len(stream.visual), len(stream.text)], device=stream.positives.device)
    return gather(stream.positives + rows * rank())


class WholeBatchNorm(nn.Module):
    """Batch norm over the last dimension, by the rows that all processes have of a batch.

    Shapes: B rows of this process, L positions of each, R rows that are each counted so often, C channels.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, rows: Tensor, counts_R: Tensor | None = None) -> Tensor:
        """(B, C) or (B, L, C), of which one vector is seen as in evaluation; or (R, C) by their counts."""
        learns = self.training and (counts_R is not None or _of_all(len(rows)) * rows.shape[1:-1].numel() > 1)
        if learns and (counts_R is not None or world() > 1):
            return _by_whole_batch(self, rows, counts_R, self.epsilon, MOMENTUM)
        statistics, weights = (self.running_mean, self.running_var), (self.weight, self.bias)
        flat = batch_norm(rows.flatten(0, -2), *statistics, *weights, learns, MOMENTUM, self.epsilon)
        return flat.view_as(rows)


class WholeBatchNorm2d(nn.BatchNorm2d):
    """Batch norm of a CNN's maps (B, C, H, W), by the pictures that all processes have of a batch."""

    def forward(self, maps_BCHW: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(maps_BCHW)
        assert self.momentum is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        normal_BHWC = _by_whole_batch(self, maps_BCHW.permute(0, 2, 3, 1), None, self.eps, self.momentum)
        return normal_BHWC.permute(0, 3, 1, 2).to(maps_BCHW.dtype)


def _by_whole_batch(
    norm: WholeBatchNorm | WholeBatchNorm2d, rows: Tensor, counts_R: Tensor | None, epsilon: float, momentum: float
) -> Tensor:
    """Normalises rows (B, …, C) by those of all processes, or (R, C) that are each counted so often."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    counts_R = torch.arange(len(rows), device=rows.device) < own_rows(len(rows)) if counts_R is None else counts_R
    rows = rows.to(norm.weight.dtype)  # a batch's mean is finer than half precision
    counts = counts_R.to(rows).view(-1, *[1] * (rows.dim() - 1))
    normal, mean_C, variance_C = _Normalise.apply(rows, counts, norm.weight, norm.bias, epsilon)
    with torch.no_grad():
        norm.running_mean.lerp_(mean_C, momentum)
        norm.running_var.lerp_(variance_C, momentum)
    return cast(Tensor, normal)


def normalise_whole_batches(network: nn.Module) -> nn.Module:
    """Makes every batch norm of a CNN one of the whole batch; the network and the names of its state stay."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.BatchNorm2d:
            whole = WholeBatchNorm2d(module.num_features, module.eps, module.momentum)
            whole.load_state_dict(module.state_dict())
            network.set_submodule(name, whole.train(module.training))
    return network


def own_rows(rows: int) -> int:
    """The number of a process' rows without borrowed ones, which are the last of all processes'."""
    return min(max(_of_all(rows) - rows * rank(), 0), rows)


def _of_all(rows: int) -> int:
    """The number of all processes' rows without borrowed ones, where each process has so many."""
    whole = _whole.get() or WholeBatch()
    return rows * world() - whole.borrowed * (rows // whole.samples)


def _total(values: Tensor) -> Tensor:
    """The sum over all processes, without a gradient."""
    return values if world() == 1 else stacked(values).sum(dim=0)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """A parameter that had no gradient anywhere keeps none."""
    moving = [parameter for parameter in parameters if parameter.requires_grad]
    if world() == 1 or not moving:
        return
    gradients = (torch.zeros_like(one) if one.grad is None else one.grad for one in moving)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    parts = torch.split(flat, [parameter.numel() for parameter in moving])
    for parameter, part in zip(moving, parts, strict=True):
        if parameter.grad is not None:
            parameter.grad.copy_(part.view_as(parameter) / world())


def refuse_dropout(model: nn.Module) -> None:
    """Refuses dropout in several processes, whose parts of a batch would share a mask."""
    dropping = (module for module in model.modules() if isinstance(module, nn.RNNBase | _DropoutNd))
    shares = (module.dropout if isinstance(module, nn.RNNBase) else module.p for module in dropping)
    if world() > 1 and any(shares):
        cure = "train it by one process, or without dropout (--set model.dropout=0)"
        raise UserError(f"dropout draws for a whole batch, not for the parts of {world()} processes: {cure}")


def refuse_single_rows(model: nn.Module, batch_size: int) -> None:
    """Refuses batch norm by batches of one row, which has no spread."""
    if batch_size == 1 and any(isinstance(module, WholeBatchNorm | _BatchNorm) for module in model.modules()):
        raise UserError(
            "batch_size 1 leaves batch norm one row, without any spread: give 2 or more (--set batch_size=32)"
        )


def broadcast_from_first(ask: Callable[[], float]) -> float:
    if world() == 1:
        return ask()
    told: list[Any] = [ask() if rank() == 0 else None]
    distributed.broadcast_object_list(told)
    return float(told[0])


def first_rank_first(act: Callable[[], None]) -> None:
    """Acts in the first process before the others."""
    if rank() == 0:
        act()
    wait_for_all()
    if rank():
        act()


def wait_for_all() -> None:
    if world() > 1:
        distributed.barrier()


def _is_joined() -> bool:
    return distributed.is_available() and distributed.is_initialized()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        return stacked(rows).flatten(0, 1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        # every loss depends on these rows: the sum is `world` times one, which the average undoes
        whole = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(whole)
        return whole.chunk(world())[rank()]


class _Normalise(torch.autograd.Function):
    """Batch norm of rows (B, …, C) over all processes; row b counts `counts[b]` times.

    Also returns the mean and the unbiased variance. The gradient is written out, since autograd's takes twice the
    operations.
    """

    @staticmethod
    def forward(
        context: Any, rows: Tensor, counts: Tensor, weight_C: Tensor, bias_C: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dims = list(range(rows.dim() - 1))
        own_count = counts.sum() * rows.shape[1:-1].numel()
        sums = _total(torch.cat([(rows * counts).sum(dims), own_count[None]]))
        mean_C, count = sums[:-1] / sums[-1], sums[-1]
        centred = rows - mean_C
        squares_C = _total((centred.square() * counts).sum(dims))
        scale_C = (squares_C / count + epsilon).rsqrt()
        context.save_for_backward(centred, counts / count, scale_C, weight_C)
        variance_C = squares_C / (count - 1).clamp(min=1)
        context.mark_non_differentiable(mean_C, variance_C)
        return torch.addcmul(bias_C, centred, scale_C * weight_C), mean_C, variance_C

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        # gradients come `world` times too large (see `_Gather`) and go on so, as `average_gradients` undoes it
        centred, shares, scale_C, weight_C = context.saved_tensors
        dims = list(range(gradient.dim() - 1))
        own_2C = torch.stack([gradient.sum(dims), (gradient * centred).sum(dims)])
        sum_C, by_centred_C = _total(own_2C)
        common = torch.addcmul(sum_C, centred, by_centred_C * scale_C.square())
        of_rows = torch.addcmul(gradient, common, shares, value=-1) * (scale_C * weight_C)
        return of_rows, None, own_2C[1] * scale_C, own_2C[0], None
