"""What a training step or a tile of evaluation reads, and the loader that reads it straight from the store.

Shapes: B rows, L positions, V visual rows, T text rows, P pairs.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from operator import index
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.utils.data import IterableDataset, get_worker_info

from xmodal.arrays import LINE
from xmodal.codes import Codes, shifted
from xmodal.dataset import Examples
from xmodal.features import FeatureStore
from xmodal.models import Features, OnePerClass, Tokens
from xmodal.order import ClassOrder, Draws, Order, evaluation_frames, training_frames, training_shifts
from xmodal.text import UNKNOWN
from xmodal.trouble import Trouble

ANNOTATED, UNANNOTATED = "annotated", "unannotated"


@dataclass(frozen=True, eq=False)
class Padded:
    """Items of unequal length in one tensor; what lies beyond an item's length means nothing, and models must mask it.

    Every item is a sequence of positions: tokens (B, L), regions or frames (B, L, D); an item that is one vector, such
    as a Fisher vector, is a sequence of one. `lengths` stays on the host, where packing a recurrent input needs it.
    """

    values: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim < 2:
            raise ValueError(f"values must be (rows, positions, ...), not {tuple(self.values.shape)}")
        if self.lengths.shape != self.values.shape[:1] or self.lengths.dtype != torch.int64 or _on_device(self.lengths):
            raise ValueError(f"lengths must be {self.values.shape[0]} int64 on the host, one for each row of values")
        lengths = self.lengths.numpy()
        if lengths.min(initial=1) < 1 or lengths.max(initial=1) > self.values.shape[1]:
            row = int(np.flatnonzero((lengths < 1) | (lengths > self.values.shape[1]))[0])
            raise ValueError(f"row {row} has length {lengths[row]}; it must be in 1..{self.values.shape[1]}")

    @classmethod
    def of(cls, arrays: Sequence[NDArray[Any]]) -> "Padded":
        """Copies arrays of shape (length, ...), with padding of zeros, which is also the padding token."""
        _check_alike(arrays)
        lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
        values = np.zeros((len(arrays), int(lengths.max()), *arrays[0].shape[1:]), arrays[0].dtype)
        values[np.arange(values.shape[1]) < lengths[:, None]] = np.concatenate(arrays)
        return cls(torch.from_numpy(values), torch.from_numpy(lengths))

    @classmethod
    def whole(cls, values: Tensor) -> "Padded":
        """Rows without padding, (B, L, ...): grids, a fixed number of regions, dense texts with L = 1."""
        return cls(values, torch.from_numpy(np.full(values.shape[0], values.shape[1])))

    @property
    def mask(self) -> Tensor:
        """(B, L), true where a position is real."""
        positions_L = torch.arange(self.values.shape[1], device=self.values.device)
        return positions_L < self.lengths.to(self.values.device)[:, None]

    def average(self) -> Tensor:
        """(B, D): the mean of each row's real positions."""
        mask_BL = self.mask
        real_BLD = self.values.masked_fill(~mask_BL[..., None], 0)
        return real_BLD.sum(dim=1) / mask_BL.sum(dim=1, keepdim=True)

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: slice | Tensor) -> "Padded":
        """The same width for any rows, so that a tile computes what the whole would."""
        return Padded(self.values[rows], self.lengths[rows.cpu() if isinstance(rows, Tensor) else rows])

    def to(self, device: torch.device | str) -> "Padded":
        return Padded(self.values.to(device), self.lengths)


