"""Visual Genome: what the generated publisher writes comes back as rows, and what is wrong with a file is said."""

import io
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import xmodal
from pipelines.demo.visual_genome import Picture, pictures, write
from pipelines.demo.world import World, box
from pipelines.engine.build_options import BuildOptions
from pipelines.publishing.dataset_repository import publish
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.parsing import of, parser_of
from xmodal.corpora import visual_genome
from xmodal.corpora.visual_genome import CUT, NO_AREA, NO_ATTRIBUTE, NO_OBJECT, vocabulary
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Item, Oddity, Region, Split
from xmodal.root.storage import open_storage

WORLD = World(items=60, image_size=32)
SHARED = Path(__file__).parents[3] / "shared/data/visual-genome"
THINGS, ATTRIBUTES = "genome/objects_vocab.txt", "genome/attributes_vocab.txt"
parsed = parser_of(visual_genome)
Edit = Callable[[Any], object]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visual_genome")
    write(WORLD, folder)
    return folder


def shown(picture: Picture) -> list[tuple[str, set[str], tuple[int, ...]]]:
    """Things, attributes and boxes of a picture, as far as the vocabularies have words for them."""
    found: list[tuple[str, set[str], tuple[int, ...]]] = []
    for place, thing in enumerate(picture.scene.things):
        if thing.kind != "ring":
            told = {thing.colour, thing.texture} - {"plain", "checked"} if picture.way(place) != 3 else set()
            left, top, right, bottom = box(picture.scene, thing)
            right = picture.scene.width if picture.beyond and not place else right
            found.append((thing.kind, told, (left, top, right, bottom)))
    return found


@settings(max_examples=12, deadline=None)
@given(st.integers(10, 30), st.integers(0, 1000))
def test_any_world_comes_back(items: int, seed: int) -> None:
    world = World(items, seed, image_size=32)
    with TemporaryDirectory() as folder:
        write(world, folder)
        rows = parsed(Path(folder))
    splits, regions = of(rows, Split), of(rows, Region)
    for picture, item, split in zip(pictures(world), of(rows, Item), splits, strict=True):
        mine = [region for region in regions if region.item == item.id]
        assert (item.id, item.width, item.height) == (str(picture.number), picture.scene.width, picture.scene.height)
        assert split == Split(item.id, f"bottom_up/{picture.split}")
        assert [("".join(r.names), set(r.attributes), (r.left, r.top, r.right, r.bottom)) for r in mine] == shown(
            picture
        )
    assert len({region.id for region in regions}) == len(regions)


def test_what_is_odd_is_counted(published: Path) -> None:
    found = Counter(row.rule for row in of(parsed(published), Oddity))
    every = list(pictures(WORLD))
    things = [(p, n, thing) for p in every for n, thing in enumerate(p.scene.things)]
    assert found == {
        NO_OBJECT: sum(thing.kind == "ring" for _, _, thing in things),
        NO_AREA: sum(picture.empty for picture in every),
        CUT: sum(picture.beyond and picture.scene.things[0].kind != "ring" for picture in every),
        NO_ATTRIBUTE: sum(t.texture == "checked" and t.kind != "ring" and p.way(n) != 3 for p, n, t in things),
    }
    assert min(found.values()) > 0
    assert len(found) == 4


def test_media_are_where_items_say(published: Path) -> None:
    for picture, item in zip(pictures(WORLD), of(parsed(published), Item), strict=True):
        archive, _, member = item.media.partition("!")
        assert item.url == f"http://visual-genome.invalid/{picture.path}"
        with zipfile.ZipFile(published / archive) as zipped, Image.open(io.BytesIO(zipped.read(member))) as image:
            assert image.size == (item.width, item.height)


