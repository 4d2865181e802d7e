"""Every metric that a split of a corpus has what it needs for, from similarities: a run's, or anybody's matrix.

A corpus with categories gives plausible matches (PMRP); one with classes or identities has texts that are right for
every item of theirs (PCME on CUB, CUHK-PEDES); ECCV-Caption's files say more of COCO's test split.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.metrics.ranked_lists import SIDES, ListScores, Plausible, lists, overlap, plausible
from xmodal.metrics.ranks import (
    WHOLE,
    Classes,
    Integers,
    Pairs,
    Scores,
    Similarities,
    Window,
    fold_windows,
    pack_labels,
    ranks,
)
from xmodal.records.tables import Label, read_rows
from xmodal.root.outputs import Output

OWN = "own captions"
ECCV = "ECCV-Caption"
ECCV_FILES = ("eccv_image_to_caption.json", "eccv_caption_to_image.json")
EXCLUSIVE = ("class", "identity")  # kinds of label of which an item has one

Labels = Mapping[str, Mapping[str, Sequence[str]]]  # names by kind and item
NO_LABELS: Labels = {}


@dataclass(frozen=True, eq=False)
class Gallery:
    """What is compared: items by their ids, and captions item by item."""

    ids: Sequence[str]
    caption_ids: Sequence[str]
    caption_items: Integers  # (captions,): positions of items, ascending

    @property
    def own(self) -> Pairs:
        return Pairs.of_texts(self.caption_items, len(self.ids))


@dataclass(frozen=True)
class Findings:
    """`scores` go by the gallery, or by "class" and the like where these say what is right; `lists` by what is right.

    `separation` is the indicator S of own captions, None where similarities are no cosines.
    """

    scores: Mapping[str, Scores]
    lists: Mapping[str, tuple[ListScores, ListScores]]
    plausible: Mapping[str, tuple[Plausible, Plausible]]
    separation: float | None


def recalls(similarities: Similarities, gallery: Gallery, labels: Labels = NO_LABELS) -> dict[str, Scores]:
    """Over all items, as the mean over folds of 1,000 where they are whole ones, and by the labels that are exclusive.

    `labels` go by kind and item, as `labels_of` reads them.
    """
    whole, *parts = ranks(similarities, gallery.own, [WHOLE, *_folds(gallery)])
    of_kinds = {kind: Scores.of(ranks(similarities, right)) for kind, right in _exclusive(gallery, labels).items()}
    return {"all": Scores.of([whole])} | ({"1K": Scores.of(parts)} if parts else {}) | of_kinds


def headline(scores: Mapping[str, Scores]) -> Scores:
    """What a paper reports first: by class or identity where the corpus has them, else of own captions over all."""
    return next((scores[kind] for kind in EXCLUSIVE if kind in scores), scores["all"])


def judge(
    similarities: Similarities, gallery: Gallery, labels: Labels, eccv: tuple[Pairs, Pairs] | None = None
) -> Findings:
    """`labels` go by kind and item, as `labels_of` reads them. Tiles are asked for several times: see `ranked.kept`."""
    scores, found = recalls(similarities, gallery, labels), {OWN: _lists(similarities, (gallery.own, gallery.own))}
    for kind, relevance in _exclusive(gallery, labels).items():
        found[kind] = _lists(similarities, (relevance, relevance))
    if eccv:
        found[ECCV] = _lists(similarities, eccv, drop=True)
    matches = _plausible(similarities, gallery, labels["category"]) if labels.get("category") else {}
    return Findings(scores, found, matches, overlap(similarities, gallery.own))


def _exclusive(gallery: Gallery, labels: Labels) -> dict[str, Classes]:
    return {kind: classes(gallery, kind, labels[kind]) for kind in EXCLUSIVE if labels.get(kind)}


def _folds(gallery: Gallery) -> list[Window]:
    return fold_windows(gallery.caption_items, len(gallery.ids))


def _lists(
    similarities: Similarities, relevance: tuple[Pairs | Classes, Pairs | Classes], drop: bool = False
) -> tuple[ListScores, ListScores]:
    of_visual, of_text = (
        ListScores.of(lists(similarities, right, queries, drop=drop))
        for right, queries in zip(relevance, SIDES, strict=True)
    )
    return of_visual, of_text


def _plausible(
    similarities: Similarities, gallery: Gallery, of_item: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Plausible, Plausible]]:
    """From the labels, and not from what the stage `plausible` has: a score should not need a stage that nobody has to
    build, and to compare the label sets of a gallery of 5,000 takes 0.05 s.
    """
    visual, folds = label_bits(gallery.ids, of_item), _folds(gallery)
    whole, *parts = plausible(similarities, visual, visual[gallery.caption_items], [WHOLE, *folds])
    if not parts:
        return {"all": whole}
    return {"all": whole, "1K": (Plausible.over([part[0] for part in parts]), Plausible.over([p[1] for p in parts]))}


def labels_of(records: Output, ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Names by kind and item, of these items."""
    wanted, found = set(ids), defaultdict[str, dict[str, list[str]]](dict)
    for label in read_rows(records, Label):
        if label.item in wanted:
            found[label.kind].setdefault(label.item, []).append(label.name)
    return dict(found)