@dataclass(frozen=True, eq=False)
class Stream:
    """Visual rows, text rows, and which of them belong together.

    Rows need not be aligned: a batch may bring several captions an image, many regions for a phrase, or unpaired rows
    among which a model mines its negatives. An item or caption is named by its position in the stream's view: these run
    from 0 without gaps, so a classifier over all training items can use them as its labels.
    """

    visual: Padded
    text: Padded
    visual_items: Tensor  # (V,)
    text_items: Tensor  # (T,)
    captions: Tensor  # (T,)
    positives: Tensor  # (P, 2): visual row, text row
    negatives: Tensor | None = None  # (P, 2): pairs known not to match, where being no positive does not tell (regions)
    visual_classes: Tensor | None = None  # (V,): classes, identities, coreference chains
    text_classes: Tensor | None = None  # (T,)

    def __post_init__(self) -> None:
        rows = {"visual": len(self.visual), "text": len(self.text), "captions": len(self.text)}
        for name, value in self._ids():
            if value.shape != (rows[name.split("_")[0]],) or value.dtype != torch.int64:
                raise ValueError(
                    f"{name} must be {rows[name.split('_')[0]]} int64, not {tuple(value.shape)} {value.dtype}"
                )
        for pairs in (self.positives, self.negatives):
            if pairs is not None:
                _check_pairs(pairs, len(self.visual), len(self.text))

    @classmethod
    def paired(
        cls, visual: Padded, text: Padded, items: Tensor, captions: Tensor, classes: Tensor | None = None
    ) -> "Stream":
        """The usual stream: row i of the text belongs to row i of the visual side."""
        if len(visual) != len(text):
            raise ValueError(f"{len(visual)} visual rows cannot be paired with {len(text)} texts row by row")
        positives_P2 = torch.arange(len(text))[:, None].expand(-1, 2)
        return cls(visual, text, items, items, captions, positives_P2, None, classes, classes)

    def to(self, device: torch.device | str) -> "Stream":
        present = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in present.items() if value is not None})

    def _ids(self) -> list[tuple[str, Tensor]]:
        names = ("visual_items", "text_items", "captions", "visual_classes", "text_classes")
        return [(name, getattr(self, name)) for name in names if getattr(self, name) is not None]


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's data. The un-annotated stream has texts that no person wrote, and numbers of its own for items."""

    streams: Mapping[str, Stream]
    progress: float = 0.0  # how much of the whole training is done, 0..1; schedules inside an objective go by it
    borrowed: int = 0  # samples of the next epoch, the last ones over all ranks: `together.gather` leaves them out

    def __post_init__(self) -> None:
        if ANNOTATED not in self.streams or not self.streams.keys() <= {ANNOTATED, UNANNOTATED}:
            raise ValueError(
                f"streams must be {ANNOTATED!r} and, if need be, {UNANNOTATED!r}, not {sorted(self.streams)}"
            )
        if not 0.0 <= self.progress <= 1.0:
            raise ValueError(f"progress must be in 0..1, not {self.progress}")

    def to(self, device: torch.device | str) -> "Batch":
        return replace(self, streams={name: stream.to(device) for name, stream in self.streams.items()})


WHOLE_CLIPS = Features(stage="")  # of `Features` a reader looks at the frames alone


