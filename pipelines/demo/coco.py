"""Writes COCO's raw files, as xmodal/corpora/coco.py describes them, from a generated world, with their quirks.

In every ten scenes one is for validation and one for testing; the first six are train2014, the others val2014. More
frequent here than in COCO are captions with stray white space, pictures with six or seven captions, grayscale pictures,
pictures without annotations, and captions whose ids do not follow their order.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.demo.files import PublishedScene, Unpublishable, member, new_archive, write_json, written
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import KINDS, Scene, World, box, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.coco import CAPTIONS, CAPTIONS_MEMBER, CORPUS, FOLDERS, INSTANCES, INSTANCES_MEMBER, SPLITS

CATEGORIES = dict(zip(KINDS, (1, 2, 3, 5, 8, 13, 21, 34, 55, 89), strict=True))
LICENCES = {
    1: ("Attribution-NonCommercial-ShareAlike License", "http://creativecommons.org/licenses/by-nc-sa/2.0/"),
    4: ("Attribution License", "http://creativecommons.org/licenses/by/2.0/"),
    7: ("No known copyright restrictions", "http://flickr.com/commons/usage/"),
}
STRAYS = ("{} ", "{}  ", " {}", "{}\n")
QUIRKS = 0x0C0C0  # random numbers that the world itself does not use


@dataclass(frozen=True)
class Picture(PublishedScene):
    splits = ("train",) * 6 + ("restval", "restval", "val", "test")

    @property
    def cocoid(self) -> int:
        return 9 + 7 * self.scene.index

    @property
    def folder(self) -> str:
        return FOLDERS[self.split != "train"]

    @property
    def filename(self) -> str:
        return f"COCO_{self.folder}_{self.cocoid:012d}.jpg"

    @property
    def grayscale(self) -> bool:
        return self.scene.index % 23 == 5

    @property
    def annotated(self) -> bool:
        return self.scene.index % 29 != 7

    @property
    def captions(self) -> int:
        return self.world.captions_per_item + {3: 1, 12: 2}.get(self.scene.index % 19, 0)

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Id and text of each caption."""
        for position in range(self.captions):
            text = _stray(describe(self.scene, self.world, position), self.scene, position)
            yield 16 * self.scene.index + 5 * position % 16, text


def pictures(world: World) -> list[Picture]:
    return [Picture(scene, world) for scene in scenes(world)]


def write(world: World, folder: str | Path) -> Corpus:
    if world.motion or not 1 <= world.captions_per_item <= 14:
        raise Unpublishable(f"COCO has still pictures and up to 16 captions, of which 2 are extra, not {world}")
    path, every = Path(folder), pictures(world)
    of_folder = {name: [picture for picture in every if picture.folder == name] for name in FOLDERS}
    for name, some in of_folder.items():
        with new_archive(path / f"zips/{name}.zip") as archive:
            for picture in some:
                data = jpeg(picture.scene, picture.grayscale)
                archive.writestr(member(f"{name}/{picture.filename}", zipfile.ZIP_STORED), data)
    with new_archive(path / INSTANCES) as archive:
        for name, some in of_folder.items():
            write_json(archive, f"annotations/captions_{name}.json", _captions(some))
            write_json(archive, INSTANCES_MEMBER.format(name), _instances(some))
    with new_archive(path / CAPTIONS) as archive:
        write_json(archive, CAPTIONS_MEMBER, {"images": map(_split_record, every), "dataset": "coco"})
    return written(CORPUS, path, _counts(every))


def _stray(text: str, scene: Scene, position: int) -> str:
    random = np.random.default_rng([scene.seed, QUIRKS, scene.index, position])
    if random.random() < 0.02:
        text = text.replace(" ", "\n", 1)
    return STRAYS[random.integers(len(STRAYS))].format(text) if random.random() < 0.15 else text


def _captions(pictures: list[Picture]) -> dict[str, Any]:
    captions = ((picture.cocoid, *sentence) for picture in pictures for sentence in picture.sentences())
    annotations = ({"image_id": cocoid, "id": key, "caption": text} for cocoid, key, text in captions)
    return _head(pictures) | {"annotations": annotations}


def _instances(pictures: list[Picture]) -> dict[str, Any]:
    annotations = (record for picture in pictures if picture.annotated for record in _thing_records(picture))
    categories = [{"supercategory": "shape", "id": key, "name": name} for name, key in CATEGORIES.items()]
    return _head(pictures) | {"annotations": annotations, "categories": categories}


def _head(pictures: list[Picture]) -> dict[str, Any]:
    info = {"description": "a generated world in the format of COCO 2014", "version": "1.0", "year": 2014}
    licences = [{"url": url, "id": key, "name": name} for key, (name, url) in LICENCES.items()]
    return {"info": info, "images": map(_image_record, pictures), "licenses": licences}


def _image_record(picture: Picture) -> dict[str, Any]:
    return {
        "license": [*LICENCES][picture.scene.index % len(LICENCES)],
        "file_name": picture.filename,
        "coco_url": f"http://coco.invalid/{picture.folder}/{picture.filename}",
        "height": picture.scene.height,
        "width": picture.scene.width,
        "date_captured": "2013-11-14 11:18:45",
        "flickr_url": f"http://flickr.invalid/{picture.cocoid}_z.jpg",
        "id": picture.cocoid,
    }


def _thing_records(picture: Picture) -> Iterator[dict[str, Any]]:
    for number, thing in enumerate(picture.scene.things):
        left, top, right, bottom = box(picture.scene, thing)
        yield {
            "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            "area": (right - left) * (bottom - top),
            "iscrowd": 0,
            "image_id": picture.cocoid,
            "bbox": [left, top, right - left, bottom - top],
            "category_id": CATEGORIES[thing.kind],
            "id": 4 * picture.scene.index + number + 1,
        }


def _split_record(picture: Picture) -> dict[str, Any]:
    imgid, sentences = picture.scene.index, list(picture.sentences())
    return {
        "filepath": picture.folder,
        "sentids": [sentid for sentid, _ in sentences],
        "filename": picture.filename,
        "imgid": imgid,
        "split": picture.split,
        "sentences": [
            {"tokens": re.findall(r"[a-z]+", text.lower()), "raw": text, "imgid": imgid, "sentid": sentid}
            for sentid, text in sentences
        ],
        "cocoid": picture.cocoid,
    }


def _counts(pictures: list[Picture]) -> dict[str, int]:
    counts = Counter[str]()
    for picture in pictures:
        for of in ("", *(f":{name}" for name in SPLITS[picture.split])):
            first = min(picture.captions, 5)
            counts.update({f"items{of}": 1, f"captions{of}": picture.captions, f"captions[:5]{of}": first})
    return {name: counts[name] for name in CORPUS.counts}
