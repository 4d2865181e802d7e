"""Scoring a user's matrix whose rows and columns come in another order, against the same in order."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.benchmarks.measured import Bar, Measured, timed
from xmodal.corpora import load
from xmodal.evaluation.matrix_metrics import score, write_ids
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Row, Split
from xmodal.root.storage import open_storage

BARS = {"scores_in_other_order_vs_in_order": Bar(maximum=1.5)}
PICTURES = Path(__file__).parents[1] / "fixtures/pictures.py"
ITEMS, PER_ITEM, ROUNDS = 5_000, 5, 5


def measure(folder: Path) -> dict[str, Measured]:
    """Both ways in turns; the times of a turn have a ratio, and the median of these counts."""
    root, prefix = _root(folder), str(folder / "mine")
    chance = np.random.default_rng(0)
    matrix = chance.standard_normal((ITEMS, ITEMS * PER_ITEM), np.float32)
    matrix[np.arange(ITEMS * PER_ITEM) // PER_ITEM, np.arange(ITEMS * PER_ITEM)] += 3.5
    np.save(folder / "sims.npy", matrix)
    rows, columns = (chance.permutation(length) for length in matrix.shape)
    np.save(folder / "other.npy", np.ascontiguousarray(matrix[rows][:, columns]))
    for path, order in zip(write_ids(prefix, root, "pictures"), (rows, columns), strict=True):
        ids = Path(path).read_text().split()
        Path(path).write_text("\n".join(ids[place] for place in order.tolist()))
    in_order = partial(score, folder / "sims.npy", root, "pictures")
    in_other = partial(score, folder / "other.npy", root, "pictures", prefix=prefix)
    assert in_order().metrics == in_other().metrics
    runs = tuple(round(timed(in_other) / timed(in_order), 4) for _ in range(ROUNDS))
    told = f"seconds of {ITEMS:,} x {ITEMS * PER_ITEM:,} similarities in the order of the records"
    return {"scores_in_other_order_vs_in_order": Measured(statistics.median(runs), "x", told, runs)}


def _root(folder: Path) -> str:
    for name in ("captions.tsv", "splits.json", "pictures.txt"):
        (folder / name).write_text("")
    corpus = replace(load(str(PICTURES)), parse=_parse, counts={})
    root = str(folder / "root")
    CorpusBuild(BuildOptions(open_storage(root), raw=folder), corpus).build("records")
    return root


def _parse(raw: Raw) -> Iterator[Row]:
    for number in range(ITEMS):
        item = f"i{number:05d}"
        yield Item(item, f"{number}.jpg")
        yield Split(item, "toy/test")
        yield from (Caption(f"c{number:05d}.{place}", item, place, "a picture") for place in range(PER_ITEM))
