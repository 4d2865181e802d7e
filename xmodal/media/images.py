"""Images: from bytes of any format to upright RGB pixels, and to crops for networks."""

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.Image import Transpose
from PIL.ImageFile import ImageFile

from xmodal.media.frame_times import Frame, Sampling

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
MOST_PIXELS = 1 << 26
ORIENTATION = 0x0112
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
JPEG, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
BETWEEN_JPEGS = re.compile(b"(?<=" + JPEG_END + b")(?=" + JPEG + b")")
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")  # EPS would run another program
UNDECODABLE = (  # errors of Pillow's decoders
    *(OSError, SyntaxError, ValueError, RuntimeError, EOFError, LookupError, OverflowError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)

OnTruncated = Callable[[str], None]  # receives the reason


class UnreadableImage(Exception):
    """The text is the reason, always the same for the same bytes; `kind` is its class among a unit's failures."""

    kind = "unreadable"


def open_image(data: bytes, on_truncated: OnTruncated | None = None) -> Image.Image:
    """Decodes a picture to upright RGB: white where it was transparent, the upper 8 of 16 bits, the first frame.

    `on_truncated` is told why a picture is broken, and the missing part has one colour. Without it, or if nothing was
    decoded, the file is unreadable.
    """
    with _reading(), _opened(data) as image:
        try:
            return _upright(image)
        except UNDECODABLE as error:
            if on_truncated is None:
                raise
            if image.format == "JPEG":
                remains = _upright(_opened(data + JPEG_END))  # the decoder fills the rest
            else:
                image.tile = []  # nothing is left to decode
                remains = _upright(image)
            if not np.ptp(np.asarray(remains), axis=(0, 1)).any():
                raise
            on_truncated(_reason(error))
            return remains


def open_frames(data: bytes, count: int) -> list[Image.Image]:
    """Decodes the middles of `count` equal stretches of a clip that Pillow reads, or of motion JPEG."""
    jpegs = BETWEEN_JPEGS.split(data) if data.startswith(JPEG) else []
    length = len(jpegs)
    if length < 2:
        with _reading(), _opened(data) as image:
            length = getattr(image, "n_frames", 1)
    numbers = [(2 * number + 1) * length // (2 * count) for number in range(count)]
    return [open_image(jpegs[number]) for number in numbers] if len(jpegs) > 1 else list(frames_at(data, numbers))


def frames_at(data: bytes, numbers: Iterable[int]) -> Iterator[Image.Image]:
    """Decodes the frames of these numbers as `open_image` does the first."""
    with _reading():
        image = _opened(data)
    with image:
        for number in numbers:
            with _reading():
                image.seek(number)
                picture = _upright(image)
            yield picture


@contextmanager
def _reading() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except UNDECODABLE as error:
            raise UnreadableImage(_reason(error)) from error


def _opened(data: bytes) -> ImageFile:
    image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        raise UnreadableImage(f"{image.width} x {image.height} pixels are too many")
    return image


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # this turns TIFF, and its errors must not look like EXIF's
    try:
        turn = UPRIGHT.get(int(image.getexif().get(ORIENTATION, 1)))
    except (*UNDECODABLE, TypeError):  # broken metadata of a whole picture
        turn = None
    colours = _rgb(image)
    return colours if turn is None else colours.transpose(turn)


def sampled_frame(picture: Image.Image, config: Sampling) -> Frame:
    size = config.size(*picture.size)
    return Frame(np.asarray(picture if size == picture.size else picture.resize(size, Image.Resampling.BILINEAR)))


def resized(size: tuple[int, int], shorter: int) -> tuple[int, int]:
    """Returns width and height of a picture whose shorter side is resized."""
    width, height = (shorter * side // min(size) for side in size)
    return width, height


def normalised(colours_HW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pixels for a network, (3, H, W): looked up, as computing all costs as much as half of decoding."""
    pixels_3HW = np.empty((3, *colours_HW3.shape[:2]), np.float32)
    for colour, values in enumerate(_normal_values()):
        np.take(values, colours_HW3[..., colour], out=pixels_3HW[colour], mode="clip")  # "raise" would make a copy
    return pixels_3HW


@cache
def _normal_values() -> NDArray[np.float32]:
    """Returns (3, 256)."""
    shades = np.arange(256, dtype=np.float32) / 255
    mean, deviation = (np.array(each, np.float32)[:, None] for each in (MEAN, DEVIATION))
    return np.ascontiguousarray((shades - mean) / deviation)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise UnreadableImage("pixels are real numbers of no known range")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64) >> 8
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def _reason(error: Exception) -> str:
    text = "no image format that is known" if isinstance(error, UnidentifiedImageError) else str(error)
    text = re.sub(r" at 0x[0-9a-f]+", "", text)  # an address in memory changes from run to run
    return " ".join(text.split()) or type(error).__name__
