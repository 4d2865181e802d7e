"""Recipes without phases: a closed form is solved in one pass over the pairs, what needs no fitting is taken as it is.

Both become runs, with a validation. What was solved before is not solved again, only measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from xmodal.batches.batch import Padded, Stream
from xmodal.batches.examples import Examples
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.batches.phrase_loader import stream_of_pairs
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.opening import describe_network
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import headline, labels_of
from xmodal.models import Scorer, Solvable, Trainable
from xmodal.ranking.similarities import cuts
from xmodal.recipes import Features, Recipe
from xmodal.root.storage import LocalStorage
from xmodal.training import checkpoint, run_folder
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.training_data import phrase_run
from xmodal.training.validation import floats, measure, measure_phrases, refuse_common
from xmodal.training.words import NO_WORDS, sha256_of_vectors


def write_run(recipe: Recipe, setup: Setup, run: str) -> tuple[float, int, bool]:
    """Writes a run that can be evaluated.

    Returns its rsum on the validation view, the number of pairs it is solved from, and whether it was solved now.
    """
    sha256_of_vectors(recipe, run, setup.vectors)  # refuses a file of them
    problem = _phrases(recipe, setup) if recipe.reads_phrases else _captions(recipe, setup)
    started, learned = problem.started, None
    model = _scorer(run, started).to(setup.device)
    if isinstance(model, Solvable):
        learned = problem.learn()
    run_folder.refuse_another(run, started)
    with run_folder.held(run):
        is_new = LocalStorage(run).size(run_folder.BEST) is None
        if learned and is_new:
            _solve(model, learned, recipe, setup)
        elif learned:
            _load(model, run)
        run_folder.start(run, started)  # only now, so that settings that cannot be solved leave nothing
        if is_new:
            checkpoint.save(run, run_folder.BEST, model.state_dict())
        try:
            rsum = problem.measure(model)
        except ValueError as error:
            raise UserError(f"recipe {recipe.name!r} cannot be validated: {error}") from error
    return rsum, learned.count if learned else 0, is_new and learned is not None


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Pairs to solve a closed form from, in blocks."""

    counted: str
    count: int
    blocks: Sequence[slice]
    stream_of: Callable[[slice], Stream]
    where: str  # both sides come from


@dataclass(frozen=True, eq=False)
class _Problem:
    started: Run
    learn: Callable[[], _Pairs]
    measure: Callable[[Any], float]  # the rsum of a scorer


def _captions(recipe: Recipe, setup: Setup) -> _Problem:
    assert isinstance(recipe.text, Features)
    tables = setup.tables(recipe.view.corpus)
    store = setup.visual(recipe, tables)
    texts = setup.texts_of(recipe.text, tables, store)
    reader = Reader(Examples.of(tables, recipe.validation, store, texts), store, recipe.visual)

    def learn() -> _Pairs:
        learned = Reader(Examples.of(tables, recipe.view, store, texts), store, recipe.visual)
        refuse_common(recipe.view, learned.examples.ids, recipe, reader.examples.ids)
        blocks = blocks_of(learned.examples, recipe.batch_size)
        where = f"{store.output.where} and {texts.output.where}"
        return _Pairs(
            learned.examples.counted(), len(learned.examples.words), blocks, partial(stream_of, learned), where
        )

    def rsum(model: Any) -> float:
        labels = labels_of(tables, reader.examples.ids)
        return headline(measure(model, reader, setup.progress, setup.device, labels=labels)).rsum

    started = Run(
        recipe,
        tables.identity,
        store.output.identity,
        NO_WORDS,
        store.spec.row_shape[-1],
        instances=0,
        weights=describe_network(store),
        texts=texts.output.identity,
        text_width=texts.spec.row_shape[-1] if texts.spec.row_shape else 0,
    )
    return _Problem(started, learn, rsum)


