"""What a model is to all around it, and what a recipe says. Every other module is one: config, network, `RECIPES`."""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from xmodal.batches.batch import Batch, Padded, Stream


V = TypeVar("V")
T = TypeVar("T")


@runtime_checkable
class Scorer(Protocol[V, T]):
    """Everything that can be evaluated. What an encoder returns is the model's own business: vectors, sets, densities.

    Evaluation only hands it back, a visual with a text block at a time, so a similarity of two sets (SCAN) fits too.
    A row's scores must not depend on its block. Shifts and flips at test time happen inside the encoders.
    """

    def encode_visual(self, visual: "Padded") -> V: ...

    def encode_text(self, text: "Padded") -> T: ...  # tokens or dense features: the recipe's `text` says which

    def similarity(self, visual: V, text: T) -> "Tensor": ...  # (visual rows, text rows), greater is closer


@runtime_checkable
class Trainable(Scorer[V, T], Protocol[V, T]):
    """A `torch.nn.Module` that learns by gradients, and reads features in every phase.

    Where a phase starts from pixels, the trainer puts the network that made the features in front, as `trunk`, so that
    no model knows two kinds of input. Mining with the model is part of the objective: the batch brings candidates.
    """

    def objective(self, batch: "Batch") -> "dict[str, Tensor]":
        """Scalars before weighting, by exactly the names that the phase weighs; a term that is off is zero."""


@runtime_checkable
class Solvable(Scorer[V, T], Protocol[V, T]):
    """A closed form, such as CCA. Not a kind of `Trainable`, as the two share nothing but scoring."""

    def solve(self, stream: "Iterable[Stream]") -> None: ...  # sees every pair once, in blocks, and must not keep them


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a network must know of its data before it can be built, and a config cannot say."""

    visual_width: int
    text_width: int  # the vocabulary's size for tokens
    instances: int  # training items, or identities where the corpus has them: the outputs of an instance classifier
    word_vectors: NDArray[np.float32] | None = None  # a row a word; a word without vector is NaN and starts as it would


@runtime_checkable
class Storing(Protocol):
    """A scorer that says what a gallery keeps of one encoded item, as its scores differ in that."""

    @property
    def floats_per_item(self) -> int: ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    if name not in names():
        raise UserError(f"no model {name!r}; there are: {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}")
