"""Recall and precision of a detector's pairs of attribute and class, such as "red star", against recorded regions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from xmodal.detection.box_geometry import iou
from xmodal.detection.region_arrays import DetectorWords, Regions
from xmodal.detection.region_selection import by_confidence, confidences
from xmodal.records.tables import Region

SCORE, ATTRIBUTE_SCORE, OVERLAP = 0.5, 0.1, 0.5  # the least that count


@dataclass(frozen=True)
class NamedBox:
    box: tuple[float, ...]
    name: str
    attribute: str | None  # None where no attribute reaches ATTRIBUTE_SCORE


@dataclass(frozen=True)
class PairScores:
    hits: int
    found: int  # by the detector
    recorded: int

    @property
    def recall(self) -> float:
        return self.hits / max(1, self.recorded)

    @property
    def precision(self) -> float:
        return self.hits / max(1, self.found)


def named_boxes(regions: Regions, words: DetectorWords) -> list[NamedBox]:
    """The regions whose class reaches SCORE and that no better one of their class covers, the best first."""
    confidence_K = confidences(regions)
    ordered = by_confidence(confidence_K)
    kept = regions[ordered[confidence_K[ordered] >= SCORE]]
    assert kept.class_scores_KC is not None
    names = [words.classes[best] for best in kept.class_scores_KC[:, 1:].argmax(1)]
    attributes: list[str | None] = [None] * len(kept)
    if kept.attribute_scores_KA is not None:
        scores_KA = kept.attribute_scores_KA[:, 1:]
        tops = zip(scores_KA.argmax(1), scores_KA.max(1, initial=0), strict=True)
        attributes = [words.attributes[best] if score >= ATTRIBUTE_SCORE else None for best, score in tops]
    return [NamedBox(tuple(box), *said) for box, *said in zip(kept.boxes_K4.tolist(), names, attributes, strict=True)]


def pair_scores(pictures: Iterable[tuple[Sequence[NamedBox], Sequence[Region]]]) -> PairScores:
    """Counts hits over pictures, each the found boxes, the best first, and the recorded regions."""
    counts = [(_hits(found, recorded), len(found), len(recorded)) for found, recorded in pictures]
    hits, found, recorded = (sum(each) for each in zip((0, 0, 0), *counts, strict=True))
    return PairScores(hits, found, recorded)


def _hits(found: Sequence[NamedBox], recorded: Sequence[Region]) -> int:
    """Each box takes the region that it overlaps most, of those that fit and that no better box took."""
    if not found or not recorded:
        return 0
    recorded_R4 = np.array([(one.left, one.top, one.right, one.bottom) for one in recorded], np.float64)
    overlaps_FR = iou(np.array([one.box for one in found], np.float64), recorded_R4)
    free = set(range(len(recorded)))
    for one, overlaps_R in zip(found, overlaps_FR, strict=True):
        fitting = [place for place in free if overlaps_R[place] >= OVERLAP and _fits(one, recorded[place])]
        if fitting:
            free.remove(max(fitting, key=lambda place: (overlaps_R[place], -place)))
    return len(recorded) - len(free)


def _fits(found: NamedBox, recorded: Region) -> bool:
    """A region without attributes says nothing of them."""
    return found.name in recorded.names and (not recorded.attributes or found.attribute in recorded.attributes)
