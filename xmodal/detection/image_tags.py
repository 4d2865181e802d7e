"""Tags of whole images: scores of several sources as one vector of named tags (docs/models.md#image-tags).

Shapes: I images, N names of a source, T tags after the merge.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError

TEXT_SCORE = 0.3  # from which a tag is part of an image's text (A3VSE, section 4.6)
# "/b/balcony/exterior" of Places365, "tench, Tinca tinca" of ImageNet, "Bow (weapon)" of Open Images
_FIRST_NAME = re.compile(r"(?:/\w/)?\s*([^,/(]*)")


def tag_of(name: str) -> str:
    """The words by which a class of any source is a tag: its first name, in small letters, with blanks between."""
    found = _FIRST_NAME.match(name)
    return " ".join(found[1].lower().replace("_", " ").split()) if found else ""


@dataclass(frozen=True, eq=False)
class MergedTags:
    """The tags of several sources, each once, in the order in which the sources first name them."""

    names: tuple[str, ...]
    columns: tuple[NDArray[np.int64], ...]  # (N,) of each source: the tags that its names are

    @classmethod
    def of(cls, sources: Sequence[Sequence[str]]) -> "MergedTags":
        tags = [[tag_of(name) for name in names] for names in sources]
        for names, found in zip(sources, tags, strict=True):
            if "" in found:
                raise UserError(f"{names[found.index('')]!r} is no name of a tag: it has no word before , / or (")
        places = {tag: place for place, tag in enumerate(dict.fromkeys(tag for found in tags for tag in found))}
        columns = tuple(np.array([places[tag] for tag in found], np.int64) for found in tags)
        return cls(tuple(places), columns)

    def merge(self, scores: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """(I, T): the highest score that any name of a tag has, of (I, N) of each source."""
        merged_IT = np.zeros((len(scores[0]), len(self.names)), np.float32)
        for scores_IN, columns_N in zip(scores, self.columns, strict=True):
            order_N = np.argsort(columns_N, kind="stable")
            tags, firsts = np.unique(columns_N[order_N], return_index=True)
            highest = np.maximum.reduceat(scores_IN[:, order_N], firsts, axis=1)
            merged_IT[:, tags] = np.maximum(merged_IT[:, tags], highest)
        return merged_IT


def by_maximum(scores_IN: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divides each image's scores by the highest of them; an image without any score keeps its zeros."""
    highest_I1 = scores_IN.max(axis=1, keepdims=True)
    highest_I1[highest_I1 == 0] = 1
    divided_IN: NDArray[np.float32] = scores_IN / highest_I1
    return divided_IN


def tags_as_text(names: Sequence[str], scores_T: NDArray[np.floating], least: float = TEXT_SCORE) -> str:
    """The tags of one image from a score on, the highest first; equal ones in the order of the names."""
    order = np.argsort(-scores_T.astype(np.float32), kind="stable")
    return " ".join(names[tag] for tag in order.tolist() if scores_T[tag] >= least)
