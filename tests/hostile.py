"""The process that samples clips, for tests: GIFs with these words in them do what clips do to a poor decoder."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.engine import clip_sampler
from xmodal.media import frame_sampling
from xmodal.media.frame_sampling import Sampled, sample_frames
from xmodal.media.frame_times import Frame

PROGRAM = "from tests.hostile import serve; serve()"


def serve() -> None:
    frame_sampling.sample_frames = sample_or_worse  # type: ignore[assignment]
    clip_sampler.serve()


def serve_the_second_time(mark: str) -> None:
    """The first process ends before it is ready."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    serve()


def sample_or_worse(data: bytes, keep: Callable[[Frame], None], *settings: Any) -> Sampled:
    if b"hang" in data:
        time.sleep(3600)
    if b"die" in data:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"raise" in data:
        raise ZeroDivisionError("nobody expected this")
    if (once := re.search(rb"once (\S+) ", data)) and not Path(os.fsdecode(once[1])).exists():
        Path(os.fsdecode(once[1])).touch()
        os._exit(3)
    return sample_frames(data, _after_the_first(keep, data), *settings)


def _after_the_first(keep: Callable[[Frame], None], data: bytes) -> Callable[[Frame], None]:
    """What goes wrong while frames are decoded."""

    def kept(frame: Frame) -> None:
        keep(frame)
        if b"slow" in data:
            time.sleep(0.1)
        if b"devour" in data:
            bytearray(8 << 30)

    return kept
