"""Items and their sealed media, and stages that make a row of every picture.

A picture that is absent or does not decode is a failure and a row of zeros, which readers refuse. A truncated one is a
failure too, but its row is made of what remains. So is one of which the network makes NaN or infinite numbers.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.picture_decoder import DEADLINE, PreparedDecoder, SquareDecoder
from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.engine.stage_kind import Needs, OpenMedia, Pairs
from pipelines.stage_forms.array_stages import (
    ArrayShard,
    ArrayWork,
    ArrayWriter,
    PlannedArray,
    array_stage,
    blocks_of,
    write_items,
    write_sources,
)
from pipelines.stage_forms.earlier_rows import EarlierRows
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.image_models import ImageModel, open_model, resolved
from xmodal.features.networks import ResNet, load
from xmodal.features.weight_files import weights_sha256
from xmodal.features.zarr_arrays import all_finite
from xmodal.media.frame_times import PASSING
from xmodal.media.images import OnTruncated, UnreadableImage, normalised
from xmodal.number_rules import above_zero
from xmodal.raw.archives import Archives, MissingMedia, archive_of
from xmodal.root.identity import fingerprint, since
from xmodal.root.outputs import TRUNCATED, Output
from xmodal.root.sealed_sets import read_lock

Seen = tuple[NDArray[Any] | None, NDArray[Any] | None]  # a row that is there, or the picture that one is made of
Checksums = tuple[tuple[str, str | None], ...]  # of files; None where one is absent
WEIGHTS = {"weights": "a state_dict of the network, .pth or .safetensors"}  # `StageKind.forms`
C = TypeVar("C")
R = TypeVar("R", bound=ResNet | ImageModel)


@dataclass(frozen=True, eq=False)
class PictureExtractor:
    """Decodes pictures, and turns batches into rows; a worker loads it once, for several threads if it has a GPU."""

    see: Callable[[bytes, OnTruncated], NDArray[Any]]  # raises UnreadableImage
    rows: Callable[[list[NDArray[Any]]], NDArray[Any]]  # the same bits whatever else is in the batch
    batch_size: int
    provenance: Mapping[str, object]
    expect: Callable[[bytes], None] = lambda data: None  # hears of the picture that `see` gets after the next one
    turn: Lock = field(default_factory=Lock)  # held while `rows` is called


def picture_stage(
    name: str, config: C, needs: Needs, version: int, opened: Callable[[C], PictureExtractor]
) -> Stage[C, ArrayWork]:
    return media_stage(name, config, needs, version, partial(_open, opened, needs.open_media))


def media_stage(
    name: str,
    config: C,
    needs: Needs,
    version: int,
    opened: Callable[[C, Inputs], ArrayWriter],
    boxes: Mapping[str, Any] | None = None,
) -> Stage[C, ArrayWork]:
    """An array with a row, or a run of rows, an item; the config has its `spec`, and `items: str = listed()`.

    `boxes` are plain values by item, if these decide its rows too.
    """
    items = needs.items
    assert {"items", "spec"} <= {*dir(config)}, f"{type(config).__name__} needs `spec` and `items: str = listed()`"
    late = next((later for (earlier, _), (later, _) in itertools.pairwise(items) if earlier >= later), None)
    assert late is None, f"items ascend by id and have one row each, but {late!r} comes too late"
    config = replace(config, items=fingerprint(items))  # type: ignore[type-var]
    stage = array_stage(name, config, (needs["media"],), version, partial(_planned, items, boxes), opened)
    return replace(stage, passing=PASSING)


def with_weights(config: R, needs: Needs) -> tuple[R, Path | None, Resources]:
    """Puts the checksum of the user's file, if any, into the config; that file, and what a worker needs."""
    file = needs.files.get("weights")
    config = replace(config, weights=f"sha256:{weights_sha256(file)}") if file else config
    return config, file, Resources(gpus=float(config.device == "cuda"))


def not_finite(dtype: str) -> tuple[str, str]:
    """The failure of a picture whose row has NaN or infinite numbers, and what may help."""
    cure = "--set dtype=float32 may help" if dtype == "float16" else "its weights may have some, too"
    return "not_finite", f"the network makes NaN or infinite numbers of it: {cure}"


def check_weights(config: ResNet, files: Mapping[str, Path]) -> None:
    if "weights" not in files:
        config.check_weights()


def check_model(config: ImageModel, files: Mapping[str, Path]) -> None:
    """Asks the model's library for it."""
    resolved(replace(config, weights=f"sha256:{'0' * 64}") if "weights" in files else config)


@dataclass(frozen=True)
class ResNetStageConfig(ResNet):
    deadline: float = since("0.2", DEADLINE)  # seconds for one picture

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(deadline=self.deadline)


@dataclass(frozen=True)
class ImageModelStageConfig(ImageModel):
    deadline: float = DEADLINE  # seconds for one picture

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(deadline=self.deadline)


def resnet_extractor(weights: Path | None, config: ResNetStageConfig) -> PictureExtractor:
    network, decoder = load(config, weights), SquareDecoder(config.resize, config.crop, config.deadline)
    return PictureExtractor(
        lambda data, cut: normalised(decoder.pixels(data, cut)),
        lambda pictures: network(np.stack(pictures)),
        config.batch_size,
        network.provenance(),
        decoder.expect,
    )


