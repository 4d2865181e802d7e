"""Samples that a detector learns from: a corpus' pictures, and their regions with boxes and names.

A picture without such a region is left out, as nobody said that it shows nothing. A name is a region's first one.

Shapes: B pictures, S the side of a picture as the network sees it, K regions, A attributes, the first one for none.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from xmodal.detectors._small_network import SmallConfig, Target, batch_of, seen
from xmodal.errors import UserError
from xmodal.media.images import UnreadableImage, open_image
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.recipes import DetectorRecipe
from xmodal.records.tables import Item, Region, read_rows
from xmodal.records.views import members, splits
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output

KEPT_BYTES = 2**30  # of pictures as the network sees them; those beyond are decoded again each time
SMALLEST = 1.0  # pixels of the network that a side of a box has at least
ORDER, FLIPS = range(2)  # purposes of chance
Batch = tuple[Tensor, list[tuple[int, int]], list[Target]]  # pixels (B, 3, S, S), heights and widths, what is there


@dataclass(frozen=True, eq=False)
class DetectorData:
    """The regions and media of two splits."""

    records: Output
    media: Output
    split: str
    validation: str

    def regions(self, split: str) -> Iterator[Region]:
        wanted = members(self.records, split)
        for region in read_rows(self.records, Region):
            if region.item in wanted and region.left is not None and region.names:
                yield region

    @cached_property
    def paths(self) -> dict[str, str]:
        return {item.id: item.media for item in read_rows(self.records, Item)}

    @cached_property
    def archives(self) -> Archives:
        return Archives(raw_of(self.media))

    def picture(self, id: str) -> NDArray[np.uint8] | None:
        """Decodes a picture, (H, W, 3), or what remains of it; None if there is none or nothing remains."""
        try:
            return np.asarray(open_image(self.archives.read(self.paths[id]), on_truncated=lambda why: None))
        except (MissingMedia, UnreadableImage):
            return None


def open_data(recipe: DetectorRecipe, root: str, records: Output) -> DetectorData:
    there = [*splits(records)]
    trains = [name for name in there if name.rpartition("/")[2] == "train"]
    split = recipe.split or _only(recipe, "split", "train", trains, there)
    members(records, split)  # refuses one that is not there, before it is asked what goes with it
    beside = f"{split.rpartition('/')[0]}/val".removeprefix("/")
    validations = [name for name in there if name == beside]
    validation = recipe.validation or _only(recipe, "validation", beside, validations, there)
    if common := sorted(members(records, split) & members(records, validation)):
        raise UserError(
            f"{len(common):,} items are in both {split!r} and {validation!r}, such as {common[0]!r}: "
            "measure on items that are not trained on"
        )
    media = find_output(root, "media", of=recipe.corpus, name=records.config["media_set"])
    data = DetectorData(records, media, split, validation)
    for name, why in ((split, "learn from"), (validation, "measure on: --set validation=NAME takes another split")):
        if next(data.regions(name), None) is None:
            raise UserError(f"{recipe.corpus} has no regions with boxes and names in {name!r} to {why}")
    return data


def _only(recipe: DetectorRecipe, setting: str, ending: str, found: list[str], there: list[str]) -> str:
    if len(found) != 1:
        many = f"several splits {ending!r}" if found else f"no split {ending!r}"
        names = ", ".join(found or there) or "none at all"
        raise UserError(f"{recipe.corpus} has {many}: take one by --set {setting}=NAME; there are: {names}")
    return found[0]


def config_of(recipe: DetectorRecipe, data: DetectorData) -> SmallConfig:
    """The words are those of the regions to train on."""
    names, attributes = Counter[str](), Counter[str]()
    for region in data.regions(data.split):
        names[region.names[0]] += 1
        attributes.update(region.attributes)
    if max(names.values(), default=0) < recipe.least_count:
        few = f"{recipe.corpus} has no {recipe.least_count:,} regions of a class in {data.split!r}"
        raise UserError(f"{few}: choose a lower --set least_count")
    known, said = (sorted(w for w, n in counts.items() if n >= recipe.least_count) for counts in (names, attributes))
    shared = {setting.name for setting in fields(SmallConfig)} & {setting.name for setting in fields(recipe)}
    try:
        return SmallConfig(tuple(known), tuple(said), **{name: getattr(recipe, name) for name in shared})
    except ValueError as error:
        raise UserError(f"recipe {recipe.name!r}: {error}") from error


@dataclass(frozen=True, eq=False)
class Things:
    """The things of a picture; classes and attributes count from 1."""

    boxes_K4: NDArray[np.float32]  # in pixels of the picture
    label_K: NDArray[np.int64]
    attributes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class SmallPicture:
    pixels_HW3: NDArray[np.uint8]  # as the network sees it
    scale_4: NDArray[np.float32]  # by which boxes are multiplied


@dataclass(eq=False)
class DetectorSamples:
    """Batches of the training split: any step's, whatever was read before."""

    recipe: DetectorRecipe
    config: SmallConfig
    data: DetectorData
    unusable: set[str] = field(default_factory=set)  # pictures met that are absent, unreadable or without a box in them
    _kept: dict[str, SmallPicture] = field(default_factory=dict)
    _bytes: int = 0

    @cached_property
    def things(self) -> dict[str, Things]:
        """By item, in the order of the ids."""
        classes = {word: number for number, word in enumerate(self.config.classes, 1)}
        attributes = {word: number for number, word in enumerate(self.config.attributes, 1)}
        found = defaultdict[str, list[tuple[tuple[float | None, ...], int, tuple[int, ...]]]](list)
        for region in self.data.regions(self.data.split):
            if number := classes.get(region.names[0]):
                box = region.left, region.top, region.right, region.bottom
                said = tuple(attributes[word] for word in region.attributes if word in attributes)
                found[region.item].append((box, number, said))
        things = {}
        for item in sorted(found):
            boxes, labels, said_of_each = zip(*found[item], strict=True)
            things[item] = Things(np.array(boxes, np.float32), np.array(labels, np.int64), said_of_each)
        return things

    @cached_property
    def ids(self) -> list[str]:
        return [*self.things]

    def batch(self, step: int) -> Batch | None:
        """None if no picture of the step can be used."""
        size, count = self.recipe.batch_size, len(self.ids)
        flips_B = np.random.default_rng([self.recipe.seed, FLIPS, step]).random(size) < 0.5
        found = []
        for place, flipped in zip(range(step * size, (step + 1) * size), flips_B.tolist(), strict=True):
            epoch, nth = divmod(place, count)
            id = self.ids[_order(self.recipe.seed, epoch, count)[nth]]
            found.append(self._sample(id, flipped and self.recipe.flip))
        usable = [sample for sample in found if sample]
        if not usable:
            return None
        pictures, targets = zip(*usable, strict=True)
        return batch_of(pictures, self.config.side), [picture.shape[:2] for picture in pictures], [*targets]

    def _sample(self, id: str, flipped: bool) -> tuple[NDArray[np.uint8], Target] | None:
        things, picture = self.things[id], self._picture(id)
        if picture is None:
            return None
        height, width = picture.pixels_HW3.shape[:2]
        boxes_K4 = (things.boxes_K4 * picture.scale_4).clip(0, (width, height) * 2)
        seen_K = (boxes_K4[:, 2:] - boxes_K4[:, :2] >= SMALLEST).all(axis=1)
        if not seen_K.any():
            self.unusable.add(id)
            return None
        attributes_KA = torch.zeros(len(boxes_K4), len(self.config.attributes) + 1)
        for row_A, said in zip(attributes_KA, things.attributes, strict=True):
            row_A[list(said)] = 1
        if flipped:
            boxes_K4[:, [0, 2]] = width - boxes_K4[:, [2, 0]]
        some = torch.from_numpy(np.flatnonzero(seen_K))
        target = {
            "boxes": torch.from_numpy(boxes_K4)[some],
            "labels": torch.from_numpy(things.label_K)[some],
            "attributes": attributes_KA[some],
        }
        return picture.pixels_HW3[:, ::-1] if flipped else picture.pixels_HW3, target

    def _picture(self, id: str) -> SmallPicture | None:
        if id in self._kept or id in self.unusable:
            return self._kept.get(id)
        whole = self.data.picture(id)
        if whole is None:
            self.unusable.add(id)
            return None
        pixels_HW3, scale_4 = seen(whole, self.config.side)
        found = SmallPicture(pixels_HW3, scale_4)
        self._bytes += pixels_HW3.nbytes
        if self._bytes <= KEPT_BYTES:
            self._kept[id] = found
        return found


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, ORDER, epoch]).permutation(count)
