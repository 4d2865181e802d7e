"""Pictures of a corpus: the frames of its clips, what a detector saw in its pictures, and where phrases were found."""

import shlex
from collections.abc import Iterable, Sequence
from itertools import starmap
from pathlib import Path

from PIL.Image import Image

from xmodal.batches.dataset import open_dataset
from xmodal.checks.phrase_pictures import found_phrases, phrase_sheet
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import ScoredPhrases
from xmodal.evaluation.picture_files import PictureFiles
from xmodal.evaluation.region_pictures import region_sheet
from xmodal.features.contact_sheets import DrawnPicture, contact_sheet, save_sheets
from xmodal.features.frame_store import NAME as FRAMES
from xmodal.features.frame_store import FrameStore
from xmodal.features.store import FeatureStore
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import members
from xmodal.root.outputs import Output
from xmodal.root.selection import media_for, media_of
from xmodal.training.run_setup import Setup

REGIONS = "regions"  # the stage of a detector


def draw_clips(
    corpus: str, setup: Setup, folder: Path, *, items: Sequence[str] = (), first: int = 8, split: str | None = None
) -> list[DrawnPicture]:
    """Draws a PNG for each of the clips, or the first ones that have frames."""
    records = setup.tables(corpus)
    store = FrameStore(setup.store(FRAMES, records).output)
    ids = _chosen(store, records, items, first, split)
    if not ids and first:
        root = shlex.quote(setup.root)
        raise UserError(f"no clip of {split or corpus} has frames: `xmodal status --root {root}` says why")
    sheets = ((id, caption, contact_sheet(store, id, caption)) for id, caption in _with_captions(records, ids))
    with setup.progress.over("draw", len(ids), unit="clips") as tick:
        return list(save_sheets(folder, sheets, tick))


def draw_regions(
    corpus: str, setup: Setup, folder: Path, *, items: Sequence[str] = (), first: int = 8, split: str | None = None
) -> list[DrawnPicture]:
    """Draws a PNG for each of the pictures, or the first ones that have regions: of the regions stage, if not told."""
    dataset = open_dataset(setup.root, corpus, setup.records)
    regions = RegionStore(dataset.store(setup.features or REGIONS).output)
    store, where = regions.store, regions.store.output.where
    pictures = PictureFiles.of(dataset.records, media_for(store.output, dataset.records))
    ids = _chosen(store, dataset.records, items, first, split)
    if strange := [id for id in ids if id not in store or id not in pictures.paths]:
        raise UserError(f"{', '.join(strange)}: {where} has no regions of such items")
    if not ids and first:
        raise UserError(f"no picture of {split or corpus} has regions in {where}")

    def sheet(id: str, caption: str) -> tuple[str, str, Image]:
        return id, caption, region_sheet(regions, id, pictures.open(id), caption)

    with setup.progress.over("draw", len(ids), unit="pictures") as tick:
        return list(save_sheets(folder, starmap(sheet, _with_captions(dataset.records, ids)), tick))


def draw_phrases(
    setup: Setup, folder: Path, scored: ScoredPhrases, *, items: Sequence[str] = (), first: int = 8
) -> list[DrawnPicture]:
    """Draws a PNG for each of the pictures, or the first ones: where the phrases of a caption are, and were found."""
    pictures = PictureFiles.of(scored.records, media_of(scored.records))
    if strange := [id for id in items if id not in scored.phrases.pictures]:
        raise UserError(f"{', '.join(strange)}: {scored.view.split} has no phrases to find in such items")
    captions = {match.caption for match in scored.phrases.matches}
    texts = {one.id: one.text for one in read_rows(scored.records, Caption) if one.id in captions}
    named = list(dict.fromkeys(items))
    first_there = pictures.first(scored.phrases.pictures, first, setup.progress.say)
    shown = ((id, pictures.open(id)) for id in named) if named else first_there

    def sheet(id: str, picture: Image) -> tuple[str, str, Image]:
        found = found_phrases(scored, id)
        caption = texts[found[0].caption]
        return id, caption, phrase_sheet(picture, id, caption, found)

    total = len(named) or min(first, len(scored.phrases.pictures))
    with setup.progress.over("draw", total, unit="pictures") as tick:
        return list(save_sheets(folder, starmap(sheet, shown), tick))


def _chosen(store: FeatureStore, records: Output, items: Sequence[str], first: int, split: str | None) -> list[str]:
    among = set(store.ids) if split is None else members(records, split)
    return list(dict.fromkeys(items)) or [id for id in store.ids if id in store and id in among][:first]


def _with_captions(records: Output, ids: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Each id with its first caption, or ''."""
    first_captions = (one for one in read_rows(records, Caption) if one.source == "human" and not one.position)
    return (dict.fromkeys(ids, "") | {one.item: one.text for one in first_captions if one.item in ids}).items()
