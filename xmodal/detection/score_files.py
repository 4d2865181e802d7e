"""Files with scores of tags, by which any tagger's output is read: one line a score, or one matrix.

    scores.tsv   id <tab> tag <tab> score, with these three words as its first line; what has no line is 0
    scores.h5    datasets `ids` (I,), `names` (N,) and `scores` (I, N)

Scores are numbers from 0; of a score that a file has twice, the higher one counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.features.foreign_formats import ForeignArray, open_foreign
from xmodal.raw.array_files import HDF5, hdf5_texts, open_hdf5, reading

COLUMNS = {"id": pa.string(), "tag": pa.string(), "score": pa.float32()}
FORM = "it is a .tsv that begins with the line id<tab>tag<tab>score, or an .h5 with ids, names and scores"
SCORES, NAMES = "scores", "names"  # datasets of HDF5


@dataclass(frozen=True, eq=False)
class TagScores:
    """One source of scores: a file, or what a network made."""

    names: tuple[str, ...]
    places: Mapping[str, int]  # of ids
    take: Callable[[NDArray[np.int64]], NDArray[np.float32]]  # rows at ascending places

    def read(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """(ids, names), zeros for an id that the file lacks."""
        rows = np.array([self.places.get(id, -1) for id in ids], np.int64)
        places, which = np.unique(rows[rows >= 0], return_inverse=True)
        found = np.zeros((len(ids), len(self.names)), np.float32)
        found[rows >= 0] = self.take(places)[which]
        return found


def open_scores(path: Path) -> TagScores:
    return _open_matrix(path) if path.suffix in HDF5 else _open_lines(path)


def _open_matrix(path: Path) -> TagScores:
    array = open_foreign(path, key=SCORES)
    assert isinstance(array, ForeignArray)
    names = hdf5_texts(path, NAMES)
    if array.shape != (len(array.ids), len(names)) or not names:
        told = f"{SCORES} is {array.shape}, for {len(array.ids):,} ids and {len(names):,} {NAMES}"
        raise UserError(f"{path}: {told}: it must have a row an id and a column a name")

    def take(places: NDArray[np.int64]) -> NDArray[np.float32]:
        if not len(places):
            return np.zeros((0, len(names)), np.float32)
        with reading(path), open_hdf5(path) as file:
            return _checked(path, np.asarray(file[SCORES][places], np.float32))

    return TagScores(names, {id: place for place, id in enumerate(array.ids)}, take)


def _open_lines(path: Path) -> TagScores:
    table = _table(path)
    ids, tags = (table[name].combine_chunks().dictionary_encode() for name in ("id", "tag"))
    scores, owners, columns = _checked(path, table["score"].to_numpy()), _indices(ids), _indices(tags)
    names = tuple(tags.dictionary.to_pylist())
    order = np.argsort(owners, kind="stable")
    scores, owners, columns = scores[order], owners[order], columns[order]

    def take(places: NDArray[np.int64]) -> NDArray[np.float32]:
        found = np.zeros((len(places), len(names)), np.float32)
        begins, ends = (np.searchsorted(owners, places, side) for side in ("left", "right"))
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            np.maximum.at(found[row], columns[begin:end], scores[begin:end])
        return found

    return TagScores(names, {id: place for place, id in enumerate(ids.dictionary.to_pylist())}, take)


def _indices(column: Any) -> NDArray[np.int64]:
    return np.asarray(column.indices.to_numpy(), np.int64)


def _table(path: Path) -> pa.Table:
    with reading(path):
        table = pc.read_csv(
            path,
            parse_options=pc.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pc.ConvertOptions(column_types=COLUMNS),
        )
    if table.column_names != [*COLUMNS]:
        raise UserError(
            f"{path} begins with {', '.join(table.column_names)[:100]!r}, which is no file of scores: {FORM}"
        )
    if not len(table):
        raise UserError(f"{path} has no line with a score")
    return table


def _checked(path: Path, scores: NDArray[np.float32]) -> NDArray[np.float32]:
    if not (np.isfinite(scores) & (scores >= 0)).all():  # where one is lacking, it is NaN
        raise UserError(f"{path}: a score is lacking, negative, infinite or NaN: scores are numbers from 0")
    return scores
