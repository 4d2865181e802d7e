"""Metrics of a user's similarity matrix on a split, without features or torch.

Rows are the split's items in the order of the records, columns each item's captions by position, or the same number of
first ones of each: 25,000 columns are the first five of COCO's test pictures. `write_ids` writes both orders down.
"""

import tempfile
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from xmodal.errors import UserError
from xmodal.metrics.protocols import Gallery, all_metrics, eccv, labels_of
from xmodal.metrics.reports import Report
from xmodal.ranking.similarities import Numbers, Similarities, cuts
from xmodal.recipes import View
from xmodal.records.views import captions_by_item, splits
from xmodal.root.files import sha256_of
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output

GRID = (256, 1024)  # rows and columns looked at together
ROWS_MOVED = 32  # together: they stay in the processor's cache
IDS = (".items.txt", ".captions.txt")
CaptionIds: typing.TypeAlias = Mapping[str, Sequence[str]]  # by item, in the order of the records


def score(
    path: Path,
    root: str,
    corpus: str,
    split: str | None = None,
    *,
    prefix: str | None = None,
    extended: Path | None = None,
) -> Report:
    """Computes every metric of a matrix in a .npy file, never read whole.

    PREFIX.items.txt and PREFIX.captions.txt name its rows and columns, an id a line, in any order. `extended` is a
    folder with ECCV-Caption's files.
    """
    records, view, found = _caption_ids(root, corpus, split)
    matrix = read_matrix(path)
    gallery, similarities = _by_ids(matrix, found, prefix) if prefix else _by_order(matrix, found, path)
    positives = eccv(extended, gallery) if extended else None
    try:
        metrics = all_metrics(similarities, gallery, labels_of(records, gallery.ids), positives)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    silent = sum(not captions for captions in found.values())
    return Report(
        recipe=path.name,
        fingerprint=sha256_of(path),
        records=records.identity,
        corpus=corpus,
        split=view.split,
        items=len(gallery.ids),
        captions=len(gallery.caption_ids),
        absent=len(found) - silent - len(gallery.ids),
        silent=silent,
        metrics=metrics,
    )


def write_ids(prefix: str, root: str, corpus: str, split: str | None = None) -> list[str]:
    """Writes PREFIX.items.txt for rows and PREFIX.captions.txt for columns: an id a line, all captions."""
    if not Path(prefix).parent.is_dir():
        raise UserError(f"{Path(prefix).parent} is no folder: make it, or give another PREFIX")
    gallery = _gallery(_caption_ids(root, corpus, split)[2])
    paths = [prefix + end for end in IDS]
    for path, ids in zip(paths, (gallery.ids, gallery.caption_ids), strict=True):
        Path(path).write_text("".join(f"{id}\n" for id in ids), encoding="utf-8")
    return paths


def _caption_ids(root: str, corpus: str, split: str | None) -> tuple[Output, View, CaptionIds]:
    records = find_output(root, "records", corpus=corpus)
    view = View(corpus, split or test_split(records, corpus))
    captions = captions_by_item(records, view)
    return records, view, captions.grouped(captions.ids)


def _gallery(found: CaptionIds, per_item: int | None = None) -> Gallery:
    some = {item: captions[:per_item] for item, captions in found.items() if captions}
    owners = np.repeat(np.arange(len(some)), [len(captions) for captions in some.values()])
    return Gallery(tuple(some), tuple(caption for captions in some.values() for caption in captions), owners)


def _by_order(matrix: Numbers, found: CaptionIds, path: Path) -> tuple[Gallery, Similarities]:
    counts = np.array([len(captions) for captions in found.values() if captions])
    columns = {int(np.minimum(counts, n).sum()): n for n in range(counts.max(initial=0), 0, -1)}  # the fewest first
    rows, wide = matrix.shape
    if rows == len(counts) and wide in columns:
        gallery = _gallery(found, None if wide == counts.sum() else columns[wide])
        return gallery, Similarities.of(matrix, GRID)
    if wide == len(counts) and rows in columns:
        raise UserError(f"{path} is {rows:,} x {wide:,}, which has captions as rows: save its transpose (`matrix.T`)")
    fewer = ", ".join(f"{n:,}" for n in sorted(columns)[:-1])
    first = f" (or {fewer}: the first captions of each)" if fewer else ""
    raise UserError(
        f"{path} is {rows:,} x {wide:,}, but the split has {len(counts):,} items and {counts.sum():,} captions"
        f"{first}: name what its rows and columns are with --ids"
    )


def _by_ids(matrix: Numbers, found: CaptionIds, prefix: str) -> tuple[Gallery, Similarities]:
    """Brings a matrix, by a file, into the order of the records, in which folds are cut."""
    rows = _places(prefix + IDS[0], matrix.shape[0], "rows")
    columns = _places(prefix + IDS[1], matrix.shape[1], "columns")
    asked = {item: captions for item, captions in found.items() if item in rows}
    gallery = _gallery({item: [id for id in captions if id in columns] for item, captions in asked.items()})
    sides = (rows, gallery.ids, "item", "caption"), (columns, gallery.caption_ids, "caption", "item")
    for ids, there, what, other in sides:
        if strays := ids.keys() - set(there):
            raise UserError(
                f"{prefix}: {what} {min(strays)!r} is not of the split, or has no {other} there ({len(strays):,} such)"
            )
    row_of, column_of = (np.array([ids[id] for id in there]) for ids, there, _, _ in sides)
    with tempfile.TemporaryFile() as file:  # once: every tile is asked for several times
        for block in cuts(len(row_of), ROWS_MOVED):
            file.write(matrix[row_of[block]].take(column_of, axis=1).data)
        file.flush()
        ordered: typing.Any = np.memmap(file, matrix.dtype, "r", shape=matrix.shape)
    return gallery, Similarities.of(ordered, GRID)


def _places(path: str, length: int, what: str) -> dict[str, int]:
    try:
        ids = Path(path).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        raise UserError(f"{path} is not there: `--write-ids` writes one") from None
    places = {id: place for place, id in enumerate(ids)}
    if len(places) != len(ids):
        raise UserError(f"{path} names {len(ids) - len(places):,} of its {len(ids):,} ids twice")
    if len(ids) != length:
        raise UserError(f"the matrix has {length:,} {what}, but {path} names {len(ids):,}")
    return places


def read_matrix(path: Path) -> Numbers:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (ValueError, EOFError) as error:
        raise UserError(f"{path} is no .npy file of a matrix of numbers, or it is cut: use numpy.save") from error
    if not isinstance(matrix, np.ndarray):
        raise UserError(
            f"{path} holds several arrays, as numpy.savez writes them: save the matrix alone, by numpy.save"
        )
    if matrix.ndim != 2 or not matrix.size:
        found = " x ".join(f"{side:,}" for side in matrix.shape) or "one number"
        raise UserError(f"{path} is {found}: a matrix of rows and columns is expected, at least one of each")
    if matrix.dtype.kind not in "fiu":
        raise UserError(f"{path} has values of type {matrix.dtype}: floats or integers are expected, such as float32")
    return matrix


def test_split(records: Output, corpus: str) -> str:
    there = splits(records)
    tests = [name for name in there if name.rpartition("/")[2] == "test"]
    if len(tests) != 1:
        raise UserError(f"{corpus} has {len(tests)} test splits: name one with --split; there are: {', '.join(there)}")
    return tests[0]
