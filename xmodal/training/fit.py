"""Training from cached features; the weights with the highest rsum on the recipe's validation view are kept.

All chance follows from the seed and the step: a killed run goes on from its last checkpoint, with any number of
processes, and ends as it would have.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, Batch
from xmodal.batches.loader import Loader
from xmodal.batches.phrase_loader import PhraseLoader
from xmodal.errors import UserError
from xmodal.models import Scorer, Trainable
from xmodal.progress import Silence
from xmodal.recipes import Phase, Recipe
from xmodal.training import checkpoint, optimisers, run_folder
from xmodal.training.checkpoint import Log, TrainingState
from xmodal.training.closed_form import write_run
from xmodal.training.finetuning import WithBackbone, attach_backbone, attach_empty_backbone
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.training_data import CaptionData, TrainingData, open_data, refuse_unbuilt
from xmodal.training.validation import check_device, refuse_other_scores

LOG_EVERY, SAVE_EVERY = 10, 500  # steps; the state is saved after every epoch too


@dataclass(frozen=True)
class Outcome:
    """A finished run, and the validation of its weights."""

    run: str
    rsum: float
    phase: int  # from 1, as is `epoch`; without phases all three are 0
    epoch: int
    steps: int
    trained: bool  # or solved, by this call, not before
    words: int  # that the run knows
    known_words: float  # their share of the words of the training captions
    solved_pairs: int = 0  # that a closed form is solved from


def fit(recipe: Recipe, setup: Setup, run: str, *, tensorboard: bool = False) -> Outcome:
    """Trains in the folder `run`, or goes on there; checks everything before it writes."""
    check_device(setup.device)
    refuse_unbuilt(recipe)
    if not recipe.phases:
        with _threads(setup.threads):
            rsum, pairs, is_new = write_run(recipe, setup, run)
        return Outcome(run, rsum, 0, 0, 0, is_new, words=0, known_words=1.0, solved_pairs=pairs)
    with distributed.process_group(setup.device):
        device = distributed.own_device(setup.device)
        setup = replace(setup, device=device, progress=Silence() if distributed.rank() else setup.progress)
        started, data = open_data(recipe, setup, run)
        recipe = started.recipe
        known = data.announce(started, setup.progress)
        devices = [device] if torch.device(device).type == "cuda" else []
        with _threads(setup.threads), torch.random.fork_rng(devices):
            model = _model(started, setup, run, data)
            with _locked(run, started), checkpoint.open_log(run, tensorboard) as log:
                return _run_phases(_Training(recipe, setup, run, model, data, log), known)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)


def _model(started: Run, setup: Setup, run: str, data: TrainingData) -> nn.Module:
    recipe = started.recipe
    vectors = data.word_vectors(started, setup)
    torch.manual_seed(recipe.seed)
    model = run_folder.network(run, started, vectors)
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        needed = ("encode_visual", "encode_text", "similarity", "objective")
        lacking = [name for name in needed if not hasattr(model, name)]
        what = f"has no {' and no '.join(lacking)}, to be trained by" if lacking else "is no torch.nn.Module"
        raise UserError(f"{recipe.name}: {type(model).__name__} {what}")
    model = model.to(setup.device)
    distributed.refuse_dropout(model)
    distributed.refuse_single_rows(model, recipe.batch_size)
    for phase in recipe.phases:
        optimisers.check(model, phase)
        data.loader(recipe, phase, setup.device)  # refuses a batch that processes cannot share
    if not run_folder.has_state(run) and isinstance(data, CaptionData):
        for note in data.notes_of_cuts(model):
            setup.progress.say(note)
        _try(model, recipe, data, setup.device)
    return model


def _try(model: nn.Module, recipe: Recipe, data: TrainingData, device: str) -> None:
    """Tries the objective and the scores on a few pairs, with a copy of the buffers."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters() if weight.requires_grad})
    few = data.few(recipe, device)
    terms = _objective(copied, few)
    for phase in recipe.phases:
        optimisers.check_terms(terms, phase.weights)
    stream = few.streams[ANNOTATED]
    refuse_other_scores(
        cast(Scorer[Any, Any], copied.eval()), stream.visual, stream.text[: max(1, len(stream.visual) // 2)]
    )


@contextmanager
def _locked(run: str, started: Run) -> Iterator[None]:
    if distributed.rank() == 0:
        run_folder.refuse_another(run, started)
    with run_folder.held(run) if distributed.rank() == 0 else nullcontext():
        distributed.first_rank_first(lambda: run_folder.start(run, started))
        yield


def _objective(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    with distributed.whole_batch(batch):
        return cast(Trainable[Any, Any], model).objective(batch)


@dataclass(eq=False)
class _Training:
    recipe: Recipe
    setup: Setup
    run: str
    model: nn.Module
    data: TrainingData
    log: Log

    @cached_property
    def loaders(self) -> list[Loader | PhraseLoader]:
        return [self.data.loader(self.recipe, phase, self.setup.device) for phase in self.recipe.phases]

    @cached_property
    def steps(self) -> int:
        return sum(len(loader) * phase.epochs for loader, phase in zip(self.loaders, self.recipe.phases, strict=True))

    def attach_backbone(self) -> None:
        if not isinstance(self.model, WithBackbone):
            self.model = attach_backbone(self.model, self.data.store, self.setup.weights).to(self.setup.device)

    def load(self, state: dict[str, Any]) -> None:
        if any(name.startswith("trunk.") for name in state):
            self.model = attach_empty_backbone(self.model, self.data.store).to(self.setup.device)
        self.model.load_state_dict(state)

    def save(self, state: TrainingState, optimiser: Optimizer) -> None:
        if distributed.rank() == 0:  # others log in memory
            state.log_bytes = self.log.synced_size()
        tensors = {"model": self.model.state_dict(), "optimiser": optimiser.state_dict()}
        checkpoint.save(self.run, run_folder.LAST, {"state": asdict(state), **tensors})


def _run_phases(training: _Training, known: tuple[int, float]) -> Outcome:
    state, saved = _resumed(training)
    before, phases = state.step, training.recipe.phases
    for number, phase in enumerate(phases[state.phase :], state.phase):
        if phase.pixels:
            training.attach_backbone()
        optimisers.freeze(training.model, phase.frozen)
        optimiser = optimisers.build(training.model, phase.optimiser)
        if saved and (state.epoch or state.cursor):
            with checkpoint.blaming_last(training.run):
                optimiser.load_state_dict(saved["optimiser"])
                if any("multiplier" not in group for group in optimiser.param_groups):
                    raise ValueError("its optimiser has no multipliers")
        saved = None
        while state.epoch < phase.epochs and (phase.patience is None or state.waited < phase.patience):
            _train_epoch(training, phase, optimiser, state)
            state.epoch, state.cursor = state.epoch + 1, 0
            if state.epoch % phase.validate_every == 0 or state.epoch == phase.epochs:
                _validate(training, phase, state)
            training.save(state, optimiser)
        state.phase, state.epoch, state.rsums, state.waited = number + 1, 0, [], 0
        training.save(state, optimiser)
    best = state.best, state.best_phase + 1, state.best_epoch + 1
    return Outcome(training.run, *best, state.step, state.step > before, *known)


def _resumed(training: _Training) -> tuple[TrainingState, dict[str, Any] | None]:
    distributed.wait_for_all()
    saved = checkpoint.read_last(training.run)
    state = TrainingState()
    if saved is not None:
        with checkpoint.blaming_last(training.run):
            training.load(saved["model"])
            state = checkpoint.state_of(saved, len(training.recipe.phases))
    training.log.cut(state.log_bytes)
    return state, saved


def _train_epoch(training: _Training, phase: Phase, optimiser: Optimizer, state: TrainingState) -> None:
    training.model.train()
    optimisers.evaluate_frozen(training.model)
    now = optimisers.rate(phase.optimiser, state.epoch, state.rsums)
    for group in optimiser.param_groups:
        group["lr"] = now * group["multiplier"]
    loader, phases = training.loaders[state.phase], training.recipe.phases
    before = sum(earlier.epochs for earlier in phases[: state.phase])  # no phase repeats another's order
    loader.load_state_dict({"seed": training.recipe.seed, "epoch": before + state.epoch, "cursor": state.cursor})
    name = f"phase {state.phase + 1} " if len(phases) > 1 else ""
    name += f"epoch {state.epoch + 1}"
    with training.setup.progress.over(name, len(loader), state.cursor // loader.batch_size, unit="steps") as tick:
        for batch in loader:
            _step(training, phase, optimiser, state, replace(batch, progress=state.step / training.steps))
            state.step, state.cursor = state.step + 1, loader.cursor
            if state.step % SAVE_EVERY == 0 and state.cursor:  # an epoch's end is saved once measured
                training.save(state, optimiser)
            tick(1)


def _step(training: _Training, phase: Phase, optimiser: Optimizer, state: TrainingState, batch: Batch) -> None:
    seed = np.random.SeedSequence([training.recipe.seed, state.step]).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(seed >> 1))
    mixed = training.recipe.precision == "mixed"
    with torch.autocast(torch.device(training.setup.device).type, torch.bfloat16, mixed):
        terms = _objective(training.model, batch)
        loss = optimisers.total(terms, phase.weights)
    _refuse_infinite("loss", loss, terms, state)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    distributed.average_gradients(training.model.parameters())
    norm = optimisers.clip(training.model, phase.optimiser)
    _refuse_infinite("gradient's norm", norm, terms, state)
    optimiser.step()
    if state.step % LOG_EVERY == 0:
        training.log.say(
            phase=state.phase + 1,
            epoch=state.epoch + 1,
            step=state.step,
            loss=loss.item(),
            terms={name: term.item() for name, term in terms.items()},
            norm=norm.item(),
            rates=sorted({group["lr"] for group in optimiser.param_groups}),
        )


def _refuse_infinite(what: str, value: Tensor, terms: Mapping[str, Tensor], state: TrainingState) -> None:
    if not math.isfinite(value.item()):
        values = ", ".join(f"{name} {term.item():g}" for name, term in terms.items())
        where = f"step {state.step} (phase {state.phase + 1}, epoch {state.epoch + 1})"
        raise UserError(f"the {what} is {value.item()} at {where}; the terms were: {values}")


def _validate(training: _Training, phase: Phase, state: TrainingState) -> None:
    rsum = distributed.broadcast_from_first(lambda: _rsum(training, phase, state))
    state.waited = 0 if rsum > max(state.rsums, default=-math.inf) else state.waited + 1
    state.rsums.append(rsum)
    better = rsum > state.best
    if better:
        state.best, state.best_phase, state.best_epoch = rsum, state.phase, state.epoch - 1
        checkpoint.save(training.run, run_folder.BEST, training.model.state_dict())
    best = ", the best so far" if better else ""
    training.setup.progress.say(f"rsum {rsum:.1f} on {training.recipe.validation.split}{best}")


def _rsum(training: _Training, phase: Phase, state: TrainingState) -> float:
    model = cast(Trainable[Any, Any], training.model)
    try:
        rsum, told = training.data.validate(model, phase, training.setup)
    except ValueError as error:
        raise UserError(f"{training.recipe.name} cannot be validated after step {state.step - 1}: {error}") from error
    where = {"phase": state.phase + 1, "epoch": state.epoch, "step": state.step}
    training.log.say(**where, rsum=rsum, best=rsum > state.best, validation=told)
    return rsum
