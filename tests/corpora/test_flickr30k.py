"""Flickr30k: what the generated publisher writes comes back as rows, in two splits that stay apart."""

import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.demo.world import World, describe, draw
from pipelines.stages.records import Census
from tests.parsing import of, parser_of
from tests.publishers.flickr30k import pictures, tokenised, write
from xmodal.corpora import flickr30k, load
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Oddity, Row, Split

REAL = Path(__file__).parents[3] / "shared/data/flickr30k-entities"
WORLD = World(items=60, image_size=32)
TOKENS, KARPATHY = "results_20130124.token", "caption_datasets.zip"
MEMBER = "dataset_flickr30k.json"
parsed = parser_of(flickr30k)
Edit = Callable[[Any], object]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flickr30k")
    write(WORLD, folder)
    return folder


@settings(max_examples=8, deadline=None)
@given(
    st.builds(
        World,
        items=st.integers(3, 24),
        seed=st.integers(0, 9),
        image_size=st.just(32),
        captions_per_item=st.integers(1, 10),
    )
)
def test_any_world_comes_back(world: World) -> None:
    with TemporaryDirectory() as folder:
        corpus = write(world, folder)
        rows = parsed(Path(folder))
    captions = of(rows, Caption)
    for picture, item in zip(pictures(world), of(rows, Item), strict=True):
        mine = [caption for caption in captions if caption.item == item.id]
        written = [describe(picture.scene, world, position) for position in range(world.captions_per_item)]
        if picture.unrelated(len(written) - 1):
            del mine[-1], written[-1]
        assert item == Item(picture.id, f"flickr30k-images/{picture.id}.jpg")
        assert [caption.text for caption in mine] == [tokenised(text) for text in written]
        assert [caption.id for caption in mine] == [f"{picture.id}#{n}" for n in range(len(written))]
        assert [caption.position for caption in mine] == list(range(len(written)))
        assert {split.name for split in of(rows, Split) if split.item == item.id} == picture.splits
    assert len(captions) == world.items * world.captions_per_item
    found = counted(rows)
    assert {name: found[name] for name in corpus.counts} == corpus.counts


def test_the_two_splits_are_two(published: Path) -> None:
    names = Counter(split.name for split in of(parsed(published), Split))
    assert names.keys() == {f"{who}/{name}" for who in ("karpathy", "plummer") for name in ("train", "val", "test")}
    assert (names["karpathy/test"], names["plummer/test"]) == (6, 6)
    members = {
        who: {split.item for split in of(parsed(published), Split) if split.name == f"{who}/test"}
        for who in ("karpathy", "plummer")
    }
    assert members["karpathy"].isdisjoint(members["plummer"])


def test_pictures_that_karpathy_left_out_are_kept_and_counted(published: Path) -> None:
    rows = parsed(published)
    splits = of(rows, Split)
    left_out = {item.id for item in of(rows, Item)} - {s.item for s in splits if s.name.startswith("karpathy/")}
    assert len(left_out) == 6
    assert {oddity.item for oddity in of(rows, Oddity)} == left_out
    assert left_out <= {split.item for split in splits if split.name.startswith("plummer/")}
    assert of(rows, Oddity)[0].where == f"{TOKENS}:26"


def test_media_are_the_pictures_of_the_items(published: Path) -> None:
    rows, media = parsed(published), list(flickr30k.media(Raw.folder(published)))
    assert [source.path for source in media] == [item.media for item in of(rows, Item)]
    assert all(source.url is None and source.part == "media" and "--raw" in source.how for source in media)
    for picture, source in zip(pictures(WORLD), media, strict=True):
        with Image.open(published / source.path) as image:
            assert np.abs(np.asarray(image) - draw(picture.scene).astype(float)).mean() < 12


def test_counts_sizes_and_bytes_are_those_of_the_files(published: Path, tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path)
    assert corpus.counts.keys() == flickr30k.CORPUS.counts.keys()
    assert corpus.counts["captions"] == 300
    assert corpus.counts[f"odd: {flickr30k.UNASSIGNED}"] == 6
    for source in corpus.sources:
        data = (tmp_path / source.path).read_bytes()
        assert (len(data), data) == (source.bytes, (published / source.path).read_bytes())


@pytest.mark.parametrize("world", [World(motion=0.1), World(items=2), World(captions_per_item=11)])
def test_a_world_that_flickr30k_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Flickr30k has"):
        write(world, tmp_path)


