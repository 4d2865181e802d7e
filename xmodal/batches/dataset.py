"""A corpus under a root as a reader of features sees it: what is there, and of one view the rows and the words."""

import json
import shlex
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.boxes import merged
from xmodal.errors import UserError
from xmodal.features.opening import of_all
from xmodal.features.store import GROUP as METADATA
from xmodal.features.store import ROWS, FeatureStore
from xmodal.metrics.plausible_matches import PlausibleMatches
from xmodal.recipes import Tokens, View
from xmodal.records.derived_splits import DrawnSplit, Share
from xmodal.records.tables import Caption, Region, read_rows
from xmodal.records.views import captions, described, drawn_splits, members, splits
from xmodal.root.outputs import Output, find, made_of
from xmodal.root.selection import choose, is_of, made_from, told
from xmodal.text.vocabularies import Encoder, Vocabulary

if TYPE_CHECKING:
    from xmodal.batches.loader import Loader
    from xmodal.batches.reader import Reader


USUAL_TOKENS = Tokens("nltk", minimum_count=4)
MEDIA_ARRAYS = {("pixels", "uint8"), ("frames", "uint8")}  # of the media themselves, smaller: no features
SENTENCES = "sentences"  # the stage of captions as vectors, and its array, with a row a caption
VOCABULARY, WORDS = "vocabulary", "vocabulary.txt"  # the stage that counts words, and its file


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts as the numbers of their words, one behind the other: an array for each would take far more memory."""

    numbers: NDArray[np.int32]
    starts: NDArray[np.int64]  # (texts + 1,)

    @classmethod
    def of(cls, texts: Iterable[NDArray[np.int32]]) -> "Texts":
        numbers, starts = array("i"), array("q", [0])
        for text in texts:
            numbers.frombytes(text.tobytes())
            starts.append(len(numbers))
        return cls(np.frombuffer(numbers, np.int32), np.frombuffer(starts, np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, place: int) -> NDArray[np.int32]:
        return self.numbers[self.starts[place] : self.starts[place + 1]]

    def padded(
        self, places_T: NDArray[np.int64], width: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(T, L) with zeros behind each text, and their lengths; at a given width longer texts are cut."""
        starts_T = self.starts[places_T]
        lengths_T = np.minimum(self.starts[places_T + 1] - starts_T, width or len(self.numbers))
        steps_L = np.arange(lengths_T.max(initial=0) if width is None else width)
        numbers = self.numbers if len(self.numbers) else np.zeros(1, np.int32)  # nothing is taken of nothing
        numbers_TL = numbers.take(starts_T[:, None] + steps_L, mode="clip")
        numbers_TL[steps_L >= lengths_T[:, None]] = 0
        return numbers_TL, lengths_T


@dataclass(frozen=True, eq=False)
class Examples:
    """The items that have features and captions, in the records' order, and their captions, item by item.

    Items and captions are named by their positions here, from 0 without gaps.
    """

    ids: tuple[str, ...]
    rows: NDArray[np.int64]  # (items,), in the feature store
    caption_ids: tuple[str, ...]
    caption_items: NDArray[np.int64]  # (captions,): positions of items, ascending
    words: Texts  # (captions,); of each the one number of its row, where `sentences` has them as vectors
    absent: int  # items left out, as the store has no features of them
    silent: int  # items left out, as no text of the view's source describes them
    sentences: FeatureStore | None = None

    @cached_property
    def caption_counts(self) -> NDArray[np.int64]:
        """(items,)"""
        return np.bincount(self.caption_items, minlength=len(self.ids)).astype(np.int64)

    @cached_property
    def caption_starts(self) -> NDArray[np.int64]:
        """(items,): where each item's captions begin."""
        return np.cumsum(self.caption_counts) - self.caption_counts

    @classmethod
    def of(cls, records: Output, view: View, store: FeatureStore, vocabulary: Encoder | FeatureStore) -> "Examples":
        """In place of a vocabulary there may be the captions' vectors."""
        found = described(records, view)
        silent = [item for item, captions in found.items() if not captions]
        seen = [item for item, captions in found.items() if captions and item in store]
        if not seen:
            lacking = [item for item, captions in found.items() if captions]
            why = [f"{len(silent):,} have no {view.text} captions"] if silent else []
            if lacking:
                theirs = "".join(f", whose ids are such as {id!r}" for id in store.ids[:1])
                why += [f"{len(lacking):,}, such as {lacking[0]!r}, have no features in {store.output.where}{theirs}"]
            raise UserError(
                f"split {view.split!r} of {view.corpus} has {len(found):,} items, but none has both "
                f"features and captions: {', and '.join(why)}"
            )
        captions = [(place, caption) for place, item in enumerate(seen) for caption in found[item]]
        return cls(
            ids=tuple(seen),
            rows=store.rows(seen),
            caption_ids=tuple(caption.id for _, caption in captions),
            caption_items=np.array([place for place, _ in captions], np.int64),
            words=_numbers((caption for _, caption in captions), vocabulary),
            absent=len(found) - len(silent) - len(seen),
            silent=len(silent),
            sentences=vocabulary if isinstance(vocabulary, FeatureStore) else None,
        )


