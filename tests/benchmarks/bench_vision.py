"""Features: a stage on Ray beside the bare network and what computes, `xmodal features` beside a loop; regions."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import features_folder, features_streaming, vision_detector, vision_nms
from tests.benchmarks.measured import Measured

BARS = {**features_streaming.BARS, **features_folder.BARS, **vision_nms.BARS, **vision_detector.BARS}


def measure(anchors: Path | None) -> Iterator[dict[str, Measured]]:
    for part in (vision_nms, features_streaming, features_folder, vision_detector):
        with tempfile.TemporaryDirectory() as folder:
            yield from part.measure(Path(folder))
