"""Training from cached features; the weights with the highest rsum on the recipe's validation view are kept.

All chance follows from the seed and the step: a killed run goes on from its last checkpoint, with any number of
processes, and ends as it would have.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch
from xmodal.batches.cluster_classes import read_classes
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts, vocabulary_and_texts
from xmodal.errors import UserError
from xmodal.features.opening import describe_network
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Labels, headline, labels_of
from xmodal.models import Trainable
from xmodal.progress import Progress, Silence
from xmodal.recipes import Features, OnePerClass, Phase, Phrases, Recipe, View, clusters_of, learns_classes
from xmodal.records.caption_sources import named_text
from xmodal.records.views import captions_of_views, classes
from xmodal.root.outputs import Output
from xmodal.training import checkpoint, optimisers, run_folder
from xmodal.training.checkpoint import Log, TrainingState
from xmodal.training.closed_form import write_run
from xmodal.training.finetuning import WithBackbone, attach_backbone, attach_empty_backbone
from xmodal.training.picture_crops import picture_reader
from xmodal.training.recipe_limits import refuse_unbuilt
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import check_device, measure, refuse_common
from xmodal.training.words import NO_WORDS, known_words, sha256_of_vectors, word_vectors

LOG_EVERY, SAVE_EVERY = 10, 500  # steps; the state is saved after every epoch too
TRIED = 8  # pairs that tell the names of the objective's terms


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
        started, data = _open(recipe, setup, run)
        recipe = started.recipe
        known = _announce(started, data, setup.progress)
        devices = [device] if torch.device(device).type == "cuda" else []
        with _threads(setup.threads), torch.random.fork_rng(devices):
            model = _model(started, setup, run, data)
            with _locked(run, started), checkpoint.open_log(run, tensorboard) as log:
                return _run_phases(_Training(recipe, setup, run, model, data, log), known)


@dataclass(frozen=True, eq=False)
class _Data:
    train: Reader
    unannotated: Reader | None
    validation: Reader
    labels: Labels  # of the validation's items
    pictures: FeatureStore | None  # of the pixels stage or the frames stage, if a phase reads them

    def pictured(self, reader: Reader, phase: Phase) -> Reader:
        if phase.pixels is None:
            return reader
        assert self.pictures is not None
        return picture_reader(reader, self.pictures, phase.pixels)

    def streams(self, phase: Phase) -> dict[str, Reader]:
        """The readers that the batches of a phase come from, by stream."""
        readers = {ANNOTATED: self.train} | ({UNANNOTATED: self.unannotated} if self.unannotated else {})
        return {name: self.pictured(reader, phase) for name, reader in readers.items()}


def _open(recipe: Recipe, setup: Setup, run: str) -> tuple[Run, _Data]:
    tables = setup.tables(recipe.view.corpus)
    recipe = _with_named_texts(recipe, tables)
    store = setup.store(recipe.visual.stage, tables, recipe.model)
    pictures = setup.pictures(store, tables) if any(phase.pixels for phase in recipe.phases) else None
    views = (recipe.view, recipe.validation, *([recipe.unannotated] if recipe.unannotated else []))
    learned, chosen_on, *others = captions_of_views(tables, views)
    others = [some for some in others if some.items]  # none where every item is annotated
    if isinstance(recipe.text, Features):
        tokens, vocabulary, dense = None, NO_WORDS, setup.texts_of(recipe.text, tables, store)
        texts: list[Texts | FeatureStore] = [dense]
    else:
        tokens, known, dense = recipe.text, run_folder.read_vocabulary(run), None
        vocabulary, encoded = vocabulary_and_texts(tables, recipe.view, [learned, *others], tokens, known)
        texts = [*encoded]
    train = Examples.among(learned, recipe.view, store, texts[0])
    validation = Examples.among(chosen_on, recipe.validation, store, vocabulary if dense is None else dense)
    unannotated = Examples.among(others[0], views[-1], store, texts[1]) if others else None
    del learned, chosen_on, others
    pa.default_memory_pool().release_unused()  # the captions' columns, which Arrow would keep
    refuse_common(recipe.view, train, recipe, validation)
    if unannotated:
        refuse_common(views[-1], unannotated, recipe, validation)
    clusters = setup.clusters(recipe, tables, store) if clusters_of(recipe.model) else None
    labels = _classes(recipe, tables, clusters, train.ids)
    started = Run(
        recipe,
        tables.identity,
        store.output.identity,
        vocabulary,
        store.spec.row_shape[-1],
        instances=int(labels.max()) + 1 if labels is not None and learns_classes(recipe.model) else len(train.ids),
        weights=describe_network(store),
        vectors=sha256_of_vectors(recipe, run, setup.vectors),
        pixels=pictures.output.identity if pictures else "",
        texts="" if dense is None else dense.output.identity,
        text_width=0 if dense is None else math.prod(dense.spec.row_shape),
        clusters=clusters.identity if clusters else "",
    )
    read = Reader(train, store, recipe.visual, tokens, labels)
    chosen = Reader(validation, store, recipe.visual, tokens)
    other = Reader(unannotated, store, recipe.visual, tokens) if unannotated else None
    data = _Data(read, other, chosen, labels_of(tables, validation.ids), pictures)
    for phase in recipe.phases:  # refuses pictures that do not fit
        data.streams(phase)
        data.pictured(chosen, phase)
    return started, data


def _classes(recipe: Recipe, tables: Output, clusters: Output | None, ids: Sequence[str]) -> NDArray[np.int64] | None:
    """(ids,): the classes that k-means found, or those of the corpus if the model or a sampler asks for them."""
    if clusters:
        return read_classes(clusters, ids)
    is_asked = learns_classes(recipe.model) or any(isinstance(phase.sampler, OnePerClass) for phase in recipe.phases)
    return classes(tables, ids) if is_asked else None


def _with_named_texts(recipe: Recipe, tables: Output) -> Recipe:
    """Names the outputs that captions are read from, so that a run goes on with these alone."""

    def named(view: View) -> View:
        return replace(view, text=named_text(tables, view.text))

    unannotated = recipe.unannotated and named(recipe.unannotated)
    return replace(recipe, view=named(recipe.view), validation=named(recipe.validation), unannotated=unannotated)


def _announce(started: Run, data: _Data, progress: Progress) -> tuple[int, float]:
    recipe, train, validation = started.recipe, data.train.examples, data.validation.examples
    progress.say(f"{recipe.name}: {train.counted()} to train on, {validation.counted()} to choose on")
    if recipe.unannotated:
        other = data.unannotated and data.unannotated.examples.counted(recipe.unannotated.source)
        progress.say(f"beside them {other or 'no items without captions, so that only the captions train'}")
    is_dense = isinstance(recipe.text, Features)
    known = (0, 1.0) if is_dense else known_words(recipe, train, started.vocabulary, progress)
    if len(validation.ids) == 1:
        progress.say("one item to choose on is always found: R@1 is 100, and the first epoch stays the best")
    if data.train.classes is None and recipe.batch_size > len(train.words):
        progress.say(
            f"batch_size {recipe.batch_size:,} is more than the {len(train.words):,} captions there are: "
            "every epoch is one step of them all"
        )
    return known


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before if count is None else count)
        yield
    finally:
        torch.set_num_threads(before)


def _model(started: Run, setup: Setup, run: str, data: _Data) -> nn.Module:
    recipe = started.recipe
    vectors = word_vectors(setup.vectors, data.train.examples, started.vocabulary, setup.progress)
    torch.manual_seed(recipe.seed)
    model = run_folder.network(run, started, vectors)
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise UserError(f"{recipe.name}: {type(model).__name__} has no objective(batch) to be trained by")
    model = model.to(setup.device)
    distributed.refuse_dropout(model)
    for phase in recipe.phases:
        optimisers.check(model, phase)
    if not run_folder.has_state(run):
        _check_terms(model, recipe, data, setup.device)
    return model


def _check_terms(model: nn.Module, recipe: Recipe, data: _Data, device: str) -> None:
    """Tries the objective on a few pairs, with a copy of the buffers."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters() if weight.requires_grad})
    streams = data.streams(replace(recipe.phases[0], pixels=None))
    few = Loader(streams, TRIED * distributed.world(), device=device, dtype=torch.float32)
    terms = _objective(copied, next(iter(few)))
    for phase in recipe.phases:
        optimisers.check_terms(terms, phase.weights)


