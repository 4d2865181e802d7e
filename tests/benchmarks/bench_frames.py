"""Frames of clips beside ffmpeg's commands and what is built on them; processes, memory, and reading what was kept.

Clips are made here (`moving`). CPU time is that of this process and of those it started. In a round every way takes
every clip, in another order each time; a ratio is the median over the rounds. What is compared gives the same frames.
"""

import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from pipelines.engine.building import build
from pipelines.engine.clip_sampler import ClipSampler
from pipelines.stages.frames import FramesConfig
from tests.benchmarks import moving
from tests.benchmarks.measured import Bar, Measured, timed
from tests.benchmarks.other_ways import Pixels, burst, encoded_again, piped, require_ffmpeg
from tests.benchmarks.sampling_alone import MORE, WARM_UP, count_jpegs, jpegs, sampled
from tests.made import frames
from tests.stages.test_resnet_stage import sealed
from xmodal.features.frame_store import FrameStore
from xmodal.root.storage import open_storage

BARS = {
    "gif_vs_ffmpeg": Bar(minimum=1.8),
    "mp4_vs_ffmpeg": Bar(minimum=2.2),
    "vs_gulpio": Bar(minimum=3.0),
    "vs_reencoding": Bar(minimum=8.0),
    "two_processes_vs_one": Bar(minimum=1.8),
    "growth_mb_500_clips": Bar(maximum=20),
    "killable_worker_cost": Bar(maximum=1.05),
    "one_hour_video_mb": Bar(maximum=100),
    "eight_frames_ms": Bar(maximum=3.0),
}
EACH = 12  # GIFs, and MP4s
ROUNDS = 5
TOLERANCE = 1.0  # of 255, the mean over a frame: another version of ffmpeg rounds colours in another way


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    require_ffmpeg()
    with tempfile.TemporaryDirectory() as folder:
        clips = _clips(Path(folder))
        _check(clips)
        yield _ways(clips)
        yield _processes(clips)
        yield _memory(Path(folder))
        yield _killable(clips)
        yield _eight_frames(Path(folder), clips)


def _clips(folder: Path) -> list[Path]:
    clips = []
    for number in range(EACH):
        for kind, made in (("gif", moving.gif(number)), ("mp4", moving.mp4(number))):
            clips.append(folder / f"{number:02d}.{kind}")
            clips[-1].write_bytes(made)
    return clips


def _check(clips: Iterable[Path]) -> None:
    """Of some files ffmpeg gives one sample less, at the end."""
    for clip in clips:
        kept: list[Pixels] = []
        row = sampled(clip, lambda frame, kept=kept: kept.append(frame.pixels_HW3))
        ours = [kept[frame] for frame in row.frame_of_sample]
        theirs = piped(clip, _size(clip))
        apart = max(float(np.abs(o.astype(int) - t).mean()) for o, t in zip(ours, theirs, strict=False))
        if not 0 <= len(ours) - len(theirs) <= 1 or apart > TOLERANCE:
            raise RuntimeError(f"{clip}: {len(ours)} samples and {len(theirs)}, apart by {apart:.2f}")


def _ways(clips: Sequence[Path]) -> dict[str, Measured]:
    sizes = {clip: _size(clip) for clip in clips}
    ways: dict[str, Callable[[Path], object]] = {
        "pixels": _pixels,
        "jpegs": jpegs,
        "piped": lambda clip: piped(clip, sizes[clip]),
        "burst": lambda clip: burst(clip, sizes[clip]),
        "again": lambda clip: encoded_again(clip, sizes[clip]),
    }
    spent = {(kind, way): [0.0] * ROUNDS for kind in (".gif", ".mp4") for way in ways}
    turns = [(clip, way) for clip in clips for way in ways]
    for turn in range(ROUNDS):
        for place in np.random.default_rng(turn).permutation(len(turns)):
            clip, way = turns[place]
            before = _cpu_seconds()
            ways[way](clip)
            spent[clip.suffix, way][turn] += _cpu_seconds() - before
    both = {way: [sum(kinds) for kinds in zip(spent[".gif", way], spent[".mp4", way], strict=True)] for way in ways}
    ffmpeg = f"{_version()}, one thread, bilinear, raw pixels through a pipe"
    again = "two more encodings by x264, as video2dataset does, and decoding"
    return {
        "gif_vs_ffmpeg": _ratio(spent[".gif", "piped"], spent[".gif", "pixels"], EACH, ffmpeg),
        "mp4_vs_ffmpeg": _ratio(spent[".mp4", "piped"], spent[".mp4", "pixels"], EACH, ffmpeg),
        "vs_gulpio": _ratio(
            both["burst"], both["jpegs"], 2 * EACH, "ffmpeg -r 8 to files, resized, JPEG on both sides"
        ),
        "vs_reencoding": _ratio(both["again"], both["pixels"], 2 * EACH, again),
    }


