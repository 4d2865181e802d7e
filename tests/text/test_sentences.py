"""Sentences as vectors: each method against its definition, and what cannot be fitted is refused."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from tests.text.test_fisher import slow_vector
from xmodal.errors import UserError
from xmodal.text.fisher import Mixture
from xmodal.text.sentence_vectors import Codebook, Coding, Method, fit

WORDS = tuple(f"w{number:02d}" for number in range(60))
VECTORS = (np.random.default_rng(3).normal(size=(60, 6)) ** 3).astype(np.float32)
KNOWN = {word: vector for word, vector in zip(WORDS, VECTORS, strict=True) if word != "w07"}
FISHER: tuple[Method, ...] = ("hglmm", "gmm", "lmm")
SMALL = Coding(components=3, tokenizer="whitespace")
CHANCE = np.random.default_rng(0)
SAMPLE = [" ".join(CHANCE.choice(WORDS, CHANCE.integers(1, 12))) for _ in range(80)]


def codebook(coding: Coding, sample: list[str] = SAMPLE) -> Codebook:
    """There is no vector for w07."""
    vectors = VECTORS.copy()
    vectors[7] = math.nan
    return fit(coding, sample, WORDS, None if coding.method == "tfidf" else vectors)[0]


def slow_code(made: Codebook, caption: str) -> NDArray[np.float64]:
    """A Fisher vector before principal components."""
    assert made.mixture
    vectors = dict(zip(made.words, made.vectors_VE.astype(np.float64), strict=True))
    words = [vectors[word] for word in caption.split() if word in vectors]
    if not words:
        return np.zeros(2 * made.mixture.centres_KD.size)
    found = np.array(slow_vector(made.mixture, np.array(words)))
    roots = np.sign(found) * np.sqrt(abs(found))
    return np.asarray(roots / math.sqrt((roots**2).sum()))


@pytest.mark.parametrize("method", FISHER)
def test_fisher_vectors_of_captions(method: Method) -> None:
    made = codebook(replace(SMALL, method=method))
    assert made.width == 3 * 2 * 6
    np.testing.assert_allclose(made.encode(SAMPLE), [slow_code(made, caption) for caption in SAMPLE], atol=1e-6)


@pytest.mark.parametrize("method", get_args(Method))
def test_the_captions_beside_one_change_no_bit_of_its_code(method: Method) -> None:
    vectors, sample = CHANCE.normal(size=(60, 40)).astype(np.float32), [*SAMPLE, *SAMPLE[::-1], *SAMPLE, *SAMPLE]
    made, _ = fit(replace(SMALL, method=method, width=50), sample, WORDS, vectors)
    codes = made.encode(sample)
    for some in ([5], [79, 3], list(range(7, 60, 3)), list(range(60, 320)), list(range(255))[::-1]):
        np.testing.assert_array_equal(made.encode([sample[place] for place in some]), codes[some])


def test_the_words_beside_one_in_a_codebook_change_no_bit_of_its_code() -> None:
    """Words are far away and components close: what rounds otherwise is seen."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(1, 50)) + 1e-9 * random.normal(size=(2, 50))
    mixture = Mixture(np.full(2, 0.5), centres, np.full((2, 50), 1e-4), np.zeros((2, 50), bool))
    words, vectors = [f"word{number:02d}" for number in range(48)], random.normal(size=(48, 50)).astype(np.float32)
    coding = Coding("gmm", components=2, tokenizer="whitespace")
    whole = Codebook(coding, tuple(words), vectors, mixture)
    for count in range(1, 48):
        fewer = Codebook(coding, tuple(words[:count]), vectors[:count], mixture)
        captions = [f"a {word}" for word in words[:count]]
        assert list(map(fewer.source, captions)) == list(map(whole.source, captions))
        np.testing.assert_array_equal(fewer.encode(captions), whole.encode(captions))


def test_a_word_that_is_everywhere_is_given_no_component_of_its_own() -> None:
    """Words come as often as in English: the first in every sentence, the last in one of sixty."""
    shares = 1 / np.arange(1, 61)
    sample = [" ".join(CHANCE.choice(WORDS, 12, p=shares / shares.sum())) for _ in range(400)]
    _, told = fit(replace(SMALL, components=6), sample, WORDS, VECTORS)
    assert told["components of one word"] <= 2


def test_captions_are_cleaned_as_the_words_that_they_were_fitted_on() -> None:
    plain, cleaned = codebook(SMALL), codebook(replace(SMALL, cleaning="mrw"))
    np.testing.assert_array_equal(cleaned.encode(["r/w01 w02-w03 .."]), cleaned.encode(["w01 w02 w03"]))
    assert not np.array_equal(plain.encode(["r/w01 w02-w03 .."]), plain.encode(["w01 w02 w03"]))


def test_long_codes_are_shortened_to_their_principal_components() -> None:
    whole, made = codebook(SMALL), codebook(replace(SMALL, width=8))
    values = whole.encode(SAMPLE).astype(np.float64)
    centred = values - values.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    expected, found = centred @ axes[:8].T, made.encode(SAMPLE)
    np.testing.assert_allclose(abs(found), abs(expected), atol=1e-4)
    assert made.width == 8


def test_the_analysis_of_components_is_fitted_on_sentences_that_have_words() -> None:
    padded = [*SAMPLE, "unknown words", ""]
    np.testing.assert_array_equal(
        codebook(replace(SMALL, width=8)).encode(SAMPLE), codebook(replace(SMALL, width=8), padded).encode(SAMPLE)
    )


