"""Samples clips in a process that is killed when one takes too long."""

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pipelines.engine.killable_worker import KillableWorker, ResourceLimit, Send, WorkerFailure
from xmodal.media import frame_sampling
from xmodal.media.frame_sampling import Sampled, encode_jpeg, one_line
from xmodal.media.frame_times import Frame, Limits, Sampling

Subsampling = Literal["4:2:0", "4:2:2", "4:4:4"]
TRIES = 2  # of a clip whose process dies
PLANNED, FRAME = b"P", b"F"  # messages before the answer, a row


@dataclass(frozen=True)
class SampleRequest:
    """Everything besides a clip's bytes that decides its frames."""

    sampling: Sampling
    limits: Limits
    quality: int = 95
    subsampling: Subsampling = "4:2:0"


@dataclass(frozen=True, eq=False)
class SampledClip:
    """JPEGs count only if the row's status is usable; `attempt` counts from 1."""

    row: Sampled
    jpegs: list[bytes]
    elapsed_ms: int
    attempt: int


class ClipSampler:
    """Samples clips one by one in a process that `close` ends."""

    def __init__(self, request: SampleRequest, limit: ResourceLimit) -> None:
        self._worker = KillableWorker(f"{__name__}:answer", asdict(request), limit)

    def close(self) -> None:
        self._worker.close()

    def sample(self, data: bytes) -> SampledClip:
        """Tries once more if the process dies, but not after a timeout."""
        began, attempt = time.monotonic(), 1
        row, jpegs = self._sample(data)
        while row.status == "worker_died" and attempt < TRIES:
            row, jpegs = self._sample(data)
            attempt += 1
        return SampledClip(row, jpegs, round(1000 * (time.monotonic() - began)), attempt)

    @property
    def pid(self) -> int:
        return self._worker.pid

    def _sample(self, data: bytes) -> tuple[Sampled, list[bytes]]:
        row, jpegs = Sampled(len(data)), list[bytes]()
        try:
            for kind, body in self._worker.call(data):
                if kind == FRAME:
                    jpegs.append(body)
                    continue
                row = _row(body)
                if kind == PLANNED:
                    self._worker.allow(row.duration_ms)
        except WorkerFailure as failure:
            message = str(failure)
            if failure.status == "timeout":
                message = f"not done after {self._worker.limit.allows(row.duration_ms):g} seconds"
            row = replace(row, status=failure.status, message=one_line(message))
        return row, jpegs


def answer(settings: dict[str, Any], data: bytes, send: Send) -> bytes:
    """Sends each frame, once decoded, as a JPEG; returns the clip's row as JSON."""
    sampling, limits = Sampling(**settings["sampling"]), Limits(**settings["limits"])

    def keep(frame: Frame) -> None:
        send(FRAME, frame.jpeg or encode_jpeg(frame.pixels_HW3, settings["quality"], settings["subsampling"]))

    return _json(frame_sampling.sample_frames(data, keep, sampling, limits, lambda row: send(PLANNED, _json(row))))


def _json(row: Sampled) -> bytes:
    return json.dumps(asdict(row)).encode()


def _row(data: bytes) -> Sampled:
    fields: dict[str, Any] = json.loads(data)
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Sampled(**fields)
