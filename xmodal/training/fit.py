"""Training from cached features, exactly as a recipe says.

The weights with the highest rsum on the recipe's validation view are kept; no test split can be named here. All chance
follows from the seed and the step, so a run that was killed goes on from where it was last saved, with any number of
processes, and ends as it would have ended.

Several processes (torchrun) share every batch: see `batches.distributed`. The batch normalisation of a backbone that
reads pictures sees each process's own part: freeze it to train as one process.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from xmodal.batches import distributed
from xmodal.batches.batch import Batch
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.batches.texts import vocabulary_and_texts
from xmodal.errors import UserError
from xmodal.features.opening import describe_network, open_features
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Labels, headline, labels_of
from xmodal.models import Trainable
from xmodal.progress import Progress, Silence
from xmodal.recipes import OnePerClass, Phase, Recipe
from xmodal.records.views import captions_of_views, classes
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output
from xmodal.text.vocabularies import Vocabulary
from xmodal.training import checkpoint, optimisers, run_folder
from xmodal.training.checkpoint import Log, TrainingState
from xmodal.training.finetuning import WithBackbone, attach_backbone, attach_empty_backbone
from xmodal.training.picture_crops import picture_reader
from xmodal.training.recipe_limits import refuse_unbuilt
from xmodal.training.run_folder import Run
from xmodal.training.validation import check_device, measure
from xmodal.training.words import KnownWords, sha256_of_vectors, tokens_of, word_vectors

LOG_EVERY, SAVE_EVERY = 10, 500  # steps; the state is saved after every epoch too


@dataclass(frozen=True)
class Outcome:
    """A finished run, and the validation that its weights are from."""

    run: str
    rsum: float
    phase: int  # from 1, as is `epoch`
    epoch: int
    steps: int
    trained: bool  # by this call; False where the run was finished already
    words: int  # that the run knows
    known_words: float  # their share of the words of the training captions


def fit(
    recipe: Recipe,
    root: str,
    run: str,
    *,
    records: str | None = None,
    features: str | None = None,
    pixels: str | None = None,
    vectors: str | None = None,
    weights: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    tensorboard: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Trains in the folder `run`, or goes on there.

    `records`, `features` and `pixels` are identities, for a root that has several outputs of a stage. `vectors` is the
    file of word vectors that the recipe names, `weights` that of the features' network, if a phase trains that network
    and it is not one of torchvision's. `threads` are torch's: small steps take longer on several than on one.
    """
    check_device(device)
    run_folder.check_folder(run)
    refuse_unbuilt(recipe)
    with distributed.process_group(device):
        device = distributed.own_device(device)
        progress = Silence() if progress is None or distributed.rank() else progress
        tables = find_output(root, "records", records, corpus=recipe.view.corpus)
        store = open_features(root, recipe.visual.stage, features, tables, recipe.model)
        squares = open_features(root, "pixels", pixels, tables) if any(p.pixels for p in recipe.phases) else None
        vocabulary, train, validation = _examples(recipe, tables, store, run)
        pa.default_memory_pool().release_unused()  # the captions' columns, which Arrow would keep
        _refuse_common(recipe, train, validation)
        started = Run(
            recipe,
            tables.identity,
            store.output.identity,
            vocabulary,
            visual_width=store.spec.row_shape[-1],
            instances=len(train.ids),
            weights=describe_network(store),
            vectors=sha256_of_vectors(recipe, run, vectors),
            pixels=squares.output.identity if squares else "",
        )
        progress.say(f"{recipe.name}: {_counted(train)} to train on, {_counted(validation)} to choose on")
        known = KnownWords.of(train, vocabulary)
        known.tell(recipe, progress)
        by_class = any(isinstance(phase.sampler, OnePerClass) for phase in recipe.phases)
        if not by_class and recipe.batch_size > len(train.words):
            progress.say(
                f"batch_size {recipe.batch_size:,} is more than the {len(train.words):,} captions there are: "
                "every epoch is one step of them all"
            )
        devices = [device] if torch.device(device).type == "cuda" else []
        with _threads(threads), torch.random.fork_rng(devices):
            seen = [Reader(examples, store, recipe.visual, tokens_of(recipe)) for examples in (train, validation)]
            if by_class:
                seen[0] = replace(seen[0], classes=classes(tables, train.ids))
            model = _model(run, started, device, word_vectors(vectors, train, vocabulary, progress))
            distributed.refuse_dropout(model)
            for phase in recipe.phases:
                optimisers.check(model, phase)
            readers = _Readers(seen[0], seen[1], squares, labels_of(tables, validation.ids))
            # what was refused until here has written nothing
            with _locked(run, started), checkpoint.open_log(run, tensorboard) as log:
                return _run_phases(_Training(recipe, run, model, readers, weights, device, progress, log), known)


