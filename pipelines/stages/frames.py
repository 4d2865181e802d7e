"""The frames stage: the pictures that every clip shows at 8 moments of a second, each picture once, as JPEGs.

An item of the ragged array is a clip: its JPEGs, end to end. `clips/<shard>.parquet` has each JPEG's length, each
frame's start, each sample's frame, and facts about the file. A clip without frames has a row there too, and is a
failure by its status. `_runs/clips` has each clip's time and attempts. Frames are the media over again: never published
as features.
"""

import hashlib
import importlib.util
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.engine.clip_sampler import ClipSampler, SampledClip, SampleRequest, Subsampling
from pipelines.engine.journal import Journal
from pipelines.engine.killable_worker import ResourceLimit
from pipelines.engine.stage import Counts, Inputs, Sink, Stage, given
from pipelines.stages import Needs, StageKind
from pipelines.stages._arrays import ArrayShard, ArrayWriter, write_items, write_table
from pipelines.stages._media import media_stage
from xmodal import __version__
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.frame_store import CLIPS, NAME, clips_file
from xmodal.media.frame_sampling import Sampled
from xmodal.media.frame_times import USABLE, Limits, Sampling
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import canonical_json

VERSION = 3
ABSENT = "absent"
JOURNAL = "_runs/clips"
CLIP_BYTES = 850_000  # of a clip of 3.6 seconds by default: the mean of 52, for estimates


@dataclass(frozen=True)
class FramesConfig(Sampling):
    """`quality` and `subsampling` are of the JPEGs; motion JPEG that keeps its size keeps its bytes too.

    The fields of `Limits` bound a clip, those of `ResourceLimit` its decoder. `rows_per_shard` are bytes.
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
    items: str = given()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.quality <= 100:
            raise ValueError(f"the quality of a JPEG is 1 to 100, not {self.quality}")
        _ = self.spec, self.request, self.limit  # each refuses what it cannot be

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec(NAME, (), "uint8", True, None, self.rows_per_shard, self.items_per_shard)

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
    """Refuses to begin without a decoder, before clips are fetched."""
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
    folder = media_stage(NAME, config, needs, VERSION, partial(_open, "")).folder  # where the journal lies
    return media_stage(NAME, config, needs, VERSION, partial(_open, f"{folder}/{JOURNAL}"))


def _open(journal: str, config: FramesConfig, inputs: Inputs) -> ArrayWriter:
    archives, notes = Archives(raw_of(inputs[0])), Journal(inputs[0].storage, journal)
    provenance = _provenance(config)
    start = cache(partial(ClipSampler, config.request, config.limit))  # with the first clip

    def fill(work: ArrayShard, sink: Sink) -> Counts:
        rows: list[dict[str, Any]] = []
        took: list[bytes] = []

        def jpegs() -> Iterator[NDArray[np.uint8]]:
            for id, path in zip(work.ids, work.reads[0], strict=True):
                sha256, status, clip = _sample(archives, path, start(), config.most_bytes)
                own = clip.jpegs if status in USABLE else []
                if status not in USABLE:
                    sink.fail(id, status, clip.row.message)
                facts = {"id": id, "sha256": sha256, "status": status, "lengths": [*map(len, own)]}
                rows.append(asdict(clip.row) | facts)
                note = {"status": status, "elapsed_ms": clip.elapsed_ms, "attempt": clip.attempt}
                note |= {"at": round(time.time(), 3), "versions": provenance["versions"]}
                took.append(id.encode() + b"\t" + canonical_json(note) + b"\n")
                yield np.frombuffer(b"".join(own), np.uint8)

        write_items(sink, config.spec, work.rows, jpegs())
        shard = work.first // config.spec.shard_items
        write_table(sink, clips_file(shard), pa.Table.from_pylist(rows, CLIPS))
        notes.add(took)
        notes.merge()
        return _counts(rows)

    return ArrayWriter(config.spec, {**provenance, "items": config.items}, fill)


def _sample(
    archives: Archives, path: str, sampler: ClipSampler, most_bytes: int
) -> tuple[str | None, str, SampledClip]:
    """The sha256 of a clip that was read whole, its status and result."""
    try:
        data = archives.read(path, most_bytes)
    except MissingMedia as missing:
        return None, ABSENT, SampledClip(Sampled(0, stage="fetch", message=str(missing)), [], 0, 0)
    if len(data) > most_bytes:  # nobody reads the rest
        row = Sampled(len(data), status="too_large_bytes", message=f"more than {most_bytes} bytes")
        return None, row.status, SampledClip(row, [], 0, 1)
    clip = sampler.sample(data)
    return hashlib.sha256(data).hexdigest(), clip.row.status, clip


def _counts(rows: list[dict[str, Any]]) -> Counts:
    usable = [row for row in rows if row["status"] in USABLE]
    frames, samples = (sum(len(row[name]) for row in usable) for name in ("lengths", "frame_of_sample"))
    return {"clips": len(usable), "frames": frames, "samples": samples} | Counter(row["status"] for row in usable)


def _provenance(config: FramesConfig) -> dict[str, Any]:
    sampling = asdict(config.request.sampling)
    packages = ("pillow", "av", "decord") if config.backend == "decord" else ("pillow", "av")
    versions = {name: version(name) for name in packages} | {"xmodal": __version__}
    jpeg = {"quality": config.quality, "subsampling": config.subsampling}
    return {"sampling": sampling | {"interpolation": "bilinear", "colours": "RGB"}, "jpeg": jpeg, "versions": versions}
