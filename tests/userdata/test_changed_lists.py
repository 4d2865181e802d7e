"""Lists and pictures that change after a build: it is said, and the next build is as one from nothing."""

import hashlib
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.fetching import corpus_files, list_changes, user_lists
from pipelines.fetching.ledger import Ledger
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.conftest import tree_digest
from tests.toy_root import one_thread as one_thread
from tests.userdata.test_own import RESNET, TRAINING, built, picture, write_csv, write_parquet, write_pictures
from xmodal.batches.dataset import open_dataset
from xmodal.errors import UserError
from xmodal.raw.raw_files import raw_of
from xmodal.root.outputs import find
from xmodal.root.sealed_sets import blob_key, sealed_now
from xmodal.root.storage import open_storage

SETS = [word for setting in RESNET for word in ("--set", setting)]
ALL_TRAIN = ("--splits", "train=1")


class List:
    """A list of pictures, which is written anew; `rows` are names of pictures and captions."""

    def __init__(self, folder: Path, count: int) -> None:
        self.place, self.pictures, self.folder = folder / "mine.csv", folder / "pictures", folder
        self.rows = {name: f"it is {name}" for name in write_pictures(self.pictures, count)}
        self.write()

    def write(self) -> None:
        write_csv(self.place, [{"url": f"pictures/{name}", "caption": text} for name, text in self.rows.items()])

    def add(self, name: str, number: int) -> None:
        self.replace(name, number)
        self.rows[name] = f"it is {name}"

    def replace(self, name: str, number: int) -> None:
        new = self.folder / "new"
        new.write_bytes(picture(number))
        new.rename(self.pictures / name)

    def write_over(self, name: str, number: int) -> None:
        """In place: a blob may be another name of the same file."""
        (self.pictures / name).write_bytes(picture(number))


@pytest.fixture
def mine(tmp_path: Path) -> List:
    return List(tmp_path / "data", 6)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def identities(rows: Any) -> dict[str, str]:
    return {row["stage"]: row["identity"] for row in rows["outputs"]}


def from_nothing(xmodal: Xmodal, mine: List, folder: Path, *flags: str) -> dict[str, str]:
    """What a build in a new root gives."""
    shutil.rmtree(folder, ignore_errors=True)
    return identities(xmodal.done("build", mine.place, "--root", folder, *flags))


def sealed_bytes(root: Path, path: str) -> bytes:
    sealed = sealed_now(open_storage(str(root)), "media", "mine")
    assert sealed
    with raw_of(sealed).open(path) as file:
        return file.read()


# ------------------------------------------------------------------------------------------------------------ the list


