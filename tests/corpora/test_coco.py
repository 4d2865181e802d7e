"""COCO: what the generated publisher writes comes back as rows, and what is wrong with a file is said."""

import io
import json
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.demo.coco import pictures, write
from pipelines.demo.files import serve_at
from pipelines.demo.world import World, box, describe, draw
from tests.misbehaving import serve
from tests.parsing import of, parser_of
from xmodal.corpora import coco, load
from xmodal.errors import UserError
from xmodal.raw import json_values
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Row, Split

WORLD = World(items=60, image_size=64)
CAPTIONS, INSTANCES = "caption_datasets.zip", "annotations/annotations_trainval2014.zip"
KARPATHY, VAL_INSTANCES = "dataset_coco.json", "annotations/instances_val2014.json"
SPLITS = {
    "train": {"karpathy/train"},
    "restval": {"karpathy/train", "karpathy/restval"},
    "val": {"karpathy/val"},
    "test": {"karpathy/test"},
}
parsed = parser_of(coco)
Edit = Callable[[Any], object]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    write(WORLD, folder)
    return folder


@settings(max_examples=8, deadline=None)
@given(st.integers(10, 40), st.integers(0, 1000), st.integers(1, 14))
def test_any_world_comes_back(items: int, seed: int, captions: int) -> None:
    world = World(items, seed, image_size=32, captions_per_item=captions)
    with TemporaryDirectory() as folder:
        write(world, folder)
        comes_back(world, parsed(Path(folder)))


def test_the_world_comes_back(published: Path) -> None:
    comes_back(WORLD, parsed(published))


def comes_back(world: World, rows: list[Row]) -> None:
    items, captions = of(rows, Item), of(rows, Caption)
    for picture, item in zip(pictures(world), items, strict=True):
        scene = picture.scene
        mine = [caption for caption in captions if caption.item == item.id]
        assert (item.width, item.height) == (scene.width, scene.height)
        assert [caption.text for caption in mine] == [describe(scene, world, n) for n in range(picture.captions)]
        assert [caption.position for caption in mine] == list(range(len(mine)))
        assert {row.name for row in of(rows, Split) if row.item == item.id} == SPLITS[picture.split]
        shown = {thing.kind for thing in scene.things} if picture.annotated else set()
        assert {row.name for row in of(rows, Label) if row.item == item.id} == shown
    assert len(captions) == len({caption.id for caption in captions}) == sum(p.captions for p in pictures(world))


def test_media_are_where_items_say(published: Path) -> None:
    for picture, item in zip(pictures(WORLD), of(parsed(published), Item), strict=True):
        archive, _, member = item.media.partition("!")
        with zipfile.ZipFile(published / archive) as zipped, Image.open(io.BytesIO(zipped.read(member))) as image:
            assert image.size == (item.width, item.height)
            drawn = draw(picture.scene).astype(float)
            if not picture.grayscale:
                assert np.abs(np.asarray(image) - drawn).mean() < 8


def test_items_carry_licence_and_address(published: Path) -> None:
    items = of(parsed(published), Item)
    assert {item.licence for item in items} >= {"http://creativecommons.org/licenses/by/2.0/"}
    assert items[0].url == "http://coco.invalid/train2014/COCO_train2014_000000000009.jpg"


def test_counts_and_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path)
    rows = parsed(tmp_path)
    per_item = Counter(caption.item for caption in of(rows, Caption))
    splits = of(rows, Split)
    assert corpus.counts.keys() == coco.CORPUS.counts.keys()
    assert corpus.counts["items"] == 60
    assert corpus.counts["captions"] == per_item.total() > 300
    for name in ("karpathy/train", "karpathy/restval", "karpathy/val", "karpathy/test"):
        assert corpus.counts[f"items:{name}"] == sum(split.name == name for split in splits)
    for name in ("karpathy/val", "karpathy/test"):
        assert corpus.counts[f"captions:{name}"] == sum(per_item[split.item] for split in splits if split.name == name)
    assert corpus.counts["captions[:5]:karpathy/train"] == 5 * 48
    assert [source.bytes for source in corpus.sources] == [
        (tmp_path / source.path).stat().st_size for source in coco.CORPUS.sources
    ]


