"""A folder's store goes on after a kill with the same bytes, and computes only what is new in the folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.picture_decoder import NotDecoded, PreparedDecoder
from tests.clips import gif, numbered
from tests.commands.test_cli import CALL, REPOSITORY, Xmodal, in_subprocess
from tests.commands.test_cli import xmodal as xmodal
from tests.commands.test_folder_features import CLIPS, PICTURES, picture, put, rows, same, write
from tests.commands.test_folder_features import clips as clips
from tests.commands.test_folder_features import folder as folder
from tests.conftest import tree_digest
from xmodal.errors import UserError
from xmodal.features.image_models import ModelExtractor
from xmodal.features.store import FeatureStore


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pictures that went through a network, by batch."""
    batches, look = list[int](), ModelExtractor.rows

    def counting(self: ModelExtractor, pictures: Any) -> Any:
        batches.append(len(pictures))
        return look(self, pictures)

    monkeypatch.setattr(ModelExtractor, "rows", counting)
    return batches


def command(folder: Path) -> tuple[object, ...]:
    return "features", folder, *PICTURES, "--out", folder.parent / "store", "--serial"


def test_only_what_is_new_is_computed(xmodal: Xmodal, folder: Path, tmp_path: Path, seen: list[int]) -> None:
    xmodal.done("features", folder, *PICTURES)
    assert sum(seen) == 10
    assert not xmodal.done("features", folder, *PICTURES)["built"]
    assert sum(seen) == 10
    put(folder, new=50, a_first=51)
    write(folder, "3.jpg", picture(52))
    (folder / "a/1.jpg").rename(folder / "moved.jpg")
    (folder / "6.jpg").unlink()
    os.utime(folder / "9.jpg")
    made = xmodal.done("features", folder, *PICTURES)
    assert (made["items"], made["built"], sum(seen)) == (11, True, 13)
    fresh = xmodal.done("features", folder, *PICTURES, "--out", tmp_path / "fresh")
    assert same(rows(Path(made["store"])), rows(Path(fresh["store"])))
    assert tree_digest(made["store"]) == tree_digest(fresh["store"])
    FeatureStore(made["store"]).verify()


def test_only_new_clips_are_sampled_and_computed(xmodal: Xmodal, clips: Path, tmp_path: Path, seen: list[int]) -> None:
    xmodal.done("features", clips, *CLIPS)
    before = sum(seen)
    assert not xmodal.done("features", clips, *CLIPS)["built"]
    write(clips, "00.gif", gif([numbered(200, delay=12), numbered(201, delay=12)]))
    made = xmodal.done("features", clips, *CLIPS)
    assert (made["items"], sum(seen) - before) == (6, 2)
    fresh = xmodal.done("features", clips, *CLIPS, "--out", tmp_path / "fresh")
    assert tree_digest(made["store"]) == tree_digest(fresh["store"])


def test_a_store_has_its_features_once(xmodal: Xmodal, folder: Path) -> None:
    """A copy of the store that knows no hard links is as large as what it holds."""
    store = Path(xmodal.done("features", folder, *PICTURES)["store"])
    put(folder, new=50)
    xmodal.done("features", folder, *PICTURES)
    assert {path for path in store.rglob("*") if path.is_file() and path.stat().st_nlink > 1} == set()
    assert [*(store / "_runs/features").iterdir()] == []


KILLED = """
import os
from pipelines.engine.commits import Commits
commit, left = Commits.commit, [{commits}]
def killing(self, *arguments):
    found = commit(self, *arguments)
    left[0] -= "/features/" in self.where
    if not left[0]:
        os.kill(os.getpid(), 9)
    return found
Commits.commit = killing
"""
PUBLISHING = """
import os
from pipelines.upkeep import folder_features
link, left = folder_features.LocalStorage.link, [{links}]
def killing(self, source, second):
    if not self.url.endswith("_runs") and not second.startswith("_runs"):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), 9)
    link(self, source, second)
folder_features.LocalStorage.link = killing
"""


WAITING = """
import time
from pipelines.upkeep import folder_features
folder_features._sweep = lambda *arguments: (print("there", flush=True), time.sleep(60))
"""
DEATHS = [KILLED.format(commits=2), PUBLISHING.format(links=1), PUBLISHING.format(links=7)]


@pytest.mark.parametrize("before", DEATHS)
def test_a_killed_run_goes_on_with_the_same_bytes(before: str, xmodal: Xmodal, folder: Path, seen: list[int]) -> None:
    undisturbed = xmodal.done("features", folder, *PICTURES, "--out", "undisturbed")
    assert in_subprocess(*command(folder), before=before).code < 0
    with pytest.raises(UserError, match="no finished features"):
        FeatureStore("store")
    seen.clear()
    made = xmodal.done("features", folder, *PICTURES, "--out", "store")
    assert sum(seen) < 10
    assert tree_digest(made["store"]) == tree_digest(undisturbed["store"])


@pytest.mark.parametrize("before", DEATHS)
def test_a_run_that_is_killed_as_it_grows_goes_on(before: str, xmodal: Xmodal, folder: Path, seen: list[int]) -> None:
    xmodal.done("features", folder, *PICTURES, "--out", "store")
    for number in range(10, 20):
        put(folder, **{f"{number}": number})
    assert in_subprocess(*command(folder), before=before).code < 0
    put(folder, later=30)
    seen.clear()
    made = xmodal.done("features", folder, *PICTURES, "--out", "store")
    assert 0 < sum(seen) < 11
    fresh = xmodal.done("features", folder, *PICTURES, "--out", "fresh")
    assert tree_digest(made["store"]) == tree_digest(fresh["store"])