def _examples(recipe: Recipe, tables: Output, store: FeatureStore, run: str) -> tuple[Vocabulary, Examples, Examples]:
    """Reads the examples to train and to choose on; a run that goes on knows its words already."""
    learned, chosen_on = captions_of_views(tables, (recipe.view, recipe.validation))
    known = run_folder.read_vocabulary(run)
    vocabulary, texts = vocabulary_and_texts(tables, recipe.view, learned, tokens_of(recipe), known)
    train = Examples.among(learned, recipe.view, store, texts)
    validation = Examples.among(chosen_on, recipe.validation, store, vocabulary)
    return vocabulary, train, validation


@contextmanager
def _locked(run: str, started: Run) -> Iterator[None]:
    """The first process locks the folder for all of them."""
    if distributed.rank() == 0:
        run_folder.refuse_another(run, started)
    with run_folder.held(run) if distributed.rank() == 0 else nullcontext():
        distributed.first_rank_first(lambda: run_folder.start(run, started))
        yield


@dataclass(frozen=True, eq=False)
class _Readers:
    train: Reader
    validation: Reader
    squares: FeatureStore | None
    labels: Labels  # of the validation's items

    def of(self, phase: Phase) -> "_Readers":
        """The readers of a phase: of features, or of the same items as pictures."""
        if phase.pixels is None:
            return self
        assert self.squares is not None
        return replace(
            self,
            train=picture_reader(self.train, self.squares, phase.pixels),
            validation=picture_reader(self.validation, self.squares, phase.pixels),
        )


@dataclass(eq=False)
class _Training:
    recipe: Recipe
    run: str
    model: nn.Module
    readers: "_Readers"
    weights: str | None
    device: str
    progress: Progress
    log: Log

    def enter(self, phase: Phase) -> None:
        """Attaches the network that made the features, if the phase reads pictures; it stays for later phases."""
        if phase.pixels and not isinstance(self.model, WithBackbone):
            file = Path(self.weights) if self.weights else None
            self.model = attach_backbone(self.model, self.readers.train.store, file).to(self.device)

    def load(self, state: dict[str, Any]) -> None:
        if any(name.startswith("trunk.") for name in state) and not isinstance(self.model, WithBackbone):
            self.model = attach_empty_backbone(self.model, self.readers.train.store).to(self.device)
        self.model.load_state_dict(state)

    @cached_property
    def loaders(self) -> list[Loader]:
        """One for each phase."""
        size, seed = self.recipe.batch_size, self.recipe.seed
        settings: dict[str, Any] = {"seed": seed, "device": self.device, "dtype": torch.float32}
        loaders = []
        for phase in self.recipe.phases:
            sampler = phase.sampler if isinstance(phase.sampler, OnePerClass) else None
            loaders.append(Loader(self.readers.of(phase).train, size, sampler=sampler, **settings))
        return loaders

    @cached_property
    def steps(self) -> int:
        return sum(len(loader) * phase.epochs for loader, phase in zip(self.loaders, self.recipe.phases, strict=True))

    def save(self, state: TrainingState, optimiser: Optimizer) -> None:
        checkpoint.save_state(self.run, self.log, state, self.model, optimiser)


def _run_phases(training: _Training, known: KnownWords) -> Outcome:
    state, saved = _resumed(training)
    before = state.step
    for number in range(state.phase, len(training.recipe.phases)):
        phase = training.recipe.phases[number]
        training.enter(phase)
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
                _validate(training, state)
            training.save(state, optimiser)
        state.phase, state.epoch, state.rsums, state.waited = number + 1, 0, [], 0
        training.save(state, optimiser)
    return Outcome(
        training.run,
        state.best,
        state.best_phase + 1,
        state.best_epoch + 1,
        state.step,
        trained=state.step > before,
        words=known.words,
        known_words=known.share,
    )