def test_a_build_by_name_takes_the_list_as_it_is_and_says_what_changed(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    xmodal.done("build", mine.place, "--root", root, *ALL_TRAIN)
    del mine.rows["p0.png"]
    mine.rows["p1.png"] = "other words"
    for number in (6, 7, 8, 9):
        mine.add(f"p{number}.png", number)
    mine.write()
    said = (
        f"mine: {mine.place} has changed: 4 added (pictures/p6.png, pictures/p7.png, pictures/p8.png, …), "
        "1 removed (pictures/p0.png), 1 edited (pictures/p1.png)"
    )
    before = tree_digest(str(root))
    shown = xmodal("status", "--root", root)
    assert f"{said}\nmine: `xmodal build mine --root {root}` takes it as it is now" in shown.out
    assert said in xmodal("plan", "mine", "--root", root).err
    for command in (("publish", "mine", "--out", tmp_path / "out"), ("stats", "mine")):
        assert f"warning: {said}" in xmodal(*command, "--root", root).err
    train = ("train", "vsepp", "--corpus", "mine", "--run", tmp_path / "run")
    assert f"warning: {said}" in xmodal(*train, "--root", root).err
    told = f"--caption is said with the list itself, so name {mine.place} --name mine in place of mine"
    assert told in xmodal("build", "mine", "--caption", "text", "--root", root).complaint
    assert tree_digest(str(root)) == before
    made = xmodal("build", "mine", "--root", root, "--json")
    assert made.err.startswith(f"{said}\n")
    assert identities(made.json) == from_nothing(xmodal, mine, tmp_path / "other", *ALL_TRAIN)
    again = xmodal("build", "mine", "--root", root)
    assert "changed" not in again.err
    assert xmodal.done("status", "mine", "--root", root)["changes"] == {}


def test_a_list_that_is_named_says_what_changed_too(xmodal: Xmodal, mine: List, root: Path) -> None:
    assert "changed" not in xmodal("build", mine.place, "--root", root).err
    mine.rows = {name: mine.rows[name] for name in [*mine.rows][:-1]}
    mine.write()
    assert "mine.csv has changed: 1 removed (pictures/p5.png)" in xmodal("build", mine.place, "--root", root).err
    mine.place.write_text(mine.place.read_text() + "\n")
    assert "mine.csv has changed: the same items as before" in xmodal("build", mine.place, "--root", root).err


def test_a_build_says_how_many_rows_it_took_over(xmodal: Xmodal, mine: List, root: Path) -> None:
    assert "taken over" not in xmodal("build", f"{mine.place}/pixels", "--root", root).err
    mine.add("p6.png", 6)
    mine.write()
    assert "pixels: 6 rows were taken over from earlier outputs\n" in xmodal("build", "mine/pixels", "--root", root).err


def test_only_a_list_of_another_size_or_time_is_read(
    xmodal: Xmodal, mine: List, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    xmodal.done("build", mine.place, "--root", root)
    read = list[str]()

    def counted(path: Any) -> str:
        read.append(Path(path).name)
        return sha256_of(path)

    sha256_of = list_changes.sha256_of
    monkeypatch.setattr(list_changes, "sha256_of", counted)
    xmodal.done("build", "mine", "--root", root)
    xmodal.done("status", "--root", root)
    assert read == []
    os.utime(mine.pictures / "p1.png", (1, 1))
    assert xmodal.done("status", "--root", root)["changes"] == {}
    assert read == ["p1.png"], "and it is as it was"
    assert "changed" not in xmodal("build", "mine", "--root", root).err
    read.clear()
    xmodal.done("build", "mine", "--root", root)
    assert read == [], "its new time is known"


def test_a_list_that_is_gone_or_cannot_be_read_stays_as_it_was(xmodal: Xmodal, mine: List, root: Path) -> None:
    before = identities(xmodal.done("build", mine.place, "--root", root))
    mine.place.write_text("url,text\na.png,b\n")
    made = xmodal("build", "mine", "--root", root, "--json")
    assert f"mine: {mine.place} cannot be read, so it stays as it was: mine.csv:1 has no column 'caption'" in made.err
    assert identities(made.json) == before
    shown = xmodal("status", "--root", root).out
    assert "cannot be read" in shown
    assert "takes it as it is now" not in shown, "a build cannot"
    shutil.rmtree(mine.folder)
    made = xmodal("build", "mine", "--root", root, "--json")
    said = f"mine: the list is no longer at {mine.place}: what was built of it stays; name its new place"
    assert made.err.startswith(f"{said}\n")
    assert identities(made.json) == before
    shown = xmodal("status", "--root", root).out
    assert said in shown
    assert "takes it as it is now" not in shown


def test_a_damaged_picture_that_is_listed_no_longer_is_none_that_is_missing(
    xmodal: Xmodal, mine: List, root: Path
) -> None:
    xmodal.done("build", mine.place, "--root", root)
    (root / blob_key(hashlib.sha256(picture(3)).hexdigest())).unlink()
    assert xmodal("verify", "--root", root, "--forget").code == 1
    assert "damaged: 1, such as pictures/p3.png" in xmodal("status", "--root", root).out
    del mine.rows["p3.png"]
    (mine.pictures / "p3.png").unlink()
    mine.write()
    xmodal.done("build", "mine", "--root", root)
    assert "p3.png" not in xmodal("status", "--root", root).out


def test_a_dataset_with_its_pictures_inside_is_known_by_name(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    some = [{"image": {"bytes": picture(n), "path": f"{n}.png"}, "text": f"picture {n}"} for n in range(4)]
    write_parquet(folder / "train.parquet", some[:3])
    xmodal.done("build", folder, "--root", root, "--url", "image", "--caption", "text")
    write_parquet(folder / "test.parquet", some[3:])
    write_parquet(folder / "train.parquet", some[1:3])
    made = xmodal("build", "mine", "--root", root, "--json")
    (removed, added) = (hashlib.sha256(picture(number)).hexdigest()[:20] for number in (0, 3))
    assert f"mine: {folder} has changed: 1 added ({added}), 1 removed ({removed})\n" in made.err
    assert identities(made.json) == identities(
        xmodal.done("build", folder, "--root", tmp_path / "other", "--url", "image", "--caption", "text")
    )
    assert "beside the list" not in xmodal("build", "mine", "--root", root).err


def test_a_list_that_came_with_a_root_is_not_read(xmodal: Xmodal, root: Path) -> None:
    mine = List(root / "data", 2)
    before = identities(xmodal.done("build", mine.place, "--root", root))
    mine.add("p7.png", 7)
    mine.write()
    assert identities(xmodal.done("build", "mine", "--root", root)) == before
    assert identities(xmodal.done("build", mine.place, "--root", root)) != before


def test_a_root_that_names_a_folder_of_no_list_has_nobody_search_it(
    xmodal: Xmodal, mine: List, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identities(xmodal.done("build", mine.place, "--root", root))
    (root / "_runs/own/mine.json").write_text('{"place": "/", "folder": "/"}')
    monkeypatch.setattr(user_lists, "_dataset_files", lambda folder: pytest.fail(f"{folder} is searched"))
    assert xmodal.done("status", "--root", root)["changes"] == {}
    assert identities(xmodal.done("build", "mine", "--root", root)) == before


# -------------------------------------------------------------------------------------------------------- the pictures


@pytest.mark.parametrize("how", [List.replace, List.write_over])
def test_a_picture_that_was_edited_is_taken_anew(
    how: Callable[[List, str, int], None], xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    xmodal.done("build", f"{mine.place}/resnet", "--root", root, *SETS)
    how(mine, "p3.png", 77)
    said = "mine: of the files beside the list 1 edited (pictures/p3.png)"
    assert said in xmodal("status", "--root", root).out
    made = xmodal("build", "mine/resnet", "--root", root, *SETS, "--json")
    assert said in made.err
    assert sealed_bytes(root, "pictures/p3.png") == picture(77)
    assert xmodal.done("verify", "--root", root)["damage"] == []
    fresh = xmodal.done("build", f"{mine.place}/resnet", "--root", tmp_path / "other", *SETS)
    assert identities(made.json) == identities(fresh)
    assert "edited" not in xmodal("build", "mine", "--root", root).err


def test_pictures_of_the_same_size_and_time_are_told_apart(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    one, other, third = (mine.pictures / f"p{number}.png" for number in range(3))
    longest = max(len(file.read_bytes()) for file in (one, other, third)) + 2
    for file in (one, other, third):
        file.write_bytes(file.read_bytes().ljust(longest, b"-"))
        os.utime(file, (1, 1))
    xmodal.done("build", mine.place, "--root", root)
    one.rename(mine.folder / "away")
    other.rename(one)
    (mine.folder / "away").rename(other)
    third.write_bytes(third.read_bytes().replace(b"--", b"++"))
    os.utime(third, (1, 1))
    said = "mine: of the files beside the list 3 edited (pictures/p0.png, pictures/p1.png, pictures/p2.png)"
    assert said in xmodal("status", "--root", root).out
    made = xmodal.done("build", "mine", "--root", root)
    assert identities(made) == from_nothing(xmodal, mine, tmp_path / "other")
    assert xmodal.done("verify", "--root", root)["damage"] == []
    assert xmodal.done("status", "--root", root)["changes"] == {}


def test_an_edited_picture_takes_nothing_from_its_twin(xmodal: Xmodal, mine: List, root: Path, tmp_path: Path) -> None:
    """Equal files are one blob, which may be another name of either."""
    mine.add("twin.png", 3)
    mine.write()
    xmodal.done("build", mine.place, "--root", root)
    for name in ("p3.png", "twin.png"):
        mine.write_over(name, 80)
        made = xmodal.done("build", "mine", "--root", root)
        assert identities(made) == from_nothing(xmodal, mine, tmp_path / "other")
        assert xmodal.done("verify", "--root", root)["damage"] == []
        mine.write_over(name, 3)
        xmodal.done("build", "mine", "--root", root)
        assert sealed_bytes(root, "pictures/p3.png") == sealed_bytes(root, "pictures/twin.png") == picture(3)


def test_a_picture_that_is_gone_is_kept_and_one_that_comes_is_taken(xmodal: Xmodal, mine: List, root: Path) -> None:
    mine.rows["late.png"] = "it comes later"
    mine.write()
    before = xmodal.done("build", mine.place, "--root", root)
    assert built(before, "media")["counts"] == {"present": 6, "absent": 1}
    (mine.pictures / "p0.png").unlink()
    made = xmodal("build", "mine", "--root", root, "--json")
    said = "of the files beside the list 1 absent there, though the root has its own copy (pictures/p0.png)"
    assert f"mine: {said}" in made.err
    shown = xmodal("status", "--root", root).out
    assert "takes it as it is now" not in shown, "nothing that a build would do"
    assert f"mine: {said}" in shown
    assert identities(made.json) == identities(before)
    mine.replace("late.png", 50)
    made = xmodal("build", "mine", "--root", root, "--json")
    assert "1 added (pictures/late.png)" in made.err
    assert built(made.json, "media")["counts"] == {"present": 7, "absent": 0}


def test_the_pictures_of_a_list_that_lies_elsewhere_are_known_by_name(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mine.place.rename(tmp_path / "lists.csv")
    monkeypatch.chdir(tmp_path)
    xmodal.done("build", "data", "--captions", place, "--name", "mine", "--root", root)
    monkeypatch.chdir("/")
    mine.replace("p2.png", 60)
    made = xmodal("build", "mine", "--root", root)
    assert "1 edited (pictures/p2.png)" in made.err
    blob = next(file for file in (root / "blobs").rglob("*") if file.is_file() and file.read_bytes() == picture(60))
    blob.unlink()
    assert xmodal("verify", "--root", root, "--forget").code == 1
    healed = xmodal.done("build", "mine", "--root", root)
    assert built(healed, "media")["counts"] == {"present": 6, "absent": 0}
    assert xmodal.done("verify", "--root", root)["damage"] == []


@pytest.mark.parametrize("seed", range(3))
def test_after_any_changes_a_build_by_name_is_one_from_nothing(
    seed: int, xmodal: Xmodal, mine: List, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a kill at the worst moment: when it is known that files changed, and none is fetched."""
    draw, fetch = random.Random(seed), corpus_files.fetch
    xmodal.done("build", mine.place, "--root", root)
    for step in range(4):
        for _ in range(draw.randrange(1, 4)):
            name, number = draw.choice([*mine.rows]), draw.randrange(100)
            match draw.randrange(5):
                case 0:
                    mine.add(f"new{step}-{number}.png", number)
                case 1 if len(mine.rows) > 3:
                    del mine.rows[name]
                case 2:
                    mine.rows[name] += " again"
                case 3:
                    mine.replace(name, number)
                case _:
                    mine.write_over(name, number)
        mine.write()
        if draw.random() < 0.5:
            monkeypatch.setattr(corpus_files, "fetch", killed)
            xmodal("build", "mine", "--root", root)
            monkeypatch.setattr(corpus_files, "fetch", fetch)
        made = identities(xmodal.done("build", "mine", "--root", root))
        assert made == from_nothing(xmodal, mine, tmp_path / "other"), step
        assert xmodal.done("verify", "--root", root)["damage"] == []


def killed(*arguments: object) -> None:
    raise UserError("killed")


def test_after_a_kill_of_the_first_build_the_name_knows_its_list_and_its_folder(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, left = corpus_files.fetch, tmp_path / "left"

    def killed_at_the_media(ledger: Ledger, *others: Any) -> None:
        if ledger.part == "annotations":
            return fetch(ledger, *others)
        shutil.copytree(root, left)  # what a process leaves that can tidy nothing up
        raise UserError("killed")

    monkeypatch.setattr(corpus_files, "fetch", killed_at_the_media)
    assert "killed" in xmodal("build", mine.place, "--root", root).complaint
    monkeypatch.setattr(corpus_files, "fetch", fetch)
    monkeypatch.chdir("/")
    mine.replace("p1.png", 70)
    mine.add("p6.png", 6)
    mine.write()
    said = f"mine: {mine.place} has changed: 1 added (pictures/p6.png)"
    assert said in xmodal("status", "--root", left).out
    assert said in xmodal("plan", "mine", "--root", left).err
    assert identities(xmodal.done("build", "mine", "--root", left)) == from_nothing(xmodal, mine, tmp_path / "other")


# ----------------------------------------------------------------------------------------- one of several outputs


def test_after_changes_every_command_takes_the_current_outputs(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    def build() -> str:
        made = xmodal.done("build", f"{mine.place}/resnet", "--root", root, *SETS, "--splits", shares)
        return str(built(made, "resnet")["identity"])

    shares = "train=0.5,val=0.25,test=0.25"
    for number in range(6, 24):
        mine.add(f"p{number}.png", number)
    mine.write()
    first = build()
    mine.replace("p3.png", 90)  # the same settings, other pictures
    second = build()
    assert first != second
    mine.add("p24.png", 24)
    mine.write()
    third = build()
    assert len(find(str(root), "resnet")) == 3
    assert open_dataset(str(root), "mine").store().output.identity == third
    where = f"{root}/resnet/{third}"
    assert xmodal.done("export", where, tmp_path / "x.npy", "--split", "own/test")["items"] > 0
    sets = [part for setting in TRAINING for part in ("--set", setting)]
    run = ("--root", root, "--run", tmp_path / "run")
    xmodal.done("train", "vsepp", "--corpus", "mine", *run, *sets)
    assert f'"features":"{third}"' in "".join(file.read_text() for file in (tmp_path / "run").glob("*.json"))
    xmodal.done("evaluate", tmp_path / "run", "--root", root)
    outputs = xmodal.done("status", "--root", root)["outputs"]
    told = {output["identity"]: output["differs"] for output in outputs if output["stage"] == "resnet"}
    assert told[third].startswith("(current, built 20")
    assert told[first].startswith("(not in use, built 20")
    assert told[second].startswith("(not in use, built 20")
    xmodal.done("build", "mine/resnet", "--root", root, *(word.replace("random:0", "random:1") for word in SETS))
    refused = xmodal("train", "vsepp", "--corpus", "mine", "--root", root, "--run", tmp_path / "other", *sets).complaint
    assert "several outputs of resnet, so say which by --features IDENTITY" in refused
    assert (third in refused, first in refused, second in refused) == (True, False, False)
    with pytest.raises(
        UserError, match=r"several sets of features; .*weights=random.*; name one by --features STAGE/IDENTITY"
    ):
        open_dataset(str(root), "mine").store()


def test_features_of_pictures_that_changed_since_are_not_taken_unsaid(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    """Two pictures are exchanged, and records and media alone are built again: every caption would find the other."""
    for number in range(6, 24):
        mine.add(f"p{number}.png", number)
    mine.write()
    shares = ("--splits", "train=0.5,val=0.25,test=0.25")
    made = xmodal.done("build", f"{mine.place}/resnet", f"{mine.place}/pixels", "--root", root, *SETS, *shares)
    old, squares = (str(built(made, stage)["identity"]) for stage in ("resnet", "pixels"))
    train = ["train", "vsepp", "--corpus", "mine", "--root", root]
    train += [part for setting in TRAINING for part in ("--set", setting)]
    assert "changed" not in xmodal(*train, "--run", tmp_path / "before").err
    xmodal.done("build", "mine", "--root", root)
    assert "not in use" not in xmodal("status", "--root", root).out
    assert "not in use" not in str(open_dataset(str(root), "mine")), "the same bytes are the same set"
    mine.replace("p3.png", 5)
    mine.replace("p5.png", 3)
    xmodal.done("build", "mine", "--root", root)
    said = (
        f"{root}/resnet/{old} was made of pictures or clips that have changed since: "
        f"build it again (`xmodal build mine/resnet --root {root}`)"
    )
    assert said in xmodal(*train, "--run", tmp_path / "run").complaint
    dataset = open_dataset(str(root), "mine")
    for name in (None, "resnet"):
        with pytest.raises(UserError, match=re.escape(said)):
            dataset.store(name)
    for name in (old, f"resnet/{old}"):
        with pytest.warns(UserWarning, match=re.escape(said)):
            assert dataset.store(name).output.identity == old
    for command in (
        (*train, "--run", tmp_path / "named", "--features", old),
        ("evaluate", tmp_path / "before", "--root", root),
        ("export", f"{root}/resnet/{old}", tmp_path / "x.npy"),
    ):
        done = xmodal(*command)
        assert (done.code, f"warning: {said}\n" in done.err) == (0, True), command
    shown = xmodal("status", "--root", root).out
    assert f"resnet/{old} (not in use, built 20" in shown
    for line in shown.splitlines():
        assert not re.search("[0-9a-f]{20}", line.partition(" ")[2]), line
    xmodal.done("build", "mine/resnet", "mine/pixels", "--root", root, *SETS)
    assert "changed" not in xmodal(*train, "--run", tmp_path / "run").err
    lines = [line for line in str(open_dataset(str(root), "mine")).splitlines() if line.startswith("  pixels/")]
    assert [line.endswith(", not in use)") for line in lines] == [f"pixels/{squares} " in line for line in lines]
    assert len(lines) == 2


def test_the_split_of_an_export_is_of_the_corpus_whose_features_they_are(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    other = List(tmp_path / "others", 4)
    xmodal.done("build", other.place, "--root", root, "--name", "others")
    made = xmodal.done("build", f"{mine.place}/resnet", "--root", root, *SETS, *ALL_TRAIN)
    where = f"{root}/resnet/{built(made, 'resnet')['identity']}"
    assert xmodal.done("export", where, tmp_path / "x.npy", "--split", "own/train")["items"] == 6


# --------------------------------------------------------------------------------------------- links out of the folder


def test_links_out_of_a_lists_folder_are_refused_and_followed_on_request(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "elsewhere/secret.png"
    write_pictures(secret.parent, 1)
    secret.write_bytes(picture(99))
    (mine.pictures / "link.png").symlink_to(secret)
    (mine.pictures / "folder").symlink_to(secret.parent)
    (mine.pictures / "within.png").symlink_to(mine.pictures / "p0.png")
    mine.rows |= dict.fromkeys(("link.png", "folder/secret.png", "within.png"), "a link")
    mine.write()
    made = xmodal("build", mine.place, "--root", root)
    assert f"2 link, such as pictures/folder/secret.png: points out of the folder: {secret}, give --follow-links" in (
        made.out
    )
    assert "2 absent, 7 present" in made.out
    assert f"`xmodal build LIST --follow-links --root {root}` takes what links lead to" in made.out
    assert "once they are there" not in made.out
    blobs = [file for file in (root / "blobs").rglob("*") if file.is_file()]
    assert picture(99) not in [file.read_bytes() for file in blobs]
    assert xmodal("retry", "mine", "--root", root).out.startswith("mine: 0 of 2 files recovered")
    assert "take" not in xmodal("build", "mine", "--root", root).err

    made = xmodal("build", mine.place, "--root", root, "--follow-links")
    assert "mine: 2 files that links take from outside the folder, such as pictures/folder/secret.png" in made.err
    assert "9 present" in made.out
    secret.write_bytes(picture(98))
    assert "2 edited" in xmodal("build", "mine", "--root", root).err, "the root remembers that links are followed"
    assert sealed_bytes(root, "pictures/link.png") == picture(98)


def test_a_picture_that_becomes_a_link_out_is_absent(xmodal: Xmodal, mine: List, root: Path, tmp_path: Path) -> None:
    xmodal.done("build", mine.place, "--root", root)
    (tmp_path / "secret.png").write_bytes(picture(99))
    (mine.pictures / "p1.png").unlink()
    (mine.pictures / "p1.png").symlink_to(tmp_path / "secret.png")
    made = xmodal("build", "mine", "--root", root)
    assert "1 changed, such as pictures/p1.png: points out of the folder: " in made.out
    assert "1 absent, 5 present" in made.out


def test_a_list_that_a_folder_has_by_a_link_out_is_refused(xmodal: Xmodal, mine: List, root: Path) -> None:
    (mine.pictures / "captions.csv").symlink_to(mine.place)
    said = xmodal("build", mine.pictures, "--root", root).complaint
    assert f"captions.csv points out of the folder: {mine.place}, give --follow-links to take it" in said
    write_csv(mine.place, [{"url": "p0.png", "caption": "a"}])
    assert xmodal("build", mine.pictures, "--root", root, "--follow-links").code == 0
    mine.place.write_text(mine.place.read_text() + "p1.png,b\n")
    assert "1 added (p1.png)" in xmodal("build", "pictures", "--root", root).err