def _processes(clips: Sequence[Path]) -> dict[str, Measured]:
    """Processes that are there and warm; each clip twice."""
    many, context = [*clips, *clips], multiprocessing.get_context("spawn")
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(2, context) as two:
        pools = {1: one, 2: two}
        for pool in pools.values():
            list(pool.map(count_jpegs, many))
        for turn in range(ROUNDS):
            for count in (1, 2) if turn % 2 else (2, 1):
                seconds[count].append(timed(lambda pool=pools[count]: list(pool.map(count_jpegs, many))))
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    told = f"clips of both kinds to JPEGs: {len(many) / statistics.median(seconds[1]):.3g} a second by one process"
    return {"two_processes_vs_one": _median(ratios, "x", told)}


def _memory(folder: Path) -> dict[str, Measured]:
    hour = folder / "hour" / "hour.mp4"
    hour.parent.mkdir()
    moving.write_hour(hour)
    grown = f"after {MORE} clips more than the first {WARM_UP}, to JPEGs"
    peak = f"640 x 360, 24 frames a second, to JPEGs; of it {hour.stat().st_size / 1e6:.1f} MB are the file"
    return {
        "growth_mb_500_clips": _median([_in_a_process("growth", folder)], "MB", grown),
        "one_hour_video_mb": _median([_in_a_process("hour", hour)], "MB", peak),
    }


def _killable(clips: Sequence[Path]) -> dict[str, Measured]:
    config = FramesConfig()
    worker = ClipSampler(config.request, config.limit)
    ways: tuple[Callable[[Path], object], ...] = (jpegs, lambda clip: worker.sample(clip.read_bytes()).jpegs)
    ratios = []
    for turn in range(ROUNDS + 1):
        spent = [0.0, 0.0]
        for place in np.random.default_rng(turn).permutation(2 * len(clips)):
            clip, way = divmod(int(place), 2)
            spent[way] += timed(lambda clip=clip, way=way: ways[way](clips[clip]))
        ratios.append(spent[1] / spent[0])
    worker.close()
    return {"killable_worker_cost": _median(ratios[1:], "x", "seconds of the same clips to JPEGs, in process")}


def _eight_frames(folder: Path, clips: Sequence[Path]) -> dict[str, Measured]:
    """Spread evenly over a clip that another one was read before."""
    storage, files = open_storage(str(folder / "root")), {clip.name: clip.read_bytes() for clip in clips}
    items = tuple((path, path) for path in sorted(files))
    store = FrameStore(build(frames(sealed(storage, files), items, FramesConfig()), storage))
    spent = []
    for turn in range(ROUNDS + 1):
        for place in np.random.default_rng(turn).permutation(len(items)):
            id = items[place][0]
            samples = np.linspace(0, len(store.frame_of_sample(id)) - 1, 8).round().astype(int)
            spent.append(1000 * timed(lambda id=id, samples=samples: store.pictures(id, samples)))
    return {"eight_frames_ms": _median(spent[len(items) :], "ms", "of a random clip, page cache warm, short side 256")}


def _pixels(clip: Path) -> list[Pixels]:
    kept: list[Pixels] = []
    sampled(clip, lambda frame: kept.append(frame.pixels_HW3))
    return kept


def _size(clip: Path) -> tuple[int, int]:
    height, width, _ = _pixels(clip)[0].shape
    return width, height


def _cpu_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def _ratio(theirs: Sequence[float], ours: Sequence[float], clips: int, told: str) -> Measured:
    per_second = (clips / statistics.median(seconds) for seconds in (theirs, ours))
    told += ": {:.3g} clips a CPU second, ours {:.3g}".format(*per_second)
    return _median([t / o for t, o in zip(theirs, ours, strict=True)], "x", told)


def _median(runs: Sequence[float], unit: str, told: str) -> Measured:
    return Measured(statistics.median(runs), unit, told, tuple(round(run, 4) for run in runs))


def _version() -> str:
    first = subprocess.run(["ffmpeg", "-version"], check=True, capture_output=True, text=True).stdout.split()
    return f"ffmpeg {first[2]}"


def _in_a_process(what: str, path: Path) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.sampling_alone", what, str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
