"""Writes TGIF's raw files, as xmodal/corpora/tgif.py describes them, from a generated world, with their quirks.

In every ten scenes one is for validation and one for testing. Test GIFs have the world's number of sentences, all but
the first at the end of the table; others have one. More frequent here than in TGIF are further sentences, addresses
without directory, revisions, tiny square GIFs, GIFs that are gone (no file is written) and GIFs with only a still
picture left.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.demo.files import PublishedScene, Unpublishable, written
from pipelines.demo.pictures import gif
from pipelines.demo.world import World, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.tgif import CORPUS, LISTS, SENTENCES

HOSTS = (38, 33, 31, 37, 42)
SIZES = ("500", "400", "250", "1280", "540", "75sq", "100")
ENDS = ("", ".", ",", ".")


@dataclass(frozen=True)
class Animation(PublishedScene):
    splits = ("tgif/train",) * 8 + ("tgif/val", "tgif/test")

    @property
    def id(self) -> str:
        revision = {2: "_r1", 7: "_r11"}.get(self.scene.index % 9, "")
        return f"tumblr_n{self.digest[:9]}1s{self.scene.index:06d}o1{revision}_{SIZES[self.scene.index % len(SIZES)]}"

    @property
    def url(self) -> str:
        host = f"https://{HOSTS[self.scene.index % len(HOSTS)]}.media.tumblr.invalid"
        folder = "" if self.scene.index % 11 == 4 else f"{self.digest}/"
        return f"{host}/{folder}{self.id}.gif"

    @property
    def still(self) -> bool:
        return self.scene.index % 13 == 6

    @property
    def captions(self) -> int:
        promised = self.world.captions_per_item if self.split == "tgif/test" else 1
        return promised + (self.scene.index % 7 == 3)

    def sentence(self, position: int) -> str:
        """A sentence, mostly in lower case, with or without punctuation at its end."""
        text = describe(self.scene, self.world, position).rstrip(".")
        text = text if (self.scene.index + position) % 8 == 5 else text.lower()
        return text + ENDS[(self.scene.index + position) % len(ENDS)]

    def rows(self, positions: Iterable[int]) -> Iterator[str]:
        return (f"{self.url}\t{self.sentence(position)}\n" for position in positions)


def animations(world: World) -> list[Animation]:
    return [Animation(scene, world) for scene in scenes(world)]


def write(world: World, folder: str | Path) -> Corpus:
    if not world.motion or world.items < 10:
        raise Unpublishable(f"TGIF has moving pictures in three splits: motion and 10 items at least, not {world}")
    path, every, counts = Path(folder), animations(world), Counter[str]()
    for name in ("gifs", "splits"):
        (path / name).mkdir(parents=True, exist_ok=True)
    (path / SENTENCES).write_text("".join(_table(every)), encoding="utf-8", newline="\n")
    for name, split in LISTS.items():
        urls = "".join(f"{each.url}\n" for each in every if each.split == split)
        (path / name).write_text(urls, encoding="utf-8", newline="\n")
    for each in every:
        counts.update({"items": 1, f"items:{each.split}": 1})
        counts.update({"captions": each.captions, f"captions:{each.split}": each.captions})
        if not each.gone:
            data = gif(replace(each.scene, frames=1) if each.still else each.scene)
            (path / f"gifs/{each.id}.gif").write_bytes(data)
    return written(CORPUS, path, dict(counts))


def _table(animations: list[Animation]) -> Iterator[str]:
    """Lines of the table: further sentences stand beside the first, but at the end for the test split."""
    for each in animations:
        yield from each.rows(range(1 if each.split == "tgif/test" else each.captions))
    for each in animations:
        if each.split == "tgif/test":
            yield from each.rows(range(1, each.captions))
