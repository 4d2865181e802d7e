"""Picture crops: every sample of a phase that reads pixels is cropped, flipped and coloured anew.

Crops follow torchvision's transforms (docs/models.md#pvse-training, docs/models.md#pcme-training). Chance is drawn for
a sample of an epoch, wherever it is cropped; all frames of a clip are changed alike.

Shapes: B samples, F frames of a clip (1 of a picture), S a side of a stored picture, H and W pixels of the crop, T
tries. Sizes and sides are heights and widths.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from xmodal.batches.batch import Padded
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import FIRST_PICTURE_PURPOSE, Integers, SampleRandom
from xmodal.errors import UserError
from xmodal.features.frame_store import FrameStore, threads
from xmodal.features.store import FeatureStore
from xmodal.media.images import normalised, resized
from xmodal.recipes import Pixels
from xmodal.training.finetuning import network_of

Range = tuple[float, float]
Box = tuple[int, int, int, int]  # top, left, height and width
Colours = tuple[tuple[float, float, float], tuple[int, ...]]  # amounts and order, as `coloured` takes them
Sources = tuple[Integers, Callable[[int], Iterable[Image.Image]]]  # sizes (B, 2), and the pictures of a sample
TRIES = 10  # to fit a rectangle
CROP, ERASED = ((0.08, 1.0), (3 / 4, 4 / 3)), ((0.02, 1 / 3), (0.3, 1 / 0.3))  # limits of area and of aspect
BRIGHTNESS, CONTRAST, HUE = 0.1, 0.1, 0.1  # the most that each changes
CUTTING, FLIPPING, COLOURING, ERASING = (FIRST_PICTURE_PURPOSE + 64 * part for part in range(4))  # purposes of draws


@dataclass(frozen=True)
class Cut:
    """One sample's crop, and how its pictures are changed."""

    box: Box  # what is kept of the whole picture
    flipped: bool = False
    colours: Colours | None = None
    erased: Box | None = None

    def pixels(self, image: Image.Image, crop: int) -> NDArray[np.float32]:
        """Returns (3, H, W), normalised."""
        top, left, height, width = self.box
        image = image.crop((left, top, left + width, top + height))
        if image.size != (crop, crop):
            image = image.resize((crop, crop), Image.Resampling.BILINEAR)
        if self.flipped:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.colours:
            image = coloured(image, *self.colours)
        pixels_3HW = normalised(np.asarray(image))
        if self.erased:
            top, left, height, width = self.erased
            pixels_3HW[:, top : top + height, left : left + width] = 0  # the mean of all pictures
        return pixels_3HW


def training_cuts(sizes_B2: Integers, plan: Pixels, crop: int, chance: SampleRandom) -> list[Cut]:
    """Draws how samples are cut, flipped, coloured and erased."""
    count = len(sizes_B2)
    flips_B = chance.integers(2, FLIPPING) == 1 if plan.flip else np.zeros(count, bool)
    colours = _colours(chance) if plan.jitter else itertools.repeat(None, count)
    boxes, erased = _boxes(sizes_B2, plan.crop, crop, chance), _erased(count, plan.erase, crop, chance)
    return list(map(Cut, boxes, flips_B.tolist(), colours, erased))


def evaluation_cuts(sizes_B2: Integers, crop: int) -> list[Cut]:
    """Cuts the middles, which features are made of; of a stored square if S - H is a multiple of 4."""
    return list(map(Cut, _middles(sizes_B2, crop)))


@dataclass(frozen=True, eq=False, repr=False)
class PixelReader(Reader):
    """Reads items as pixels of their pictures, cut and normalised: (B, F, 3, H, W)."""

    plan: Pixels = field(kw_only=True)
    crop: int = field(kw_only=True)

    @property
    def pictures_of_item(self) -> int:
        """How many pictures evaluation reads of one item."""
        return self.frames.frames or (1 if self.plan.evaluation == "centre" else 2)

    def visual(self, items: Integers | slice, draws: SampleRandom | None = None) -> Padded:
        sizes_B2, pictures = self._sources(self.examples.rows[items], draws)
        if draws is None:
            cuts = evaluation_cuts(sizes_B2, self.crop)
        else:
            cuts = training_cuts(sizes_B2, self.plan, self.crop, draws)
        shape = len(cuts), self.frames.frames or 1, 3, self.crop, self.crop
        room_BF3HW = self.buffers.take(shape, np.dtype(np.float32))

        def fill(place: int) -> None:
            for room_3HW, picture in zip(room_BF3HW[place], pictures(place), strict=True):
                room_3HW[:] = cuts[place].pixels(picture, self.crop)

        # Not the threads that decode a clip's frames: these ones wait for those.
        list(threads("xmodal-crops").map(fill, range(len(cuts))))
        return Padded.whole(torch.from_numpy(room_BF3HW))

    def _sources(self, rows: Integers, draws: SampleRandom | None) -> Sources:
        raise NotImplementedError


