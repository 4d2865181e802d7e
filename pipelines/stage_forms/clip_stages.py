"""Stages that make a run of features of every clip, a row a sample of its frames.

A frame of several samples is seen once, its row repeated. A clip without frames, or with features that are not finite,
is a failure without rows, which readers refuse.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.engine.stage_kind import Needs
from pipelines.stage_forms.array_stages import (
    ArrayShard,
    ArrayWork,
    ArrayWriter,
    PlannedArray,
    array_stage,
    write_items,
    write_sources,
)
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stage_forms.media_stages import PictureExtractor, Seen, not_finite, rows_of
from xmodal.features.frame_store import FrameStore
from xmodal.features.zarr_arrays import all_finite
from xmodal.media.frame_times import PASSING
from xmodal.media.images import UnreadableImage
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output

SAMPLES = 29  # of a clip of 3.6 seconds by default: for estimates
C = TypeVar("C")


def clip_stage(
    name: str, config: C, needs: Needs, version: int, opened: Callable[[C], PictureExtractor]
) -> Stage[C, ArrayWork]:
    """A ragged array, whose `spec` the config has."""
    stage = array_stage(name, config, (needs["frames"],), version, _planned, partial(_open, opened))
    return replace(stage, passing=PASSING)


def bytes_of_samples(config: Any, items: int, before: Mapping[str, Output]) -> float:
    """Estimates an array with a row a sample."""
    frames = before.get("frames")
    samples = frames.totals["counts"]["samples"] if frames else items * SAMPLES
    return float(samples * config.spec.row_bytes)


def _planned(config: Any, inputs: Inputs) -> PlannedArray:
    """A shard reads ids of clips without frames, and checksums of the others' files."""
    (frames,) = inputs
    store, size = FrameStore(frames), frames.config["items_per_shard"]
    files = {unit.name: sorted((name, sha256) for name, (_, sha256) in unit.files.items()) for unit in frames.units()}

    def reads(clips: range) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        absent = tuple(id for id in store.ids[clips.start : clips.stop] if id not in store)
        units = (f"shard-{number:05d}" for number in range(clips.start // size, (clips.stop - 1) // size + 1))
        return absent, tuple(chain.from_iterable(files[unit] for unit in units))

    return PlannedArray(config.spec, store.ids, reads, {"frames": frames.config})


def _open(opened: Callable[[Any], PictureExtractor], config: Any, inputs: Inputs) -> ArrayWriter:
    extractor, frames, spec = opened(config), FrameStore(inputs[0]), config.spec
    empty = np.zeros((0, *spec.row_shape), spec.dtype)

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        absent, _ = work.reads
        sources = [None if id in absent else _looks(frames, id) for id in work.ids]
        found = {id: earlier.find(source, sink, spec) for id, source in zip(work.ids, sources, strict=True)}
        there = {id: row.values for id, row in found.items() if row} | dict.fromkeys(absent, empty)
        lost: dict[str, tuple[str, str]] = dict.fromkeys(absent, ("absent", "it has no frames"))
        rows = write_items(sink, spec, work.rows, _runs(extractor, frames, work.ids, there, lost, empty))
        write_sources(sink, work.ids, sources)
        lost |= {id: failure for id, row in found.items() if row for failure in row.failures}
        for id, (kind, reason) in lost.items():
            sink.fail(id, kind, reason)
        return {"clips": len(work.ids) - len(lost), "rows": rows}

    return ArrayWriter(spec, extractor.provenance, fill)


def _looks(frames: FrameStore, id: str) -> str:
    """The sha256 of all that is seen of a clip."""
    jpegs = [hashlib.sha256(jpeg).hexdigest() for jpeg in frames.jpegs(id)]
    return fingerprint([jpegs, frames.frame_of_sample(id).tolist()])


def _refuse(reason: str) -> None:
    raise UnreadableImage(reason)


def _runs(
    extractor: PictureExtractor,
    frames: FrameStore,
    ids: Sequence[str],
    there: Mapping[str, NDArray[Any]],
    lost: dict[str, tuple[str, str]],
    empty: NDArray[Any],
) -> Iterator[NDArray[Any]]:
    """Clip by clip; batches have frames of several that are not there yet."""
    lengths = {id: len(frames.starts_us(id)) for id in ids if id not in there}
    blank = np.zeros(empty.shape[1:], empty.dtype)

    def pictures() -> Iterator[Seen]:
        for id in lengths:
            for jpeg in frames.jpegs(id):
                try:
                    yield None, extractor.see(jpeg, _refuse)
                except UnreadableImage as failure:  # such as too narrow for the network, where it kept its size
                    lost.setdefault(id, (failure.kind, str(failure)))
                    yield blank, None

    rows = chain.from_iterable(rows_of(pictures(), extractor))
    for id in ids:
        if id in there:
            yield there[id]
        else:
            own = list(islice(rows, lengths[id]))
            if not all(map(all_finite, own)):
                lost.setdefault(id, not_finite(empty.dtype.name))
            yield empty if id in lost else np.stack(own)[frames.frame_of_sample(id)]