def test_equal_worlds_are_equal_bytes(published: Path, tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path)
    for source in corpus.sources:
        assert (tmp_path / source.path).read_bytes() == (published / source.path).read_bytes()


def test_what_is_served_is_what_was_written(tmp_path: Path) -> None:
    corpus = write(World(items=3, image_size=32), tmp_path)
    with serve(tmp_path) as server:
        for source in serve_at(corpus, server.url).sources:
            assert source.url is not None
            with urlopen(source.url) as answer:
                assert len(answer.read()) == source.bytes


def test_a_world_without_val2014_pictures_is_a_corpus_too(tmp_path: Path) -> None:
    write(World(items=1, image_size=32), tmp_path)
    assert len(of(parsed(tmp_path), Item)) == 1


@pytest.mark.parametrize("world", [World(motion=0.1), World(captions_per_item=15)])
def test_a_world_that_coco_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="COCO has"):
        write(world, tmp_path)


def test_the_publishers_quirks_are_there(published: Path) -> None:
    images = unzipped(published, CAPTIONS, KARPATHY)["images"]
    raw = [sentence["raw"] for image in images for sentence in image["sentences"]]
    assert any(text.endswith(" ") for text in raw)
    assert any(text.startswith(" ") for text in raw)
    assert any("\n" in text for text in raw)
    assert {len(image["sentences"]) for image in images} == {5, 6, 7}
    assert any(image["sentids"] != sorted(image["sentids"]) for image in images)
    with zipfile.ZipFile(published / "zips/train2014.zip") as archive:
        modes = Counter(Image.open(archive.open(name)).mode for name in archive.namelist())
    assert modes["RGB"] > modes["L"] > 0
    ids = sorted(category["id"] for category in unzipped(published, INSTANCES, VAL_INSTANCES)["categories"])
    assert len(ids) < ids[-1] <= 90


def test_captions_files_agree_with_karpathys(published: Path) -> None:
    images = unzipped(published, CAPTIONS, KARPATHY)["images"]
    theirs = {s["sentid"]: (image["cocoid"], s["raw"]) for image in images for s in image["sentences"]}
    ours = {
        row["id"]: (row["image_id"], row["caption"])
        for name in ("train2014", "val2014")
        for row in unzipped(published, INSTANCES, f"annotations/captions_{name}.json")["annotations"]
    }
    assert ours == theirs


def test_boxes_are_the_worlds(published: Path) -> None:
    boxes = Counter((a["image_id"], *a["bbox"]) for a in unzipped(published, INSTANCES, VAL_INSTANCES)["annotations"])
    for picture in (picture for picture in pictures(WORLD) if picture.folder == "val2014"):
        for left, top, right, bottom in (box(picture.scene, thing) for thing in picture.scene.things):
            assert boxes[picture.cocoid, left, top, right - left, bottom - top] == picture.annotated


