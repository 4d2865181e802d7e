"""The frames stage: the pictures that every clip shows at 8 moments of a second, each picture once, as JPEGs.

An item of the ragged array is a clip: its JPEGs, end to end. `clips/<shard>.parquet` has each JPEG's length, each
frame's start, each sample's frame, and facts about the file. A clip without frames has a row there too, and is a
failure by its status. `_runs/clips` has each clip's time and attempts. Frames are the media over again: never published
as features.
"""

import importlib.util
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.engine.clip_sampler import ClipSampler, SampledClip, SampleRequest, Subsampling
from pipelines.engine.journal import Journal
from pipelines.engine.killable_worker import ResourceLimit
from pipelines.engine.stage import Counts, Inputs, Sink, Stage, listed
from pipelines.engine.stage_kind import Needs, OpenMedia, StageKind
from pipelines.stage_forms.array_stages import ArrayShard, ArrayWriter, write_items, write_table
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stage_forms.media_stages import media_stage, read_medium
from xmodal import __version__
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.frame_store import CLIPS, NAME, clips_file
from xmodal.media.frame_sampling import Sampled
from xmodal.media.frame_times import USABLE, Limits, Sampling
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.root.identity import canonical_json

VERSION = 4
ABSENT: Final = "absent"
TOO_LARGE: Final = "too_large_bytes"
UNREAD = (ABSENT, TOO_LARGE)  # whose bytes have no checksum
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
    items: str = listed()

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
    seconds=lambda config, counts: 0.04 * counts["items"] * config.clip_bytes / CLIP_BYTES,
    memory=0.3e9,
    check=check_decoders,
    small={"short_side": 48},
)


def make(config: FramesConfig, needs: Needs) -> Stage[FramesConfig, Any]:
    folder = media_stage(NAME, config, needs, VERSION, partial(_open, "", raw_of)).folder  # where the journal lies
    return media_stage(NAME, config, needs, VERSION, partial(_open, f"{folder}/{JOURNAL}", needs.open_media))


def _open(journal: str, open_media: OpenMedia, config: FramesConfig, inputs: Inputs) -> ArrayWriter:
    archives, notes = Archives(open_media(inputs[0])), Journal(inputs[0].storage, journal)
    provenance = _provenance(config)
    sampler = cache(partial(ClipSampler, config.request, config.limit))  # starts with the first clip

    def sample(data: bytes) -> SampledClip:
        if len(data) <= config.most_bytes:
            return sampler().sample(data)
        row = Sampled(len(data), status=TOO_LARGE, message=f"more than {config.most_bytes} bytes")
        return SampledClip(row, [], 0, 1)  # nobody reads the rest

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        media, files = work.reads[0], dict(work.reads[1])
        rows: list[dict[str, Any]] = []
        took: list[bytes] = []

        def jpegs(id: str, path: str) -> NDArray[np.uint8]:
            sha256 = None
            try:
                sha256, data = read_medium(archives, path, files, config.most_bytes)
                if found := earlier.find(sha256, sink, config.spec):
                    rows.append({**found.facts, "id": id})
                    found.fail_again(id, sink)
                    return found.values
                clip = sample(archives.read(path, config.most_bytes) if data is None else data)
                status: str = clip.row.status
            except MissingMedia as missing:
                clip = SampledClip(Sampled(0, stage="fetch", message=str(missing)), [], 0, 0)
                status = ABSENT
            own = clip.jpegs if status in USABLE else []
            if status not in USABLE:
                sink.fail(id, status, clip.row.message)
            source = None if status in UNREAD else sha256
            facts = {"id": id, "sha256": source, "status": status, "lengths": [*map(len, own)]}
            rows.append(asdict(clip.row) | facts)
            note = {"status": status, "elapsed_ms": clip.elapsed_ms, "attempt": clip.attempt}
            note |= {"at": round(time.time(), 3), "versions": provenance["versions"]}
            took.append(id.encode() + b"\t" + canonical_json(note) + b"\n")
            return np.frombuffer(b"".join(own), np.uint8)

        write_items(sink, config.spec, work.rows, map(jpegs, work.ids, media))
        shard = work.first // config.spec.shard_items
        write_table(sink, clips_file(shard), pa.Table.from_pylist(rows, CLIPS))
        notes.add(took)
        notes.merge()
        return _counts(rows)

    return ArrayWriter(config.spec, provenance, fill, CLIPS)


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