def model_extractor(stage: str, weights: Path | None, config: ImageModelStageConfig) -> PictureExtractor:
    model, decoder = open_model(config, weights, stage), PreparedDecoder(config.preparation, config.deadline)
    return PictureExtractor(decoder.pixels, model.rows, config.batch_size, model.provenance(), decoder.expect)


def seconds_a_picture(config: ResNet | ImageModel) -> float:
    """Estimates one core's time; 0 for a GPU, on which nobody has measured it."""
    return 0.003 + 0.011 * config.gigaflops if config.device == "cpu" else 0.0


def bytes_of_rows(config: Any, items: int, before: Mapping[str, Output]) -> float:
    """Estimates an array with a row an item."""
    return float(items * config.spec.row_bytes)


def _planned(items: Pairs, boxes: Mapping[str, Any] | None, config: Any, inputs: Inputs) -> PlannedArray:
    """A shard reads its media, the files that these lie in, and the boxes, if some are given."""
    sealed = checksums(inputs[0])

    def reads(rows: range) -> tuple[Any, ...]:
        ids, media = zip(*items[rows.start : rows.stop], strict=True)
        told = media, files_of(sealed, media)
        return told if boxes is None else (*told, tuple(boxes.get(id, ()) for id in ids))

    return PlannedArray(config.spec, tuple(id for id, _ in items), reads, {"items": config.items})


@lru_cache(maxsize=4)
def checksums(sealed: Output) -> Mapping[str, str | None]:
    return {locked.path: locked.sha256 for locked in read_lock(sealed)}


def files_of(sealed: Mapping[str, str | None], media: Iterable[str]) -> Checksums:
    """The files that these media are, or lie in, with their checksums."""
    files = sorted({each if each in sealed else archive_of(each) for each in media})
    return tuple((file, sealed.get(file)) for file in files)


def rows_of(looked_up: Iterable[Seen], extractor: PictureExtractor) -> Iterator[NDArray[Any]]:
    """Blocks of rows, each there already or made of a picture."""

    def rows(pictures: list[NDArray[Any]]) -> NDArray[Any]:
        with extractor.turn:
            return extractor.rows(pictures)

    return blocks_of(looked_up, rows, extractor.batch_size)


def read_medium(
    archives: Archives, media: str, files: Mapping[str, str | None], most: int | None = None
) -> tuple[str, bytes | None]:
    """The sha256 of a medium, and its bytes, at most one more than `most`, if it is in an archive."""
    if sha256 := files.get(media):
        return sha256, None
    data = archives.read(media, most)
    return hashlib.sha256(data).hexdigest(), data


def _open(opened: Callable[[Any], PictureExtractor], open_media: OpenMedia, config: Any, inputs: Inputs) -> ArrayWriter:
    extractor, archives, spec = opened(config), Archives(open_media(inputs[0])), config.spec

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        shard = _PictureShard(extractor, archives, spec, work, sink, earlier)
        write_items(sink, spec, work.rows, shard.blocks())
        write_sources(sink, work.ids, shard.sources)
        absent = {id for id, kind, _ in sink.failures if kind != TRUNCATED}
        return {"rows": len(work.ids) - len(absent)}

    return ArrayWriter(spec, extractor.provenance, fill)


@dataclass(frozen=True, eq=False)
class _PictureShard:
    """Makes the rows of one shard; what has none is a failure, told to `sink`, and zeros."""

    extractor: PictureExtractor
    archives: Archives
    spec: FeatureSpec
    work: ArrayShard
    sink: Sink
    earlier: EarlierRows
    sources: list[str | None] = field(default_factory=list)  # the sha256 of each picture that was read

    def blocks(self) -> Iterator[NDArray[Any]]:
        ids = iter(self.work.ids)
        for rows in rows_of(self._seen(), self.extractor):
            for row, id in zip(rows, ids, strict=False):  # rows first, else an id is lost with each block
                if not all_finite(row):
                    row[...] = self._give_up(id, *not_finite(self.spec.dtype))
            yield rows

    def _seen(self) -> Iterator[Seen]:
        all_found = itertools.starmap(self._look_up, zip(self.work.ids, self.work.reads[0], strict=True))
        pairs = itertools.pairwise(itertools.chain(all_found, [None]))
        for id, (found, following) in zip(self.work.ids, pairs, strict=True):
            if not isinstance(found, bytes):
                yield found, None
                continue
            if isinstance(following, bytes):
                self.extractor.expect(following)
            yield self._see(id, found)

    def _look_up(self, id: str, path: str) -> NDArray[Any] | bytes | None:
        """Returns a row, or the picture to make it of."""
        self.sources.append(None)
        try:
            self.sources[-1], data = read_medium(self.archives, path, self._files)
            if found := self.earlier.find(self.sources[-1], self.sink, self.spec):
                found.fail_again(id, self.sink)
                return found.values
            return self.archives.read(path) if data is None else data
        except MissingMedia as missing:
            return self._give_up(id, "absent", str(missing))

    def _see(self, id: str, data: bytes) -> Seen:
        cut = list[str]()
        try:
            picture = self.extractor.see(data, cut.append)
        except UnreadableImage as error:
            return self._give_up(id, error.kind, str(error)), None
        for reason in cut:
            self.sink.fail(id, TRUNCATED, reason)
        return None, picture

    def _give_up(self, id: str, kind: str, reason: str) -> NDArray[Any]:
        self.sink.fail(id, kind, reason)
        return np.zeros(self.spec.row_shape, self.spec.dtype)

    @cached_property
    def _files(self) -> dict[str, str | None]:
        return dict(self.work.reads[1])
