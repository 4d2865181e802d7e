"""Computes every metric a split has labels for, from similarities: a run's or a user's matrix.

Ranks and lists are computed once for each gallery and kind of right answer, and shared by the metrics that need them.
A corpus with categories gives plausible matches (PMRP); one with classes or identities has texts that are right for
every item of theirs (PCME on CUB, CUHK-PEDES); ECCV-Caption's files say more of COCO's test split
(docs/models.md#eccv-caption).
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.metrics import Column, Metric, known
from xmodal.metrics.pmrp import PlausibleAnswers, plausible_answers
from xmodal.metrics.ranked_lists import Floats, RelevantRanks, relevant_ranks
from xmodal.metrics.ranks import Both, Ranks, fold_windows, ranks
from xmodal.metrics.relevance import Classes, Pairs, Relevance, pack_labels
from xmodal.metrics.similarities import SIDES, WHOLE, Integers, Side, Similarities, Window
from xmodal.records.tables import Label, read_rows
from xmodal.root.outputs import Output

OWN = "own captions"
ECCV = "ECCV-Caption"
ECCV_FILES = ("eccv_image_to_caption.json", "eccv_caption_to_image.json")
EXCLUSIVE = ("class", "identity")  # kinds of label of which an item has one
DIRECTIONS = ("visual_to_text", "text_to_visual")
QUERIES = Column("queries", key="queries")  # how many were asked

R = TypeVar("R")
Needed = TypeVar("Needed")
Labels = Mapping[str, Mapping[str, Sequence[str]]]  # names by kind and item
NO_LABELS: Labels = {}


@dataclass(frozen=True, eq=False)
class Gallery:
    """Names what is compared: items by their ids, and captions item by item."""

    ids: Sequence[str]
    caption_ids: Sequence[str]
    caption_items: Integers  # (captions,): positions of items, ascending

    @property
    def own(self) -> Pairs:
        return Pairs.of_texts(self.caption_items, len(self.ids))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Holds all that a split's metrics are computed from. Tiles may be asked for several times."""

    similarities: Similarities
    gallery: Gallery
    labels: Labels


@dataclass(frozen=True)
class Scores:
    """Holds one row of a report: the values of both directions by the names of columns."""

    columns: tuple[Column, ...]
    visual_to_text: Mapping[str, float]
    text_to_visual: Mapping[str, float]
    galleries: int | None = None  # values are means over so many

    @property
    def sums(self) -> dict[str, float]:
        """Adds up both directions, by the name of the sum."""
        return self._sums({column.name: column.adds_to for column in self.columns})

    @property
    def sums_by_chance(self) -> dict[str, float]:
        """Adds up what a random order has for the parts of each sum."""
        adds_to = {column.name: column.adds_to for column in self.columns}
        return self._sums({column.name: adds_to.get(column.chance_of, "") for column in self.columns})

    def _sums(self, adds_to: Mapping[str, str]) -> dict[str, float]:
        parts = defaultdict[str, list[float]](list)
        for values in (self.visual_to_text, self.text_to_visual):
            for column, name in adds_to.items():
                if name:
                    parts[name].append(values[column])
        return {name: fsum(values) for name, values in parts.items()}

    @property
    def rsum(self) -> float:
        return self.sums["rsum"]

    def as_json(self) -> dict[str, Any]:
        directions = {name: nested(self.columns, getattr(self, name)) for name in DIRECTIONS}
        galleries = {} if self.galleries is None else {"galleries": self.galleries}
        return directions | galleries | self.sums


def nested(columns: Sequence[Column], values: Mapping[str, Any]) -> dict[str, Any]:
    """Puts values where the keys of their columns say, for JSON."""
    found: dict[str, Any] = {}
    for column in columns:
        *outer, last = column.key.split(".")
        inside = found
        for key in outer:
            inside = inside.setdefault(key, {})
        if last:
            inside[last] = values[column.name]
    return found


