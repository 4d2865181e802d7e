"""What models cost beside the papers' own code: evaluation, on data of COCO's test size and the same for both sides."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.measured import Bar, Measured
from tests.benchmarks.official import pcme_pmrp, pvse_evaluation
from xmodal.metrics import WHOLE, Both, Pairs, Similarities, fold_windows, pack_labels, ranks
from xmodal.ranked import ZETAS, plausible

BARS = {
    "evaluate_5k_25k_vs_official": Bar(minimum=10),
    "pmrp_vs_official": Bar(minimum=100),
}
ITEMS, CAPTIONS, WIDTH, FOLD = 5000, 25_000, 1024, 1000
GRID = (256, 1024)
OWNERS = np.arange(CAPTIONS) // 5
ROUNDS = 3


def measure(anchors: Path | None) -> dict[str, Measured]:
    """Both keys need the checkouts."""
    if anchors is None:
        return {}
    return {"evaluate_5k_25k_vs_official": _evaluation(anchors), "pmrp_vs_official": _pmrp(anchors)}


def _ratio(theirs: Callable[[], float], ours: Callable[[], float], against: str) -> Measured:
    """Theirs and ours in turns; each call says how many seconds the whole would take."""
    rounds = [(theirs(), ours()) for _ in range(ROUNDS)]
    runs = tuple(round(slow / fast, 2) for slow, fast in rounds)
    slow, fast = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    return Measured(statistics.median(runs), "x", f"{against}: {slow:.1f} s there, {fast:.2f} s here", runs)


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _evaluation(anchors: Path) -> Measured:
    """PVSE's evaluation takes float64 (it encodes into `np.zeros`) and an image for each caption."""
    random, official, queries = np.random.default_rng(0), pvse_evaluation(anchors), 100
    items, captions = (_unit(random.standard_normal((rows, WIDTH))) for rows in (ITEMS, CAPTIONS))
    repeated = np.repeat(items, 5, axis=0)
    fold = repeated[: 5 * FOLD], captions[: 5 * FOLD]
    small, wide = items.astype(np.float32), captions.astype(np.float32)
    similarities = Similarities((ITEMS, CAPTIONS), GRID, lambda rows, columns: small[rows] @ wide[columns].T)

    def theirs() -> float:
        whole = _seconds(lambda: official.i2t(repeated, captions, nreps=5, npts=queries))
        setup = _seconds(lambda: official.t2i(repeated, captions, nreps=5, npts=1))
        whole += _seconds(lambda: official.t2i(repeated, captions, nreps=5, npts=queries)) - setup
        folds = [_seconds(lambda side=side: side(*fold, nreps=5, npts=FOLD)) for side in (official.i2t, official.t2i)]
        return whole * ITEMS / queries + 5 * sum(folds)

    def ours() -> float:
        return _seconds(lambda: _all_ranks(similarities))

    _check_ranks(official, fold, similarities)
    return _ratio(
        theirs, ours, f"PVSE's i2t and t2i, whole ({queries} of {ITEMS:,} items, scaled) and one fold of five"
    )


def _all_ranks(similarities: Similarities) -> list[Both]:
    return ranks(similarities, Pairs.of_texts(OWNERS, ITEMS), [WHOLE, *fold_windows(OWNERS, ITEMS)])


def _check_ranks(official: Any, fold: tuple[Any, Any], similarities: Similarities) -> None:
    """The numbers are the same: in the first fold, where a hundredth may differ by rounding."""
    found = _all_ranks(similarities)[1]
    for side, mine in zip((official.i2t, official.t2i), found, strict=True):
        _, (theirs, _) = side(*fold, nreps=5, return_ranks=True)
        assert np.mean(theirs != mine.ranks) < 0.01
        assert abs(np.mean(theirs < 10) - np.mean(mine.ranks < 10)) < 2e-4


def _pmrp(anchors: Path) -> Measured:
    """PCME's code starts from finished rankings, ours from similarities: sorting is on our side alone."""
    random, official, queries = np.random.default_rng(0), pcme_pmrp(anchors), 25
    labels = coco_like_labels(random, ITEMS)
    matrix, bits = random.standard_normal((ITEMS, CAPTIONS), np.float32), pack_labels(labels)
    known = np.flatnonzero(labels.any(axis=1))
    asked = known[:queries]
    differing = np.abs(labels[known, None].astype(np.float32) - labels[None, asked]).sum(axis=2).T
    distances = np.zeros((len(known), len(known)))
    distances[:queries] = differing
    places = {int(item): place for place, item in enumerate(known)}
    shown = [{"image_id": int(item), "id": text} for text, item in enumerate(OWNERS)]
    items = [{"id": item} for item in range(ITEMS)]
    of_items = {int(item): {"retrieved": [shown[text] for text in np.argsort(-matrix[item])]} for item in asked}
    texts = np.flatnonzero(np.isin(OWNERS, asked))
    of_texts = {
        int(text): {"query": shown[text], "retrieved": [items[item] for item in np.argsort(-matrix[:, text])]}
        for text in texts
    }

    def judge(gallery: set[int]) -> tuple[float, list[list[float]]]:
        seconds, values = 0.0, []
        for name, data in (("image", of_items), ("text", of_texts)):
            started = time.perf_counter()
            found, _ = official.evaluate_plausible_metrics(data, name, distances, places, gallery)
            seconds += time.perf_counter() - started
            values.append([100 * float(np.mean(found[zeta])) for zeta in ZETAS])
        return seconds, values

    def theirs() -> float:
        return judge(set(known.tolist()))[0] * len(known) / queries

    def ours() -> float:
        return _seconds(lambda: plausible(Similarities.of(matrix, GRID), bits, bits[OWNERS]))

    _, values = judge(set(asked.tolist()))
    (both,) = plausible(Similarities.of(matrix[np.ix_(asked, texts)]), bits[asked], bits[OWNERS[texts]])
    np.testing.assert_allclose(values, [list(side.r_precision.values()) for side in both], rtol=1e-9)
    return _ratio(theirs, ours, f"PCME's evaluate_plausible_metrics, both directions ({queries} items, scaled)")


def coco_like_labels(random: np.random.Generator, items: int) -> NDArray[np.bool_]:
    """Eighty categories, the first in half of the pictures, three in one on average; few pictures show none."""
    topic = random.integers(0, 12, items)
    often = np.concatenate([[0.5], 0.45 / np.arange(2, 81) ** 0.8])
    often = np.minimum(often * np.where(random.random((12, 80)) < 0.25, 2.6, 0.35), 0.95)
    labels = np.zeros((items, 90), bool)
    labels[:, :80] = random.random((items, 80)) < often[topic]
    labels[~labels.any(axis=1) & (random.random(items) < 0.9), 0] = True
    return labels


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