@dataclass(frozen=True, eq=False)
class Reader:
    """Features and words of examples as a model takes them.

    `frames` says how many of a clip, and by which rule; `tokens` how long a caption is, and what training leaves out,
    or that it is a code.
    """

    examples: Examples
    store: FeatureStore
    frames: Features = WHOLE_CLIPS
    tokens: Tokens | Codes | None = None
    classes: NDArray[np.int64] | None = None  # (items,)
    buffers: "Buffers" = field(default_factory=lambda: Buffers(pinned=False))

    def __post_init__(self) -> None:
        if self.frames.frames is not None and not self.store.spec.ragged:
            raise Trouble(f"{self.store.output.where} holds no clips of which to take {self.frames.frames} frames")
        if not self.store.spec.row_shape:
            raise Trouble(f"{self.store.output.where} has single numbers, which are no features of positions")

    def visual(
        self,
        items: NDArray[np.int64] | slice,
        draws: Draws | None = None,
        samples: NDArray[np.int64] | None = None,
    ) -> Padded:
        """A row of the store is a sequence of positions: a grid is flattened, a vector is a sequence of one.

        With `draws` the frames of a clip are those of training, drawn for each of `samples`.
        """
        rows = self.examples.rows[items]
        if not self.store.spec.ragged:
            values = self.store.take(rows, self._room(len(rows)))
            return Padded.whole(torch.from_numpy(values.reshape(len(rows), -1, values.shape[-1])))
        lengths, count = self._lengths(rows), self.frames.frames
        if count is None:
            values = self.store.take_padded(rows, None, self._room(len(rows), int(lengths.max(initial=0))))
            return Padded(torch.from_numpy(values), torch.from_numpy(lengths))
        if draws is None or samples is None:
            places = evaluation_frames(lengths, count, self.frames.rule, self.frames.ends)
        else:
            places = training_frames(lengths, count, self.frames.rule, draws, samples)
        return Padded.whole(torch.from_numpy(self.store.take_padded(rows, places, self._room(*places.shape))))

    def text(self, captions: NDArray[np.int64] | slice, draws: Draws | None = None) -> Padded:
        """Ids of words (T, L), or vectors (T, 1, D)."""
        whole = range(len(self.examples.words))
        places = np.asarray(whole[captions], np.int64) if isinstance(captions, slice) else captions
        if (sentences := self.examples.sentences) is not None:
            room = self.buffers.take((len(places), *sentences.spec.row_shape), np.dtype(sentences.spec.dtype))
            return Padded.whole(torch.from_numpy(sentences.take(self.examples.words.numbers[places], room))[:, None])
        tokens = self.tokens
        if isinstance(tokens, Codes):
            return self._codes(places, tokens, draws)
        thinning = draws if tokens is not None and (tokens.marked or tokens.deleted) else None
        if tokens is None or (tokens.longest is None and thinning is None):
            return Padded(*map(torch.from_numpy, self.examples.words.padded(places)))
        words = [self.examples.words[place] for place in places.tolist()]
        if tokens.longest is not None:
            words = [shortened(some, tokens.longest) for some in words]
        if thinning is not None:
            chance = [np.random.default_rng([thinning.seed, thinning.epoch, place]) for place in places.tolist()]
            words = [thinned(some, tokens, one) for some, one in zip(words, chance, strict=True)]
        return Padded.of(words)

    def _codes(self, captions: NDArray[np.int64], codes: Codes, draws: Draws | None) -> Padded:
        codes_TL, counts_T = self.examples.words.padded(captions, codes.length)
        if codes.shifted and draws is not None:
            codes_TL = shifted(codes_TL, training_shifts(counts_T, codes.length, draws, captions))
        return Padded.whole(torch.from_numpy(codes_TL))

    def _lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self.store.lengths(rows)
        if not lengths.all():
            id = self.store.ids[rows[lengths == 0][0]]
            raise Trouble(f"{self.store.output.where}: {id!r} has nothing to read: its {self.store.spec.name} are none")
        return lengths

    def _room(self, *shape: int) -> NDArray[Any]:
        return self.buffers.take((*shape, *self.store.spec.row_shape), np.dtype(self.store.spec.dtype))


def shortened(words: NDArray[np.int32], longest: int) -> NDArray[np.int32]:
    """The first words; <start> and <end> are not counted, and stay."""
    return words if len(words) - 2 <= longest else np.concatenate([words[: longest + 1], words[-1:]])


def thinned(words: NDArray[np.int32], tokens: Tokens, chance: np.random.Generator) -> NDArray[np.int32]:
    """Some words become <unk>, a share of all is then deleted; not <start> or <end> (docs/models.md#pcme-training)."""
    inner = words[1:-1].copy()
    inner[chance.random(len(inner)) < tokens.marked] = UNKNOWN
    kept = np.sort(chance.permutation(len(inner))[int(tokens.deleted * len(inner)) :])
    return np.concatenate([words[:1], inner[kept], words[-1:]])


