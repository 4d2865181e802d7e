"""Stages that give every picture a row of a Zarr v3 array: what they have in common, whatever is made of a picture.

Shards are their units, and a batch never reaches beyond one: the bytes are the same for any number of workers. A
picture that is absent or does not decode is a failure of its unit and a row of zeros, which readers refuse. One that is
truncated is a failure too, so that it is known, but has the row of what remains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Resources, Sink, Stage
from pipelines.stages._arrays import write_index, write_items
from xmodal.features.store import FeatureSpec, shard_ranges
from xmodal.media.images import OnTruncated, UnreadableImage
from xmodal.raw.archives import Archives, MissingMedia, archive_of
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import TRUNCATED, Output
from xmodal.root.sealed_sets import read_lock

Items = tuple[tuple[str, str], ...]  # id and media of each, in order of the ids


class Rows(Protocol):
    """The config of such a stage; `items` is the fingerprint of the planned items, which decide the rows."""

    @property
    def spec(self) -> FeatureSpec: ...
    @property
    def items(self) -> str: ...


C = TypeVar("C", bound=Rows)


@dataclass(frozen=True, eq=False)
class Sight:
    """What a worker opens: how it sees a picture, and what rows it makes of a batch of those it saw."""

    see: Callable[[bytes, OnTruncated], NDArray[Any]]  # UnreadableImage where the bytes are none
    rows: Callable[[NDArray[Any]], NDArray[Any]]
    blank: NDArray[Any]  # seen in place of what cannot be had, so that the others stay where they are in the batch
    batch_size: int
    provenance: Mapping[str, object]


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


def of_pictures(
    name: str,
    media: Output,
    items: Items,
    config: C,
    sight: Callable[[C], Sight],
    version: int,
    resources: Resources | None = None,
) -> Stage[C, Index | Shard]:
    """`config.items` must be `fingerprint_of(items)`."""
    opened = partial(_open, sight)
    return Stage(name, config, partial(plan, items), opened, (media,), version, resources or Resources(), reuse=True)


def fingerprint_of(items: Items) -> str:
    """Corpora with the same list share the rows."""
    late = next((later for (earlier, _), (later, _) in pairwise(items) if earlier >= later), None)
    if late is not None:
        raise ValueError(f"items ascend by id and have one row each, but {late!r} comes too late")
    return fingerprint(items)


def plan(items: Items, config: Rows, inputs: Inputs) -> Iterator[tuple[str, Index | Shard]]:
    yield "index", Index(tuple(id for id, _ in items))
    sealed = checksums(inputs[0])
    for shard, rows in enumerate(shard_ranges(config.spec, len(items))):
        some = items[rows.start : rows.stop]
        yield f"shard-{shard:05d}", Shard(rows.start, some, read_from(sealed, (media for _, media in some)))


def checksums(media: Output) -> dict[str, str | None]:
    """Every file of a sealed set, None where it is absent."""
    return {locked.path: locked.sha256 for locked in read_lock(media)}


def read_from(sealed: Mapping[str, str | None], media: Iterable[str]) -> tuple[tuple[str, str | None], ...]:
    """The files that these media are, or lie in, with their checksums."""
    files = sorted({each if each in sealed else archive_of(each) for each in media})
    return tuple((file, sealed.get(file)) for file in files)


def _open(opened: Callable[[C], Sight], config: C, inputs: Inputs) -> Callable[[Index | Shard, Sink], Counts]:
    sight, archives = opened(config), Archives(raw_of(inputs[0]))
    spec = config.spec

    def write(work: Index | Shard, sink: Sink) -> Counts:
        if isinstance(work, Index):
            return write_index(sink, spec, work.ids, {**sight.provenance, "items": config.items})
        lost: list[str] = []
        rows = range(work.first, work.first + len(work.items))
        write_items(sink, spec, rows, _rows(sight, archives, work.items, sink, lost))
        return {"rows": len(work.items) - len(lost)}

    return write


def _rows(sight: Sight, archives: Archives, items: Items, sink: Sink, lost: list[str]) -> Iterator[NDArray[Any]]:
    """Batch by batch."""
    for start in range(0, len(items), sight.batch_size):
        seen = [_seen(sight, archives, item, sink, lost) for item in items[start : start + sight.batch_size]]
        rows = sight.rows(np.stack([sight.blank if picture is None else picture for picture in seen]))
        rows[[picture is None for picture in seen]] = 0
        yield rows


def _seen(sight: Sight, archives: Archives, item: tuple[str, str], sink: Sink, lost: list[str]) -> NDArray[Any] | None:
    id, media = item
    cut = list[str]()
    try:
        seen = sight.see(archives.read(media), cut.append)
        for reason in cut:
            sink.fail(id, TRUNCATED, reason)
        return seen
    except MissingMedia as missing:
        sink.fail(id, "absent", str(missing))
    except UnreadableImage as unreadable:
        sink.fail(id, "unreadable", str(unreadable))
    lost.append(id)
    return None
