"""Regions of one picture, as every detector gives them and every reader of features takes them.

Shapes: K regions, D numbers a feature, C classes and A attributes, each with a column 0 for "none".
"""

import re
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.corpora.visual_genome import NAME, vocabulary
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw


@dataclass(frozen=True)
class DetectorWords:
    """The words of a detector's columns from 1 on: the first name of each class and attribute, in small letters."""

    classes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Regions:
    """Boxes of one picture in its own pixels, from 0: left, top, right, bottom.

    Scores are probabilities, and column 0 is the background, or no attribute. Proposals have no scores of classes.
    """

    boxes_K4: NDArray[np.float32]
    features_KD: NDArray[np.float32]
    size: tuple[int, int]  # width and height of the picture
    class_scores_KC: NDArray[np.float32] | None = None
    attribute_scores_KA: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        assert self.boxes_K4.shape == (len(self), 4)
        assert self.features_KD.ndim == 2
        for scores in (self.class_scores_KC, self.attribute_scores_KA):
            assert scores is None or (scores.ndim == 2 and len(scores) == len(self))

    def __len__(self) -> int:
        return len(self.features_KD)

    def __getitem__(self, places: NDArray[np.int64]) -> "Regions":
        """The regions at these places, in their order."""
        classes, attributes = self.class_scores_KC, self.attribute_scores_KA
        return Regions(
            self.boxes_K4[places],
            self.features_KD[places],
            self.size,
            None if classes is None else classes[places],
            None if attributes is None else attributes[places],
        )


def read_words(file: Path) -> tuple[str, ...]:
    """Reads the names of classes or attributes, a line each: the first one of a line, in small letters."""
    if not file.is_file():
        raise UserError(f"there is no file of words {file}")
    numbered = enumerate(file.read_bytes().removeprefix(BOM_UTF8).rstrip().splitlines(), 1)
    if blank := next((number for number, line in numbered if not line.strip()), None):
        raise UserError(
            f"{file}:{blank} is blank: give it a name, or remove it, as later names are counted by their lines"
        )
    return tuple(names[0].lower() for names in vocabulary(Raw.of_files({file.name: file}), file.name)[1:])


def are_lines(words: Sequence[str]) -> bool:
    """Says whether `read_words` reads these words as they are from a file with one a line."""
    return len({*words}) == len(words) and all(
        re.fullmatch(NAME, word) and word == " ".join(word.lower().split()) for word in words
    )
