"""TGIF's raw files, made of a generated world: what xmodal/corpora/tgif.py describes, at any size and with its quirks.

Of ten scenes one is for validation and one for testing, by their index. GIFs for testing have the world's number of
sentences, of which all but the first stand at the end of the table; others have one. Among the quirks, more frequent
here than in TGIF: a further sentence, addresses without directory, revisions, tiny square GIFs, GIFs that are gone (no
file is written) and GIFs of which a still picture is left. Of equal worlds all files are equal bytes.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.demo.files import Unpublishable, written
from pipelines.demo.pictures import gif
from pipelines.demo.world import Scene, World, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.tgif import CORPUS, LISTS, SENTENCES

SPLIT_OF_TEN = ("tgif/train",) * 8 + ("tgif/val", "tgif/test")
HOSTS = (38, 33, 31, 37, 42)
SIZES = ("500", "400", "250", "1280", "540", "75sq", "100")
ENDS = ("", ".", ",", ".")


@dataclass(frozen=True)
class Animation:
    """One scene as TGIF publishes it."""

    scene: Scene
    world: World

    @property
    def split(self) -> str:
        return SPLIT_OF_TEN[self.scene.index % 10]

    @property
    def id(self) -> str:
        revision = {2: "_r1", 7: "_r11"}.get(self.scene.index % 9, "")
        return f"tumblr_n{self._hex[:9]}1s{self.scene.index:06d}o1{revision}_{SIZES[self.scene.index % len(SIZES)]}"

    @property
    def url(self) -> str:
        host = f"https://{HOSTS[self.scene.index % len(HOSTS)]}.media.tumblr.invalid"
        folder = "" if self.scene.index % 11 == 4 else f"{self._hex}/"
        return f"{host}/{folder}{self.id}.gif"

    @property
    def _hex(self) -> str:
        return hashlib.md5(f"{self.scene.seed} {self.scene.index}".encode(), usedforsecurity=False).hexdigest()

    @property
    def gone(self) -> bool:
        return self.scene.index % 17 == 12

    @property
    def still(self) -> bool:
        return self.scene.index % 13 == 6

    @property
    def captions(self) -> int:
        promised = self.world.captions_per_item if self.split == "tgif/test" else 1
        return promised + (self.scene.index % 7 == 3)

    def sentence(self, position: int) -> str:
        """Mostly in lower case, and ending anyhow."""
        text = describe(self.scene, self.world, position).rstrip(".")
        text = text if (self.scene.index + position) % 8 == 5 else text.lower()
        return text + ENDS[(self.scene.index + position) % len(ENDS)]

    def rows(self, positions: Iterable[int]) -> Iterator[str]:
        return (f"{self.url}\t{self.sentence(position)}\n" for position in positions)


def animations(world: World) -> Iterator[Animation]:
    return (Animation(scene, world) for scene in scenes(world))


def write(world: World, folder: str | Path) -> Corpus:
    """Writes the table, the lists and the GIFs; the corpus has their sizes and checksums, and the world's counts.

    The addresses in the table lead nowhere: `files.serve_at` gives others, or the folder is given as the raw files.
    """
    if not world.motion or world.items < len(SPLIT_OF_TEN):
        raise Unpublishable(f"TGIF has moving pictures in three splits: motion and 10 items at least, not {world}")
    path = Path(folder)
    for name in ("gifs", "splits"):
        (path / name).mkdir(parents=True, exist_ok=True)
    with (path / SENTENCES).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_table(world))
    for split, name in LISTS.items():
        with (path / name).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{each.url}\n" for each in animations(world) if each.split == split)
    for each in animations(world):
        if not each.gone:
            data = gif(replace(each.scene, frames=1) if each.still else each.scene)
            (path / f"gifs/{each.id}.gif").write_bytes(data)
    return replace(CORPUS, sources=tuple(written(source, path) for source in CORPUS.sources), counts=_counts(world))


def _table(world: World) -> Iterator[str]:
    """Further sentences stand beside the first, but for those of the test split."""
    for each in animations(world):
        yield from each.rows(range(1 if each.split == "tgif/test" else each.captions))
    for each in animations(world):
        yield from each.rows(range(1, each.captions) if each.split == "tgif/test" else ())


def _counts(world: World) -> dict[str, int]:
    """What TGIF itself counts, and the sentences."""
    counts = Counter[str]()
    for each in animations(world):
        counts.update({"items": 1, f"items:{each.split}": 1})
        counts.update({"captions": each.captions, f"captions:{each.split}": each.captions})
    return dict(counts)
