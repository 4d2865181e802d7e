"""The frames stage: the pictures that every clip shows at 8 moments of a second, each picture once, as JPEGs.

An item of the ragged array is a clip: its JPEGs, one behind the other. Each unit also writes a table of its clips,
`clips/<shard>.parquet`: the length of each JPEG, the time at which each frame begins, the frame of each sample, and
facts about the file. A clip that is absent or gives no frames has a row there too, and is a failure by its status.
The output's `_runs/clips` has the time and the attempts that each clip took.

Frames are the media over again: they are never published as features.
"""

import hashlib
import importlib.util
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.clip_sampler import ClipSampler, SampledClip, SampleRequest, Subsampling
from pipelines.engine.journal import Journal
from pipelines.engine.killable_worker import ResourceLimit
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stages import Needs, StageKind
from pipelines.stages._arrays import ArrayShard, ArrayWriter, array_stage, write_items, write_table
from pipelines.stages._media import fingerprint_of, planned_media
from xmodal import __version__
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.frame_store import CLIPS, NAME, clips_file
from xmodal.media.frame_sampling import Sampled
from xmodal.media.frame_times import PASSING, USABLE, Limits, Sampling
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import canonical_json

VERSION = 3
ABSENT = "absent"
JOURNAL = "_runs/clips"
CLIP_BYTES = 850_000  # of a clip of 3.6 seconds, sampled as by default: the mean of 52, to make plans with