class PictureReader(PixelReader):
    """Reads squares of the pixels stage."""

    def __post_init__(self) -> None:
        shape = self.store.spec.row_shape
        if shape[2:] != (3,) or shape[0] != shape[1] or self.store.spec.dtype != "uint8" or self.store.spec.ragged:
            raise UserError(f"{self.store.output.where} holds no squares of pixels: name an output of the pixels stage")
        if shape[0] < self.crop:
            raise UserError(f"{self.store.output.where} has pictures of side {shape[0]}, too small to cut {self.crop}")

    def visual(self, items: Integers | slice, draws: SampleRandom | None = None) -> Padded:
        """In evaluation of whole pictures each square, and its mirror image: (B, 2, 3, S, S)."""
        if draws is not None or self.plan.evaluation == "centre":
            return super().visual(items, draws)
        rows = self.examples.rows[items]
        pixels_BSS3 = self.store.take(rows, self._room(self.store, len(rows)))
        side = pixels_BSS3.shape[1]
        room_B23SS = self.buffers.take((len(rows), 2, 3, side, side), np.dtype(np.float32))
        for room_23SS, pixels_SS3 in zip(room_B23SS, pixels_BSS3, strict=True):
            room_23SS[0] = normalised(pixels_SS3)
            room_23SS[1] = room_23SS[0, :, :, ::-1]
        return Padded.whole(torch.from_numpy(room_B23SS))

    def _sources(self, rows: Integers, draws: SampleRandom | None) -> Sources:
        pixels_BSS3 = self.store.take(rows, self._room(self.store, len(rows)))
        sizes_B2 = np.full((len(rows), 2), self.store.spec.row_shape[0])
        return sizes_B2, lambda place: [Image.fromarray(pixels_BSS3[place])]


@dataclass(frozen=True, eq=False, repr=False)
class ClipReader(PixelReader):
    """Reads frames of the frames stage, the same ones that a reader of features reads rows of."""

    store: FrameStore
    resize: int = field(kw_only=True)  # of the shorter side

    def __post_init__(self) -> None:
        assert self.frames.frames
        if self.plan.evaluation != "centre":
            raise UserError(f"{self.store.output.where} is of clips, whose frames are evaluated by their middles alone")

    def _sources(self, rows: Integers, draws: SampleRandom | None) -> Sources:
        ids = [self.store.ids[row] for row in rows]
        lengths_B = np.array([len(self.store.frame_of_sample(id)) for id in ids], np.int64)
        samples_BF = self._places(lengths_B, draws)
        sizes = [resized(self.store.size(id), self.resize) for id in ids]

        def pictures(place: int) -> Iterable[Image.Image]:
            frames = map(Image.fromarray, self.store.pictures(ids[place], samples_BF[place]))
            return (f if f.size == sizes[place] else f.resize(sizes[place], Image.Resampling.BILINEAR) for f in frames)

        return np.array(sizes, np.int64)[:, ::-1], pictures


def picture_reader(reader: Reader, pixels: FeatureStore, plan: Pixels) -> PixelReader:
    """Reads the same items as pictures or frames, sized as the features' network saw them."""
    network = network_of(reader.store)
    if reader.store.spec.ragged and reader.frames.frames is None:
        raise UserError(f"{reader.store.output.where} is of clips: say how many frames are seen: --set visual.frames=8")
    examples = replace(reader.examples, rows=pixels.rows(reader.examples.ids))
    told: dict[str, Any] = {"tokens": reader.tokens, "classes": reader.classes, "plan": plan, "crop": network.crop}
    if isinstance(pixels, FrameStore):
        return ClipReader(examples, pixels, reader.frames, **told, resize=network.resize)
    side, found = network.resize, pixels.spec.row_shape[0]
    if side != found:
        raise UserError(
            f"{pixels.output.where} has pictures of side {found}, but the features are of pictures resized to {side}: "
            f"build pixels with --set pixels.side={side}"
        )
    return PictureReader(examples, pixels, **told)


