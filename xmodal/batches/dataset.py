"""The dataset that `xmodal.open` gives."""

import json
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from xmodal.batches.examples import Examples
from xmodal.batches.texts import vocabulary
from xmodal.detection.merged_boxes import merge_groups
from xmodal.errors import UserError
from xmodal.features.opening import covering_all_items, has_rows_of_texts
from xmodal.features.store import GROUP, ROWS, FeatureStore
from xmodal.metrics.plausible_matches import PLAUSIBLE, PlausibleMatches
from xmodal.recipes import SENTENCES, Features, Tokens, View
from xmodal.records.derived_splits import DrawnSplit, Share
from xmodal.records.tables import Region, read_rows
from xmodal.records.views import drawn_splits, members, splits
from xmodal.root.outputs import Output, find, made_of
from xmodal.root.selection import (
    ancestor,
    build_command,
    changed_media,
    current,
    describe,
    describe_differences,
    find_output,
    may_share_media,
)
from xmodal.text.vocabularies import Vocabulary

if TYPE_CHECKING:
    from xmodal.batches.annotated_phrases import AnnotatedPhrases
    from xmodal.batches.loader import Loader
    from xmodal.batches.reader import Reader


USUAL_TOKENS = Tokens("nltk", minimum_count=4)
MEDIA_ARRAYS = {("pixels", "uint8"), ("frames", "uint8")}  # the media themselves, smaller
cached_vocabulary = lru_cache(maxsize=2)(vocabulary)


