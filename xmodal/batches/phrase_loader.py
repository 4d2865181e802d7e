"""The loader of regions and phrases: batches of Two-Branch's algorithm 1, one read ahead.

An epoch has every phrase once, in an order that the seed decides; what is drawn for a phrase is another in each epoch.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmodal.batches.batch import ANNOTATED, Batch, Padded, PairStream, Stream, TripletStream
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.batches.region_phrase_pairs import pairs, triplets
from xmodal.batches.sample_order import Integers, Order, position_of
from xmodal.recipes import Phrases

AHEAD = 2  # batches in memory: of 100 phrases they have up to 20,000 regions


@dataclass(eq=False)
class PhraseLoader:
    """Goes on within an epoch from its position, as `Loader` does."""

    features: PhraseFeatures
    rule: Phrases
    batch_size: int  # phrases, to which neighbours are added
    seed: int = 0
    device: str = "cpu"
    epoch: int = 0
    cursor: int = 0  # phrases of the epoch that were read

    def __len__(self) -> int:
        return -(-len(self.features) // self.batch_size)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.seed, self.epoch, self.cursor = position_of(state, len(self.features), "phrases")

    def __iter__(self) -> Iterator[Batch]:
        epoch, count = self.epoch, len(self.features)
        starts, waiting = deque(range(self.cursor, count, self.batch_size)), deque[tuple[int, Future[Batch]]]()
        with ThreadPoolExecutor(1, "xmodal-phrases") as thread:
            try:
                while starts or waiting:
                    while starts and len(waiting) < AHEAD:
                        waiting.append((starts[0], thread.submit(self._batch, epoch, starts.popleft())))
                    start, read = waiting.popleft()
                    batch, after = read.result(), start + self.batch_size
                    self.epoch, self.cursor = (epoch, after) if after < count else (epoch + 1, 0)
                    yield batch
            finally:
                for _, unread in waiting:
                    unread.cancel()
        self.epoch, self.cursor = epoch + 1, 0  # also where no batch was left

    def _batch(self, epoch: int, start: int) -> Batch:
        count = len(self.features)
        first = epoch * count + start
        phrases_B = Order(count, self.seed).take(first, first + min(self.batch_size, count - start))
        make = self._triplets if self.rule.draws == "triplets" else self._pairs
        return Batch({ANNOTATED: make(phrases_B, epoch).to(self.device)})

    def _triplets(self, phrases_B: Integers, epoch: int) -> TripletStream:
        drawn = triplets(self.features.task, phrases_B, self.rule, self.seed, epoch)
        return TripletStream(
            **self._sides(drawn.regions_R, drawn.phrases_Q),
            positives=torch.from_numpy(drawn.pairs_M2),
            targets=torch.from_numpy(drawn.targets_M2),
            wrong_regions=torch.from_numpy(drawn.wrong_regions_QR),
        )

    def _pairs(self, phrases_B: Integers, epoch: int) -> PairStream:
        drawn = pairs(self.features.task, phrases_B, self.rule, self.seed, epoch)
        regions_R, places = np.unique(np.concatenate([drawn.right_M, drawn.wrong_M]), return_inverse=True)
        phrases_Q, texts_M = np.unique(drawn.phrases_M, return_inverse=True)
        right_M, wrong_M = np.split(places, 2)
        positives, negatives = (torch.from_numpy(np.stack([rows, texts_M], axis=1)) for rows in (right_M, wrong_M))
        return PairStream(**self._sides(regions_R, phrases_Q), positives=positives, negatives=negatives)

    def _sides(self, regions_R: Integers, phrases_Q: Integers) -> dict[str, Any]:
        task = self.features.task
        chains_Q, proposals = task.boxes_P[phrases_Q], len(task.proposals_N4)
        is_annotated_R = regions_R >= proposals
        pictures_R = np.searchsorted(task.starts_V1, regions_R, side="right") - 1
        pictures_R[is_annotated_R] = task.pictures_A[regions_R[is_annotated_R] - proposals]
        return {
            "visual": vectors(self.features.regions(regions_R)),
            "text": vectors(self.features.text(phrases_Q)),
            "visual_items": torch.from_numpy(pictures_R),
            "text_items": torch.from_numpy(task.pictures_A[chains_Q]),
            "captions": torch.from_numpy(phrases_Q),
            "text_classes": torch.from_numpy(chains_Q),
        }


def stream_of_pairs(features: PhraseFeatures, phrases: slice) -> Stream:
    """Phrases with their annotated boxes, from which a closed form is solved."""
    numbers = np.arange(len(features))[phrases]
    boxes, rows = np.unique(features.task.boxes_P[numbers], return_inverse=True)
    pictures = torch.from_numpy(features.task.pictures_A[boxes])
    positives = torch.from_numpy(np.stack([rows, np.arange(len(numbers))], axis=1))
    visual = vectors(features.regions(len(features.task.proposals_N4) + boxes.astype(np.int64)))
    captions = torch.from_numpy(numbers)
    return Stream(visual, vectors(features.text(numbers)), pictures, pictures[rows], captions, positives)


def vectors(rows_RD: NDArray[Any], device: str = "cpu") -> Padded:
    """Single precision, each row a sequence of one."""
    values: Tensor = torch.from_numpy(np.ascontiguousarray(rows_RD)).to(device).float()
    return Padded.whole(values[:, None])
