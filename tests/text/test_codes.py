"""Dual-Path's codes: the words that word2vec has, at a fixed length, wherever they fit, and the same after a break."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.engine.building import build
from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from tests.toy_stages import Arrays, arrays
from xmodal.batches.batch import ANNOTATED, Batch
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import SampleRandom, training_shifts
from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.root.outputs import find
from xmodal.root.storage import open_storage
from xmodal.text.position_codes import NO_WORD, Codes, Dictionary, Vectors, all_shifts, shifted
from xmodal.text.vocabularies import Vocabulary
from xmodal.text.word_vectors import read_vectors

CAPTIONS = ["A dog and a cat.", "a Dog runs, (fast)", "two cats - a dog?"]
LENGTH = 8
ROWS = st.integers(0, LENGTH).flatmap(lambda count: st.lists(st.integers(1, 99), min_size=count, max_size=count))


def everything(words: Sequence[str]) -> NDArray[np.float32]:
    return np.zeros((len(words), 2), np.float32)


def only(*known: str) -> Vectors:
    return lambda words: np.array([[1, 2] if word in known else [np.nan] * 2 for word in words], np.float32)


def left(texts: Sequence[Sequence[int]], length: int = LENGTH) -> NDArray[np.int32]:
    return np.array([[*text, *[0] * (length - len(text))] for text in texts], np.int32).reshape(-1, length)


def test_a_dictionary_has_the_known_words_the_frequent_ones_first() -> None:
    known = only("dog", "a", "A", "runs", "cat", "zebra")
    dictionary = Dictionary.build(CAPTIONS, "dual-path", known)
    assert dictionary.words == (NO_WORD, "a", "A", "cat", "dog", "runs")
    assert len(dictionary) == 6
    assert dictionary == Dictionary.build(reversed(CAPTIONS), "dual-path", known)
    assert Dictionary.build(CAPTIONS, "dual-path-coco", known).words[1:3] == ("a", "dog")  # of which one had a ?


def test_a_dictionary_is_of_the_words_of_a_file_of_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("zebra 1 2\ndog 3 4\nDog 5 6\na 7 8\noclock 9 9\n")
    dictionary = Dictionary.build([*CAPTIONS, "o'clock"], "dual-path", partial(read_vectors, path, exact=True))
    assert dictionary.words == (NO_WORD, "a", "Dog", "dog")
    vectors = read_vectors(path, dictionary.words)
    assert np.isnan(vectors[0]).all()
    assert vectors[1:].tolist() == [[7, 8], [5, 6], [3, 4]]


def test_captions_without_a_known_word_make_no_dictionary() -> None:
    with pytest.raises(UserError, match="none of the captions' 11 words has a vector"):
        Dictionary.build(CAPTIONS, "dual-path", only())
    with pytest.raises(UserError, match="none of the captions' 0 words has a vector"):
        Dictionary.build(["", "-"], "dual-path", everything)


def test_unknown_words_are_skipped_and_repeated_ones_stay() -> None:
    dictionary = Dictionary("dual-path", (NO_WORD, "a", "dog", "Café", "🐶"))
    assert dictionary.encode("A dog, a big dog; a dog-Café 🐶.").tolist() == [2, 1, 1, 2, 3, 4]
    assert dictionary.encode("A DOG").tolist() == []
    assert dictionary.encode("").tolist() == []
    assert dictionary.encode("").dtype == np.int32
    assert len(dictionary.encode("dog cat " * 10_000)) == 10_000


def test_a_caption_cannot_spell_the_empty_place() -> None:
    dictionary = Dictionary.build([f"{NO_WORD} a"], "dual-path", everything)
    assert dictionary.words == (NO_WORD, "a")
    assert dictionary.encode(f"a {NO_WORD} a").tolist() == [1, 1]


@given(st.lists(st.text(max_size=30), max_size=8))
def test_a_dictionary_survives_its_file(captions: list[str]) -> None:
    dictionary = Dictionary.build([*captions, "a"], "dual-path", everything)
    data = dictionary.to_bytes()
    assert Dictionary.from_bytes(data, "here") == dictionary
    assert data.decode().split("\n")[1:-1] == list(dictionary.words)


def test_any_damage_to_the_file_is_found() -> None:
    data = Dictionary.build(CAPTIONS, "dual-path", everything).to_bytes()
    damaged = [data[:cut] for cut in range(len(data))]
    damaged += [
        data + b"\n",
        data.replace(b"dog", b"dig"),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"path", b"coco"),
    ]
    damaged += [Vocabulary.build(CAPTIONS, "whitespace", 1).to_bytes(), b""]
    for some in damaged:
        with pytest.raises(UserError, match=r"words.txt (is not the|holds no) dictionary"):
            Dictionary.from_bytes(some, "words.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b"), "starts with <pad>"),
        ((), "starts with <pad>"),
        ((NO_WORD, "a", "a"), "no word twice"),
        ((NO_WORD, "a b"), "'a b' is no word"),
        ((NO_WORD, ""), "'' is no word"),
    ],
)
def test_what_is_no_dictionary_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dictionary("dual-path", words)


def test_shifts_are_those_of_the_reference() -> None:
    """Which has ids from 0, and one-hot codes."""
    reference = golden("indep_dualpath_position_shift")
    one_hot = np.eye(int(reference["dict_size"]) + 1, dtype=np.float32)[:, 1:]
    codes_TL = (reference["word_ids_0based"] + 1).astype(np.int32)
    np.testing.assert_array_equal(one_hot[codes_TL], reference["left_aligned"])
    codes_SL, texts_S = all_shifts(codes_TL)
    for text in range(3):
        np.testing.assert_array_equal(one_hot[codes_SL[texts_S == text]], reference[f"sent{text}_all_shifts"])


@given(st.lists(ROWS, max_size=5))
def test_every_shift_of_a_text_comes_once_and_has_all_its_words_in_order(texts: list[list[int]]) -> None:
    codes_SL, texts_S = all_shifts(left(texts))
    expected = [
        (number, [*[0] * before, *text, *[0] * (LENGTH - len(text) - before)])
        for number, text in enumerate(texts)
        for before in range(LENGTH - len(text) + 1)
    ]
    assert list(zip(texts_S.tolist(), codes_SL.tolist(), strict=True)) == expected
    assert codes_SL.dtype == np.int32


@given(st.lists(ROWS, min_size=1, max_size=5), st.data())
def test_a_shift_moves_words_and_loses_none(texts: list[list[int]], data: st.DataObject) -> None:
    shifts = [data.draw(st.integers(0, LENGTH - len(text))) for text in texts]
    found = shifted(left(texts), np.array(shifts))
    for text, shift, code in zip(texts, shifts, found.tolist(), strict=True):
        assert code == [*[0] * shift, *text, *[0] * (LENGTH - len(text) - shift)]


@pytest.mark.parametrize(
    ("code", "shift"), [([1, 2, 0, 0], 3), ([1, 2, 0, 0], -1), ([0, 1, 2, 0], 1), ([1, 0, 2, 0], 1)]
)
def test_a_shift_that_would_lose_or_reorder_words_is_refused(code: list[int], shift: int) -> None:
    with pytest.raises(AssertionError):
        shifted(np.array([code], np.int32), np.array([shift]))


def test_sums_over_shifts_are_made_by_the_texts_that_they_belong_to() -> None:
    codes_SL, texts_S = all_shifts(left([[3, 5], [], [7] * LENGTH]))
    sums = torch.zeros(3, LENGTH, dtype=torch.int64)
    sums.index_add_(0, torch.from_numpy(texts_S), torch.from_numpy(codes_SL).long())
    assert sums.sum(dim=1).tolist() == [8 * 7, 0, 7 * 8]


def test_a_code_has_a_position() -> None:
    with pytest.raises(ValueError, match="1 position or more, not 0"):
        Codes(length=0)


def test_training_shifts_are_uniform_over_the_places_where_a_text_fits() -> None:
    captions = np.arange(20_000)
    for words in (0, 1, 20, 31, 32):
        shifts = training_shifts(np.full(len(captions), words), 32, SampleRandom(3, 1, captions))
        counts = np.bincount(shifts)
        assert len(counts) == 33 - words
        assert np.abs(counts - len(captions) / len(counts)).max() < 6 * np.sqrt(len(captions) / len(counts))


ITEMS = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("codes"))
    build(arrays(Arrays(30)), open_storage(root))
    return root


def reader(root: str, codes: Codes) -> Reader:
    """Two captions an item; the first has no word, the second one, and so on up to more than fit."""
    store = FeatureStore(find(root, "arrays")[0], "grids")
    ids = [id for id in store.ids if id in store][:ITEMS]
    captions = 2 * len(ids)
    examples = Examples(
        ids=tuple(ids),
        rows=store.rows(ids),
        caption_ids=tuple(f"c{caption}" for caption in range(captions)),
        caption_items=np.arange(captions) // 2,
        words=Texts.of(words(caption) for caption in range(captions)),
    )
    return Reader(examples, store, tokens=codes)


def words(caption: int) -> NDArray[np.int32]:
    return np.arange(1, 1 + caption % (LENGTH + 4), dtype=np.int32) + caption


def found_in(batches: Iterable[Batch]) -> dict[int, list[int]]:
    """The code of every caption."""
    streams = [batch.streams[ANNOTATED] for batch in batches]
    for stream in streams:
        assert stream.text.values.shape == (len(stream.captions), LENGTH)
        assert stream.text.values.dtype == torch.int32
        assert stream.text.mask.all()
    pairs = [zip(stream.captions.tolist(), stream.text.values.tolist(), strict=True) for stream in streams]
    return {caption: code for some in pairs for caption, code in some}


def test_a_loader_gives_codes_shifted_anew_every_epoch(root: str) -> None:
    one = reader(root, Codes(LENGTH))
    loader = Loader(one, 8)
    epochs = [found_in(loader) for _ in range(3)]
    for codes in epochs:
        assert sorted(codes) == list(range(2 * len(one.examples.ids)))
        for caption, code in codes.items():
            kept = words(caption)[:LENGTH].tolist()
            start = next((place for place, id in enumerate(code) if id), 0)
            assert code == [*[0] * start, *kept, *[0] * (LENGTH - start - len(kept))]
    assert epochs[0] != epochs[1] != epochs[2]


def test_only_seed_epoch_and_caption_decide_a_shift(root: str) -> None:
    whole = found_in(Loader(reader(root, Codes(LENGTH)), 8, seed=5))
    ranks = [Loader(reader(root, Codes(LENGTH)), 4, seed=5, rank=rank, world=2) for rank in range(2)]
    assert found_in(ranks[0]) | found_in(ranks[1]) == whole
    assert found_in(Loader(reader(root, Codes(LENGTH)), 8, seed=6)) != whole


def test_a_loader_that_goes_on_repeats_the_shifts(root: str) -> None:
    whole = Loader(reader(root, Codes(LENGTH)), 8)
    first, second = found_in(whole), found_in(whole)
    broken = Loader(reader(root, Codes(LENGTH)), 8)
    list(broken)
    seen = {}
    for batch in broken:
        seen |= found_in([batch])
        if len(seen) >= 16:
            break
    resumed = Loader(reader(root, Codes(LENGTH)), 8)
    resumed.load_state_dict(broken.state_dict())
    rest = found_in(resumed)
    assert len(rest) < len(second)
    assert seen | rest == second != first


def test_evaluation_and_left_alignment_leave_words_at_the_left(root: str) -> None:
    training = found_in(Loader(reader(root, Codes(LENGTH, shifted=False)), 8))
    one = reader(root, Codes(LENGTH))
    evaluated = one.text(slice(None)).values.tolist()
    assert [training[caption] for caption in range(len(evaluated))] == evaluated
    assert evaluated == left([words(caption)[:LENGTH].tolist() for caption in range(len(evaluated))]).tolist()


def test_texts_without_any_word_are_empty_codes() -> None:
    texts = Texts.of(np.zeros(0, np.int32) for _ in range(2))
    codes, counts = texts.padded(np.array([1, 0]), 4)
    assert (codes.tolist(), counts.tolist()) == ([[0] * 4] * 2, [0, 0])
