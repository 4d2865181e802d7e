"""The contract of a model: what its module declares, and what its network does with eight pairs.

Each check yields a sentence a fault.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from fnmatch import fnmatch
from io import BytesIO
from types import ModuleType
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from xmodal import models
from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch, Padded, Stream
from xmodal.checks.corpus_contract import FAILURES
from xmodal.models import Inputs, Scorer, Solvable, Trainable
from xmodal.recipes import CONCEPTS, Recipe, Tokens, learns_classes
from xmodal.root.identity import canonical_json, to_plain
from xmodal.training import run_folder
from xmodal.training.optimisers import are_weighed, total

INPUTS = Inputs(visual_width=12, text_width=15, instances=8)
ROWS = 8
STEPS, RATE = 150, 0.01  # of Adam, after which a model knows its eight pairs by heart
Check = Callable[[Recipe], Iterator[str]]


def small_recipes(module: ModuleType) -> list[Recipe]:
    """Each config of SMALL in the first recipe of its class, or the first of all; else the first of each config."""
    recipes: tuple[Recipe, ...] = module.RECIPES
    if small := getattr(module, "SMALL", ()):
        fitting = [[one for one in recipes if type(one.model) is type(config)] for config in small]
        return [replace((some or recipes)[0], model=config) for some, config in zip(fitting, small, strict=True)]
    return [recipe for n, recipe in enumerate(recipes) if recipe.model not in [one.model for one in recipes[:n]]]


def faults(module: ModuleType) -> list[str]:
    """Lists every fault of a model; what it computes is checked once it declares what it must."""
    found = list(declaration_faults(module))
    if not found:
        for recipe in module.RECIPES:
            found += _prefixed(f"recipe {recipe.name}", objective_names, recipe)
    if not found:
        for recipe in small_recipes(module):
            before = len(found)
            for check in checks_of(recipe).values():
                if check is not learning or len(found) == before:  # what is broken learns badly
                    found += _prefixed(str(recipe.model), check, recipe)
    return found


def _prefixed(name: str, check: Check, recipe: Recipe) -> Iterator[str]:
    try:
        yield from (f"{name}: {fault}" for fault in check(recipe))
    except FAILURES as error:
        what = check.__name__.replace("_", " ")
        yield f"{name}: the check of {what} ends in {type(error).__name__}: {error}"


def declaration_faults(module: ModuleType) -> Iterator[str]:
    if not (module.__doc__ or "").strip():
        yield "no docstring: say which paper it is, and where its code differs from the paper"
    recipes = getattr(module, "RECIPES", None)
    if not isinstance(recipes, tuple) or not recipes or not all(isinstance(one, Recipe) for one in recipes):
        yield "no RECIPES: a tuple of at least one xmodal.recipes.Recipe"
        return
    for name, count in Counter(recipe.name for recipe in recipes).items():
        if count > 1:
            yield f"{count} recipes have the name {name!r}: give each its own"
    small = getattr(module, "SMALL", ())
    if not isinstance(small, tuple):
        yield "SMALL is not a tuple of configs"
        return
    if wrong := {_config_fault(module, config) for config in (*(one.model for one in recipes), *small)} - {""}:
        yield from sorted(wrong)
        return
    for recipe in recipes:
        plain = json.loads(canonical_json(recipe))
        if run_folder.recipe_of(plain, models.reference(recipe.model), recipe.cites) != recipe:
            yield f"recipe {recipe.name} does not come back from a run's recipe.json: let its fields be plain values"
        if not recipe.cites:
            yield f"recipe {recipe.name} has no `cites`: say where its numbers come from"


def _config_fault(module: ModuleType, config: object) -> str:
    kind = type(config)
    if not is_dataclass(config) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return f"{kind.__name__} is not a frozen dataclass"
    if vars(module).get(kind.__name__) is not kind:
        return f"{kind.__name__} is not defined at the top of the model's file: a run would not find it again"
    try:
        to_plain(config)
        get_type_hints(kind)
    except (NameError, TypeError, ValueError) as error:
        return f"{kind.__name__} has a field that is no plain value, or whose type cannot be told: {error}"
    return ""


def built(recipe: Recipe, seed: int = 0, inputs: Inputs = INPUTS) -> Any:
    torch.manual_seed(seed)
    model = recipe.model.build(inputs)
    if isinstance(model, Solvable):
        model.solve([eight_pairs(recipe, seed, inputs)])
    return model


def eight_pairs(recipe: Recipe, seed: int = 0, inputs: Inputs = INPUTS) -> Stream:
    """Random items of one to three positions, each with a text of as many kinds as the recipe reads."""
    random, rows = np.random.default_rng(seed), torch.arange(ROWS)
    visual = [random.normal(size=(1 + row % 3, inputs.visual_width)).astype("float32") for row in range(ROWS)]
    if isinstance(recipe.text, Tokens):
        text = [random.integers(4, inputs.text_width, 2 + row % 4).astype("int32") for row in range(ROWS)]
    elif recipe.text.stage == CONCEPTS:
        text = [random.integers(0, inputs.visual_width + 1, 1 + row % 4).astype("int32") for row in range(ROWS)]
    else:
        text = [random.normal(size=(1, inputs.text_width)).astype("float32") for _ in range(ROWS)]
    by_class = learns_classes(recipe.model)
    return Stream.paired(Padded.of(visual), Padded.of(text), rows, rows, rows if by_class else None)


def batch(recipe: Recipe, stream: Stream) -> Batch:
    other = {UNANNOTATED: eight_pairs(recipe, seed=1)} if recipe.unannotated else {}
    return Batch({ANNOTATED: stream} | other)


def loss(recipe: Recipe, model: Any, stream: Stream) -> Tensor:
    return total(model.objective(batch(recipe, stream)), recipe.phases[0].weights)


def similarity(model: Any, visual: Padded, text: Padded) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.similarity(model.encode_visual(visual), model.encode_text(text))
    return found


def kind_of_network(recipe: Recipe) -> Iterator[str]:
    model, kind = built(recipe), Trainable if recipe.phases else Scorer
    if not isinstance(model, nn.Module) or not isinstance(model, kind):
        parts = "encode_visual, encode_text" + (", similarity and objective" if recipe.phases else " and similarity")
        yield f"build() does not give a torch.nn.Module with {parts}"


def objective_names(recipe: Recipe) -> Iterator[str]:
    if not recipe.phases:
        return
    terms = built(recipe).objective(batch(recipe, eight_pairs(recipe)))
    if not isinstance(terms, Mapping):
        yield f"objective() returns a {type(terms).__name__}: return a dict of terms by their names"
        return
    for number, phase in enumerate(recipe.phases, 1):
        if not are_weighed(terms, phase.weights):
            given, weighed = ", ".join(sorted(terms)), ", ".join(sorted(phase.weights))
            yield f"objective() gives the terms {given}, and phase {number} weighs {weighed}"


def rows_of_several_processes(recipe: Recipe) -> Iterator[str]:
    some = batch(recipe, eight_pairs(recipe))
    with distributed.whole_batch(some) as whole:
        built(recipe).objective(some)
    if not whole.is_gathered:
        yield distributed.PARTED


def finite_scores_and_gradients(recipe: Recipe) -> Iterator[str]:
    """Gradients reach every parameter but those that the network says are idle."""
    model, stream = built(recipe), eight_pairs(recipe)
    found = similarity(model, stream.visual, stream.text[:5])
    if found.shape != (ROWS, 5) or not found.isfinite().all():
        yield f"similarity() of 8 visual and 5 text rows is not 8 x 5 finite numbers, but {tuple(found.shape)}"
    loss(recipe, model, stream).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        is_idle = any(fnmatch(name, pattern) for pattern in getattr(model, "without_gradient", ()))
        if parameter.grad is None or not parameter.grad.isfinite().all():
            yield f"the loss gives parameter {name} no gradient, or one that is not finite"
        elif bool(parameter.grad.any()) == is_idle:
            what = "should be zero, by without_gradient" if is_idle else "is zero; without_gradient may say so"
            yield f"the gradient of parameter {name} {what}"


def several_captions_of_an_item(recipe: Recipe) -> Iterator[str]:
    stream = eight_pairs(recipe)
    positives, items = torch.tensor([[0, 0], [0, 1], [1, 2], [2, 3], [2, 4]]), torch.tensor([0, 0, 1, 2, 2])
    unequal = Stream(stream.visual[:3], stream.text[:5], torch.arange(3), items, torch.arange(5), positives)
    for name, term in built(recipe).objective(batch(recipe, unequal)).items():
        if term.ndim or not term.isfinite():
            yield f"term {name} of a batch with several captions of an item is not one finite number: {term}"


def padding(recipe: Recipe) -> Iterator[str]:
    """NaN features and ids of no word beyond the lengths, and each item alone without padding."""
    model, stream = built(recipe).eval(), eight_pairs(recipe)
    expected = similarity(model, stream.visual, stream.text)
    visual = Padded(pad(stream.visual.values, (0, 0, 0, 3)), stream.visual.lengths)
    longer = (0, 3) if stream.text.values.ndim == 2 else (0, 0, 0, 3)
    text = Padded(pad(stream.text.values, longer), stream.text.lengths)
    visual.values[~visual.mask] = float("nan")
    text.values[~text.mask] = 99_999
    try:
        found = similarity(model, visual, text)
    except (IndexError, RuntimeError) as error:
        yield f"what lies beyond an item's length is read ({error}): mask it as Padded.average does"
        return
    if not _close(found, expected):
        yield "what lies beyond an item's length changes its scores: mask it, not by a product, as NaN * 0 is NaN"
    for row in range(ROWS):
        sides = stream.visual, stream.text
        pair = (Padded.whole(side.values[row : row + 1, : int(side.lengths[row])]) for side in sides)
        if not _close(similarity(model, *pair)[0, 0], expected[row, row]):
            yield f"pair {row} has another score without the other rows"
            break
    if not recipe.phases:
        return
    loss(recipe, model, replace(stream, visual=visual, text=text)).backward()  # type: ignore[no-untyped-call]
    if not all(one.grad is None or one.grad.isfinite().all() for one in model.parameters()):
        yield "what lies beyond an item's length reaches the gradients: fill it before the first layer"


def blocks_and_order(recipe: Recipe) -> Iterator[str]:
    model, stream = built(recipe).eval(), eight_pairs(recipe)
    whole = similarity(model, stream.visual, stream.text)
    for rows, columns in ((slice(2, 5), slice(1, 7)), (slice(7, 8), slice(0, 1))):
        if not _close(similarity(model, stream.visual[rows], stream.text[columns]), whole[rows, columns]):
            yield f"scores depend on the block: rows {rows.start} to {rows.stop} alone have others than among all"
    order = torch.arange(ROWS).flip(0)
    if not _close(similarity(model, stream.visual[order], stream.text), whole[order]):
        yield "scores depend on the order of the rows"


def saving_and_loading(recipe: Recipe) -> Iterator[str]:
    model, other, stream, file = built(recipe).eval(), built(recipe, seed=1).eval(), eight_pairs(recipe), BytesIO()
    before = similarity(model, stream.visual, stream.text)
    if torch.equal(similarity(other, stream.visual, stream.text), before):
        yield "two seeds give the same network: draw its weights by torch"
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    if not torch.equal(similarity(other, stream.visual, stream.text), before):
        yield "the state_dict of a network does not give its scores to another: register every tensor as a buffer"


def determinism(recipe: Recipe) -> Iterator[str]:
    scores, losses = [], []
    for _ in range(2):
        model, stream = built(recipe), eight_pairs(recipe)
        losses.append(loss(recipe, model, stream))
        scores += [similarity(model.eval(), stream.visual, stream.text) for _ in range(2)]
    if not all(torch.equal(scores[0], score) for score in scores):
        yield "the same network gives other scores a second time, in evaluation mode on a CPU"
    if not all(loss.isfinite() for loss in losses):
        yield "the loss of a batch is not finite"
    elif not torch.equal(*losses):
        yield "the same seed gives another loss a second time: draw by torch, not by random or numpy"


def learning(recipe: Recipe) -> Iterator[str]:
    model, stream = built(recipe), eight_pairs(recipe)
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss(recipe, model, stream).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    found = similarity(model.eval(), stream.visual, stream.text)
    known = sum(int((found.argmax(side) == torch.arange(ROWS)).sum()) for side in (0, 1))
    if known < 2 * ROWS:
        steps = f"{STEPS} steps of Adam at {RATE} on eight pairs find {known} of {2 * ROWS} partners"
        yield f"{steps}: mend the objective, or make the config in SMALL larger"


def solving_in_blocks(recipe: Recipe) -> Iterator[str]:
    """Any blocks, one without pairs too, give what all pairs give at once."""
    in_blocks: Any = recipe.model.build(INPUTS)
    at_once, stream, rows = built(recipe), eight_pairs(recipe), torch.arange(ROWS)
    cuts = (slice(0, 3), slice(3, 3), slice(3, 8))
    in_blocks.solve(Stream.paired(stream.visual[cut], stream.text[cut], rows[cut], rows[cut]) for cut in cuts)
    expected, found = (similarity(model.eval(), stream.visual, stream.text) for model in (at_once, in_blocks))
    if not _close(found, expected):
        yield "blocks of pairs give other scores than all pairs at once"


def checks_of(recipe: Recipe) -> Mapping[str, Check]:
    """All checks of a trained model; without phases those of scores, and of a closed form that it is solved."""
    if recipe.phases:
        return CHECKS
    checks: list[Check] = [kind_of_network, padding, blocks_and_order]
    if isinstance(recipe.model.build(INPUTS), Solvable):
        checks += [saving_and_loading, solving_in_blocks]
    return {check.__name__: check for check in checks}


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=1.3e-6, atol=1e-5).all())


CHECKS: Mapping[str, Check] = {check.__name__: check for check in (
    kind_of_network, objective_names, rows_of_several_processes, finite_scores_and_gradients,
    several_captions_of_an_item, padding, blocks_and_order, saving_and_loading, determinism, learning,
)}  # fmt: skip
