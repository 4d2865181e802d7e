"""Where a run's model looks, as pictures; and how unsure it is of inputs that are made ambiguous on purpose.

The probes are PCME's (section 4.4, figures 6 to 8). Words become <unk>; of a picture a rectangle is erased, or comes
from the next item of the split. That happens to what the run reads: to pixels where it was trained from pictures, else
to the positions of its features' grid. Chance has one seed: the same run gives the same numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Generator, Tensor

from xmodal.archives import Archives, MissingMedia
from xmodal.attention import attention_picture, labelled
from xmodal.batches import Padded
from xmodal.chosen import made_from
from xmodal.clips import NAME as FRAMES
from xmodal.clips import FrameStore, attention_sheet
from xmodal.densities import Gaussians
from xmodal.evaluation import BLOCKS, Opened, Progress, Silence, opened, own_ranks
from xmodal.locks import raw_of
from xmodal.metrics import Ranks, cuts
from xmodal.order import evaluation_frames
from xmodal.records import Item, read_rows
from xmodal.trouble import Trouble
from xmodal.trunk import Fronted, PictureReader, network_of
from xmodal.uncertainty import Bin, cut_out, geometric_mean_sigma, mark_unknown, mix, recall_by_uncertainty
from xmodal.views import described
from xmodal.vision import STRIDE, ResNet, UnreadableImage, square

SIDE = 320  # pixels that a picture is drawn with at least
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # a picture that is mixed further is the other one
BINS = 10  # figure 6


Show = Callable[[str, str, NDArray[np.float32]], Image]  # id, caption and maps (L, K) of an item


@runtime_checkable
class Attentive(Protocol):
    """A model whose K local embeddings of a picture come from maps (B, L, K) over its positions."""

    def attention_visual(self, visual: Padded) -> Tensor: ...


@dataclass(frozen=True)
class Drawn:
    item: str
    caption: str
    path: str


@dataclass(frozen=True)
class Probed:
    """Mean uncertainties where that share of each caption's words, or of each picture, was changed."""

    share: float
    unknown: float
    erased: float | None  # None where pictures cannot be probed
    mixed: float | None


@dataclass(frozen=True)
class Uncertainty:
    """Bins are of the queries as they are, with their R@1; `unprobed` is why pictures were not probed."""

    run: str
    split: str
    items: int
    captions: int
    probes: tuple[Probed, ...]
    visual_to_text: tuple[Bin, ...]
    text_to_visual: tuple[Bin, ...]
    unprobed: str | None


def draw(
    run: str,
    root: str,
    split: str,
    folder: Path,
    *,
    items: Sequence[str] = (),
    first: int = 8,
    device: str = "cpu",
    progress: Progress | None = None,
) -> list[Drawn]:
    """A PNG of each of the items, or of the first ones of the split: the picture and every map over it, or of a clip
    the samples that are read and what every map gives each."""
    asked = opened(run, root, split, device)
    attend, show = _attention(asked, run), (_show_clips if asked.features.spec.ragged else _show_pictures)(asked)
    places = _places(asked, split, items)[: None if items else first]
    captions = described(asked.records, replace(asked.started.recipe.validation, split=split))
    drawn = []
    with torch.inference_mode(), (progress or Silence()).over("draw", len(places), unit="pictures") as tick:
        for place in places:
            id = asked.reader.examples.ids[place]
            maps_LK = attend(_floats(asked.reader.visual(slice(place, place + 1))).to(device))[0].cpu().numpy()
            caption, path = captions[id][0].text, folder / f"{quote(id, safe='')}.png"
            sheet = show(id, caption, maps_LK)
            folder.mkdir(parents=True, exist_ok=True)
            sheet.save(path)
            drawn.append(Drawn(id, caption, str(path)))
            tick(1)
    return drawn