@contextmanager
def _locked(run: str, started: Run) -> Iterator[None]:
    if distributed.rank() == 0:
        run_folder.refuse_another(run, started)
    with run_folder.held(run) if distributed.rank() == 0 else nullcontext():
        distributed.first_rank_first(lambda: run_folder.start(run, started))
        yield


def _loader(recipe: Recipe, phase: Phase, streams: dict[str, Reader], device: str) -> Loader:
    assert not isinstance(phase.sampler, Phrases)  # training refuses it before
    settings: dict[str, Any] = {"sampler": phase.sampler, "seed": recipe.seed, "device": device, "dtype": torch.float32}
    return Loader(streams, recipe.batch_size, captions=phase.captions, **settings)


def _objective(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    with distributed.whole_batch(batch):
        return cast(Trainable[Any, Any], model).objective(batch)


@dataclass(eq=False)
class _Training:
    recipe: Recipe
    setup: Setup
    run: str
    model: nn.Module
    data: _Data
    log: Log

    @cached_property
    def loaders(self) -> list[Loader]:
        recipe, data, device = self.recipe, self.data, self.setup.device
        return [_loader(recipe, phase, data.streams(phase), device) for phase in recipe.phases]

    @cached_property
    def steps(self) -> int:
        return sum(len(loader) * phase.epochs for loader, phase in zip(self.loaders, self.recipe.phases, strict=True))

    def attach_backbone(self) -> None:
        if not isinstance(self.model, WithBackbone):
            self.model = attach_backbone(self.model, self.data.train.store, self.setup.weights).to(self.setup.device)

    def load(self, state: dict[str, Any]) -> None:
        if any(name.startswith("trunk.") for name in state):
            self.model = attach_empty_backbone(self.model, self.data.train.store).to(self.setup.device)
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
    setup, data = training.setup, training.data
    model, reader = cast(Trainable[Any, Any], training.model), data.pictured(data.validation, phase)
    try:
        scores = headline(measure(model, reader, setup.progress, setup.device, labels=data.labels))
    except ValueError as error:
        raise UserError(f"{training.recipe.name} cannot be validated after step {state.step - 1}: {error}") from error
    where = {"phase": state.phase + 1, "epoch": state.epoch, "step": state.step}
    training.log.say(**where, rsum=scores.rsum, best=scores.rsum > state.best, validation=scores.as_json())
    return scores.rsum
