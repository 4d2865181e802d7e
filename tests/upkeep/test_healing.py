"""After damage: nothing is made of it, what was made of it is made again, and one round of mending is enough."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.build_options import BuildOptions
from pipelines.engine.progress_line import ProgressLine
from pipelines.upkeep.corpus_build import CorpusBuild
from pipelines.upkeep.inspection import forget, verify
from tests.conftest import tree_digest
from tests.stages.test_pinned import CORPUS
from tests.upkeep.test_damage import cut, delete, files_of, flip, zero
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import blob_key, read_lock

QUIET = ProgressLine(quiet=True)
STAGES = ("sources", "records", "media", "vocabulary", "pixels", "fingerprints")


def built(options: BuildOptions, *names: str) -> dict[str, Output]:
    corpus = replace(load(str(CORPUS)), counts={})
    work = CorpusBuild(options, corpus)
    return {name: work.build(name) for name in names or STAGES}


def blob_of(sealed: Output, path: str) -> Path:
    (locked,) = [each for each in read_lock(sealed) if each.path == path]
    assert locked.sha256
    return Path(sealed.storage.url, blob_key(locked.sha256))


def damage(path: Path, data: bytes) -> None:
    path.unlink()  # the publisher's file is another name of the same bytes
    path.write_bytes(data)


def flipped(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    return bytes(data)


@pytest.mark.parametrize("how", ["flipped", "cut", "zeroed", "gone", "another"])
def test_nothing_is_made_of_damaged_annotations(options: BuildOptions, how: str) -> None:
    outputs = built(options, "sources", "media")
    blob, other = blob_of(outputs["sources"], "captions.tsv"), blob_of(outputs["sources"], "pictures.txt")
    data = blob.read_bytes()
    other_data = (other.read_bytes() + data)[: len(data)]
    spoilt = {"flipped": flipped(blob), "cut": data[:-1], "zeroed": bytes(len(data)), "another": other_data}
    blob.unlink()
    if how in spoilt:
        blob.write_bytes(spoilt[how])
    with pytest.raises(UserError, match=rf"captions\.tsv of sources/.*{blob.name}.*`xmodal verify --forget"):
        built(options, "records")
    assert not [output for output in directories(options.storage, "records") if output.complete]


def test_nothing_is_made_of_a_damaged_picture(options: BuildOptions) -> None:
    outputs = built(options, "records", "media")
    blob = blob_of(outputs["media"], "pictures/p003.jpg")
    damage(blob, flipped(blob))
    for stage in ("pixels", "fingerprints"):
        with pytest.raises(UserError, match=rf"pictures/p003\.jpg of media/.*{blob.name}"):
            built(options, stage)


def test_what_was_made_of_a_lost_blob_is_made_again(options: BuildOptions) -> None:
    """As if damage had been read: nobody can tell afterwards, so nothing of it is kept."""
    outputs = built(options)
    whole = tree_digest(options.storage.url)
    blob = blob_of(outputs["sources"], "captions.tsv")
    damage(blob, flipped(blob))
    _, found = verify(options.storage, QUIET)
    reached = forget(options.storage, found)
    assert {folder.partition("/")[0] for folder in reached} >= {"records", "vocabulary"}
    assert not outputs["records"].complete
    assert not outputs["vocabulary"].complete
    assert outputs["pixels"].complete
    built(options)
    assert verify(options.storage, QUIET)[1] == []
    assert tree_digest(options.storage.url) == whole


def test_only_the_units_that_read_a_lost_picture_are_made_again(options: BuildOptions) -> None:
    options = replace(options, settings={**options.settings, "pixels.rows_per_shard": 4})
    outputs = built(options, "pixels")
    inodes = {unit.name: inode(outputs["pixels"], unit) for unit in outputs["pixels"].units()}
    blob = blob_of(outputs["media"] if "media" in outputs else built(options, "media")["media"], "pictures/p003.jpg")
    damage(blob, flipped(blob))
    forget(options.storage, verify(options.storage, QUIET)[1])
    assert not outputs["pixels"].complete
    again = built(options, "pixels")["pixels"]
    changed = [unit.name for unit in again.units() if inode(again, unit) != inodes[unit.name]]
    assert changed == ["shard-00000"]


def inode(output: Output, unit: Any) -> list[int]:
    return [Path(output.storage.url, output.folder, file).stat().st_ino for file in unit.files]


def test_one_round_mends_whatever_was_damaged(options: BuildOptions) -> None:
    built(options)
    root, draw = Path(options.storage.url), random.Random(1)
    whole = tree_digest(options.storage.url)
    for number in range(12):
        for file in draw.sample(files_of(root), 1 + number % 3):
            (flip, cut, zero, delete)[draw.randrange(4)](file, file, draw)
        forget(options.storage, verify(options.storage, QUIET)[1])
        built(options)
        assert verify(options.storage, QUIET)[1] == [], number
        assert tree_digest(options.storage.url) == whole, number


def test_a_set_that_is_no_longer_in_use_wants_nothing(options: BuildOptions) -> None:
    before = built(options, "media")["media"]
    lost = blob_of(before, "pictures/p003.jpg")
    raw = options.raw
    assert raw
    (raw / "p003.jpg").unlink()
    damage(lost, flipped(lost))
    forget(options.storage, verify(options.storage, QUIET)[1])
    after = built(options, "media")["media"]
    assert after.folder != before.folder
    assert verify(options.storage, QUIET)[1] == []


def test_a_clock_that_was_set_back_loses_no_blob(options: BuildOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = built(options)
    whole = tree_digest(options.storage.url)
    blob = blob_of(outputs["media"], "pictures/p003.jpg")
    damage(blob, flipped(blob))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 86_400)
    forget(options.storage, verify(options.storage, QUIET)[1])
    assert not blob.exists()
    built(options)
    assert blob.exists()
    assert verify(options.storage, QUIET)[1] == []
    assert tree_digest(options.storage.url) == whole
