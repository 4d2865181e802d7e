"""Training from cached features: what a recipe says, and nothing that it does not.

Choosing happens on the recipe's validation view; there is no way to name a test split here. The weights kept are those
with the highest rsum there, the first of equals; where the corpus has classes or identities, what is right goes by
them. All chance comes from the seed and the step, so a run that was killed goes on from where it was last saved, with
any number of processes, and ends as it would have ended.

Several processes (torchrun) share every batch: see `together`. The first one alone writes and validates. What a trunk's
batch normalisation learns from pictures is of each process's own part, so freeze it to train as one process would.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from xmodal.batches import distributed
from xmodal.batches.batch import Batch
from xmodal.batches.dataset import Examples, vocabulary
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.opening import made_by, open_features
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Labels, headline, labels_of
from xmodal.models import Trainable
from xmodal.progress import Progress, Silence
from xmodal.recipes import OnePerClass, Phase, Recipe, Tokens
from xmodal.records.views import classes
from xmodal.root.outputs import Output
from xmodal.root.selection import choose
from xmodal.root.storage import LocalStorage
from xmodal.text.vocabularies import SPECIALS, UNKNOWN, Vocabulary
from xmodal.text.word_vectors import MB, Coverage, in_megabytes, read_vectors, vectors_sha256
from xmodal.training import checkpoint, optimisers, run_folder
from xmodal.training.checkpoint import Log, Place
from xmodal.training.finetuning import Fronted, front, front_without_weights
from xmodal.training.picture_crops import pictures
from xmodal.training.run_folder import Run
from xmodal.training.validation import check_device, measure

LOG_EVERY, SAVE_EVERY = 10, 500  # steps; a place is saved after every epoch too


@dataclass(frozen=True)
class Outcome:
    """A finished run, and the validation that its weights are from."""

    run: str
    rsum: float
    phase: int
    epoch: int
    steps: int
    trained: bool  # by this call; False where the run was finished already


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
    """Trains in the folder `run`, or goes on there. Where a root has several outputs, identities say which are read.

    `vectors` is the file of word vectors that the recipe names, `weights` that of the network of the features, where
    a phase trains it too and it is not one of torchvision's. `threads` are torch's, as they are unless given: small
    steps take longer on several than on one. With `tensorboard` the run has a folder of that name too.
    """
    check_device(device)
    run_folder.check_folder(run)
    _refuse_unbuilt(recipe)
    with distributed.joined(device):
        device, progress = distributed.own_device(device), (progress if distributed.rank() == 0 else None) or Silence()
        tables = choose(root, "records", records, corpus=recipe.view.corpus)
        store = open_features(root, recipe.visual.stage, features, tables, recipe.model)
        squares = open_features(root, "pixels", pixels, tables) if any(p.pixels for p in recipe.phases) else None
        vocabulary = _vocabulary(recipe, tables, run)
        train, validation = (Examples.of(tables, view, store, vocabulary) for view in (recipe.view, recipe.validation))
        _refuse_common(recipe, train, validation)
        started = Run(
            *(recipe, tables.identity, store.output.identity, vocabulary, store.spec.row_shape[-1], len(train.ids)),
            weights=made_by(store),
            vectors=_vectors_sha256(recipe, run, vectors),
            pixels=squares.output.identity if squares else "",
        )
        progress.say(f"{recipe.name}: {_counted(train)} to train on, {_counted(validation)} to choose on")
        _tell_words(recipe, train, vocabulary, progress)
        _tell_large_batch(recipe, train, progress)
        devices = [device] if torch.device(device).type == "cuda" else []
        with _threads(threads), torch.random.fork_rng(devices):
            seen = [Reader(examples, store, recipe.visual, _tokens(recipe)) for examples in (train, validation)]
            if any(isinstance(phase.sampler, OnePerClass) for phase in recipe.phases):
                seen[0] = replace(seen[0], classes=classes(tables, train.ids))
            model = _model(run, started, device, _word_vectors(vectors, train, vocabulary, progress))
            distributed.refuse_dropout(model)
            for phase in recipe.phases:
                optimisers.check(model, phase)
            readers = _Readers(seen[0], seen[1], squares, labels_of(tables, validation.ids))
            with (
                _held(run, started),
                checkpoint.open_log(run, tensorboard) as log,
            ):  # what is refused before writes nothing
                return _go(_Work(recipe, run, model, readers, weights, device, progress, log))


@contextmanager
def _held(run: str, started: Run) -> Iterator[None]:
    """By the first process for all of them."""
    if distributed.rank() == 0:
        run_folder.refuse_another(run, started)
    with run_folder.held(run) if distributed.rank() == 0 else nullcontext():
        distributed.in_turn(lambda: run_folder.start(run, started))
        yield


@dataclass(frozen=True, eq=False)
class _Readers:
    train: Reader
    validation: Reader
    squares: FeatureStore | None
    labels: Labels  # of the validation's items

    @property
    def features(self) -> FeatureStore:
        return self.train.store

    def of(self, phase: Phase) -> "_Readers":
        """What a phase reads: features, or the same items as pictures."""
        if phase.pixels is None:
            return self
        assert self.squares is not None
        return replace(
            self,
            train=pictures(self.train, self.squares, phase.pixels),
            validation=pictures(self.validation, self.squares, phase.pixels),
        )


@dataclass(eq=False)
class _Work:
    recipe: Recipe
    run: str
    model: nn.Module
    readers: "_Readers"
    weights: str | None
    device: str
    progress: Progress
    log: Log

    def enter(self, phase: Phase) -> None:
        """Where a phase reads pictures, the network that made the features comes in front of the model, and stays."""
        if phase.pixels and not isinstance(self.model, Fronted):
            file = Path(self.weights) if self.weights else None
            self.model = front(self.model, self.readers.features, file).to(self.device)

    def load(self, state: dict[str, Any]) -> None:
        if any(name.startswith("trunk.") for name in state) and not isinstance(self.model, Fronted):
            self.model = front_without_weights(self.model, self.readers.features).to(self.device)
        self.model.load_state_dict(state)

    @cached_property
    def loaders(self) -> list[Loader]:
        """One a phase."""
        size, seed = self.recipe.batch_size, self.recipe.seed
        settings: dict[str, Any] = {"seed": seed, "device": self.device, "dtype": torch.float32}
        samplers = [phase.sampler if isinstance(phase.sampler, OnePerClass) else None for phase in self.recipe.phases]
        return [
            Loader(self.readers.of(phase).train, size, sampler=sampler, **settings)
            for phase, sampler in zip(self.recipe.phases, samplers, strict=True)
        ]

    @cached_property
    def steps(self) -> int:
        return sum(len(loader) * phase.epochs for loader, phase in zip(self.loaders, self.recipe.phases, strict=True))

    def epoch(self, place: Place) -> int:
        """Of the whole training: phases do not repeat each other's orders."""
        return sum(earlier.epochs for earlier in self.recipe.phases[: place.phase]) + place.epoch

    def save(self, place: Place, optimiser: torch.optim.Optimizer) -> None:
        checkpoint.save_place(self.run, self.log, place, self.model, optimiser)


