"""Pinned digests: a stage whose code changes its output must say so with a new version.

`python -m tests.stages.test_pinned` writes tests/pinned/ anew, a file a stage; it refuses to where bytes changed and
the version did not.
"""

import io
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

from pipelines import stages
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.clips import gif, numbered
from tests.conftest import tree_digest
from tests.made import small
from xmodal.corpora import Corpus, load
from xmodal.features.frame_store import FrameStore
from xmodal.features.store import FeatureStore
from xmodal.raw.raw_files import Raw
from xmodal.recipes import PHRASES
from xmodal.records.tables import Caption, Item, Label, Match, Row
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage

PINNED = Path(__file__).parents[1] / "pinned"
CORPUS = Path(__file__).parents[1] / "fixtures/pictures.py"


def test_every_stage_gives_its_pinned_bytes(tmp_path: Path) -> None:
    pinned = read_pinned()
    assert sorted(pinned) == sorted(stages.targets()), "run python -m tests.stages.test_pinned"
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
    works = builds(folder, folder)
    outputs = {stage: works[root_of(stage)].build(stage) for stage in stages.targets()}
    return {stage: {"version": output.about["version"]} | _bytes(output) for stage, output in outputs.items()}


def root_of(stage: str) -> str:
    if stage == PHRASES:
        return "phrases"
    return "clips" if stages.is_of(stage, "clip") else "root"


def builds(folder: Path, roots: Path) -> dict[str, CorpusBuild]:
    """The toy corpus of pictures, of clips, and with phrases, by their roots; its files are published in `folder`."""
    publish(folder / "raw")
    options = BuildOptions(open_storage(str(roots / "root")), raw=folder / "raw", **small(folder))
    corpus, moving = replace(load(str(CORPUS)), counts={}, kinds=frozenset()), _moving(options, folder)
    moving = replace(moving, storage=open_storage(str(roots / "clips")))
    speaking = replace(options, storage=open_storage(str(roots / "phrases")))
    return {
        "root": CorpusBuild(options, _with_categories(corpus)),
        "clips": CorpusBuild(moving, _of_clips(corpus)),
        "phrases": CorpusBuild(speaking, _with_phrases(corpus)),
    }


def read_pinned() -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in PINNED.glob("*.json")}


def _with_categories(corpus: Corpus) -> Corpus:
    """What captions call the pictures is a label of theirs too."""

    def parse(raw: Raw) -> Iterator[Row]:
        for row in corpus.parse(raw):
            yield row
            if isinstance(row, Caption):
                yield Label(row.item, "category", row.text.split()[1])

    return replace(corpus, parse=parse)


def _moving(options: BuildOptions, folder: Path) -> BuildOptions:
    """The same names, two of which are clips."""
    publish(folder / "moving")
    for number, path in enumerate(sorted((folder / "moving").glob("*.jpg"))):
        clip = gif([numbered(number + shown, delay=10 * shown) for shown in range(5)])
        path.write_bytes(clip if number < 2 else b"no clip")
    return replace(options, raw=folder / "moving")


def _with_phrases(corpus: Corpus) -> Corpus:
    """The last words of each caption are a phrase."""

    def parse(raw: Raw) -> Iterator[Row]:
        for row in corpus.parse(raw):
            yield row
            if isinstance(row, Caption):
                yield Match(row.id, row.item, None, row.text.index("thing"), len(row.text))

    return replace(corpus, parse=parse)


def _of_clips(corpus: Corpus) -> Corpus:
    def parse(raw: Raw) -> Iterator[Row]:
        for row in corpus.parse(raw):
            yield replace(row, kind="clip") if isinstance(row, Item) else row

    return replace(corpus, parse=parse)


def _bytes(output: Output) -> dict[str, Any]:
    """A digest; of numbers that were computed, whose last bits depend on the processor, some values instead."""
    if archives := [name for name in output.files if name.endswith(".npz")]:
        arrays = [np.load(io.BytesIO(output.read(name)), allow_pickle=False) for name in archives]
        numbers = [each[name].ravel() for each in arrays for name in sorted(each) if each[name].dtype.kind == "f"]
        return {"values": np.concatenate(numbers).astype(np.float64)[:100].round(4).tolist()}
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
    flat = values.reshape(len(values), -1)
    some = flat[:, ::97] if flat.shape[1] > 97 else flat  # of a short row every number
    return {"shape": list(values.shape), "values": some.round(4).tolist()}


def publish(folder: Path) -> None:
    """The toy corpus' files; nobody answers for the last picture."""
    folder.mkdir(exist_ok=True)
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
    before = read_pinned()
    with tempfile.TemporaryDirectory() as folder:
        now = digests(Path(folder))
    for stage in before.keys() & now.keys():
        if not _same(before[stage], now[stage]) and before[stage]["version"] == now[stage]["version"]:
            sys.exit(f"stage {stage} gives other bytes under version {now[stage]['version']}: raise its version first")
    for stage, found in now.items():
        file, text = PINNED / f"{stage}.json", json.dumps(found, indent=1, sort_keys=True) + "\n"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(f"wrote {file}")


if __name__ == "__main__":
    main()
