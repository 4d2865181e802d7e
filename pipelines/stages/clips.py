"""The clips stage: a run of pooled ResNet features of every clip, a row a sample.

A frame of several samples is seen once, its row repeated. A clip without frames is a failure without rows, which
readers refuse.
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
from pipelines.stages._media import (
    PictureExtractor,
    ResNetStageConfig,
    check_weights,
    resnet_extractor,
    rows_of,
    with_weights,
)
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.frame_store import FrameStore
from xmodal.media.frame_times import PASSING
from xmodal.media.images import UnreadableImage
from xmodal.root.outputs import Output

VERSION = 2
SAMPLES = 29  # of a clip of 3.6 seconds by default: for estimates


@dataclass(frozen=True)
class ClipsConfig(ResNetStageConfig):
    """A shard's length may change the last bits."""

    output: Literal["grid", "pooled"] = "pooled"
    items_per_shard: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output != "pooled":
            raise ValueError("a frame of a clip has one row: its output is pooled")
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, ragged=True, items_per_shard=self.items_per_shard)


def estimate(config: ClipsConfig, items: int, before: Mapping[str, Output]) -> float:
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
    check=check_weights,
    estimate=estimate,
    small={"network": "resnet18", "weights": "random:0", "resize": 32, "crop": 32},
)


def make(config: ClipsConfig, needs: Needs) -> Stage[ClipsConfig, Any]:
    config, file, resources = with_weights(config, needs)
    stage = array_stage(STAGE.name, config, (needs["frames"],), VERSION, _planned, partial(_open, file))
    return replace(stage, resources=resources, passing=PASSING)


def _planned(config: ClipsConfig, inputs: Inputs) -> PlannedArray:
    """A shard reads ids of clips without frames, and checksums of the others' files."""
    (frames,) = inputs
    store, size = FrameStore(frames), frames.config["items_per_shard"]
    files = {unit.name: sorted((name, sha256) for name, (_, sha256) in unit.files.items()) for unit in frames.units()}

    def reads(clips: range) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        absent = tuple(id for id in store.ids[clips.start : clips.stop] if id not in store)
        units = (f"shard-{number:05d}" for number in range(clips.start // size, (clips.stop - 1) // size + 1))
        return absent, tuple(chain.from_iterable(files[unit] for unit in units))

    return PlannedArray(config.spec, store.ids, reads, {"frames": frames.config})


def _open(weights: Path | None, config: ClipsConfig, inputs: Inputs) -> ArrayWriter:
    extractor, frames = resnet_extractor(weights, config), FrameStore(inputs[0])
    empty = np.zeros((0, *config.spec.row_shape), config.dtype)

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        absent, _ = work.reads
        for id in absent:
            sink.fail(id, "absent", "it has no frames")
        lost = dict[str, UnreadableImage]()
        rows = write_items(sink, config.spec, work.rows, _runs(extractor, frames, work, lost, empty))
        for id, failure in lost.items():
            sink.fail(id, failure.kind, str(failure))
        return {"clips": len(work.ids) - len(absent) - len(lost), "rows": rows}

    return ArrayWriter(config.spec, extractor.provenance, fill)


def _refuse(reason: str) -> None:
    raise UnreadableImage(reason)


def _runs(
    extractor: PictureExtractor,
    frames: FrameStore,
    work: ArrayShard,
    lost: dict[str, UnreadableImage],
    empty: NDArray[Any],
) -> Iterator[NDArray[Any]]:
    """Clip by clip; batches have frames of several."""
    lengths = {id: 0 if id in work.reads[0] else len(frames.starts_us(id)) for id in work.ids}

    def pictures() -> Iterator[NDArray[Any] | None]:
        for id in work.ids:
            for jpeg in frames.jpegs(id) if lengths[id] else ():
                try:
                    yield extractor.see(jpeg, _refuse)
                except UnreadableImage as failure:  # such as too narrow for the network, where it kept its size
                    lost.setdefault(id, failure)
                    yield None

    rows = chain.from_iterable(rows_of(pictures(), extractor))
    for id in work.ids:
        own = list(islice(rows, lengths[id]))
        yield np.stack(own)[frames.frame_of_sample(id)] if own and id not in lost else empty
