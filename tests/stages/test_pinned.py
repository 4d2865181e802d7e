"""Pinned digests: a stage whose code changes its output must say so with a new version.

`python -m tests.stages.test_pinned` writes tests/pinned.json anew; it refuses to where bytes changed and the version
did not.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.stages._corpus import NEEDED, STAGES, Site
from tests.clips import gif, numbered
from tests.conftest import tree_digest
from xmodal.corpora import Corpus, load
from xmodal.features.frame_store import FrameStore
from xmodal.features.store import FeatureStore
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Row
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

PINNED = Path(__file__).parents[1] / "pinned.json"
CORPUS = Path(__file__).parents[1] / "fixtures/pictures.py"


def test_every_stage_gives_its_pinned_bytes(tmp_path: Path) -> None:
    pinned = json.loads(PINNED.read_text())
    assert sorted(pinned) == sorted(STAGES)
    for stage, now in digests(tmp_path).items():
        assert_pinned(stage, pinned[stage], now)


def test_other_bytes_under_the_same_version_are_found_out() -> None:
    with pytest.raises(AssertionError, match="raise the version of stage records"):
        assert_pinned("records", {"version": 1, "sha256": "a"}, {"version": 1, "sha256": "b"})


def assert_pinned(stage: str, pinned: dict[str, Any], now: dict[str, Any]) -> None:
    if not _same(pinned, now):
        same = pinned["version"] == now["version"]
        cure = f"raise the version of stage {stage}, then" if same else "the version is new:"
        raise AssertionError(f"{stage} no longer gives its pinned bytes: {cure} run python -m tests.stages.test_pinned")


def _same(pinned: dict[str, Any], now: dict[str, Any]) -> bool:
    exact = {name: value for name, value in now.items() if name != "values"}
    close = np.allclose(pinned.get("values", 0), now.get("values", 0), rtol=0.05, atol=0.002)
    return close and exact == {name: value for name, value in pinned.items() if name != "values"}


def digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Version and digest of what every stage makes of the toy corpus."""
    raw = folder / "raw"
    _publish(raw)
    settings = {"resnet.network": "resnet18", "resnet.weights": "random:0", "resnet.resize": 32, "resnet.crop": 32}
    settings |= {"clips.network": "resnet18", "clips.weights": "random:0", "clips.resize": 32, "clips.crop": 32}
    settings |= {"pixels.side": 32, "frames.short_side": 48, "vocabulary.minimum_count": 1}
    settings |= {"codebook.method": "tfidf"}
    site = Site(open_storage(str(folder / "root")), raw=raw, settings=settings)
    corpus, moving = replace(load(str(CORPUS)), counts={}, kinds=frozenset()), _moving(site, folder)
    pictures, clips = _with_categories(corpus), _of_clips(corpus)
    is_of_clips = {stage: NEEDED.get(stage) == "clip" for stage in STAGES}
    outputs = {
        stage: build(moving, clips) if is_of_clips[stage] else build(site, pictures) for stage, build in STAGES.items()
    }
    return {stage: {"version": output.about["version"]} | _bytes(output) for stage, output in outputs.items()}


def _with_categories(corpus: Corpus) -> Corpus:
    """What captions call the pictures is a label of theirs too."""

    def parse(raw: Raw) -> Iterator[Row]:
        for row in corpus.parse(raw):
            yield row
            if isinstance(row, Caption):
                yield Label(row.item, "category", row.text.split()[1])

    return replace(corpus, parse=parse)


def _moving(site: Site, folder: Path) -> Site:
    """The same names, two of which are clips, under another root."""
    _publish(folder / "moving")
    for number, path in enumerate(sorted((folder / "moving").glob("*.jpg"))):
        clip = gif([numbered(number + shown, delay=10 * shown) for shown in range(5)])
        path.write_bytes(clip if number < 2 else b"no clip")
    return replace(site, storage=open_storage(str(folder / "clips")), raw=folder / "moving")


def _of_clips(corpus: Corpus) -> Corpus:
    def parse(raw: Raw) -> Iterator[Row]:
        for row in corpus.parse(raw):
            yield replace(row, kind="clip") if isinstance(row, Item) else row

    return replace(corpus, parse=parse)


def _bytes(output: Output) -> dict[str, Any]:
    """A digest; of features, which depend in their last bits on the processor, some values instead."""
    if "rows.parquet" not in output.files:
        return {"sha256": tree_digest(output.where)}
    if output.stage == "frames":
        frames = FrameStore(output)
        samples = {id: range(len(frames.frame_of_sample(id))) for id in frames.ids if id in frames}
        shown = np.concatenate([frames.pictures(id, some) for id, some in samples.items()]).astype(np.float64)
        return {"shape": list(shown.shape), "values": shown.reshape(len(shown), -1)[:, ::997].tolist()}
    store = FeatureStore(output)
    ids = [id for id in store.ids if id not in store.absent]
    values = np.concatenate(store.read(ids)) if store.spec.ragged else store.read(ids)
    values = values.astype(np.float64)
    return {"shape": list(values.shape), "values": values.reshape(len(values), -1)[:, ::97].round(4).tolist()}


def _publish(folder: Path) -> None:
    """The toy corpus' files; nobody answers for the last picture."""
    folder.mkdir()
    names = [f"p{number:03d}.jpg" for number in range(8)]
    captions = [f"{name}\ta {colour} thing number {name[1:4]}\n" for name in names for colour in ("red", "blue")]
    (folder / "captions.tsv").write_text("".join(captions))
    (folder / "splits.json").write_text(json.dumps({"train": names[:6], "val": names[6:]}))
    (folder / "pictures.txt").write_text("".join(f"gopher://gone/{name}\n" for name in names))
    for name in names[:-1]:
        colour = (30 * int(name[1:4]), 200 - 20 * int(name[1:4]), 90)
        first, second = (Image.new("RGB", (40, 32), colour[::step]) for step in (1, -1))
        first.save(folder / name, "JPEG")
        first.save(folder / f"{name[:-3]}gif", "GIF", save_all=True, append_images=[second], duration=100)
    (folder / names[0]).write_bytes(b"no picture")


def main() -> None:
    before = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        now = digests(Path(folder))
    for stage in before.keys() & now.keys():
        if not _same(before[stage], now[stage]) and before[stage]["version"] == now[stage]["version"]:
            sys.exit(f"stage {stage} gives other bytes under version {now[stage]['version']}: raise its version first")
    PINNED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
