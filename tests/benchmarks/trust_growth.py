"""A list of pictures that grows by a hundredth: what is computed, and how long the command takes."""

import io
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pipelines.cli import main
from tests.benchmarks.measured import Bar, Measured, timed
from xmodal.features.networks import Extractor

BARS = {"growth_share_computed": Bar(maximum=1.01), "growth_seconds_vs_share": Bar(maximum=3.0)}
ITEMS, NEW, ROUNDS = 10_000, 100, 3
PICTURES = 64  # different ones; a comment at its end makes each file's bytes its own
SETTINGS = ("weights=random:0",)  # else as it is by default


def measure(folder: Path) -> dict[str, Measured]:
    """The whole list once, then a hundredth more three times over, each among the others, then once more counted."""
    pictures, listed = [_picture(seed) for seed in range(PICTURES)], folder / "list"
    listed.mkdir()
    ids = np.random.default_rng(0).permutation(ITEMS + (ROUNDS + 1) * NEW).tolist()
    settings = [f"--set=resnet.{setting}" for setting in SETTINGS]
    built = ["build", f"{listed}/resnet", "--root", str(folder / "root"), *settings]
    command = [sys.executable, "-m", "pipelines", *built, "--quiet"]

    def add(count: int) -> None:
        for id in (ids.pop() for _ in range(count)):
            (listed / f"{id:06d}.jpg").write_bytes(pictures[id % PICTURES] + f"{id}".encode())
        lines = [f"{path.name}\ta picture\n" for path in sorted(listed.glob("*.jpg"))]
        (listed / "captions.tsv").write_text("".join(["url\tcaption\n", *lines]))

    def build() -> float:
        return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))

    add(ITEMS)
    whole = build()
    runs = []
    for _ in range(ROUNDS):
        add(NEW)
        runs.append(round(build() / (whole * NEW / ITEMS), 3))
    add(NEW)
    with _counted() as seen:
        main([*built, "--serial", "--quiet"])
    told = f"1 % of the {whole:.0f} s of {ITEMS:,} pictures by resnet152, the default, whole commands"
    share = sum(seen) / NEW
    return {
        "growth_share_computed": Measured(share, "x", f"the {NEW} rows that are new", (share,)),
        "growth_seconds_vs_share": Measured(statistics.median(runs), "x", told, tuple(runs)),
    }


@contextmanager
def _counted() -> Iterator[list[int]]:
    """Pictures that went through a network, by batch."""
    seen, call = list[int](), Extractor.__call__

    def counting(self: Extractor, pixels: Any) -> Any:
        seen.append(len(pixels))
        return call(self, pixels)

    Extractor.__call__ = counting  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Extractor.__call__ = call  # type: ignore[method-assign]


def _picture(seed: int) -> bytes:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (12, 16, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
    return data.getvalue()
