"""Pictures of phrase localisation: the annotated box of each phrase of a caption, and the box that was found for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.batches.annotated_phrases import TO_LAST_PIXEL
from xmodal.detection.box_geometry import iou
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import ScoredPhrases
from xmodal.evaluation.region_pictures import SIDE, draw_boxes
from xmodal.media.drawing import GAP, labelled
from xmodal.metrics.phrase_localisation import LEAST_OVERLAP


@dataclass(frozen=True, eq=False)
class FoundPhrase:
    """Boxes have right and bottom excluded."""

    caption: str
    words: str
    annotated_4: NDArray[np.float64]
    found_4: NDArray[np.float64] | None  # None if the picture has no proposals
    overlap: float


def found_phrases(scored: ScoredPhrases, picture: str) -> list[FoundPhrase]:
    """The phrases of the picture's first caption that has any, each with its best proposal."""
    matches = scored.phrases.matches
    caption = next(match.caption for match in matches if match.item == picture)
    return [_found(scored, place) for place, match in enumerate(matches) if match.caption == caption]


def _found(scored: ScoredPhrases, place: int) -> FoundPhrase:
    task, caption, words = scored.task, scored.phrases.matches[place].caption, scored.phrases.words[place]
    box, count = task.boxes_P[place], int(task.counts_P[place])
    annotated_4 = task.annotated_A4[box]
    if not count:
        return FoundPhrase(caption, words, annotated_4 + TO_LAST_PIXEL, None, 0)
    try:
        scores_K = task.checked(scored.scores, slice(place, place + 1))[0, :count]
    except ValueError as error:
        raise UserError(str(error)) from error
    start = task.starts_V1[task.pictures_A[box]]
    found_K4 = task.proposals_N4[start : start + count][scores_K == scores_K.max()]
    overlaps_K = iou(annotated_4[None], found_K4, inclusive=True)[0]
    worst = int(overlaps_K.argmin())  # of equal scores, which count against what is right in recall, too
    found_4, overlap = found_K4[worst] + TO_LAST_PIXEL, float(overlaps_K[worst])
    return FoundPhrase(caption, words, annotated_4 + TO_LAST_PIXEL, found_4, overlap)


def phrase_sheet(picture: Image.Image, id: str, caption: str, phrases: Sequence[FoundPhrase]) -> Image.Image:
    """Draws the annotated boxes, and beside them those that were found, in the same colours, with their overlaps."""
    times = max(1.0, SIDE / max(picture.size))
    size = round(picture.width * times), round(picture.height * times)
    annotated, found = (picture.resize(size, Image.Resampling.LANCZOS) for _ in range(2))
    draw_boxes(annotated, np.array([one.annotated_4 for one in phrases]) * times, [one.words for one in phrases])
    title = "no proposals"
    if found_P4 := [one.found_4 for one in phrases if one.found_4 is not None]:  # a picture's phrases share proposals
        draw_boxes(found, np.array(found_P4) * times, [f"{one.overlap:.2f} {one.words}" for one in phrases])
        hits = sum(one.overlap >= LEAST_OVERLAP for one in phrases)
        title = f"best scores and their overlaps: {hits} of {len(phrases)} found"
    gap_HG3 = np.full((size[1], GAP, 3), 255, np.uint8)
    panels_HW3 = np.concatenate([np.asarray(annotated), gap_HG3, np.asarray(found)], axis=1)
    return labelled(panels_HW3, ["annotated", title], f"{id}: {caption}")