@dataclass(frozen=True)
class Metrics:
    """Holds every metric of a split.

    Rows of "scores" are galleries, or "class" and the like where these say what is right; rows of "lists" are kinds of
    right answers; rows of "plausible" are galleries.
    """

    tables: Mapping[str, Mapping[str, Scores]]
    numbers: Mapping[Column, float | None]  # None if the metric does not apply

    def value(self, column: str, direction: str = "", gallery: str = "all") -> float | None:
        """Looks up a column, or without a direction a sum over both; None if this split does not have it.

        Over all items, what is right goes by classes or identities if the corpus has them.
        """
        for rows in filter(None, self.tables.values()):
            row = headline(rows) if gallery == "all" else rows.get(gallery)
            values = row and (getattr(row, direction) if direction else row.sums)
            if values and column in values:
                return float(values[column])
        return None


def columns() -> list[Column]:
    """Lists the columns of every metric that has a value for each direction."""
    return [*_columns(known(Ranks)), *_columns(known(RelevantRanks)), *_columns(known(PlausibleAnswers))]


def all_metrics(
    similarities: Similarities, gallery: Gallery, labels: Labels, eccv: tuple[Pairs, Pairs] | None = None
) -> Metrics:
    """Computes every metric that the labels allow; tiles are asked for several times, see `cached_on_disk`.

    `labels` go by kind and item, as `labels_of` reads them.
    """
    tables = {"scores": recall_by_gallery(similarities, gallery, labels)}
    lists = {OWN: list_scores(similarities, (gallery.own, gallery.own))}
    lists |= {
        kind: list_scores(similarities, (relevance, relevance))
        for kind, relevance in _exclusive(gallery, labels).items()
    }
    if eccv:
        lists[ECCV] = list_scores(similarities, eccv, drop=True)
    categories = labels.get("category")
    tables |= {"lists": lists, "plausible": _plausible(similarities, gallery, categories) if categories else {}}
    compared = Comparison(similarities, gallery, labels)
    numbers = {
        column: None if value is None else float(value)
        for metric in known(Comparison)
        for column, value in zip(metric.columns, metric.compute(compared), strict=True)
    }
    return Metrics(tables, numbers)


def recall_by_gallery(similarities: Similarities, gallery: Gallery, labels: Labels = NO_LABELS) -> dict[str, Scores]:
    """Computes the metrics of ranks over all items, over folds of 1,000 if they are whole ones, and by labels.

    Only labels of which an item has one say what is right: classes and identities.
    """
    whole, *folds = ranks(similarities, gallery.own, [WHOLE, *_folds(gallery)])
    found = {"all": rank_scores([whole])}
    if folds:
        found["1K"] = rank_scores(folds)
    by_label = _exclusive(gallery, labels)
    return found | {kind: rank_scores(ranks(similarities, right)) for kind, right in by_label.items()}


def headline(rows: Mapping[str, R]) -> R:
    """Picks what a paper reports first: by class or identity if the corpus has them, else own captions over all."""
    return next((rows[kind] for kind in EXCLUSIVE if kind in rows), next(iter(rows.values())))


def rank_scores(galleries: Sequence[Both]) -> Scores:
    """Averages the metrics of ranks over galleries, which weigh alike."""
    metrics = known(Ranks)
    of_visual, of_text = (_means([_values(metrics, both[side]) for both in galleries]) for side in (0, 1))
    return Scores(_columns(metrics), of_visual, of_text, len(galleries))


def list_scores(similarities: Similarities, relevance: tuple[Relevance, Relevance], drop: bool = False) -> Scores:
    """Averages the metrics of lists over the queries, in percent; the two directions may differ in what is right."""
    of_visual, of_text = (
        _percentages(list_values(similarities, right, queries, drop=drop))
        for right, queries in zip(relevance, SIDES, strict=True)
    )
    return Scores((QUERIES, *_columns(known(RelevantRanks))), of_visual, of_text)


