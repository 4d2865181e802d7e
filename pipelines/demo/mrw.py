"""Writes MRW's raw files, as xmodal/corpora/mrw.py describes them, from a generated world, with their quirks.

In every ten scenes one is for validation and one for testing. More frequent here than in MRW are addresses that are
empty, missing or cut off, and clips that are gone. The clips are MP4, as giphy's, with frames of different durations;
clips that cannot be fetched are not written. Equal worlds give equal bytes with one version of the encoder.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.demo.files import PublishedScene, Unpublishable, write_tgz, written
from pipelines.demo.world import World, describe, scenes
from xmodal.corpora import Corpus
from xmodal.corpora.mrw import ARCHIVE, CORPUS, SENTENCES

STARTS = ("MRW I see ", "MFW there is ", "When I find ", "MRW my friend shows me ")


@dataclass(frozen=True)
class Reaction(PublishedScene):
    splits = ("mrw/train",) * 8 + ("mrw/val", "mrw/test")

    @property
    def id(self) -> str:
        return f"{self.digest[:7]}G{self.scene.index:05d}"

    @property
    def sentence(self) -> str:
        text = describe(self.scene, self.world, 0).rstrip(".")
        return STARTS[self.scene.index % len(STARTS)] + text[0].lower() + text[1:]

    @property
    def images(self) -> dict[str, str]:
        stem = f"http://media{self.scene.index % 5}.giphy.invalid/media/{self.id}/giphy"
        rest = {"url": f"{stem}.gif", "frames": str(self.scene.frames)}
        addresses = {3: {"mp4_url": ""}, 7: {"mp4_url": stem}, 11: {}}
        return addresses.get(self.scene.index % 19, {"mp4_url": f"{stem}.mp4"}) | rest

    @property
    def at_hand(self) -> bool:
        return self.images.get("mp4_url", "").endswith(".mp4") and not self.gone

    def record(self) -> dict[str, Any]:
        named = {"id": self.id, "sentence": self.sentence}
        return named | {"images": self.images, "gulp_num_frames": self.scene.frames}


def reactions(world: World) -> list[Reaction]:
    return [Reaction(scene, world) for scene in scenes(world)]


def write(world: World, folder: str | Path, validation: Literal["valid", "val"] = "valid") -> Corpus:
    """`validation` is the name of a list, of which the publisher has two."""
    if not world.motion or world.items < 10:
        raise Unpublishable(f"MRW has clips in three splits: motion and 10 items at least, not {world}")
    from pipelines.demo.video import mp4  # PyAV comes in here

    path, every = Path(folder), reactions(world)
    (path / "mp4").mkdir(parents=True, exist_ok=True)
    members = {SENTENCES: json.dumps([each.record() for each in every]).encode()}
    for split, name in (("mrw/train", "train"), ("mrw/val", validation), ("mrw/test", "test")):
        members[f"split/{name}.tsv"] = "".join(f"{each.id}\n" for each in every if each.split == split).encode()
    write_tgz(path / ARCHIVE, members.items())
    for each in every:
        if each.at_hand:
            (path / f"mp4/{each.id}.mp4").write_bytes(mp4(each.scene))
    names = (name for each in every for name in ("items", "captions", f"items:{each.split}"))
    return written(CORPUS, path, dict(Counter(names)))
