"""The data of a training, opened and checked before anything is written; what training cannot do yet is refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch
from xmodal.batches.cluster_classes import read_classes
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.batches.phrase_loader import PhraseLoader
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts, note_of_cuts, vocabulary_and_texts
from xmodal.errors import UserError
from xmodal.features.opening import describe_network
from xmodal.features.store import FeatureStore
from xmodal.metrics.protocols import Labels, headline, labels_of
from xmodal.models import Cutting, Trainable
from xmodal.progress import Progress
from xmodal.recipes import (
    Features,
    OnePerClass,
    Phase,
    Phrases,
    Recipe,
    StartingWords,
    Tokens,
    clusters_of,
    learns_classes,
)
from xmodal.records.views import captions_of_views, classes
from xmodal.root.outputs import Output
from xmodal.text.vocabularies import Vocabulary
from xmodal.training import run_folder
from xmodal.training.picture_crops import picture_reader
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import measure, measure_phrases, refuse_common
from xmodal.training.words import NO_WORDS, known_words, sha256_of_vectors, word_vectors

TRIED = 8  # pairs that tell the names of the objective's terms


class TrainingData(Protocol):
    @property
    def store(self) -> FeatureStore: ...  # of the visual side

    def announce(self, started: Run, progress: Progress) -> tuple[int, float]:
        """Says what there is; returns the number of words, and their known share."""

    def word_vectors(self, started: Run, setup: Setup) -> NDArray[np.float32] | None: ...

    def loader(self, recipe: Recipe, phase: Phase, device: str) -> Loader | PhraseLoader: ...

    def few(self, recipe: Recipe, device: str) -> Batch: ...  # of the first phase, from features

    def validate(self, model: Trainable[Any, Any], phase: Phase, setup: Setup) -> tuple[float, Any]:
        """The sum of recalls by which weights are chosen, and plain JSON of what was measured."""


def refuse_unbuilt(recipe: Recipe) -> None:
    if found := unbuilt(recipe):
        raise UserError(f"recipe {recipe.name!r} asks for what training cannot do: {', '.join(found)}")


def unbuilt(recipe: Recipe) -> list[str]:
    drawn = [isinstance(phase.sampler, Phrases) for phase in recipe.phases]
    names_vectors = isinstance(recipe.text, Tokens) and recipe.text.vectors is not None
    takes_vectors = not isinstance(recipe.model, StartingWords) or recipe.model.takes_vectors
    asks = {
        "dense texts beside un-annotated items": bool(recipe.unannotated) and not isinstance(recipe.text, Tokens),
        "captions as words, but no phases": not recipe.phases and isinstance(recipe.text, Tokens),
        "word vectors, which its model does not take (leave out text.vectors)": names_vectors and not takes_vectors,
        "features after pictures": any(before.pixels and not after.pixels for before, after in pairwise(recipe.phases)),
        "a sampler of captions for phrases, or of phrases for captions": any(
            is_drawn != recipe.reads_phrases for is_drawn in drawn
        ),
    }
    return [name for name, asked in asks.items() if asked]


def open_data(recipe: Recipe, setup: Setup, run: str) -> tuple[Run, TrainingData]:
    return _open_phrases(recipe, setup, run) if recipe.reads_phrases else _open_captions(recipe, setup, run)


def _open_captions(recipe: Recipe, setup: Setup, run: str) -> tuple[Run, "CaptionData"]:
    tables = setup.tables(recipe.view.corpus)
    recipe = setup.with_named_texts(recipe, tables)
    store = setup.visual(recipe, tables)
    pictures = setup.pictures(store, tables) if any(phase.pixels for phase in recipe.phases) else None
    dense = setup.texts_of(recipe.text, tables, store) if isinstance(recipe.text, Features) else None
    vocabulary, train, validation, unannotated = _read_captions(recipe, tables, store, dense, run)
    pa.default_memory_pool().release_unused()  # the captions' columns, which Arrow would keep
    refuse_common(recipe.view, train.ids, recipe, validation.ids)
    if unannotated and recipe.unannotated:
        refuse_common(recipe.unannotated, unannotated.ids, recipe, validation.ids)
        _refuse_annotated(recipe, train.ids, unannotated.ids)
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
    tokens = recipe.text if isinstance(recipe.text, Tokens) else None
    read = Reader(train, store, recipe.visual, tokens, labels)
    chosen = Reader(validation, store, recipe.visual, tokens)
    other = Reader(unannotated, store, recipe.visual, tokens) if unannotated else None
    data = CaptionData(read, other, chosen, labels_of(tables, validation.ids), pictures)
    for phase in recipe.phases:  # refuses pictures that do not fit
        data.streams(phase)
        data.pictured(chosen, phase)
    return started, data


def _read_captions(
    recipe: Recipe, tables: Output, store: FeatureStore, dense: FeatureStore | None, run: str
) -> tuple[Vocabulary, Examples, Examples, Examples | None]:
    """The examples to train on, to choose on, and without captions, as words or as vectors, if `dense` has these."""
    views = (recipe.view, recipe.validation, *([recipe.unannotated] if recipe.unannotated else []))
    learned, chosen_on, *others = captions_of_views(tables, views)
    others = [some for some in others if some.items]  # none where every item is annotated
    vocabulary, texts = NO_WORDS, list[Texts | FeatureStore]([] if dense is None else [dense])
    if isinstance(recipe.text, Tokens):
        known = run_folder.read_vocabulary(run)
        vocabulary, encoded = vocabulary_and_texts(tables, recipe.view, [learned, *others], recipe.text, known)
        texts = [*encoded]
    train = Examples.among(learned, recipe.view, store, texts[0])
    validation = Examples.among(chosen_on, recipe.validation, store, vocabulary if dense is None else dense)
    unannotated = Examples.among(others[0], views[-1], store, texts[1]) if others else None
    return vocabulary, train, validation, unannotated


def _refuse_annotated(recipe: Recipe, train: Sequence[str], unannotated: Sequence[str]) -> None:
    if common := sorted(set(train).intersection(unannotated)):
        assert recipe.unannotated
        raise UserError(
            f"recipe {recipe.name!r}: {len(common):,} items of {recipe.unannotated.split!r}, said to be un-annotated, "
            f"are in {recipe.view.split!r}, such as {common[0]!r}: give it other items"
        )


def _classes(recipe: Recipe, tables: Output, clusters: Output | None, ids: Sequence[str]) -> NDArray[np.int64] | None:
    """(ids,): the classes that k-means found, or those of the corpus if the model or a sampler asks for them."""
    if clusters:
        return read_classes(clusters, ids)
    is_asked = learns_classes(recipe.model) or any(isinstance(phase.sampler, OnePerClass) for phase in recipe.phases)
    return classes(tables, ids) if is_asked else None


@dataclass(frozen=True, eq=False)
class CaptionData:
    """Items and captions."""

    train: Reader
    unannotated: Reader | None
    validation: Reader
    labels: Labels  # of the validation's items
    pictures: FeatureStore | None  # of the pixels stage or the frames stage, if a phase reads them

    @property
    def store(self) -> FeatureStore:
        return self.train.store

    def pictured(self, reader: Reader, phase: Phase) -> Reader:
        if phase.pixels is None:
            return reader
        assert self.pictures is not None
        return picture_reader(reader, self.pictures, phase.pixels)

    def streams(self, phase: Phase) -> dict[str, Reader]:
        """The readers that the batches of a phase come from, by stream."""
        readers = {ANNOTATED: self.train} | ({UNANNOTATED: self.unannotated} if self.unannotated else {})
        return {name: self.pictured(reader, phase) for name, reader in readers.items()}

    def announce(self, started: Run, progress: Progress) -> tuple[int, float]:
        recipe, train, validation = started.recipe, self.train.examples, self.validation.examples
        progress.say(f"{recipe.name}: {train.counted()} to train on, {validation.counted()} to choose on")
        if recipe.unannotated:
            other = self.unannotated and self.unannotated.examples.counted(recipe.unannotated.source)
            progress.say(f"beside them {other or 'no items without captions, so that only the captions train'}")
        is_dense = isinstance(recipe.text, Features)
        known = (0, 1.0) if is_dense else known_words(recipe, train, started.vocabulary, progress)
        if len(validation.ids) == 1:
            progress.say("one item to choose on is always found: R@1 is 100, and the first epoch stays the best")
        if self.train.classes is None and recipe.batch_size > len(train.words):
            progress.say(
                f"batch_size {recipe.batch_size:,} is more than the {len(train.words):,} captions there are: "
                "every epoch is one step of them all"
            )
        return known

    def word_vectors(self, started: Run, setup: Setup) -> NDArray[np.float32] | None:
        return word_vectors(setup.vectors, self.train.examples, started.vocabulary, setup.progress)

    def notes_of_cuts(self, model: object) -> list[str]:
        """Says how many captions are cut, by which setting."""
        texts, notes = self.train.examples.words, list[str]()
        if self.train.tokens and (longest := self.train.tokens.longest):
            notes.append(note_of_cuts("text.longest", np.diff(texts.starts) - 2, longest))
            texts = texts.shortened(longest)
        return [*notes, model.note_of_cuts(texts)] if isinstance(model, Cutting) else notes

    def loader(self, recipe: Recipe, phase: Phase, device: str) -> Loader:
        assert not isinstance(phase.sampler, Phrases)  # training refuses it before
        settings: dict[str, Any] = {"seed": recipe.seed, "device": device, "dtype": torch.float32}
        return Loader(
            self.streams(phase), recipe.batch_size, captions=phase.captions, sampler=phase.sampler, **settings
        )

    def few(self, recipe: Recipe, device: str) -> Batch:
        streams = self.streams(replace(recipe.phases[0], pixels=None))
        return next(iter(Loader(streams, TRIED * distributed.world(), device=device, dtype=torch.float32)))

    def validate(self, model: Trainable[Any, Any], phase: Phase, setup: Setup) -> tuple[float, Any]:
        reader = self.pictured(self.validation, phase)
        scores = headline(measure(model, reader, setup.progress, setup.device, labels=self.labels))
        return scores.rsum, scores.as_json()


def _open_phrases(recipe: Recipe, setup: Setup, run: str) -> tuple[Run, "PhraseData"]:
    if distributed.world() > 1:
        raise UserError(f"recipe {recipe.name!r} has batches of regions and phrases, which one process trains")
    tables = setup.tables(recipe.view.corpus)
    recipe = setup.with_named_texts(recipe, tables)
    learned = setup.phrases(recipe, recipe.view, tables, annotated=True)
    chosen_on = setup.phrases(recipe, recipe.validation, tables)
    refuse_common(recipe.view, learned.phrases.pictures, recipe, chosen_on.phrases.pictures)
    sha256_of_vectors(recipe, run, setup.vectors)  # refuses vectors, which are of no use
    return phrase_run(recipe, tables, learned), PhraseData(learned, chosen_on)


def phrase_run(recipe: Recipe, tables: Output, features: PhraseFeatures) -> Run:
    return Run(
        recipe,
        tables.identity,
        features.proposals.output.identity,
        NO_WORDS,
        features.proposals.spec.row_shape[-1],
        instances=0,
        weights=describe_network(features.proposals),
        texts=features.texts.output.identity,
        text_width=features.texts.spec.row_shape[-1],
        annotated=features.annotated.output.identity if features.annotated else "",
    )


@dataclass(frozen=True, eq=False)
class PhraseData:
    """Phrases, and the regions of their pictures."""

    train: PhraseFeatures
    validation: PhraseFeatures

    @property
    def store(self) -> FeatureStore:
        return self.train.proposals

    def announce(self, started: Run, progress: Progress) -> tuple[int, float]:
        train, validation = self.train.counted(), self.validation.counted()
        progress.say(f"{started.recipe.name}: {train} to train on, {validation} to choose on")
        return 0, 1.0

    def word_vectors(self, started: Run, setup: Setup) -> None:
        return None

    def loader(self, recipe: Recipe, phase: Phase, device: str) -> PhraseLoader:
        assert isinstance(phase.sampler, Phrases)
        return PhraseLoader(self.train, phase.sampler, recipe.batch_size, recipe.seed, device)

    def few(self, recipe: Recipe, device: str) -> Batch:
        return next(iter(self.loader(replace(recipe, batch_size=TRIED), recipe.phases[0], device)))

    def validate(self, model: Trainable[Any, Any], phase: Phase, setup: Setup) -> tuple[float, Any]:
        found: Mapping[str, float] = measure_phrases(model, self.validation, setup.progress, setup.device)
        return sum(found.values()), found
