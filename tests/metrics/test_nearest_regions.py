"""Distances by regions and phrases beside the definition, where sentences lack phrases and pictures regions."""

import numpy as np
import pytest

from xmodal.metrics import nearest_regions
from xmodal.metrics.nearest_regions import nearest_region_distances


@pytest.mark.parametrize("at_once", [1, 20, 1 << 20])
def test_distances_are_means_of_the_nearest(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_regions, "NUMBERS_AT_ONCE", at_once)
    draw = np.random.default_rng(0)
    regions, sentences = [2, 0, 3, 1, 0], np.array([0, 0, 3, 1, 3, 3])  # sentences 2 and 4 have no phrases
    starts = np.concatenate([[0], np.cumsum(regions)])
    distances, instead = draw.random((6, 6)), 10 + draw.random((5, 5))
    found = nearest_region_distances(lambda rows: distances[rows], sentences, starts, instead)
    for picture, sentence in np.ndindex(5, 5):
        phrases = distances[sentences == sentence, starts[picture] : starts[picture + 1]]
        expected = phrases.min(axis=1).mean() if phrases.size else instead[picture, sentence]
        assert found[picture, sentence] == pytest.approx(expected)


def test_nothing_to_compare_leaves_the_other_distances() -> None:
    instead = np.ones((2, 3))
    none = np.zeros((0, 4))
    assert (
        nearest_region_distances(lambda rows: none[rows], np.zeros(0, int), np.array([0, 4, 4]), instead) == 1
    ).all()
    some = np.zeros((1, 0))
    assert (nearest_region_distances(lambda rows: some[rows], np.array([1]), np.array([0, 0, 0]), instead) == 1).all()


def test_a_distance_that_is_no_number_is_refused() -> None:
    distances = np.array([[1, np.nan]])
    with pytest.raises(ValueError, match="phrase 0 and region 1, from 0, is nan"):
        nearest_region_distances(lambda rows: distances[rows], np.array([0]), np.array([0, 2]), np.ones((1, 1)))
