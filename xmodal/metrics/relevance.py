"""Relevance: which texts are right for which items, by listed pairs, classes, or nearly equal labels."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.metrics.similarities import Integers, bounds

RelevanceTable: TypeAlias = NDArray[np.bool_]  # (visual rows, text rows)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Lists the pairs that match, `visual[i]` with `text[i]`, sorted by text: many-to-many."""

    visual: Integers
    text: Integers
    shape: tuple[int, int]  # visual rows, text rows

    def __post_init__(self) -> None:
        if self.visual.ndim != 1 or self.visual.shape != self.text.shape:
            raise ValueError(
                f"pairs need one visual row for each text row, not {self.visual.shape} and {self.text.shape}"
            )
        _check_within("visual", self.visual, self.shape[0])
        _check_within("text", self.text, self.shape[1])
        if np.any(self.text[1:] < self.text[:-1]):
            raise ValueError("pairs must be sorted by text row")

    @classmethod
    def of_texts(cls, visual_of_text: Integers, visual_rows: int) -> "Pairs":
        """Pairs every text with the one visual item it belongs to."""
        return cls(visual_of_text, np.arange(len(visual_of_text)), (visual_rows, len(visual_of_text)))

    def tile(self, visual_rows: slice, text_rows: slice) -> RelevanceTable:
        visual_start, visual_stop = bounds(visual_rows, self.shape[0])
        text_start, text_stop = bounds(text_rows, self.shape[1])
        near = slice(*np.searchsorted(self.text, [text_start, text_stop]))
        visual, text = self.visual[near], self.text[near]
        inside = (visual >= visual_start) & (visual < visual_stop)
        table_VT = np.zeros((visual_stop - visual_start, text_stop - text_start), np.bool_)
        table_VT[visual[inside] - visual_start, text[inside] - text_start] = True
        return table_VT


@dataclass(frozen=True, eq=False)
class Classes:
    """Makes a text right for every visual item of its class or identity."""

    visual: Integers  # (V,)
    text: Integers  # (T,)

    def __post_init__(self) -> None:
        for name, classes in (("visual", self.visual), ("text", self.text)):
            if classes.ndim != 1 or not np.issubdtype(classes.dtype, np.integer):
                raise ValueError(f"{name} classes must be one integer a row, not {classes.shape} {classes.dtype}")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, visual_rows: slice, text_rows: slice) -> RelevanceTable:
        visual_V = self.visual[slice(*bounds(visual_rows, self.shape[0]))]
        text_T = self.text[slice(*bounds(text_rows, self.shape[1]))]
        return np.equal.outer(visual_V, text_T)


@dataclass(frozen=True, eq=False)
class LabelBits:
    """Makes rows match whose sets of labels differ in at most `zeta` labels (docs/models.md#pmrp).

    Rows without labels, which would all match each other, are refused.
    """

    visual: NDArray[np.uint64]  # (V, words), as `pack_labels` gives them
    text: NDArray[np.uint64]  # (T, words)
    zeta: int

    def __post_init__(self) -> None:
        if self.zeta < 0:
            raise ValueError(f"zeta must be 0 or more, not {self.zeta}")
        for name, bits in (("visual", self.visual), ("text", self.text)):
            if bits.dtype != np.uint64 or bits.shape[1:] != self.visual.shape[1:2]:
                raise ValueError(f"{name} labels must be uint64 words of equal width, not {bits.shape} {bits.dtype}")
            if len(empty := np.flatnonzero(~bits.any(axis=1))):
                raise ValueError(f"{name} row {empty[0]} has no label ({len(empty)} such rows); drop them first")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, visual_rows: slice, text_rows: slice) -> RelevanceTable:
        visual_VW = self.visual[slice(*bounds(visual_rows, self.shape[0]))]
        text_TW = self.text[slice(*bounds(text_rows, self.shape[1]))]
        return differing_labels(visual_VW, text_TW) <= self.zeta


Relevance: TypeAlias = Pairs | Classes | LabelBits


def pack_names(names: Sequence[Collection[str]]) -> NDArray[np.uint64]:
    """Packs the labels of rows, given by name."""
    column = {name: number for number, name in enumerate(sorted({name for row in names for name in row}))}
    table = np.zeros((len(names), len(column)), np.bool_)
    for row, of_row in enumerate(names):
        table[row, [column[name] for name in of_row]] = True
    return pack_labels(table)


def pack_labels(labels: RelevanceTable) -> NDArray[np.uint64]:
    """Packs (rows, labels) booleans as 64 labels a word."""
    if labels.ndim != 2 or labels.dtype != np.bool_:
        raise ValueError(f"labels must be (rows, labels) booleans, not {labels.shape} {labels.dtype}")
    padded = np.pad(labels, ((0, 0), (0, -labels.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)


def differing_labels(visual_VW: NDArray[np.uint64], text_TW: NDArray[np.uint64]) -> Integers:
    """Counts the labels in which rows differ: (V, T)."""
    words = visual_VW.shape[1]
    differing_VT = np.zeros((len(visual_VW), len(text_TW)), np.min_scalar_type(64 * words))
    for visual_V, text_T in zip(visual_VW.T, text_TW.T, strict=True):  # a word at a time: 8 bytes a cell, not 8 x words
        differing_VT += np.bitwise_count(np.bitwise_xor.outer(visual_V, text_T))
    return differing_VT


def _check_within(name: str, rows: Integers, length: int) -> None:
    if not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"{name} rows must be integers, not {rows.dtype}")
    if len(rows) and not 0 <= rows.min() <= rows.max() < length:
        raise ValueError(f"{name} rows {rows.min()}..{rows.max()} are not all within 0:{length}")
