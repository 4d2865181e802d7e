"""Clips sampled by a process that has imported nothing else: the memory of one that lives long, and over an hour.

`python -m tests.benchmarks.sampling_alone growth|hour PATH` prints megabytes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from xmodal.media.frame_sampling import Sampled, encode_jpeg, sample_frames
from xmodal.media.frame_times import Frame, Limits

WARM_UP, MORE = 20, 500  # clips; memory is said to grow after the first
ENDLESS = Limits(bytes=1 << 40, frames=1 << 40, seconds=1 << 40, samples=1 << 40)


def sampled(clip: Path, keep: Callable[[Frame], object]) -> Sampled:
    row = sample_frames(clip.read_bytes(), keep, limits=ENDLESS)
    if row.status != "ok":
        raise RuntimeError(f"{clip}: {row.status}: {row.message}")
    return row


def jpegs(clip: Path) -> list[bytes]:
    kept: list[bytes] = []
    sampled(clip, lambda frame: kept.append(encode_jpeg(frame.pixels_HW3)))
    return kept


def count_jpegs(clip: Path) -> int:
    return len(jpegs(clip))


def _growth_mb(folder: Path) -> float:
    clips, before = sorted(folder.glob("*.*")), 0.0
    for number in range(WARM_UP + MORE):
        if number == WARM_UP:
            before = _memory_mb("VmRSS")
        sampled(clips[number * 7 % len(clips)], _encode)  # kinds and sizes in turn
    return _memory_mb("VmRSS") - before


def _hour_mb(clip: Path) -> float:
    sampled(clip, _encode)
    return _memory_mb("VmHWM")


def _encode(frame: Frame) -> None:
    encode_jpeg(frame.pixels_HW3)


def _memory_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


if __name__ == "__main__":
    print(round({"growth": _growth_mb, "hour": _hour_mb}[sys.argv[1]](Path(sys.argv[2])), 1))