def test_mean_vectors() -> None:
    made = codebook(replace(SMALL, method="mean"))
    expected = [np.mean([KNOWN[word] for word in text.split() if word in KNOWN] or [np.zeros(6)], 0) for text in SAMPLE]
    np.testing.assert_allclose(made.encode(SAMPLE), expected, atol=1e-6)


def test_rare_words_weigh_more() -> None:
    """scikit-learn's definition; of the most frequent words alone."""
    made = codebook(replace(SMALL, method="tfidf", width=20))
    theirs = TfidfVectorizer(analyzer=str.split, vocabulary=made.words).fit(SAMPLE)
    np.testing.assert_allclose(made.encode(SAMPLE), theirs.transform(SAMPLE).toarray(), atol=1e-6)
    counts = {word: " ".join(SAMPLE).split().count(word) for word in WORDS}
    assert list(made.words) == sorted(counts, key=lambda word: (-counts[word], word))[:20]


@pytest.mark.parametrize("method", ["hglmm", "mean", "tfidf"])
@pytest.mark.parametrize("width", [4, 6000])
def test_a_sentence_without_known_words_is_zeros(method: Method, width: int) -> None:
    made = codebook(replace(SMALL, method=method, width=width))
    found = made.encode(["", "w07 nobody knows", SAMPLE[0]])
    assert not found[:1].any()
    assert method == "tfidf" or not found[1].any()
    assert found[2].any()
    assert made.encode([]).shape == (0, made.width)
    assert not made.encode(["nothing here"]).any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=30), min_size=1, max_size=20), st.randoms())
def test_no_order_of_words_and_no_neighbour_changes_a_sentence(sentences: list[list[str]], chance: object) -> None:
    made = HGLMM
    texts = [" ".join(words) for words in sentences]
    mixed = [" ".join(words[::-1]) for words in sentences[::-1]]
    found = made.encode(texts)
    np.testing.assert_allclose(made.encode(mixed)[::-1], found, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([made.encode([text]) for text in texts]), found, atol=1e-6)
    assert np.isfinite(found).all()
    assert (np.linalg.norm(found, axis=1) < 2).all()


HGLMM = codebook(SMALL)


@pytest.mark.parametrize("text", ["w01 " * 10_000, "w01", "w01 😀 naïve \u202e w02"], ids=["long", "one", "odd"])
def test_captions_of_any_kind(text: str) -> None:
    np.testing.assert_allclose(HGLMM.encode([text])[0], slow_code(HGLMM, text), atol=1e-6)


@pytest.mark.parametrize("method", ["hglmm", "mean", "tfidf"])
def test_a_codebook_is_written_and_read_and_a_damaged_one_refused(method: Method) -> None:
    made = codebook(replace(SMALL, method=method, width=5))
    data = made.to_bytes()
    assert data == codebook(replace(SMALL, method=method, width=5)).to_bytes()
    again = Codebook.from_bytes(data, "here")
    np.testing.assert_array_equal(again.encode(SAMPLE), made.encode(SAMPLE))
    assert (again.coding, again.words) == (made.coding, made.words)
    middle = data.index(made.vectors_VE[:1].tobytes())
    spoilt = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    for damaged in (b"", b"{}", data[:-50], data[:200], spoilt):
        with pytest.raises(UserError, match=r"x\.npz is no codebook, or damaged"):
            Codebook.from_bytes(damaged, "x.npz")


def test_words_that_span_few_directions_make_short_vectors() -> None:
    flat = VECTORS.copy()
    flat[:, 4:] = 0
    made, told = fit(SMALL, SAMPLE, WORDS, flat)
    assert (told["dimensions"], made.width) == (4, 3 * 2 * 4)
    assert np.isfinite(made.encode(SAMPLE)).all()


@pytest.mark.parametrize(
    ("coding", "sample", "message"),
    [
        (SMALL, ["w01"], "all words of the sample have one and the same vector"),
        (SMALL, ["w01 w01", "w01"], "one and the same vector"),
        (SMALL, ["w01 w02"], "2 different words cannot make 3 components"),
        (SMALL, ["w07", "nothing"], "the sample has no word that there is a vector of"),
        (SMALL, [], "the sample has no word"),
        (replace(SMALL, width=20), SAMPLE[:20], "20 sentences of the sample cannot tell which 20 of 36 dimensions"),
        (replace(SMALL, width=20, components=1000), SAMPLE[:20], "20 sentences of the sample cannot tell"),  # at once
        (replace(SMALL, method="mean", width=4), ["", "w01"], "1 sentences of the sample cannot tell which 4 of 6"),
        (replace(SMALL, method="tfidf"), ["", " "], "the sample has no words"),
    ],
)
def test_what_no_codebook_can_be_fitted_on_is_refused(coding: Coding, sample: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        codebook(coding, sample)


def test_identical_vectors_are_one_word() -> None:
    with pytest.raises(UserError, match="one and the same vector"):
        fit(SMALL, SAMPLE, WORDS, np.ones_like(VECTORS))


def test_settings_that_mean_nothing_are_refused() -> None:
    for changes in ({"method": "bow"}, {"tokenizer": "nltk2"}, {"components": 0}, {"width": 0}, {"seed": -1}):
        with pytest.raises(
            ValueError, match=r"no method 'bow'|no tokenizer 'nltk2'|(components|width) 0 must be |seed -1 must be "
        ):
            replace(SMALL, **changes)  # type: ignore[arg-type]
