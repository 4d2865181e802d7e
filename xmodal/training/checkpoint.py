"""Checkpoints: how far a training and its log are."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from xmodal.batches import distributed
from xmodal.errors import UserError
from xmodal.raw.tensor_files import NotTensors, load_tensors
from xmodal.root.storage import LocalStorage
from xmodal.training import run_folder


@dataclass
class TrainingState:
    """Where a run goes on, beside weights and optimiser. All numbers count from 0."""

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
    """log.jsonl, and a board if asked for; phases and epochs count from 1."""

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
        self.file.truncate(min(size, self.file.tell()))

    def synced_size(self) -> int:
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size


@contextmanager
def open_log(run: str, tensorboard: bool) -> Iterator[Log]:
    """Opens the log in the first process."""
    if distributed.rank():
        yield Log(BytesIO())
        return
    with Path(run, run_folder.LOG).open("ab") as file:
        if not tensorboard:
            yield Log(file)
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install tensorboard") from None
        with SummaryWriter(f"{run}/tensorboard") as board:
            yield Log(file, board)


def save(run: str, name: str, state: object) -> None:
    if distributed.rank():
        return
    buffer = BytesIO()
    torch.save(state, buffer)
    LocalStorage(run).write(name, buffer.getvalue())


def read_last(run: str) -> dict[str, Any] | None:
    return read_tensors(run, run_folder.LAST) if run_folder.has_state(run) else None


def is_finished(run: str, phases: int) -> bool:
    """Whether all phases are done; a run without phases is done once it is written."""
    if not phases:
        return LocalStorage(run).size(run_folder.BEST) is not None
    saved = read_last(run)
    with blaming_last(run):
        return saved is not None and state_of(saved, phases).phase == phases


def state_of(saved: dict[str, Any], phases: int) -> TrainingState:
    state, fresh = TrainingState(**saved["state"]), vars(TrainingState())
    wrong = any(type(value) is not type(fresh[name]) for name, value in vars(state).items())
    if wrong or not 0 <= state.phase <= phases or min(state.epoch, state.cursor, state.step, state.log_bytes) < 0:
        raise ValueError(f"its training state is impossible: {state}")
    return state


@contextmanager
def blaming_last(run: str) -> Iterator[None]:
    """Turns errors into one of last.pt."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{run}/{run_folder.LAST} is no state of this run ({type(error).__name__}: {error}): {run_folder.anew(run)}"
        ) from error


def read_tensors(run: str, name: str) -> dict[str, Any]:
    try:
        found = load_tensors(BytesIO(LocalStorage(run).read(name)))
    except FileNotFoundError:
        raise UserError(f"{run} has no {name}: train it first") from None
    except NotTensors as error:
        raise UserError(f"{run}/{name} is damaged ({error.what}): {run_folder.anew(run)}") from error
    if not isinstance(found, dict):
        what = f"it holds a {type(found).__name__}, no tensors"
        raise UserError(f"{run}/{name} is damaged ({what}): {run_folder.anew(run)}")
    return found
