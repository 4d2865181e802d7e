"""Items and their sealed media, as stages read them; and stages that make a row of every picture.

A picture that is absent or does not decode is a failure of its unit and a row of zeros, which readers refuse. A
truncated one is a failure too, so that it is known, but its row is made of what remains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages import Needs, Pairs
from pipelines.stages._arrays import ArrayIndex, ArrayShard, ArrayWriter, PlannedArray, array_stage, write_items
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.networks import ResNet, weights_sha256
from xmodal.media.images import OnTruncated, UnreadableImage
from xmodal.raw.archives import Archives, MissingMedia, archive_of
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import TRUNCATED, Output
from xmodal.root.sealed_sets import read_lock


class ItemRows(Protocol):
    """The config of such a stage; `items` is the fingerprint of the planned items, which decide the rows."""

    @property
    def spec(self) -> FeatureSpec: ...
    @property
    def items(self) -> str: ...


C = TypeVar("C", bound=ItemRows)
R = TypeVar("R", bound=ResNet)


@dataclass(frozen=True, eq=False)
class PictureExtractor:
    """Loaded once a worker: decodes one picture, and turns a batch of decoded pictures into rows."""

    see: Callable[[bytes, OnTruncated], NDArray[Any]]  # raises UnreadableImage
    rows: Callable[[NDArray[Any]], NDArray[Any]]
    blank: NDArray[Any]  # takes the place of a picture that cannot be had, so that the batch keeps its order
    batch_size: int
    provenance: Mapping[str, object]


def picture_stage(
    name: str,
    config: C,
    needs: Needs,
    version: int,
    opened: Callable[[C], PictureExtractor],
    resources: Resources | None = None,
) -> Stage[C, ArrayIndex | ArrayShard]:
    """`config.items` must be `fingerprint_of(needs.items)`."""
    planned, inputs = partial(planned_media, needs.items), (needs["media"],)
    return array_stage(name, config, inputs, version, planned, partial(_open, opened), resources)


def with_weights(config: R, needs: Needs) -> tuple[R, Path | None, Resources]:
    """The config with the checksum of the user's file of weights, if there is one; that file; what a worker needs."""
    file = needs.files.get("weights")
    config = replace(config, weights=f"sha256:{weights_sha256(file)}") if file else config
    return config, file, Resources(gpus=1.0 if config.device == "cuda" else 0.0)


def fingerprint_of(items: Pairs) -> str:
    """Corpora with the same list share the rows."""
    late = next((later for (earlier, _), (later, _) in pairwise(items) if earlier >= later), None)
    assert late is None, f"items ascend by id and have one row each, but {late!r} comes too late"
    return fingerprint(items)


def bytes_of_rows(config: ItemRows, items: int, before: Mapping[str, Output]) -> float:
    """An estimate for arrays with a row an item."""
    return items * config.spec.row_bytes


def planned_media(items: Pairs, config: ItemRows, inputs: Inputs) -> PlannedArray:
    """An array with a row, or a run of rows, an item; a shard reads its media, and the files that these lie in."""
    sealed = checksums(inputs[0])

    def reads(rows: range) -> tuple[tuple[str, ...], tuple[tuple[str, str | None], ...]]:
        media = tuple(path for _, path in items[rows.start : rows.stop])
        return media, files_of(sealed, media)

    return PlannedArray(config.spec, tuple(id for id, _ in items), reads)


@lru_cache(maxsize=4)
def checksums(sealed: Output) -> Mapping[str, str | None]:
    """The sha256 of every file of a sealed set, None where it is absent; a set never changes, so it is read once."""
    return {locked.path: locked.sha256 for locked in read_lock(sealed)}


def files_of(sealed: Mapping[str, str | None], media: Iterable[str]) -> tuple[tuple[str, str | None], ...]:
    """The files that these media are, or lie in, with their checksums."""
    files = sorted({each if each in sealed else archive_of(each) for each in media})
    return tuple((file, sealed.get(file)) for file in files)


def _open(opened: Callable[[C], PictureExtractor], config: C, inputs: Inputs) -> ArrayWriter:
    extractor, archives = opened(config), Archives(raw_of(inputs[0]))

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        lost: list[str] = []
        media, _ = work.reads
        items = tuple(zip(work.ids, media, strict=True))
        write_items(sink, config.spec, work.rows, _rows(extractor, archives, items, sink, lost))
        return {"rows": len(items) - len(lost)}

    return ArrayWriter(config.spec, {**extractor.provenance, "items": config.items}, fill)


def _rows(
    extractor: PictureExtractor, archives: Archives, items: Pairs, sink: Sink, lost: list[str]
) -> Iterator[NDArray[Any]]:
    """Batch by batch."""
    for start in range(0, len(items), extractor.batch_size):
        seen = [_seen(extractor, archives, *item, sink, lost) for item in items[start : start + extractor.batch_size]]
        rows = extractor.rows(np.stack([extractor.blank if picture is None else picture for picture in seen]))
        rows[[picture is None for picture in seen]] = 0
        yield rows


def _seen(
    extractor: PictureExtractor, archives: Archives, id: str, media: str, sink: Sink, lost: list[str]
) -> NDArray[Any] | None:
    cut = list[str]()
    try:
        seen = extractor.see(archives.read(media), cut.append)
        for reason in cut:
            sink.fail(id, TRUNCATED, reason)
        return seen
    except MissingMedia as missing:
        sink.fail(id, "absent", str(missing))
    except UnreadableImage as unreadable:
        sink.fail(id, "unreadable", str(unreadable))
    lost.append(id)
    return None
