"""Pictures and the networks that see them: bytes → pixels → features. Torch is imported when a network is loaded.

Shapes: B pictures, H and W pixels of the crop, R places of the grid, D width of a feature.
"""

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

if TYPE_CHECKING:
    pass


MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by which every network here was trained
MOST_PIXELS = 1 << 26
ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


JPEG, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
BETWEEN_JPEGS = re.compile(b"(?<=" + JPEG_END + b")(?=" + JPEG + b")")
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")  # none that runs another program
UNDECODABLE = (  # what Pillow's decoders are known to raise over bytes that are no whole picture
    *(OSError, SyntaxError, ValueError, RuntimeError, EOFError, LookupError, OverflowError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)


Cut = Callable[[str], None]  # is told why a picture is not all there


class UnreadableImage(Exception):
    """Bytes that are no picture anyone can show; its text is the reason, the same for the same bytes."""


def open_image(data: bytes, cut: Cut | None = None) -> Image.Image:
    """RGB, upright; transparent parts are white, of 16 bits the upper 8 are kept, of many frames the first.

    Where a file ends, or breaks, within the picture `cut` is told how, and what is missing has one colour: gray of
    JPEG, else the format's first. Without `cut`, or where all has one colour, such a file is unreadable.
    """
    with _reading(), _opened(data) as image:
        try:
            return _upright(image)
        except UNDECODABLE as error:
            if cut is None:
                raise
            remains = _upright(_remains(data, image))
            if not np.ptp(np.asarray(remains), axis=(0, 1)).any():
                raise
            cut(_reason(error))
            return remains


def open_frames(data: bytes, count: int) -> list[Image.Image]:
    """Frames of a clip, as `open_image` gives the first: the middles of `count` equal stretches of it, with repeats
    where it has fewer frames. Of video JPEGs one after the other are read, and what Pillow does not read is no clip."""
    jpegs = BETWEEN_JPEGS.split(data) if data.startswith(JPEG) else []
    if len(jpegs) > 1:
        return [open_image(jpegs[(2 * number + 1) * len(jpegs) // (2 * count)]) for number in range(count)]
    with _reading(), _opened(data) as image:
        length = getattr(image, "n_frames", 1)
    return list(frames_at(data, [(2 * number + 1) * length // (2 * count) for number in range(count)]))


def frames_at(data: bytes, numbers: Iterable[int]) -> Iterator[Image.Image]:
    """Frames as `open_image` gives the first, one by one."""
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
    """What decoding raises is UnreadableImage."""
    with warnings.catch_warnings():  # of odd metadata, and of sizes that are refused here
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


def _remains(data: bytes, image: ImageFile) -> Image.Image:
    """What a decoder has left of the picture that it failed at."""
    if image.format == "JPEG":
        return _opened(data + JPEG_END)  # with which it goes on to the picture's end
    image.tile = []  # no more is asked of it
    return image


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # before it is asked for its orientation: TIFF is turned by then, and faults are not taken for EXIF's
    turn = UPRIGHT.get(_orientation(image))
    colours = _rgb(image)
    return colours if turn is None else colours.transpose(turn)


def square(data: bytes, resize: int, crop: int, cut: Cut | None = None) -> NDArray[np.uint8]:
    """(H, W, 3): the middle of a picture whose shorter side is resized, as torchvision's own transforms cut it."""
    image = open_image(data, cut)
    width, height = (resize * side // min(image.size) for side in image.size)
    if width * height > MOST_PIXELS:
        raise UnreadableImage(f"{image.width} x {image.height} pixels are too narrow to resize")
    left, top = round((width - crop) / 2), round((height - crop) / 2)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + crop, top + crop)))


def normalised(colours_HW3: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(3, H, W): what a network takes."""
    normal_HW3 = (colours_HW3.astype(np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)
    return np.ascontiguousarray(normal_HW3.transpose(2, 0, 1))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except (*UNDECODABLE, TypeError):  # metadata may be broken where the picture is whole
        return 1


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
    """Without the address of the buffer, which changes from run to run."""
    text = "no image format that is known" if isinstance(error, UnidentifiedImageError) else str(error)
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split()) or type(error).__name__
