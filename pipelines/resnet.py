"""The resnet stage: features of pictures by a ResNet, one row an item, in a Zarr v3 array.

Shards are its units, and a batch never reaches beyond one: the bytes are the same for any number of workers. A picture
that is absent or does not decode is a failure of its unit and a row of zeros, which readers refuse.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.stage import Counts, Inputs, Resources, Sink, Stage
from xmodal.archives import Archives, MissingMedia, archive_of
from xmodal.features import FeatureSpec, index_files, shard_file, shard_ranges, write_shard
from xmodal.identity import fingerprint
from xmodal.locks import raw_of, read_lock
from xmodal.outputs import Output
from xmodal.vision import Extractor, ResNet, UnreadableImage, load, pixels, sha256_of

VERSION = 2
Items = tuple[tuple[str, str], ...]  # id and media of each, in order of the ids


@dataclass(frozen=True)
class ResNetConfig(ResNet):
    """`items` is the fingerprint of the planned items: corpora with the same list share the features.

    Within a shard the last batch may be short, so that a shard's length, too, may change the last bits.
    """

    rows_per_shard: int = 256
    items: str = field(default="", metadata={"given": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.spec  # refuses a length that the array cannot have

    @property
    def spec(self) -> FeatureSpec:
        return replace(super().spec, rows_per_shard=self.rows_per_shard)


@dataclass(frozen=True)
class Index:
    """The work of the unit that says what the array is and whose its rows are."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Shard:
    """The work: its items and the checksum of every file they are read from, None where it was sealed as absent."""

    first: int
    items: Items
    sha256: tuple[tuple[str, str | None], ...]


def resnet(
    media: Output, items: Items, config: ResNetConfig, weights_file: Path | None = None
) -> Stage[ResNetConfig, Index | Shard]:
    """`weights_file` is a state_dict to use instead of the weights that the config names."""
    late = next((later for (earlier, _), (later, _) in pairwise(items) if earlier >= later), None)
    if late is not None:
        raise ValueError(f"items ascend by id and have one row each, but {late!r} comes too late")
    weights = config.weights if weights_file is None else f"sha256:{sha256_of(weights_file)}"
    config = replace(config, weights=weights, items=fingerprint(items))
    resources = Resources(gpus=1.0 if config.device == "cuda" else 0.0)
    plan, opened = partial(_plan, items), partial(_open, weights_file)
    return Stage("resnet", config, plan, opened, (media,), VERSION, resources, reuse=True)


def _plan(items: Items, config: ResNetConfig, inputs: Inputs) -> Iterator[tuple[str, Index | Shard]]:
    yield "index", Index(tuple(id for id, _ in items))
    sealed = {locked.path: locked.sha256 for locked in read_lock(inputs[0])}
    for shard, rows in enumerate(shard_ranges(config.spec, len(items))):
        some = items[rows.start : rows.stop]
        files = sorted({media if media in sealed else archive_of(media) for _, media in some})
        yield f"shard-{shard:05d}", Shard(rows.start, some, tuple((file, sealed.get(file)) for file in files))


def _open(weights_file: Path | None, config: ResNetConfig, inputs: Inputs) -> Callable[[Index | Shard, Sink], Counts]:
    extractor, archives = load(config, weights_file), Archives(raw_of(inputs[0]))
    spec = config.spec

    def write(work: Index | Shard, sink: Sink) -> Counts:
        if isinstance(work, Index):
            for name, data in index_files(spec, work.ids, extractor.provenance() | {"items": config.items}).items():
                with sink.file(name) as file:
                    file.write(data)
            return {}
        with sink.file(shard_file(spec, work.first // spec.shard_rows)) as file:
            rows = range(work.first, work.first + len(work.items))
            lost: list[str] = []
            write_shard(file, spec, rows, _features(extractor, archives, work.items, sink, lost))
        return {"rows": len(work.items) - len(lost)}

    return write


def _features(
    extractor: Extractor, archives: Archives, items: Items, sink: Sink, lost: list[str]
) -> Iterator[NDArray[Any]]:
    """Batch by batch; what cannot be had is gray for the network, so that the others stay where they are in it."""
    crop, size = extractor.config.crop, extractor.config.batch_size
    for start in range(0, len(items), size):
        seen = [_pixels(archives, extractor.config, item, sink, lost) for item in items[start : start + size]]
        gray = np.zeros((3, crop, crop), np.float32)
        features = extractor(np.stack([gray if picture is None else picture for picture in seen]))
        features[[picture is None for picture in seen]] = 0
        yield features


def _pixels(
    archives: Archives, config: ResNet, item: tuple[str, str], sink: Sink, lost: list[str]
) -> NDArray[np.float32] | None:
    id, media = item
    try:
        return pixels(archives.read(media), config)
    except MissingMedia as missing:
        sink.fail(id, "absent", str(missing))
    except UnreadableImage as unreadable:
        sink.fail(id, "unreadable", str(unreadable))
    lost.append(id)
    return None
