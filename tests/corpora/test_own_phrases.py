"""Phrases and boxes of one's own: a file of a corpus, from `xmodal check` to where the phrases were found."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import xmodal as xmodal_package
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from xmodal.batches.annotated_phrases import ELSEWHERE, UNBOXED, UNSEEN, annotated_phrases
from xmodal.checks.corpus_contract import phrase_notes
from xmodal.recipes import View
from xmodal.records.tables import Match, Region
from xmodal.root.outputs import find

FIXTURE = Path(__file__).parents[1] / "fixtures/boxed_pictures.py"
CAPTIONS = {
    "p1.png": "[1 a red square] beside [2 two green discs] in [- the sunshine]",
    "p2.png": "[1 a dog] sleeps on [sofa a sofa]",
}
BOXES = {("p1.png", "1"): [(2, 2, 12, 12)], ("p1.png", "2"): [(20, 4, 26, 10), (24, 20, 30, 28)]}
BOXES[("p2.png", "1")] = [(4, 16, 14, 30)]
PROPOSED = {"p1.png": [(2, 2, 12, 12), (20, 4, 30, 28)], "p2.png": [(0, 0, 9, 9), (4, 16, 14, 29)]}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    (folder / "pictures").mkdir(parents=True)
    for name in CAPTIONS:
        Image.fromarray(np.full((32, 32, 3), 99, np.uint8)).save(folder / "pictures" / name)
    write(folder / "captions.tsv", [*CAPTIONS.items()])
    write(folder / "boxes.tsv", [(*key, *box) for key, boxes in BOXES.items() for box in boxes])
    write(folder / "splits.tsv", [(name, "mine/test") for name in CAPTIONS])
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FIXTURE.read_text())
    return tmp_path / "mine.py"


def write(path: Path, rows: list[tuple[object, ...]]) -> None:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_phrases_of_a_file_of_ones_own_are_found_and_drawn(
    tmp_path: Path, raw: Path, file: Path, xmodal: Xmodal
) -> None:
    assert xmodal("check", file, "--raw", raw).code == 0
    root, boxes = tmp_path / "root", tmp_path / "boxes.tsv"
    assert xmodal("build", file, "--raw", raw, "--root", root).code == 0
    write(boxes, [(id, *box) for id, some in PROPOSED.items() for box in some])
    asked = ["--proposals", boxes, "--corpus", "boxed_pictures", "--root", root]
    xmodal.done("evaluate", "--write-ids", tmp_path / "mine", *asked)
    words = [line.split("\t")[-1] for line in (tmp_path / "mine.phrases.tsv").read_text().splitlines()]
    assert words == ["a red square", "two green discs", "a dog"]
    found = xmodal_package.open(str(root), "boxed_pictures").phrases("mine/test")
    assert list(found.words) == words
    assert found.boxes_A4[found.boxes_P].tolist() == [[2, 2, 11, 11], [20, 4, 29, 27], [4, 16, 13, 29]]
    np.save(tmp_path / "found.npy", np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    said = xmodal("evaluate", "--scores", tmp_path / "found.npy", *asked, "--json").json
    assert (said["rows"]["all"]["R@1"], said["rows"]["all"]["bound"]) == (100, 100)
    assert (said["left_out"][UNSEEN], said["left_out"][UNBOXED]) == (1, 1)
    drawn = ["--phrases", tmp_path / "sheets", "--scores", tmp_path / "found.npy", "--proposals", boxes]
    assert xmodal("look", "boxed_pictures", "--root", root, *drawn).code == 0
    assert len([*(tmp_path / "sheets").glob("*.png")]) == 2


def test_a_phrase_that_names_a_thing_in_another_picture_is_not_looked_for(
    tmp_path: Path, raw: Path, file: Path, xmodal: Xmodal
) -> None:
    """The box of the other picture would be scored as if it were in this one; it is counted instead."""
    edit(file, "Match(caption, picture,", 'Match(caption, "p2.png" if found[2] == "a red square" else picture,')
    assert xmodal("build", f"{file}", "--raw", raw, "--root", tmp_path / "root").code == 0
    (records,) = find(str(tmp_path / "root"), "records")
    phrases = annotated_phrases(records, View("boxed_pictures", "mine/test"))
    assert phrases.words == ("two green discs", "a dog")
    assert [match.item for match in phrases.matches] == ["p1.png", "p2.png"]
    assert phrases.left_out[ELSEWHERE] == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name, left, top", "name, right, top", "region 'b0' has left 12.0, top 2.0, right 12.0, bottom 12.0: give"),
        ("name, left, top", "name, float('nan'), top", "region 'b0' has left nan, top 2.0, right 12.0"),
        ("name, left, top", "name, None, top", "region 'b0' has left None, top 2.0, right 12.0"),
        ("len(text) + len(found[2])))", "9_999))", "a match of caption 'c0' ends beyond its text"),
        ("group, len(text), len", "group, None, len", "a match of caption 'c0' has start None, end 12: give"),
        ("Match(caption, picture,", "Match(caption, 'p9.png',", "a match names item 'p9.png', which does not exist"),
        ('Region(f"b{number}", picture', 'Region(f"b{number}", "p9"', "a region names item 'p9', which does not exist"),
        (
            "picture, name, left",
            "picture, f'thing {name}', left",
            "no phrase names a thing with a box, such as group '1'",
        ),
    ],
)
def test_broken_phrases_and_boxes_are_named_and_not_built(
    old: str, new: str, said: str, tmp_path: Path, raw: Path, file: Path, xmodal: Xmodal
) -> None:
    edit(file, old, new)
    found = xmodal("check", file, "--raw", raw)
    assert found.code == 1
    assert "other rows a second time" not in found.out
    assert any(line.startswith("    - ") and said in line for line in found.out.splitlines()), found.out
    if "no phrase names" not in said:
        assert said in xmodal("build", f"{file}", "--raw", raw, "--root", tmp_path / "root").complaint


def test_a_picture_that_was_sealed_as_absent_is_left_out_or_says_how_it_is_fetched(
    tmp_path: Path, raw: Path, file: Path, xmodal: Xmodal
) -> None:
    (raw / "pictures/p1.png").unlink()
    root, boxes = tmp_path / "root", tmp_path / "boxes.tsv"
    assert xmodal("build", file, "--raw", raw, "--root", root).code == 0
    write(boxes, [(id, *box) for id, some in PROPOSED.items() for box in some])
    np.save(tmp_path / "found.npy", np.zeros((3, 2)))
    drawn = ["--phrases", tmp_path / "sheets", "--scores", tmp_path / "found.npy", "--proposals", boxes]
    found = xmodal("look", "boxed_pictures", "--root", root, *drawn)
    assert found.code == 0
    assert [path.name for path in (tmp_path / "sheets").iterdir()] == ["p2.png.png"]
    assert "pictures left out: 1; the picture of p1.png is absent" in found.err
    said = xmodal("look", "boxed_pictures", "--root", root, *drawn, "--items", "p1.png").err
    assert "the picture of p1.png is absent" in said
    assert f"`xmodal retry boxed_pictures --root {root}`, then `xmodal seal boxed_pictures --root {root}`" in said


def test_a_part_of_a_corpus_is_told_how_it_is_read(tmp_path: Path, raw: Path, file: Path, xmodal: Xmodal) -> None:
    edit(file, "    kinds=", '    counts={"captions": 3},\n    kinds=')
    build = ["build", f"{file}/records", "--raw", raw, "--root", tmp_path / "root"]
    said = xmodal(*build).complaint
    assert "a full parse must give 3 captions, not 2" in said
    assert "(a part of them is read with --sample)" in said
    assert xmodal(*build, "--sample").code == 0


def test_a_phrase_whose_thing_has_no_box_is_noted_by_check(raw: Path, file: Path, xmodal: Xmodal) -> None:
    (note,) = [line for line in xmodal.done("check", file, "--raw", raw)[str(file)]["notes"] if "phrase" in line]
    assert note.startswith("1 of 4 phrases name a thing without a box, such as group 'sofa' of item 'p2.png'")


def test_a_note_counts_phrases_with_a_place_and_regions_with_a_box() -> None:
    boxes = [Region("r", "a", "red"), Region("s", "a", "blue", 0, 0, 1, 1)]
    phrases = [Match("c", "a", "red", 0, 2), Match("c", "a", "blue", 0, 2), Match("c", "a", "caption as a whole")]
    (note,) = phrase_notes([*boxes, *phrases])
    assert note.startswith("1 of 2 phrases name a thing without a box, such as group 'red'")
