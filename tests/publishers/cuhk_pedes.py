"""CUHK-PEDES' raw files, made of a generated world: what xmodal/corpora/cuhk_pedes.py describes, with its quirks.

A person is what a world calls an identity; of five persons one is for validation and one for testing. Among the quirks,
more frequent here than in CUHK-PEDES: a folder without its pictures (Market), pictures with more than the promised
captions, and stray white space. The records go by split, as the publisher's do.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.demo.files import Unpublishable, written
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import Scene, World, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.cuhk_pedes import CORPUS, FOLDERS, PICTURES, RECORDS, SPLITS

SPLIT_OF_FIVE = ("train", "train", "val", "test", "train")
LACKING = "Market"


@dataclass(frozen=True)
class Picture:
    """One scene as CUHK-PEDES publishes it; persons are counted from 1 in the order in which the file meets them."""

    scene: Scene
    world: World
    person: int
    split: str

    @property
    def folder(self) -> str:
        return FOLDERS[self.scene.index % len(FOLDERS)]

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.person:04d}_{self.scene.index:03d}.jpg"

    @property
    def captions(self) -> int:
        return self.world.captions_per_item + (self.scene.index % 11 == 4) + 8 * (self.scene.index % 29 == 6)

    def record(self) -> dict[str, Any]:
        texts = [describe(self.scene, self.world, position) for position in range(self.captions)]
        return {
            "split": self.split,
            "captions": [f" {text}\n" if self.scene.index % 3 == 1 else text for text in texts],
            "file_path": self.path,
            "processed_tokens": [re.findall(r"[a-z]+", text.lower()) for text in texts],
            "id": self.person,
        }


def pictures(world: World) -> list[Picture]:
    identities = dict.fromkeys(scene.identity for scene in scenes(world))
    split_of = {identity: SPLIT_OF_FIVE[place % 5] for place, identity in enumerate(identities)}
    ordered = sorted(scenes(world), key=lambda scene: SPLITS.index(split_of[scene.identity]))
    persons = dict.fromkeys(scene.identity for scene in ordered)
    numbers = {identity: number for number, identity in enumerate(persons, 1)}
    return [Picture(scene, world, numbers[scene.identity], split_of[scene.identity]) for scene in ordered]


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the records and the pictures, but for the folder that is lacking."""
    some = pictures(world)
    if world.motion or {picture.split for picture in some} != set(SPLITS):
        raise Unpublishable(f"CUHK-PEDES has still pictures, of four persons or more, not {world}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / RECORDS).write_text(json.dumps([picture.record() for picture in some]))
    for picture in _present(some):
        file = path / PICTURES / picture.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(picture.scene))
    return written(CORPUS, path, _counts(some))


def _present(pictures: list[Picture]) -> Iterator[Picture]:
    return (picture for picture in pictures if picture.folder != LACKING)


def _counts(pictures: list[Picture]) -> dict[str, int]:
    """What CUHK-PEDES itself counts."""
    counts = Counter[str]()
    for picture in pictures:
        for of in ("", f":cuhk_pedes/{picture.split}"):
            counts.update({f"items{of}": 1, f"captions{of}": picture.captions})
    return {name: counts[name] for name in CORPUS.counts}