def test_a_picture_that_changes_meanwhile_is_no_picture_of_before(xmodal: Xmodal, folder: Path) -> None:
    before = f"""
from pipelines.upkeep import folder_features
seal = folder_features.seal_files
def changing(*arguments):
    sealed = seal(*arguments)
    open({str(folder / "9.jpg")!r}, "ab").write(b"more")
    return sealed
folder_features.seal_files = changing
"""
    said = in_subprocess(*command(folder), before=before)
    assert said.code == 1
    assert "9.jpg is" in said.err.splitlines()[-1]
    assert said.err.endswith("it has changed since this run began: run the same command again\n")
    assert xmodal.done("features", folder, *PICTURES, "--out", "store")["absent"] == {}


def test_a_second_run_at_once_is_told_to_wait(xmodal: Xmodal, folder: Path) -> None:
    call = [sys.executable, "-B", "-c", f"{WAITING}{CALL}", *map(str, command(folder))]
    with subprocess.Popen(call, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr
        while "there" not in first.stderr.readline():
            assert first.poll() is None
        assert "another process is at work on" in xmodal("features", folder, *PICTURES, "--out", "store").complaint
        first.kill()
    assert not xmodal.done("features", folder, *PICTURES, "--out", "store")["built"]


def test_failures_that_may_pass_are_tried_again(xmodal: Xmodal, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(self: object, data: bytes, on_truncated: object = None) -> Any:
        raise NotDecoded("timeout", "not done after 20 seconds")

    with monkeypatch.context() as patch:
        patch.setattr(PreparedDecoder, "pixels", slow)
        assert len(xmodal.done("features", folder, *PICTURES, "--most-absent", "1")["absent"]) == 10
    made = xmodal.done("features", folder, *PICTURES)
    assert (made["built"], made["absent"]) == (True, {})


def test_a_store_may_be_moved_and_copied(xmodal: Xmodal, folder: Path, tmp_path: Path, seen: list[int]) -> None:
    xmodal.done("features", folder, *PICTURES, "--out", "store")
    shutil.copytree("store", tmp_path / "elsewhere/copy", copy_function=shutil.copy)
    seen.clear()
    assert not xmodal.done("features", folder, *PICTURES, "--out", "elsewhere/copy")["built"]
    put(folder, new=80)
    xmodal.done("features", folder, *PICTURES, "--out", "elsewhere/copy")
    assert sum(seen) == 1


def test_a_store_that_lost_a_file_is_made_again(xmodal: Xmodal, folder: Path) -> None:
    made = xmodal.done("features", folder, *PICTURES)
    before = tree_digest(made["store"])
    (Path(made["store"]) / "resnet18-pooled/c/1/0").unlink()
    assert xmodal.done("features", folder, *PICTURES)["built"]
    assert tree_digest(made["store"]) == before


@pytest.mark.parametrize("grows", [False, True])
def test_a_shard_whose_bytes_have_changed_is_made_again(grows: bool, xmodal: Xmodal, folder: Path) -> None:
    made = xmodal.done("features", folder, *PICTURES)
    store = Path(made["store"])
    before, shard = tree_digest(str(store)), store / "resnet18-pooled/c/1/0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    assert "`xmodal features` that made it" in xmodal("verify", "--root", store).complaint
    if grows:
        shutil.copy(min(path for path in folder.iterdir() if path.is_file()), folder / "zz.jpg")
        assert xmodal.done("features", folder, *PICTURES)["repaired"] == 4
        (folder / "zz.jpg").unlink()
    again = xmodal.done("features", folder, *PICTURES)
    assert (again["built"], again["repaired"]) == (True, None if grows else 4)
    assert tree_digest(str(store)) == before


@pytest.mark.parametrize(
    ("file", "count"), [("resnet18-pooled/c/1/0", 4), ("resnet18-pooled/c/2/0", 2), ("rows.parquet", 0)]
)
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_repair_is_said_with_the_number_of_rows(
    file: str, count: int, is_cut: bool, xmodal: Xmodal, folder: Path
) -> None:
    assert "repaired" not in xmodal("features", folder, *PICTURES).out
    damaged = folder.parent / "pics-resnet18.zarr" / file
    data = damaged.read_bytes()
    damaged.write_bytes(data[:9] if is_cut else data[:9] + bytes([data[9] ^ 1]) + data[10:])
    rows = 10 if is_cut else count  # without a file of the right length no row is believed
    said = xmodal("features", folder, *PICTURES)
    assert f"repaired: files of the store were damaged, and {rows} rows were made again\n" in said.out, said.err
    assert "repaired" not in xmodal("features", folder, *PICTURES).out


@pytest.mark.parametrize("damage", [None, b"", b"{", b"[]", b'{"stage": 1}'])
def test_a_store_that_does_not_say_what_made_it_is_made_again(
    damage: bytes | None, xmodal: Xmodal, folder: Path
) -> None:
    made = xmodal.done("features", folder, *PICTURES)
    before, note = tree_digest(made["store"]), Path(made["store"], "_runs/stage.json")
    note.unlink()
    if damage is not None:
        note.write_bytes(damage)
    assert xmodal.done("features", folder, *PICTURES)["built"]
    assert tree_digest(made["store"]) == before


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"folder": 1}', b'{"folder": "/x", "stages": {"features": [1]}}'])
def test_a_store_whose_note_is_damaged_is_left_alone(damage: bytes, xmodal: Xmodal, folder: Path) -> None:
    made = xmodal.done("features", folder, *PICTURES)
    Path(made["store"], "_runs/folder.json").write_bytes(damage)
    before = tree_digest(made["store"])
    assert "is there already and is no store of a folder" in xmodal("features", folder, *PICTURES).complaint
    assert tree_digest(made["store"]) == before