class Buffers:
    """Memory for batches, used again as soon as nobody can see it any more, and never before.

    What costs most in a large fresh array is the kernel's clearing of its pages. A tensor made by `torch.from_numpy`
    holds the array that it shows: an array that only this class holds is free.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned, self._all, self._lock = pinned, list[NDArray[np.uint8]](), Lock()

    def __reduce__(self) -> tuple[type["Buffers"], tuple[bool]]:
        return Buffers, (self._pinned,)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = math.prod(shape) * dtype.itemsize
        with self._lock:  # until it is seen again by the caller
            room = self._free(size)
            start = -room.ctypes.data % LINE
            return room[start : start + size].view(dtype).reshape(shape)

    def kept(self, most: int) -> "Buffers":
        """What somebody holds beyond so many is no longer ours."""
        del self._all[most:]
        return self

    def _free(self, size: int) -> NDArray[np.uint8]:
        for place in range(len(self._all)):
            if sys.getrefcount(self._all[place]) == _OURS_ALONE:
                if len(self._all[place]) < size + LINE:
                    self._all[place] = self._new(size)
                return self._all[place]
        self._all.append(self._new(size))
        return self._all[-1]

    def _new(self, size: int) -> NDArray[np.uint8]:
        if not self._pinned:
            return np.empty(size + LINE, np.uint8)  # in huge pages, which torch does not ask for
        memory: NDArray[np.uint8] = torch.empty(size + LINE, dtype=torch.uint8, pin_memory=True).numpy()
        return memory


THREADS = 2  # one copies rows while the other looks up words
WORTH_A_THREAD = 0.0002  # seconds of work on a batch: to have a thread read meanwhile costs about as much
_OURS_ALONE = 2  # references: the list's, and the question's own

Captions = Literal["each", "one", "all"]


class Loader(IterableDataset[Batch]):
    """Batches of a training, straight from the store: read ahead by threads, into memory that is used again.

    A sample is a caption with its item ("each"), an item with one of its captions, drawn anew every epoch ("one"), or
    an item with all of them ("all"). All samples come once an epoch, in an order that only the seed decides.
    `batch_size` counts the samples of a step over all ranks: each of `world` gets an equal part of the same batches, so
    more or fewer processes go on alike. Only where the last, shorter batch of an epoch cannot be shared equally does it
    borrow up to world - 1 samples of the next epoch, and says how many (`Batch.borrowed`). Several streams advance
    together; an epoch is one of the first.

    `state_dict` is seed, epoch and cursor: samples of the epoch that were handed out. An iteration that was broken off
    goes on there; one that ended is followed by the next epoch. With `torch.utils.data.DataLoader(loader,
    batch_size=None, num_workers=2)` each worker makes every other batch, in a copy of this loader that begins where
    this one is: call `set_epoch` before each epoch then, also where workers are persistent, and do not ask this one
    where they are. The threads here are faster than such workers.
    """

    def __init__(
        self,
        streams: Reader | Mapping[str, Reader],
        batch_size: int,
        *,
        captions: Captions = "each",
        sampler: OnePerClass | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        ahead: int = 2,
    ) -> None:
        """rank and world are torch.distributed's unless given; values keep the store's dtype unless one is given."""
        self.batch_size, self.captions, self.drop_last, self.ahead = batch_size, captions, drop_last, ahead
        self._device, self._dtype = torch.device(device), dtype
        self._rank, self._world = _place_among(rank, world)
        self._readers = {ANNOTATED: streams} if isinstance(streams, Reader) else dict(streams)
        self._check_streams()
        self._told, self._process = _shared(), os.getpid()
        self._go(seed, 0, 0)
        self._buffers: Buffers | None = None  # those of an iteration that is over
        self._orders = {name: self._order(number, name, sampler) for number, name in enumerate(self._readers)}
        first = self._orders[next(iter(self._orders))]
        self.batch_size = first.batch if isinstance(first, ClassOrder) else batch_size
        self._check()

    def __len__(self) -> int:
        """Batches of a whole epoch, for every rank."""
        return self._length // self.batch_size if self.drop_last else -(-self._length // self.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "epoch": self.epoch, "cursor": self.cursor}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        try:
            seed, epoch, cursor = (index(state[name]) for name in ("seed", "epoch", "cursor"))
            is_place = min(seed, epoch, cursor) >= 0 and cursor <= self._length
        except (KeyError, TypeError):
            is_place = False
        if not is_place:
            raise ValueError(f"{dict(state)} is no place in epochs of {self._length:,} samples")
        self._go(seed, epoch, cursor)

    def set_epoch(self, epoch: int) -> None:
        """To the beginning of an epoch, unless that is where the loader is already."""
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epochs are counted from 0, and {epoch!r} is none")
        self._go(self.seed, epoch, self.cursor if epoch == self.epoch else 0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._told.is_shared():  # type: ignore[no-untyped-call]  # no worker's copy, but one of its own
            self._told, self._process = _shared(), os.getpid()
            self._go(self.seed, self.epoch, self.cursor)

    def __iter__(self) -> Iterator[Batch]:
        if get_worker_info() is not None:  # what it was at before, it may never have finished
            self._go(*self._told.tolist())
        epoch = self.epoch
        for start, batch in self._read_ahead(epoch):
            after = start + self.batch_size
            is_last = after + (self.batch_size - 1 if self.drop_last else 0) >= self._length
            self._go(self.seed, *((epoch + 1, 0) if is_last else (epoch, after)))
            yield batch
            del batch  # its memory is for one of the next, not to be held while they are awaited
        self._go(self.seed, epoch + 1, 0)  # also where no batch was left

    def _go(self, seed: int, epoch: int, cursor: int) -> None:
        """Workers of a DataLoader, which may outlive an epoch, read where to begin; they tell nobody."""
        self.seed, self.epoch, self.cursor = seed, epoch, cursor
        if get_worker_info() is None:
            if self._process != os.getpid():  # it was handed to another process, whose workers are its own
                self._told, self._process = _shared(), os.getpid()
            self._told.numpy()[:] = seed, epoch, cursor

    def _read_ahead(self, epoch: int) -> Iterator[tuple[int, Batch]]:
        """Two iterations at once do not share buffers; one after the other they do, as fresh memory costs much.

        Who comes back at once leaves nothing to read meanwhile: the next batch is then made here, in the memory of the
        last, which the processor still has in its cache.
        """
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
                self._buffers = buffers.kept(held)

    @property
    def _length(self) -> int:
        return next(iter(self._orders.values())).count

    def _size(self, start: int) -> int:
        return min(self.batch_size, self._length - start)

    def _starts(self) -> list[int]:
        """Where the batches that are left begin; of them, those of this worker of a DataLoader."""
        stop = self._length - (self.batch_size - 1 if self.drop_last else 0)
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return list(range(self.cursor, stop, self.batch_size))[first::step]

    def _batch(self, readers: Mapping[str, Reader], epoch: int, start: int) -> Batch:
        first = epoch * self._length + start
        size = self._size(start)
        share = -(-size // self._world)
        mine = first + self._rank * share
        streams = {}
        for number, (name, reader) in enumerate(readers.items()):
            order = replace(self._orders[name], seed=self.seed)
            samples, own_epoch = order.take(mine, mine + share), first // order.count
            streams[name] = self._stream(reader, samples, Draws(self.seed, own_epoch, number))
        return Batch(streams, borrowed=share * self._world - size)

    def _stream(self, reader: Reader, samples: NDArray[np.int64], draws: Draws) -> Stream:
        items, captions, visual_rows = self._chosen(reader.examples, samples, draws)
        text_items = reader.examples.caption_items[captions]
        pairs = np.stack([visual_rows, np.arange(len(captions))], axis=1)
        visual, text = self._placed(reader.visual(items, draws, samples), reader.buffers), reader.text(captions, draws)
        text = self._placed(text, reader.buffers) if reader.examples.sentences is not None else text
        stream = Stream(visual, text, *map(torch.from_numpy, (items, text_items, captions, pairs)))
        if reader.classes is not None:
            of_visual, of_text = (torch.from_numpy(reader.classes[some]) for some in (items, text_items))
            stream = replace(stream, visual_classes=of_visual, text_classes=of_text)
        return stream.to(self._device) if self._device.type != "cpu" else stream

    def _chosen(
        self, examples: Examples, samples: NDArray[np.int64], draws: Draws
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Items, one for each visual row; captions, one for each text row; and the visual row of each caption."""
        rows = np.arange(len(samples))
        if self.captions == "each":
            return examples.caption_items[samples], samples, rows
        counts, firsts = examples.caption_counts[samples], examples.caption_starts[samples]
        if self.captions == "one":
            return samples, firsts + draws.below(counts, samples, which=2), rows
        captions = np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        return samples, captions, np.repeat(rows, counts)

    def _placed(self, features: Padded, buffers: Buffers) -> Padded:
        """On the device, as the dtype asked for; what is stored in half precision also travels in it."""
        values = features.values.to(self._device)
        if self._dtype is None or values.dtype == self._dtype:
            return features if values is features.values else Padded(values, features.lengths)
        if _on_device(values) or self._dtype != torch.float32:
            return Padded(values.to(self._dtype), features.lengths)
        room = buffers.take(tuple(values.shape), np.dtype(np.float32))
        return Padded(torch.from_numpy(room).copy_(values), features.lengths)

    def _order(self, number: int, name: str, sampler: OnePerClass | None) -> Order | ClassOrder:
        reader = self._readers[name]
        each = self.captions == "each"
        if sampler is None:
            return Order(len(reader.examples.words if each else reader.examples.ids), self.seed, number)
        if reader.classes is None:
            raise ValueError("one sample of every class needs the reader's classes")
        return ClassOrder(reader.classes[reader.examples.caption_items] if each else reader.classes, self.seed, number)

    def _check_streams(self) -> None:
        if ANNOTATED not in self._readers or not self._readers.keys() <= {ANNOTATED, UNANNOTATED}:
            raise ValueError(f"streams are {ANNOTATED!r} and, if need be, {UNANNOTATED!r}, not {[*self._readers]}")
        if self.captions not in get_args(Captions):
            raise ValueError(f"captions are {', '.join(get_args(Captions))}, not {self.captions!r}")

    def _check(self) -> None:
        if empty := [name for name, order in self._orders.items() if not order.count]:
            raise ValueError(f"the {empty[0]} stream has no samples")
        if self.seed < 0:
            raise ValueError(f"the seed is 0 or more, not {self.seed}")
        if type(self.batch_size) is not int or self.batch_size < 1 or self.ahead < 1:
            raise ValueError(f"batch_size {self.batch_size} and ahead {self.ahead} must be 1 or more")
        if self.batch_size % self._world and any(isinstance(order, ClassOrder) for order in self._orders.values()):
            raise ValueError(
                f"one of each of {self.batch_size} classes cannot be shared equally by {self._world} ranks"
            )
        if self.batch_size % self._world:
            near = self.batch_size // self._world * self._world
            raise ValueError(
                f"{self.batch_size} samples a step cannot be shared equally by {self._world} ranks: "
                f"take {near + self._world}" + f" or {near}" * bool(near)
            )
        if not len(self):
            raise ValueError(f"{self._length} samples are less than one batch of {self.batch_size}")


