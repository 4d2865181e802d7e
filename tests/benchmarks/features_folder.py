"""Features of a folder, beside the loop that a person would write, and what it costs to take small files of one."""

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.fetcher import RawFolder, fetch
from pipelines.fetching.sealing import FileSet
from tests.benchmarks.bench_trust import picture
from tests.benchmarks.measured import Bar, Measured, timed
from xmodal.corpora import Source
from xmodal.root.storage import open_storage

BARS = {"folder_features_vs_loop": Bar(minimum=0.95), "folder_taken_vs_decoded": Bar()}
PICTURES, DIFFERENT, TRIED, ROUNDS = 2000, 64, 256, 3
WAYS = ((0, 2), (1, 1), (1, 2), (2, 1), (2, 2))  # processes that decode, threads of the network
SMALL, SIDES = 10_000, (160, 120)


def measure(folder: Path) -> Iterator[dict[str, Measured]]:
    yield {"folder_features_vs_loop": _features(folder)}
    yield {"folder_taken_vs_decoded": _taken(folder)}


def _features(folder: Path) -> Measured:
    """By turns; of the loop's settings the one that was the fastest of a few pictures."""
    pictures = [picture(seed) for seed in range(DIFFERENT)]
    for name, count in {"few": TRIED, "all": PICTURES}.items():
        _write(folder / name, pictures, count)
    tried = {way: _loop(folder / "few", *way) for way in WAYS}
    best = max(tried, key=tried.__getitem__)
    runs, ours, theirs = [], [], []
    for turn in range(ROUNDS):
        both = [lambda: ours.append(_ours(folder)), lambda: theirs.append(_loop(folder / "all", *best))]
        for way in both[:: 1 if turn % 2 else -1]:
            way()
        runs.append(round(ours[-1] / theirs[-1], 3))
    speeds = f"{statistics.median(ours):.1f} pictures/s over {statistics.median(theirs):.1f}"
    told = f"{speeds} of a DataLoader with {best[0]} workers and {best[1]} threads, the best of {len(WAYS)} settings"
    return Measured(statistics.median(runs), "x", told, tuple(runs))


def _loop(folder: Path, workers: int, threads: int) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.features_loop", str(folder), str(workers), str(threads)]
    return float(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def _ours(folder: Path) -> float:
    """The steady pictures a second: from when each worker has ended a shard, by the times of their files."""
    out, workers = folder / "store", os.cpu_count() or 1
    arguments = ["features", str(folder / "all"), "--model", "resnet18", "--set", "weights=random:0", "--quiet"]
    command = [sys.executable, "-m", "pipelines", *arguments, "--out", str(out), "--workers", str(workers)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shards = sorted(file.stat() for file in out.glob("resnet18-pooled/c/*/0"))
    ends = sorted((facts.st_mtime_ns, facts.st_size) for facts in shards)
    rows = sum(size for _, size in ends[workers:]) / sum(size for _, size in ends) * PICTURES
    shutil.rmtree(out)
    return rows / (ends[-1][0] - ends[workers - 1][0]) * 1e9


def _taken(folder: Path) -> Measured:
    """Small files into a new root, sealed, over opening and decoding them; by turns, all in the page cache."""
    _write(folder / "small", [_small(picture(seed)) for seed in range(DIFFERENT)], SMALL)
    sources = [Source(f"{number:05d}.jpg", how="at hand", part="media") for number in range(SMALL)]

    def take(turn: int) -> None:
        files = FileSet(open_storage(str(folder / f"root-{turn}")), "media", "small", (), tuple(sources))
        raw = RawFolder(folder / "small", sources, whole_paths=True)
        fetch(files.ledger, files.to_fetch(), raw, serial, ProgressLine(quiet=True))
        assert files.seal().totals["counts"] == {"present": SMALL, "absent": 0}

    def look() -> None:
        for source in sources:
            with Image.open(folder / "small" / source.path) as image:
                image.convert("RGB")

    look()
    spent = [(timed(lambda turn=turn: take(turn)), timed(look)) for turn in range(ROUNDS)]
    runs = tuple(round(looked / took, 3) for took, looked in spent)
    took, looked = (statistics.median(some) for some in zip(*spent, strict=True))
    told = f"opening and decoding {SMALL:,} JPEGs of {SIDES[0]} x {SIDES[1]}, {looked:.1f} s; taking them {took:.1f} s"
    return Measured(statistics.median(runs), "x", told, runs)


def _small(jpeg: bytes) -> bytes:
    data = io.BytesIO()
    with Image.open(io.BytesIO(jpeg)) as image:
        image.resize(SIDES).save(data, "JPEG", quality=90)
    return data.getvalue()


def _write(folder: Path, pictures: Sequence[bytes], count: int) -> None:
    folder.mkdir()
    for number in range(count):  # a comment at its end makes each file's bytes its own
        (folder / f"{number:05d}.jpg").write_bytes(pictures[number % DIFFERENT] + f"{number}".encode())
