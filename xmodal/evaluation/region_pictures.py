"""Pictures of regions: boxes with their words, drawn on the picture that a detector saw."""

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from xmodal.detection.region_semantics import phrases_of, surest_first
from xmodal.detection.region_store import RegionStore
from xmodal.media.drawing import font_of, labelled

MOST = 16  # regions that are drawn of a picture: more cannot be told apart
SIDE, LARGEST = 640, 1600  # pixels that the longer side has at least and at most,
THIN = 160  # and the shorter side where the longer one allows it
PANEL, COLUMNS, LOOKED = 320, 6, 3  # of attention: pixels of a panel, panels in a row, regions that are drawn
LETTERS, LINE, PAD = 15, 20, 3  # pixels of a label
GOLDEN = 0.618034  # of the circle of hues from one region to the next, which keeps all apart


def region_sheet(store: RegionStore, id: str, picture: Image.Image, caption: str = "") -> Image.Image:
    """Draws the surest regions on a picture; below it stand its id, the caption, and the words of the other regions."""
    boxes_K4, classes = store.boxes_in(id, picture.size), store.classes(id)
    if classes is None:
        order, phrases = list(range(len(boxes_K4))), [f"{number}" for number in range(1, len(boxes_K4) + 1)]
        names = phrases
    else:
        order, phrases = surest_first(classes), phrases_of(store.words, classes, store.attributes(id))
        names = [f"{phrase} {score:.2f}" for phrase, score in zip(phrases, classes.scores_K, strict=True)]
    (large, times), drawn = _readable(picture), order[:MOST]
    draw_boxes(large, boxes_K4[drawn] * times, [names[place] for place in drawn])
    title = f"{len(order)} region" if len(order) == 1 else f"{len(order)} regions"
    if order[MOST:]:
        title = f"{len(drawn)} of {title}"
    others = f"; not drawn: {', '.join(phrases[place] for place in order[MOST:])}" if classes and order[MOST:] else ""
    return labelled(np.asarray(large), [title], f"{id}: {caption}{others}" if caption or others else id)


def _readable(picture: Image.Image) -> tuple[Image.Image, float]:
    """A picture in which lines and letters can be seen, with white beside a thin one; and how much it is scaled."""
    shorter, longer = sorted(picture.size)
    times = min(max(1.0, SIDE / longer, THIN / shorter), LARGEST / longer)
    width, height = (max(1, round(side * times)) for side in picture.size)
    canvas = Image.new("RGB", (max(width, PANEL), max(height, 2 * LINE)), "white")
    canvas.paste(picture.resize((width, height), Image.Resampling.LANCZOS))
    return canvas, times


def attention_regions(
    picture: Image.Image, boxes_K4: NDArray[np.floating[Any]], maps_KM: NDArray[np.floating[Any]], names: Sequence[str]
) -> NDArray[np.uint8]:
    """A panel a map: the regions that it looks at most, each with its share of the attention."""
    times = PANEL / max(picture.size)
    small = picture.resize((round(picture.width * times), round(picture.height * times)), Image.Resampling.LANCZOS)
    panels = [_panel(small, boxes_K4 * times, map_K, name) for map_K, name in zip(maps_KM.T, names, strict=True)]
    columns = min(len(panels), COLUMNS)
    panels += [np.full_like(panels[0], 255)] * (-len(panels) % columns)
    rows = [np.concatenate(panels[first : first + columns], axis=1) for first in range(0, len(panels), columns)]
    return np.concatenate(rows)


def _panel(
    picture: Image.Image, boxes_K4: NDArray[np.floating[Any]], map_K: NDArray[np.floating[Any]], name: str
) -> NDArray[np.uint8]:
    drawn, most = picture.copy(), np.argsort(-map_K, kind="stable")[:LOOKED]
    draw_boxes(drawn, boxes_K4[most], [f"{100 * share:.0f} %" for share in map_K[most].tolist()])
    told = labelled(np.asarray(drawn), [name], f"{100 * map_K.min():.1f} to {100 * map_K.max():.1f} %")
    return np.pad(np.asarray(told), ((0, 0), (0, PAD), (0, 0)), constant_values=255)


def draw_boxes(picture: Image.Image, boxes_K4: NDArray[np.floating[Any]], names: Sequence[str]) -> None:
    """Draws boxes, the first above the others, each with its name where no other name stands."""
    boxes_K4 = np.sort(boxes_K4.reshape(-1, 2, 2), axis=1).reshape(-1, 4)  # a store may come from anybody
    draw, font = ImageDraw.Draw(picture), font_of(LETTERS)
    colours = [_colour(number) for number in range(len(names))]
    for box_4, colour in reversed([*zip(boxes_K4.tolist(), colours, strict=True)]):
        draw.rectangle(box_4, outline="black", width=5)
        draw.rectangle(box_4, outline=colour, width=3)
    taken = list[tuple[float, float, float]]()  # left, top and width of names
    for box_4, name, colour in zip(boxes_K4.tolist(), names, colours, strict=True):
        name = _shortened(name, font, picture.width - 2 * PAD)
        width = font.getlength(name) + 2 * PAD
        left, top = free_corner(box_4, width, picture.size, taken)
        taken.append((left, top, width))
        draw.rectangle((left, top, left + width, top + LINE - 1), fill=colour, outline="black")
        draw.text((left + PAD, top + LINE // 2), name, "black", font, "lm")


def _colour(number: int) -> tuple[int, ...]:
    """Light enough for black letters."""
    hue, light = number * GOLDEN % 1, (0.68, 0.8)[number % 2]
    return tuple(round(255 * part) for part in colorsys.hls_to_rgb(hue, light, 1.0))


def _shortened(name: str, font: Any, width: float) -> str:
    while font.getlength(name) > width and len(name) > 1:
        name = name.rstrip("…")[:-1] + "…"
    return name


def free_corner(
    box_4: Sequence[float], width: float, size: tuple[int, int], taken: Sequence[tuple[float, float, float]]
) -> tuple[float, float]:
    """Left and top of a name within the picture: above its box, in it, below it, or where a line is free."""
    left, top, right, bottom = box_4
    wanted = [(left, top - LINE), (left, top), (right - width, top), (left, bottom - LINE), (left, bottom)]
    wanted += [(left, line * LINE) for line in range(size[1] // LINE)]
    corners = [(_within(x, size[0] - width), _within(y, size[1] - LINE)) for x, y in wanted]
    free = (
        (x, y)
        for x, y in corners
        if all(abs(y - top) >= LINE or x + width <= left or left + wide <= x for left, top, wide in taken)
    )
    return next(free, corners[1])


def _within(place: float, most: float) -> float:
    return max(0.0, min(place, most))