def test_a_build_counts_what_the_publisher_wrote(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    assert corpus.counts.keys() == visual_genome.CORPUS.counts.keys()
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    counts = CorpusBuild(site, corpus).build("records").totals["counts"]
    assert counts["regions"] == sum(len(shown(picture)) for picture in pictures(WORLD))
    assert counts[f"odd: {NO_AREA}"] == sum(picture.empty for picture in pictures(WORLD))
    assert CorpusBuild(site, corpus).build("media").totals["counts"] == {"present": 2, "absent": 0}
    splits = xmodal.open(str(tmp_path / "root"), "visual_genome").splits
    assert splits == {"bottom_up/train": 48, "bottom_up/val": 6, "bottom_up/test": 6}


def test_its_card_is_filled_in(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    storage = open_storage(str(tmp_path / "root"))
    CorpusBuild(BuildOptions(storage, raw=tmp_path / "raw"), corpus).build("records")
    published = publish(corpus, storage, tmp_path / "out")
    assert published["withheld"] == {"media": "features"}
    assert published["rows"] == {"bottom_up": {"train": 48, "val": 6, "test": 6}}
    card = (tmp_path / "out/README.md").read_text()
    assert "license: cc-by-4.0" in card
    assert "$" not in card


def test_the_publishers_quirks_are_there(published: Path) -> None:
    assert not (published / THINGS).read_bytes().endswith(b"\n")
    assert b"\r\n" in (published / ATTRIBUTES).read_bytes()
    names = [thing["names"][0] for record in unzipped(published, "objects") for thing in record["objects"]]
    assert {name.endswith(".") for name in names} == {name.endswith(" ") for name in names} == {True, False}
    said = [thing.get("attributes") for record in unzipped(published, "attributes") for thing in record["attributes"]]
    assert None in said
    assert any(" and " in text for texts in said if texts for text in texts)


def test_equal_worlds_are_equal_bytes(published: Path, tmp_path: Path) -> None:
    for source in write(WORLD, tmp_path).sources:
        assert (tmp_path / source.path).read_bytes() == (published / source.path).read_bytes()


@pytest.mark.parametrize("world", [World(motion=0.1), World(items=9)])
def test_a_world_that_it_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Visual Genome has"):
        write(world, tmp_path)


def test_a_vocabulary_counts_from_1_and_has_synonyms(published: Path) -> None:
    found = vocabulary(Raw.folder(published), THINGS)
    assert found[:3] == [(), ("circle", "disc"), ("square", "box")]
    assert len(found) == 10
    assert vocabulary(Raw.folder(published), ATTRIBUTES)[1] == ("red", "crimson")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
def test_a_vocabulary_is_the_same_however_its_lines_end(folder: Path, end: str, start: bytes, last: bool) -> None:
    expected = vocabulary(Raw.folder(folder), THINGS)
    text = end.join((folder / THINGS).read_text().split("\n")) + (end if last else "")
    (folder / THINGS).write_bytes(start + text.encode())
    assert vocabulary(Raw.folder(folder), THINGS) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "objects_vocab.txt is empty"),
        (b"dog,\ncat", r"objects_vocab.txt:1: '' is no name"),
        (b"dog\ncat,dog", r"objects_vocab.txt:2: the name .dog. is there a second time"),
        (b"dog\n\xff", r"objects_vocab.txt:2 is not UTF-8"),
    ],
)
def test_a_wrong_vocabulary_is_refused(folder: Path, data: bytes, message: str) -> None:
    (folder / THINGS).write_bytes(data)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("dog", ["white"], ("dog", ("white",))),
        ("White Dog.", [], ("dog", ("white",))),
        ("large  white dog", ["white"], ("dog", ("large", "white"))),
        ("brave dog", [], None),
        ("hound", ["red and brave", "large"], ("dog", ("red", "large"))),
        ("dog", ["Black and white"], ("dog", ("black and white",))),
        ("dog", ["grey", "gray"], ("dog", ("gray",))),
        ("white", [], None),
        ("", [], None),
    ],
)
def test_names_and_attributes_are_those_of_the_vocabularies(
    folder: Path, name: str, attributes: list[str], expected: tuple[str, tuple[str, ...]] | None
) -> None:
    (folder / THINGS).write_text("cat\ndog,hound")
    (folder / ATTRIBUTES).write_text("gray,grey\nwhite\nlarge\nred\nblack and white")
    thing = {"object_id": 5, "names": [name, "cat"], "x": 1, "y": 2, "w": 3, "h": 4}
    rewrite(folder, "objects", lambda records: records.__setitem__(slice(None), [{"image_id": 1, "objects": [thing]}]))
    told = [{"image_id": 1, "attributes": [thing | {"attributes": attributes}]}]
    rewrite(folder, "attributes", lambda records: records.__setitem__(slice(None), told))
    rows = parsed(folder)
    wanted = [Region("1/5", "1", "5", 1.0, 2.0, 4.0, 6.0, (expected[0],), expected[1])] if expected else []
    assert of(rows, Region) == wanted
    odd = Counter(row.rule for row in of(rows, Oddity))
    assert odd == ({} if expected and "brave" not in str(attributes) else {NO_ATTRIBUTE if expected else NO_OBJECT: 1})


