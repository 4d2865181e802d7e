"""Training from cached features: what a recipe says, and nothing that it does not.

Choosing happens on the recipe's validation view; there is no way to name a test split here. The weights kept are those
with the highest rsum there, the first of equals. All chance comes from the seed, the phase and the epoch, so a run that
was killed goes on after its last whole epoch and ends as it would have ended.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from xmodal import runs
from xmodal.batches import Batch, Loader, Reader
from xmodal.dataset import Examples, captions, choose, made_by, open_features
from xmodal.evaluation import Progress, Silence, check_device, measure, read_tensors
from xmodal.models import Cosine, Optimiser, Phase, Plateau, Recipe, Relative, Step, Tokens, Trainable
from xmodal.outputs import Output
from xmodal.runs import Run
from xmodal.storage import LocalStorage
from xmodal.text import Vocabulary
from xmodal.trouble import Trouble

LOG_EVERY = 10  # steps
RULES: dict[str, Callable[[Any, Optimiser], torch.optim.Optimizer]] = {
    "adam": lambda groups, o: Adam(groups, o.learning_rate, weight_decay=o.weight_decay),
    "amsgrad": lambda groups, o: Adam(groups, o.learning_rate, weight_decay=o.weight_decay, amsgrad=True),
    "sgd": lambda groups, o: SGD(groups, o.learning_rate, o.momentum, weight_decay=o.weight_decay),
    "nesterov": lambda groups, o: SGD(groups, o.learning_rate, o.momentum, 0, o.weight_decay, nesterov=True),
}


@dataclass
class Place:
    """How far a run is: saved beside the weights, and all that decides how it goes on. Everything counts from 0."""

    phase: int = 0
    epoch: int = 0  # of the phase: those before it are whole
    step: int = 0
    rsums: list[float] = field(default_factory=list)  # of the phase: a plateau goes by them
    best: float = -math.inf
    best_phase: int = 0
    best_epoch: int = 0
    log_bytes: int = 0


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
    device: str = "cpu",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Trains in the folder `run`, or goes on there. Where a root has several outputs, identities say which are read.

    `threads` are torch's, as they are unless given: small steps take longer on several than on one.
    """
    check_device(device)
    _refuse_unbuilt(recipe)
    progress = progress or Silence()
    tables = choose(root, "records", records, corpus=recipe.view.corpus)
    store = open_features(root, recipe.visual.stage, features, tables)
    vocabulary = _vocabulary(recipe, tables, run)
    train, validation = (Examples.of(tables, view, store, vocabulary) for view in (recipe.view, recipe.validation))
    _refuse_common(recipe, train, validation)
    of, width = (tables.identity, store.output.identity), store.spec.row_shape[-1]
    started = Run(recipe, *of, vocabulary, width, len(train.ids), made_by(store))
    runs.start(run, started)
    progress.say(f"{recipe.name}: {_counted(train)} to train on, {_counted(validation)} to choose on")
    devices = [device] if torch.device(device).type == "cuda" else []
    with _threads(threads), torch.random.fork_rng(devices), _log(run) as log:
        model = _model(run, started, device)
        loader = Loader(
            Reader(train, store, recipe.visual), recipe.batch_size, seed=recipe.seed, device=device, dtype=torch.float32
        )
        chooser = Reader(validation, store, recipe.visual)
        return _go(_Work(recipe, run, model, loader, chooser, device, progress, log))


def rate(optimiser: Optimiser, epoch: int, rsums: Sequence[float]) -> float:
    """Of an epoch of a phase, from 0, after validations with these rsums."""
    first = optimiser.learning_rate
    match optimiser.schedule:
        case Step(after, factor):
            return first * factor ** sum(epoch >= passed for passed in after)
        case Cosine(epochs):
            return first * (1 + math.cos(math.pi * min(epoch, epochs) / epochs)) / 2
        case Plateau() as plateau:
            return _after_plateaus(first, plateau, rsums)
        case None:
            return first


def total(terms: Mapping[str, Tensor], weights: Mapping[str, float | Relative]) -> Tensor:
    """The weighted sum; a relative weight is a constant to the gradient."""
    if terms.keys() != weights.keys():
        raise ValueError(f"the objective has the terms {sorted(terms)}, the phase weighs {sorted(weights)}")
    return torch.stack([_weight(terms, name, weights[name]) * term for name, term in terms.items()]).sum()


@dataclass(frozen=True, eq=False)
class _Work:
    recipe: Recipe
    run: str
    model: nn.Module
    loader: Loader
    validation: Reader
    device: str
    progress: Progress
    log: BinaryIO

    @property
    def steps(self) -> int:
        return len(self.loader) * sum(phase.epochs for phase in self.recipe.phases)

    def say(self, **facts: object) -> None:
        self.log.write(json.dumps(facts).encode() + b"\n")


