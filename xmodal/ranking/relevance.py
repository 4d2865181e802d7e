"""Relevance: which texts are right for which items, by listed pairs, classes, or nearly equal labels."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xmodal.ranking.similarities import SIDES, Integers, bounds

RelevanceTable = NDArray[np.bool_]  # (visual rows, text rows)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Lists the pairs that match, `visual[i]` with `text[i]`, sorted by text: many-to-many."""

    visual: Integers
    text: Integers
    shape: tuple[int, int]  # visual rows, text rows

    def __post_init__(self) -> None:
        assert self.visual.shape == self.text.shape, "pairs need one visual row for each text row"
        for rows, length in zip((self.visual, self.text), self.shape, strict=True):
            assert np.issubdtype(rows.dtype, np.integer)
            assert not len(rows) or 0 <= rows.min() <= rows.max() < length, f"rows are not all within 0:{length}"
        assert (self.text[1:] >= self.text[:-1]).all(), "pairs must be sorted by text row"

    @classmethod
    def of_texts(cls, visual_of_text: Integers, visual_rows: int) -> "Pairs":
        return cls(visual_of_text, np.arange(len(visual_of_text)), (visual_rows, len(visual_of_text)))

    def tile(self, rows: slice, columns: slice) -> RelevanceTable:
        rows, columns = bounds(rows, self.shape[0]), bounds(columns, self.shape[1])
        near = slice(*np.searchsorted(self.text, [columns.start, columns.stop]))
        visual, text = self.visual[near], self.text[near]
        inside = (visual >= rows.start) & (visual < rows.stop)
        table_VT = np.zeros((rows.stop - rows.start, columns.stop - columns.start), np.bool_)
        table_VT[visual[inside] - rows.start, text[inside] - columns.start] = True
        return table_VT


@dataclass(frozen=True, eq=False)
class Classes:
    """Makes a text right for every visual item of its class or identity."""

    visual: Integers  # (V,)
    text: Integers  # (T,)

    def __post_init__(self) -> None:
        assert np.issubdtype(self.visual.dtype, np.integer)
        assert np.issubdtype(self.text.dtype, np.integer)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, rows: slice, columns: slice) -> RelevanceTable:
        rows, columns = bounds(rows, self.shape[0]), bounds(columns, self.shape[1])
        return np.equal.outer(self.visual[rows], self.text[columns])


@dataclass(frozen=True, eq=False)
class LabelBits:
    """Makes rows match whose sets of labels differ in at most `zeta` labels (docs/models.md#pmrp).

    Rows without labels are refused.
    """

    visual: NDArray[np.uint64]  # (V, words), as `pack_labels` gives them
    text: NDArray[np.uint64]  # (T, words)
    zeta: int

    def __post_init__(self) -> None:
        assert self.zeta >= 0
        assert self.visual.shape[1:] == self.text.shape[1:]
        for name, bits in zip(SIDES, (self.visual, self.text), strict=True):
            if len(empty := np.flatnonzero(~bits.any(axis=1))):
                raise ValueError(f"{name} row {empty[0]} has no label ({len(empty)} such rows); drop them first")

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.visual), len(self.text)

    def tile(self, rows: slice, columns: slice) -> RelevanceTable:
        rows, columns = bounds(rows, self.shape[0]), bounds(columns, self.shape[1])
        return differing_labels(self.visual[rows], self.text[columns]) <= self.zeta


Relevance = Pairs | Classes | LabelBits


def pack_names(names: Sequence[Collection[str]]) -> NDArray[np.uint64]:
    column = {name: number for number, name in enumerate(sorted({name for row in names for name in row}))}
    table = np.zeros((len(names), len(column)), np.bool_)
    for row, of_row in enumerate(names):
        table[row, [column[name] for name in of_row]] = True
    return pack_labels(table)


def pack_labels(labels: RelevanceTable) -> NDArray[np.uint64]:
    """Packs (rows, labels) booleans as 64 labels a word."""
    assert labels.dtype == np.bool_
    padded = np.pad(labels, ((0, 0), (0, -labels.shape[1] % 64)))
    return np.packbits(padded, axis=1).view(np.uint64)


def differing_labels(visual_VW: NDArray[np.uint64], text_TW: NDArray[np.uint64]) -> Integers:
    """Counts the labels in which rows differ: (V, T)."""
    words = visual_VW.shape[1]
    differing_VT = np.zeros((len(visual_VW), len(text_TW)), np.min_scalar_type(64 * words))
    for visual_V, text_T in zip(visual_VW.T, text_TW.T, strict=True):  # a word at a time: 8 bytes a cell, not 8 x words
        differing_VT += np.bitwise_count(np.bitwise_xor.outer(visual_V, text_T))
    return differing_VT
