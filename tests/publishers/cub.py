"""CUB's raw files, made of a generated world: what xmodal/corpora/cub.py describes, at any size and with its quirks.

A class is a colour and a kind of the first thing; of four classes one is to test on. Among the quirks, more frequent
here than in CUB so that small worlds have them: classes that the captions' folders call otherwise, captions that are
not UTF-8, stray white space, a Mac's leavings, and pictures of unseen classes in PCME's list. Of equal worlds the files
are equal bytes.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.demo.files import Unpublishable, member, new_archive, write_tgz, written
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import COLOURS, KINDS, Scene, World, box, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.cub import CAPTIONS, CLASS_LISTS, CORPUS, FOLDER, IMAGES, LIST_MEMBER, SEEN, SPLITS, TEN, UNSEEN

CLASSES = {f"{colour} {kind}": number for number, (colour, kind) in enumerate(
    ((colour, kind) for colour in COLOURS for kind in KINDS), 1)}  # fmt: skip
TEST = {number for number in CLASSES.values() if number % 4 == 0}
STRAYS = ("{}\n", "{} \n", " {}\r\n", "{}\n\n")


@dataclass(frozen=True)
class Picture:
    """One scene as CUB publishes it."""

    scene: Scene
    world: World

    @property
    def number(self) -> int:
        return self.scene.index + 1

    @property
    def class_name(self) -> str:
        return f"{self.scene.things[0].colour} {self.scene.things[0].kind}"

    @property
    def class_number(self) -> int:
        return CLASSES[self.class_name]

    @property
    def folder(self) -> str:
        return class_folder(self.class_name)

    @property
    def stem(self) -> str:
        return f"{self.class_name.title().replace(' ', '_')}_{self.number:04d}_{37 * self.number}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.stem}.jpg"

    @property
    def seen(self) -> bool:
        """Whether PCME's list has it."""
        return self.scene.index % 5 == 2

    @property
    def garbled(self) -> bool:
        return self.scene.index % 7 == 3

    @property
    def splits(self) -> set[str]:
        half = "caltech/test" if self.scene.index % 2 else "caltech/train"
        lists = {name for name, member in SPLITS.items() if self.class_number in class_list(member)}
        pcme = "test" if self.class_number in TEST else "val" if self.seen else "train"
        return {half, f"pcme/{pcme}", *lists}

    def caption_file(self) -> bytes:
        lines = [describe(self.scene, self.world, position) for position in range(TEN)]
        data = [STRAYS[(self.number + n) % len(STRAYS)].format(text).encode() for n, text in enumerate(lines)]
        if self.garbled:
            data[4] = data[4].replace(b" ", b"\x92 ", 1)
            data[5] = data[5].replace(b" ", "\ufffd\ufffd".encode(), 1)
        return b"".join(data)


def pictures(world: World) -> Iterator[Picture]:
    return (Picture(scene, world) for scene in scenes(world))


def class_folder(name: str) -> str:
    return f"{CLASSES[name]:03d}.{name.capitalize().replace(' ', '_')}"


def class_list(name: str) -> set[int]:
    """The numbers of the classes that one of the lists has."""
    if not name[-1].isdigit():
        return TEST if name == "testclasses" else set(CLASSES.values()) - TEST
    held_out = {number for number in set(CLASSES.values()) - TEST if number % 3 == int(name[-1]) - 1}
    return held_out if name.startswith("val") else set(CLASSES.values()) - TEST - held_out


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the four files; the pictures are in the first."""
    if world.motion or world.captions_per_item != TEN or world.items < 3:
        raise Unpublishable(f"CUB has still pictures, three or more, and {TEN} captions of each, not {world}")
    path = Path(folder)
    write_tgz(path / IMAGES, _images(world))
    write_tgz(path / CAPTIONS, _captions(world))
    with new_archive(path / CLASS_LISTS) as archive:
        for name in SPLITS.values():
            listed = [class_folder(each) for each, number in CLASSES.items() if number in class_list(name)]
            archive.writestr(member(LIST_MEMBER.format(name), zipfile.ZIP_DEFLATED), "".join(f"{c}\n" for c in listed))
    (path / SEEN).write_text("".join(f"{picture.path}\n" for picture in pictures(world) if picture.seen))
    return written(CORPUS, path, _counts(world))


def _images(world: World) -> Iterator[tuple[str, bytes]]:
    yield "attributes.txt", b"1 has_colour::red\n"
    yield f"{FOLDER}/README", b"a generated world in the format of CUB-200-2011\n"
    yield f"{FOLDER}/bounding_boxes.txt", _lines(f"{p.number} {_box(p)}" for p in pictures(world))
    yield f"{FOLDER}/classes.txt", _lines(f"{number} {class_folder(name)}" for name, number in CLASSES.items())
    yield f"{FOLDER}/image_class_labels.txt", _lines(f"{p.number} {p.class_number}" for p in pictures(world))
    for picture in pictures(world):
        yield f"{FOLDER}/images/{picture.path}", jpeg(picture.scene)
    yield f"{FOLDER}/images.txt", _lines(f"{p.number} {p.path}" for p in pictures(world))
    yield f"{FOLDER}/train_test_split.txt", _lines(f"{p.number} {1 - p.scene.index % 2}" for p in pictures(world))


def _captions(world: World) -> Iterator[tuple[str, bytes]]:
    """Backwards: the captions' archive has an order of its own."""
    for picture in reversed(list(pictures(world))):
        folder = picture.folder + ("s" if picture.class_number % 5 == 0 else "")
        yield f"cvpr2016_cub/text_c10/{folder}/._{picture.stem}.txt", b"\0\5\x16\7 of a Mac"
        yield f"cvpr2016_cub/text_c10/{folder}/{picture.stem}.h5", b"\x89HDF"
        yield f"cvpr2016_cub/text_c10/{folder}/{picture.stem}.txt", picture.caption_file()


def _box(picture: Picture) -> str:
    left, top, right, bottom = box(picture.scene, picture.scene.things[0])
    return f"{left}.0 {top}.0 {right - left}.0 {bottom - top}.0"


def _lines(lines: Iterator[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _counts(world: World) -> dict[str, int]:
    """What CUB itself counts."""
    counts = Counter[str]()
    for picture in pictures(world):
        unseen = picture.seen and picture.class_number in TEST
        counts.update({"items": 1, "captions": TEN, f"odd: {UNSEEN}": int(unseen)})
        counts.update(f"items:{name}" for name in picture.splits)
    return {name: counts[name] for name in CORPUS.counts}
