"""Fisher vectors against their definition, and mixtures against the distributions that their words were drawn from."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from xmodal.errors import UserError
from xmodal.text.fisher import Kind, Mixture, Numbers, fisher_vectors, fit_mixture, normalised

KINDS: tuple[Kind, ...] = ("hglmm", "gmm", "lmm")
CENTRES = np.array([[0.0, 0.0, 8.0, -3.0], [9.0, -8.0, 0.0, 5.0], [-9.0, 8.0, -8.0, 1.0]])
SPREADS = np.array([[1.0, 0.5, 2.0, 1.0], [0.5, 1.0, 1.0, 2.0], [1.5, 1.0, 0.5, 1.0]])
LAPLACIAN = np.array([[True, False, True, False], [False, False, True, True], [True, True, False, False]])
WEIGHTS = np.array([0.5, 0.3, 0.2])


def drawn(count: int, seed: int = 0) -> Numbers:
    chance = np.random.default_rng(seed)
    which = chance.choice(3, count, p=WEIGHTS)
    shapes = np.where(LAPLACIAN[which], chance.laplace(size=(count, 4)), chance.normal(size=(count, 4)))
    return np.asarray(CENTRES[which] + SPREADS[which] * shapes)


def some_words(count: int = 40, width: int = 5, seed: int = 0) -> Numbers:
    return np.asarray(np.random.default_rng(seed).normal(size=(count, width)) ** 3)


def log_density(mixture: Mixture, k: int, word: Numbers) -> float:
    """Of one word under one component, number by number."""
    total = math.log(mixture.weights_K[k])
    for value, centre, spread, is_laplacian in zip(
        word, mixture.centres_KD[k], mixture.spreads_KD[k], mixture.laplacian_KD[k], strict=True
    ):
        if is_laplacian:
            total += -math.log(2 * spread) - abs(value - centre) / spread
        else:
            total += -0.5 * math.log(2 * math.pi * spread**2) - (value - centre) ** 2 / (2 * spread**2)
    return total


def slow_vector(mixture: Mixture, words: NDArray[np.float64]) -> list[float]:
    """The formulas of docs/models.md#fisher-vectors, sum by sum."""
    components, dimensions = mixture.centres_KD.shape
    logs = [[log_density(mixture, k, word) for k in range(components)] for word in words]
    posteriors = [[math.exp(one) / sum(map(math.exp, some)) for one in some] for some in logs]
    found = []
    for k in range(components):
        moves: list[list[float]] = [[], []]
        for d in range(dimensions):
            z = [(word[d] - mixture.centres_KD[k, d]) / mixture.spreads_KD[k, d] for word in words]
            g = [posterior[k] for posterior in posteriors]
            scale = math.sqrt(len(words) * mixture.weights_K[k])
            if mixture.laplacian_KD[k, d]:
                moves[0].append(sum(a * math.copysign(bool(b), b) for a, b in zip(g, z, strict=True)) / scale)
                moves[1].append(sum(a * (abs(b) - 1) for a, b in zip(g, z, strict=True)) / scale)
            else:
                moves[0].append(sum(a * b for a, b in zip(g, z, strict=True)) / scale)
                moves[1].append(sum(a * (b * b - 1) for a, b in zip(g, z, strict=True)) / scale / math.sqrt(2))
        found += moves[0] + moves[1]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_round_makes_the_words_likelier(kind: Kind) -> None:
    _, likelihoods = fit_mixture(some_words(300), 4, kind)
    assert len(likelihoods) > 5
    assert min(np.diff(likelihoods)) > -1e-9
    assert likelihoods[-1] > likelihoods[0] + 0.1


def test_a_mixture_is_found_again_in_what_was_drawn_from_it() -> None:
    words = drawn(12_000)
    mixture, _ = fit_mixture(words, 3)
    order = [int(np.abs(mixture.centres_KD - centre).sum(axis=1).argmin()) for centre in CENTRES]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(mixture.weights_K[order], WEIGHTS, atol=0.02)
    np.testing.assert_allclose(mixture.centres_KD[order], CENTRES, atol=0.12)
    np.testing.assert_allclose(mixture.spreads_KD[order], SPREADS, rtol=0.06)
    np.testing.assert_array_equal(mixture.laplacian_KD[order], LAPLACIAN)


