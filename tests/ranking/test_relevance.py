import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from xmodal.ranking.relevance import Classes, LabelBits, Pairs, Relevance, pack_labels

ALL = slice(None)


@st.composite
def runs(draw: st.DrawFn, length: int) -> slice:
    start = draw(st.integers(0, length))
    return slice(start, draw(st.integers(start, length)))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Pairs, np.ndarray]:
    visual_rows, text_rows = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    table = draw(arrays(np.bool_, (visual_rows, text_rows)))
    text, visual = np.nonzero(table.T)
    return Pairs(visual, text, table.shape), table


@st.composite
def classes(draw: st.DrawFn) -> tuple[Classes, np.ndarray]:
    visual = draw(arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 4)))
    text = draw(arrays(np.int32, st.integers(1, 12), elements=st.integers(0, 4)))
    return Classes(visual, text), np.array([[a == b for b in text] for a in visual])


@st.composite
def label_bits(draw: st.DrawFn) -> tuple[LabelBits, np.ndarray]:
    labels, zeta = draw(st.integers(1, 130)), draw(st.integers(0, 3))
    visual, text = (draw(arrays(np.bool_, (draw(st.integers(1, 8)), labels))) for _ in range(2))
    visual[:, 0] = text[:, -1] = True
    table = np.array([[np.sum(a != b) <= zeta for b in text] for a in visual])
    return LabelBits(pack_labels(visual), pack_labels(text), zeta), table


@given(st.data(), st.one_of(pairs(), classes(), label_bits()))
def test_any_tile_is_that_part_of_the_definition(data: st.DataObject, case: tuple[Relevance, np.ndarray]) -> None:
    relevance, table = case
    assert relevance.shape == table.shape
    visual_rows, text_rows = (data.draw(runs(length)) for length in table.shape)
    tile = relevance.tile(visual_rows, text_rows)
    assert tile.dtype == np.bool_
    np.testing.assert_array_equal(tile, table[visual_rows, text_rows])
    np.testing.assert_array_equal(relevance.tile(ALL, ALL), table)


def test_captions_belong_to_one_item_each() -> None:
    relevance = Pairs.of_texts(np.repeat(np.arange(3), 2), visual_rows=3)
    np.testing.assert_array_equal(relevance.tile(ALL, ALL), np.repeat(np.eye(3, dtype=bool), 2, axis=1))


def test_more_than_255_differing_labels_do_not_wrap_around() -> None:
    none_but_first, every = np.zeros((1, 513), bool), np.ones((1, 513), bool)
    none_but_first[0, 0] = True
    assert not LabelBits(pack_labels(none_but_first), pack_labels(every), zeta=2).tile(ALL, ALL).any()


ROWS = np.arange(113_287)
ONE_WORD = 1 + ROWS[:, None].astype(np.uint64)


@pytest.mark.parametrize(
    "relevance", [Pairs.of_texts(ROWS, len(ROWS)), Classes(ROWS, ROWS), LabelBits(ONE_WORD, ONE_WORD, zeta=0)]
)
def test_a_tile_of_a_whole_training_set_costs_a_tile(relevance: Relevance) -> None:
    tracemalloc.start()
    tile = relevance.tile(slice(100_000, 101_000), slice(100_500, 101_500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tile.sum() == 500
    assert peak < 32 * tile.size


@pytest.mark.parametrize("rows", [slice(0, 4), slice(-1, 3), slice(2, 1), slice(0, 3, 2)])
def test_rows_beyond_the_end_are_refused(rows: slice) -> None:
    labels = pack_labels(np.ones((3, 5), bool))
    for relevance in (
        Pairs.of_texts(np.arange(3), 3),
        Classes(np.arange(3), np.arange(3)),
        LabelBits(labels, labels, 1),
    ):
        with pytest.raises(IndexError, match="are not a run within 0:3"):
            relevance.tile(rows, ALL)
        with pytest.raises(IndexError, match="are not a run within 0:3"):
            relevance.tile(ALL, rows)


@pytest.mark.parametrize(
    ("visual", "text"),
    [([0, 3], [0, 1]), ([0, 1], [-1, 1]), ([0, 1], [1, 0]), ([0, 1], [0]), ([0.0, 1.0], [0, 1])],
    ids=["beyond the end", "before the start", "not sorted by text", "lengths", "no integers"],
)
def test_wrong_pairs_are_refused(visual: list[int], text: list[int]) -> None:
    with pytest.raises(AssertionError):
        Pairs(np.array(visual), np.array(text), (3, 2))


def test_classes_must_be_integers() -> None:
    with pytest.raises(AssertionError):
        Classes(np.arange(3), np.array([0.0, np.nan]))


def test_rows_without_labels_are_refused() -> None:
    some, none = pack_labels(np.ones((2, 5), bool)), pack_labels(np.zeros((2, 5), bool))
    with pytest.raises(ValueError, match=r"text row 0 has no label \(2 such rows\)"):
        LabelBits(some, none, 0)


def test_wrong_labels_are_refused() -> None:
    narrow, wide = pack_labels(np.ones((2, 64), bool)), pack_labels(np.ones((2, 65), bool))
    with pytest.raises(AssertionError):
        LabelBits(narrow, narrow, -1)
    with pytest.raises(AssertionError):
        LabelBits(narrow, wide, 0)
    with pytest.raises(AssertionError):
        pack_labels(np.ones((2, 5)))  # type: ignore[arg-type]
