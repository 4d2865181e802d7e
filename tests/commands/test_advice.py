"""Advice: what a command says to do is right for the disk, the store and the shell at hand."""

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest

from tests.commands.test_cli import Xmodal, in_a_namespace, in_subprocess
from tests.commands.test_cli import no_pauses as no_pauses
from tests.commands.test_cli import publisher as publisher
from tests.commands.test_cli import root as root
from tests.commands.test_cli import xmodal as xmodal
from tests.fetching.test_ledger import Publisher
from tests.toy_root import make_root
from tests.userdata.test_own import picture
from xmodal.root.outputs import find


@in_a_namespace
def test_a_disk_without_inodes_is_not_called_full(publisher: Publisher, root: Path) -> None:
    root.mkdir()
    script = 'mount -t tmpfs -o size=50m,nr_inodes=30 none "$1"; shift; exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh", str(root))
    said = in_subprocess("build", publisher.file, "--root", root, "--serial", prefix=prefix).complaint
    assert re.search(rf"the disk of {root}[^ ]* has bytes free, but takes no more files \(inodes\): delete some", said)
    assert "is full" not in said


@in_a_namespace
def test_temporary_files_without_room_are_told_from_a_full_root(tmp_path: Path) -> None:
    (folder := tmp_path / "temporary").mkdir()
    script = 'mount -t tmpfs -o size=64k none "$1"; export TMPDIR="$1"; shift; exec "$@"'
    said = in_subprocess("check", "coco", prefix=("unshare", "-rm", "sh", "-c", script, "sh", str(folder))).complaint
    assert re.search(rf"{folder}[^ ]* is full: free some space, or have TMPDIR name a folder of another disk", said)


@in_a_namespace
def test_ray_is_not_started_where_its_files_have_no_room(publisher: Publisher, root: Path) -> None:
    script = 'mount -t tmpfs -o size=300k none /mnt; export TMPDIR=/mnt; exec "$@"'
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh")
    said = in_subprocess("build", publisher.file, "--root", root, "--workers", 2, prefix=prefix).complaint
    assert "/mnt" in said
    assert said.endswith("free some, have TMPDIR name a folder of another disk, or build with --serial")


def test_no_place_for_temporary_files_is_one_line(
    xmodal: Xmodal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "missing")])
    said = xmodal("check", "coco").complaint
    assert said.endswith("or have TMPDIR name one that you can write to")


@pytest.mark.parametrize("place", ["/proc/x", "/sys/x", "/dev/null/x", "/dev/../proc/x"])
def test_a_root_where_no_folder_can_be_made_is_not_called_damaged(
    place: str, xmodal: Xmodal, publisher: Publisher
) -> None:
    said = xmodal("build", publisher.file, "--root", place).complaint
    assert said.endswith(f"the folder {place} cannot be made: choose another root")


def test_a_bucket_that_does_not_exist_is_said(xmodal: Xmodal, publisher: Publisher, s3_endpoint: str) -> None:
    said = xmodal("build", publisher.file, "--root", "s3://no-such-bucket/root").complaint
    assert said.endswith("the bucket of s3://no-such-bucket/root does not exist: make it, or choose another root")
    assert "a bucket that there is" in xmodal("doctor", "--root", "s3://no-such-bucket/root").out


def test_a_build_that_got_almost_nothing_does_not_exit_with_0(xmodal: Xmodal, tmp_path: Path, root: Path) -> None:
    lines = [f"{number}.jpg,a cap" for number in range(12)]
    (tmp_path / "list.csv").write_text("\n".join(["url,caption", *lines]))
    (tmp_path / "0.jpg").write_bytes(b"one of twelve")
    said = xmodal("build", tmp_path / "list.csv", "--root", root)
    assert said.code == 3
    assert "list/media: 11 of 12 absent or unusable, most often by_hand (" in said.out
    assert xmodal("build", "list", "--root", root).code == 3, "as long as it is so"
    assert xmodal("build", "list", "--root", root, "--most-absent", "0.92").code == 0
    (tmp_path / "1.jpg").write_bytes(b"two of twelve")
    assert xmodal("build", "list", "--root", root).code == 0, "10 of 12 are no more than the default"


def test_commands_that_a_build_advises_can_be_pasted(xmodal: Xmodal, publisher: Publisher, tmp_path: Path) -> None:
    publisher.withdraw("p003.jpg")
    root = tmp_path / "it's my root"
    said = xmodal("build", publisher.file, "--root", root).out
    publisher.restore("p003.jpg")
    retry, seal = re.findall(r"`xmodal ([^`]*)`", said)
    assert xmodal(*shlex.split(retry.replace("[--raw FOLDER]", ""))).code == 0
    assert xmodal(*shlex.split(seal)).code == 0
    assert "8 present" in xmodal("build", publisher.file, "--root", root).out


@pytest.mark.parametrize("flag", ["--weights={}", "--vectors={}", "--file=boxes={}", "--file=weights={}"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(xmodal: Xmodal, tmp_path: Path, root: Path, flag: str) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.pth")
    for command in (("build", "coco/resnet"), ("plan", "coco/resnet")):
        said = xmodal(*command, "--root", root, flag.format(pipe)).complaint
        assert said == f"xmodal: {pipe} is no regular file: copy what it gives into one, and name that"


def test_a_pipe_in_place_of_a_list_is_refused_at_once(xmodal: Xmodal, tmp_path: Path, root: Path) -> None:
    os.mkfifo(pipe := tmp_path / "mine.csv")
    assert f"{pipe} is no regular file" in xmodal("build", pipe, "--root", root).complaint


def test_features_refuse_a_pipe_of_weights_at_once(xmodal: Xmodal, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.pth")
    (folder := tmp_path / "pictures").mkdir()
    (folder / "one.png").write_bytes(picture(1))
    for flag in (f"--weights={pipe}", f"--file=weights={pipe}"):
        assert f"{pipe} is no regular file" in xmodal("features", folder, "--model", "resnet18", flag).complaint


@pytest.mark.parametrize("file", ["facts/c/0/0", "rows.parquet", "units.tsv", "stage.json", "a pipe"])
def test_advice_about_damaged_features_names_their_root(
    file: str, xmodal: Xmodal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the command takes a root or not, and wherever it is run."""
    root = make_root(tmp_path / "it's my", items=4)
    identity = find(root, "resnet")[0].identity
    damaged = Path(root, "resnet", identity, "units.tsv" if file == "a pipe" else file)
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"otherwise")
    if file == "a pipe":
        damaged.unlink()
        os.mkfifo(damaged)
    monkeypatch.chdir(root)
    said = xmodal("export", f"resnet/{identity}", tmp_path / "x.npy").complaint
    (advised,) = re.findall(r"`xmodal ([^`]*)`", said)
    assert shlex.split(advised)[-2:] == ["--root", root]
    if file == "a pipe":
        damaged.unlink()
    assert identity in xmodal(*shlex.split(advised)).out