def list_values(
    similarities: Similarities, relevance: Relevance, queries: Side, *, drop: bool = False
) -> dict[str, Floats]:
    """Computes a fraction for every query of one direction, by the names of columns."""
    metrics, parts = known(RelevantRanks), defaultdict[str, list[Floats]](list)
    for found in relevant_ranks(similarities, relevance, queries, drop=drop):
        for name, values in _values(metrics, found).items():
            parts[name].append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def plausible_scores(galleries: Sequence[tuple[PlausibleAnswers, PlausibleAnswers]]) -> Scores:
    """Averages the metrics of plausible matches over galleries, which weigh alike."""
    metrics = known(PlausibleAnswers)
    sides = ([both[side] for both in galleries] for side in (0, 1))
    of_visual, of_text = (
        {QUERIES.name: sum(one.queries for one in found), **_means([_values(metrics, one) for one in found])}
        for found in sides
    )
    return Scores((QUERIES, *_columns(metrics)), of_visual, of_text)


def _columns(metrics: Sequence[Metric[Any]]) -> tuple[Column, ...]:
    return tuple(column for metric in metrics for column in metric.columns)


def _values(metrics: Sequence[Metric[Needed]], needed: Needed) -> dict[str, Any]:
    return {
        column.name: value
        for metric in metrics
        for column, value in zip(metric.columns, metric.compute(needed), strict=True)
    }


def _means(galleries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: fmean(values[name] for values in galleries) for name in galleries[0]}


def _percentages(of_queries: Mapping[str, Floats]) -> dict[str, float]:
    asked = len(next(iter(of_queries.values())))
    return {QUERIES.name: asked} | {name: 100 * fsum(values) / asked for name, values in of_queries.items()}


def _exclusive(gallery: Gallery, labels: Labels) -> dict[str, Classes]:
    return {kind: classes(gallery, kind, labels[kind]) for kind in EXCLUSIVE if labels.get(kind)}


def _folds(gallery: Gallery) -> list[Window]:
    return fold_windows(gallery.caption_items, len(gallery.ids))


def _plausible(similarities: Similarities, gallery: Gallery, of_item: Mapping[str, Sequence[str]]) -> dict[str, Scores]:
    """Compares the labels themselves, not the output of the stage `plausible`, which nobody has to build.

    The label sets of a gallery of 5,000 take 0.05 s.
    """
    bits = label_bits(gallery.ids, of_item)
    whole, *folds = plausible_answers(similarities, bits, bits[gallery.caption_items], [WHOLE, *_folds(gallery)])
    found = {"all": plausible_scores([whole])}
    if folds:
        found["1K"] = plausible_scores(folds)
    return found


def labels_of(records: Output, ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    """Reads the names of labels of these items, by kind and item."""
    wanted, found = set(ids), defaultdict[str, dict[str, list[str]]](dict)
    with records.open("labels.parquet") as file:
        for label in read_rows(file, Label):
            if label.item in wanted:
                found[label.kind].setdefault(label.item, []).append(label.name)
    return dict(found)


def label_bits(ids: Sequence[str], of_item: Mapping[str, Sequence[str]]) -> NDArray[np.uint64]:
    """Packs the labels of items, a row an item; that of an item without labels is empty."""
    names = sorted({name for item in ids for name in of_item.get(item, ())})
    place, table = {name: number for number, name in enumerate(names)}, np.zeros((len(ids), len(names)), np.bool_)
    for row, item in enumerate(ids):
        table[row, [place[name] for name in of_item.get(item, ())]] = True
    return pack_labels(table)


def classes(gallery: Gallery, kind: str, of_item: Mapping[str, Sequence[str]]) -> Classes:
    """Makes a caption right for every item of its own item's class."""
    wrong = [item for item in gallery.ids if len(of_item.get(item, ())) != 1]
    if wrong:
        raise UserError(
            f"item {wrong[0]} has {len(of_item.get(wrong[0], ()))} labels of the kind {kind!r}, not one "
            f"({len(wrong):,} such items)"
        )
    _, visual = np.unique([of_item[item][0] for item in gallery.ids], return_inverse=True)
    return Classes(visual, visual[gallery.caption_items])


def eccv(folder: Path, gallery: Gallery) -> tuple[Pairs, Pairs]:
    """Reads ECCV-Caption's positives of visual and of text queries: each direction has queries and answers of its own.

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
