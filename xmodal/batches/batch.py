"""A batch: padded items in streams of pairs. Shapes: B rows, L positions, V visual rows, T text rows, P pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

ANNOTATED, UNANNOTATED = "annotated", "unannotated"


@dataclass(frozen=True, eq=False)
class Padded:
    """Items of unequal length: tokens (B, L), regions or frames (B, L, D), where one vector is a sequence of one.

    Values beyond an item's length may be anything. `lengths` stays on the host, where packing needs it.
    """

    values: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        assert self.values.ndim >= 2
        assert self.lengths.shape == self.values.shape[:1]
        assert self.lengths.dtype == torch.int64
        assert self.lengths.device.type == "cpu"
        lengths = self.lengths.numpy()
        assert lengths.min(initial=1) >= 1
        assert lengths.max(initial=1) <= self.values.shape[1]

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> "Padded":
        """Copies arrays of shape (length, ...), padded with zeros; 0 is also the padding token."""
        assert arrays
        assert all(array.ndim and array.dtype == arrays[0].dtype for array in arrays)
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        values = np.zeros((len(arrays), int(lengths.max()), *arrays[0].shape[1:]), arrays[0].dtype)
        values[np.arange(values.shape[1]) < lengths[:, None]] = np.concatenate(arrays)
        return cls(torch.from_numpy(values), torch.from_numpy(lengths))

    @classmethod
    def whole(cls, values: Tensor) -> "Padded":
        """Rows without padding, (B, L, ...)."""
        return cls(values, torch.from_numpy(np.full(values.shape[0], values.shape[1])))

    @property
    def mask(self) -> Tensor:
        """(B, L), true where a position is real."""
        positions_L = torch.arange(self.values.shape[1], device=self.values.device)
        return positions_L < self.lengths.to(self.values.device)[:, None]

    def zero_padded(self) -> Tensor:
        """The values, with zeros beyond the lengths: a weight of 0 does not stop a NaN there."""
        mask = self.mask.view(self.values.shape[:2] + (1,) * (self.values.ndim - 2))
        return self.values.masked_fill(~mask, 0)

    def average(self) -> Tensor:
        """(B, D): the mean of each row's real positions."""
        return self.zero_padded().sum(dim=1) / self.mask.sum(dim=1, keepdim=True)

    def packed(self, embed: Callable[[Tensor], Tensor]) -> PackedSequence:
        """The vector of each token (B, L), without padding, as recurrent networks read them."""
        ids = pack_padded_sequence(self.values, self.lengths, batch_first=True, enforce_sorted=False)
        return PackedSequence(embed(ids.data), ids.batch_sizes, ids.sorted_indices, ids.unsorted_indices)

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Padded":
        # as wide as the whole, so that a tile computes the same
        return Padded(self.values[rows], self.lengths[rows.cpu() if isinstance(rows, Tensor) else rows])

    def to(self, device: torch.device | str) -> "Padded":
        return Padded(self.values.to(device), self.lengths)


@dataclass(frozen=True, eq=False)
class Stream:
    """Visual rows, text rows, and the pairs that belong together; rows need not be aligned.

    An item or caption is named by its position in the stream's view, from 0 without gaps.
    """

    visual: Padded
    text: Padded
    visual_items: Tensor  # (V,)
    text_items: Tensor  # (T,)
    captions: Tensor  # (T,)
    positives: Tensor  # (P, 2): visual row, text row
    visual_classes: Tensor | None = None  # (V,): classes, identities, coreference chains
    text_classes: Tensor | None = None  # (T,)
    visual_in_evaluation: Padded | None = None  # by a backbone in evaluation mode, where candidates are mined

    def __post_init__(self) -> None:
        for ids in (self.visual_items, self.visual_classes):
            assert ids is None or (ids.shape, ids.dtype) == ((len(self.visual),), torch.int64)
        for ids in (self.text_items, self.captions, self.text_classes):
            assert ids is None or (ids.shape, ids.dtype) == ((len(self.text),), torch.int64)
        assert self.positives.ndim == 2
        assert self.positives.shape[1] == 2
        assert self.positives.dtype == torch.int64
        if self.positives.device.type == "cpu":  # on a device, looking at values would wait for it
            visual, text = self.positives.numpy().T  # three times as fast as comparing tensors
            assert min(visual.min(initial=0), text.min(initial=0)) >= 0
            assert visual.max(initial=-1) < len(self.visual)
            assert text.max(initial=-1) < len(self.text)

    @classmethod
    def paired(
        cls, visual: Padded, text: Padded, items: Tensor, captions: Tensor, classes: Tensor | None = None
    ) -> "Stream":
        """Row i of the text belongs to row i of the visual side."""
        assert len(visual) == len(text)
        positives_P2 = torch.arange(len(text))[:, None].expand(-1, 2)
        return cls(visual, text, items, items, captions, positives_P2, classes, classes)

    @property
    def has_candidates(self) -> bool:
        return len(self.text) > len(self.positives)

    @property
    def candidates(self) -> Tensor:
        """Text rows that belong to no visual row of the batch by `positives`, from which negatives are mined."""
        is_paired = torch.zeros(len(self.text), dtype=torch.bool, device=self.positives.device)
        is_paired[self.positives[:, 1]] = True
        return torch.nonzero(~is_paired)[:, 0]

    def to(self, device: torch.device | str) -> "Stream":
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in present.items() if value is not None})


@dataclass(frozen=True, eq=False, kw_only=True)
class TripletStream(Stream):
    """Regions and phrases, of which each pair has its own wrong partners: regions that are not there are neither.

    Classes of texts are coreference chains: phrases of another one are wrong. Items are pictures.
    """

    targets: Tensor  # (P, 2): whether a pair is one of its region, and one of its phrase
    wrong_regions: Tensor  # (T, V)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.text_classes is not None
        assert (self.targets.shape, self.targets.dtype) == (self.positives.shape, torch.bool)
        assert (self.wrong_regions.shape, self.wrong_regions.dtype) == ((len(self.text), len(self.visual)), torch.bool)


@dataclass(frozen=True, eq=False, kw_only=True)
class PairStream(Stream):
    """Regions and phrases, as many right as wrong pairs."""

    negatives: Tensor  # (P, 2): visual row, text row, as positives are

    def __post_init__(self) -> None:
        super().__post_init__()
        assert (self.negatives.shape, self.negatives.dtype) == (self.positives.shape, torch.int64)


@dataclass(frozen=True, eq=False)
class Batch:
    """The data of one step. The un-annotated stream numbers its own items."""

    streams: Mapping[str, Stream]
    progress: float = 0.0  # share of the training that is done
    borrowed: int = 0  # samples of the next epoch, the last over all ranks: `distributed.gather` leaves them out

    def __post_init__(self) -> None:
        assert ANNOTATED in self.streams
        assert self.streams.keys() <= {ANNOTATED, UNANNOTATED}
        assert 0.0 <= self.progress <= 1.0

    def to(self, device: torch.device | str) -> "Batch":
        return replace(self, streams={name: stream.to(device) for name, stream in self.streams.items()})
