"""Prune: what no current set, run or lock needs is shown, then removed; all else stays as it is."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import single
from pipelines.fetching.sealing import FileSet
from pipelines.upkeep.inspection import verify
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.conftest import tree_digest
from tests.toy_root import one_thread as one_thread
from tests.upkeep.test_healing import blob_of, built
from tests.userdata.test_changed_lists import List, from_nothing, identities
from tests.userdata.test_changed_lists import mine as mine
from tests.userdata.test_changed_lists import root as root
from tests.userdata.test_own import RESNET, TRAINING
from xmodal.errors import UserError
from xmodal.root.files import sha256_of
from xmodal.root.outputs import directories
from xmodal.root.sealed_sets import blob_key, sealed_now
from xmodal.root.storage import open_storage
from xmodal.training import run_folder

STAGES = ("sources", "records", "media", "pixels", "vocabulary")


def prune(root: str, *arguments: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["prune", "--root", root, "--json", *arguments]) == 0
    return [each["name"] for each in json.loads(capsys.readouterr().out)["unneeded"]]


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * 86_400)


@pytest.mark.usefixtures("tomorrow")
def test_a_root_in_use_loses_nothing(options: BuildOptions, capsys: pytest.CaptureFixture[str]) -> None:
    built(options, *STAGES)
    root = options.storage.url
    whole = tree_digest(root)
    assert prune(root, "--yes", capsys=capsys) == []
    assert tree_digest(root) == whole
    assert main(["prune", "--root", root]) == 0
    assert capsys.readouterr().out == "everything here is needed\n"


@pytest.mark.usefixtures("tomorrow")
def test_what_a_changed_set_replaced_is_shown_and_then_removed(
    options: BuildOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    before = built(options, *STAGES)
    lost = blob_of(before["media"], "pictures/p003.jpg")
    assert options.raw
    (options.raw / "p003.jpg").unlink()
    lost.unlink()
    assert main(["verify", "--forget", "--root", options.storage.url]) == 1
    after = built(options, *STAGES)
    assert after["media"].folder != before["media"].folder
    root = options.storage.url
    whole = tree_digest(root)
    capsys.readouterr()
    shown = prune(root, capsys=capsys)
    assert shown == sorted(before[name].folder for name in ("media", "pixels"))
    assert tree_digest(root) == whole
    assert prune(root, "--keep", before["pixels"].identity, capsys=capsys) == []
    assert prune(root, "--yes", capsys=capsys) == shown
    assert not before["media"].complete
    assert {output.folder for output in directories(options.storage)} >= {after[name].folder for name in STAGES}
    assert verify(options.storage, ProgressLine(quiet=True))[1] == []
    assert prune(root, capsys=capsys) == []
    for name in STAGES:
        assert built(options, name)[name].folder == after[name].folder


def test_what_a_run_reads_stays_while_the_run_is_kept(
    xmodal: Xmodal, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, run = List(tmp_path / "data", 30), tmp_path / "run"
    splits = ("--splits", "train=0.5,val=0.25,test=0.25")
    chosen = [word for setting in (*RESNET, "output=pooled") for word in ("--set", setting)]
    xmodal.done("build", mine.place, f"{mine.place}/resnet", "--root", root, *splits, *chosen)
    small = [word for setting in TRAINING for word in ("--set", setting)]
    xmodal.done("train", "vsepp", "--corpus", "mine", "--root", root, "--run", run, *small)
    del mine.rows["p0.png"]
    mine.write()
    xmodal.done("build", "mine", "mine/resnet", "--root", root, *chosen)
    days_later(monkeypatch, 2)
    read = run_folder.read(str(run))
    shown = [each["name"] for each in xmodal.done("prune", "--root", root)["unneeded"]]
    assert {f"records/{read.records}", f"resnet/{read.features}", "blobs"} <= {*shown}
    kept = xmodal.done("prune", "--root", root, "--keep", run, "--yes")["unneeded"]
    assert not kept, "what the run is made of stays too, and all blobs of its media"
    assert xmodal.done("evaluate", run, "--root", root)["items"] > 0
    *rows, total = xmodal("prune", "--root", root).out.splitlines()
    assert [row.partition(": ")[0] for row in rows] == [f"would remove {name}" for name in shown]
    assert total.endswith(f": `xmodal prune --root {root} --yes`")
    removed = xmodal("prune", "--root", root, "--yes").out.splitlines()
    assert removed == [row.replace("would remove", "removed") for row in rows]
    assert read.records in xmodal("evaluate", run, "--root", root).complaint


def test_only_old_rubbish_goes(
    options: BuildOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built(options, "records")
    root = Path(options.storage.url)
    rubbish = [root / "_runs/temporary/abc", root / "_runs/partial/xmodal-1", root / "blobs/ab" / ("ab" + "0" * 62)]
    for file in rubbish:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    assert prune(str(root), "--yes", capsys=capsys) == []
    assert all(file.exists() for file in rubbish)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 2 * 86_400)
    assert prune(str(root), "--yes", capsys=capsys) == ["blobs", "_runs"]
    assert not any(file.exists() for file in rubbish)


def test_a_build_that_stopped_before_its_first_unit_goes_after_a_day(
    options: BuildOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, root = built(options, "media"), options.storage.url
    (wrong := Path(root).parent / "wrong.pth").write_text("no weights")
    settings = {"resnet.network": "resnet18"}
    with pytest.raises(UserError, match="no state_dict"):
        built(replace(options, settings=settings, files={"weights": wrong}), "resnet")
    (tried,) = directories(options.storage, "resnet")

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.engine.building._Build.finish", killed)
        with pytest.raises(KeyboardInterrupt):
            built(options, "pixels")
    assert prune(root, capsys=capsys) == [], "somebody may be at work on it"
    days_later(monkeypatch, 2)
    assert prune(root, "--keep", tried.identity, capsys=capsys) == []
    made_of_it = build(single("toy", "made", (tried,), 1, "all", lambda *given: {}), options.storage)
    assert tried.folder not in prune(root, capsys=capsys), "something was made of it before it was made again"
    options.storage.delete_folder(made_of_it.folder)
    assert prune(root, "--yes", capsys=capsys) == [tried.folder], "what has units stays"
    assert not Path(tried.where).exists()
    assert made["media"].complete


def test_an_identity_that_is_not_there_is_refused(options: BuildOptions, capsys: pytest.CaptureFixture[str]) -> None:
    built(options, "records")
    assert main(["prune", "--root", options.storage.url, "--keep", "0123"]) == 1
    assert "has no output 0123" in capsys.readouterr().err


def test_what_a_kill_left_of_a_replaced_set_is_told_measured_and_removed_after_a_day(
    options: BuildOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, root = built(options, *STAGES), options.storage.url
    assert options.raw
    (options.raw / "p003.jpg").unlink()
    blob_of(before["media"], "pictures/p003.jpg").unlink()
    assert main(["verify", "--forget", "--root", root]) == 1
    assert f"damaged: `xmodal build pictures --root {root}` makes them again" in capsys.readouterr().out
    built(options, "media")
    assert not before["pixels"].complete
    assert main(["status", "--root", root]) == 0
    assert f"of a replaced list: `xmodal prune --root {root}` removes it" in capsys.readouterr().out
    assert before["pixels"].folder not in prune(root, capsys=capsys)
    days_later(monkeypatch, 2)
    assert main(["prune", "--root", root, "--json"]) == 0
    sizes = {each["name"]: each["size"] for each in json.loads(capsys.readouterr().out)["unneeded"]}
    files = [file.stat().st_size for file in Path(before["pixels"].where).rglob("*") if file.is_file()]
    assert sizes[before["pixels"].folder] == sum(files) > 0


# ------------------------------------------------------------------------------------------- what left the user's list


def days_later(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + days * 86_400)


def blob(root: Path, name: str) -> Path:
    sealed = sealed_now(open_storage(str(root)), "media", "mine")
    assert sealed
    return blob_of(sealed, f"pictures/{name}")


def without_p0(xmodal: Xmodal, mine: List, root: Path) -> Path:
    """Builds a list with a picture, then without it; returns the picture's blob."""
    xmodal.done("build", mine.place, "--root", root)
    p0 = blob(root, "p0.png")
    del mine.rows["p0.png"]
    mine.write()
    xmodal.done("build", "mine", "--root", root)
    return p0


