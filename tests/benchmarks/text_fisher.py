"""Fisher vectors of captions against the same in a plain loop: a sentence at a time, a component at a time."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tests.benchmarks.measured import Measured, median, timed
from xmodal.text.fisher import Mixture
from xmodal.text.sentence_vectors import Codebook, Coding

SENTENCES, WORDS, DIMENSIONS, COMPONENTS = 1024, 8_000, 300, 30
TIMES = 5


def measure() -> dict[str, Measured]:
    """By one thread both, in turns; the times of a turn have a ratio, and the median of these counts."""
    codebook, captions = _codebook(), _captions()
    ours, loop = partial(codebook.encode, captions), partial(_loop, codebook, captions)
    with threadpool_limits(1):
        np.testing.assert_allclose(ours(), loop(), atol=1e-6)
        against = f"{SENTENCES:,} captions of 11 words on average, {COMPONENTS} components of {DIMENSIONS} dimensions"
        ratio = median(lambda number: timed(loop) / timed(ours), TIMES, "times", against)
    return {"fisher_vs_numpy_loop": ratio}


def _codebook() -> Codebook:
    """Of a mixture and words that are drawn from it."""
    chance = np.random.default_rng(0)
    shape = (COMPONENTS, DIMENSIONS)
    weights = chance.dirichlet(np.full(COMPONENTS, 5.0))
    centres, spreads = chance.normal(scale=0.3, size=shape), chance.uniform(0.8, 1.2, shape)
    mixture = Mixture(weights, centres, spreads, chance.random(shape) < 0.5)
    which = chance.choice(COMPONENTS, WORDS, p=weights)
    drawn = [chance.laplace(size=(WORDS, DIMENSIONS)), chance.normal(size=(WORDS, DIMENSIONS))]
    vectors = (centres[which] + spreads[which] * np.where(mixture.laplacian_KD[which], *drawn)).astype(np.float32)
    coding = Coding(components=COMPONENTS, width=2 * COMPONENTS * DIMENSIONS, tokenizer="whitespace")
    return Codebook(coding, tuple(f"w{number}" for number in range(WORDS)), vectors, mixture)


def _captions() -> list[str]:
    """Words are as frequent as words are: the n-th a n-th as often as the first."""
    chance = np.random.default_rng(1)
    shares = 1 / np.arange(1, WORDS + 1)
    lengths = chance.integers(7, 16, SENTENCES).tolist()
    chosen = (chance.choice(WORDS, length, p=shares / shares.sum()) for length in lengths)
    return [" ".join(f"w{number}" for number in numbers.tolist()) for numbers in chosen]


def _loop(codebook: Codebook, captions: list[str]) -> NDArray[np.float32]:
    rows = {word: row for row, word in enumerate(codebook.words)}
    codes = np.empty((len(captions), codebook.width), np.float32)
    mixture = codebook.mixture
    assert mixture
    for place, caption in enumerate(captions):
        words = codebook.vectors_VE[[rows[word] for word in caption.split()]].astype(np.float64)
        codes[place] = _one(mixture, words)
    return codes


def _one(mixture: Mixture, words: NDArray[np.float64]) -> NDArray[np.float64]:
    """Straight from the formulas, all words and dimensions of a component at once."""
    components = range(len(mixture.weights_K))
    offs = [(words - mixture.centres_KD[k]) / mixture.spreads_KD[k] for k in components]
    logs = np.empty((len(words), len(offs)))
    for k in components:
        height = np.where(mixture.laplacian_KD[k], np.log(2), 0.5 * np.log(2 * np.pi)) + np.log(mixture.spreads_KD[k])
        depth = np.where(mixture.laplacian_KD[k], np.abs(offs[k]), 0.5 * offs[k] ** 2)
        logs[:, k] = np.log(mixture.weights_K[k]) - (height + depth).sum(axis=1)
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    parts = []
    for k in components:
        z, g, scale = offs[k], shares[:, k], np.sqrt(len(words) * mixture.weights_K[k])
        parts.append(g @ np.where(mixture.laplacian_KD[k], np.sign(z), z) / scale)
        parts.append(g @ np.where(mixture.laplacian_KD[k], np.abs(z) - 1, (z**2 - 1) / np.sqrt(2)) / scale)
    whole = np.concatenate(parts)
    roots = np.sign(whole) * np.sqrt(np.abs(whole))
    return np.asarray(roots / np.linalg.norm(roots))