def test_a_hybrid_is_likelier_than_either_alone() -> None:
    words = drawn(3000)
    last = {kind: fit_mixture(words, 3, kind)[1][-1] for kind in KINDS}
    assert last["hglmm"] > max(last["gmm"], last["lmm"]) + 0.01


def test_gaussians_alone_are_those_of_scikit_learn() -> None:
    """Which adds a number to variances, and is asked to go on until nothing moves."""
    words = drawn(2000)
    mixture, _ = fit_mixture(words, 3, "gmm")
    theirs = GaussianMixture(3, covariance_type="diag", tol=1e-9, reg_covar=0, max_iter=500, random_state=0).fit(words)
    order = [int(np.abs(mixture.centres_KD - centre).sum(axis=1).argmin()) for centre in theirs.means_]
    np.testing.assert_allclose(mixture.centres_KD[order], theirs.means_, atol=0.02)
    np.testing.assert_allclose(mixture.spreads_KD[order] ** 2, theirs.covariances_, rtol=0.02)
    np.testing.assert_allclose(mixture.posteriors(words)[1], theirs.score_samples(words), atol=0.1)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(0, 5),
)
def test_fisher_vectors_are_their_definition(
    kind: Kind, components: int, sentences: list[list[int]], seed: int
) -> None:
    words = some_words(12, 3, seed)
    with threadpool_limits(1):
        mixture, _ = fit_mixture(words, components, kind, seed)
    table = np.array([np.bincount(sentence, minlength=len(words)) for sentence in sentences])
    found = fisher_vectors(mixture, words, csr_array(table.astype(float)))
    expected = np.array([slow_vector(mixture, words[sentence]) for sentence in sentences])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    roots = np.sign(expected) * np.sqrt(abs(expected))
    lengths = np.linalg.norm(roots, axis=1, keepdims=True)
    np.testing.assert_allclose(normalised(expected.astype("f4")), roots / np.where(lengths, lengths, 1), atol=1e-6)


def test_a_sentence_without_words_and_a_component_without_words_are_zeros() -> None:
    words = drawn(50)
    mixture = Mixture(np.array([1.0, 0.0]), CENTRES[:2], SPREADS[:2], LAPLACIAN[:2])
    found = fisher_vectors(mixture, words, csr_array(np.vstack([np.zeros(50), np.ones(50)])))
    assert not found[0].any()
    assert not found[1].reshape(2, 2, 4)[1].any()
    assert found[1].reshape(2, 2, 4)[0].all()
    assert np.isfinite(normalised(found)).all()


@pytest.mark.parametrize("far", [1e3, 1e8, 1e150])
def test_a_word_that_is_far_from_everything_is_still_a_word(far: float) -> None:
    mixture, _ = fit_mixture(drawn(50), 3)
    shares, logs = mixture.posteriors(np.array([[far, -far, far, far]]))
    assert shares.sum() == pytest.approx(1)
    assert np.isfinite(logs).all()


def test_a_word_that_is_far_from_all_others_makes_a_narrow_component_not_an_infinite_one() -> None:
    mixture, likelihoods = fit_mixture(np.vstack([drawn(20), np.full((1, 4), 300.0)]), 2)
    assert np.isfinite(likelihoods).all()
    assert mixture.spreads_KD.min() > 0.01


@pytest.mark.parametrize(
    ("words", "components", "message"),
    [
        (np.zeros((0, 3)), 1, "^$"),
        (np.array([[1.0, math.nan]]), 1, "^$"),
        (np.eye(3)[[0, 0, 0]], 1, "the same number in dimension 0"),
        (np.eye(3)[[0, 1, 2, 2]], 4, "3 different words cannot make 4 components"),
    ],
)
def test_what_no_mixture_can_be_fitted_on_is_refused(words: Numbers, components: int, message: str) -> None:
    with pytest.raises((AssertionError, UserError), match=message):
        fit_mixture(words, components)
