"""Writes Visual Genome's raw files, as xmodal/corpora/visual_genome.py describes them, from a generated world.

Of ten pictures one is for validation and one for testing. Among their quirks, more frequent here than in Visual Genome:
names with capitals, points and stray white space, colours that stand in names, attributes joined by "and", rings and
checked things, which no vocabulary has, objects without attributes, boxes that reach beyond their picture or have no
area there, vocabularies without an end of the last line, one of them with \\r\\n, and grayscale pictures.
"""

import json
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.demo.files import Unpublishable, member, new_archive, written
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import COLOURS, KINDS, TEXTURES, WORDS, Scene, Thing, World, box, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.visual_genome import ADJECTIVES, ARCHIVES, ATTRIBUTE_WORDS, CORPUS, OBJECT_WORDS, SPLIT_LIST, SPLITS

SPLIT_OF_TEN = (*["train"] * 8, "val", "test")
OBJECTS = [WORDS.get(kind, (kind,)) for kind in KINDS if kind != "ring"]
ATTRIBUTES = [WORDS.get(word, (word,)) for word in (*COLOURS, *TEXTURES) if word not in ("plain", "checked")]
BEYOND = 1000  # pixels by which a box that reaches beyond its picture does


@dataclass(frozen=True)
class Picture:
    """One scene as Visual Genome publishes it."""

    scene: Scene

    @property
    def number(self) -> int:
        return 3 * self.scene.index + 1

    @property
    def path(self) -> str:
        return f"{list(ARCHIVES)[self.scene.index % 3 == 2]}/{self.number}.jpg"

    @property
    def split(self) -> str:
        return SPLIT_OF_TEN[self.scene.index % 10]

    @property
    def beyond(self) -> bool:
        """Whether the box of the first thing reaches beyond the picture."""
        return self.scene.index % 24 == 1

    @property
    def empty(self) -> bool:
        """Whether there is an object beside the picture."""
        return self.scene.index % 8 == 5

    def image_record(self) -> dict[str, Any]:
        url = f"http://visual-genome.invalid/{self.path}"
        size = {"width": self.scene.width, "height": self.scene.height}
        return {**size, "url": url, "image_id": self.number, "coco_id": None, "flickr_id": 7}

    def object_records(self) -> Iterator[dict[str, Any]]:
        for place, thing in enumerate(self.scene.things):
            left, top, right, bottom = box(self.scene, thing)
            wide = right - left + (BEYOND if self.beyond and not place else 0)
            yield self._object(place, name_of(thing, self.way(place)), left, top, wide, bottom - top)
        if self.empty:
            yield self._object(9, "circle", self.scene.width, 0, 5, 5)

    def attribute_records(self) -> Iterator[dict[str, Any]]:
        for record, thing in zip(self.object_records(), self.scene.things, strict=False):
            said = said_of(thing, self.way(record["object_id"] % 10))
            yield record | ({"attributes": said} if said else {})

    def way(self, place: int) -> int:
        """How a thing is told: as it is, in its name, joined, or without attributes."""
        return (self.scene.index + place) % 4

    def _object(self, place: int, name: str, x: int, y: int, w: int, h: int) -> dict[str, Any]:
        identity = 10 * self.scene.index + place
        return {"synsets": [], "object_id": identity, "names": [name], "x": x, "y": y, "w": w, "h": h}


def name_of(thing: Thing, way: int) -> str:
    names = WORDS.get(thing.kind, (thing.kind,))
    if way == 1 and thing.colour in ADJECTIVES:
        return f"{thing.colour} {thing.kind}.".capitalize()
    return {2: names[-1], 3: f"{thing.kind.upper()}  "}.get(way, thing.kind)


def said_of(thing: Thing, way: int) -> list[str]:
    """The attributes that attributes.json has."""
    said = [word for word in (thing.colour, thing.texture) if word != "plain"]
    if way == 1 and thing.colour in ADJECTIVES:
        return said[1:]
    return {2: [" and ".join(said)], 3: []}.get(way, said)


def pictures(world: World) -> Iterator[Picture]:
    return (Picture(scene) for scene in scenes(world))


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the five archives, the vocabularies and the splits."""
    if world.motion or world.items < 10:
        raise Unpublishable(f"Visual Genome has still pictures, ten or more, not {world}")
    path, every = Path(folder), list(pictures(world))
    for name, archive_name in ARCHIVES.items():
        with new_archive(path / archive_name) as archive:
            for picture in every:
                if picture.path.startswith(f"{name}/"):
                    data = jpeg(picture.scene, grayscale=picture.scene.index % 23 == 4)
                    archive.writestr(member(picture.path, zipfile.ZIP_STORED), data)
    _write_array(path, "image_data", [picture.image_record() for picture in every])
    for name, records in (("objects", Picture.object_records), ("attributes", Picture.attribute_records)):
        _write_array(path, name, [{"image_id": each.number, name: list(records(each))} for each in every])
    (path / OBJECT_WORDS).parent.mkdir(exist_ok=True)
    (path / OBJECT_WORDS).write_bytes("\n".join(map(",".join, OBJECTS)).encode())
    (path / ATTRIBUTE_WORDS).write_bytes("\r\n".join(map(",".join, ATTRIBUTES)).encode())
    for split in SPLITS:
        lines = [f"{each.path} xml/{each.number}.xml\n" for each in reversed(every) if each.split == split]
        (path / SPLIT_LIST.format(split)).write_text("".join(lines))
    return written(CORPUS, path, _counts(every))


def _write_array(folder: Path, name: str, records: list[dict[str, Any]]) -> None:
    with new_archive(folder / f"{name}.json.zip") as archive:
        archive.writestr(member(f"{name}.json", zipfile.ZIP_DEFLATED), json.dumps(records))


def _counts(pictures: list[Picture]) -> dict[str, int]:
    """Counts as Visual Genome itself does."""
    counts = Counter({"items": len(pictures)})
    counts.update(f"items:bottom_up/{picture.split}" for picture in pictures)
    return {name: counts[name] for name in CORPUS.counts}
