"""What is computed by all cores and without zeros or repetitions is what scikit-learn computes with them."""

import os
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA, FastICA

from xmodal.text import principal_axes as module
from xmodal.text.principal_axes import principal_axes
from xmodal.text.sentence_vectors import Codebook, Coding, _independent, fit
from xmodal.text.threads import one_thread_each

PARTS = 6


def sparse_codes(sentences: int, length: int) -> NDArray[np.float32]:
    """Of every sentence most parts are zeros; some directions have more to say than others."""
    chance = np.random.default_rng(0)
    there = chance.random((sentences, PARTS, 1)) < 0.3
    codes = chance.normal(size=(sentences, PARTS, length // PARTS)) * there
    return (codes.reshape(sentences, length) * np.geomspace(5, 0.2, length)).astype(np.float32)


def silence(text: str) -> None: ...


@pytest.mark.parametrize(("shape", "width"), [((400, 120), 20), ((400, 120), 6), ((90, 120), 20)])
def test_axes_are_those_of_scikit_learn(shape: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 10)
    monkeypatch.setattr(module, "COLUMNS_AT_ONCE", 7)
    codes = sparse_codes(*shape)
    with one_thread_each():
        theirs = PCA(width, svd_solver="randomized", random_state=3).fit(codes)
        mean, axes = principal_axes(codes, width, PARTS, 3, silence)
    np.testing.assert_allclose(mean, theirs.mean_, atol=1e-6)
    np.testing.assert_allclose(axes, theirs.components_, atol=2e-4)


def test_words_are_analysed_as_often_as_they_occur() -> None:
    chance = np.random.default_rng(0)
    vectors, counts = chance.laplace(size=(300, 8)) @ chance.normal(size=(8, 8)), chance.integers(1, 20, 300)
    heard: list[str] = []
    with one_thread_each():
        ours, converged = _independent(vectors, counts / counts.sum(), 8, 0, heard.append)
        theirs = FastICA(8, whiten="unit-variance", whiten_solver="svd", random_state=0)
        theirs.fit(np.repeat(vectors, counts, axis=0))
    np.testing.assert_allclose(ours.centre_F, theirs.mean_)
    np.testing.assert_allclose(ours.axes_WF, theirs.components_, rtol=1e-6, atol=1e-8)
    assert converged
    assert len(heard) == theirs.n_iter_
    assert heard[0] == "independent components: round 1 of at most 200"


def test_a_codebook_has_the_same_bytes_by_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 10)
    monkeypatch.setattr(module, "COLUMNS_AT_ONCE", 5)
    chance = np.random.default_rng(0)
    words = [f"w{number:03d}" for number in range(600)]
    vectors = chance.laplace(size=(600, 6)).astype(np.float32)
    sample = [" ".join(chance.choice(words, 8)) for _ in range(900)]
    made: list[Codebook] = []
    for cores in ({0}, {0, 1}, {0, 1, 2, 3, 4}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores)
        made.append(fit(replace(Coding(tokenizer="whitespace"), components=5, width=12), sample, words, vectors)[0])
    assert made[0].principal
    assert len({codebook.to_bytes() for codebook in made}) == 1