def _go(work: _Work) -> Outcome:
    place, saved = _resumed(work)
    before = place.step
    for number in range(place.phase, len(work.recipe.phases)):
        phase = work.recipe.phases[number]
        _freeze(work.model, phase.frozen)
        optimiser = RULES[phase.optimiser.rule](_groups(work.model, phase.optimiser), phase.optimiser)
        if saved and place.epoch:
            _resume(work, optimiser, saved)
        while place.epoch < phase.epochs:
            _train_epoch(work, phase, optimiser, place)
            place.epoch += 1
            if place.epoch % phase.validate_every == 0 or place.epoch == phase.epochs:
                _validate(work, place)
            if place.epoch < phase.epochs:
                _save_place(work, place, optimiser)
        place.phase, place.epoch, place.rsums = number + 1, 0, []
        _save_place(work, place, optimiser)
    return Outcome(work.run, place.best, place.best_phase, place.best_epoch, place.step, place.step > before)


def _train_epoch(work: _Work, phase: Phase, optimiser: torch.optim.Optimizer, place: Place) -> None:
    chance = np.random.default_rng([work.recipe.seed, place.phase, place.epoch])
    torch.manual_seed(int(chance.integers(2**63)))
    work.model.train()
    _evaluate_frozen(work.model)
    now = rate(phase.optimiser, place.epoch, place.rsums)
    for group in optimiser.param_groups:
        group["lr"] = now * group["multiplier"]
    name = f"phase {place.phase} epoch {place.epoch}" if len(work.recipe.phases) > 1 else f"epoch {place.epoch}"
    work.loader.set_epoch(sum(earlier.epochs for earlier in work.recipe.phases[: place.phase]) + place.epoch)
    with work.progress.over(name, len(work.loader), unit="steps") as tick:
        for batch in work.loader:
            _step(work, phase, optimiser, place, replace(batch, progress=place.step / work.steps))
            place.step += 1
            tick(1)


def _step(work: _Work, phase: Phase, optimiser: torch.optim.Optimizer, place: Place, batch: Batch) -> None:
    terms = cast(Trainable[Any, Any], work.model).objective(batch)
    loss = total(terms, phase.weights)
    _refuse_infinite("loss", loss, terms, place)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = _clip(work.model, phase.optimiser)
    _refuse_infinite("gradient's norm", norm, terms, place)
    optimiser.step()
    if place.step % LOG_EVERY == 0:
        values = {name: term.item() for name, term in terms.items()}
        rates = sorted({group["lr"] for group in optimiser.param_groups})
        where = {"phase": place.phase, "epoch": place.epoch, "step": place.step}
        work.say(**where, loss=loss.item(), terms=values, norm=norm.item(), rates=rates)


def _validate(work: _Work, place: Place) -> None:
    """Keeps the weights if they are the best so far."""
    try:
        scores = measure(cast(Trainable[Any, Any], work.model), work.validation, work.progress, work.device)["all"]
    except ValueError as error:
        raise Trouble(f"{work.recipe.name} cannot be validated after step {place.step - 1}: {error}") from error
    place.rsums.append(scores.rsum)
    better = scores.rsum > place.best
    if better:
        place.best, place.best_phase, place.best_epoch = scores.rsum, place.phase, place.epoch - 1
        _save(work.run, runs.BEST, work.model.state_dict())
    work.say(phase=place.phase, epoch=place.epoch - 1, rsum=scores.rsum, best=better, validation=asdict(scores))
    work.progress.say(f"rsum {scores.rsum:.1f} on {work.recipe.validation.split}" + ", the best so far" * better)


def _resumed(work: _Work) -> tuple[Place, dict[str, Any] | None]:
    """The place after the last whole epoch; what was logged after it is cut off."""
    if LocalStorage(work.run).size(runs.LAST) is None:
        work.log.truncate(0)
        return Place(), None
    saved = read_tensors(work.run, runs.LAST)
    with _blaming_last(work):
        work.model.load_state_dict(saved["model"])
        place = Place(**saved["place"])
        _check_place(place, len(work.recipe.phases))
    work.log.truncate(min(place.log_bytes, work.log.tell()))
    return place, saved


