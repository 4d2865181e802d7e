"""Computes every metric a split has labels for, from similarities."""

import importlib
import itertools
import json
import pkgutil
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import fsum
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from xmodal import metrics as room
from xmodal.errors import UserError
from xmodal.metrics import Column, Metric
from xmodal.metrics.pmrp import PlausibleAnswers, plausible_answers
from xmodal.ranking.ranked_lists import Floats, RelevantRanks, relevant_ranks
from xmodal.ranking.ranks import Both, Ranks, fold_windows, ranks
from xmodal.ranking.relevance import Classes, Pairs, Relevance, pack_names
from xmodal.ranking.similarities import SIDES, WHOLE, Integers, Side, Similarities, Window
from xmodal.records.tables import Label, read_rows
from xmodal.root.outputs import Output

OWN = "own captions"
ECCV = "ECCV-Caption"
ECCV_FILES = ("eccv_image_to_caption.json", "eccv_caption_to_image.json")
EXCLUSIVE = ("class", "identity")  # kinds of label of which an item has one
QUERIES = Column("queries", key="queries")  # how many were asked
BOTH_WAYS: tuple[type[Any], ...] = (Ranks, RelevantRanks, PlausibleAnswers)  # a value for each direction
LONGEST_HEADING = 7

Row = TypeVar("Row")
Labels = Mapping[str, Mapping[str, Sequence[str]]]  # names by kind and item
NO_LABELS: Labels = {}


@dataclass(frozen=True, eq=False)
class Gallery:
    ids: Sequence[str]
    caption_ids: Sequence[str]
    caption_items: Integers  # (captions,): positions of items, ascending

    @property
    def own(self) -> Pairs:
        return Pairs.of_texts(self.caption_items, len(self.ids))

    @property
    def windows(self) -> list[Window]:
        """All items, then whole folds of 1,000."""
        return [WHOLE, *fold_windows(self.caption_items, len(self.ids))]


@dataclass(frozen=True, eq=False)
class Comparison:
    similarities: Similarities
    gallery: Gallery
    labels: Labels
    texts: Similarities | None = None  # of captions with captions, where a scorer compares them


@dataclass(frozen=True)
class Scores:
    """Holds one row of a report: values by the names of columns."""

    columns: tuple[Column, ...]
    visual_to_text: Mapping[str, float]
    text_to_visual: Mapping[str, float]
    galleries: int | None = None  # values are means over so many

    @property
    def sums(self) -> dict[str, float]:
        return self._sums({column.name: column.adds_to for column in self.columns})

    @property
    def sums_by_chance(self) -> dict[str, float]:
        adds_to = {column.name: column.adds_to for column in self.columns}
        return self._sums({column.name: adds_to.get(column.chance_of, "") for column in self.columns})

    def _sums(self, adds_to: Mapping[str, str]) -> dict[str, float]:
        parts = defaultdict[str, list[float]](list)
        for column, total in adds_to.items():
            if total:
                parts[total] += [self.visual_to_text[column], self.text_to_visual[column]]
        return {total: fsum(values) for total, values in parts.items()}

    @property
    def rsum(self) -> float:
        return self.sums["rsum"]

    def as_json(self) -> dict[str, Any]:
        galleries = {} if self.galleries is None else {"galleries": self.galleries}
        return {
            "visual_to_text": nested(self.columns, self.visual_to_text),
            "text_to_visual": nested(self.columns, self.text_to_visual),
            **galleries,
            **self.sums,
        }