def _phrases(recipe: Recipe, setup: Setup) -> _Problem:
    """Phrases with their annotated boxes; a mention in a caption is a pair."""
    tables = setup.tables(recipe.view.corpus)
    learned = setup.phrases(recipe, recipe.view, tables, annotated=True)
    chosen_on = setup.phrases(recipe, recipe.validation, tables)
    refuse_common(recipe.view, learned.phrases.pictures, recipe, chosen_on.phrases.pictures)
    assert learned.annotated
    where = f"{learned.annotated.output.where} and {learned.texts.output.where}"
    blocks = list(cuts(len(learned), recipe.batch_size))
    pairs = _Pairs(learned.counted(), len(learned), blocks, partial(_stream_of_phrases, learned), where)

    def rsum(model: Any) -> float:
        return sum(measure_phrases(model, chosen_on, setup.progress, setup.device).values())

    return _Problem(phrase_run(recipe, tables, learned), lambda: pairs, rsum)


def _stream_of_phrases(features: PhraseFeatures, phrases: slice) -> Stream:
    stream = stream_of_pairs(features, phrases)
    numbers = np.arange(len(features))[phrases]
    pictures = [features.phrases.pictures[place] for place in stream.visual_items.tolist()]
    assert features.annotated
    _refuse_infinite(stream.visual, pictures, features.annotated)
    _refuse_infinite(stream.text, [features.phrases.words[number] for number in numbers], features.texts)
    return stream


def _scorer(run: str, started: Run) -> Any:
    model = run_folder.network(run, started)
    if isinstance(model, Trainable) or not isinstance(model, nn.Module) or not isinstance(model, Scorer):
        name, kind = started.recipe.name, type(model).__name__
        raise UserError(f"recipe {name!r} has no phases, but {kind} is no torch.nn.Module that needs none")
    return model


def _load(model: nn.Module, run: str) -> None:
    try:
        model.load_state_dict(checkpoint.read_tensors(run, run_folder.BEST))
    except (AttributeError, RuntimeError, TypeError, UserError) as error:
        damaged = f"{run}/{run_folder.BEST}"
        raise UserError(f"{damaged} is damaged: remove it, and train again ({error!s:.80})") from error


def _solve(model: Solvable[Any, Any], learned: _Pairs, recipe: Recipe, setup: Setup) -> None:
    setup.progress.say(f"{recipe.name}: {learned.counted} to solve it from")
    with setup.progress.over("solve", len(learned.blocks), unit="blocks") as tick:

        def stream() -> Iterator[Stream]:
            for block in learned.blocks:
                yield learned.stream_of(block)
                tick(1)

        try:
            model.solve(stream())
        except UserError as trouble:
            raise UserError(f"recipe {recipe.name!r} on {learned.where}: {trouble}") from None


def blocks_of(examples: Examples, pairs: int) -> list[slice]:
    """Cuts the items where so many captions are full; those of an item stay together."""
    last_captions = examples.caption_starts + examples.caption_counts - 1
    _, firsts = np.unique(last_captions // pairs, return_index=True)
    return [slice(first, end) for first, end in pairwise([*firsts.tolist(), len(examples.ids)])]


def stream_of(reader: Reader, items: slice) -> Stream:
    """Reads items with all of their captions; refuses rows that are not finite."""
    examples = reader.examples
    assert examples.sentences
    starts = np.append(examples.caption_starts, len(examples.caption_ids))
    captions = slice(int(starts[items.start]), int(starts[items.stop]))
    visual, text = floats(reader.visual(items), "cpu"), floats(reader.text(captions), "cpu")
    _refuse_infinite(visual, examples.ids[items], reader.store)
    _refuse_infinite(text, examples.caption_ids[captions], examples.sentences)
    caption_items = torch.from_numpy(examples.caption_items[captions])
    positives = torch.stack([caption_items - items.start, torch.arange(len(text))], dim=1)
    item_numbers, caption_numbers = torch.arange(items.start, items.stop), torch.arange(captions.start, captions.stop)
    return Stream(visual, text, item_numbers, caption_items, caption_numbers, positives)


def _refuse_infinite(features: Padded, ids: Sequence[str], store: FeatureStore) -> None:
    wrong = (~features.zero_padded().isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
    if wrong:
        raise UserError(f"{store.output.where}: the row of {ids[wrong[0]]!r} is not finite: build these features again")
