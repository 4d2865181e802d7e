"""Classes that k-means finds among items, by their features (docs/models.md#dual-path-evaluation).

Shapes: N items, D width of a feature.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError, extra_needed
from xmodal.features.store import FeatureStore
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output
from xmodal.text.threads import one_thread_each

CLUSTERS, FILE = "clusters", "clusters.parquet"  # the stage, and its table of items and classes
BLOCK = 1024  # items that are read at once


def pooled_rows(store: FeatureStore, ids: Sequence[str]) -> NDArray[np.float32]:
    """(N, D): the mean over an item's positions."""
    rows = store.rows(ids)
    return np.concatenate([_means(store, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)])


def _means(store: FeatureStore, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    width, is_ragged = store.spec.row_shape[-1], store.spec.ragged
    values = (store.take_padded(rows) if is_ragged else store.take(rows)).astype(np.float32)
    positions = values.reshape(len(values), -1, width)
    counts = np.maximum(store.lengths(rows), 1)[:, None] if is_ragged else positions.shape[1]
    return np.asarray(positions.sum(axis=1) / counts, np.float32)


def k_means(rows_ND: NDArray[np.float32], count: int, rounds: int, seed: int) -> NDArray[np.int32]:
    """(N,): the class of each row, the same ones on any number of cores; starts from rows drawn at random."""
    with extra_needed("text", "k-means needs scikit-learn"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
    with one_thread_each(), warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            found = KMeans(count, init="random", n_init=1, max_iter=rounds, random_state=seed).fit(rows_ND)
        except ConvergenceWarning as error:  # fewer different rows than classes
            raise UserError(f"k-means cannot make {count:,} classes: {error}") from None
    return np.asarray(found.labels_, np.int32)


def read_classes(clusters: Output, ids: Sequence[str]) -> NDArray[np.int64]:
    """(ids,): the class of each item, from 0."""
    table = read_columns(clusters, FILE, "item", "class")
    known = dict(zip(table["item"].to_pylist(), table["class"].to_pylist(), strict=True))
    if without := [id for id in ids if id not in known]:
        raise UserError(
            f"{clusters.where} has no class of {without[0]!r} and {len(without) - 1:,} others: build it again"
        )
    return np.array([known[id] for id in ids], np.int64)