def nested(columns: Iterable[Column], values: Mapping[str, Any]) -> dict[str, Any]:
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

    Rows of "scores" and "plausible" are galleries, in "scores" also "class" and the like where these say what is right;
    rows of "lists" are kinds of right answers.
    """

    tables: Mapping[str, Mapping[str, Scores]]
    numbers: Mapping[Column, float | None]  # None if the metric does not apply

    def value(self, column: str, direction: str = "", gallery: str = "all") -> float | None:
        """Looks up a column, or without a direction a number or a sum over both; None if the split lacks it."""
        if not direction and (numbers := [value for one, value in self.numbers.items() if one.name == column]):
            return numbers[0]
        for rows in filter(None, self.tables.values()):
            row = headline(rows) if gallery == "all" else rows.get(gallery)
            values = row and (getattr(row, direction) if direction else row.sums)
            if values and column in values:
                return float(values[column])
        return None


def known(needs: type) -> list[Metric[Any]]:
    modules = [importlib.import_module(found.name) for found in pkgutil.iter_modules(room.__path__, "xmodal.metrics.")]
    found = [module.METRIC for module in modules if _has_metric(module)]
    for name, count in Counter(metric.name for metric in found).items():
        if count > 1:
            raise UserError(f"{count} files of xmodal/metrics have a metric {name!r}: give each a name of its own")
    _check(tuple((metric.name, metric.needs, column) for metric in found for column in metric.columns))
    return sorted((metric for metric in found if metric.needs is needs), key=lambda one: (one.position, one.name))


def _has_metric(module: ModuleType) -> bool:
    if not hasattr(module, "METRIC") and any(isinstance(value, Metric) for value in vars(module).values()):
        raise UserError(f"{module.__file__} has a Metric of another name: call it METRIC")
    return hasattr(module, "METRIC")


@cache
def _check(columns: tuple[tuple[str, type, Column], ...]) -> None:
    for name, needs, column in columns:
        if needs not in (*BOTH_WAYS, Comparison):
            there = ", ".join(kind.__name__ for kind in (*BOTH_WAYS, Comparison))
            raise UserError(f"metric {name!r} needs {needs}, which nobody computes; there are: {there}")
        if needs in BOTH_WAYS and len(column.text) > LONGEST_HEADING:
            raise UserError(
                f"metric {name!r} heads a column {column.text!r}: take at most {LONGEST_HEADING} characters"
            )
        if sign := re.search(r"(?<!\\)[%&#]", column.latex):
            raise UserError(f"metric {name!r}: LaTeX reads {column.latex!r} otherwise: write \\{sign[0]} for {sign[0]}")
    for (name, needs, column), (other, other_needs, second) in itertools.combinations(columns, 2):
        shorter, longer = sorted((column.key, second.key), key=len)
        shared = ""
        if column.name == second.name:
            shared = f"a column {column.name!r}"
        elif needs is other_needs and shorter and f"{longer}.".startswith(f"{shorter}."):
            shared = f"the key {shorter!r} in JSON"
        if shared:
            raise UserError(f"metrics {name!r} and {other!r} both have {shared}: give one of them another")


def columns(*needs: type) -> tuple[Column, ...]:
    """Lists columns; by default those of both directions."""
    return tuple(column for kind in needs or BOTH_WAYS for metric in known(kind) for column in metric.columns)


def _values(found: object) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for metric in known(type(found)):
        computed = metric.compute(found)
        there = len(computed) if hasattr(computed, "__len__") else "no list of"  # by whoever adds a metric
        if there != len(metric.columns):
            wrong = f"metric {metric.name!r} computes {there} values for its {len(metric.columns)} columns"
            raise UserError(f"{wrong}: return one for each")
        for column, value in zip(metric.columns, computed, strict=True):
            if value is not None and not np.isfinite(value).all():
                raise UserError(f"metric {metric.name!r} gives {column.name} a value that is not finite: mend compute")
            values[column.name] = value
    return values


def all_metrics(
    matrix: Similarities,
    gallery: Gallery,
    labels: Labels,
    eccv: tuple[Pairs, Pairs] | None = None,
    texts: Similarities | None = None,
) -> Metrics:
    """Computes every metric that the labels allow; asks for tiles several times, see `cached_on_disk`."""
    scores = recall_by_gallery(matrix, gallery, labels)
    right: dict[str, Relevance] = {OWN: gallery.own, **_exclusive(gallery, labels)}
    lists = {kind: list_scores(matrix, (relevance, relevance)) for kind, relevance in right.items()}
    if eccv:
        lists[ECCV] = list_scores(matrix, eccv, drop=True)
    plausible = {}
    if categories := labels.get("category"):  # without the stage `plausible`, in 0.05 s
        bits = pack_names([categories.get(item, ()) for item in gallery.ids])
        answers = plausible_answers(matrix, bits, bits[gallery.caption_items], gallery.windows)
        plausible = _by_gallery(answers, plausible_scores)
    found = _values(Comparison(matrix, gallery, labels, texts))
    values = ((column, found[column.name]) for column in columns(Comparison))
    numbers = {column: None if value is None else float(value) for column, value in values}
    return Metrics({"scores": scores, "lists": lists, "plausible": plausible}, numbers)


def recall_by_gallery(matrix: Similarities, gallery: Gallery, labels: Labels = NO_LABELS) -> dict[str, Scores]:
    """Computes metrics of ranks over all items, whole folds of 1,000, and by class or identity."""
    found = _by_gallery(ranks(matrix, gallery.own, gallery.windows), rank_scores)
    for kind, right in _exclusive(gallery, labels).items():
        found[kind] = rank_scores(ranks(matrix, right))
    return found


def _by_gallery(galleries: Sequence[Row], scores: Callable[[Sequence[Row]], Scores]) -> dict[str, Scores]:
    whole, *folds = galleries
    found = {"all": scores([whole])}
    return found | {"1K": scores(folds)} if folds else found


def headline(rows: Mapping[str, Row]) -> Row:
    """Picks what a paper reports first: by class or identity, if there."""
    return next((rows[kind] for kind in EXCLUSIVE if kind in rows), next(iter(rows.values())))


def rank_scores(galleries: Sequence[Both]) -> Scores:
    of_visual, of_text = map(_means, zip(*galleries, strict=True))
    return Scores(columns(Ranks), of_visual, of_text, len(galleries))


def plausible_scores(galleries: Sequence[tuple[PlausibleAnswers, PlausibleAnswers]]) -> Scores:
    sides = zip(*galleries, strict=True)
    of_visual, of_text = ({QUERIES.name: sum(one.queries for one in side)} | _means(side) for side in sides)
    return Scores((QUERIES, *columns(PlausibleAnswers)), of_visual, of_text)


def _means(galleries: Iterable[object]) -> dict[str, float]:
    found = [_values(one) for one in galleries]
    return {name: fmean(values[name] for values in found) for name in found[0]}


def list_scores(matrix: Similarities, relevance: tuple[Relevance, Relevance], drop: bool = False) -> Scores:
    """Averages over queries, in percent; directions may differ in what is right."""

    def percentages(right: Relevance, queries: Side) -> dict[str, float]:
        values = list_values(matrix, right, queries, drop=drop)
        asked = len(next(iter(values.values())))
        return {QUERIES.name: asked} | {name: 100 * fsum(some) / asked for name, some in values.items()}

    of_visual, of_text = map(percentages, relevance, SIDES)
    return Scores((QUERIES, *columns(RelevantRanks)), of_visual, of_text)


def list_values(matrix: Similarities, relevance: Relevance, queries: Side, *, drop: bool = False) -> dict[str, Floats]:
    """Computes a fraction for every query of one direction, by the names of columns."""
    parts = [_values(found) for found in relevant_ranks(matrix, relevance, queries, drop=drop)]
    return {name: np.concatenate([values[name] for values in parts]) for name in parts[0]}


def _exclusive(gallery: Gallery, labels: Labels) -> dict[str, Classes]:
    return {kind: classes(gallery, kind, labels[kind]) for kind in EXCLUSIVE if labels.get(kind)}


def labels_of(records: Output, ids: Sequence[str]) -> dict[str, dict[str, list[str]]]:
    wanted, found = set(ids), defaultdict[str, dict[str, list[str]]](dict)
    for label in read_rows(records, Label):
        if label.item in wanted:
            found[label.kind].setdefault(label.item, []).append(label.name)
    return dict(found)


def classes(gallery: Gallery, kind: str, of_item: Mapping[str, Sequence[str]]) -> Classes:
    """Makes a caption right for every item of its item's class."""
    if wrong := [item for item in gallery.ids if len(of_item.get(item, ())) != 1]:
        count = len(of_item.get(wrong[0], ()))
        raise UserError(f"item {wrong[0]} has {count} labels of the kind {kind!r}, not one ({len(wrong):,} such items)")
    _, visual = np.unique([of_item[item][0] for item in gallery.ids], return_inverse=True)
    return Classes(visual, visual[gallery.caption_items])


