"""Recipes without phases, whose scorer needs no fitting: they become runs too, with a validation but no steps."""

from torch import nn

from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.features.opening import describe_network
from xmodal.metrics.protocols import headline, labels_of
from xmodal.models import Scorer, Solvable, Trainable
from xmodal.recipes import Features, Recipe
from xmodal.text.vocabularies import SPECIALS, Vocabulary
from xmodal.training import checkpoint, run_folder
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import measure


def write_run(recipe: Recipe, setup: Setup, run: str) -> float:
    """Writes a run that can be evaluated; gives its rsum on the validation view."""
    assert isinstance(recipe.text, Features)
    tables = setup.tables(recipe.view.corpus)
    store = setup.store(recipe.visual.stage, tables, recipe.model)
    texts = setup.texts_of(recipe.text.stage, tables, store)
    reader = Reader(Examples.of(tables, recipe.validation, store, texts), store, recipe.visual)
    started = Run(
        recipe,
        tables.identity,
        store.output.identity,
        Vocabulary("whitespace", SPECIALS),  # texts have no words
        store.spec.row_shape[-1],
        instances=0,
        weights=describe_network(store),
        texts=texts.output.identity,
    )
    model = run_folder.network(run, started)
    kind = type(model).__name__
    if isinstance(model, Trainable | Solvable) or not isinstance(model, nn.Module) or not isinstance(model, Scorer):
        raise UserError(f"recipe {recipe.name!r} has no phases, but {kind} is no torch.nn.Module that needs no fitting")
    model = model.to(setup.device)
    with run_folder.held(run):
        run_folder.start(run, started)
        labels = labels_of(tables, reader.examples.ids)
        found = measure(model, reader, setup.progress, setup.device, labels=labels)
        checkpoint.save(run, run_folder.BEST, model.state_dict())
    return headline(found).rsum
