"""Uncertainty as a number, probes that make inputs ambiguous, and recall by bins."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.evaluation.uncertainty_probes import (
    Bin,
    cut_out,
    geometric_mean_sigma,
    mark_unknown,
    mix,
    recall_by_uncertainty,
)
from xmodal.text.vocabularies import END, START, UNKNOWN


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_uncertainty_is_that_of_the_paper() -> None:
    official = {name: torch.from_numpy(value) for name, value in golden("indep_pcme_uncertainty_scalar").items()}
    torch.testing.assert_close(geometric_mean_sigma(official["logsigma"]), official["geomean_sigma"])
    dimensions = official["logsigma"].shape[1]
    from_ours = 2 * dimensions * geometric_mean_sigma(official["logsigma"]).log()
    torch.testing.assert_close(from_ours, official["log_det_cov"])


def test_uncertainty_is_the_root_of_the_product_and_the_volume_of_the_covariance() -> None:
    sigmas = torch.tensor([[1.0, 2.0, 4.0], [0.5, 0.5, 8.0]])
    found = geometric_mean_sigma(sigmas.log())
    torch.testing.assert_close(found, torch.tensor([2.0, 2.0 ** (1 / 3)]))
    torch.testing.assert_close(6 * found.log(), torch.stack([torch.diag(row**2).logdet() for row in sigmas]))


CAPTIONS = Padded.of([np.array([START, *range(10, 10 + words), END], np.int32) for words in (10, 4, 1)])


@pytest.mark.parametrize(("share", "counts"), [(0.0, [0, 0, 0]), (0.3, [3, 1, 0]), (0.5, [5, 2, 0]), (1.0, [10, 4, 1])])
def test_a_share_of_each_captions_words_becomes_unknown(share: float, counts: list[int]) -> None:
    marked = mark_unknown(CAPTIONS, share, chance())
    changed = marked.values != CAPTIONS.values
    assert changed.sum(1).tolist() == counts
    assert (marked.values[changed] == UNKNOWN).all()
    assert torch.equal(marked.lengths, CAPTIONS.lengths)
    assert not changed[:, 0].any()
    assert not (changed & ~CAPTIONS.mask).any()


def test_which_words_are_marked_is_the_generators_choice_and_all_are_equally_likely() -> None:
    values = [mark_unknown(CAPTIONS, 0.5, chance(seed)).values for seed in (1, 1, 2)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    many = Padded(CAPTIONS.values[:1].repeat(4000, 1), CAPTIONS.lengths[:1].repeat(4000))
    often = (mark_unknown(many, 0.3, chance()).values == UNKNOWN).float().mean(0)[1:11]
    assert (often - 0.3).abs().max() < 0.03


GRID = Padded.whole(1 + torch.rand(50, 49, 3, generator=chance(5)))


@pytest.mark.parametrize(("share", "positions"), [(0.0, 0), (0.02, 1), (0.25, 12), (0.5, 25), (1.0, 49)])
def test_a_rectangle_of_the_grid_is_cut_out(share: float, positions: int) -> None:
    gone = (cut_out(GRID, (7, 7), share, chance()).values == 0).all(2).view(50, 7, 7)
    assert set(gone.flatten(1).sum(1).tolist()) == {positions}
    for row in gone:  # a rectangle is all places in some rows that are in some columns
        assert torch.equal(row, row.any(1)[:, None] & row.any(0))
        for side in (row.any(1).nonzero(), row.any(0).nonzero()):
            assert len(side) == 0 or int(side[-1] - side[0]) + 1 == len(side)
    places = {tuple(row.nonzero()[0].tolist()) for row in gone if row.any()}
    assert len(places) > 5 or share in (0.0, 1.0)  # not always at one place


def test_what_is_not_cut_out_stays() -> None:
    probed = cut_out(GRID, (7, 7), 0.3, chance()).values
    kept = (probed != 0).any(2)
    assert torch.equal(probed[kept], GRID.values[kept])


def test_a_mixture_has_a_rectangle_of_the_other() -> None:
    other = Padded.whole(-GRID.values)
    mixed = mix(GRID, other, (7, 7), 0.5, chance()).values
    assert torch.equal(mixed.abs(), GRID.values)
    assert (mixed < 0).all(2).sum(1).tolist() == [25] * 50
    assert torch.equal(mix(GRID, other, (7, 7), 1.0, chance()).values, other.values)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_shares_are_shares(share: float) -> None:
    with pytest.raises(ValueError, match="a share is in"):
        mark_unknown(CAPTIONS, share, chance())
    with pytest.raises(ValueError, match="a share is in"):
        cut_out(GRID, (7, 7), share, chance())


def test_a_grid_that_the_features_are_not_is_refused() -> None:
    with pytest.raises(ValueError, match="grids of 6 x 8 positions"):
        cut_out(GRID, (6, 8), 0.5, chance())


def test_bins_have_equal_counts_and_their_own_recall() -> None:
    random = np.random.default_rng(0)
    uncertainty, ranks = random.random(103), random.integers(0, 3, 103)
    bins = recall_by_uncertainty(uncertainty, ranks)
    assert sorted({each.count for each in bins}) == [10, 11]
    assert sum(each.count for each in bins) == 103
    for each, following in pairwise(bins):
        assert each.least <= each.mean <= each.greatest < following.least
    for each in bins:
        inside = [r for u, r in zip(uncertainty, ranks, strict=True) if each.least <= u <= each.greatest]
        assert each.recall == pytest.approx(100 * sum(rank == 0 for rank in inside) / len(inside))


def test_the_unsure_half_has_the_lower_recall() -> None:
    uncertainty, ranks = np.array([0.9, 0.1, 0.2, 0.8]), np.array([4, 0, 0, 9])
    expected = [Bin(2, 0.1, 0.15, 0.2, 100.0), Bin(2, 0.8, 0.85, 0.9, 0.0)]
    found = recall_by_uncertainty(uncertainty, ranks, bins=2)
    assert [vars(each) for each in found] == [pytest.approx(vars(each)) for each in expected]
    assert recall_by_uncertainty(uncertainty, ranks, bins=2, k=5)[1].recall == 50.0


@pytest.mark.parametrize(
    ("uncertainty", "ranks", "bins", "message"),
    [
        ([0.1, 0.2], [0], 1, "bins need"),
        ([0.1, 0.2], [0, 1], 3, "3 bins need as many queries"),
        ([0.1, np.nan], [0, 1], 1, "not finite"),
    ],
)
def test_what_cannot_be_binned_is_refused(uncertainty: list[float], ranks: list[int], bins: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recall_by_uncertainty(np.array(uncertainty), np.array(ranks), bins)