def eccv(folder: Path, gallery: Gallery) -> tuple[Pairs, Pairs]:
    """Reads ECCV-Caption's positives of visual and of text queries (docs/models.md#eccv-caption).

    The folder is the package's `data`: two JSON objects, from COCO image ids to caption ids and the reverse. What is
    not in the gallery is left out, as two of the package's 22,550 positive captions.
    """
    of_visual, of_text = (_read(folder / name) for name in ECCV_FILES)
    rows, columns = ({name: place for place, name in enumerate(ids)} for ids in (gallery.ids, gallery.caption_ids))

    def pairs(found: Iterable[tuple[str, str]]) -> Pairs:
        places = {(columns[text], rows[item]) for item, text in found if item in rows and text in columns}
        if not places:
            raise UserError(f"{folder} judges no item or no caption of this split: it is made for COCO's karpathy/test")
        text, visual = np.array(sorted(places)).T
        return Pairs(visual, text, (len(rows), len(columns)))

    return pairs(of_visual), pairs((item, text) for text, item in of_text)


def _read(path: Path) -> list[tuple[str, str]]:
    try:
        found = json.loads(path.read_bytes())
        return [(query, str(int(answer))) for query, answers in found.items() for answer in answers]
    except FileNotFoundError:
        raise UserError(f"{path} is not there: --eccv takes the folder with {' and '.join(ECCV_FILES)}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no object of lists of ids: {error}") from error
