"""The loader: batches of a training, read ahead from the store."""

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch, Padded, Stream
from xmodal.batches.buffers import Buffers
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import (
    CANDIDATE,
    CAPTION,
    ClassOrder,
    Integers,
    Order,
    SampleRandom,
    neighbours,
    position_of,
)
from xmodal.errors import UserError
from xmodal.number_rules import one_or_more, zero_or_more
from xmodal.recipes import Candidates, Neighbours, OnePerClass

THREADS = 2  # one copies rows while the other looks up words
WORTH_A_THREAD = 0.0002  # seconds of work on a batch: what reading in a thread costs
Captions = Literal["each", "one", "all"]


class Loader(IterableDataset[Batch]):
    """Loads batches, which threads read ahead into memory that is used again.

    A sample is a caption with its item ("each"), an item with one of its captions, drawn anew every epoch ("one"), or
    an item with all of them ("all"). All samples come once an epoch, in an order that only the seed decides.
    `batch_size` counts a step's samples over all ranks: each of `world` gets an equal part. Where an epoch's last batch
    cannot be shared equally it borrows from the next (`Batch.borrowed`). An epoch is one of the first stream. Texts of
    `Candidates` come last in the first stream, and every rank has all of them.

    A broken-off iteration goes on at the cursor, the samples of the epoch handed out. With workers of a
    `DataLoader(loader, batch_size=None)`, call `set_epoch` before each epoch.
    """

    def __init__(
        self,
        streams: Reader | Mapping[str, Reader],
        batch_size: int,
        *,
        captions: Captions = "each",
        sampler: Neighbours | OnePerClass | Candidates | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        ahead: int = 2,
    ) -> None:
        """rank and world are torch.distributed's unless given, and the dtype the store's."""
        self.captions, self.drop_last, self.ahead = captions, drop_last, ahead
        self._neighbours = sampler if isinstance(sampler, Neighbours) else None
        self._candidates = sampler.texts if isinstance(sampler, Candidates) else 0
        self._device, self._dtype = torch.device(device), dtype
        if (rank is None) != (world is None):
            raise ValueError("rank and world are given both or not at all")
        self._rank = distributed.rank() if rank is None else rank
        self._world = distributed.world() if world is None else world
        self._readers = {ANNOTATED: streams} if isinstance(streams, Reader) else dict(streams)
        self._process = 0
        self._set_position(seed, 0, 0)
        self._buffers: Buffers | None = None  # of an iteration that is over
        self._orders = {name: self._order(number, name, sampler) for number, name in enumerate(self._readers)}
        first = next(iter(self._orders.values()), None)
        self.batch_size = first.batch if isinstance(first, ClassOrder) else batch_size
        self._check()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._length // self.batch_size if self.drop_last else -(-self._length // self.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._set_position(*position_of(state, self._length, "samples"))

    def set_epoch(self, epoch: int) -> None:
        """Moves to the beginning of another epoch."""
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epochs are counted from 0, and {epoch!r} is none")
        self._set_position(self.seed, epoch, self.cursor if epoch == self.epoch else 0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._shared_position.is_shared():  # type: ignore[no-untyped-call]  # not a worker's copy
            self._process = 0
            self._set_position(self.seed, self.epoch, self.cursor)

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:  # its last pass may never have finished
            self._set_position(*self._shared_position.tolist())
        epoch = self.epoch
        for start, batch in self._read_ahead(epoch):
            after = start + self.batch_size
            is_last = after + (self.batch_size - 1 if self.drop_last else 0) >= self._length
            if is_last:
                self._set_position(self.seed, epoch + 1, 0)
            else:
                self._set_position(self.seed, epoch, after)
            yield batch
            del batch  # its memory is for one of the next
        self._set_position(self.seed, epoch + 1, 0)  # also where no batch was left

    def _set_position(self, seed: int, epoch: int, cursor: int) -> None:
        """Moves this loader and a DataLoader's workers."""
        self.seed, self.epoch, self.cursor = seed, epoch, cursor
        if self._process and get_worker_info() is not None:
            return
        if self._process != os.getpid():  # new, or in another process, whose workers are its own
            self._shared_position, self._process = torch.zeros(3, dtype=torch.int64, device="cpu"), os.getpid()
            self._shared_position.share_memory_()  # type: ignore[no-untyped-call]
        self._shared_position.numpy()[:] = seed, epoch, cursor

    def _read_ahead(self, epoch: int) -> Iterator[tuple[int, Batch]]:
        """Yields start positions and batches; for a caller who is soon back, made in this thread and its cache."""
        buffers, self._buffers = self._buffers or Buffers(pinned=self._device.type == "cuda"), None
        readers = {name: replace(reader, buffers=buffers) for name, reader in self._readers.items()}
        starts, waiting = deque(self._starts()), deque[tuple[int, Future[Batch]]]()
        busy, held = math.inf, self.ahead + THREADS + 2  # at an interpreter's exit THREADS is gone before this is over
        with ThreadPoolExecutor(THREADS, "xmodal-loader") as thread:
            try:
                while starts or waiting:
                    while starts and len(waiting) <= self.ahead and busy > WORTH_A_THREAD:
                        waiting.append((starts[0], thread.submit(self._batch, readers, epoch, starts.popleft())))
                    start, read = waiting.popleft() if waiting else (starts.popleft(), None)
                    batch = read.result() if read else self._batch(readers, epoch, start)
                    del read
                    given = time.perf_counter()
                    yield start, batch
                    del batch
                    busy = time.perf_counter() - given
            finally:
                for _, unread in waiting:
                    unread.cancel()
                self._buffers = buffers.trimmed(held)

    @property
    def _length(self) -> int:
        return next(iter(self._orders.values())).count

    def _starts(self) -> list[int]:
        """Start positions of the remaining batches, in a DataLoader's worker of its share."""
        stop = self._length - (self.batch_size - 1 if self.drop_last else 0)
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return list(range(self.cursor, stop, self.batch_size))[first::step]

    def _batch(self, readers: Mapping[str, Reader], epoch: int, start: int) -> Batch:
        first = epoch * self._length + start
        size = min(self.batch_size, self._length - start)
        share = -(-size // self._world)
        mine = first + self._rank * share
        streams = {}
        for number, (name, reader) in enumerate(readers.items()):
            order = replace(self._orders[name], seed=self.seed)
            samples, own_epoch = order.take(mine, mine + share), first // order.count
            random = SampleRandom(self.seed, own_epoch, samples, number)
            numbers = np.arange(first * self._candidates, (first + 1) * self._candidates if number == 0 else 0)
            others = replace(random, samples=numbers).integers(len(reader.examples.words), CANDIDATE)
            streams[name] = self._stream(reader, random, others)
        return Batch(streams, borrowed=share * self._world - size)

    def _stream(self, reader: Reader, draws: SampleRandom, others: Integers) -> Stream:
        items, captions, visual_rows = self._rows_of(reader.examples, draws)
        pairs = np.stack([visual_rows, np.arange(len(captions))], axis=1)
        captions = np.concatenate([captions, others])
        text_items = reader.examples.caption_items[captions]
        visual = self._to_device(reader.visual(items, draws), reader.buffers)
        text = reader.text(captions, draws)
        if reader.examples.sentences is not None:
            text = self._to_device(text, reader.buffers)
        visual_items, of_texts, captions_T, pairs_P2 = map(torch.from_numpy, (items, text_items, captions, pairs))
        stream = Stream(visual, text, visual_items, of_texts, captions_T, pairs_P2)
        if reader.classes is not None:
            of_visual, of_text = (torch.from_numpy(reader.classes[some]) for some in (items, text_items))
            stream = replace(stream, visual_classes=of_visual, text_classes=of_text)
        return stream.to(self._device) if self._device.type != "cpu" else stream

    def _rows_of(self, examples: Examples, draws: SampleRandom) -> tuple[Integers, Integers, Integers]:
        """Each visual row's item, each text row's caption, each caption's visual row."""
        samples = draws.samples
        rows = np.arange(len(samples))
        if self._neighbours is not None:
            return self._with_neighbours(examples, draws, self._neighbours.captions)
        if self.captions == "each":
            return examples.caption_items[samples], samples, rows
        counts, firsts = examples.caption_counts[samples], examples.caption_starts[samples]
        if self.captions == "one":
            return samples, firsts + draws.integers(counts, CAPTION), rows
        captions = np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        return samples, captions, np.repeat(rows, counts)

    def _with_neighbours(
        self, examples: Examples, draws: SampleRandom, count: int
    ) -> tuple[Integers, Integers, Integers]:
        """As many captions of each row, as processes gather equally many; an item with fewer repeats them."""
        items = examples.caption_items[draws.samples]
        starts, counts = examples.caption_starts[items], examples.caption_counts[items]
        places = neighbours(draws.samples - starts, counts, count, draws)
        return items, (starts[:, None] + places).ravel(), np.repeat(np.arange(len(items)), count)

    def _to_device(self, features: Padded, buffers: Buffers) -> Padded:
        """Moves features to the device, then the dtype: half precision travels as stored."""
        values = features.values.to(self._device)
        if self._dtype is None or values.dtype == self._dtype:
            return features if values is features.values else Padded(values, features.lengths)
        if values.device.type != "cpu" or self._dtype != torch.float32:
            return Padded(values.to(self._dtype), features.lengths)
        room = buffers.take(tuple(values.shape), np.dtype(np.float32))
        return Padded(torch.from_numpy(room).copy_(values), features.lengths)

    def _order(
        self, number: int, name: str, sampler: Neighbours | OnePerClass | Candidates | None
    ) -> Order | ClassOrder:
        reader = self._readers[name]
        each = self.captions == "each"
        if not isinstance(sampler, OnePerClass):
            return Order(len(reader.examples.words if each else reader.examples.ids), self.seed, number)
        if reader.classes is None:
            raise ValueError("one sample of every class needs a reader with classes")
        return ClassOrder(reader.classes[reader.examples.caption_items] if each else reader.classes, self.seed, number)

    def _check(self) -> None:
        if ANNOTATED not in self._readers or not self._readers.keys() <= {ANNOTATED, UNANNOTATED}:
            raise ValueError(f"streams are {ANNOTATED!r} and, if need be, {UNANNOTATED!r}, not {[*self._readers]}")
        if self.captions not in get_args(Captions):
            raise ValueError(f"captions are {', '.join(get_args(Captions))}, not {self.captions!r}")
        if self._neighbours is not None and self.captions != "each":
            raise ValueError(f"neighbours are of a pair: captions are 'each', not {self.captions!r}")
        if empty := [name for name, order in self._orders.items() if not order.count]:
            raise ValueError(f"the {empty[0]} stream has no samples")
        zero_or_more(seed=self.seed)
        if not 0 <= self._rank < self._world:
            raise ValueError(f"rank {self._rank} is not one of {self._world}")
        one_or_more(batch_size=self.batch_size, ahead=self.ahead)
        if self.batch_size % self._world:
            near = self.batch_size // self._world * self._world
            cure = f": take {near + self._world}{f' or {near}' if near else ''} as batch_size"
            if any(isinstance(order, ClassOrder) for order in self._orders.values()):
                cure = ", and they are one of each class"
            raise UserError(f"{self.batch_size} samples a step cannot be shared equally by {self._world} ranks{cure}")
        if not len(self):
            raise ValueError(f"{self._length} samples are less than one batch of {self.batch_size}")
