"""Ranks and recalls against their definitions written the slow way, and against the official code's values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from tests.golden import golden
from tests.ranking.test_relevance import classes, label_bits, pairs
from xmodal.metrics.protocols import rank_scores
from xmodal.metrics.recall import recall
from xmodal.ranking.ranks import Ranks, fold_windows, ranks
from xmodal.ranking.relevance import Classes, Pairs, Relevance
from xmodal.ranking.similarities import Similarities, Window

GRIDS = [(1, 1), (2, 3), (5, 2), (512, 4096)]


def slow_ranks(matrix: NDArray[np.generic], right: NDArray[np.bool_], ties: str = "against") -> list[int]:
    """Of each row: how many wrong columns come before its best right one."""
    found = []
    for scores, answers in zip(matrix.tolist(), right.tolist(), strict=True):
        best = max(score for score, answer in zip(scores, answers, strict=True) if answer)
        wrong = [score for score, answer in zip(scores, answers, strict=True) if not answer]
        found.append(sum(score >= best if ties == "against" else score > best for score in wrong))
    return found


@st.composite
def judged(draw: st.DrawFn) -> tuple[Relevance, NDArray[np.bool_], NDArray[np.int64]]:
    """Any relevance in which every query has an answer, and similarities with many ties."""
    relevance, table = draw(st.one_of(pairs(), classes(), label_bits()).filter(lambda case: _answered(case[1])))
    return relevance, table, draw(arrays(np.int64, table.shape, elements=st.integers(-2, 2)))


def _answered(table: NDArray[np.bool_]) -> bool:
    return bool(table.any(axis=0).all() and table.any(axis=1).all())


@given(judged(), st.sampled_from(GRIDS), st.sampled_from(["against", "for"]))
def test_ranks_are_the_definition_for_any_relevance_and_any_tiles(
    case: tuple[Relevance, NDArray[np.bool_], NDArray[np.int64]], grid: tuple[int, int], ties: str
) -> None:
    relevance, table, matrix = case
    ((of_visual, of_text),) = ranks(Similarities.of(matrix, grid), relevance, ties=ties)  # type: ignore[arg-type]
    assert of_visual.ranks.tolist() == slow_ranks(matrix, table, ties)
    assert of_text.ranks.tolist() == slow_ranks(matrix.T, table.T, ties)
    assert (of_visual.relevant.tolist(), of_visual.gallery) == (table.sum(axis=1).tolist(), table.shape[1])
    assert (of_text.relevant.tolist(), of_text.gallery) == (table.sum(axis=0).tolist(), table.shape[0])


@given(judged())
def test_any_sorting_of_ties_lies_between_the_bounds(
    case: tuple[Relevance, NDArray[np.bool_], NDArray[np.int64]],
) -> None:
    relevance, table, matrix = case
    against, favoured = (ranks(Similarities.of(matrix), relevance, ties=ties)[0][0] for ties in ("against", "for"))
    order = np.argsort(-matrix, axis=1, kind="stable")
    first = np.take_along_axis(table, order, axis=1).argmax(axis=1)
    assert (favoured.ranks <= first).all()
    assert (first <= against.ranks + against.relevant - 1).all()


def test_constant_similarities_rank_last() -> None:
    relevance = Pairs.of_texts(np.repeat(np.arange(20), 5), 20)
    scores = rank_scores(ranks(Similarities.of(np.zeros((20, 100))), relevance))
    assert scores.rsum == 0
    assert (scores.visual_to_text["Med R"], scores.text_to_visual["Med R"]) == (96, 20)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(1, 2), (5, 0)])
def test_a_similarity_that_is_no_number_is_refused_by_its_place(wrong: float, place: tuple[int, int]) -> None:
    matrix = np.zeros((6, 6))
    matrix[place] = wrong
    with pytest.raises(ValueError, match=f"visual row {place[0]} and text row {place[1]} is {wrong}; only finite"):
        ranks(Similarities.of(matrix, (2, 2)), Pairs.of_texts(np.arange(6), 6))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_an_empty_gallery_is_refused(shape: tuple[int, int]) -> None:
    relevance = Classes(np.zeros(shape[0], int), np.zeros(shape[1], int))
    with pytest.raises(ValueError, match="an empty gallery cannot be searched"):
        ranks(Similarities.of(np.zeros(shape)), relevance)


def test_a_query_without_an_answer_is_refused() -> None:
    matrix = Similarities.of(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"visual row 1 has no right answer \(2 such rows\)"):
        ranks(matrix, Pairs.of_texts(np.zeros(2, int), 3))
    with pytest.raises(ValueError, match=r"relevance of \(2, 2\) cannot judge similarities of \(3, 2\)"):
        ranks(matrix, Pairs.of_texts(np.arange(2), 2))
    with pytest.raises(ValueError, match="similarities are"):
        Similarities.of(np.zeros(3))


@given(st.integers(1, 9), st.sampled_from(GRIDS), st.integers(0, 2**32))
def test_folds_of_one_sweep_are_what_each_would_be_alone(items: int, grid: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    owners = np.repeat(np.arange(items), random.integers(1, 4, items))
    matrix = random.integers(0, 5, (items, len(owners)))
    windows: list[Window] = fold_windows(owners, items, size=3) or [(slice(0, items), slice(0, len(owners)))]
    for (visual, text), found in zip(
        windows, ranks(Similarities.of(matrix, grid), Pairs.of_texts(owners, items), windows), strict=True
    ):
        alone = Pairs.of_texts(owners[text] - visual.start, visual.stop - visual.start)
        expected = ranks(Similarities.of(matrix[visual, text]), alone)[0]
        for side in (0, 1):
            np.testing.assert_array_equal(found[side].ranks, expected[side].ranks)
            assert found[side].gallery == expected[side].gallery


def test_folds_of_coco_are_five_thousands() -> None:
    owners = np.repeat(np.arange(5000), 5)
    expected = [(slice(n, n + 1000), slice(5 * n, 5 * n + 5000)) for n in range(0, 5000, 1000)]
    assert fold_windows(owners, 5000) == expected
    lengths = [visual.stop - visual.start for visual, _ in fold_windows(np.arange(4998), 4998)]
    assert (sum(lengths), min(lengths), max(lengths)) == (4998, 999, 1000)
    assert fold_windows(np.arange(1014), 1014) == []
    assert [len(fold_windows(np.arange(rows), rows)) for rows in (1500, 1980, 2500, 4949, 4950, 4996)] == [
        *(0, 2, 0, 0, 5, 5)
    ]
    with pytest.raises(ValueError, match="in the order of their visual rows"):
        fold_windows(np.array([1, 0]), 2)


def test_folds_are_averaged() -> None:
    one, two = (Ranks(np.array(found), np.ones(2, int), 4) for found in ([0, 3], [0, 0]))
    direction = rank_scores([(one, two), (two, one)]).visual_to_text
    assert [direction[name] for name in ("R@1", "R@5", "R@10", "Med R", "Mean R")] == [75.0, 100.0, 100.0, 1.5, 1.75]


@given(st.integers(1, 30), st.data())
def test_chance_is_that_of_draws_without_replacement(gallery: int, data: st.DataObject) -> None:
    relevant = data.draw(st.lists(st.integers(1, gallery), min_size=1, max_size=5))
    _, _, _, *chances = recall(Ranks(np.zeros(len(relevant), int), np.array(relevant), gallery))
    for k, value in zip((1, 5, 10), chances, strict=True):
        drawn = min(k, gallery)
        missed = [math.comb(gallery - right, drawn) / math.comb(gallery, drawn) for right in relevant]
        assert value == pytest.approx(100 * (1 - np.mean(missed)))


@pytest.mark.parametrize("name", ["eval_recall_5cap_k1", "eval_recall_1cap_k1"])
@pytest.mark.parametrize("grid", GRIDS)
def test_ranks_and_metrics_are_those_of_the_official_code(name: str, grid: tuple[int, int]) -> None:
    official = golden(name)
    matrix = official["img"] @ official["txt"].T
    owners = np.arange(matrix.shape[1]) * matrix.shape[0] // matrix.shape[1]
    both = ranks(Similarities.of(matrix, grid), Pairs.of_texts(owners, matrix.shape[0]))
    scores = rank_scores(both)
    for found, direction, side in zip(
        both[0], (scores.visual_to_text, scores.text_to_visual), ("i2t", "t2i"), strict=True
    ):
        np.testing.assert_array_equal(found.ranks, official[f"{side}_ranks"])
        metrics = [direction[name] for name in ("R@1", "R@5", "R@10", "Med R", "Mean R")]
        np.testing.assert_allclose(metrics, official[f"{side}_metrics"].astype(float), rtol=1e-6)
    np.testing.assert_allclose(scores.rsum, float(official["rsum"]), rtol=1e-6)


def test_the_normalised_median_is_a_share_of_the_gallery_that_was_searched() -> None:
    """The official code divides both by the captions, here each is divided by its gallery (docs/models.md#recall)."""
    official = golden("eval_recall_5cap_k1")
    captions, images = len(official["txt"]), len(official["img"])
    matrix = official["img"] @ official["txt"].T
    scores = rank_scores(ranks(Similarities.of(matrix), Pairs.of_texts(np.arange(captions) // 5, images)))
    expected = official["nmr"].astype(float) * [1, captions / images]
    found = [scores.visual_to_text["nMR"], scores.text_to_visual["nMR"]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
