"""List metrics against their definitions written the slow way, and against the official code's values."""

import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tests.golden import golden
from tests.ranking.test_ranks import GRIDS, judged
from xmodal.metrics import pmrp
from xmodal.metrics.pmrp import SAMPLED, ZETAS, PlausibleAnswers, plausible_answers
from xmodal.metrics.precision_at_k import FIRST
from xmodal.metrics.protocols import list_scores, list_values, plausible_scores, rank_scores
from xmodal.metrics.separation import separation
from xmodal.ranking.ranked_lists import ANSWERS_AT_ONCE, FEW, relevant_ranks
from xmodal.ranking.ranks import cmc, fold_windows, median_by_cmc, ranks
from xmodal.ranking.relevance import Classes, LabelBits, Pairs, Relevance, pack_labels
from xmodal.ranking.similarities import SIDES, WHOLE, Side, Similarities, Window, cached_on_disk

Matrix = NDArray[np.generic]
LIST_COLUMNS = ("R-P", "mAP@R", "mAP", *(f"P@{k}" for k in FIRST))  # of what `slow_metrics` gives
Case = tuple[Relevance, NDArray[np.bool_], NDArray[np.int64]]


def slow_hits(scores: Matrix, right: NDArray[np.bool_]) -> list[bool]:
    """Whether each of the sorted gallery is right: greater is earlier, and of equal ones wrong is earlier."""
    pairs = sorted(zip(scores.tolist(), right.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [answer for _, answer in pairs]


def slow_metrics(hits: list[bool]) -> list[float]:
    """R-Precision, mAP@R, average precision by trapezoids over every place, and precision@k."""
    count = sum(hits)
    precision = [sum(hits[: place + 1]) / (place + 1) for place in range(len(hits))]
    map_at_r = sum(precision[place] for place in range(count) if hits[place]) / count
    average, recall, before = 0.0, 0.0, 1.0
    for place, now in enumerate(precision):
        reached = sum(hits[: place + 1]) / count
        average += (reached - recall) * (before + now) / 2
        recall, before = reached, now
    return [sum(hits[:count]) / count, map_at_r, average, *(sum(hits[:k]) / k for k in FIRST)]


def as_queries(table: NDArray[Any], queries: Side) -> NDArray[Any]:
    return table if queries == "visual" else table.T


@given(judged(), st.sampled_from(GRIDS), st.sampled_from(SIDES))
def test_list_metrics_are_their_definitions_for_any_relevance_and_any_tiles(
    case: Case, grid: tuple[int, int], queries: Side
) -> None:
    relevance, table, matrix = case
    found = list_values(Similarities.of(matrix, grid), relevance, queries)
    rows = zip(as_queries(matrix, queries), as_queries(table, queries), strict=True)
    expected = [slow_metrics(slow_hits(scores, right)) for scores, right in rows]
    np.testing.assert_allclose(np.array([found[name] for name in LIST_COLUMNS]).T, expected, rtol=1e-12)
    np.testing.assert_allclose(found["R-P by chance"], as_queries(table, queries).mean(axis=1))


@pytest.mark.parametrize("classes", [2, 40])
def test_many_and_few_right_answers_are_placed_alike(classes: int) -> None:
    random = np.random.default_rng(0)
    relevance = Classes(random.integers(0, classes, 200), np.arange(300) % classes)
    assert (300 // classes > FEW) == (classes == 2)
    matrix = random.integers(0, 25, (200, 300)).astype(np.float32)
    found = list_values(Similarities.of(matrix, (64, 64)), relevance, "visual")
    right = relevance.tile(slice(None), slice(None))
    expected = [slow_metrics(slow_hits(*query)) for query in zip(matrix, right, strict=True)]
    np.testing.assert_allclose(found["mAP@R"], [metrics[1] for metrics in expected], rtol=1e-12)


def test_many_right_answers_are_handed_over_in_parts() -> None:
    """Half of a gallery is right for each query: together their ranks would be half of the matrix, in 8 bytes each."""
    random = np.random.default_rng(0)
    relevance = Classes(np.arange(400) % 2, np.arange(2000) % 2)
    similarities = Similarities.of(random.random((400, 2000), np.float32), (200, 500))
    found = list(relevant_ranks(similarities, relevance, "visual"))
    assert len(found) > 3
    assert sum(len(part.relevant) for part in found) == 400
    assert max(len(part.ranks) for part in found) < ANSWERS_AT_ONCE + 1000
    values = list_values(similarities, relevance, "visual")
    right = relevance.tile(slice(None), slice(None))
    matrix = similarities.tile(slice(None), slice(None))
    for row in (0, 199, 399):
        expected = slow_metrics(slow_hits(matrix[row], right[row]))
        assert [values[name][row] for name in LIST_COLUMNS] == pytest.approx(expected)


@given(judged(), st.sampled_from(SIDES))
def test_precision_at_one_is_recall_at_one(case: Case, queries: Side) -> None:
    relevance, _, matrix = case
    similarities = Similarities.of(matrix)
    best = ranks(similarities, relevance)[0][SIDES.index(queries)].ranks
    assert list_values(similarities, relevance, queries)["P@1"].tolist() == (best < 1).tolist()


@given(judged(), st.integers(0, 2**32))
def test_reordering_the_gallery_changes_nothing(case: Case, seed: int) -> None:
    _, table, matrix = case
    order = np.random.default_rng(seed).permutation(matrix.shape[1])
    found = []
    for scores, right in ((matrix, table), (matrix[:, order], table[:, order])):
        text, visual = np.nonzero(right.T)
        relevance = Pairs(visual, text, right.shape)
        found.append(list_scores(Similarities.of(scores), (relevance, relevance)).visual_to_text)
    assert found[0] == found[1]


def test_constant_similarities_find_nothing() -> None:
    relevance, similarities = Pairs.of_texts(np.repeat(np.arange(20), 5), 20), Similarities.of(np.zeros((20, 100)))
    found = list_scores(similarities, (relevance, relevance))
    for side in (found.visual_to_text, found.text_to_visual):
        assert (side["R-P"], side["mAP@R"], side["R-P by chance"]) == (0, 0, 5)


def test_queries_without_an_answer_are_refused_or_not_asked() -> None:
    relevance, matrix = Pairs(np.array([2, 2, 0]), np.array([0, 1, 3]), (4, 5)), np.eye(4, 5)
    similarities = Similarities.of(matrix, (3, 2))
    with pytest.raises(ValueError, match="visual row 1 has no right answer; drop it first"):
        list(relevant_ranks(similarities, relevance, "visual"))
    with pytest.raises(ValueError, match="text row 2 has no right answer; drop it first"):
        list(relevant_ranks(similarities, relevance, "text"))
    (of_visual,), (of_text,) = (relevant_ranks(similarities, relevance, queries, drop=True) for queries in SIDES)
    assert (of_visual.relevant.tolist(), of_text.relevant.tolist()) == ([1, 2], [1, 1, 1])
    assert (of_visual.gallery, of_text.gallery) == (5, 4)
    nobody = Pairs(np.array([], int), np.array([], int), (4, 5))
    with pytest.raises(ValueError, match="no visual row has a right answer"):
        list(relevant_ranks(similarities, nobody, "visual", drop=True))
    with pytest.raises(ValueError, match=r"relevance of \(2, 2\) cannot judge similarities of \(4, 5\)"):
        list(relevant_ranks(similarities, Pairs.of_texts(np.arange(2), 2), "visual"))


ASKED: list[Callable[[Similarities], object]] = [
    lambda matrix: list_values(matrix, Classes(*(np.zeros(n, int) for n in matrix.shape)), "text"),
    lambda matrix: plausible_answers(matrix, *(np.ones((n, 1), np.uint64) for n in matrix.shape)),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_similarity_that_is_no_number_is_refused(ask: Callable[[Similarities], object], wrong: float) -> None:
    matrix = np.zeros((6, 6))
    matrix[5, 3] = wrong
    with pytest.raises(ValueError, match=f"visual row 5 and text row 3 is {wrong}; only finite"):
        ask(Similarities.of(matrix, (2, 2)))


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_an_empty_gallery_is_refused(ask: Callable[[Similarities], object], shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"no text row has a right answer|an empty gallery cannot be searched"):
        ask(Similarities.of(np.zeros(shape)))


@st.composite
def labelled(draw: st.DrawFn) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Labels of items, of which some have none, owners of captions, and similarities with many ties."""
    items, width = draw(st.integers(1, 9)), draw(st.sampled_from([3, 4, 70]))
    some = np.zeros((items, width), bool)
    some[:, -4:] = draw(arrays(np.bool_, (items, min(width, 4))))
    some[0, -1] = True
    owners = np.repeat(np.arange(items), draw(arrays(np.int64, items, elements=st.integers(1, 3))))
    return some, owners, draw(arrays(np.int64, (items, len(owners)), elements=st.integers(-2, 2)))


def slow_pmrp(matrix: Matrix, visual: NDArray[np.bool_], text: NDArray[np.bool_]) -> list[float]:
    """Of the visual queries, by zeta, after dropping what has no labels."""
    there = visual.any(axis=1), text.any(axis=1)
    matrix, visual, text = matrix[there[0]][:, there[1]], visual[there[0]], text[there[1]]
    found = []
    for zeta in ZETAS:
        right = np.array([[np.sum(a != b) <= zeta for b in text] for a in visual])
        found.append(100 * np.mean([slow_metrics(slow_hits(*query))[0] for query in zip(matrix, right, strict=True)]))
    return found


@given(labelled(), st.sampled_from(GRIDS), st.sampled_from([np.int64, np.float32]))
def test_pmrp_is_its_definition_for_every_zeta_at_once(
    case: tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]], grid: tuple[int, int], dtype: type
) -> None:
    labels, owners, matrix = case
    bits = pack_labels(labels)
    ((of_visual, of_text),) = plausible_answers(Similarities.of(matrix.astype(dtype), grid), bits, bits[owners])
    assert list(of_visual.r_precision.values()) == pytest.approx(slow_pmrp(matrix, labels, labels[owners]))
    assert list(of_text.r_precision.values()) == pytest.approx(slow_pmrp(matrix.T, labels[owners], labels))
    assert (of_visual.queries, of_text.queries) == (labels.any(axis=1).sum(), labels[owners].any(axis=1).sum())
    scores = plausible_scores([(of_visual, of_text)])
    assert scores.visual_to_text["PMRP"] == pytest.approx(np.mean(slow_pmrp(matrix, labels, labels[owners])))


@given(st.integers(0, 2**32), st.sampled_from(GRIDS))
def test_pmrp_in_folds_is_what_each_would_be_alone(seed: int, grid: tuple[int, int]) -> None:
    random = np.random.default_rng(seed)
    owners = np.repeat(np.arange(9), random.integers(1, 4, 9))
    labels, matrix = random.random((9, 5)) < 0.3, random.integers(0, 9, (9, len(owners)))
    labels[::3, 0] = True
    windows: list[Window] = [WHOLE, *fold_windows(owners, 9, size=3)]
    assert len(windows) == 4
    bits = pack_labels(labels)
    found = plausible_answers(Similarities.of(matrix, grid), bits, bits[owners], windows)
    for (visual, text), both in zip(windows, found, strict=True):
        alone = plausible_answers(Similarities.of(matrix[visual, text]), bits[visual], bits[owners][text])
        assert both == alone[0]


@pytest.mark.parametrize("kind", ["spread", "tied", "misleading", "falling"])
def test_pmrp_of_large_galleries_is_its_definition(kind: str) -> None:
    """Large enough that most columns are never sorted, whatever the columns that are looked at first say."""
    random = np.random.default_rng(0)
    labels, owners = random.random((600, 40)) < 0.05, np.repeat(np.arange(600), 3)
    labels[random.random(600) < 0.9, 0] = True
    matrix = random.random((600, 1800)).astype(np.float32)
    if kind == "tied":
        matrix = np.round(matrix, 1)
    elif kind == "misleading":
        matrix[:, ::SAMPLED] += 1
        matrix[::SAMPLED] += 1
    elif kind == "falling":
        matrix -= np.arange(1800, dtype=np.float32) * 10
    bits = pack_labels(labels)
    (found,) = plausible_answers(Similarities.of(matrix, (64, 500)), bits, bits[owners])
    differing = (labels[:, None] != labels[owners]).sum(axis=2)
    there = labels.any(axis=1), labels[owners].any(axis=1)
    assert not all(rows.all() for rows in there)
    for side, queries in zip(found, SIDES, strict=True):
        rows, columns = there if queries == "visual" else there[::-1]
        scores, distances = (as_queries(table, queries)[rows][:, columns] for table in (matrix, differing))
        for zeta in ZETAS:
            right = distances <= zeta
            order = np.lexsort((right, -scores), axis=1)  # of equal ones the wrong first
            hits = np.take_along_axis(right, order, axis=1)
            shares = [hit[: hit.sum()].mean() for hit in hits]
            assert side.r_precision[zeta] == pytest.approx(100 * np.mean(shares))
            assert side.by_chance[zeta] == pytest.approx(100 * right.mean())


def test_pmrp_of_a_gallery_larger_than_what_is_judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    labels, matrix = pack_labels(random.random((40, 9)) < 0.3), random.random((40, 40))
    at_once = plausible_answers(Similarities.of(matrix), labels, labels)
    monkeypatch.setattr(pmrp, "CELLS", 30)
    assert plausible_answers(Similarities.of(matrix), labels, labels) == at_once


def test_folds_of_pmrp_weigh_alike() -> None:
    one = PlausibleAnswers(2, dict.fromkeys(ZETAS, 10.0), dict.fromkeys(ZETAS, 1.0))
    two = replace(one, queries=6, r_precision={0: 20.0, 1: 30.0, 2: 40.0})
    found = plausible_scores([(one, one), (two, one)]).visual_to_text
    assert [found[f"PMRP zeta {zeta}"] for zeta in ZETAS] == [15, 20, 25]
    assert (found["PMRP"], found["queries"]) == (20, 8)


@given(labelled(), st.sampled_from(SIDES))
def test_pmrp_of_one_zeta_is_r_precision_with_that_relevance(
    case: tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]], queries: Side
) -> None:
    labels, owners, matrix = case
    labels[:, 0] = True
    bits = pack_labels(labels)
    found = plausible_answers(Similarities.of(matrix), bits, bits[owners])[0][SIDES.index(queries)]
    for zeta in ZETAS:
        values = list_values(Similarities.of(matrix), LabelBits(bits, bits[owners], zeta), queries)
        assert found.r_precision[zeta] == pytest.approx(100 * values["R-P"].mean())
        assert found.by_chance[zeta] == pytest.approx(100 * values["R-P by chance"].mean())


def test_labels_that_cannot_be_judged_are_refused() -> None:
    one, two = (pack_labels(np.eye(2, 4, place, dtype=bool)) for place in (0, 2))
    with pytest.raises(ValueError, match=r"2 and 1 labelled rows for similarities of \(2, 2\)"):
        plausible_answers(Similarities.of(np.zeros((2, 2))), one, one[:1])
    with pytest.raises(ValueError, match="no visual row has a label"):
        plausible_answers(Similarities.of(np.zeros((2, 2))), np.zeros_like(one), one)
    with pytest.raises(ValueError, match="2 labelled visual rows have no plausible answer"):
        plausible_answers(Similarities.of(np.zeros((2, 2))), one, two)
    none_in_the_first = [(slice(0, 1), slice(0, 1)), WHOLE]
    with pytest.raises(ValueError, match="1 labelled visual rows have no plausible answer"):
        plausible_answers(
            Similarities.of(np.zeros((2, 2))), one, one * np.array([[0], [1]], np.uint64), none_in_the_first
        )


@given(judged(), st.sampled_from(GRIDS), st.integers(50, 400))
def test_the_indicator_is_the_area_that_two_densities_share(case: Case, grid: tuple[int, int], bins: int) -> None:
    relevance, table, matrix = case
    cosines = matrix / 2
    found = separation(Similarities.of(cosines, grid), relevance, bins)
    if table.all():
        assert found is None
        return
    edges = np.linspace(-1, 1, bins + 1)
    shared = 0.0
    for low, high in zip(edges, [*edges[1:-1], 1.1], strict=False):
        inside = (cosines >= low) & (cosines < high)
        shared += min(inside[table].sum() / table.sum(), inside[~table].sum() / (~table).sum())
    assert found is not None
    assert found.overlap == pytest.approx(shared)
    assert (found.right, found.wrong) == pytest.approx((cosines[table].mean(), cosines[~table].mean()))


def overlap(cosines: NDArray[Any]) -> float | None:
    found = separation(Similarities.of(cosines), Pairs.of_texts(np.arange(50), 50))
    return found and found.overlap


def test_the_indicator_goes_from_none_to_all() -> None:
    assert overlap(np.eye(50)) == 0
    assert overlap(np.full((50, 50), 0.3)) == 1
    assert overlap(np.eye(50) * 1.0000001) == 0
    assert overlap(np.eye(50) * -3) is None


@pytest.mark.parametrize("step", [2**-23, 2**-10, 2**-7])
def test_cosines_that_rounding_lifted_beyond_one_have_an_indicator(step: float) -> None:
    """Of single, of half precision and of bfloat16, a step or two."""
    for sign in (1, -1):
        assert overlap(np.eye(50) * sign * (1 + step)) == 0
        assert overlap(np.eye(50) * sign * 1.02) is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_cached_tiles_are_made_once_and_come_back_as_they_were(dtype: type) -> None:
    matrix, asked, ticks = np.arange(60).reshape(6, 10).astype(dtype), list[tuple[slice, slice]](), list[int]()

    def tile(visual: slice, text: slice) -> NDArray[Any]:
        asked.append((visual, text))
        return matrix.T[text, visual].T  # not contiguous

    with tempfile.TemporaryFile() as file:
        similarities = cached_on_disk(Similarities(matrix.shape, (4, 3), tile), file, ticks.append)
        for _ in range(3):
            for visual, text in reversed(list(similarities.cells())):
                np.testing.assert_array_equal(similarities.tile(visual, text), matrix[visual, text])
                assert similarities.tile(visual, text).dtype == dtype
        relevance = Classes(np.arange(6) % 2, np.arange(10) % 2)
        assert ranks(similarities, relevance)[0][0].gallery == 10
    assert len(asked) == len(ticks) == len(list(similarities.cells())) == 8


def test_memory_is_that_of_embeddings_a_tile_and_a_band() -> None:
    """At full size, 5,000 x 25,000, the matrix itself would be 500 MB of floats."""
    items, captions, grid = 1500, 7500, (100, 400)
    random = np.random.default_rng(0)
    owners, bits = np.arange(captions) // 5, pack_labels(random.random((items, 80)) < 0.03)
    visual, text = (random.standard_normal((rows, 8), np.float32) for rows in (items, captions))
    similarities = Similarities((items, captions), grid, lambda rows, columns: visual[rows] @ text[columns].T)
    band = 4 * max(grid[0] * captions, grid[1] * items)
    windows: list[Window] = [WHOLE, (slice(0, 500), slice(0, 2500))]
    for work in (
        lambda: ranks(similarities, Pairs.of_texts(owners, items), windows),
        lambda: list_values(similarities, Pairs.of_texts(owners, items), "text"),
        lambda: plausible_answers(similarities, bits, bits[owners], windows),
    ):
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * band + 2**20 < items * captions * 4 / 2


@pytest.mark.parametrize("method", ["matmul"])
def test_class_metrics_are_those_of_the_official_code(method: str) -> None:
    official = golden(f"pcme_cub_eval_{method}")
    matrix = official["image_samples"].sum(axis=1) @ official["caption_samples"].sum(axis=1).T
    relevance = Classes(official["image_class"], official["caption_class"])
    similarities = Similarities.of(matrix)
    scores, lists = rank_scores(ranks(similarities, relevance)), list_scores(similarities, (relevance, relevance))
    for name, direction, found in (
        ("i2t", scores.visual_to_text, lists.visual_to_text),
        ("t2i", scores.text_to_visual, lists.text_to_visual),
    ):
        expected = [official[f"{name}_{key}"] for key in ("r_precision", "map_r", "precision_5", "precision_100")]
        values = [found[name] for name in ("R-P", "mAP@R", "P@5", "P@100")]
        np.testing.assert_allclose(np.array(values) / 100, expected, rtol=1e-5)
        recalls = [official[f"{name}_recall_{k}"] * 100 for k in (1, 5, 10)]
        np.testing.assert_allclose([direction[f"R@{k}"] for k in (1, 5, 10)], recalls, rtol=1e-5)
        assert (direction["Med R"], direction["Mean R"]) == pytest.approx(
            (float(official[f"{name}_medr"]), float(official[f"{name}_meanr"]))
        )


def test_recalls_and_folds_are_those_of_pcme_on_coco() -> None:
    official = golden("pcme_coco_eval_matmul")
    matrix = official["image_samples"].sum(axis=1) @ official["caption_samples"].sum(axis=1).T
    owners = np.arange(100) // 5
    folds = fold_windows(owners, 20, size=int(official["n_images_per_fold"]))
    whole, *parts = ranks(Similarities.of(matrix), Pairs.of_texts(owners, 20), [WHOLE, *folds])
    for prefix, scores in (("", rank_scores([whole])), ("nfold5_", rank_scores(parts))):
        for name, side in (("i2t", scores.visual_to_text), ("t2i", scores.text_to_visual)):
            found = [side[name] for name in ("R@1", "R@5", "R@10", "Med R", "Mean R")]
            keys = ("recall_1", "recall_5", "recall_10", "medr", "meanr")
            np.testing.assert_allclose(found, [official[f"{prefix}{name}_{key}"] for key in keys], rtol=1e-5)


def test_the_curve_and_the_average_precision_are_those_of_dual_path() -> None:
    official = golden("indep_dualpath_cmc_map")
    similarities, relevance = Similarities.of(official["sim"]), Pairs.of_texts(np.arange(35) // 5, 7)
    of_visual, _ = ranks(similarities, relevance)[0]
    np.testing.assert_allclose(cmc(of_visual), official["cmc"])
    assert median_by_cmc(of_visual) == official["med_r"]
    average = list_values(similarities, relevance, "visual")["mAP"]
    assert np.mean(average) == pytest.approx(float(official["mAP"]), rel=1e-6)


@given(judged())
def test_the_curve_is_recall_at_every_place(case: Case) -> None:
    relevance, _, matrix = case
    found, _ = ranks(Similarities.of(matrix), relevance)[0]
    curve = cmc(found)
    assert curve.tolist() == [np.mean(found.ranks < k) for k in range(1, found.gallery + 1)]
    above = [k for k in range(1, found.gallery + 1) if curve[k - 1] > 0.5]
    assert median_by_cmc(found) == (above[0] if above else 1)
