"""Attention pictures: a model's maps, drawn over pictures, on their regions, or beside the frames of clips."""

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
from xmodal.detection.region_store import RegionStore, regions_file
from xmodal.errors import UserError
from xmodal.evaluation.picture_files import PictureFiles
from xmodal.evaluation.region_pictures import attention_regions
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.features.contact_sheets import DrawnPicture, attention_sheet, save_sheets
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import ResNet
from xmodal.media.drawing import attention_picture, labelled
from xmodal.media.preparation import square
from xmodal.records.views import captions_by_item
from xmodal.root.selection import ancestor, media_for, source_of
from xmodal.training.finetuning import WithBackbone, network_of
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats

LONGEST_LEGEND = 2000  # letters of a caption
SIDE = 320  # the least pixels of a drawn picture's side
LEGEND = "yellow: where a map looks; %: how much of its attention is on the place that it sees least, and most"
REGIONS_LEGEND = "the regions with most of each panel's attention; below it the least and the most that a region has"
Show = Callable[[str, str, NDArray[np.float32], list[str]], Image]  # id, caption, maps (L, K) and their names


@runtime_checkable
class Attentive(Protocol):
    """A model whose K local embeddings of a picture come from maps (B, L, K) over its positions."""

    def attention_visual(self, visual: Padded) -> Tensor: ...


@runtime_checkable
class WordAttentive(Protocol):
    """A model with a map (L, words) over the positions of a picture for each word of its caption."""

    def attention_of_words(self, visual: Padded, text: Padded) -> Tensor: ...


def draw(
    run: str, setup: Setup, split: str | None, folder: Path, *, items: Sequence[str] = (), first: int = 8
) -> list[DrawnPicture]:
    """Draws a PNG for each of the items, or the first ones of the split."""
    asked = open_run(run, setup, split)
    attend, show = _attention(asked, run, setup.device), _shown(asked)
    places = places_of(asked, items)[: None if items else first]
    described = captions_by_item(asked.records, asked.view)
    captions = described.grouped(described.texts)

    def sheet(place: int) -> tuple[str, str, Image]:
        id = asked.reader.examples.ids[place]
        caption = shorten(captions[id][0], LONGEST_LEGEND, placeholder=" …")
        return id, caption, show(id, caption, *attend(place))

    with torch.inference_mode(), setup.progress.over("draw", len(places), unit="pictures") as tick:
        return list(save_sheets(folder, map(sheet, places), tick))


def _attention(asked: OpenedRun, run: str, device: str) -> Callable[[int], tuple[NDArray[np.float32], list[str]]]:
    """Gives the maps (L, K) of an item, and their names: of a model of words, those of its first caption."""
    scorer: Any = asked.scorer
    backbone = scorer if isinstance(scorer, WithBackbone) else None
    model = backbone.model if backbone else scorer
    if not isinstance(model, Attentive | WordAttentive):
        have = "PVSE, PCME, A3VSE, DAN and SCAN have"
        raise UserError(f"{run}: {asked.started.recipe.name} has no attention to look at; {have}")

    def attend(place: int) -> tuple[NDArray[np.float32], list[str]]:
        visual = floats(asked.reader.visual(slice(place, place + 1)), device)
        visual = backbone.features(visual) if backbone else visual
        if isinstance(model, WordAttentive):
            text = asked.reader.text(asked.reader.examples.caption_starts[place : place + 1])
            words = [asked.started.vocabulary.words[number] for number in text.values[0].tolist()]
            return model.attention_of_words(visual, text.to(device)).float().cpu().numpy(), words
        try:
            maps_LK = model.attention_visual(visual)[0].cpu().numpy()
        except ValueError as error:  # a PVSE of no local embeddings
            raise UserError(f"{run}: {error}") from None
        return maps_LK, [f"map {number}" for number in range(1, maps_LK.shape[1] + 1)]

    return attend


def _shown(asked: OpenedRun) -> Show:
    output = asked.features.output
    if regions_file(0) in output.files:
        return _show_regions(asked)
    if not asked.features.spec.ragged:
        return _show_pictures(asked)
    if ancestor(output, FRAMES) is None and ancestor(output, "media") is None:
        raise UserError(f"{output.where} has neither boxes nor frames to draw attention on: import regions with boxes")
    return _show_clips(asked)


def grid_network(asked: OpenedRun) -> ResNet:
    """The network that saw the pictures; UserError if its features are no grid."""
    where = asked.features.output.where
    try:
        network = network_of(asked.features)
    except UserError:
        raise UserError(f"{where} does not say which network saw the pictures: train from the resnet stage") from None
    if asked.features.spec.ragged:
        raise UserError(f"{where} has a row for each sample of a clip, which are no grid")
    if not isinstance(network, ResNet) or network.output != "grid":
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
    pictures = PictureFiles.of(asked.records, source_of(asked.features.output, "media", asked.view.corpus))
    times = -(-SIDE // network.crop)
    sizes = network.resize * times, network.crop * times

    def show(id: str, caption: str, maps_LK: NDArray[np.float32], names: list[str]) -> Image:
        picture = pictures.decoded(id, lambda data: square(data, *sizes, on_truncated=lambda why: None))
        ranges = zip(100 * maps_LK.min(0), 100 * maps_LK.max(0), strict=True)
        titles = [f"{name}: {low:.1f} to {high:.1f} %" for name, (low, high) in zip(names, ranges, strict=True)]
        legend = f"{id}: {caption} ({LEGEND})"
        return labelled(attention_picture(picture, maps_LK), ["what the network sees", *titles], legend)

    return show


def _show_regions(asked: OpenedRun) -> Show:
    regions = RegionStore(asked.features.output)
    pictures = PictureFiles.of(asked.records, media_for(asked.features.output, asked.records))
    if (most := asked.reader.frames.frames) is not None:
        raise UserError(f"the run reads {most} regions of each picture, which are not told apart: train on all of them")

    def show(id: str, caption: str, maps_LK: NDArray[np.float32], names: list[str]) -> Image:
        picture = pictures.open(id)
        panels_HW3 = attention_regions(picture, regions.boxes_in(id, picture.size), maps_LK, names)
        return labelled(panels_HW3, [f"{len(maps_LK)} regions"], f"{id}: {caption} ({REGIONS_LEGEND})")

    return show


def _show_clips(asked: OpenedRun) -> Show:
    features, frames = asked.features, asked.reader.frames
    store = FrameStore(source_of(features.output, FRAMES, asked.view.corpus))

    def show(id: str, caption: str, maps_LK: NDArray[np.float32], names: list[str]) -> Image:
        lengths = features.lengths(features.rows([id]))
        if frames.frames is None:
            samples = np.arange(lengths[0])
        else:
            (samples,) = evaluation_frames(lengths, frames.frames, frames.rule, frames.ends)
        return attention_sheet(store, id, caption, samples, maps_LK)

    return show