@dataclass(frozen=True)
class Dataset:
    """A corpus under a root: its records, and every set of features of its media."""

    root: str
    corpus: str
    records: Output
    features: tuple[Output, ...]

    def __repr__(self) -> str:
        return f"Dataset({self.corpus!r} in {self.root!r}, {len(self.features)} sets of features)"

    def __str__(self) -> str:
        splits = ", ".join(f"{name} ({count:,})" for name, count in self.splits.items())
        sets = "".join(f"\n  {_named(output)}" for output in self.features) or " none yet"
        codes = "".join(f"\n  {_coded(output)}" for output in made_of(self.records, SENTENCES))
        return f"{self.corpus} in {self.root}\nsplits: {splits}\nfeatures:{sets}" + (codes and f"\nsentences:{codes}")

    @cached_property
    def splits(self) -> dict[str, int]:
        """Items in each split."""
        return {name: len(items) for name, items in splits(self.records).items()}

    def store(self, features: str | None = None, flag: str = "--features") -> FeatureStore:
        """Opens features by stage, identity, or stage/identity; unnamed, the only ones but for pixels.

        Those of media that have changed since are opened by their identity alone, with a warning. `flag` is what a
        message asks for where there are several.
        """
        if features is None:
            meant = [output for output in self.features if _first_array(output) not in MEDIA_ARRAYS]
        else:
            meant = [output for output in self.features if features in (*output.folder.split("/"), output.folder)]
        meant = [one for one in meant if may_share_media(one, self.records)]
        if features not in {name for one in meant for name in (one.identity, one.folder)}:
            meant = covering_all_items(meant, self.records)
        elif change := changed_media(meant[0], self.corpus):
            warnings.warn(change, stacklevel=2)
        there = "; ".join(map(_named, self.features)) or f"none: build some first ({self._command('STAGE')})"
        if len(meant) > 1:
            told = zip(meant, describe_differences(meant), strict=True)
            there = "; ".join(f"{one.stage}/{how}" for one, how in told)
            there += f"; name one by {flag} STAGE/IDENTITY (in Python {flag.strip('-')}='STAGE/IDENTITY')"
        return self._only(meant, f"features {features!r}" if features else "features", there)

    def vocabulary(self, split: str | None = None, tokens: Tokens = USUAL_TOKENS) -> Vocabulary:
        """The words of the captions to train on, for whichever split is read; of a sparse one, its annotated part."""
        return cached_vocabulary(self.records, View(self.corpus, self._training(split)), tokens)

    def sentences(self, identity: str | None = None) -> FeatureStore:
        """Opens captions as vectors, by identity or the only ones."""
        made = list(made_of(self.records, SENTENCES))
        chosen = [output for output in made if identity in (None, output.identity)]
        there = "; ".join(map(_coded, made)) or f"none: build some first ({self._command(SENTENCES)})"
        return self._only(chosen, f"sentences {identity or ''}".rstrip(), there)

    def reader(
        self,
        split: str,
        features: str | None = None,
        frames: int | None = None,
        words: str | None = None,
        sentences: FeatureStore | None = None,
        tokens: Tokens = USUAL_TOKENS,
    ) -> "Reader":
        """Reads a split's examples with their features.

        `frames` is the number read of each clip. `words` names the split whose words are known, by default the training
        split beside it. With `sentences` captions are read as vectors.
        """
        from xmodal.batches.reader import Reader  # torch comes in here

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
        """Loads batches, by default of the training split; `settings` are those of `Loader`."""
        from xmodal.batches.loader import Loader

        reader = self.reader(split or self._training(), features, frames, sentences=sentences, tokens=tokens)
        return Loader(reader, **{"batch_size": 128, **settings})

    def plausible(self, split: str | None = None, stage: str = PLAUSIBLE) -> PlausibleMatches:
        """Items of a split, or of all, that show nearly the same; `.matches(item, zeta=2)` gives ids and levels.

        `stage="plausible_semantics"` has them by what a detector saw, not by the labels of the corpus; of several,
        "plausible_semantics/IDENTITY" is one.
        """
        stage, _, identity = stage.partition("/")
        made = [one for one in current(list(made_of(self.records, stage))) if identity in ("", one.identity)]
        if stage == PLAUSIBLE:
            made = made[:1]  # several differ in the size of their units alone
        if len(made) > 1:
            there = ", ".join(describe_differences(made))
            raise UserError(
                f"{self.corpus} has several {stage}: name one by stage='{stage}/IDENTITY'; there are: {there}"
            )
        if not made:
            cure = f"build them first ({self._command(stage)})"
            raise UserError(f"{self.corpus} in {self.root} has no plausible matches: {cure}")
        (output,) = made
        found = PlausibleMatches.read(output)
        return found.within(members(self.records, split)) if split else found

    @property
    def has_plausible(self) -> bool:
        return any(made_of(self.records, PLAUSIBLE))

    def regions(self, split: str, *, whole: bool = False) -> dict[str, list[Region]]:
        """The boxes of each item that has any; `whole` takes one around all boxes of a thing."""
        wanted, found = members(self.records, split), defaultdict[str, list[Region]](list)
        some = (region for region in read_rows(self.records, Region) if region.item in wanted)
        for region in merge_groups(some) if whole else some:
            if region.left is not None:
                found[region.item].append(region)
        return dict(found)

    def phrases(self, split: str) -> "AnnotatedPhrases":
        """The phrases of a split's captions with the boxes of what they name, and counts of what has none."""
        from xmodal.batches.annotated_phrases import annotated_phrases  # which opens datasets itself

        return annotated_phrases(self.records, View(self.corpus, split))

    def _only(self, chosen: list[Output], what: str, there: str) -> FeatureStore:
        if len(chosen) == 1:
            return FeatureStore(chosen[0])
        count = "several sets of" if chosen else "no"
        raise UserError(f"{self.corpus} in {self.root}: there are {count} {what}; there are: {there}")

    def _command(self, stage: str) -> str:
        return build_command(self.root, self.corpus, stage)

    def _training(self, beside: str | None = None) -> str:
        """The split to train on; of several, the one beside another split."""
        if share := beside and Share.of(beside):
            training = self._training(share.whole)
            is_part = not members(self.records, share.whole).isdisjoint(members(self.records, training))
            return share.words.name if is_part else training
        if drawn_split := beside and beside not in self.splits and DrawnSplit.of(beside, drawn_splits(self.records)):
            return drawn_split.training
        names = [name for name in self.splits if name.rpartition("/")[2] == "train"]
        near = [name for name in names if beside and name.rpartition("/")[0] == beside.rpartition("/")[0]]
        chosen = near if len(near) == 1 else names
        if len(chosen) != 1:
            why = f"no training split, whose words {beside!r} needs" if beside else "name the split to load"
            raise UserError(f"{self.corpus}: {why}; there are: {', '.join(self.splits)}")
        return chosen[0]


def open_dataset(root: str, corpus: str, identity: str | None = None) -> Dataset:
    """Opens what is built of a corpus; `identity` is of its records."""
    records = find_output(root, "records", identity, corpus=corpus)
    rows = (output for output in find(root) if output.storage.size(f"{output.folder}/{ROWS}") is not None)
    return Dataset(root, corpus, records, tuple(output for output in rows if _may_be_of(output, records)))


def _may_be_of(features: Output, records: Output) -> bool:
    """Keeps damaged features, which are refused when asked for: others must not take their place."""
    try:
        return may_share_media(features, records) and not has_rows_of_texts(features)
    except UserError:
        return True


def _first_array(output: Output) -> tuple[str, str]:
    """Its name and data type, even where other descriptions are damaged."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        name = json.loads(output.storage.read(f"{output.folder}/{GROUP}"))["attributes"]["features"][0]["name"]
        return name, json.loads(output.storage.read(f"{output.folder}/{name}/{GROUP}"))["data_type"]
    return "", ""


def _named(output: Output) -> str:
    try:
        return f"{output.stage}/{describe(output)}"
    except UserError as damage:
        return f"{output.folder} ({damage})"


def _coded(sentences: Output) -> str:
    codebook = ancestor(sentences, "codebook")
    return describe(sentences, codebook.config if codebook else {})