def _numbers(captions: Iterable[Caption], vocabulary: Encoder | FeatureStore) -> Texts:
    if isinstance(vocabulary, FeatureStore):
        rows = vocabulary.rows(caption.id for caption in captions)
        return Texts(rows.astype(np.int32), np.arange(len(rows) + 1))
    return Texts.of(vocabulary.encode(caption.text) for caption in captions)


@dataclass(frozen=True)
class Dataset:
    """What `xmodal.open` finds of a corpus: its records, and every set of features that its pictures or clips have."""

    root: str
    corpus: str
    records: Output
    features: tuple[Output, ...]

    def __str__(self) -> str:
        splits = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
        sets = "".join(f"\n  {_named(output)}" for output in self.features) or " none yet"
        codes = "".join(f"\n  {_coded(output)}" for output in made_of(self.records, SENTENCES))
        return f"{self.corpus} in {self.root}\nsplits: {splits}\nfeatures:{sets}" + (codes and f"\nsentences:{codes}")

    @cached_property
    def splits(self) -> dict[str, int]:
        """The items of each split."""
        return {name: len(items) for name, items in splits(self.records).items()}

    def store(self, features: str | None = None) -> FeatureStore:
        """By stage, identity, or stage/identity; nothing needs to be said where there is just one.

        Pixels and frames, which are the media over again, are given to those who name them.
        """
        meant = [output for output in self.features if _is_meant(output, features) and is_of(output, self.records)]
        chosen = of_all(meant, self.records)
        if len(chosen) == 1:
            return FeatureStore(chosen[0])
        names = "; ".join(map(_named, self.features)) or "none: build some first"
        several = (
            f"{len(chosen)} sets of features are {features!r}" if features else "there are several sets of features"
        )
        what = several if len(chosen) > 1 else f"no features {features!r}" if features else "there are no features"
        raise UserError(f"{self.corpus} in {self.root}: {what}; there are: {names}")

    def vocabulary(self, split: str | None = None, tokens: Tokens = USUAL_TOKENS) -> Vocabulary:
        """The words that occur four times or more in the captions to train on: also of other splits it has these.

        `tokens` say how captions become words, and how often one must occur; a recipe's are its `text`.

        Of a sparse split, "karpathy/train@10%", they are those of its annotated part alone.
        """
        return _words(self.records, View(self.corpus, self._training(split)), tokens)

    def sentences(self, identity: str | None = None) -> FeatureStore:
        """The captions as vectors, by their ids; nothing needs to be said where they were made in one way."""
        made = list(made_of(self.records, SENTENCES))
        chosen = [output for output in made if identity in (None, output.identity)]
        if len(chosen) == 1:
            return FeatureStore(chosen[0])
        command = f"xmodal build {self.corpus}/{SENTENCES} --root {shlex.quote(self.root)}"
        there = "; ".join(map(_coded, made)) or f"none: build some first (`{command}`)"
        what = "several sets of sentences, so say which" if chosen else f"no sentences {identity or ''}".rstrip()
        raise UserError(f"{self.corpus} in {self.root}: there are {what}; there are: {there}")

    def reader(
        self,
        split: str,
        features: str | None = None,
        frames: int | None = None,
        words: str | None = None,
        sentences: FeatureStore | None = None,
        tokens: Tokens = USUAL_TOKENS,
    ) -> "Reader":
        """A split's examples with their features, for a `batches.Loader` or for evaluation; of clips so many frames.

        `words` names the split whose words it has, where that is not the training split beside it: beside a sparse
        training, karpathy/val has those of karpathy/train@10%. With `sentences` captions are read as vectors. `tokens`
        also say how long a caption may be, and what training leaves out.
        """
        from xmodal.batches.reader import Reader  # torch comes in here
        from xmodal.recipes import Features

        store = self.store(features)
        texts = self.vocabulary(words or split, tokens) if sentences is None else sentences
        examples = Examples.of(self.records, View(self.corpus, split), store, texts)
        return Reader(examples, store, Features(store.output.stage, frames), tokens)

    def loader(
        self,
        split: str | None = None,
        features: str | None = None,
        frames: int | None = None,
        sentences: FeatureStore | None = None,
        tokens: Tokens = USUAL_TOKENS,
        **settings: Any,
    ) -> "Loader":
        """Batches of a split, the training split unless one is named; `settings` are those of `batches.Loader`."""
        from xmodal.batches.loader import Loader

        reader = self.reader(split or self._training(), features, frames, sentences=sentences, tokens=tokens)
        return Loader(reader, **{"batch_size": 128, **settings})

    def plausible(self, split: str | None = None) -> PlausibleMatches:
        """Which items of a split, or of all, show nearly the same: `plausible("karpathy/val").matches(item, zeta=2)`
        gives the ids that match one, with their level.
        """
        output = next(made_of(self.records, "plausible"), None)  # several differ in the size of their units alone
        if output is None:
            command = f"xmodal build {self.corpus}/plausible --root {shlex.quote(self.root)}"
            raise UserError(f"{self.corpus} in {self.root} has no plausible matches: build them first (`{command}`)")
        found = PlausibleMatches.read(output)
        return found.within(members(self.records, split)) if split else found

    @property
    def has_plausible(self) -> bool:
        """Whether they were built."""
        return any(True for _ in made_of(self.records, "plausible"))

    def regions(self, split: str, *, whole: bool = False) -> dict[str, list[Region]]:
        """The boxes of each item that has any, with names and attributes, to train a detector on or to score one.

        With `whole` all boxes of one thing are one, around them, as phrase localisation is scored.
        """
        wanted, found = members(self.records, split), defaultdict[str, list[Region]](list)
        with self.records.open("regions.parquet") as file:
            some = (region for region in read_rows(file, Region) if region.item in wanted)
            for region in merged(some) if whole else some:
                if region.left is not None:
                    found[region.item].append(region)
        return dict(found)

    def _training(self, beside: str | None = None) -> str:
        """The split to train on; of several the one that belongs with another split."""
        if share := beside and Share.of(beside):
            return share.words.name if self._is_trained_on(share.whole) else self._training(share.whole)
        if drawn_split := beside and beside not in self.splits and DrawnSplit.of(beside, drawn_splits(self.records)):
            return drawn_split.training
        names = [name for name in self.splits if name.rpartition("/")[2] == "train"]
        near = [name for name in names if beside and name.rpartition("/")[0] == beside.rpartition("/")[0]]
        if len(names) != 1 and len(near) != 1:
            why = f"there is no training split, whose words {beside!r} needs" if beside else "name the split to load"
            raise UserError(f"{self.corpus}: {why}; there are: {', '.join(self.splits)}")
        return near[0] if len(near) == 1 else names[0]

    def _is_trained_on(self, split: str) -> bool:
        """Whether the words of the training split beside it would be words of its own captions too."""
        mine, training = (members(self.records, name) for name in (split, self._training(split)))
        return not mine.isdisjoint(training)


