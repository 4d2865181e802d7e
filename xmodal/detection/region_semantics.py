"""Regional semantics: what a detector sees in a picture, as a text (A3VSE 3.1, 4.2).

Each region gives "attribute class", as in "blue car"; the surest class comes first.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.box_geometry import has_area
from xmodal.detection.region_arrays import DetectorWords
from xmodal.detection.region_store import Named, RegionStore

SEMANTICS = "semantics"  # the stage, and the source of its captions
SHOWN = 0.1  # an attribute is said if it is more probable (peteanderson80/bottom-up-attention@master:tools/demo.ipynb)


def semantics_of(
    words: DetectorWords,
    classes: Named | None,
    attributes: Named | None,
    shown: float = SHOWN,
    said_K: NDArray[np.bool_] | None = None,
) -> str:
    """The words of regions by their class scores; equal ones stay in order. `said_K` says which; None is all."""
    if classes is None:
        return ""
    phrases = phrases_of(words, classes, attributes, shown)
    return " ".join(phrases[place] for place in surest_first(classes) if said_K is None or said_K[place])


def phrases_of(words: DetectorWords, classes: Named, attributes: Named | None, shown: float = SHOWN) -> list[str]:
    """The words of each region; where there are none, numbers, as "attribute 3 class 17"."""
    phrases = [_word(words.classes, "class", number) for number in classes.ids_K.tolist()]
    if attributes is not None:
        for place in np.flatnonzero(attributes.scores_K > shown).tolist():
            phrases[place] = f"{_word(words.attributes, 'attribute', attributes.ids_K[place])} {phrases[place]}"
    return phrases


def _word(words: tuple[str, ...], kind: str, number: int) -> str:
    return words[number] if words else f"{kind} {number}"


def surest_first(classes: Named) -> list[int]:
    order: list[int] = np.argsort(-classes.scores_K, kind="stable").tolist()
    return order


def labels_of_regions(regions: RegionStore, id: str, least: float) -> list[str]:
    """The different classes of regions with an area whose score is at least `least`, as labels of their picture."""
    if (classes := regions.classes(id)) is None:
        return []
    sure_K = has_area(regions.boxes(id)) & (classes.scores_K >= least)
    return sorted({regions.words.classes[number] for number in classes.ids_K[sure_K].tolist()})


def vocabulary_overlap(ones: Collection[str], others: Collection[str]) -> float:
    """The words of both over the words of either (IoU, A3VSE 4.6); 0 where there are none."""
    both = len({*ones}.intersection(others))
    either = len({*ones}.union(others))
    return both / either if either else 0.0
