"""Mining of negatives: by features of the network as it is, in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_evaluation(network: nn.Module) -> Iterator[None]:
    """Computes without dropout, batch statistics and gradients; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
