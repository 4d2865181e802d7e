"""Dual-Path's codes: words at a fixed length, wherever they fit."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.golden import golden
from xmodal.batches.sample_order import SampleRandom, training_shifts
from xmodal.text.position_codes import all_shifts, places_of, shifted

LENGTH = 8
ROWS = st.integers(0, LENGTH).flatmap(lambda count: st.lists(st.integers(1, 99), min_size=count, max_size=count))


def left(texts: Sequence[Sequence[int]], length: int = LENGTH) -> NDArray[np.int32]:
    return np.array([[*text, *[0] * (length - len(text))] for text in texts], np.int32).reshape(-1, length)


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


def test_training_shifts_are_uniform_over_the_places_where_a_text_fits() -> None:
    captions = np.arange(20_000)
    for words in (0, 1, 20, 31, 32):
        shifts = training_shifts(np.full(len(captions), words), 32, SampleRandom(3, 1, captions))
        counts = np.bincount(shifts)
        assert len(counts) == 33 - words
        assert np.abs(counts - len(captions) / len(counts)).max() < 6 * np.sqrt(len(captions) / len(counts))


@given(st.integers(1, 9), st.sampled_from([4, 8]), st.integers(0, 99), st.integers(0, 9))
def test_places_that_see_the_same_words_are_one_row(texts: int, length: int, seed: int, own: int) -> None:
    codes = torch.randint(3, (texts, length), generator=torch.Generator().manual_seed(seed))
    places = places_of(codes, own)
    for step in (1, 2):
        seen = [[tuple(code[: place + 1]) for place in range(0, length, step)] for code in codes.tolist()]
        rows = places.rows_BL.tolist()
        row_of = {
            words: row for one, their in zip(seen, rows, strict=True) for words, row in zip(one, their, strict=True)
        }
        assert sorted(row_of.values()) == list(range(len(places.counts_R)))
        left = places.on_the_left(1 + torch.arange(len(row_of))[:, None])[:, 0]  # rows from 1 on
        for one, their in zip(seen, rows, strict=True):
            assert their == [row_of[words] for words in one]
            assert left[their].tolist() == [0, *(1 + row for row in their[:-1])]
        counted = [row for their in rows[:own] for row in their]
        assert places.counts_R.tolist() == [counted.count(row) for row in range(len(row_of))]
        assert torch.equal(places.of_codes(places.of_rows(places.rows_BL)[:, None])[..., 0], places.rows_BL)
        later = places.every_second()
        assert torch.equal(later.numbers_R[later.rows_BL], places.rows_BL[:, ::2])
        places = later
