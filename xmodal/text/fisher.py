"""Fisher vectors: how a sentence's words would move a mixture of distributions (docs/models.md#fisher-vectors).

In every dimension a component is a Gaussian or a Laplacian:

    gmm    Gaussians: the centre is a mean, the spread a standard deviation
    lmm    Laplacians: a median and a mean absolute deviation
    hglmm  whichever makes the words likelier

Shapes: N words, D dimensions, K components, S sentences.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.threads import in_threads

Kind = Literal["hglmm", "gmm", "lmm"]
Numbers = NDArray[np.float64]
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]  # such as `map`
Say = Callable[[str], None]

ROUNDS, RISE = 100, 1e-5  # at most; a smaller rise of a word's mean log-likelihood ends them
NARROWEST = 0.01  # of the spread of all words: that of a single word is 0
NEGLIGIBLE = 1e-15  # share of a word that moves no number of single precision
EMPTY = 1e-10  # share of the words below which a component loses all of them
WORDS_AT_ONCE, DIMENSIONS_AT_ONCE = 128, 8  # which stay in a core's cache


@dataclass(frozen=True, eq=False)
class Mixture:
    """A component of weight 0 has no words, and zeros in Fisher vectors."""

    weights_K: Numbers
    centres_KD: Numbers
    spreads_KD: Numbers
    laplacian_KD: NDArray[np.bool_]

    def posteriors(self, words_ND: Numbers, run: Run = map) -> tuple[Numbers, Numbers]:
        """(N, K): each component's share of a word; (N,): the word's log-likelihood."""
        starts = range(0, max(len(words_ND), 1), WORDS_AT_ONCE)
        logs_NK = np.concatenate(list(run(lambda n: self._logs(words_ND[n : n + WORDS_AT_ONCE]), starts)))
        highest_N1 = logs_NK.max(axis=1, keepdims=True)
        shares_NK = np.exp(logs_NK - highest_N1)
        sums_N1 = shares_NK.sum(axis=1, keepdims=True)
        return shares_NK / sums_N1, (highest_N1 + np.log(sums_N1))[:, 0]

    def _logs(self, words_ND: Numbers) -> Numbers:
        logs_NK = np.empty((len(words_ND), len(self.weights_K)))
        for k in range(len(self.weights_K)):
            z_ND = self._z(words_ND, k)
            np.abs(z_ND, out=z_ND)
            depths_N = z_ND @ self.laplacian_KD[k].astype(float)
            depths_N += np.multiply(z_ND, z_ND, out=z_ND) @ np.where(self.laplacian_KD[k], 0, 0.5)
            logs_NK[:, k] = self._heights_K[k] - depths_N
        return logs_NK

    def moves(self, words_ND: Numbers, k: int) -> Numbers:
        """(N, 2 D): how words move the centre and the spread of component `k`, if it had weight 1."""
        z_ND, is_laplacian_D = self._z(words_ND, k), self.laplacian_KD[k]
        found_N2D = np.empty((len(z_ND), 2, z_ND.shape[1]))
        found_N2D[:, 0] = np.where(is_laplacian_D, np.sign(z_ND), z_ND)
        np.abs(z_ND, out=z_ND)
        found_N2D[:, 1] = z_ND * np.where(is_laplacian_D, 1, z_ND) - 1
        found_N2D[:, 1] *= np.where(is_laplacian_D, 1, np.sqrt(0.5))
        return found_N2D.reshape(len(z_ND), 2 * z_ND.shape[1])

    def _z(self, words_ND: Numbers, k: int) -> Numbers:
        z_ND: Numbers = words_ND - self.centres_KD[k]
        z_ND /= self.spreads_KD[k]
        return z_ND

    @cached_property
    def _heights_K(self) -> Numbers:
        """(K,): the log of each weighted density at its centre."""
        areas_KD = self.spreads_KD * np.where(self.laplacian_KD, 2.0, np.sqrt(2 * np.pi))
        logs_K = np.log(self.weights_K, out=np.full(self.weights_K.shape, -np.inf), where=self.weights_K > 0)
        heights_K: Numbers = logs_K - np.log(areas_KD).sum(axis=1)
        return heights_K


def fit_mixture(
    words_ND: Numbers, components: int, kind: Kind = "hglmm", seed: int = 0, say: Say = lambda text: None
) -> tuple[Mixture, list[float]]:
    """Fits by expectation-maximisation; returns a word's mean log-likelihood by round, too.

    Each word counts once: else frequent ones get components of their own (most of 30 on COCO).
    """
    assert len(words_ND) > 0
    assert np.isfinite(words_ND).all()
    spread_D = words_ND.std(axis=0)
    if not spread_D.all():
        raise UserError(f"all words have the same number in dimension {np.flatnonzero(spread_D == 0)[0]}")
    words_DN = np.ascontiguousarray(words_ND.T)
    order_DN = np.argsort(words_DN, axis=1, kind="stable")
    maximise = partial(_maximise, words_DN, order_DN, NARROWEST * spread_D, kind)
    mixture = maximise(np.eye(components)[_clusters(words_ND, components, seed)])
    likelihoods: list[float] = []
    for number in range(ROUNDS):
        say(f"mixture: round {number + 1} of at most {ROUNDS}")
        shares_NK, logs_N = mixture.posteriors(words_ND, in_threads)
        likelihoods.append(float(logs_N.mean()))
        if len(likelihoods) > 1 and likelihoods[-1] - likelihoods[-2] < RISE:
            break
        mixture = maximise(shares_NK)
    return mixture, likelihoods


def fisher_vectors(
    mixture: Mixture, words_ND: Numbers, counts_SN: Any, shares_NK: Numbers | None = None
) -> NDArray[np.float32]:
    """(S, K · 2 · D): moves of each component's centre, then of its spread.

    `counts_SN`, a scipy.sparse array, counts each sentence's words; `shares_NK` are the words' posteriors, if known.
    """
    shares_NK = mixture.posteriors(words_ND)[0] if shares_NK is None else shares_NK
    found_SKF = np.zeros((counts_SN.shape[0], len(mixture.weights_K), 2 * words_ND.shape[1]), np.float32)
    lengths_S1 = np.maximum(counts_SN.sum(axis=1), 1)[:, None]
    scaled_SN = counts_SN.multiply(1 / np.sqrt(lengths_S1)).tocsc()
    for k in range(len(mixture.weights_K)):
        own_M = np.flatnonzero(shares_NK[:, k] > NEGLIGIBLE)  # few
        if len(own_M):
            moves_MF = mixture.moves(words_ND[own_M], k)
            moves_MF *= (shares_NK[own_M, k] / np.sqrt(mixture.weights_K[k]))[:, None]
            found_SKF[:, k] = scaled_SN[:, own_M] @ moves_MF
    return found_SKF.reshape(len(found_SKF), -1)


def normalised(vectors_SF: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the signed square roots of rows at length 1; zeros stay zeros."""
    roots_SF = np.abs(vectors_SF)
    sums_S1 = roots_SF.sum(axis=1, keepdims=True)  # of the roots' squares
    roots_SF /= np.where(sums_S1 > 0, sums_S1, 1)
    np.sqrt(roots_SF, out=roots_SF)
    return np.copysign(roots_SF, vectors_SF, out=roots_SF)


