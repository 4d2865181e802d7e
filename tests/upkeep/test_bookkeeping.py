"""Damage to what a root notes of its outputs: verify names it, --forget mends it, and it hides nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.userdata.test_changed_lists import ALL_TRAIN, List
from tests.userdata.test_changed_lists import mine as mine


@pytest.fixture
def root(xmodal: Xmodal, mine: List, tmp_path: Path) -> Path:
    """A root with a user's list."""
    xmodal.done("build", mine.place, "--root", tmp_path / "root", *ALL_TRAIN)
    return tmp_path / "root"


def first(root: Path, pattern: str) -> Path:
    return min(root.glob(pattern))


def cut(file: Path) -> None:
    data = file.read_bytes()[:-1]
    file.unlink()
    file.write_bytes(data)


def pipe(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def link(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to("/etc/hostname")


LEDGER, COMMITS = "_runs/ledger/media/mine/*.tsv", "records/*/_runs/commits/*.tsv"


@pytest.mark.parametrize(
    ("pattern", "harm"),
    [
        (LEDGER, cut),
        (LEDGER, pipe),
        (COMMITS, cut),
        ("_runs/ledger/media/mine/sealed", pipe),
        ("_runs/records/mine", link),
        ("_runs/own/mine.json", cut),
        ("_runs/own/mine.json", pipe),
    ],
)
def test_a_note_that_cannot_be_read_is_named_and_mended(
    xmodal: Xmodal, mine: List, root: Path, pattern: str, harm: Callable[[Path], None]
) -> None:
    harm(note := first(root, pattern))
    name = note.relative_to(root).as_posix()
    said = xmodal("verify", "--root", root)
    assert (said.code, said.out.splitlines()[0].partition(":")[0]) == (1, name)
    shown = xmodal("status", "--root", root).out
    for stage in ("sources", "records", "media"):
        assert f"{stage}/{first(root, f'{stage}/*').name} of mine: complete" in shown
    assert xmodal("verify", "--root", root, "--forget").code == 1
    xmodal.done("build", mine.place, "--root", root)
    assert xmodal("verify", "--root", root).code == 0


def test_a_picture_that_was_edited_is_seen_after_its_ledger_was_lost(xmodal: Xmodal, mine: List, root: Path) -> None:
    for segment in root.glob(LEDGER):
        cut(segment)
    mine.replace("p0.png", 70)
    complaint = xmodal("build", "mine", "--root", root).complaint
    assert f"is corrupt: `xmodal verify --forget --root {root}` removes it, then run again" in complaint
    xmodal("verify", "--root", root, "--forget")
    said = xmodal("build", "mine", "--root", root)
    assert "1 edited (pictures/p0.png)" in said.err


@pytest.mark.parametrize("harm", [None, pipe, cut])
def test_a_root_that_no_longer_knows_where_a_list_is_says_so(
    xmodal: Xmodal, mine: List, root: Path, harm: Callable[[Path], None] | None
) -> None:
    (harm or Path.unlink)(root / "_runs/own/mine.json")
    mine.add("new.png", 60)
    mine.write()
    said = xmodal("build", "mine/records", "--root", root)
    assert said.err.count("this root no longer knows where ") == 1
    assert " by the list's path" in said.err if harm is None else said.code == 1
    assert "this root no longer knows where " in xmodal("status", "--root", root).out
    (root / "_runs/own/mine.json").unlink(missing_ok=True)
    assert "1 added" in xmodal("build", mine.place, "--root", root).err
    assert "no longer knows" not in xmodal("status", "--root", root).out


@pytest.mark.parametrize("harm", [folder, pipe, link])
def test_what_stands_in_place_of_the_last_file_of_an_output_is_damage(
    xmodal: Xmodal, root: Path, harm: Callable[[Path], None]
) -> None:
    harm(file := first(root, "media/*/complete.json"))
    damage = f"{file} is no regular file: delete it, and build again"
    said = xmodal("verify", "--root", root)
    assert (said.code, damage in said.out) == (1, True)
    shown = xmodal("status", "--root", root).out
    assert damage in shown
    assert "records/" in shown
    if harm is folder:
        assert f"{file} is no regular file: delete it" in xmodal("build", "mine", "--root", root).complaint
    xmodal("verify", "--root", root, "--forget")
    xmodal.done("build", "mine", "--root", root)
    assert xmodal("verify", "--root", root).code == 0


def test_an_output_that_lost_its_last_file_is_unfinished(xmodal: Xmodal, root: Path) -> None:
    (output := first(root, "records/*")).joinpath("complete.json").unlink()
    said = xmodal("verify", "--root", root)
    assert f"records/{output.name}: unfinished: build it again" in said.out
    xmodal.done("build", "mine", "--root", root)
    assert "unfinished" not in xmodal("verify", "--root", root).out


@pytest.mark.parametrize("harm", [folder, pipe, link])
def test_what_stands_in_place_of_a_file_is_told_from_a_missing_one(
    xmodal: Xmodal, root: Path, harm: Callable[[Path], None]
) -> None:
    harm(first(root, "records/*/items.parquet"))
    harm(blob := first(root, "blobs/*/*"))
    lines = xmodal("verify", "--root", root).out.splitlines()
    assert lines[0].endswith("/items.parquet: is no regular file")
    assert lines[1].startswith(f"{blob.relative_to(root)}: is no regular file (")


def test_a_damaged_blob_is_named_by_the_path_that_it_has(xmodal: Xmodal, root: Path) -> None:
    cut(first(root, "blobs/*/*"))
    place, _, problem = xmodal("verify", "--root", root).out.splitlines()[0].partition(": ")
    assert (root / place).is_file()
    assert first(root, "media/*").name in problem or first(root, "sources/*").name in problem


def test_damage_is_told_with_the_root_in_its_cure(xmodal: Xmodal, root: Path) -> None:
    cut(first(root, "media/*/complete.json"))
    for command in ("status", "verify"):
        assert f"`xmodal verify --forget --root {root}`" in xmodal(command, "--root", root).out
