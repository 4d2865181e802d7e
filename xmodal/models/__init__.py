"""The contract of a model. Every other module here is a model: a frozen config, a network, and `RECIPES`.

`SMALL`, if a module has it, is a tuple of configs for quick checks (`xmodal check`).
"""

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.python_files import load_python_file
from xmodal.recipes import Config, Recipe
from xmodal.root.files import sha256_of

if TYPE_CHECKING:
    from torch import Tensor

    from xmodal.batches.batch import Batch, Padded, Stream
    from xmodal.batches.texts import Texts


SOURCE = "model.py"  # of a run: a copy of the user's file that defines its model
V = TypeVar("V")
T = TypeVar("T")


@runtime_checkable
class Scorer(Protocol[V, T]):
    """Everything that can be evaluated. An encoder may return anything; a row's scores must not depend on its block."""

    def encode_visual(self, visual: "Padded") -> V: ...

    def encode_text(self, text: "Padded") -> T: ...

    def similarity(self, visual: V, text: T) -> "Tensor": ...  # (visual rows, text rows), greater is closer


@runtime_checkable
class Trainable(Scorer[V, T], Protocol[V, T]):
    """A `torch.nn.Module` that learns by gradients; `without_gradient` has patterns of parameters that none moves."""

    def objective(self, batch: "Batch") -> "dict[str, Tensor]":
        """Scalars before weighting, by the names that the phase weighs; a term that is off is zero.

        Scalars without a gradient may be of other names: these are in the log alone.
        """


@runtime_checkable
class Solvable(Scorer[V, T], Protocol[V, T]):
    """A closed form, such as CCA."""

    def solve(self, stream: "Iterable[Stream]") -> None: ...  # sees every pair once, in blocks


@runtime_checkable
class Observing(Protocol):
    """A scorer that sees all rows, in blocks, before it encodes any: their statistics are its own."""

    def observe(self, visual: "Iterable[Padded]", text: "Iterable[Padded]") -> None: ...


@runtime_checkable
class ComparingTexts(Protocol):
    """A scorer that also compares encoded captions with captions."""

    def text_similarity(self, queries: Any, gallery: Any) -> "Tensor": ...  # (queries, gallery), greater is closer


@runtime_checkable
class MeasuringDistances(Protocol):
    """A scorer whose encoded rows are points of one space, in which distances of several runs can be mixed."""

    def distance(self, visual: Any, text: Any) -> "Tensor": ...  # (visual rows, text rows), Euclidean


@runtime_checkable
class Cutting(Protocol):
    """A model that reads no more than the first words of a text."""

    def note_of_cuts(self, texts: "Texts") -> str: ...  # how many it cuts, in a line


@dataclass(frozen=True, eq=False)
class Inputs:
    """Facts about the data that a network is built by."""

    visual_width: int
    text_width: int  # the vocabulary's size for tokens, the length of captions as vectors
    instances: int  # training items, or identities if the corpus has them
    word_vectors: NDArray[np.float32] | None = None  # a row a word, NaN if it has none

    def fill_in_vectors(self, words: "Tensor") -> None:
        """Gives words the vectors that they have, in a table on the CPU; other words stay as they are."""
        if self.word_vectors is not None:
            assert words.shape == self.word_vectors.shape
            np.copyto(words.numpy(), self.word_vectors, where=~np.isnan(self.word_vectors))


@runtime_checkable
class Storing(Protocol):
    """A scorer that says how many numbers a gallery keeps of an item."""

    @property
    def floats_per_item(self) -> int: ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """Imports a model by name, path of a Python file, or a run's `reference`."""
    path, _, sha256 = name.rpartition("@")
    if path.endswith(".py"):  # a run is somebody's data: only the bytes that it was trained with are executed
        cure = f"the run's folder has it as {SOURCE}: look at that, and put it there"
        if Path(path) != Path(path).resolve() or not Path(path).is_file():  # ../ or /proc/self/cwd of a stranger
            raise UserError(f"the model of this run is {path}, which is gone: {cure}")
        if sha256_of(path) != sha256:
            raise UserError(f"the model of this run is {path}, which was changed since: {cure}, or train again")
        return load_python_file(path, "model")
    if name.endswith(".py"):
        return load_python_file(name, "model")
    if name not in names():
        raise UserError(f"no model {name!r}; there are: {', '.join(names())}; a file mine.py with RECIPES also works")
    return importlib.import_module(f"{__name__}.{name}")


def recipes_of(name: str) -> tuple[Recipe, ...]:
    recipes = getattr(load(name), "RECIPES", None)
    if not isinstance(recipes, tuple) or not all(isinstance(recipe, Recipe) for recipe in recipes):
        raise UserError(f"model {name} defines no RECIPES: a tuple of xmodal.recipes.Recipe")
    return recipes


def reference(config: Config) -> str:
    """How a run names a model's module: `vsepp`, or PATH@SHA256 of a user's file."""
    return type(config).__module__.removeprefix(f"{__name__}.")


def source_of(config: Config) -> bytes | None:
    """The user's file that defines a model, if it lies there unchanged."""
    path, _, sha256 = reference(config).rpartition("@")
    if not Path(path).is_file() or sha256_of(path) != sha256:
        return None
    return Path(path).read_bytes()