def probe(run: str, root: str, split: str, *, device: str = "cpu", progress: Progress | None = None) -> Uncertainty:
    """Uncertainty is the geometric mean of an item's sigmas; a probe's is the mean over all items, or all captions."""
    asked, progress = opened(run, root, split, device), progress or Silence()
    _refuse_points(asked, run, device)
    grid, unprobed = _grid_or_reason(asked)
    items, captions, steps = len(asked.reader.examples.ids), len(asked.reader.examples.words), len(SHARES)
    total = captions * (1 + steps) + items * (1 + 2 * steps * bool(grid))
    with torch.inference_mode(), progress.over("probe", total, unit="rows") as tick:
        pictures = _Side(asked.scorer.encode_visual, items, BLOCKS[0], device, tick)
        texts = _Side(asked.scorer.encode_text, captions, BLOCKS[1], device, tick)
        plain_V, plain_T = pictures.uncertainties(partial(_visual, asked)), texts.uncertainties(asked.reader.text)
        probes = [Probed(0.0, _mean(plain_T), _mean(plain_V), _mean(plain_V))]
        for share in SHARES:
            unknown = _mean(texts.uncertainties(_unknown(asked, share)))
            changes = [change(asked, grid, share) if grid else None for change in (_erased, _mixed)]
            seen = [_mean(pictures.uncertainties(change)) if change else None for change in changes]
            probes.append(Probed(share, unknown, *seen))
    both = own_ranks(asked.scorer, asked.reader, progress, device)
    of_items, of_captions = (_bins(*pair) for pair in zip((plain_V, plain_T), both, strict=True))
    return Uncertainty(run, split, items, captions, tuple(probes), of_items, of_captions, unprobed)


def _attention(asked: Opened, run: str) -> Callable[[Padded], Tensor]:
    """(B, L, K) of what the run reads."""
    scorer: Any = asked.scorer
    model = scorer.model if isinstance(scorer, Fronted) else scorer
    if not isinstance(model, Attentive):
        raise Trouble(f"{run}: {asked.started.recipe.name} has no attention to look at; PVSE and PCME have")

    def attend(visual: Padded) -> Tensor:
        try:
            return model.attention_visual(scorer.features(visual) if isinstance(scorer, Fronted) else visual)
        except ValueError as error:  # a PVSE of no local embeddings
            raise Trouble(f"{run}: {error}") from None

    return attend


def _network(asked: Opened) -> ResNet:
    """The network that saw the pictures, if its features are a grid: so it is known where in them a position lies."""
    where = asked.features.output.where
    try:
        network = network_of(asked.features)
    except Trouble:
        raise Trouble(
            f"{where} does not say which network saw the pictures, and so not where in them its positions lie: "
            "train from features of the resnet stage"
        ) from None
    if asked.features.spec.ragged:
        raise Trouble(f"{where} has a row for each sample of a clip, which are no grid")
    if network.output != "grid":
        raise Trouble(f"{where} is pooled, which is no grid: train from features built with --set resnet.output=grid")
    return network


def _places(asked: Opened, split: str, items: Sequence[str]) -> list[int]:
    places = {id: place for place, id in enumerate(asked.reader.examples.ids)}
    if strange := [id for id in items if id not in places]:
        raise Trouble(
            f"{', '.join(strange)}: not among the {len(places):,} items of {split} that have features and captions; "
            f"these are {', '.join([*places][:3])}, …"
        )
    return [places[id] for id in dict.fromkeys(items or places)]


