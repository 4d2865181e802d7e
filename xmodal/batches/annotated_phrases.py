"""Phrases of captions, each with the box of what it names, as localisation and its training read them.

Shapes: P phrases, A annotated boxes, N proposals of all pictures.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from xmodal.batches.dataset import open_dataset
from xmodal.detection.box_geometry import Boxes
from xmodal.detection.given_boxes import boxes_in_file, chain_boxes
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.metrics.phrase_localisation import LocalisationTask
from xmodal.recipes import View
from xmodal.records.tables import Match, read_rows
from xmodal.records.views import captions_by_item, starts_of
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output

TO_LAST_PIXEL = np.array([0, 0, 1, 1])  # from edges, which tables and stores have: right and bottom are excluded there
ELSEWHERE = "phrases that name another picture than their caption's"
UNSEEN = "phrases of no chain, which name nothing that can be seen"
UNBOXED = "phrases whose chain has no box"
SILENT = "captions without a phrase to find"
EMPTY = "pictures without a phrase to find"
K = TypeVar("K")


@dataclass(frozen=True, eq=False, repr=False)
class AnnotatedPhrases:
    """Phrases in the order of the records' pictures, then of captions and words.

    A box is around all boxes of a coreference chain; phrases of one chain have one, as have chains of equal boxes.
    """

    pictures: tuple[str, ...]
    boxes_A4: NDArray[np.float64]  # right and bottom are the last pixels
    pictures_A: NDArray[np.int64]  # ascending
    boxes_P: NDArray[np.int64]
    matches: tuple[Match, ...]  # (P,)
    words: tuple[str, ...]  # (P,)
    left_out: Mapping[str, int]  # by the reason

    def __repr__(self) -> str:
        return f"AnnotatedPhrases({len(self.words):,} of {len(self.pictures):,} pictures)"

    @property
    def types(self) -> dict[str, NDArray[np.int64]]:
        """The phrases of each type; one of two types is in both."""
        found = defaultdict[str, list[int]](list)
        for place, match in enumerate(self.matches):
            for name in match.types:
                found[name].append(place)
        return {name: np.array(places) for name, places in sorted(found.items())}

    def kept(self, is_kept_P: NDArray[np.bool_], reason: str) -> "AnnotatedPhrases":
        """Leaves out the other phrases, and counts them under the reason; boxes and pictures keep their places."""
        places, left_out = np.flatnonzero(is_kept_P).tolist(), int((~is_kept_P).sum())
        return replace(
            self,
            boxes_P=self.boxes_P[is_kept_P],
            matches=tuple(self.matches[place] for place in places),
            words=tuple(self.words[place] for place in places),
            left_out={**self.left_out, reason: left_out},
        )

    def among(self, proposals: Mapping[str, Boxes]) -> LocalisationTask:
        """Asks for the phrases among proposals, whose right and bottom edges are excluded; pictures may lack them."""
        boxes = [proposals.get(picture, np.zeros((0, 4))) for picture in self.pictures]
        starts_V1 = starts_of(np.array([len(some) for some in boxes], np.int64))
        proposals_N4 = np.concatenate([np.zeros((0, 4)), *boxes]) - TO_LAST_PIXEL
        return LocalisationTask(self.boxes_A4, self.pictures_A, self.boxes_P, proposals_N4, starts_V1)


def annotated_phrases(records: Output, view: View) -> AnnotatedPhrases:
    """Reads the phrases of a view's captions, and counts what cannot be looked for."""
    captions = captions_by_item(records, view)
    texts = dict(zip(captions.ids, captions.texts, strict=True))
    boxes, told = chain_boxes(records), _phrases(records, texts)
    matches, left_out = list[Match](), dict.fromkeys((ELSEWHERE, UNSEEN, UNBOXED, SILENT), 0)
    for picture, ids in captions.grouped(captions.ids).items():
        for caption in ids:
            every = told.get(caption, ())
            known = [match for match in every if match.item == picture]
            seen = [match for match in known if match.group is not None]
            kept = [match for match in seen if _chain(match) in boxes]
            left_out[ELSEWHERE] += len(every) - len(known)
            left_out[UNSEEN] += len(known) - len(seen)
            left_out[UNBOXED] += len(seen) - len(kept)
            left_out[SILENT] += not kept
            matches += kept
    if not matches:
        raise UserError(f"split {view.split!r} of {view.corpus} has no phrase with a box, so nothing to look for")
    numbers = _numbered(match.item for match in matches)
    places = _numbered((match.item, boxes[_chain(match)]) for match in matches)
    left_out[EMPTY] = len(captions.items) - len(numbers)
    return AnnotatedPhrases(
        tuple(numbers),
        np.array([box for _, box in places]) - TO_LAST_PIXEL,
        np.array([numbers[picture] for picture, _ in places]),
        np.array([places[match.item, boxes[_chain(match)]] for match in matches]),
        tuple(matches),
        tuple(texts[match.caption][match.start : match.end] for match in matches),
        left_out,
    )


def _numbered(keys: Iterable[K]) -> dict[K, int]:
    """Numbers distinct keys from 0 in the order in which they come first."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def _chain(match: Match) -> tuple[str, str]:
    return match.item, match.group or ""


def _phrases(records: Output, captions: Mapping[str, str]) -> Mapping[str, list[Match]]:
    """The phrases of each caption in the order of its words."""
    found = defaultdict[str, list[Match]](list)
    for match in read_rows(records, Match):
        if match.start is not None and match.caption in captions:
            found[match.caption].append(match)
    for phrases in found.values():
        phrases.sort(key=lambda match: match.start or 0)
    return found


def proposals_of(root: str, records: Output, name: str) -> tuple[dict[str, Boxes], str]:
    """Reads the boxes of each picture, of a stage, its output or a user's file; says which these are."""
    if (path := Path(name)).is_file():
        given = boxes_in_file(path)
        boxes = {id: np.array([box[:4] for box in boxes]).reshape(-1, 4) for id, boxes in given.items()}
        return boxes, f"{path.name} (sha256 {sha256_of(path)[:12]})"
    dataset = open_dataset(root, str(records.config["corpus"]), records.identity)
    if path.suffix and name.partition("/")[0] not in {one.stage for one in dataset.features}:
        raise UserError(f"there is no file {name}: give a file of boxes, or a stage such as proposals")
    output = dataset.store(name, "--proposals").output
    regions = RegionStore(output)
    return {id: regions.boxes(id) for id in regions.ids if id in regions.store}, f"{output.stage}/{output.identity}"
