"""Checkpoints: how far a training is and what it has logged, saved together, so that it goes on as if never stopped.

The first process of several writes; what the others log stays in memory.
"""

import json
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn
from torch.optim import Optimizer

from xmodal.batches import distributed
from xmodal.errors import UserError
from xmodal.root.storage import LocalStorage
from xmodal.training import run_folder


@dataclass
class TrainingState:
    """Everything beside weights and optimiser that decides how a run goes on. All numbers count from 0."""

    phase: int = 0
    epoch: int = 0  # of the phase; those before it are done
    cursor: int = 0  # samples of the epoch that were read
    step: int = 0
    rsums: list[float] = field(default_factory=list)  # of the phase: a plateau is found in them
    best: float = -math.inf
    best_phase: int = 0
    best_epoch: int = 0
    waited: int = 0  # validations since the best of the phase
    log_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Log:
    """log.jsonl, and the board where one is asked for. Phases and epochs are counted from 1 in it."""

    file: BinaryIO
    board: Any = None  # a SummaryWriter of TensorBoard

    def say(self, **facts: Any) -> None:
        self.file.write(json.dumps(facts).encode() + b"\n")
        self.file.flush()  # readable while the run goes on
        if self.board is not None:
            numbers = {name: facts[name] for name in ("loss", "norm", "rsum") if name in facts}
            for name, value in (numbers | facts.get("terms", {})).items():
                self.board.add_scalar(name, value, facts["step"])

    def cut(self, size: int) -> None:
        """Keeps the first so many bytes."""
        self.file.truncate(min(size, self.file.tell()))

    def synced_size(self) -> int:
        """Brings the file to the disk, and gives its size in bytes."""
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size


@contextmanager
def open_log(run: str, tensorboard: bool) -> Iterator[Log]:
    """Opens the log for more lines. TensorBoard shows the later of steps that were done twice, because of a kill."""
    if distributed.rank():
        yield Log(BytesIO())
        return
    with (Path(run) / run_folder.LOG).open("ab") as file:
        if not tensorboard:
            yield Log(file)
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install tensorboard") from None
        with SummaryWriter(f"{run}/tensorboard") as board:
            yield Log(file, board)


def save_state(run: str, log: Log, state: TrainingState, model: nn.Module, optimiser: Optimizer) -> None:
    if distributed.rank():
        return
    state.log_bytes = log.synced_size()
    tensors = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
    save(run, run_folder.LAST, {"state": asdict(state), **tensors})


def save(run: str, name: str, state: object) -> None:
    if distributed.rank():
        return
    buffer = BytesIO()
    torch.save(state, buffer)
    LocalStorage(run).write(name, buffer.getvalue())


def read_last(run: str) -> dict[str, Any] | None:
    """Reads what was saved last; None for a run that saved nothing."""
    return None if LocalStorage(run).size(run_folder.LAST) is None else read_tensors(run, run_folder.LAST)


def state_of(saved: dict[str, Any], phases: int) -> TrainingState:
    state = TrainingState(**saved["state"])
    wrong = [name for name, value in asdict(TrainingState()).items() if type(getattr(state, name)) is not type(value)]
    if wrong or not 0 <= state.phase <= phases or min(state.epoch, state.cursor, state.step, state.log_bytes) < 0:
        raise ValueError(f"its training state is impossible: {state}")
    return state


@contextmanager
def blaming_last(run: str) -> Iterator[None]:
    """Says of errors in the block that the file which was saved last is wrong."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{run}/{run_folder.LAST} is no state of this run ({type(error).__name__}: {error}): {run_folder.anew(run)}"
        ) from error


# reading a checkpoint raises one of these if its bytes are not what was written
DAMAGE = (
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_tensors(run: str, name: str) -> dict[str, Any]:
    """Reads a file of tensors and plain values by name, to the CPU; nothing in it is executed."""
    try:
        data = LocalStorage(run).read(name)
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if (broken := archive.testzip()) is not None:  # torch does not look at the checksums
                raise zipfile.BadZipFile(f"{broken} has changed")
        found = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{run} has no {name}: train it first") from None
    except DAMAGE as error:
        raise UserError(f"{run}/{name} is damaged ({error}): {run_folder.anew(run)}") from error
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise UserError(f"{run}/{name} is damaged (it holds a {kind}, no tensors): {run_folder.anew(run)}")
    return found
