"""The fingerprints stage: the sha256 and the looks of every medium of a set, by which copies are found.

Corpora that list the same paths share the output. An absent medium has no row; one that does not decode, as all video,
has its sha256 alone; both are failures. A flat picture too has its sha256 alone, and is counted; a flat frame of a clip
is null among its looks.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from pipelines.engine.killable_worker import Body, Send
from pipelines.engine.picture_decoder import DEADLINE, PictureDecoder, answer
from pipelines.engine.stage import Counts, Inputs, Sink, Stage, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import write_table
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stage_forms.media_stages import Checksums, checksums, files_of, read_medium
from xmodal.checks.perceptual_hashes import hash_media
from xmodal.media.frame_times import PASSING
from xmodal.media.images import UnreadableImage
from xmodal.number_rules import above_zero
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import Item, Kind
from xmodal.root.identity import fingerprint, since

VERSION = 6
FIRST: dict[Kind, bytes] = {"image": b"i", "clip": b"c"}
COLUMNS = pa.schema({"media": pa.string(), "kind": pa.string(), "sha256": pa.string(), "looks": pa.list_(pa.uint64())})

Media = tuple[tuple[str, Kind], ...]  # path and kind of each, in order of the paths


@dataclass(frozen=True)
class FingerprintsConfig:
    """`media` is the fingerprint of the list."""

    media_per_unit: int = 1024
    media: str = listed()
    deadline: float = since("0.2", DEADLINE)  # seconds for one medium

    def __post_init__(self) -> None:
        if self.media_per_unit < 1:
            raise ValueError(f"a unit has at least one medium, not {self.media_per_unit}")
        above_zero(deadline=self.deadline)


STAGE = StageKind(
    name="fingerprints",
    config=FingerprintsConfig,
    needs=("records", "media"),
    seconds=lambda config, counts: 0.003 * counts["items"] + 0.04 * counts["clips"],
    memory=0.2e9,
)


@dataclass(frozen=True)
class MediaBatch:
    """The work."""

    number: int
    media: Media
    sha256: Checksums  # of every file that they are read from


def planned(items: Iterable[Item]) -> Media:
    return tuple(sorted({item.media: item.kind for item in items}.items()))


def make(config: FingerprintsConfig, needs: Needs) -> Stage[FingerprintsConfig, MediaBatch]:
    media = planned(needs.read_items())
    config = replace(config, media=fingerprint(media))
    inputs = (needs["media"],)
    return Stage(STAGE.name, config, partial(_plan, media), _open, inputs, VERSION, reuse=True, passing=PASSING)


def _plan(media: Media, config: FingerprintsConfig, inputs: Inputs) -> Iterator[tuple[str, MediaBatch]]:
    sealed = checksums(inputs[0])
    for number, first in enumerate(range(0, len(media), config.media_per_unit)):
        some = media[first : first + config.media_per_unit]
        yield f"part-{number:06d}", MediaBatch(number, some, files_of(sealed, (path for path, _ in some)))


def looks(settings: None, data: bytes, send: Send) -> Body:
    """A medium's perceptual hashes as JSON; the first byte of the data is its kind's."""
    kind: Kind = "clip" if data[:1] == FIRST["clip"] else "image"
    return answer(lambda on_truncated: json.dumps(hash_media(data[1:], kind)).encode(), send)


def _open(config: FingerprintsConfig, inputs: Inputs) -> Callable[[MediaBatch, Sink], Counts]:
    archives = Archives(raw_of(inputs[0]))
    earlier = EarlierRows(Stage(STAGE.name, config, partial(_plan, ()), _open, inputs, VERSION), COLUMNS)
    decoder = PictureDecoder(f"{__name__}:looks", None, config.deadline)

    def look_up(
        path: str, kind: Kind, files: Mapping[str, str | None], sink: Sink
    ) -> tuple[dict[str, Any], bytes | None]:
        """A row, and what to look at if its looks are not known; no row if the medium is absent."""
        try:
            sha256, data = read_medium(archives, path, files)
            if (found := earlier.find(sha256, sink)) and found.facts["kind"] == kind:
                found.fail_again(path, sink)
                return {**found.facts, "media": path}, None
            row = {"media": path, "kind": kind, "sha256": sha256, "looks": None}
            return row, FIRST[kind] + (archives.read(path) if data is None else data)
        except MissingMedia as missing:
            sink.fail(path, "absent", str(missing))
            return {}, None

    def work(batch: MediaBatch, sink: Sink) -> Counts:
        rows, files = list[dict[str, Any]](), dict(batch.sha256)
        looked_up = (look_up(path, kind, files, sink) for path, kind in batch.media)
        for (row, data), (_, following) in pairwise(chain(looked_up, [({}, None)])):
            if data is not None and following is not None:
                decoder.expect(following)
            try:
                row |= {} if data is None else {"looks": json.loads(decoder.decode(data))}
            except UnreadableImage as unreadable:
                sink.fail(row["media"], unreadable.kind, str(unreadable))
            rows += [row] if row else []
        write_table(sink, f"part-{batch.number:06d}.parquet", pa.Table.from_pylist(rows, COLUMNS))
        failed = {row for row, _, _ in sink.failures}
        flat = [row for row in rows if not row["looks"] and row["media"] not in failed]
        return {"media": len(rows), "flat": len(flat)}

    return work