def _resume(work: _Work, optimiser: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    with _blaming_last(work):
        optimiser.load_state_dict(saved["optimiser"])
        if any("multiplier" not in group for group in optimiser.param_groups):
            raise ValueError("its optimiser has no multipliers")


@contextmanager
def _blaming_last(work: _Work) -> Iterator[None]:
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Trouble(f"{work.run}/{runs.LAST} is no state of this run: {type(error).__name__}: {error}") from error


def _check_place(place: Place, phases: int) -> None:
    wrong = [name for name, value in asdict(Place()).items() if type(getattr(place, name)) is not type(value)]
    if wrong or not 0 <= place.phase <= phases or min(place.epoch, place.step, place.log_bytes) < 0:
        raise ValueError(f"its place is impossible: {place}")


def _save_place(work: _Work, place: Place, optimiser: torch.optim.Optimizer) -> None:
    work.log.flush()
    os.fsync(work.log.fileno())
    place.log_bytes = os.fstat(work.log.fileno()).st_size
    state = {"place": asdict(place), "model": work.model.state_dict(), "optimiser": optimiser.state_dict()}
    _save(work.run, runs.LAST, state)


def _save(run: str, name: str, state: object) -> None:
    buffer = BytesIO()
    torch.save(state, buffer)
    LocalStorage(run).write(name, buffer.getvalue())


def _log(run: str) -> BinaryIO:
    return (Path(run) / runs.LOG).open("ab")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _model(run: str, started: Run, device: str) -> nn.Module:
    torch.manual_seed(started.recipe.seed)
    model = runs.network(run, started)
    if not isinstance(model, nn.Module) or not isinstance(model, Trainable):
        raise Trouble(f"{started.recipe.name}: {type(model).__name__} does not learn by gradients")
    return model.to(device)


def _vocabulary(recipe: Recipe, tables: Output, run: str) -> Vocabulary:
    """Of the training captions; a run that goes on has it already."""
    if (known := runs.read_vocabulary(run)) is not None:
        return known
    assert isinstance(recipe.text, Tokens)
    return Vocabulary.build(captions(tables, recipe.view), recipe.text.tokenizer, recipe.text.minimum_count)


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """A gradient that the phase before left would count in the clipped norm, but not in a run that goes on here."""
    _refuse_unmatched(model, patterns)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not _matches(name, patterns))
        parameter.grad = None


def _evaluate_frozen(model: nn.Module) -> None:
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def _groups(model: nn.Module, optimiser: Optimiser) -> list[dict[str, Any]]:
    """Parameters that share a multiplier."""
    _refuse_unmatched(model, [*optimiser.unclipped, *(pattern for pattern, _ in optimiser.multipliers)])
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            found = (factor for pattern, factor in optimiser.multipliers if fnmatchcase(name, pattern))
            groups.setdefault(next(found, 1.0), []).append(parameter)
    return [{"params": parameters, "multiplier": multiplier} for multiplier, parameters in groups.items()]


def _clip(model: nn.Module, optimiser: Optimiser) -> Tensor:
    """The norm before clipping, of everything that may be clipped."""
    clipped = [p for name, p in model.named_parameters() if not _matches(name, optimiser.unclipped)]
    return nn.utils.clip_grad_norm_(clipped, optimiser.clip_norm or math.inf)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _weight(terms: Mapping[str, Tensor], name: str, weight: float | Relative) -> float | Tensor:
    if not isinstance(weight, Relative):
        return weight
    return weight.factor * (terms[weight.to] / terms[name]).detach()


def _after_plateaus(first: float, plateau: Plateau, rsums: Sequence[float]) -> float:
    best, waited, now = -math.inf, 0, first
    for rsum in rsums:
        best, waited = (rsum, 0) if rsum > best else (best, waited + 1)
        if waited > plateau.patience:  # as torch counts
            now, waited = max(now * plateau.factor, plateau.minimum), 0
    return now


def _counted(examples: Examples) -> str:
    left_out = f" ({examples.absent} left out without features, {examples.silent} without captions)"
    counts = f"{len(examples.ids):,} items with {len(examples.words):,} captions"
    return counts + left_out * bool(examples.absent or examples.silent)


def _refuse_infinite(what: str, value: Tensor, terms: Mapping[str, Tensor], place: Place) -> None:
    if not math.isfinite(value.item()):
        values = ", ".join(f"{name} {term.item():g}" for name, term in terms.items())
        where = f"step {place.step} (phase {place.phase}, epoch {place.epoch})"
        raise Trouble(f"the {what} is {value.item()} at {where}; the terms were: {values}")


def _refuse_unmatched(model: nn.Module, patterns: Iterable[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no parameter is named {pattern!r}; there are: {', '.join(names)}")


def _refuse_common(recipe: Recipe, train: Examples, validation: Examples) -> None:
    """Weights chosen on what was learned by heart are not chosen."""
    if common := sorted(set(train.ids).intersection(validation.ids)):
        raise Trouble(
            f"recipe {recipe.name!r}: {len(common):,} items are in both {recipe.view.split!r} and "
            f"{recipe.validation.split!r}, such as {common[0]!r}: validate on items that are not trained on"
        )


def _refuse_unbuilt(recipe: Recipe) -> None:
    """What a recipe can say and training cannot do yet must not pass as if it were done."""
    tokens = recipe.text
    unbuilt = {
        "dense texts": not isinstance(tokens, Tokens),
        "a text beyond tokenizer and minimum count": isinstance(tokens, Tokens)
        and tokens != Tokens(tokens.tokenizer, tokens.minimum_count),
        "frames": recipe.visual != type(recipe.visual)(recipe.visual.stage),
        "an un-annotated stream": recipe.unannotated is not None,
        "a closed form": not recipe.phases,
        "pixels": any(phase.pixels for phase in recipe.phases),
        "a sampler": any(phase.sampler for phase in recipe.phases),
        "adamp": any(phase.optimiser.rule not in RULES for phase in recipe.phases),
    }
    if found := [name for name, asked in unbuilt.items() if asked]:
        raise Trouble(f"recipe {recipe.name!r} asks for what training cannot do: {', '.join(found)}")
