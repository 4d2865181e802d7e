"""How others take eight frames a second out of a clip: by ffmpeg's commands, written here as theirs are known to be."""

import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.media.frame_sampling import encode_jpeg

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # width first
JPEGS = "%06d.jpg"


def require_ffmpeg() -> None:
    if not shutil.which("ffmpeg"):
        raise SystemExit(
            "frames are compared with those of the command ffmpeg, which is not here: apt-get install ffmpeg"
        )


def piped(clip: Path, size: Size) -> Sequence[Pixels]:
    """Raw pixels through a pipe: of its ways of rounding the one that gives the frames that are shown."""
    width, height = size
    filters = f"setpts=PTS-STARTPTS,fps=8:round=up,scale={width}:{height}:flags=bilinear"
    raw = _ffmpeg(clip, "-vf", filters, "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:")
    return list(np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3))


def burst(clip: Path, size: Size) -> Sequence[bytes]:
    """As GulpIO does: every frame to a file, of the best quality, from there resized and encoded once more."""
    with tempfile.TemporaryDirectory() as folder:
        _ffmpeg(clip, "-q:v", "1", "-r", "8", f"{folder}/{JPEGS}")
        pictures = (Image.open(file) for file in sorted(Path(folder).iterdir()))
        return [encode_jpeg(np.asarray(picture.resize(size, Image.Resampling.BILINEAR))) for picture in pictures]


def encoded_again(clip: Path, size: Size) -> Sequence[Pixels]:
    """As video2dataset does: one video of eight frames a second, of that a smaller one, and that is decoded."""
    with tempfile.TemporaryDirectory() as folder:
        slow, small = Path(folder) / "slow.mp4", Path(folder) / "small.mp4"
        _ffmpeg(clip, "-vf", "fps=8", str(slow))
        _ffmpeg(slow, "-vf", f"scale={size[0] // 2 * 2}:{size[1] // 2 * 2}", str(small))
        with av.open(io.BytesIO(small.read_bytes())) as opened:
            return [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in opened.decode(video=0)]


def _ffmpeg(clip: Path, *told: str) -> bytes:
    """One thread, as ours."""
    quiet = ("ffmpeg", "-nostdin", "-loglevel", "error", "-filter_threads", "1", "-threads", "1", "-i", str(clip))
    return subprocess.run([*quiet, "-threads", "1", *told], check=True, capture_output=True).stdout
