"""Features of phrases, of the regions proposed for them, and in training of their annotated boxes.

Regions have numbers as in `region_phrase_pairs`: first all proposals of the task, then its annotated boxes.

Shapes: P phrases, A annotated boxes, V pictures, R regions, D numbers of a feature.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xmodal.batches.annotated_phrases import TO_LAST_PIXEL, AnnotatedPhrases
from xmodal.batches.sample_order import Integers
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.metrics.phrase_localisation import LocalisationTask

Rows = NDArray[np.floating]
FEATURELESS = "phrases whose box has no features"


@dataclass(frozen=True, eq=False, repr=False)
class PhraseFeatures:
    phrases: AnnotatedPhrases
    task: LocalisationTask
    texts: FeatureStore
    proposals: FeatureStore
    annotated: FeatureStore | None  # training alone knows it
    text_rows_P: Integers
    picture_rows_V: Integers  # in `proposals`; -1 for pictures without any
    annotated_rows_A: Integers  # in `annotated`, the row of the picture; -1 for boxes without features
    annotated_places_A: Integers  # among the regions of that row

    @classmethod
    def of(
        cls,
        phrases: AnnotatedPhrases,
        texts: FeatureStore,
        proposals: RegionStore,
        annotated: RegionStore | None = None,
    ) -> "PhraseFeatures":
        """Finds the rows of everything; phrases whose annotated box has no features are left out, and counted."""
        store, pictures = proposals.store, phrases.pictures
        boxes = {id: proposals.boxes(id) for id in pictures if id in store}
        if not boxes:
            raise UserError(f"{store.output.where} has no regions of the {len(pictures):,} pictures with phrases")
        rows_A, places_A = np.full((2, len(phrases.boxes_A4)), -1, np.int64)
        if annotated is not None:
            rows_A, places_A = _places(phrases, annotated)
            phrases = phrases.kept(rows_A[phrases.boxes_P] >= 0, FEATURELESS)
            if not phrases.words:
                raise UserError(f"{annotated.store.output.where} has none of the boxes that phrases name")
        return cls(
            phrases,
            phrases.among(boxes),
            texts,
            store,
            annotated.store if annotated else None,
            texts.rows(phrases.words),
            np.array([store.rows([id])[0] if id in boxes else -1 for id in pictures], np.int64),
            rows_A,
            places_A,
        )

    def __len__(self) -> int:
        return len(self.phrases.words)

    @property
    def pictures_P(self) -> Integers:
        """(P,): ascending."""
        return np.asarray(self.task.pictures_A[self.task.boxes_P], np.int64)

    def text(self, phrases: Integers | slice) -> Rows:
        """(phrases, D)."""
        return self.texts.take(self.text_rows_P[phrases])

    def regions(self, numbers_R: Integers) -> Rows:
        """(R, D): proposals and annotated boxes by their numbers."""
        proposals = len(self.task.proposals_N4)
        is_annotated_R = numbers_R >= proposals
        found_RD = np.zeros((len(numbers_R), *self.proposals.spec.row_shape), self.proposals.spec.dtype)
        if not is_annotated_R.all():
            numbers = numbers_R[~is_annotated_R]
            pictures = np.searchsorted(self.task.starts_V1, numbers, side="right") - 1
            places = (numbers - self.task.starts_V1[pictures]).astype(np.int64)
            found_RD[~is_annotated_R] = _regions(self.proposals, self.picture_rows_V[pictures], places)
        if is_annotated_R.any():
            assert self.annotated is not None
            boxes = numbers_R[is_annotated_R] - proposals
            rows, places = self.annotated_rows_A[boxes], self.annotated_places_A[boxes]
            found_RD[is_annotated_R] = _regions(self.annotated, rows, places)
        return found_RD

    def counted(self) -> str:
        """Says how much there is, and what was left out and why."""
        told = f"{len(self):,} phrases of {len(np.unique(self.pictures_P)):,} pictures"
        if without := np.count_nonzero(self.picture_rows_V < 0):
            told += f", {without:,} of them without proposals"
        left_out = "; ".join(f"{count:,} {reason}" for reason, count in self.phrases.left_out.items() if count)
        return told + (f" (left out: {left_out})" if left_out else "")


def _regions(store: FeatureStore, rows: Integers, places: Integers) -> Rows:
    found: Rows = store.take_padded(rows, places[:, None])[:, 0]
    return found


def _places(phrases: AnnotatedPhrases, annotated: RegionStore) -> tuple[Integers, Integers]:
    """The row of each annotated box's picture and its place there, or -1; boxes were cut at the picture's edges."""
    rows_A, places_A = np.full((2, len(phrases.boxes_A4)), -1, np.int64)
    for number, (box_4, picture) in enumerate(zip(phrases.boxes_A4, phrases.pictures_A.tolist(), strict=True)):
        id = phrases.pictures[picture]
        if id not in annotated.store or (size := annotated.size(id)) is None:
            continue
        inside_4 = np.clip((box_4 + TO_LAST_PIXEL).astype(np.float32), 0, np.tile(np.array(size, np.float32), 2))
        same = np.flatnonzero((annotated.boxes(id) == inside_4).all(axis=1))
        if len(same):
            rows_A[number], places_A[number] = annotated.store.rows([id])[0], same[0]
    return rows_A, places_A
