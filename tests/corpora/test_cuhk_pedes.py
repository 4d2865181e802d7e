"""CUHK-PEDES: what the generated publisher writes comes back as rows, and what is wrong with a file is said."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import xmodal
from pipelines.commands._text import absent
from pipelines.commands.data import build
from pipelines.commands.data import status as status_command
from pipelines.demo.world import World, describe
from pipelines.engine.build_options import BuildOptions
from pipelines.publishing.dataset_repository import publish
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from pipelines.upkeep.inspection import status
from tests.parsing import of, parser_of
from tests.publishers.cuhk_pedes import LACKING, pictures, write
from xmodal.corpora import cuhk_pedes
from xmodal.errors import UserError
from xmodal.metrics.protocols import Gallery, labels_of
from xmodal.metrics.protocols import classes as relevance_of
from xmodal.raw.raw_files import Raw
from xmodal.recipes import View
from xmodal.records.tables import Caption, Item, Label, Split
from xmodal.records.views import captions_by_item, classes
from xmodal.root.sealed_sets import read_lock
from xmodal.root.storage import open_storage

WORLD = World(items=60, image_size=32, captions_per_item=2, identities=20)
SHARED = Path(__file__).parents[3] / "shared/data/cuhk-pedes/reid_raw.sample.json"
parsed = parser_of(cuhk_pedes)


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuhk_pedes")
    write(WORLD, folder)
    return folder


@settings(max_examples=12, deadline=None)
@given(st.integers(4, 30), st.integers(0, 1000), st.integers(4, 30), st.integers(1, 3))
def test_any_world_comes_back(items: int, seed: int, identities: int, captions: int) -> None:
    world = World(items, seed, image_size=32, captions_per_item=captions, identities=identities)
    assume(len({picture.person for picture in pictures(world)}) >= 4)
    with TemporaryDirectory() as folder:
        write(world, folder)
        rows = parsed(Path(folder))
    texts, places = of(rows, Caption), of(rows, Split)
    people: dict[int, set[str]] = {}
    for picture, item, label in zip(pictures(world), of(rows, Item), of(rows, Label), strict=True):
        mine = [caption for caption in texts if caption.item == item.id]
        assert (item.id, item.media) == (picture.path, f"imgs/{picture.path}")
        assert [caption.text for caption in mine] == [
            describe(picture.scene, world, n) for n in range(picture.captions)
        ]
        assert [caption.position for caption in mine] == list(range(picture.captions))
        assert [split.name for split in places if split.item == item.id] == [f"cuhk_pedes/{picture.split}"]
        assert (label.item, label.kind) == (item.id, "identity")
        people.setdefault(picture.scene.identity, set()).add(label.name)
    assert all(len(names) == 1 for names in people.values())
    assert len(set[str]().union(*people.values())) == len(people)


def test_the_publishers_quirks_are_there(published: Path) -> None:
    records = json.loads((published / "reid_raw.json").read_bytes())
    assert {len(record["captions"]) for record in records} >= {2, 3, 10}
    assert [record["split"] for record in records] == sorted(
        (record["split"] for record in records), key=["train", "val", "test"].index
    )
    assert any(text != text.strip() for record in records for text in record["captions"])
    assert not (published / "imgs" / LACKING).exists()


def test_a_lacking_folder_is_told_by_its_name(tmp_path: Path) -> None:
    """By the build and by the status; a folder that lacks one picture of several too."""
    corpus = write(WORLD, tmp_path / "raw")
    there = Counter(picture.folder for picture in pictures(WORLD))
    next((tmp_path / "raw/imgs/CUHK01").iterdir()).unlink()
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    (row,) = build_stages(CorpusBuild(site, corpus), ["media"])
    lines = [
        f"absent: {there[LACKING]} of {there[LACKING]} in imgs/{LACKING}/",
        f"absent: 1 of {there['CUHK01']} in imgs/CUHK01/",
    ]
    said = (
        build.outputs({"outputs": [row], "root": site.storage.url}),
        status_command.text(status(site.storage) | {"changes": {}, "kept": {}}),
    )
    for told in said:
        assert [line.strip() for line in told if line.strip().startswith("absent: ")] == lines
    assert absent({f"f{n}/": {"absent": 1, "files": 1} for n in range(12)})[10:] == ["and in 2 more folders"]


def test_a_lacking_folder_is_sealed_as_absent_and_persons_say_what_is_right(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    assert corpus.counts.keys() == cuhk_pedes.CORPUS.counts.keys()
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    CorpusBuild(site, corpus).build("records")
    locked = read_lock(CorpusBuild(site, corpus).build("media"))
    absent = Counter(file.path.split("/")[1] for file in locked if file.sha256 is None)
    assert absent == {LACKING: sum(picture.folder == LACKING for picture in pictures(WORLD))}
    dataset = xmodal.open(str(tmp_path / "root"), "cuhk_pedes")
    found = captions_by_item(dataset.records, View("cuhk_pedes", "cuhk_pedes/test", captions_per_item=2))
    ids, owners = found.items, np.repeat(found.items, found.counts).tolist()
    gallery = Gallery(ids, list(found.ids), np.repeat(np.arange(len(ids)), 2))
    relevance = relevance_of(gallery, "identity", labels_of(dataset.records, ids)["identity"])
    person = {picture.path: picture.scene.identity for picture in pictures(WORLD)}
    expected = [[person[item] == person[owner] for owner in owners] for item in ids]
    np.testing.assert_array_equal(relevance.tile(slice(None), slice(None)), expected)
    assert np.sum(expected) > 2 * len(ids)
    numbers = classes(dataset.records, ids)
    assert [[int(a == b) for b in numbers] for a in numbers] == [
        [int(person[a] == person[b]) for b in ids] for a in ids
    ]


def test_nothing_of_it_is_published(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    storage = open_storage(str(tmp_path / "root"))
    CorpusBuild(BuildOptions(storage, raw=tmp_path / "raw"), corpus).build("records")
    with pytest.raises(UserError, match="cuhk_pedes: its release leaves nothing to publish"):
        publish(corpus, storage, tmp_path / "out")
    publish(replace(corpus, release={"annotations": "ids"}), storage, tmp_path / "out")  # were it allowed
    card = (tmp_path / "out/README.md").read_text()
    assert "let nobody pass on any part of it" in " ".join(card.split())
    assert "$" not in card


def test_media_are_listed_where_they_lie(published: Path) -> None:
    listed = list(cuhk_pedes.media(Raw.folder(published)))
    assert [source.path for source in listed] == [item.media for item in of(parsed(published), Item)]
    assert all(source.part == "media" and source.how and source.url is None for source in listed)
    for picture, source in zip(pictures(WORLD), listed, strict=True):
        if picture.folder != LACKING:
            with Image.open(published / source.path) as image:
                assert image.size == (picture.scene.width, picture.scene.height)


@pytest.mark.parametrize("world", [World(motion=0.1), World(items=3), World(items=30, identities=2)])
def test_a_world_that_it_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CUHK-PEDES has"):
        write(world, tmp_path)


def test_equal_worlds_are_equal_bytes(published: Path, tmp_path: Path) -> None:
    write(WORLD, tmp_path)
    assert (tmp_path / "reid_raw.json").read_bytes() == (published / "reid_raw.json").read_bytes()


def test_a_byte_order_mark_line_ends_and_other_keys_do_no_harm(folder: Path) -> None:
    expected = parsed(folder)
    records = json.loads((folder / "reid_raw.json").read_bytes())
    text = json.dumps([{"new": [1], **record} for record in records], indent=1).replace("\n", "\r\n")
    (folder / "reid_raw.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert parsed(folder) == expected


@pytest.mark.parametrize("name", ["split", "captions", "file_path", "id"])
def test_a_missing_field_is_named(folder: Path, name: str) -> None:
    rewrite(folder, lambda records: records[2].pop(name))
    with pytest.raises(UserError, match=rf"reid_raw\.json\[2\] has no '{name}'"):
        parsed(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r[2].update(split="dev"), r"\[2\] is in an unknown split 'dev'; there are: train, val, test"),
        (lambda r: r[2].update(id="1"), r"\[2\]: 'id' is '1', no int"),
        (lambda r: r[2].update(captions=[]), r"\[2\] has no captions"),
        (lambda r: r[2].update(captions=["a", " \n"]), r"\[2\]: captions\[1\] is empty"),
        (lambda r: r[2].update(captions=[None]), r"\[2\]: captions\[0\] is None, no text"),
        (lambda r: r[2].update(file_path=r[0]["file_path"]), r"\[2\]: id .* is there a second time"),
        (lambda r: r[2].update(file_path="imgs/x.png"), r"\[2\]: 'imgs/x\.png' is no picture below CUHK01, CUHK03"),
        (lambda r: r[2].update(file_path="CUHK01/../../x.png"), r"is no picture below"),
        (lambda r: r[2].update(file_path="CUHK01"), r"is no picture below"),
        (lambda r: r[2].update(file_path="CUHK01\\x.png"), r"is no picture below"),
        (lambda r: r[-1].update(id=r[0]["id"]), r"\[59\]: person 1 is in test, but also in train"),
        (lambda r: [record.update(split="train") for record in r if record["split"] == "val"], r"split 'val' is empty"),
        (lambda r: r.clear(), r"reid_raw\.json: split 'train' is empty"),
        (lambda r: r.append(7), r"\[60\] has no 'file_path'"),
    ],
)
def test_wrong_records_are_refused(folder: Path, edit: Callable[[Any], object], message: str) -> None:
    rewrite(folder, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize("text", [b"", b"{}", b'[{"split": "train"', b"\xff\xfe[]"])
def test_what_is_not_json_is_refused(folder: Path, text: bytes) -> None:
    (folder / "reid_raw.json").write_bytes(text)
    with pytest.raises(UserError, match=r"reid_raw\.json is not"):
        parsed(folder)


def test_the_real_record_is_read() -> None:
    if not SHARED.is_file():
        pytest.skip("no real sample")
    with TemporaryDirectory() as folder:
        (record,) = json.loads(SHARED.read_bytes())
        more = [
            record | {"split": name, "id": n, "file_path": f"CUHK01/{name}.png"}
            for n, name in ((2, "val"), (3, "test"))
        ]
        (Path(folder) / "reid_raw.json").write_bytes(json.dumps([record, *more]).encode())
        item, split, label, first, second, *_ = parsed(Path(folder))
    assert item == Item("CUHK01/0363004.png", "imgs/CUHK01/0363004.png")
    assert (split, label) == (Split(item.id, "cuhk_pedes/train"), Label(item.id, "identity", "1"))
    assert isinstance(first, Caption)
    assert isinstance(second, Caption)
    assert first.text.startswith("A pedestrian with dark hair is wearing red and white shoes")
    assert second == Caption("CUHK01/0363004.png#1", item.id, 1, record["captions"][1])


def test_the_corpus_is_the_published_one() -> None:
    counts = cuhk_pedes.CORPUS.counts
    for kind in ("items", "captions"):
        assert counts[kind] == sum(counts[f"{kind}:cuhk_pedes/{name}"] for name in ("train", "val", "test"))
    assert set(cuhk_pedes.CORPUS.release.values()) == {"nothing"}


def rewrite(folder: Path, edit: Callable[[Any], object]) -> None:
    records = json.loads((folder / "reid_raw.json").read_bytes())
    edit(records)
    (folder / "reid_raw.json").write_text(json.dumps(records))