def label_bits(ids: Sequence[str], of_item: Mapping[str, Sequence[str]]) -> NDArray[np.uint64]:
    """A row an item; that of an item without labels is empty."""
    names = sorted({name for item in ids for name in of_item.get(item, ())})
    place, table = {name: number for number, name in enumerate(names)}, np.zeros((len(ids), len(names)), np.bool_)
    for row, item in enumerate(ids):
        table[row, [place[name] for name in of_item.get(item, ())]] = True
    return pack_labels(table)


def classes(gallery: Gallery, kind: str, of_item: Mapping[str, Sequence[str]]) -> Classes:
    """A caption is right for every item of its own item's class."""
    wrong = [item for item in gallery.ids if len(of_item.get(item, ())) != 1]
    if wrong:
        raise UserError(
            f"item {wrong[0]} has {len(of_item.get(wrong[0], ()))} labels of the kind {kind!r}, not one "
            f"({len(wrong):,} such items)"
        )
    _, visual = np.unique([of_item[item][0] for item in gallery.ids], return_inverse=True)
    return Classes(visual, visual[gallery.caption_items])


def eccv(folder: Path, gallery: Gallery) -> tuple[Pairs, Pairs]:
    """ECCV-Caption's positives, of visual and of text queries: each direction has queries and answers of its own.

    Reads the package's `data` folder as published (naver-ai/eccv-caption, checked at b51f56c): two JSON objects, from
    a COCO image id to caption ids and from a caption id to image ids. What is not in the gallery is left out: of the
    package's own 25,000 captions that is two of the 22,550 positive ones, which nobody can find.
    """
    of_visual, of_text = (_read(folder / name) for name in ECCV_FILES)
    rows, columns = ({name: place for place, name in enumerate(ids)} for ids in (gallery.ids, gallery.caption_ids))
    shape = len(rows), len(columns)
    pairs = (
        {(columns[text], rows[item]) for item, texts in of_visual if item in rows for text in texts if text in columns},
        {(columns[text], rows[item]) for text, some in of_text if text in columns for item in some if item in rows},
    )
    if not all(pairs):
        raise UserError(f"{folder} judges no item or no caption of this split: it is made for COCO's karpathy/test")
    by_visual, by_text = (np.array(sorted(some)).T for some in pairs)
    return Pairs(by_visual[1], by_visual[0], shape), Pairs(by_text[1], by_text[0], shape)


def _read(path: Path) -> list[tuple[str, list[str]]]:
    try:
        found = json.loads(path.read_bytes())
        return [(str(query), [str(int(answer)) for answer in answers]) for query, answers in found.items()]
    except FileNotFoundError:
        raise UserError(f"{path} is not there: --eccv takes the folder with {' and '.join(ECCV_FILES)}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no object of lists of ids: {error}") from error
