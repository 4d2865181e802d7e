"""How far a training is, and what it has logged until there: saved together, so that it goes on as if never stopped.

Where several processes train one run, the first alone writes; what the others log goes to memory.
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

from xmodal.batches import distributed
from xmodal.errors import UserError
from xmodal.root.storage import LocalStorage
from xmodal.training import run_folder


@dataclass
class TrainingState:
    """How far a run is: saved beside the weights, and all that decides how it goes on. Everything counts from 0."""

    phase: int = 0
    epoch: int = 0  # of the phase: those before it are whole
    cursor: int = 0  # of the epoch: samples
    step: int = 0
    rsums: list[float] = field(default_factory=list)  # of the phase: a plateau goes by them
    best: float = -math.inf
    best_phase: int = 0
    best_epoch: int = 0
    waited: int = 0  # validations since the best of the phase
    log_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Log:
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
        """Only the first so many bytes stay."""
        self.file.truncate(min(size, self.file.tell()))

    def kept(self) -> int:
        """The bytes that are on the disk now: all that was said."""
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size


@contextmanager
def open_log(run: str, tensorboard: bool) -> Iterator[Log]:
    """Steps that are done again after a kill are written again: TensorBoard shows the later ones."""
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


def save_state(run: str, log: Log, place: TrainingState, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    if distributed.rank():
        return
    place.log_bytes = log.kept()
    save(
        run, run_folder.LAST, {"state": asdict(place), "model": model.state_dict(), "optimiser": optimiser.state_dict()}
    )


def save(run: str, name: str, state: object) -> None:
    if distributed.rank():
        return
    buffer = BytesIO()
    torch.save(state, buffer)
    LocalStorage(run).write(name, buffer.getvalue())


def read_last(run: str) -> dict[str, Any] | None:
    """What was saved last; None where nothing was."""
    return None if LocalStorage(run).size(run_folder.LAST) is None else read_tensors(run, run_folder.LAST)


def state_of(saved: dict[str, Any], phases: int) -> TrainingState:
    place = TrainingState(**saved["state"])
    wrong = [name for name, value in asdict(TrainingState()).items() if type(getattr(place, name)) is not type(value)]
    if wrong or not 0 <= place.phase <= phases or min(place.epoch, place.cursor, place.step, place.log_bytes) < 0:
        raise ValueError(f"its place is impossible: {place}")
    return place


@contextmanager
def blaming_last(run: str) -> Iterator[None]:
    """What was saved last cannot be gone on from: it is that file which is wrong."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{run}/{run_folder.LAST} is no state of this run ({type(error).__name__}: {error}): {run_folder.anew(run)}"
        ) from error


DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OverflowError),
    *(LookupError, TypeError, AttributeError, AssertionError),
)  # what reading a checkpoint raises when its bytes are not what was written


def read_tensors(run: str, name: str) -> dict[str, Any]:
    """A file of tensors, on the CPU, and plain values by name; nothing in it is executed.

    Torch does not look at the checksums in it.
    """
    try:
        data = LocalStorage(run).read(name)
        with zipfile.ZipFile(BytesIO(data)) as archive:
            if (broken := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"{broken} has changed")
        found = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{run} has no {name}: train it first") from None
    except DAMAGE as error:
        raise UserError(f"{run}/{name} is damaged ({error}): {run_folder.anew(run)}") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{run}/{name} is damaged (it holds a {type(found).__name__}, no tensors): {run_folder.anew(run)}"
        )
    return found
