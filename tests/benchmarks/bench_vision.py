"""Features: a stage on Ray beside the bare network and what computes, and `xmodal features` beside a plain loop."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import features_folder, features_streaming
from tests.benchmarks.measured import Measured

BARS = {**features_streaming.BARS, **features_folder.BARS}


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    for part in (features_streaming, features_folder):
        with tempfile.TemporaryDirectory() as folder:
            yield from part.measure(Path(folder))
