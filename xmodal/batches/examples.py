"""Examples: the items of a view that have features and captions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import MOST_WORDS, View
from xmodal.records.views import ViewCaptions, captions_by_item
from xmodal.root.outputs import Output
from xmodal.text.vocabularies import Encoder


@dataclass(frozen=True, eq=False)
class Examples:
    """Items in the records' order, and their captions item by item; elsewhere both are named by positions here."""

    ids: tuple[str, ...]
    rows: NDArray[np.int64]  # (items,), in the feature store
    caption_ids: Sequence[str]
    caption_items: NDArray[np.int64]  # (captions,): positions of items, ascending
    words: Texts  # (captions,); the row of each in `sentences`, if they are vectors
    items_without_features: int = 0  # left out
    items_without_captions: int = 0  # left out too
    sentences: FeatureStore | None = None
    captions_cut: int = 0  # to MOST_WORDS

    def __repr__(self) -> str:
        return f"Examples({len(self.ids):,} items, {len(self.caption_ids):,} captions)"

    @property
    def note_of_cuts(self) -> str:
        return f", {self.captions_cut:,} of them cut to {MOST_WORDS:,} words" if self.captions_cut else ""

    def counted(self, texts: str = "captions") -> str:
        counts = f"{len(self.ids):,} items with {len(self.words):,} {texts}"
        features, captions = self.items_without_features, self.items_without_captions
        if features or captions:
            counts += f" ({features} left out without features, {captions} without {texts})"
        return counts + self.note_of_cuts

    @cached_property
    def caption_counts(self) -> NDArray[np.int64]:
        """(items,)"""
        return np.bincount(self.caption_items, minlength=len(self.ids)).astype(np.int64)

    @cached_property
    def caption_starts(self) -> NDArray[np.int64]:
        """(items,): where each item's captions begin."""
        return np.cumsum(self.caption_counts) - self.caption_counts

    @classmethod
    def of(cls, records: Output, view: View, store: FeatureStore, texts: Encoder | FeatureStore) -> "Examples":
        """Reads a view; `texts` is its vocabulary or the store of its captions."""
        return cls.among(captions_by_item(records, view), view, store, texts)

    @classmethod
    def among(
        cls, captions: ViewCaptions, view: View, store: FeatureStore, texts: Encoder | FeatureStore | Texts
    ) -> "Examples":
        """Selects from captions that were read, or also encoded as all `texts`."""
        has_captions = captions.counts > 0
        has_both = has_captions & np.array([item in store for item in captions.items], bool)
        if not has_both.any():
            raise _no_examples(captions, view, store)
        chosen = captions.of_items(has_both)
        if isinstance(texts, Texts):
            words = texts.at(np.repeat(has_both, captions.counts))
        elif isinstance(texts, FeatureStore):
            rows = texts.rows(chosen.ids)
            words = Texts(rows.astype(np.int32), np.arange(len(rows) + 1))
        else:
            words = Texts.of(map(texts.encode, chosen.texts))
        short = words.shortened(MOST_WORDS)
        return cls(
            ids=chosen.items,
            rows=store.rows(chosen.items),
            caption_ids=chosen.ids,
            caption_items=np.repeat(np.arange(len(chosen.items)), chosen.counts),
            words=short,
            captions_cut=int((np.diff(short.starts) < np.diff(words.starts)).sum()),
            items_without_features=int((has_captions & ~has_both).sum()),
            items_without_captions=int((~has_captions).sum()),
            sentences=texts if isinstance(texts, FeatureStore) else None,
        )


def _no_examples(captions: ViewCaptions, view: View, store: FeatureStore) -> UserError:
    described = captions.of_items(captions.counts > 0).items
    why = []
    if without := len(captions.items) - len(described):
        why.append(f"{without:,} have no {view.text} captions")
    if described:
        theirs = f", whose ids are such as {store.ids[0]!r}" if store.ids else ""
        why.append(f"{len(described):,}, such as {described[0]!r}, have no features in {store.output.where}{theirs}")
    what = f"split {view.split!r} of {view.corpus} has {len(captions.items):,} items"
    return UserError(f"{what}, but none has both features and captions: {', and '.join(why)}")