def _go(work: _Work) -> Outcome:
    place, saved = _resumed(work)
    before = place.step
    for number in range(place.phase, len(work.recipe.phases)):
        phase = work.recipe.phases[number]
        work.enter(phase)
        optimisers.freeze(work.model, phase.frozen)
        optimiser = optimisers.build(work.model, phase.optimiser)
        if saved and (place.epoch or place.cursor):
            _resume(work, optimiser, saved)
        saved = None
        while place.epoch < phase.epochs and not _is_over(phase, place):
            _train_epoch(work, phase, optimiser, place)
            place.epoch, place.cursor = place.epoch + 1, 0
            if place.epoch % phase.validate_every == 0 or place.epoch == phase.epochs:
                _validate(work, place)
            work.save(place, optimiser)
        place.phase, place.epoch, place.rsums, place.waited = number + 1, 0, [], 0
        work.save(place, optimiser)
    return Outcome(work.run, place.best, place.best_phase, place.best_epoch, place.step, place.step > before)


def _is_over(phase: Phase, place: Place) -> bool:
    return phase.patience is not None and place.waited >= phase.patience


def _train_epoch(work: _Work, phase: Phase, optimiser: torch.optim.Optimizer, place: Place) -> None:
    work.model.train()
    optimisers.evaluate_frozen(work.model)
    now = optimisers.rate(phase.optimiser, place.epoch, place.rsums)
    for group in optimiser.param_groups:
        group["lr"] = now * group["multiplier"]
    loader = work.loaders[place.phase]
    loader.load_state_dict({"seed": work.recipe.seed, "epoch": work.epoch(place), "cursor": place.cursor})
    name = f"phase {place.phase + 1} " if len(work.recipe.phases) > 1 else ""
    name += f"epoch {place.epoch + 1}"
    with work.progress.over(name, len(loader), place.cursor // loader.batch_size, unit="steps") as tick:
        for batch in loader:
            _step(work, phase, optimiser, place, replace(batch, progress=place.step / work.steps))
            place.step, place.cursor = place.step + 1, loader.cursor
            if place.step % SAVE_EVERY == 0 and place.cursor:  # at the end of an epoch it is saved once it was measured
                work.save(place, optimiser)
            tick(1)


def _step(work: _Work, phase: Phase, optimiser: torch.optim.Optimizer, place: Place, batch: Batch) -> None:
    torch.manual_seed(int(np.random.SeedSequence([work.recipe.seed, place.step]).generate_state(1, np.uint64)[0] >> 1))
    with torch.autocast(torch.device(work.device).type, torch.bfloat16, work.recipe.precision == "mixed"):
        with distributed.sharing(batch):
            terms = cast(Trainable[Any, Any], work.model).objective(batch)
        loss = optimisers.total(terms, phase.weights)
    _refuse_infinite("loss", loss, terms, place)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    distributed.average_gradients(work.model.parameters())
    norm = optimisers.clip(work.model, phase.optimiser)
    _refuse_infinite("gradient's norm", norm, terms, place)
    optimiser.step()
    if place.step % LOG_EVERY == 0:
        values = {name: term.item() for name, term in terms.items()}
        rates = sorted({group["lr"] for group in optimiser.param_groups})
        where = {"phase": place.phase, "epoch": place.epoch, "step": place.step}
        work.log.say(**where, loss=loss.item(), terms=values, norm=norm.item(), rates=rates)


def _validate(work: _Work, place: Place) -> None:
    """Keeps the weights if they are the best so far."""
    rsum = distributed.from_first(lambda: _measured(work, place))
    place.waited = 0 if rsum > max(place.rsums, default=-math.inf) else place.waited + 1
    place.rsums.append(rsum)
    better = rsum > place.best
    if better:
        place.best, place.best_phase, place.best_epoch = rsum, place.phase, place.epoch - 1
        checkpoint.save(work.run, run_folder.BEST, work.model.state_dict())
    work.progress.say(f"rsum {rsum:.1f} on {work.recipe.validation.split}" + ", the best so far" * better)


def _measured(work: _Work, place: Place) -> float:
    try:
        reader = work.readers.of(work.recipe.phases[place.phase]).validation
        model = cast(Trainable[Any, Any], work.model)
        scores = headline(measure(model, reader, work.progress, work.device, labels=work.readers.labels))
    except ValueError as error:
        raise UserError(f"{work.recipe.name} cannot be validated after step {place.step - 1}: {error}") from error
    better = scores.rsum > place.best
    where = {"phase": place.phase, "epoch": place.epoch - 1, "step": place.step}
    work.log.say(**where, rsum=scores.rsum, best=better, validation=scores.as_json())
    return scores.rsum


def _resumed(work: _Work) -> tuple[Place, dict[str, Any] | None]:
    """The place that was saved last; what was logged after it is cut off."""
    distributed.wait_for_all()
    saved = checkpoint.read_last(work.run)
    if saved is None:
        work.log.cut(0)
        return Place(), None
    with checkpoint.blaming_last(work.run):
        work.load(saved["model"])
        place = checkpoint.place_of(saved, len(work.recipe.phases))
    work.log.cut(place.log_bytes)
    return place, saved


def _resume(work: _Work, optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    with checkpoint.blaming_last(work.run):
        optimiser.load_state_dict(saved["optimiser"])
        if any("multiplier" not in group for group in optimiser.param_groups):
            raise ValueError("its optimiser has no multipliers")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _word_vectors(
    file: str | None, train: Examples, vocabulary: Vocabulary, progress: Progress
) -> NDArray[np.float32] | None:
    """Tells how many words have one, the specials aside."""
    if file is None:
        return None
    path, specials = Path(file), len(SPECIALS)
    with progress.over("word vectors", path.stat().st_size // MB, unit="MB") as tick:
        vectors = read_vectors(path, vocabulary.words, tick=in_megabytes(tick))
    words = vocabulary.words[specials:]
    counts = np.bincount(train.words.numbers, minlength=len(vocabulary))[specials:].tolist()
    progress.say(f"{file}: {Coverage.of(words, vectors[specials:], dict(zip(words, counts, strict=True)))}")
    return vectors


def _model(run: str, started: Run, device: str, word_vectors: NDArray[np.float32] | None) -> nn.Module:
    torch.manual_seed(started.recipe.seed)
    model = run_folder.network(run, started, word_vectors)
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise UserError(f"{started.recipe.name}: {type(model).__name__} does not learn by gradients")
    return model.to(device)


def _vocabulary(recipe: Recipe, tables: Output, run: str) -> Vocabulary:
    """Of the training captions; a run that goes on has it already."""
    if (known := run_folder.read_vocabulary(run)) is not None:
        return known
    return vocabulary(tables, recipe.view, _tokens(recipe))


def _vectors_sha256(recipe: Recipe, run: str, file: str | None) -> str:
    """Of the file that the words start from; a run that goes on knows it already."""
    named = _tokens(recipe).vectors
    if file is not None:
        if named is None:
            raise UserError(f"recipe {recipe.name!r} starts its words from no vectors, so {file} is of no use")
        return vectors_sha256(Path(file))
    if named is None:
        return ""
    if LocalStorage(run).size(run_folder.RECIPE) is None:
        raise UserError(
            f"recipe {recipe.name!r} starts its words from {named}: give the file (--vectors FILE), or start them at "
            "random (--set text.vectors=none)"
        )
    if LocalStorage(run).size(run_folder.LAST) is None and run_folder.read(run).vectors:
        raise UserError(f"{run} was stopped before anything was saved: give its word vectors again (--vectors FILE)")
    return run_folder.read(run).vectors


def _tokens(recipe: Recipe) -> Tokens:
    assert isinstance(recipe.text, Tokens)
    return recipe.text


def _counted(examples: Examples) -> str:
    left_out = f" ({examples.absent} left out without features, {examples.silent} without captions)"
    counts = f"{len(examples.ids):,} items with {len(examples.words):,} captions"
    return counts + left_out * bool(examples.absent or examples.silent)


def _tell_words(recipe: Recipe, train: Examples, vocabulary: Vocabulary, progress: Progress) -> None:
    """Says how many words are known; a training on unknown words alone is refused."""
    counts = np.bincount(train.words.numbers, minlength=len(vocabulary))
    known, unknown = int(counts[len(SPECIALS) :].sum()), int(counts[UNKNOWN])
    cure = f"text.minimum_count={_tokens(recipe).minimum_count} decides which words are kept"
    if unknown and not known:
        raise UserError(f"no word of the captions is in the vocabulary, so nothing can be learned of them: {cure}")
    share = unknown / max(1, known + unknown)
    progress.say(
        f"vocabulary: {len(vocabulary) - len(SPECIALS):,} words; {share:.1%} of the captions' words are not in it"
    )
    if share > 0.5:
        progress.say(f"warning: less than half of the captions' words are known: {cure}")


def _tell_large_batch(recipe: Recipe, train: Examples, progress: Progress) -> None:
    by_class = any(isinstance(phase.sampler, OnePerClass) for phase in recipe.phases)
    if not by_class and recipe.batch_size > len(train.words):
        progress.say(
            f"batch_size {recipe.batch_size:,} is more than the {len(train.words):,} captions there are: "
            "every epoch is one step of them all"
        )


def _refuse_infinite(what: str, value: Tensor, terms: Mapping[str, Tensor], place: Place) -> None:
    if not math.isfinite(value.item()):
        values = ", ".join(f"{name} {term.item():g}" for name, term in terms.items())
        where = f"step {place.step} (phase {place.phase + 1}, epoch {place.epoch + 1})"
        raise UserError(f"the {what} is {value.item()} at {where}; the terms were: {values}")


def _refuse_common(recipe: Recipe, train: Examples, validation: Examples) -> None:
    """Weights chosen on what was learned by heart are not chosen."""
    if common := sorted(set(train.ids).intersection(validation.ids)):
        raise UserError(
            f"recipe {recipe.name!r}: {len(common):,} items are in both {recipe.view.split!r} and "
            f"{recipe.validation.split!r}, such as {common[0]!r}: validate on items that are not trained on"
        )


def _refuse_unbuilt(recipe: Recipe) -> None:
    """What a recipe can say and training cannot do yet must not pass as if it were done."""
    if found := unbuilt(recipe):
        seen = [f"--set phase{number}.epochs=0" for number, phase in enumerate(recipe.phases, 1) if phase.pixels]
        without = f"; {' '.join(seen)} leaves that out" if "clips from pixels" in found else ""
        raise UserError(f"recipe {recipe.name!r} asks for what training cannot do: {', '.join(found)}{without}")


def unbuilt(recipe: Recipe) -> list[str]:
    asks = {
        "dense texts": not isinstance(recipe.text, Tokens),
        "an un-annotated stream": recipe.unannotated is not None,
        "a closed form": not recipe.phases,
        "clips from pixels": recipe.visual.frames is not None and any(phase.pixels for phase in recipe.phases),
        "evaluation of whole pictures": any(p.pixels and p.pixels.evaluation != "centre" for p in recipe.phases),
        "features after pictures": any(before.pixels and not after.pixels for before, after in pairwise(recipe.phases)),
        "a sampler": any(not isinstance(phase.sampler, OnePerClass | None) for phase in recipe.phases),
    }
    return [name for name, asked in asks.items() if asked]