def _train_epoch(training: _Training, phase: Phase, optimiser: Optimizer, state: TrainingState) -> None:
    training.model.train()
    optimisers.evaluate_frozen(training.model)
    now = optimisers.rate(phase.optimiser, state.epoch, state.rsums)
    for group in optimiser.param_groups:
        group["lr"] = now * group["multiplier"]
    loader = training.loaders[state.phase]
    # no phase repeats another's order
    before = sum(earlier.epochs for earlier in training.recipe.phases[: state.phase])
    loader.load_state_dict({"seed": training.recipe.seed, "epoch": before + state.epoch, "cursor": state.cursor})
    name = f"phase {state.phase + 1} " if len(training.recipe.phases) > 1 else ""
    name += f"epoch {state.epoch + 1}"
    with training.progress.over(name, len(loader), state.cursor // loader.batch_size, unit="steps") as tick:
        for batch in loader:
            _step(training, phase, optimiser, state, replace(batch, progress=state.step / training.steps))
            state.step, state.cursor = state.step + 1, loader.cursor
            if state.step % SAVE_EVERY == 0 and state.cursor:  # at the end of an epoch it is saved once it was measured
                training.save(state, optimiser)
            tick(1)


def _step(training: _Training, phase: Phase, optimiser: Optimizer, state: TrainingState, batch: Batch) -> None:
    seed = np.random.SeedSequence([training.recipe.seed, state.step]).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(seed >> 1))
    with torch.autocast(torch.device(training.device).type, torch.bfloat16, training.recipe.precision == "mixed"):
        with distributed.without_borrowed_rows(batch):
            terms = cast(Trainable[Any, Any], training.model).objective(batch)
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


def _validate(training: _Training, state: TrainingState) -> None:
    """Keeps the weights if they are the best so far."""
    rsum = distributed.broadcast_from_first(lambda: _measured(training, state))
    state.waited = 0 if rsum > max(state.rsums, default=-math.inf) else state.waited + 1
    state.rsums.append(rsum)
    better = rsum > state.best
    if better:
        state.best, state.best_phase, state.best_epoch = rsum, state.phase, state.epoch - 1
        checkpoint.save(training.run, run_folder.BEST, training.model.state_dict())
    found = f"rsum {rsum:.1f} on {training.recipe.validation.split}"
    training.progress.say(f"{found}, the best so far" if better else found)


def _measured(training: _Training, state: TrainingState) -> float:
    try:
        reader = training.readers.of(training.recipe.phases[state.phase]).validation
        model = cast(Trainable[Any, Any], training.model)
        scores = headline(measure(model, reader, training.progress, training.device, labels=training.readers.labels))
    except ValueError as error:
        raise UserError(f"{training.recipe.name} cannot be validated after step {state.step - 1}: {error}") from error
    better = scores.rsum > state.best
    where = {"phase": state.phase + 1, "epoch": state.epoch, "step": state.step}
    training.log.say(**where, rsum=scores.rsum, best=better, validation=scores.as_json())
    return scores.rsum


def _resumed(training: _Training) -> tuple[TrainingState, dict[str, Any] | None]:
    """Reads the state that was saved last, and cuts off what was logged after it."""
    distributed.wait_for_all()
    saved = checkpoint.read_last(training.run)
    if saved is None:
        training.log.cut(0)
        return TrainingState(), None
    with checkpoint.blaming_last(training.run):
        training.load(saved["model"])
        state = checkpoint.state_of(saved, len(training.recipe.phases))
    training.log.cut(state.log_bytes)
    return state, saved


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _model(run: str, started: Run, device: str, word_vectors: NDArray[np.float32] | None) -> nn.Module:
    torch.manual_seed(started.recipe.seed)
    model = run_folder.network(run, started, word_vectors)
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise UserError(f"{started.recipe.name}: {type(model).__name__} does not learn by gradients")
    return model.to(device)


def _counted(examples: Examples) -> str:
    counts = f"{len(examples.ids):,} items with {len(examples.words):,} captions"
    features, captions = examples.items_without_features, examples.items_without_captions
    left_out = f" ({features} left out without features, {captions} without captions)"
    return counts + left_out if features or captions else counts


def _refuse_infinite(what: str, value: Tensor, terms: Mapping[str, Tensor], state: TrainingState) -> None:
    if not math.isfinite(value.item()):
        values = ", ".join(f"{name} {term.item():g}" for name, term in terms.items())
        where = f"step {state.step} (phase {state.phase + 1}, epoch {state.epoch + 1})"
        raise UserError(f"the {what} is {value.item()} at {where}; the terms were: {values}")


def _refuse_common(recipe: Recipe, train: Examples, validation: Examples) -> None:
    """Refuses to choose weights on items that they were trained on."""
    if common := sorted(set(train.ids).intersection(validation.ids)):
        raise UserError(
            f"recipe {recipe.name!r}: {len(common):,} items are in both {recipe.view.split!r} and "
            f"{recipe.validation.split!r}, such as {common[0]!r}: validate on items that are not trained on"
        )