def _pictures(asked: Opened, network: ResNet) -> Callable[[str], NDArray[np.uint8]]:
    """An item's picture, the part that the network saw, but finer."""
    features, media = asked.features.output, made_from(asked.features.output, "media")
    if media is None:
        raise Trouble(
            f"the pictures of {features.where} are no longer under {features.storage.url}: "
            f"`xmodal build {asked.started.recipe.view.corpus}/media` gets them again"
        )
    archives, times = Archives(raw_of(media)), -(-SIDE // network.crop)
    with asked.records.open("items.parquet") as file:
        paths = {item.id: item.media for item in read_rows(file, Item)}

    def read(id: str) -> NDArray[np.uint8]:
        try:
            return square(archives.read(paths[id]), network.resize * times, network.crop * times, cut=lambda why: None)
        except (MissingMedia, UnreadableImage) as error:  # it was there, and a picture, when its features were made
            raise Trouble(f"the picture of {id} is damaged ({error}): `xmodal verify --forget`, build again") from error

    return read


def _show_pictures(asked: Opened) -> Show:
    read = _pictures(asked, _network(asked))

    def show(id: str, caption: str, maps_LK: NDArray[np.float32]) -> Image:
        ranges = zip(100 * maps_LK.min(0), 100 * maps_LK.max(0), strict=True)
        names = [f"map {number}: {low:.1f} to {high:.1f} % a place" for number, (low, high) in enumerate(ranges, 1)]
        panels_HW3 = attention_picture(read(id), maps_LK)
        return labelled(panels_HW3, ["what the network sees", *names], f"{id}: {caption}")

    return show


def _show_clips(asked: Opened) -> Show:
    features, frames = asked.features, asked.reader.frames
    taken = made_from(features.output, FRAMES)
    if taken is None:
        raise Trouble(
            f"{features.output.where} is not of frames that are under {features.output.storage.url}: "
            f"`xmodal build {asked.started.recipe.view.corpus}/frames` takes those of clips"
        )
    store = FrameStore(taken)

    def show(id: str, caption: str, maps_LK: NDArray[np.float32]) -> Image:
        lengths = features.lengths(features.rows([id]))
        if frames.frames is None:
            samples = np.arange(lengths[0])
        else:
            (samples,) = evaluation_frames(lengths, frames.frames, frames.rule, frames.ends)
        return attention_sheet(store, id, caption, samples, maps_LK)

    return show


def _refuse_points(asked: Opened, run: str, device: str) -> None:
    with torch.inference_mode():
        first = asked.scorer.encode_visual(_visual(asked, slice(0, 1)).to(device))
    if not isinstance(first, Gaussians) or not first.log_sigma.isfinite().all():
        raise Trouble(f"{run}: {asked.started.recipe.name} has no uncertainty to probe, as its items are points")


def _grid_or_reason(asked: Opened) -> tuple[tuple[int, int] | None, str | None]:
    """Rows and columns of what the run reads of a picture, or why it cannot be probed."""
    if len(asked.reader.examples.ids) < 2:
        return None, "a mixture takes two"
    if isinstance(asked.reader, PictureReader):
        return (asked.reader.crop, asked.reader.crop), None
    try:
        side = _network(asked).crop // STRIDE
    except Trouble as trouble:
        return None, str(trouble)
    return (side, side), None


@dataclass(frozen=True, eq=False)
class _Side:
    """Items or captions, encoded a block at a time."""

    encode: Callable[[Padded], Gaussians]
    count: int
    block: int
    device: str
    tick: Callable[[int], None]

    def uncertainties(self, read: Callable[[slice], Padded]) -> NDArray[np.float32]:
        return np.concatenate([self._of(rows, read(rows)) for rows in cuts(self.count, self.block)])

    def _of(self, rows: slice, given: Padded) -> NDArray[np.float32]:
        found = geometric_mean_sigma(self.encode(given.to(self.device)).log_sigma)
        self.tick(rows.stop - rows.start)
        return found.cpu().numpy()


def _visual(asked: Opened, rows: slice, beyond: int = 0) -> Padded:
    """Of so many rows further on, the first ones following the last one."""
    places = (np.arange(rows.start, rows.stop) + beyond) % len(asked.reader.examples.ids)
    return _floats(asked.reader.visual(places))


def _unknown(asked: Opened, share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)
    return lambda rows: mark_unknown(asked.reader.text(rows), share, chance)


def _erased(asked: Opened, grid: tuple[int, int], share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)
    return lambda rows: _as_read(cut_out(_positions(_visual(asked, rows)), grid, share, chance), asked, grid)


def _mixed(asked: Opened, grid: tuple[int, int], share: float) -> Callable[[slice], Padded]:
    chance = Generator().manual_seed(0)

    def read(rows: slice) -> Padded:
        some, others = (_positions(_visual(asked, rows, beyond)) for beyond in (0, 1))
        return _as_read(mix(some, others, grid, share, chance), asked, grid)

    return read


def _positions(visual: Padded) -> Padded:
    """Pixels (B, 1, 3, H, W) as (B, H * W, 3); features are positions already."""
    return Padded.whole(visual.values.squeeze(1).flatten(2).mT) if visual.values.ndim > 3 else visual


def _as_read(positions: Padded, asked: Opened, grid: tuple[int, int]) -> Padded:
    pixels = isinstance(asked.reader, PictureReader)
    return Padded.whole(positions.values.mT.reshape(-1, 1, 3, *grid)) if pixels else positions


def _floats(visual: Padded) -> Padded:
    return Padded(visual.values.float(), visual.lengths)


def _mean(values: NDArray[np.float32]) -> float:
    return float(values.mean(dtype=np.float64))


def _bins(uncertainties: NDArray[np.float32], found: Ranks) -> tuple[Bin, ...]:
    return tuple(recall_by_uncertainty(uncertainties, found.ranks, min(BINS, len(uncertainties))))