def test_a_picture_that_was_taken_back_is_gone_after_a_day(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p0 = without_p0(xmodal, mine, root)
    days_later(monkeypatch, 2)
    xmodal.done("prune", "--root", root, "--yes")
    assert not p0.exists()
    assert blob(root, "p1.png").exists()
    _, media = xmodal.done("status", "--root", root)["ledgers"]
    assert (media["files"], media["failures"]) == ({"local": 5}, {})
    assert xmodal("prune", "--root", root).out == "everything here is needed\n"
    xmodal.done("verify", "--root", root)
    mine.rows["p0.png"] = "it is p0.png"
    mine.write()
    days_later(monkeypatch, -1)  # a clock that is set back
    made = identities(xmodal.done("build", "mine", "--root", root))
    assert made == from_nothing(xmodal, mine, tmp_path / "other")
    assert p0.exists()


def test_a_fetch_that_was_killed_keeps_what_it_has(
    xmodal: Xmodal, mine: List, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p0 = without_p0(xmodal, mine, root)
    mine.add("p6.png", 6)
    mine.rows["p0.png"] = "it is p0.png"
    mine.write()
    days_later(monkeypatch, 2)
    with monkeypatch.context() as killed:
        seal = FileSet.seal
        killed.setattr(FileSet, "seal", lambda files: seal(files) if files.part == "annotations" else killed_now())
        assert xmodal("build", "mine", "--root", root).code
    p6 = root / blob_key(sha256_of(mine.pictures / "p6.png"))
    xmodal.done("prune", "--root", root, "--yes")
    assert p0.exists()  # the fetch may still be at work
    days_later(monkeypatch, 2)
    xmodal.done("prune", "--root", root, "--yes")
    assert not p0.exists()
    assert p6.exists()
    made = identities(xmodal.done("build", "mine", "--root", root))
    assert made == from_nothing(xmodal, mine, tmp_path / "other")


def killed_now() -> None:
    raise InterruptedError
