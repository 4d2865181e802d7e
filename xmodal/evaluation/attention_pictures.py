"""Attention pictures: a model's maps, drawn over pictures or beside the frames of clips."""

from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor

from xmodal.batches.batch import Padded
from xmodal.batches.sample_order import evaluation_frames
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.features.contact_sheets import DrawnPicture, attention_sheet, save_sheets
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import ResNet
from xmodal.media.drawing import attention_picture, labelled
from xmodal.media.images import UnreadableImage
from xmodal.media.preparation import square
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import Item, read_rows
from xmodal.records.views import captions_by_item
from xmodal.root.selection import source_of
from xmodal.training.finetuning import WithBackbone, network_of
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats

LONGEST_LEGEND = 2000  # letters of a caption
SIDE = 320  # the least pixels of a drawn picture's side
LEGEND = "yellow: where a map looks; %: how much of its attention is on the place that it sees least, and most"
Show = Callable[[str, str, NDArray[np.float32]], Image]  # id, caption and maps (L, K) of an item


@runtime_checkable
class Attentive(Protocol):
    """A model whose K local embeddings of a picture come from maps (B, L, K) over its positions."""

    def attention_visual(self, visual: Padded) -> Tensor: ...


def draw(
    run: str, setup: Setup, split: str | None, folder: Path, *, items: Sequence[str] = (), first: int = 8
) -> list[DrawnPicture]:
    """Draws a PNG for each of the items, or the first ones of the split."""
    asked = open_run(run, setup, split)
    attend, show = _attention(asked, run), _show_clips(asked) if asked.features.spec.ragged else _show_pictures(asked)
    places = places_of(asked, items)[: None if items else first]
    described = captions_by_item(asked.records, asked.view)
    captions = described.grouped(described.texts)

    def sheet(place: int) -> tuple[str, str, Image]:
        id = asked.reader.examples.ids[place]
        maps_LK = attend(floats(asked.reader.visual(slice(place, place + 1)), setup.device))[0].cpu().numpy()
        caption = shorten(captions[id][0], LONGEST_LEGEND, placeholder=" …")
        return id, caption, show(id, caption, maps_LK)

    with torch.inference_mode(), setup.progress.over("draw", len(places), unit="pictures") as tick:
        return list(save_sheets(folder, map(sheet, places), tick))


def _attention(asked: OpenedRun, run: str) -> Callable[[Padded], Tensor]:
    """Gives the maps (B, L, K) of what the run reads."""
    scorer: Any = asked.scorer
    backbone = scorer if isinstance(scorer, WithBackbone) else None
    model = backbone.model if backbone else scorer
    if not isinstance(model, Attentive):
        raise UserError(f"{run}: {asked.started.recipe.name} has no attention to look at; PVSE and PCME have")

    def attend(visual: Padded) -> Tensor:
        try:
            return model.attention_visual(backbone.features(visual) if backbone else visual)
        except ValueError as error:  # a PVSE of no local embeddings
            raise UserError(f"{run}: {error}") from None

    return attend


def grid_network(asked: OpenedRun) -> ResNet:
    """The network that saw the pictures; UserError if its features are no grid."""
    where = asked.features.output.where
    try:
        network = network_of(asked.features)
    except UserError:
        raise UserError(f"{where} does not say which network saw the pictures: train from the resnet stage") from None
    if asked.features.spec.ragged:
        raise UserError(f"{where} has a row for each sample of a clip, which are no grid")
    if network.output != "grid":
        raise UserError(f"{where} is pooled, which is no grid: build features with --set resnet.output=grid")
    return network


def places_of(asked: OpenedRun, items: Sequence[str]) -> list[int]:
    places = {id: place for place, id in enumerate(asked.reader.examples.ids)}
    if strange := [id for id in items if id not in places]:
        raise UserError(
            f"{', '.join(strange)}: not among the {len(places):,} items of {asked.view.split} that have features and "
            f"captions, such as {', '.join([*places][:3])}"
        )
    return [places[id] for id in dict.fromkeys(items or places)]


def _show_pictures(asked: OpenedRun) -> Show:
    network = grid_network(asked)
    archives = Archives(raw_of(source_of(asked.features.output, "media", asked.view.corpus)))
    times = -(-SIDE // network.crop)
    paths = {item.id: item.media for item in read_rows(asked.records, Item)}

    def show(id: str, caption: str, maps_LK: NDArray[np.float32]) -> Image:
        sizes = network.resize * times, network.crop * times
        try:
            picture = square(archives.read(paths[id]), *sizes, on_truncated=lambda why: None)
        except (MissingMedia, UnreadableImage) as error:
            raise UserError(
                f"the picture of {id} is damaged ({error}): `xmodal verify --forget --root ROOT`, build again"
            ) from error
        ranges = zip(100 * maps_LK.min(0), 100 * maps_LK.max(0), strict=True)
        names = [f"map {number}: {low:.1f} to {high:.1f} %" for number, (low, high) in enumerate(ranges, 1)]
        legend = f"{id}: {caption} ({LEGEND})"
        return labelled(attention_picture(picture, maps_LK), ["what the network sees", *names], legend)

    return show


def _show_clips(asked: OpenedRun) -> Show:
    features, frames = asked.features, asked.reader.frames
    store = FrameStore(source_of(features.output, FRAMES, asked.view.corpus))

    def show(id: str, caption: str, maps_LK: NDArray[np.float32]) -> Image:
        lengths = features.lengths(features.rows([id]))
        if frames.frames is None:
            samples = np.arange(lengths[0])
        else:
            (samples,) = evaluation_frames(lengths, frames.frames, frames.rule, frames.ends)
        return attention_sheet(store, id, caption, samples, maps_LK)

    return show
