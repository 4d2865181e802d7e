"""Word pictures: how much less a caption is like its item without each of its words (Dual-Path, figure 11)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from xmodal.batches.batch import Padded
from xmodal.errors import UserError, forget_command
from xmodal.evaluation.attention_pictures import places_of
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.features.contact_sheets import save_sheets
from xmodal.media.drawing import bars, labelled, side_by_side
from xmodal.media.images import UnreadableImage, open_image
from xmodal.raw.archives import Archives, MissingMedia
from xmodal.raw.raw_files import raw_of
from xmodal.recipes import Tokens
from xmodal.records.tables import Item, read_rows
from xmodal.records.views import captions_by_item
from xmodal.root.selection import media_for
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats

WIDTH = 480  # pixels of a picture, and of its bars
MARKED = 3  # words, as in the paper
LEGEND = "how much the similarity falls without a word; red: the three words without which it falls most"


@dataclass(frozen=True)
class WordPicture:
    item: str
    caption: str
    path: str
    words: list[tuple[str, float]]  # each word that the run reads, and what is lost without it


def draw_words(
    run: str, setup: Setup, split: str | None, folder: Path, *, items: Sequence[str] = (), first: int = 8
) -> list[WordPicture]:
    """Draws a PNG for each of the items, or the first ones of the split: the item beside its first caption's words."""
    asked = open_run(run, setup, split)
    if not isinstance(asked.started.recipe.text, Tokens):
        raise UserError(f"{run}: {asked.started.recipe.name} does not read captions word by word: none can be left out")
    places = places_of(asked, items)[: None if items else first]
    described, show = captions_by_item(asked.records, asked.view), _Shown(asked)
    captions = described.grouped(described.texts)
    found = dict[str, list[tuple[str, float]]]()

    def sheet(place: int) -> tuple[str, str, Image.Image]:
        id = asked.reader.examples.ids[place]
        found[id] = losses(asked, place, setup.device)
        panels = side_by_side([show.picture(id), bars(found[id], MARKED, WIDTH)])
        return id, captions[id][0], labelled(panels, [id, "without each word"], f"{captions[id][0]} ({LEGEND})")

    with torch.inference_mode(), setup.progress.over("draw", len(places), unit="pictures") as tick:
        drawn = list(save_sheets(folder, map(sheet, places), tick))
    return [WordPicture(one.item, one.caption, one.path, found[one.item]) for one in drawn]


def losses(asked: OpenedRun, place: int, device: str) -> list[tuple[str, float]]:
    """Gives the words of an item's first caption, and how much less similar it is without each."""
    caption = asked.reader.text(asked.reader.examples.caption_starts[place : place + 1]).values[0].numpy()
    inner = range(1, len(caption) - 1)  # without <start> and <end>
    texts = Padded.of([caption, *(np.delete(caption, word) for word in inner)]).to(device)
    visual = asked.scorer.encode_visual(floats(asked.reader.visual(slice(place, place + 1)), device))
    whole, *others = asked.scorer.similarity(visual, asked.scorer.encode_text(texts))[0].tolist()
    words = (asked.started.vocabulary.words[caption[word]] for word in inner)
    return [(word, whole - other) for word, other in zip(words, others, strict=True)]


class _Shown:
    """The pictures of a run's items."""

    def __init__(self, asked: OpenedRun) -> None:
        if asked.features.spec.ragged and any(item.kind == "clip" for item in read_rows(asked.records, Item)):
            raise UserError(f"{asked.features.output.where} is of clips: words are drawn beside pictures alone")
        self.media = media_for(asked.features.output, asked.records)
        self.archives = Archives(raw_of(self.media))
        self.paths = {item.id: item.media for item in read_rows(asked.records, Item)}

    def picture(self, id: str) -> Image.Image:
        try:
            picture = open_image(self.archives.read(self.paths[id]), on_truncated=lambda why: None)
        except (MissingMedia, UnreadableImage) as error:
            cure = f"{forget_command(self.media.storage.url)}, build again"
            raise UserError(f"the picture of {id} is damaged ({error}): {cure}") from error
        return picture.resize((WIDTH, round(WIDTH * picture.height / picture.width)))