def _maximise(
    words_DN: Numbers, order_DN: NDArray[np.int64], narrowest_D: Numbers, kind: Kind, shares_NK: Numbers
) -> Mixture:
    """The M step; `order_DN` sorts each dimension."""
    weights_K = shares_NK.mean(axis=0)
    weights_K = np.where(weights_K > EMPTY, weights_K, 0.0)
    shape = (len(weights_K), len(words_DN))
    centres_KD, spreads_KD, laplacian_KD = np.empty(shape), np.empty(shape), np.empty(shape, bool)

    def fill(k: int) -> None:
        shares_N = shares_NK[:, k] if weights_K[k] else np.ones(len(shares_NK))  # of weight 0 it is never used
        shares_N = shares_N / shares_N.sum()
        for start in range(0, shape[1], DIMENSIONS_AT_ONCE):
            some = slice(start, start + DIMENSIONS_AT_ONCE)
            found = _distributions(words_DN[some], order_DN[some], narrowest_D[some], kind, shares_N)
            centres_KD[k, some], spreads_KD[k, some], laplacian_KD[k, some] = found

    list(in_threads(fill, range(shape[0])))
    return Mixture(weights_K / weights_K.sum(), centres_KD, spreads_KD, laplacian_KD)


def _distributions(
    words_DN: Numbers, order_DN: NDArray[np.int64], narrowest_D: Numbers, kind: Kind, shares_N: Numbers
) -> tuple[Numbers, Numbers, Any]:
    """Centres, spreads, and which are Laplacians."""
    means_D = words_DN @ shares_N
    variances_D = (words_DN - means_D[:, None]) ** 2 @ shares_N
    deviations_D = np.maximum(np.sqrt(variances_D), narrowest_D)
    if kind == "gmm":
        return means_D, deviations_D, False
    medians_D = _weighted_medians(words_DN, order_DN, shares_N)
    distances_D = np.abs(words_DN - medians_D[:, None]) @ shares_N
    widths_D = np.maximum(distances_D, narrowest_D)
    gaussian_D = -0.5 * np.log(2 * np.pi) - np.log(deviations_D) - variances_D / (2 * deviations_D**2)
    likelier_D = -np.log(2 * widths_D) - distances_D / widths_D > gaussian_D
    laplacian_D = likelier_D | (kind == "lmm")
    centres_D, spreads_D = np.where(laplacian_D, [medians_D, widths_D], [means_D, deviations_D])
    return centres_D, spreads_D, laplacian_D


def _weighted_medians(words_DN: Numbers, order_DN: NDArray[np.int64], shares_N: Numbers) -> Numbers:
    below_DN = np.cumsum(shares_N[order_DN], axis=1)
    places_D = (below_DN < 0.5 * below_DN[:, -1:]).sum(axis=1)
    dimensions = np.arange(len(order_DN))
    medians_D: Numbers = words_DN[dimensions, order_DN[dimensions, places_D]]
    return medians_D


def _clusters(words_ND: Numbers, components: int, seed: int) -> NDArray[np.int64]:
    different = len(np.unique(words_ND, axis=0))
    if different < components:
        raise UserError(f"{different:,} different words cannot make {components:,} components: ask for fewer")
    from sklearn.cluster import KMeans

    means = KMeans(components, n_init=1, random_state=seed)
    return np.asarray(means.fit(words_ND).labels_, np.int64)
