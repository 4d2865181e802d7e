"""Contact sheets: the frames of a clip on one picture, with or without attention."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from xmodal.features.frame_store import FrameStore, open_jpeg
from xmodal.media.drawing import font_of, wrapped

SHEET, COLUMNS = 64, 8  # the most frames of a sheet, and the fewest in a line of a full one
THUMBNAIL, LABEL, TITLE, GAP, LETTERS, LINE = (160, 120), 90, 480, 6, 13, 18  # pixels


@dataclass(frozen=True)
class DrawnPicture:
    item: str
    caption: str
    path: str


def save_sheets(
    folder: Path, sheets: Iterable[tuple[str, str, Image.Image]], tick: Callable[[int], None]
) -> Iterator[DrawnPicture]:
    """Saves each item's picture; the folder is made for the first."""
    for id, caption, sheet in sheets:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{quote(id, safe='')}.png"
        sheet.save(path)
        yield DrawnPicture(id, caption, str(path))
        tick(1)


def attention_sheet(
    store: FrameStore, id: str, caption: str, samples: NDArray[np.integer[Any]], maps_SK: NDArray[np.floating[Any]]
) -> Image.Image:
    """Draws samples, each with its time and its percent of every map."""
    sampling: Any = store.provenance["sampling"]
    shares = (", ".join(f"{share:.0f}" for share in shares_K) for shares_K in 100 * maps_SK)
    labels = [f"{at / sampling['fps']:.2f} s: {share}" for at, share in zip(samples.tolist(), shares, strict=True)]
    shown = store.frame_of_sample(id)
    read = f"{len(labels)} of {len(shown)} samples"
    if len(labels) > len(shown):
        read = f"{len(shown)} samples, the last repeated to {len(labels)}"
    title = f"{read}: each below its time and its percent of {maps_SK.shape[1]} maps"
    return _sheet(store.jpegs(id, shown[samples]), labels, [id, title, caption])


def contact_sheet(store: FrameStore, id: str, caption: str = "") -> Image.Image:
    """Draws at most 64 of a clip's frames with their numbers and times."""
    starts_us = store.starts_us(id)
    numbers = np.linspace(0, len(starts_us) - 1, min(len(starts_us), SHEET)).round().astype(int).tolist()
    shown = f", {len(numbers)} of them here" if len(numbers) < len(starts_us) else ""
    title = f"{len(starts_us)} frames in {len(store.frame_of_sample(id))} samples{shown}"
    labels = [f"{number}: {starts_us[number] / 1e6:.3f} s" for number in numbers]
    return _sheet(store.jpegs(id, numbers), labels, [id, title, caption] if caption else [id, title])


def _sheet(jpegs: Sequence[bytes], labels: Sequence[str], titles: Sequence[str]) -> Image.Image:
    pictures = [open_jpeg(jpeg) for jpeg in jpegs]
    for picture in pictures:
        picture.thumbnail(THUMBNAIL)
    font, high = font_of(LETTERS), max(picture.height for picture in pictures)
    letters = math.ceil(max(font.getlength(label) for label in labels))
    wide = max(LABEL, letters, *(picture.width for picture in pictures))
    columns = min(len(pictures), max(COLUMNS, math.isqrt(2 * len(pictures))))
    width = max(columns * (wide + GAP) + GAP, TITLE)
    lines = [line for title in titles for line in wrapped(title, font, width)]
    top, step = GAP + LINE * len(lines), LINE + high + GAP
    sheet = Image.new("RGB", (width, top + -(-len(pictures) // columns) * step), "white")
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(lines):
        draw.text((GAP, GAP + LINE * number), line, "black", font)
    for place, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        left, upper = GAP + place % columns * (wide + GAP), top + place // columns * step
        draw.text((left, upper + LINE // 2), label, "black", font, "lm")
        sheet.paste(picture, (left, upper + LINE))
    return sheet
