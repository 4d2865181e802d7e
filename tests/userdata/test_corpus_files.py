"""A corpus in a user's own file, and a sample of a corpus: one name in every command, and said in what is made."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.demo.coco import write
from pipelines.demo.world import World
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.fetching.test_ledger import Publisher, publishing


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    """Its corpus is named pictures and lies in mine.py."""
    with publishing(tmp_path) as publisher:
        yield publisher


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def outputs(built: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["path"] for row in built["outputs"]]


def test_a_file_keeps_its_name_in_every_command(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    made = xmodal.done("build", publisher.file, "--root", root)
    assert outputs(xmodal.done("build", "pictures", "--root", root)) == outputs(made)
    assert [row["done"] for row in xmodal.done("plan", "pictures/media", "--root", root)["stages"]] == [8]
    for number, name in enumerate((publisher.file, "pictures")):
        assert xmodal.done("stats", name, "--root", root)["corpus"] == "pictures"
        assert xmodal.done("publish", name, "--root", root, "--out", tmp_path / f"out{number}")["corpus"] == "pictures"
        assert "pictures" in json.dumps(xmodal.done("seal", name, "--root", root))
        assert xmodal.done("retry", name, "--root", root)["corpora"] == {str(name): {"tried": 0, "recovered": 0}}
    mine = [row for row in xmodal.done("corpora", "--root", root) if row["name"] == "pictures"]
    assert [row["licence"] for row in mine] == ["CC0-1.0"]
    assert set(mine[0]["built"]) == set(outputs(made))
    assert "resnet" in mine[0]["stages"]
    for name in (publisher.file, "pictures"):
        status = xmodal.done("status", name, "--root", root)
        assert {row["path"] for row in status["outputs"]} == set(outputs(made))
    assert "nothing of coco is under" in xmodal("status", "coco", "--root", root).complaint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seen[item], text)", "'x', text)", r"position='x'.*, whose position is no int64: "),
        ("seen[item], text)", "seen[item], 3)", r"text=3.*, whose text is no string: "),
        ('f"pictures/{name}")', 'f"pictures/{name}", "photo")', r"an? Item of kind 'photo'; there are: image, clip$"),
    ],
)
def test_a_row_that_is_none_is_told_in_a_line(
    old: str, new: str, said: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    text = publisher.file.read_text()
    assert old in text
    publisher.file.write_text(text.replace(old, new))
    told = xmodal("build", f"{publisher.file}/records", "--root", root).complaint
    assert re.search(said, told.strip()), told
    assert "\n" not in told.strip()


def test_a_corpus_without_pictures_in_its_sources_is_told_so(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    publisher.file.write_text(publisher.file.read_text().replace("media=media", "media=None"))
    assert (
        "no picture or clip: neither CORPUS.sources nor its media(raw) has any"
        in xmodal("build", publisher.file, "--root", root).out
    )


def test_commands_that_read_records_take_the_file_too(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", f"{publisher.file}/records", "--root", root)
    for name in (publisher.file, "pictures"):
        said = xmodal("train", "vsepp", "--corpus", name, "--root", root).complaint
        assert "no features" in said or "no 'resnet'" in said, said
        said = xmodal("evaluate", "--scores", "no.npy", "--corpus", name, "--split", "pictures/val", "--root", root)
        assert "no.npy" in said.complaint
        assert "fingerprints" in xmodal("leakage", name, "--root", root).complaint


def test_listing_a_root_executes_no_file(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", f"{publisher.file}/records", "--root", root)
    publisher.file.write_text("raise SystemExit('executed')\n")
    assert "pictures" in [row["name"] for row in xmodal.done("corpora", "--root", root)]
    xmodal("status", "--root", root)


def test_a_file_that_was_moved_is_asked_for_and_named_anew(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    xmodal.done("build", publisher.file, "--root", root)
    moved = publisher.file.rename(tmp_path / "moved.py")
    said = xmodal("plan", "pictures", "--root", root).complaint
    assert (
        f"pictures was defined by {publisher.file}, which is gone: build once from the file where it lies now" in said
    )
    xmodal.done("build", moved, "--root", root)
    assert xmodal.done("plan", "pictures", "--root", root)["stages"]


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_file_of_a_name_that_xmodal_has_is_refused(
    command: str, xmodal: Xmodal, publisher: Publisher, root: Path
) -> None:
    publisher.file.write_text(publisher.file.read_text().replace('name="pictures"', 'name="coco"'))
    said = xmodal(command, publisher.file, "--root", root).complaint
    expected = "coco is a corpus already: name it without a file, or give the CORPUS of"
    assert said.endswith(f"{expected} {publisher.file} another name")
    assert not root.exists()


def test_another_file_of_the_same_name_is_refused(
    xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path
) -> None:
    xmodal.done("build", f"{publisher.file}/records", "--root", root)
    other = tmp_path / "other.py"
    other.write_text(publisher.file.read_text() + "# mine as well\n")
    said = xmodal("build", other, "--root", root).complaint
    assert said.endswith(f"pictures is {publisher.file} here: give the CORPUS of {other} another name")
    same = Path(shutil.copy(publisher.file, tmp_path / "same.py"))
    xmodal.done("plan", same, "--root", root)


def test_a_list_and_a_file_have_not_one_name(xmodal: Xmodal, publisher: Publisher, root: Path, tmp_path: Path) -> None:
    xmodal.done("build", f"{publisher.file}/records", "--root", root)
    (tmp_path / "pictures.csv").write_text("url,caption\na.jpg,a cat\n")
    said = xmodal("plan", tmp_path / "pictures.csv", "--root", root).complaint
    assert f"pictures is {publisher.file} here: give {tmp_path}/pictures.csv a name of its own with --name" in said


def test_a_file_that_defines_another_corpus_by_now_says_so(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    xmodal.done("build", f"{publisher.file}/records", "--root", root)
    publisher.file.write_text(publisher.file.read_text().replace('name="pictures"', 'name="paintings"'))
    assert "defines paintings now, and pictures no longer" in xmodal("plan", "pictures", "--root", root).complaint


# ------------------------------------------------------------------------------------------------------------- samples


def test_a_sample_is_built_without_the_counts_of_the_whole_and_says_so(
    xmodal: Xmodal, root: Path, tmp_path: Path
) -> None:
    write(World(24, image_size=32), tmp_path / "raw")
    whole = xmodal("build", "coco/records", "--root", root, "--raw", tmp_path / "raw").complaint
    assert "files are missing" in whole
    made = xmodal.done("build", "coco", "--root", root, "--raw", tmp_path / "raw", "--sample")
    assert {row["corpus"] for row in made["outputs"]} == {"coco-sample"}
    assert "coco-sample: a sample, which may be any part" in made["notes"][0]
    assert outputs(xmodal.done("build", "coco-sample", "--root", root)) == outputs(made)
    assert "coco-sample" in xmodal("status", "--root", root).out
    assert xmodal.done("stats", "coco-sample", "--root", root)["corpus"] == "coco-sample"
    assert "coco-sample" in [row["name"] for row in xmodal.done("corpora", "--root", root)]
    xmodal.done("publish", "coco-sample", "--root", root, "--out", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "**A sample.** These are a part of the corpus" in card
    assert "MS-COCO captions" in card


def test_a_sample_of_a_file_has_a_name_too(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    for file in publisher.folder.glob("*.tsv"):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:4]))
    assert "must give 16 captions, not 4" in xmodal("build", f"{publisher.file}/records", "--root", root).complaint
    made = xmodal.done("build", f"{publisher.file}/records", "--root", root, "--raw", publisher.folder, "--sample")
    assert made["outputs"][0]["corpus"] == "pictures-sample"
    for _ in range(2):
        assert outputs(xmodal.done("build", "pictures-sample/records", "--root", root)) == outputs(made)


def test_a_sample_is_not_downloaded(xmodal: Xmodal, publisher: Publisher, root: Path) -> None:
    said = xmodal("build", f"{publisher.file}/records", "--root", root, "--sample").complaint
    assert "a sample is not downloaded: put a part of this file into a folder and add --raw FOLDER" in said
    assert publisher.asked() == []


def test_a_list_has_no_sample(xmodal: Xmodal, root: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("url,caption\na.jpg,a cat\n")
    said = xmodal("build", tmp_path / "mine.csv", "--root", root, "--sample").complaint
    assert "--sample is for a corpus that says how much is in it" in said