@dataclass(frozen=True)
class FramesConfig(Sampling):
    """`quality` and `subsampling` are of the JPEGs; motion JPEG that keeps its size keeps its bytes too.

    The fields of `Limits` bound a clip, and those of `ResourceLimit` the process that decodes it: both decide which
    clips have frames. `rows_per_shard` are the bytes that the clips of a shard may have together.
    """

    quality: int = 95
    subsampling: Subsampling = "4:2:0"
    most_bytes: int = Limits.bytes
    most_pixels: int = Limits.pixels
    most_frames: int = Limits.frames
    most_seconds: int = Limits.seconds
    most_samples: int = Limits.samples
    most_work: int = Limits.work
    deadline: float = ResourceLimit.seconds
    deadline_rate: float = ResourceLimit.rate
    memory: int = ResourceLimit.memory
    items_per_shard: int = 64
    rows_per_shard: int = 1 << 32
    items: str = field(default="", metadata={"given": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.quality <= 100:
            raise ValueError(f"the quality of a JPEG is 1 to 100, not {self.quality}")
        _ = self.spec, self.request, self.limit  # each refuses what it cannot be

    @property
    def spec(self) -> FeatureSpec:
        lengths = {"rows_per_shard": self.rows_per_shard, "items_per_shard": self.items_per_shard}
        return FeatureSpec(NAME, (), "uint8", ragged=True, **lengths)

    @property
    def clip_bytes(self) -> float:
        return CLIP_BYTES * self.fps / Sampling.fps * (self.short_side / Sampling.short_side) ** 2

    @property
    def request(self) -> SampleRequest:
        sampling = Sampling(**{each.name: getattr(self, each.name) for each in fields(Sampling)})
        limits = Limits(**{each.name: getattr(self, f"most_{each.name}") for each in fields(Limits)})
        return SampleRequest(sampling, limits, self.quality, self.subsampling)

    @property
    def limit(self) -> ResourceLimit:
        return ResourceLimit(self.deadline, self.deadline_rate, self.memory)


def check_decoders(config: Sampling, files: Mapping[str, Path]) -> None:
    """Refuses to begin where a decoder is not installed: clips would fail one by one, after all of them are fetched."""
    wanted = {"av": "video"} | ({"decord": "decord"} if config.backend == "decord" else {})
    for module, extra in wanted.items():
        if importlib.util.find_spec(module) is None:
            raise UserError(f"frames of clips need {module}: pip install -e '.[{extra}]' in the checkout")


STAGE = StageKind(
    name=NAME,
    config=FramesConfig,
    needs=("records", "media"),
    of="clip",
    packages=("av",),
    estimate=lambda config, clips, before: clips * config.clip_bytes,
    check=check_decoders,
    small={"short_side": 48},
)


def make(config: FramesConfig, needs: Needs) -> Stage[FramesConfig, Any]:
    config = replace(config, items=fingerprint_of(needs.items))
    planned, inputs = partial(planned_media, needs.items), (needs["media"],)
    folder = array_stage(NAME, config, inputs, VERSION, planned, partial(_open, "")).folder
    opened = partial(_open, f"{folder}/{JOURNAL}")  # the journal lies in the folder of the stage's identity
    return array_stage(NAME, config, inputs, VERSION, planned, opened, passing=PASSING)


def _open(journal: str, config: FramesConfig, inputs: Inputs) -> ArrayWriter:
    archives, notes = Archives(raw_of(inputs[0])), Journal(inputs[0].storage, journal)
    provenance = _provenance(config)
    sampler: list[ClipSampler] = []

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        if not sampler:
            sampler.append(ClipSampler(config.request, config.limit))
        clips = _Clips(archives, sampler[0], config.most_bytes, sink, provenance["versions"])
        media, _ = work.reads
        jpegs = (clips.take(id, path) for id, path in zip(work.ids, media, strict=True))
        write_items(sink, config.spec, work.rows, jpegs)
        columns = {name: [row[name] for row in clips.rows] for name in CLIPS.names}
        write_table(sink, clips_file(work.first // config.spec.shard_items), columns, CLIPS)
        notes.add(clips.notes)
        notes.merge()
        return clips.counts

    return ArrayWriter(config.spec, {**provenance, "items": config.items}, fill)


class _Clips:
    """The clips of one unit: a row of facts for each, and a note of how long it took."""

    def __init__(
        self, archives: Archives, sampler: ClipSampler, most_bytes: int, sink: Sink, versions: Mapping[str, str]
    ) -> None:
        self._archives, self._sampler, self._most_bytes, self._sink = archives, sampler, most_bytes, sink
        self._versions = versions
        self.rows: list[dict[str, Any]] = []
        self.notes: list[bytes] = []

    def take(self, id: str, media: str) -> NDArray[np.uint8]:
        """All JPEGs of a clip; an empty array where it has none."""
        try:
            data = self._archives.read(media, self._most_bytes)
        except MissingMedia as missing:
            return self._add(id, None, SampledClip(Sampled(0, stage="fetch", message=str(missing)), [], 0, 0), ABSENT)
        if len(data) > self._most_bytes:  # nobody reads the rest
            over = Sampled(len(data), status="too_large_bytes", message=f"more than {self._most_bytes} bytes")
            return self._add(id, None, SampledClip(over, [], 0, 1), over.status)
        taken = self._sampler.sample(data)
        return self._add(id, hashlib.sha256(data).hexdigest(), taken, taken.row.status)

    def _add(self, id: str, sha256: str | None, taken: SampledClip, status: str) -> NDArray[np.uint8]:
        jpegs = taken.jpegs if status in USABLE else []
        if status not in USABLE:
            self._sink.fail(id, status, taken.row.message)
        facts = {"id": id, "sha256": sha256, "status": status, "lengths": [*map(len, jpegs)]}
        self.rows.append(asdict(taken.row) | facts)
        note = {"status": status, "elapsed_ms": taken.elapsed_ms, "attempt": taken.attempt}
        note |= {"at": round(time.time(), 3), "versions": self._versions}
        self.notes.append(id.encode() + b"\t" + canonical_json(note) + b"\n")
        return np.frombuffer(b"".join(jpegs), np.uint8)

    @property
    def counts(self) -> Counts:
        usable = [row for row in self.rows if row["status"] in USABLE]
        pictures, samples = (sum(len(row[name]) for row in usable) for name in ("lengths", "frame_of_sample"))
        return {"clips": len(usable), "frames": pictures, "samples": samples} | Counter(row["status"] for row in usable)


def _provenance(config: FramesConfig) -> dict[str, Any]:
    sampling = asdict(config.request.sampling)
    packages = ("pillow", "av", "decord") if config.backend == "decord" else ("pillow", "av")
    versions = {name: version(name) for name in packages} | {"xmodal": __version__}
    jpeg = {"quality": config.quality, "subsampling": config.subsampling}
    return {"sampling": sampling | {"interpolation": "bilinear", "colours": "RGB"}, "jpeg": jpeg, "versions": versions}