def test_the_publishers_quirks_are_there(published: Path) -> None:
    lines = (published / TOKENS).read_text().split("\n")
    assert any(line.endswith(" ") for line in lines)
    assert any(" ." in line for line in lines)
    images = split_file(published)["images"]
    assert len(images) == 54
    assert any(s["raw"].endswith(".") and not s["raw"].endswith(" .") for image in images for s in image["sentences"])


@pytest.mark.parametrize("path", [TOKENS, "flickr30k_entities/val.txt"])
def test_other_line_ends_blank_lines_and_a_byte_order_mark_do_no_harm(folder: Path, path: str) -> None:
    def without_lines(rows: list[Row]) -> list[Row]:
        return [row for row in rows if not isinstance(row, Oddity)]

    expected, data = parsed(folder), (folder / path).read_bytes()
    (folder / path).write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    assert parsed(folder) == expected
    (folder / path).write_bytes(data.replace(b"\n", b"\n\n").rstrip(b"\n"))
    assert without_lines(parsed(folder)) == without_lines(expected)


def test_captions_may_come_in_any_order(folder: Path) -> None:
    def sortable(rows: list[Row]) -> list[str]:
        return sorted(str(row) for row in rows if not isinstance(row, Oddity))

    expected, lines = sortable(parsed(folder)), (folder / TOKENS).read_text().splitlines(keepends=True)
    (folder / TOKENS).write_text("".join(lines[::-1]))
    assert sortable(parsed(folder)) == expected


def test_white_space_becomes_single_spaces(folder: Path) -> None:
    edit_lines(folder, TOKENS, lambda lines: lines.__setitem__(0, "9.jpg#0\t A  red\u00a0star . "))
    assert of(parsed(folder), Caption)[0].text == "A red star ."


@pytest.mark.parametrize(
    ("path", "edit", "message"),
    [
        (TOKENS, lambda lines: lines.__setitem__(2, "9.jpg#2 A star ."), rf"{TOKENS}:3 has 1 columns, not 2"),
        (TOKENS, lambda lines: lines.__setitem__(2, "9.jpg#2\tA\tstar"), rf"{TOKENS}:3 has 3 columns, not 2"),
        (
            TOKENS,
            lambda lines: lines.__setitem__(2, "9.jpg\tA star ."),
            rf"{TOKENS}:3: '9.jpg' is no name of a ca",
        ),
        (
            TOKENS,
            lambda lines: lines.__setitem__(2, "../9.jpg#2\tA star"),
            rf"{TOKENS}:3: '../9.jpg#2' is no name",
        ),
        (TOKENS, lambda lines: lines.__setitem__(2, "9.jpg#2\t "), rf"{TOKENS}:3: caption 2 of 9 is empty"),
        (TOKENS, lambda lines: lines.insert(2, lines[1]), rf"{TOKENS}:3: captions of 9: id 1 is there a second time"),
        (TOKENS, lambda lines: lines.pop(2), rf"{TOKENS}: picture 9 has no caption #2, but a #4"),
        (TOKENS, lambda lines: lines.append("8.jpg#0\tA star ."), rf"{TOKENS}:301: picture 8 is in none of flickr30k_"),
        (
            TOKENS,
            lambda lines: lines.__delitem__(slice(0, 5)),
            r"json: images\[0\]: picture 9 of karpathy/train has no",
        ),
        (TOKENS, lambda lines: lines.clear(), r"picture 9 of karpathy/train has no captions in results_"),
        ("flickr30k_entities/val.txt", lambda lines: lines.append("7"), r"val.txt:7: picture 7 of plummer/val has no"),
        (
            "flickr30k_entities/val.txt",
            lambda lines: lines.append(lines[0]),
            r"val.txt:7: id 23 is there a second time",
        ),
        ("flickr30k_entities/test.txt", lambda lines: lines.append("23"), r"test.txt:7: 23 is in plummer/val too"),
        ("flickr30k_entities/val.txt", lambda lines: lines.clear(), r"val.txt is empty"),
    ],
)
def test_wrong_lines_are_refused_with_their_place(
    folder: Path, path: str, edit: Callable[[list[str]], object], message: str
) -> None:
    edit_lines(folder, path, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_what_is_not_utf_8_is_refused_with_its_place(folder: Path) -> None:
    data = (folder / TOKENS).read_bytes().replace(b"9.jpg#3\t", b"9.jpg#3\t\xe9", 1)
    (folder / TOKENS).write_bytes(data)
    with pytest.raises(UserError, match=rf"{TOKENS}:4 is not UTF-8, at its byte 9"):
        parsed(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda value: value["images"][2].pop("filename"), rf"{KARPATHY}!{MEMBER}: images\[2\] has no 'filename'"),
        (lambda value: value["images"][2].pop("split"), rf"{MEMBER}: images\[2\] has no 'split'"),
        (lambda value: value["images"][2].update(split="restval"), r"images\[2\] is in an unknown split 'restval'"),
        (lambda value: value["images"][2].update(filename="x.png"), r"images\[2\]: 'x.png' is no name of a pict"),
        (lambda value: value["images"][2].update(filename="9.jpg#0"), r"images\[2\]: '9.jpg#0' is no name of"),
        (lambda value: value["images"][2].update(filename="8.jpg"), r"images\[2\]: picture 8 of karpathy/test has no"),
        (lambda value: value["images"][2].update(filename="9.jpg"), r"images\[2\]: id 9 is there a second time"),
        (lambda value: [image.update(split="val") for image in value["images"]], r"json: karpathy/train is empty"),
        (lambda value: value.update(images=[]), r"json: karpathy/train is empty"),
    ],
)
def test_a_wrong_split_file_is_refused(folder: Path, edit: Edit, message: str) -> None:
    value = split_file(folder)
    edit(value)
    with zipfile.ZipFile(folder / KARPATHY, "w") as archive:
        archive.writestr(MEMBER, json.dumps(value))
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_a_missing_or_damaged_file_is_named(folder: Path) -> None:
    (folder / KARPATHY).write_bytes((folder / KARPATHY).read_bytes()[:5000])
    with pytest.raises(UserError, match=f"{KARPATHY} is damaged"):
        parsed(folder)
    (folder / TOKENS).unlink()
    with pytest.raises(UserError, match=f"{TOKENS} is not among"):
        list(flickr30k.media(Raw.folder(folder)))