def coloured(image: Image.Image, amounts: tuple[float, float, float], order: tuple[int, ...]) -> Image.Image:
    """Changes brightness, contrast and hue (of the whole circle) in an order of 0, 1 and 2."""
    for step in order:
        if step < 2:
            image = (ImageEnhance.Brightness, ImageEnhance.Contrast)[step](image).enhance(amounts[step])
        else:
            hue, saturation, value = image.convert("HSV").split()
            turned = hue.point([(level + int(amounts[2] * 255)) % 256 for level in range(256)])
            image = Image.merge("HSV", (turned, saturation, value)).convert("RGB")
    return image


def _colours(chance: SampleRandom) -> list[Colours]:
    ranges = ((1 - BRIGHTNESS, 1 + BRIGHTNESS), (1 - CONTRAST, 1 + CONTRAST), (-HUE, HUE))
    amounts = [chance.between(*limits, COLOURING + part).tolist() for part, limits in enumerate(ranges)]
    orders = tuple(itertools.permutations(range(3)))
    drawn = chance.integers(len(orders), COLOURING + 3).tolist()
    return [(each, orders[order]) for each, order in zip(zip(*amounts, strict=True), drawn, strict=True)]


def _boxes(sizes_B2: Integers, kind: str, crop: int, chance: SampleRandom) -> list[Box]:
    if kind == "centre":
        return _middles(sizes_B2, crop)
    if kind == "random":
        sides_B2 = np.full_like(sizes_B2, crop)
        return _listed(_placed(sizes_B2, sides_B2, chance, CUTTING), sides_B2)
    sides_B2 = _rectangles(sizes_B2, sizes_B2, CROP, chance, CUTTING + 2)
    firsts_B2 = _placed(sizes_B2, sides_B2, chance, CUTTING)
    (low, high), fits_B2 = CROP[1], sides_B2 > 0
    # where no rectangle fitted, the whole picture; of a long one its middle
    most_B2 = np.minimum(sizes_B2, np.rint(sizes_B2[:, ::-1] * (1 / low, high)).astype(np.int64))
    return _listed(np.where(fits_B2, firsts_B2, (sizes_B2 - most_B2) // 2), np.where(fits_B2, sides_B2, most_B2))


def _middles(sizes_B2: Integers, crop: int) -> list[Box]:
    return _listed(np.rint((sizes_B2 - crop) / 2).astype(np.int64), np.full_like(sizes_B2, crop))


def _erased(count: int, probability: float, crop: int, chance: SampleRandom) -> list[Box | None]:
    if not probability:
        return [None] * count
    sizes_B2 = np.full((count, 2), crop)
    sides_B2 = _rectangles(sizes_B2, sizes_B2 - 1, ERASED, chance, ERASING + 3)
    boxes = _listed(_placed(sizes_B2, sides_B2, chance, ERASING), sides_B2)
    drawn_B = chance.between(0, 1, ERASING + 2) < probability
    return [box if drawn else None for box, drawn in zip(boxes, drawn_B, strict=True)]


def _rectangles(
    sizes_B2: Integers, most_B2: Integers, limits: tuple[Range, Range], chance: SampleRandom, purpose: int
) -> Integers:
    """Draws sides (B, 2), the first that are within `most_B2`, or 0 if none are."""
    area, (low, high), tries = *limits, range(purpose, purpose + 2 * TRIES, 2)
    areas_TB = np.stack([chance.between(*area, one) for one in tries]) * sizes_B2.prod(axis=1)
    aspects_TB = np.exp(np.stack([chance.between(math.log(low), math.log(high), one + 1) for one in tries]))
    sides_TB2 = np.rint(np.sqrt(np.stack([areas_TB / aspects_TB, areas_TB * aspects_TB], axis=2))).astype(np.int64)
    fits_TB = ((sides_TB2 > 0) & (sides_TB2 <= most_B2)).all(axis=2)
    first_B2: Integers = sides_TB2[fits_TB.argmax(axis=0), np.arange(fits_TB.shape[1])]
    first_B2[~fits_TB.any(axis=0)] = 0
    return first_B2


def _placed(sizes_B2: Integers, sides_B2: Integers, chance: SampleRandom, purpose: int) -> Integers:
    rooms_2B = (sizes_B2 - sides_B2 + 1).T
    return np.stack([chance.integers(room_B, purpose + part) for part, room_B in enumerate(rooms_2B)], axis=1)


def _listed(firsts_B2: Integers, sides_B2: Integers) -> list[Box]:
    return [(top, left, height, width) for top, left, height, width in np.hstack([firsts_B2, sides_B2]).tolist()]