def test_files_that_are_cut_into_other_pieces_read_the_same(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parsed(published)
    for piece in (61, 1000):
        monkeypatch.setattr(json_values, "PIECE", piece)
        assert parsed(published) == expected


def test_reading_takes_no_more_memory_for_longer_captions_files(folder: Path) -> None:
    rewrite(folder, CAPTIONS, KARPATHY, partial(pad, length=250_000))
    assert zipfile.ZipFile(folder / CAPTIONS).getinfo(KARPATHY).file_size > 15_000_000
    tracemalloc.start()
    count = sum(1 for _ in coco.parse(Raw.folder(folder)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count > 500
    assert peak < 8_000_000


def test_white_space_becomes_single_spaces(folder: Path) -> None:
    rewrite(folder, CAPTIONS, KARPATHY, partial(set_raw, text=" \tA red\r\nstar  on\u00a0the sand. \n"))
    assert next(row.text for row in parsed(folder) if isinstance(row, Caption)) == "A red star on the sand."


def test_a_byte_order_mark_and_other_keys_do_no_harm(folder: Path) -> None:
    expected = parsed(folder)
    value = unzipped(folder, CAPTIONS, KARPATHY)
    pack(
        folder,
        CAPTIONS,
        KARPATHY,
        b"\xef\xbb\xbf" + json.dumps({"new": [1, [2]], "none": None, **value}, indent=1).encode(),
    )
    assert parsed(folder) == expected


def test_what_the_publisher_leaves_out_is_none(folder: Path) -> None:
    def forget(value: Any) -> None:
        for name in ("license", "coco_url", "flickr_url"):
            del value["images"][0][name]
        del value["images"][1]["coco_url"]

    rewrite(folder, INSTANCES, VAL_INSTANCES, forget)
    first, second = [item for item in of(parsed(folder), Item) if "val2014" in item.media][:2]
    assert (first.licence, first.url) == (None, None)
    assert second.url is not None
    assert second.url.startswith("http://flickr.invalid/")


@pytest.mark.parametrize("name", ["cocoid", "filepath", "filename", "split", "imgid", "sentences"])
def test_a_missing_field_is_named(folder: Path, name: str) -> None:
    rewrite(folder, CAPTIONS, KARPATHY, image(lambda it: it.pop(name)))
    with pytest.raises(UserError, match=rf"{CAPTIONS}!{KARPATHY}: images\[2\].* has no '{name}'"):
        parsed(folder)


@pytest.mark.parametrize("name", ["raw", "sentid", "imgid"])
def test_a_missing_field_of_a_caption_is_named(folder: Path, name: str) -> None:
    rewrite(folder, CAPTIONS, KARPATHY, image(lambda it: it["sentences"][1].pop(name)))
    with pytest.raises(UserError, match=rf"images\[2\] \(cocoid 23\): sentences\[1\] has no '{name}'"):
        parsed(folder)


def image(edit: Edit) -> Edit:
    """An edit of the third picture of the captions file."""
    return lambda value: edit(value["images"][2])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (image(lambda it: it.update(split="dev")), r"unknown split 'dev'; there are: train, restval, val, test"),
        (image(lambda it: it.update(cocoid="23")), r"'cocoid' is '23', no int"),
        (image(lambda it: it.update(sentences={})), r"'sentences' is \{\}, no list"),
        (image(lambda it: it.update(sentences=[])), r"images\[2\] \(cocoid 23\) has no captions"),
        (image(lambda it: it["sentences"][0].update(raw=" \n")), r"sentences\[0\]: caption 32 is empty"),
        (image(lambda it: it["sentences"][0].update(imgid=7)), r"caption 32 is of another image, imgid 7 instead of 2"),
        (image(lambda it: it["sentences"][0].update(sentid=0)), r"sentences\[0\]: id 0 is there a second time"),
        (image(lambda it: it.update(filename="../../x.jpg")), r"is train2014/../../x.jpg, which is no picture of"),
        (image(lambda it: it.update(filepath="test2014")), r"which is no picture of train2014 or val2014"),
        (lambda value: value["images"].append(value["images"][0]), r"images\[60\] \(cocoid 9\): id 9 is there a"),
        (lambda value: value.update(images=["x"]), r"images\[0\] has no 'cocoid'"),
        (lambda value: value.pop("images"), rf"{CAPTIONS}!{KARPATHY} has no 'images'"),
        (lambda value: value.update(images=[]), rf"{CAPTIONS}!{KARPATHY} has no 'images'"),
    ],
)
def test_a_wrong_captions_file_is_refused(folder: Path, edit: Edit, message: str) -> None:
    rewrite(folder, CAPTIONS, KARPATHY, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda value: value.pop("images"), r"annotations of image \d+, which is not among its images"),
        (lambda value: value["images"].pop(0), r"annotations of image 51, which is not among its images"),
        (lambda value: value.update(images=[], annotations=[]), r"has captions, but .*val2014.json has no image 51"),
        (lambda value: value["images"].append(value["images"][0]), r"images\[24\]: id 51 is there a second time"),
        (lambda value: value["images"][0].pop("width"), rf"{VAL_INSTANCES}: images\[0\] has no 'width'"),
        (lambda value: value["images"][0].update(height=None), r"'height' is None, no int"),
        (lambda value: value["annotations"][0].pop("category_id"), r"annotations\[0\] has no 'category_id'"),
        (lambda value: value["annotations"][0].update(category_id=4), r"categories has no id 4"),
        (lambda value: value.pop("licenses"), r"licenses has no id \d"),
        (lambda value: value["categories"][0].pop("name"), r"categories\[0\] has no 'name'"),
    ],
)
def test_a_wrong_instances_file_is_refused(folder: Path, edit: Edit, message: str) -> None:
    rewrite(folder, INSTANCES, VAL_INSTANCES, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize(("path", "member"), [(CAPTIONS, KARPATHY), (INSTANCES, VAL_INSTANCES)])
def test_a_damaged_archive_is_named(folder: Path, path: str, member: str) -> None:
    whole = (folder / path).read_bytes()
    with zipfile.ZipFile(folder / path) as archive:
        inside = archive.getinfo(member).header_offset + 500
    method = whole.rfind(b"PK\x01\x02") + 10
    changed = [whole[:at] + bytes([99] * 2) + whole[at + 2 :] for at in (inside, method)]
    for data in (b"", b"<html>404</html>", whole[: len(whole) // 2], *changed):
        (folder / path).write_bytes(data)
        with pytest.raises(UserError, match=f"{path} is damaged .*fetch it again"):
            parsed(folder)


def test_missing_files_are_named(folder: Path) -> None:
    pack(folder, CAPTIONS, "dataset_flickr8k.json", b"{}")
    with pytest.raises(UserError, match=f"{CAPTIONS} has no member {KARPATHY}"):
        parsed(folder)
    (folder / CAPTIONS).unlink()
    with pytest.raises(UserError, match=f"{CAPTIONS} is not"):
        parsed(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "at character 0: it ends too early"),
        (b"[]", "at character 0: '{' expected, not '\\['"),
        (b"<html>", "at character 0: '{' expected"),
        (b'{"images": [{"cocoid": 3, "raw": "abc', "at character 33: Unterminated string"),
        (b'{"images": [], "dataset": "coco"', "at character 32: it ends too early"),
        (b'{"images": [] "dataset"', "at character 14: ',' expected"),
        (b'{"images": [{"cocoid" 3}]}', "at character 22: Expecting ':' delimiter"),
        (b'{"images" [', "at character 10: ':' expected"),
        (b'{"images": [{"raw": "\xff\xfe"}]}', "is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(folder: Path, text: bytes, message: str) -> None:
    pack(folder, CAPTIONS, KARPATHY, text)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_an_endless_value_is_refused_before_it_fills_the_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_values, "PIECE", 1 << 10)
    monkeypatch.setattr(json_values, "LONGEST", 1 << 14)
    pack(folder, CAPTIONS, KARPATHY, b'{"images": ["' + b"x" * 5_000_000 + b'"]}')
    tracemalloc.start()
    with pytest.raises(UserError, match="at character 12: Unterminated string"):
        parsed(folder)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_the_corpus_is_the_published_one() -> None:
    corpus, counts = load("coco"), coco.CORPUS.counts
    assert corpus is coco.CORPUS
    assert counts["items"] == sum(counts[f"items:karpathy/{name}"] for name in ("train", "val", "test"))
    assert counts["captions[:5]:karpathy/train"] == 5 * counts["items:karpathy/train"]
    assert [source.part for source in corpus.sources] == ["media", "media", "annotations", "annotations"]
    assert all(source.sha256 and len(source.sha256) == 64 and source.bytes and source.url for source in corpus.sources)


def unzipped(folder: Path, path: str, member: str) -> Any:
    with zipfile.ZipFile(folder / path) as archive:
        return json.loads(archive.read(member))


def rewrite(folder: Path, path: str, member: str, edit: Edit) -> None:
    value = unzipped(folder, path, member)
    edit(value)
    pack(folder, path, member, json.dumps(value).encode())


def pack(folder: Path, path: str, member: str, data: bytes) -> None:
    """The archive with the same other members; one that is not there yet replaces all."""
    with zipfile.ZipFile(folder / path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} if member in archive.namelist() else {}
    with zipfile.ZipFile(folder / path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members | {member: data}).items():
            archive.writestr(name, content)


def pad(value: Any, length: int) -> None:
    for image in value["images"]:
        image["sentences"][0]["tokens"] = ["x" * length]


def set_raw(value: Any, text: str) -> None:
    value["images"][0]["sentences"][0]["raw"] = text