@pytest.mark.parametrize(
    ("table", "edit", "message"),
    [
        ("image_data", lambda r: r[2].pop("width"), r"image_data\.json\[2\] has no 'width'"),
        ("image_data", lambda r: r[2].update(height=0), r"\[2\]: picture 7 has \d+ x 0 pixels"),
        ("image_data", lambda r: r.append(r[0]), r"\[60\]: id 1 is there a second time"),
        (
            "image_data",
            lambda r: r[2].update(image_id=8),
            r"\[2\]: picture 8 is in none of genome/train.txt, genome/val",
        ),
        ("image_data", lambda r: r.pop(), r"image_data\.json has no picture 178, which is in a split's list"),
        ("image_data", lambda r: r.clear(), r"image_data\.json has no picture 1,"),
        ("objects", lambda r: r[2].pop("objects"), r"objects\.json\[2\] has no 'objects'"),
        ("objects", lambda r: r[2].update(image_id=8), r"\[2\] is of picture 8, which image_data\.json does not have"),
        ("objects", lambda r: r.append(r[0]), r"objects\.json\[60\]: id 1 is there a second time"),
        ("objects", lambda r: r[2]["objects"][0].pop("names"), r"\[2\]: objects\[0\] has no 'names'"),
        ("objects", lambda r: r[2]["objects"][0].update(names=[]), r"\[2\]: objects\[0\] has no name"),
        ("objects", lambda r: r[2]["objects"][0].update(x="1"), r"\[2\]: objects\[0\]: 'x' is '1', no int"),
        ("objects", lambda r: r[2]["objects"].append(r[2]["objects"][0]), r"objects\[\d\]: id 20 is there a second"),
        ("attributes", lambda r: r[2].update(image_id=8), r"attributes\.json\[2\] is of picture 8, which"),
        ("attributes", lambda r: r[2]["attributes"][0].update(attributes=[3]), r"attributes\[0\] is 3, no text"),
        ("attributes", lambda r: r[2]["attributes"][0].update(attributes="red"), r"'attributes' is 'red', no list"),
    ],
)
def test_a_wrong_table_is_refused(folder: Path, table: str, edit: Edit, message: str) -> None:
    rewrite(folder, table, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"genome/val\.txt is empty"),
        (b"VG_100K/1.jpg xml/1.xml\n", r"val\.txt:1: VG_100K/1\.jpg is in train too"),
        (b"VG_100K/2.jpg\n", r"val\.txt:1: 'VG_100K/2\.jpg' is no picture of .* with a second file"),
        (
            b"VG_200K/2.jpg xml/2.xml\n",
            r"val\.txt:1: 'VG_200K/2\.jpg xml/2\.xml' is no picture of VG_100K or VG_100K_2",
        ),
        (b"VG_100K/02.jpg xml/2.xml\n", r"is no picture of"),
        (b"VG_100K/2.jpg xml/2.xml\n", r"image_data\.json\[8\]: picture 25 is in none of"),
    ],
)
def test_a_wrong_split_is_refused(folder: Path, data: bytes, message: str) -> None:
    (folder / "genome/val.txt").write_bytes(data)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_splits_with_other_line_ends_and_a_mark_do_no_harm(folder: Path) -> None:
    expected = parsed(folder)
    path = folder / "genome/train.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert parsed(folder) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"objects\.json\.zip!objects\.json is not the JSON it should be, at character 0: it ends too early"),
        (b"{}", r"objects\.json is not the JSON it should be, at character 0: '\[' expected"),
        (b'[{"image_id": 1, "objects": [', r"objects\.json is not the JSON it should be"),
        (b'[{"image_id": 1, "url": "\xff"}]', r"objects\.json is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused(folder: Path, data: bytes, message: str) -> None:
    with zipfile.ZipFile(folder / "objects.json.zip", "w") as archive:
        archive.writestr("objects.json", data)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_a_missing_member_is_named(folder: Path) -> None:
    with zipfile.ZipFile(folder / "objects.json.zip", "w") as archive:
        archive.writestr("other.json", "[]")
    with pytest.raises(UserError, match=r"objects\.json\.zip has no member objects\.json"):
        parsed(folder)


def test_the_real_vocabularies_have_1600_things_and_400_attributes(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip("no real samples")
    for name, outputs, names in (("objects", 1601, 1625), ("attributes", 401, 410)):
        data = (SHARED / f"{name}_vocab.txt").read_bytes()
        (tmp_path / "words").write_bytes(data)
        found = vocabulary(Raw.folder(tmp_path), "words")
        (tmp_path / "words").write_bytes(data.replace(b"\n", b"\r\n"))
        assert vocabulary(Raw.folder(tmp_path), "words") == found
        assert (len(found), sum(map(len, found)), found[0]) == (outputs, names, ())


def test_the_real_splits_hold_every_picture_once(tmp_path: Path) -> None:
    """With tables of pictures made from the lists: Visual Genome's own are not at hand."""
    if not SHARED.is_dir():
        pytest.skip("no real samples")
    (tmp_path / "genome").mkdir()
    numbers = []
    for split in ("train", "val", "test"):
        shutil.copy(SHARED / f"genome_{split}.txt", tmp_path / f"genome/{split}.txt")
        text = (SHARED / f"genome_{split}.txt").read_text()
        numbers += [int(line.split(".")[0].split("/")[1]) for line in text.splitlines()]
    for name in ("objects", "attributes"):
        shutil.copy(SHARED / f"{name}_vocab.txt", tmp_path / "genome")
    thing = {"object_id": 5, "names": ["White fridge"], "x": -3, "y": 2, "w": 30, "h": 4}
    save(tmp_path, "image_data", [{"image_id": number, "width": 20, "height": 10} for number in numbers])
    save(tmp_path, "objects", [{"image_id": numbers[0], "objects": [thing]}])
    save(tmp_path, "attributes", [{"image_id": numbers[0], "attributes": [thing | {"attributes": ["Multi-colored"]}]}])
    rows = parsed(tmp_path)
    counts = visual_genome.CORPUS.counts
    assert len(of(rows, Item)) == counts["items"]
    assert Counter(f"items:{split.name}" for split in of(rows, Split)) == Counter(counts) - Counter(items=10**6)
    (region,) = of(rows, Region)
    assert (region.names, region.attributes) == (("refrigerator",), ("white", "multi colored"))
    assert (region.left, region.right) == (0, 20)


def test_the_corpus_is_the_published_one() -> None:
    counts = visual_genome.CORPUS.counts
    assert counts["items"] == sum(counts[f"items:bottom_up/{name}"] for name in ("train", "val", "test"))
    assert [source.path for source in visual_genome.CORPUS.sources if source.sha256] == ["images.zip", "images2.zip"]
    assert all(source.url for source in visual_genome.CORPUS.sources)


def unzipped(folder: Path, name: str) -> Any:
    with zipfile.ZipFile(folder / f"{name}.json.zip") as archive:
        return json.loads(archive.read(f"{name}.json"))


def rewrite(folder: Path, name: str, edit: Edit) -> None:
    records = unzipped(folder, name)
    edit(records)
    save(folder, name, records)


def save(folder: Path, name: str, records: Any) -> None:
    with zipfile.ZipFile(folder / f"{name}.json.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.json", json.dumps(records))
