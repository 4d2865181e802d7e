"""The clips stage: of every clip a run of pooled ResNet features, a row a sample, from the frames that were taken.

A frame that several samples show is seen once and its row repeated. Shards are the units. A batch has frames of several
clips, but of one shard: the bytes are the same for any number of workers. A clip without frames is a failure of its
unit and has no rows: readers refuse it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages._arrays import write_index, write_items
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import Extractor, ResNet, load, pixels, sha256_of
from xmodal.features.store import FeatureSpec, shard_ranges
from xmodal.media.images import UnreadableImage
from xmodal.root.outputs import Output

NAME, VERSION = "clips", 2


@dataclass(frozen=True)
class ClipsConfig(ResNet):
    """As of the resnet stage; a shard's length, too, may change the last bits."""

    output: Literal["grid", "pooled"] = "pooled"
    items_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output != "pooled":
            raise ValueError("of a frame of a clip there is one row: its output is pooled")
        _ = self.spec  # refuses a length that the array cannot have

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, ragged=True, items_per_shard=self.items_per_shard)


@dataclass(frozen=True)
class Index:
    """The work of the unit that says what the array is, whose its rows are, and how their frames were taken."""

    ids: tuple[str, ...]
    frames: Mapping[str, Any]


@dataclass(frozen=True)
class Shard:
    """The work: some clips, which of them have no frames, and the checksum of every file that frames are read from."""

    first: int
    ids: tuple[str, ...]
    absent: tuple[str, ...]
    sha256: tuple[tuple[str, str], ...]


def clips(
    frames: Stage[Any, Any] | Output, config: ClipsConfig, weights_file: Path | None = None
) -> Stage[ClipsConfig, Index | Shard]:
    """`weights_file` is a state_dict to use instead of the weights that the config names."""
    weights = config.weights if weights_file is None else f"sha256:{sha256_of(weights_file)}"
    resources = Resources(gpus=1.0 if config.device == "cuda" else 0.0)
    opened = partial(_open, weights_file)
    return Stage(NAME, replace(config, weights=weights), _plan, opened, (frames,), VERSION, resources, reuse=True)


def _plan(config: ClipsConfig, inputs: Inputs) -> Iterator[tuple[str, Index | Shard]]:
    (frames,) = inputs
    store, size = FrameStore(frames), frames.config["items_per_shard"]
    files = {unit.name: sorted((name, sha256) for name, (_, sha256) in unit.files.items()) for unit in frames.units()}
    yield "index", Index(store.ids, frames.config)
    for shard, clips in enumerate(shard_ranges(config.spec, len(store.ids))):
        ids = store.ids[clips.start : clips.stop]
        absent = tuple(id for id in ids if id not in store)
        units = (f"shard-{number:05d}" for number in range(clips.start // size, (clips.stop - 1) // size + 1))
        sha256 = tuple(chain.from_iterable(files[unit] for unit in units))
        yield f"shard-{shard:05d}", Shard(clips.start, ids, absent, sha256)


def _open(weights_file: Path | None, config: ClipsConfig, inputs: Inputs) -> Callable[[Index | Shard, Sink], Counts]:
    extractor, frames, spec = load(config, weights_file), FrameStore(inputs[0]), config.spec

    def write(work: Index | Shard, sink: Sink) -> Counts:
        if isinstance(work, Index):
            return write_index(sink, spec, work.ids, {**extractor.provenance(), "frames": work.frames})
        for id in work.absent:
            sink.fail(id, "absent", "it has no frames")
        clips, lost = range(work.first, work.first + len(work.ids)), list[str]()
        rows = write_items(sink, spec, clips, _runs(extractor, frames, work, sink, lost))
        return {"clips": len(work.ids) - len(work.absent) - len(lost), "rows": rows}

    return write


def _runs(extractor: Extractor, frames: FrameStore, work: Shard, sink: Sink, lost: list[str]) -> Iterator[NDArray[Any]]:
    """Clip by clip: each takes its frames' rows from the batches, which do not end where it does."""
    rows = _rows(extractor, (jpeg for id in work.ids if id not in work.absent for jpeg in frames.jpegs(id)))
    for id in work.ids:
        own = list(islice(rows, 0 if id in work.absent else len(frames.starts_us(id))))
        seen = [row for row, _ in own]
        if why := next((why for _, why in own if why), None):
            sink.fail(id, "unreadable", why)
            lost.append(id)
            seen = []
        empty = np.zeros((0, *extractor.config.spec.row_shape), extractor.config.dtype)
        yield np.stack(seen)[frames.frame_of_sample(id)] if seen else empty


def _rows(extractor: Extractor, jpegs: Iterator[bytes]) -> Iterator[tuple[NDArray[Any], str]]:
    """A row a frame, seen batch by batch; and why a frame cannot be seen, whose row means nothing."""
    seen = (_seen(jpeg, extractor.config) for jpeg in jpegs)
    while batch := list(islice(seen, extractor.config.batch_size)):
        yield from zip(extractor(np.stack([picture for picture, _ in batch])), (why for _, why in batch), strict=True)


def _seen(jpeg: bytes, config: ResNet) -> tuple[NDArray[np.float32], str]:
    """A frame may be too narrow for a network, where it kept its size; a blank one keeps its place in the batch."""
    try:
        return pixels(jpeg, config), ""
    except UnreadableImage as unreadable:
        return np.zeros((3, config.crop, config.crop), np.float32), str(unreadable)
