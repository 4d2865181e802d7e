"""Flickr30k's raw files, made of a generated world: what xmodal/corpora/flickr30k.py describes, at any size.

The two splits go by a scene's index and do not agree, and one scene of ten is in none of Karpathy's. Captions are
tokenised in the token file and as they were written in Karpathy's JSON; some end in white space. One caption of some
pictures is another scene's: those are what Entities calls unrelated. Of equal worlds the files are equal bytes.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.demo.files import Unpublishable, new_archive, write_json, written
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import Scene, World, describe, scene, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.flickr30k import CAPTIONS, CAPTIONS_MEMBER, CORPUS, PLUMMER, TOKENS, UNASSIGNED

KARPATHY_OF_TEN = ("train", "val", "test", "train", "train", None, "train", "train", "train", "train")
PLUMMER_OF_TEN = ("test", "train", "val", "train", "train", "train", "train", "train", "train", "train")


@dataclass(frozen=True)
class Picture:
    """One scene as Flickr30k publishes it."""

    scene: Scene
    world: World

    @property
    def id(self) -> str:
        return str(9 + 7 * self.scene.index)

    @property
    def filename(self) -> str:
        return f"{self.id}.jpg"

    @property
    def karpathy(self) -> str | None:
        return KARPATHY_OF_TEN[self.scene.index % 10]

    @property
    def plummer(self) -> str:
        return PLUMMER_OF_TEN[self.scene.index % 10]

    @property
    def splits(self) -> set[str]:
        return {f"plummer/{self.plummer}"} | ({f"karpathy/{self.karpathy}"} if self.karpathy else set())

    def unrelated(self, position: int) -> bool:
        """The last of several captions, of one picture in eleven."""
        return self.scene.index % 11 == 4 and 0 < position == self.world.captions_per_item - 1

    def captions(self) -> Iterator[str]:
        """As people wrote them."""
        for position in range(self.world.captions_per_item):
            shown = scene(self.world, self.scene.index - 1) if self.unrelated(position) else self.scene
            yield describe(shown, self.world, position)


def pictures(world: World) -> Iterator[Picture]:
    return (Picture(scene, world) for scene in scenes(world))


def tokenised(text: str) -> str:
    """Punctuation apart from words."""
    return re.sub(r"([.,])", r" \1", text)


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the five files and the pictures; the corpus has sizes and checksums, and the counts of a full parse."""
    path = Path(folder)
    refuse_what_cannot_be_held(world)
    write_pictures(world, path)
    write_splits(world, path)
    with (path / TOKENS).open("w", encoding="utf-8", newline="") as file:
        file.writelines(line for picture in pictures(world) for line in _token_lines(picture))
    with new_archive(path / CAPTIONS) as archive:
        assigned = (picture for picture in pictures(world) if picture.karpathy)
        write_json(archive, CAPTIONS_MEMBER, {"images": map(_split_record, assigned), "dataset": "flickr30k"})
    return written(CORPUS, path, _counts(world))


def refuse_what_cannot_be_held(world: World) -> None:
    if world.motion or world.items < 3 or world.captions_per_item > 10:
        raise Unpublishable(f"Flickr30k has still pictures in three splits, with at most 10 captions each, not {world}")


def write_pictures(world: World, folder: Path) -> None:
    (folder / "flickr30k-images").mkdir(parents=True, exist_ok=True)
    for picture in pictures(world):
        (folder / "flickr30k-images" / picture.filename).write_bytes(jpeg(picture.scene))


def write_splits(world: World, folder: Path) -> None:
    for path, split in PLUMMER.items():
        ids = [picture.id for picture in pictures(world) if split in picture.splits]
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("".join(f"{image}\n" for image in ids), "utf-8", newline="")


def _token_lines(picture: Picture) -> Iterator[str]:
    for position, text in enumerate(picture.captions()):
        stray = " " if (picture.scene.index + position) % 9 == 0 else ""
        yield f"{picture.filename}#{position}\t{tokenised(text)}{stray}\n"


def _split_record(picture: Picture) -> dict[str, Any]:
    imgid = picture.scene.index
    sentences = [
        {"tokens": re.findall(r"[a-z]+", text.lower()), "raw": text, "imgid": imgid, "sentid": 10 * imgid + position}
        for position, text in enumerate(picture.captions())
    ]
    sentids = [sentence["sentid"] for sentence in sentences]
    about = {"split": picture.karpathy, "filename": picture.filename}
    return {"sentids": sentids, "imgid": imgid, "sentences": sentences} | about


def _counts(world: World) -> dict[str, int]:
    counts = Counter[str]()
    for picture in pictures(world):
        for of in ("", *(f":{split}" for split in picture.splits)):
            counts.update({f"items{of}": 1, f"captions{of}": world.captions_per_item})
        counts[f"odd: {UNASSIGNED}"] += picture.karpathy is None
    return {name: counts[name] for name in CORPUS.counts}
