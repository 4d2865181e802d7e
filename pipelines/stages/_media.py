"""Items and their sealed media, and stages that make a row of every picture.

A picture that is absent or does not decode is a failure and a row of zeros, which readers refuse. A truncated one is a
failure too, but its row is made of what remains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.picture_decoder import DEADLINE, SquareDecoder
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages import Needs, Pairs
from pipelines.stages._arrays import ArrayShard, ArrayWork, ArrayWriter, PlannedArray, array_stage, write_items
from xmodal.features.networks import ResNet, load, weights_sha256
from xmodal.media.frame_times import PASSING
from xmodal.media.images import OnTruncated, UnreadableImage, normalised
from xmodal.raw.archives import Archives, MissingMedia, archive_of
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import fingerprint, since
from xmodal.root.outputs import TRUNCATED, Output
from xmodal.root.sealed_sets import read_lock

Checksums = tuple[tuple[str, str | None], ...]  # of files; None where one is absent
C = TypeVar("C")
R = TypeVar("R", bound=ResNet)


@dataclass(frozen=True, eq=False)
class PictureExtractor:
    """Decodes pictures, and turns batches into rows; a worker loads it once."""

    see: Callable[[bytes, OnTruncated], NDArray[Any]]  # raises UnreadableImage
    rows: Callable[[NDArray[Any]], NDArray[Any]]
    blank: NDArray[Any]  # in place of a picture that cannot be had
    batch_size: int
    provenance: Mapping[str, object]
    expect: Callable[[bytes], None] = lambda data: None  # hears of the picture that `see` gets after the next one


def picture_stage(
    name: str, config: C, needs: Needs, version: int, opened: Callable[[C], PictureExtractor]
) -> Stage[C, ArrayWork]:
    return media_stage(name, config, needs, version, partial(_open, opened))


def media_stage(
    name: str, config: C, needs: Needs, version: int, opened: Callable[[C, Inputs], ArrayWriter]
) -> Stage[C, ArrayWork]:
    """An array with a row, or a run of rows, an item; the config has its `spec`, and a field `items` to fill in."""
    items = needs.items
    assert {"items", "spec"} <= {*dir(config)}, f"{type(config).__name__} needs `spec` and `items: str = given()`"
    late = next((later for (earlier, _), (later, _) in pairwise(items) if earlier >= later), None)
    assert late is None, f"items ascend by id and have one row each, but {late!r} comes too late"
    config = replace(config, items=fingerprint(items))  # type: ignore[type-var]
    stage = array_stage(name, config, (needs["media"],), version, partial(_planned, items), opened)
    return replace(stage, passing=PASSING)


def with_weights(config: R, needs: Needs) -> tuple[R, Path | None, Resources]:
    """The config with the checksum of the user's file, if any; that file; what a worker needs."""
    file = needs.files.get("weights")
    config = replace(config, weights=f"sha256:{weights_sha256(file)}") if file else config
    return config, file, Resources(gpus=float(config.device == "cuda"))


def check_weights(config: ResNet, files: Mapping[str, Path]) -> None:
    if "weights" not in files:
        config.check_weights()


@dataclass(frozen=True)
class ResNetStageConfig(ResNet):
    deadline: float = since("0.2", DEADLINE)  # seconds for one picture


def resnet_extractor(weights: Path | None, config: ResNetStageConfig) -> PictureExtractor:
    network, decoder = load(config, weights), SquareDecoder(config.resize, config.crop, config.deadline)
    gray = np.zeros((3, config.crop, config.crop), np.float32)
    return PictureExtractor(
        lambda data, cut: normalised(decoder.pixels(data, cut)),
        network,
        gray,
        config.batch_size,
        network.provenance(),
        decoder.expect,
    )


def bytes_of_rows(config: Any, items: int, before: Mapping[str, Output]) -> float:
    """Estimates an array with a row an item."""
    return float(items * config.spec.row_bytes)


def _planned(items: Pairs, config: Any, inputs: Inputs) -> PlannedArray:
    """A shard reads its media, and the files that these lie in."""
    sealed = checksums(inputs[0])

    def reads(rows: range) -> tuple[tuple[str, ...], Checksums]:
        media = tuple(path for _, path in items[rows.start : rows.stop])
        return media, files_of(sealed, media)

    return PlannedArray(config.spec, tuple(id for id, _ in items), reads)


@lru_cache(maxsize=4)
def checksums(sealed: Output) -> Mapping[str, str | None]:
    return {locked.path: locked.sha256 for locked in read_lock(sealed)}


def files_of(sealed: Mapping[str, str | None], media: Iterable[str]) -> Checksums:
    """The files that these media are, or lie in, with their checksums."""
    files = sorted({each if each in sealed else archive_of(each) for each in media})
    return tuple((file, sealed.get(file)) for file in files)


def _open(opened: Callable[[Any], PictureExtractor], config: Any, inputs: Inputs) -> ArrayWriter:
    extractor, archives = opened(config), Archives(raw_of(inputs[0]))

    def read(id: str, media: str, sink: Sink) -> bytes | None:
        try:
            return archives.read(media)
        except MissingMedia as missing:
            sink.fail(id, "absent", str(missing))
            return None

    def see(id: str, data: bytes, sink: Sink) -> NDArray[Any] | None:
        cut = list[str]()
        try:
            picture = extractor.see(data, cut.append)
        except UnreadableImage as unreadable:
            sink.fail(id, unreadable.kind, str(unreadable))
            return None
        for reason in cut:
            sink.fail(id, TRUNCATED, reason)
        return picture

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        seen = 0

        def pictures() -> Iterator[NDArray[Any] | None]:
            nonlocal seen
            read_all = (read(id, media, sink) for id, media in zip(work.ids, work.reads[0], strict=True))
            for id, (data, following) in zip(work.ids, pairwise(chain(read_all, [None])), strict=True):
                if data is not None and following is not None:
                    extractor.expect(following)
                picture = None if data is None else see(id, data, sink)
                seen += picture is not None
                yield picture

        write_items(sink, config.spec, work.rows, rows_of(pictures(), extractor))
        return {"rows": seen}

    return ArrayWriter(config.spec, {**extractor.provenance, "items": config.items}, fill)


def rows_of(pictures: Iterator[NDArray[Any] | None], extractor: PictureExtractor) -> Iterator[NDArray[Any]]:
    """Rows batch by batch; zeros where there is no picture."""
    while batch := list(islice(pictures, extractor.batch_size)):
        rows = extractor.rows(np.stack([extractor.blank if picture is None else picture for picture in batch]))
        rows[[picture is None for picture in batch]] = 0
        yield rows
