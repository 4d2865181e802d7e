"""Recall of captions by captions: the reference, the definition as a loop, ties, and captions alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import golden
from xmodal.metrics.protocols import Gallery, all_metrics
from xmodal.metrics.sentence_recall import sentence_ranks
from xmodal.ranking.similarities import Similarities


def metrics_of(texts: Similarities | None, owners: "np.typing.NDArray[np.int64]") -> list[float | None]:
    items = int(owners.max()) + 1
    gallery = Gallery([f"i{n}" for n in range(items)], [f"c{n}" for n in range(len(owners))], owners)
    between = Similarities.of(np.zeros((items, len(owners))))
    found = all_metrics(between, gallery, {}, texts=texts)
    return [found.value(f"sentence R@{k}") for k in (1, 5, 10)]


def test_recall_is_that_of_the_official_code() -> None:
    known = golden("two_branch_recall")
    sentences, owners = known["sent_embeds"], known["labels"].argmax(1)
    distances = np.linalg.norm(sentences[:, None] - sentences, axis=2)
    found = metrics_of(Similarities.of(-distances, (20, 30)), owners)
    assert found == pytest.approx((100 * known["sent2sent_r1_r5_r10"]).tolist())


@given(st.integers(0, 999), st.integers(1, 12), st.integers(1, 12))
def test_a_rank_counts_captions_of_others_that_are_as_similar(seed: int, height: int, width: int) -> None:
    random = np.random.default_rng(seed)
    owners = np.sort(random.integers(0, 4, random.integers(1, 12)))
    matrix = random.integers(0, 3, (len(owners), len(owners))).astype(float)
    expected = []
    for query, item in enumerate(owners):
        siblings = [other for other in range(len(owners)) if owners[other] == item and other != query]
        if siblings:
            best = max(matrix[query, siblings])
            expected.append(sum(matrix[query, other] >= best for other in range(len(owners)) if owners[other] != item))
    # tiles of queries and of what is ranked have one size in an evaluation, but need not
    assert sentence_ranks(Similarities.of(matrix, (height, width)), owners).tolist() == expected


def test_without_siblings_or_a_scorer_that_compares_texts_there_is_no_recall() -> None:
    assert metrics_of(None, np.arange(3)) == [None] * 3
    assert metrics_of(Similarities.of(np.eye(3)), np.arange(3)) == [None] * 3
    assert metrics_of(Similarities.of(np.zeros((2, 2))), np.array([0, 0])) == [100, 100, 100]