def test_the_corpus_is_the_published_one() -> None:
    corpus, counts = load("flickr30k"), flickr30k.CORPUS.counts
    assert corpus is flickr30k.CORPUS
    assert counts["captions"] == 5 * counts["items"]
    assert counts["items"] == sum(counts[f"items:plummer/{name}"] for name in ("train", "val", "test"))
    karpathy = sum(counts[f"items:karpathy/{name}"] for name in ("train", "val", "test"))
    assert counts["items"] - karpathy == counts[f"odd: {flickr30k.UNASSIGNED}"] == 769
    assert corpus.release == {"annotations": "all", "media": "ids"}
    coco = {source.path: source for source in load("coco").sources}
    own = next(source for source in corpus.sources if source.path == KARPATHY)
    assert replace(coco[KARPATHY], members=own.members) == own


def test_plummers_own_files_give_the_published_counts(tmp_path: Path) -> None:
    """With captions and a JSON that are made for their ids, as neither can be had without asking."""
    if not REAL.is_dir():
        pytest.skip("no files of Flickr30k Entities")
    (tmp_path / "flickr30k_entities").mkdir()
    for name in ("train", "val", "test"):
        shutil.copy(REAL / f"{name}.txt", tmp_path / "flickr30k_entities")
    ids = [line for name in ("train", "val", "test") for line in (REAL / f"{name}.txt").read_text().split()]
    (tmp_path / TOKENS).write_text("".join(f"{image}.jpg#{n}\tA man .\n" for image in ids for n in range(5)))
    splits = ["train"] * 29_000 + ["val"] * 1_014 + ["test"] * 1_000
    images = [{"filename": f"{image}.jpg", "split": split} for image, split in zip(ids, splits, strict=False)]
    with zipfile.ZipFile(tmp_path / KARPATHY, "w") as archive:
        archive.writestr(MEMBER, json.dumps({"images": images}))
    found = counted(parsed(tmp_path))
    assert {name: found[name] for name in flickr30k.CORPUS.counts} == flickr30k.CORPUS.counts


def counted(rows: list[Row]) -> Counter[str]:
    """What the records stage counts of rows, and refuses of them."""
    census = Census("flickr30k")
    for row in rows:
        census.add(row)
    return Counter({"items": len(of(rows, Item)), "captions": len(of(rows, Caption))} | census.counts())


def split_file(folder: Path) -> Any:
    with zipfile.ZipFile(folder / KARPATHY) as archive:
        return json.loads(archive.read(MEMBER))


def edit_lines(folder: Path, path: str, edit: Callable[[list[str]], object]) -> None:
    lines = (folder / path).read_text("utf-8").splitlines()
    edit(lines)
    (folder / path).write_text("".join(f"{line}\n" for line in lines), "utf-8")
