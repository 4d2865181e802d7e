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

from pipelines.engine.picture_decoder import NotDecoded, SquareDecoder
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages import Needs, Pairs
from pipelines.stages._arrays import ArrayIndex, ArrayShard, ArrayWriter, PlannedArray, array_stage, write_items
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.networks import ResNet, weights_sha256
from xmodal.media.frame_times import PASSING
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
    @property
    def deadline(self) -> float: ...


C = TypeVar("C", bound=ItemRows)
R = TypeVar("R", bound=ResNet)


@dataclass(frozen=True, eq=False)
class PictureExtractor:
    """Loaded once a worker: turns a batch of pictures into rows. `side` is that of the middle that it looks at."""

    resize: int
    side: int
    see: Callable[[NDArray[np.uint8]], NDArray[Any]]  # the pixels of one picture, (side, side, 3)
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
    return array_stage(name, config, inputs, version, planned, partial(_open, opened), resources, passing=PASSING)


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
    decoder = SquareDecoder(extractor.resize, extractor.side, config.deadline)

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        pictures = _Pictures(extractor, decoder, archives, sink)
        media, _ = work.reads
        items = tuple(zip(work.ids, media, strict=True))
        write_items(sink, config.spec, work.rows, pictures.rows(items))
        return {"rows": len(items) - pictures.lost}

    return ArrayWriter(config.spec, {**extractor.provenance, "items": config.items}, fill)


class _Pictures:
    """The pictures of one unit, decoded, and made into rows batch by batch."""

    def __init__(self, extractor: PictureExtractor, decoder: SquareDecoder, archives: Archives, sink: Sink) -> None:
        self._extractor, self._decoder, self._archives, self._sink = extractor, decoder, archives, sink
        self.lost = 0

    def rows(self, items: Pairs) -> Iterator[NDArray[Any]]:
        size, blank = self._extractor.batch_size, self._extractor.blank
        for start in range(0, len(items), size):
            seen = [self._seen(*item) for item in items[start : start + size]]
            rows = self._extractor.rows(np.stack([blank if picture is None else picture for picture in seen]))
            rows[[picture is None for picture in seen]] = 0
            yield rows

    def _seen(self, id: str, media: str) -> NDArray[Any] | None:
        reasons = list[str]()
        try:
            pixels = self._decoder.pixels(self._archives.read(media), reasons.append)
        except MissingMedia as missing:
            self._fail(id, "absent", str(missing))
            return None
        except NotDecoded as failure:
            self._fail(id, failure.kind, str(failure))
            return None
        for reason in reasons:
            self._sink.fail(id, TRUNCATED, reason)
        return self._extractor.see(pixels)

    def _fail(self, id: str, kind: str, reason: str) -> None:
        self._sink.fail(id, kind, reason)
        self.lost += 1