@lru_cache(maxsize=2)
def _words(records: Output, view: View, tokens: Tokens) -> Vocabulary:
    return vocabulary(records, view, tokens)


def vocabulary(records: Output, view: View, tokens: Tokens) -> Vocabulary:
    """Of all captions of a view: read where `xmodal build CORPUS/vocabulary` made just that, else counted here."""
    wanted = {name: getattr(view, name) for name in ("split", "captions_per_item", "text")}
    wanted |= {name: getattr(tokens, name) for name in ("tokenizer", "cleaning", "minimum_count")}
    for output in made_of(records, VOCABULARY):
        if wanted.items() <= output.config.items():
            return Vocabulary.from_bytes(output.read(WORDS), f"{output.where}/{WORDS}")
    return Vocabulary.build(captions(records, view), tokens.tokenizer, tokens.minimum_count, tokens.cleaning)


def open_dataset(root: str, corpus: str, identity: str | None = None) -> Dataset:
    """What is built of a corpus under a root; `identity` is of its records. Features of other media are left out."""
    records = choose(root, "records", identity, corpus=corpus)
    rows = (output for output in find(root) if output.storage.size(f"{output.folder}/{ROWS}") is not None)
    made = (output for output in rows if _first_array(output)[0] != SENTENCES)
    return Dataset(root, corpus, records, tuple(output for output in made if _may_be_of(output, records)))


def _may_be_of(features: Output, records: Output) -> bool:
    """As `is_of`; what is damaged stays, to be refused when it is asked for: others must not take its place."""
    try:
        return is_of(features, records)
    except UserError:
        return True


def _first_array(output: Output) -> tuple[str, str]:
    """Its name and data type, as its metadata say, which may be known though other descriptions are damaged."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        name = json.loads(output.storage.read(f"{output.folder}/{METADATA}"))["attributes"]["features"][0]["name"]
        return name, json.loads(output.storage.read(f"{output.folder}/{name}/{METADATA}"))["data_type"]
    return "", ""


def _is_meant(output: Output, features: str | None) -> bool:
    if features is None:
        return _first_array(output) not in MEDIA_ARRAYS
    return features in (*output.folder.split("/"), output.folder)


def _named(output: Output) -> str:
    try:
        return f"{output.stage}/{told(output)}"
    except UserError as damage:
        return f"{output.folder} ({damage})"


def _coded(sentences: Output) -> str:
    """By the codebook, which is what several sets of sentences differ in."""
    codebook = made_from(sentences, "codebook")
    return told(sentences, codebook.config if codebook else {})
