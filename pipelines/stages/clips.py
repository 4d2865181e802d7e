"""The clips stage: a run of pooled ResNet features of every clip, a row a sample, from the frames that were taken.

A frame that several samples show is seen once and its row repeated. A batch has frames of several clips, but of one
shard. A clip without frames is a failure of its unit and has no rows: readers refuse it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stages import Needs, StageKind
from pipelines.stages._arrays import ArrayShard, ArrayWriter, PlannedArray, array_stage, write_items
from pipelines.stages._media import with_weights
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import Extractor, ResNet, load, pixels
from xmodal.media.images import UnreadableImage
from xmodal.root.outputs import Output

VERSION = 2
SAMPLES = 29  # of a clip of 3.6 seconds, sampled as by default: to make plans with


@dataclass(frozen=True)
class ClipsConfig(ResNet):
    """The network is set as for the resnet stage; a shard's length, too, may change the last bits."""

    output: Literal["grid", "pooled"] = "pooled"
    items_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output != "pooled":
            raise ValueError("a frame of a clip has one row: its output is pooled")
        _ = self.spec  # refuses a length that the array cannot have

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, ragged=True, items_per_shard=self.items_per_shard)


def estimate(config: ClipsConfig, items: int, before: Mapping[str, Output]) -> float:
    """By the samples that were taken, or as many as usual clips have."""
    frames = before.get("frames")
    samples = frames.totals["counts"]["samples"] if frames else items * SAMPLES
    return float(samples * config.spec.row_bytes)


STAGE = StageKind(
    name="clips",
    config=ClipsConfig,
    needs=("frames",),
    of="clip",
    files=("weights",),
    packages=("torch", "torchvision", "simplejpeg"),
    features=True,
    estimate=estimate,
    small={"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ClipsConfig, needs: Needs) -> Stage[ClipsConfig, Any]:
    config, file, resources = with_weights(config, needs)
    return array_stage(STAGE.name, config, (needs["frames"],), VERSION, _planned, partial(_open, file), resources)


def _planned(config: ClipsConfig, inputs: Inputs) -> PlannedArray:
    """A shard reads the frames of its clips: which have none, and the checksum of every file that has some of them."""
    (frames,) = inputs
    store, size = FrameStore(frames), frames.config["items_per_shard"]
    files = {unit.name: sorted((name, sha256) for name, (_, sha256) in unit.files.items()) for unit in frames.units()}

    def reads(clips: range) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        absent = tuple(id for id in store.ids[clips.start : clips.stop] if id not in store)
        units = (f"shard-{number:05d}" for number in range(clips.start // size, (clips.stop - 1) // size + 1))
        return absent, tuple(chain.from_iterable(files[unit] for unit in units))

    return PlannedArray(config.spec, store.ids, reads, {"frames": frames.config})


def _open(weights_file: Path | None, config: ClipsConfig, inputs: Inputs) -> ArrayWriter:
    extractor, frames = load(config, weights_file), FrameStore(inputs[0])

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        absent, _ = work.reads
        for id in absent:
            sink.fail(id, "absent", "it has no frames")
        lost = list[str]()
        rows = write_items(sink, config.spec, work.rows, _runs(extractor, frames, work, sink, lost))
        return {"clips": len(work.ids) - len(absent) - len(lost), "rows": rows}

    return ArrayWriter(config.spec, extractor.provenance(), fill)


def _runs(
    extractor: Extractor, frames: FrameStore, work: ArrayShard, sink: Sink, lost: list[str]
) -> Iterator[NDArray[Any]]:
    """Clip by clip: each takes its frames' rows from the batches, which do not end where it does."""
    absent, _ = work.reads
    rows = _rows(extractor, (jpeg for id in work.ids if id not in absent for jpeg in frames.jpegs(id)))
    for id in work.ids:
        own = list(islice(rows, 0 if id in absent else len(frames.starts_us(id))))
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