def _shared() -> Tensor:
    """Seed, epoch and cursor, where forked and spawned processes see the same."""
    place = torch.zeros(3, dtype=torch.int64, device="cpu")
    place.share_memory_()  # type: ignore[no-untyped-call]
    return place


def _place_among(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise ValueError("rank and world are given both or not at all")
    together = distributed.is_available() and distributed.is_initialized()
    rank = (distributed.get_rank() if together else 0) if rank is None else rank
    world = (distributed.get_world_size() if together else 1) if world is None else world
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is not one of {world}")
    return rank, world


def _check_alike(arrays: Sequence[NDArray[Any]]) -> None:
    if not arrays:
        raise ValueError("no arrays to pad")
    first = arrays[0]
    if len({(array.shape[1:], array.dtype) for array in arrays}) == 1 and first.ndim and all(map(len, arrays)):
        return
    for row, array in enumerate(arrays):
        if array.ndim == 0 or len(array) == 0:
            raise ValueError(f"array {row} has no positions (shape {array.shape}); an item needs at least one")
        if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
            here, there = f"{array.shape[1:]} {array.dtype}", f"{first.shape[1:]} {first.dtype}"
            raise ValueError(f"array {row} has positions of {here}, array 0 of {there}")


def _check_pairs(pairs: Tensor, visual_rows: int, text_rows: int) -> None:
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"pairs must be (pairs, 2) int64, not {tuple(pairs.shape)} {pairs.dtype}")
    if _on_device(pairs):  # looking at values would wait for it, and they were looked at on the host
        return
    visual, text = pairs.numpy().T  # whose least and largest take a third of what tensors' comparisons take
    if min(visual.min(initial=0), text.min(initial=0)) < 0 or not (
        visual.max(initial=-1) < visual_rows and text.max(initial=-1) < text_rows
    ):
        raise ValueError(f"a pair points outside the {visual_rows} visual and {text_rows} text rows")


def _on_device(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"
