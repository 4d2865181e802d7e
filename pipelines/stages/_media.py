"""Items and their sealed media, and stages that make a row of every picture.

A picture that is absent or does not decode is a failure and a row of zeros, which readers refuse. A truncated one is a
failure too, but its row is made of what remains.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.picture_decoder import DEADLINE, SquareDecoder
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages import Needs, Pairs
from pipelines.stages._arrays import (
    ArrayShard,
    ArrayWork,
    ArrayWriter,
    PlannedArray,
    array_stage,
    blocks_of,
    write_items,
    write_sources,
)
from pipelines.stages._earlier import EarlierRows
from xmodal.features.networks import ResNet, load, weights_sha256
from xmodal.media.frame_times import PASSING
from xmodal.media.images import OnTruncated, UnreadableImage, normalised
from xmodal.raw.archives import Archives, MissingMedia, archive_of
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import fingerprint, since
from xmodal.root.outputs import TRUNCATED, Output
from xmodal.root.sealed_sets import read_lock

Checksums = tuple[tuple[str, str | None], ...]  # of files; None where one is absent
BILLIONS = {"resnet18": 1.8, "resnet34": 3.6, "resnet50": 4.1, "resnet101": 7.8, "resnet152": 11.5}  # of operations
C = TypeVar("C")
R = TypeVar("R", bound=ResNet)


@dataclass(frozen=True, eq=False)
class PictureExtractor:
    """Decodes pictures, and turns batches into rows; a worker loads it once."""

    see: Callable[[bytes, OnTruncated], NDArray[Any]]  # raises UnreadableImage
    rows: Callable[[NDArray[Any]], NDArray[Any]]  # the same bits whatever else is in the batch
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
    """An array with a row, or a run of rows, an item; the config has its `spec`, and `items: str = listed()`."""
    items = needs.items
    assert {"items", "spec"} <= {*dir(config)}, f"{type(config).__name__} needs `spec` and `items: str = listed()`"
    late = next((later for (earlier, _), (later, _) in itertools.pairwise(items) if earlier >= later), None)
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
    return PictureExtractor(
        lambda data, cut: normalised(decoder.pixels(data, cut)),
        network,
        config.batch_size,
        network.provenance(),
        decoder.expect,
    )


def seconds_a_picture(config: ResNet) -> float:
    """Estimates one core's time; 0 for a GPU, on which nobody has measured it."""
    return 0.003 + 0.022 * BILLIONS[config.network] * (config.crop / 224) ** 2 if config.device == "cpu" else 0.0


def bytes_of_rows(config: Any, items: int, before: Mapping[str, Output]) -> float:
    """Estimates an array with a row an item."""
    return float(items * config.spec.row_bytes)


def _planned(items: Pairs, config: Any, inputs: Inputs) -> PlannedArray:
    """A shard reads its media, and the files that these lie in."""
    sealed = checksums(inputs[0])

    def reads(rows: range) -> tuple[tuple[str, ...], Checksums]:
        media = tuple(path for _, path in items[rows.start : rows.stop])
        return media, files_of(sealed, media)

    return PlannedArray(config.spec, tuple(id for id, _ in items), reads, {"items": config.items})


@lru_cache(maxsize=4)
def checksums(sealed: Output) -> Mapping[str, str | None]:
    return {locked.path: locked.sha256 for locked in read_lock(sealed)}


def files_of(sealed: Mapping[str, str | None], media: Iterable[str]) -> Checksums:
    """The files that these media are, or lie in, with their checksums."""
    files = sorted({each if each in sealed else archive_of(each) for each in media})
    return tuple((file, sealed.get(file)) for file in files)


def rows_of(
    looked_up: Iterable[tuple[NDArray[Any] | None, NDArray[Any] | None]], extractor: PictureExtractor
) -> Iterator[NDArray[Any]]:
    """Blocks of rows, each there already or made of a picture."""
    return blocks_of(looked_up, lambda pictures: extractor.rows(np.stack(pictures)), extractor.batch_size)


def read_medium(
    archives: Archives, media: str, files: Mapping[str, str | None], most: int | None = None
) -> tuple[str, bytes | None]:
    """The sha256 of a medium, and its bytes, at most one more than `most`, if it is in an archive."""
    if sha256 := files.get(media):
        return sha256, None
    data = archives.read(media, most)
    return hashlib.sha256(data).hexdigest(), data


def _open(opened: Callable[[Any], PictureExtractor], config: Any, inputs: Inputs) -> ArrayWriter:
    extractor, archives, spec = opened(config), Archives(raw_of(inputs[0])), config.spec

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        media, files = work.reads[0], dict(work.reads[1])
        sources, absent = list[str | None](), 0

        def give_up(id: str, kind: str, reason: str) -> NDArray[Any]:
            nonlocal absent
            sink.fail(id, kind, reason)
            absent += 1
            return np.zeros(spec.row_shape, spec.dtype)

        def look_up(id: str, path: str) -> NDArray[Any] | bytes | None:
            """A row, or the picture to make it of."""
            nonlocal absent
            sources.append(None)
            try:
                sources[-1], data = read_medium(archives, path, files)
                if found := earlier.find(sources[-1], sink, spec):
                    found.fail_again(id, sink)
                    absent += any(kind != TRUNCATED for kind, _ in found.failures)
                    return found.values
                return archives.read(path) if data is None else data
            except MissingMedia as missing:
                return give_up(id, "absent", str(missing))

        def see(id: str, data: bytes) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
            cut = list[str]()
            try:
                picture = extractor.see(data, cut.append)
            except UnreadableImage as error:
                return give_up(id, error.kind, str(error)), None
            for reason in cut:
                sink.fail(id, TRUNCATED, reason)
            return None, picture

        def seen() -> Iterator[tuple[NDArray[Any] | None, NDArray[Any] | None]]:
            all_found = itertools.starmap(look_up, zip(work.ids, media, strict=True))
            pairs = itertools.pairwise(itertools.chain(all_found, [None]))
            for id, (found, following) in zip(work.ids, pairs, strict=True):
                if not isinstance(found, bytes):
                    yield found, None
                    continue
                if isinstance(following, bytes):
                    extractor.expect(following)
                yield see(id, found)

        write_items(sink, spec, work.rows, rows_of(seen(), extractor))
        write_sources(sink, work.ids, sources)
        return {"rows": len(work.ids) - absent}

    return ArrayWriter(spec, extractor.provenance, fill)
