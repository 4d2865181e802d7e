from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from xmodal.batches.batch import Batch, Padded, Stream


def ragged(lengths: list[int], *row_shape: int, dtype: str = "float32") -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(length, *row_shape)).astype(dtype) for length in lengths]


def stream(rows: int = 3) -> Stream:
    visual, text = Padded.of(ragged([2] * rows, 4)), Padded.of([np.arange(1, row + 2) for row in range(rows)])
    return Stream.paired(visual, text, torch.arange(rows), 10 + torch.arange(rows))


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    row_shape=st.lists(st.integers(1, 4), max_size=3),
    dtype=st.sampled_from(["float16", "float32", "uint8", "int32", "int64"]),
)
def test_padding_keeps_every_value_and_adds_only_zeros(lengths: list[int], row_shape: list[int], dtype: str) -> None:
    arrays = ragged(lengths, *row_shape, dtype=dtype)
    padded = Padded.of(arrays)
    assert padded.values.shape == (len(lengths), max(lengths), *row_shape)
    assert padded.lengths.tolist() == lengths
    assert padded.mask.sum(1).tolist() == lengths
    for values, mask, array in zip(padded.values, padded.mask, arrays, strict=True):
        np.testing.assert_array_equal(values[mask].numpy(), array)
        assert not values[~mask].any()


def test_read_only_arrays_are_copied() -> None:
    mapped = np.ones((2, 3), np.float32)
    mapped.flags.writeable = False
    padded = Padded.of([mapped])
    padded.values.zero_()
    assert mapped.all()


@pytest.mark.parametrize("rows", [slice(1, 3), slice(None), torch.tensor([2, 0]), torch.tensor([True, False, True])])
def test_slicing_takes_rows_and_keeps_the_width(rows: slice | Tensor) -> None:
    padded = Padded.of(ragged([5, 1, 2], 4))
    part = padded[rows]
    assert torch.equal(part.values, padded.values[rows])
    assert torch.equal(part.mask, padded.mask[rows])


def test_an_average_is_over_real_positions_alone() -> None:
    arrays = ragged([3, 1, 5], 4, dtype="float32")
    padded = Padded.of(arrays)
    padded.values[~padded.mask] = torch.nan
    expected = np.stack([array.mean(axis=0) for array in arrays])
    np.testing.assert_allclose(padded.average().numpy(), expected, rtol=1e-6)


def test_whole_rows_have_no_padding() -> None:
    assert Padded.whole(torch.zeros(2, 36, 8)).mask.all()


def test_mask_follows_the_values_and_lengths_stay_on_the_host() -> None:
    moved = Padded.of(ragged([3, 1], 2)).to("meta")
    assert moved.mask.device.type == "meta"
    assert moved.lengths.tolist() == [3, 1]


def test_lengths_serve_packing() -> None:
    padded = Padded.of(ragged([3, 1, 2], 4))
    packed = pack_padded_sequence(padded.values, padded.lengths, batch_first=True, enforce_sorted=False)
    assert torch.equal(pad_packed_sequence(packed, batch_first=True)[0], padded.values)


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.zeros((2, 3)), np.zeros((0, 3))],
        [np.float32(1)],
        [np.zeros((2, 3)), np.zeros((2, 4))],
        [np.zeros(2, "int32"), np.zeros(2, "int64")],
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(arrays: list[np.ndarray]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        Padded.of(arrays)


@pytest.mark.parametrize(
    "lengths",
    [torch.tensor([1, 5]), torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([1, 2], dtype=torch.int32)],
)
def test_lengths_that_contradict_the_values_are_refused(lengths: Tensor) -> None:
    with pytest.raises(AssertionError):
        Padded(torch.zeros(2, 4), lengths)


def test_pairs_are_aligned_by_default() -> None:
    assert stream(3).positives.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_rows_need_not_be_aligned() -> None:
    """Two captions for the first image, one for the second, and an unpaired image."""
    one = Stream(
        visual=Padded.of(ragged([1, 1, 1], 4)),
        text=Padded.of(ragged([2, 2, 2], 4)),
        visual_items=torch.tensor([7, 8, 9]),
        text_items=torch.tensor([7, 7, 8]),
        captions=torch.tensor([70, 71, 80]),
        positives=torch.tensor([[0, 0], [0, 1], [1, 2]]),
    )
    visual, text = one.positives.T
    assert torch.equal(one.visual_items[visual], one.text_items[text])


@pytest.mark.parametrize(
    "changes",
    [
        {"visual_items": torch.arange(2)},
        {"captions": torch.zeros(3)},
        {"text_classes": torch.arange(4)},
        {"positives": torch.tensor([[0, 3]])},
        {"positives": torch.tensor([[-1, 0]])},
        {"positives": torch.arange(3)},
    ],
)
def test_streams_that_contradict_themselves_are_refused(changes: dict[str, Tensor]) -> None:
    with pytest.raises(AssertionError):
        replace(stream(3), **changes)  # type: ignore[arg-type]


def test_unequal_sides_cannot_be_paired_row_by_row() -> None:
    visual, text = Padded.of(ragged([1, 1], 4)), Padded.of(ragged([1], 4))
    with pytest.raises(AssertionError):
        Stream.paired(visual, text, torch.arange(2), torch.arange(2))


def test_a_batch_moves_as_a_whole() -> None:
    moved = Batch({"annotated": stream(), "unannotated": stream(2)}, progress=0.5).to("meta")
    assert moved.progress == 0.5
    for part in moved.streams.values():
        tensors = [part.visual.values, part.text.values, part.visual_items, part.captions, part.positives]
        assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.streams["unannotated"].text.lengths.tolist() == [1, 2]


@pytest.mark.parametrize("names", [(), ("unannotated",), ("annotated", "extra")])
def test_streams_have_two_names_only(names: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        Batch({name: stream() for name in names})


@pytest.mark.parametrize("progress", [-0.1, 1.1, float("nan")])
def test_progress_is_a_fraction(progress: float) -> None:
    with pytest.raises(AssertionError):
        Batch({"annotated": stream()}, progress)


def test_batches_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Batch({"annotated": stream()}).progress = 1.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        stream().captions = torch.arange(3)  # type: ignore[misc]
