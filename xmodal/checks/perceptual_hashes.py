"""Perceptual hashes: 64 bits that hardly change when a picture is encoded anew or resized.

A picture is made gray and 32 x 32; of its cosine transform the 64 lowest frequencies are kept, without the mean, and a
bit says which are above their median. Whole numbers make the bits the same on every processor. Two pictures that have
nothing to do with each other differ in some 32 bits; docs/corpora.md#near-copies says which copies are found.

A picture of one colour or a gradient has next to nothing at most frequencies: noise would decide its bits. It has no
hash, and is a copy only of equal bytes. A clip that fades in or out is compared by its other frames.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from xmodal.media.images import open_frames, open_image
from xmodal.records.tables import Kind

PerceptualHashes = tuple[int | None, ...]  # one for each frame; None for a frame without

BITS = 64
FRAMES = 3  # of a clip; a still picture counts as three equal frames, so that both can be compared
MIN_FRAMES = 2  # with hashes on both sides: with one, a clip would be the copy of any picture in it
SIDE = 32
SCALE = 1 << 14  # of the basis: a picture times the basis twice stays far below 2^63
LEAST = 2  # gray levels by which half of the frequencies differ from their median, in an orthonormal transform


def _basis() -> NDArray[np.int64]:
    """(SIDE, SIDE): the cosines, a frequency a row."""
    frequency, place = np.arange(SIDE)[:, None], np.arange(SIDE)[None]
    cosines = np.cos(np.pi * frequency * (2 * place + 1) / (2 * SIDE)) * np.sqrt(2 / SIDE)
    cosines[0] /= np.sqrt(2)
    return np.asarray(np.rint(cosines * SCALE), np.int64)


def _lowest() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the lowest frequencies, ordered by the sum of both."""
    known = sorted((down + across, down, across) for down in range(SIDE) for across in range(SIDE))[1 : BITS + 1]
    return np.array([down for _, down, _ in known]), np.array([across for _, _, across in known])


BASIS, LOWEST = _basis(), _lowest()


def hash_media(data: bytes, kind: Kind) -> PerceptualHashes | None:
    """Hashes FRAMES frames of a picture or clip; None if too few have a hash. Raises UnreadableImage."""
    if kind == "image":
        found = (hash_picture(open_image(data)),) * FRAMES
    else:
        found = tuple(hash_picture(frame) for frame in open_frames(data, FRAMES))
    return found if len(found) - found.count(None) >= MIN_FRAMES else None


def hash_picture(picture: Image.Image) -> int | None:
    """The BITS of a picture as a number; None if noise would decide them."""
    small = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    strength = (BASIS @ np.asarray(small, np.int64) @ BASIS.T)[LOWEST]
    median = np.sort(strength)[BITS // 2 - 1]
    if np.sort(abs(strength - median))[BITS // 2] < LEAST * SCALE**2:
        return None
    return int.from_bytes(np.packbits(strength > median).tobytes())
