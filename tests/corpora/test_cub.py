"""CUB Captions: what the generated publisher writes comes back as rows, and what is wrong with a file is said."""

import io
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import xmodal
from pipelines.demo.files import written
from pipelines.demo.world import World, box, describe
from pipelines.engine.build_options import BuildOptions
from pipelines.publishing.dataset_repository import publish
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.parsing import of, parser_of
from tests.publishers.cub import TEST, pictures, write
from xmodal.corpora import cub
from xmodal.errors import UserError
from xmodal.metrics.protocols import Gallery, classes, labels_of
from xmodal.raw.raw_files import Raw
from xmodal.recipes import View
from xmodal.records.tables import Caption, Item, Label, Oddity, Region, Row, Split
from xmodal.records.views import captions_by_item
from xmodal.root.storage import open_storage

WORLD = World(items=60, image_size=32, captions_per_item=10, identities=12)
IMAGES, CAPTIONS, LISTS = "CUB_200_2011.tgz", "cvpr2016_cub.tar.gz", "xlsa17.zip"
SEEN = "seen_test_images.txt"
SHARED = Path(__file__).parents[3] / "shared/data/cub"
parsed = parser_of(cub)
Edit = Callable[[bytes], bytes]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cub")
    write(WORLD, folder)
    return folder


def assert_the_world_is_there(world: World, rows: list[Row]) -> None:
    items, captions, splits = of(rows, Item), of(rows, Caption), of(rows, Split)
    assert [item.id for item in items] == [str(number + 1) for number in range(world.items)]
    for picture, item, label, region in zip(pictures(world), items, of(rows, Label), of(rows, Region), strict=True):
        mine = [caption for caption in captions if caption.item == item.id]
        assert item.media == f"CUB_200_2011/images/{picture.path}"
        assert [caption.text for caption in mine] == [describe(picture.scene, world, n) for n in range(10)]
        assert [caption.position for caption in mine] == list(range(10))
        assert {split.name for split in splits if split.item == item.id} == picture.splits
        assert (label.item, label.kind, label.name) == (item.id, "class", picture.folder)
        edges = (region.left, region.top, region.right, region.bottom)
        assert (region.item, edges) == (item.id, box(picture.scene, picture.scene.things[0]))


@settings(max_examples=12, deadline=None)
@given(st.integers(3, 25), st.integers(0, 1000), st.integers(1, 9))
def test_any_world_comes_back(items: int, seed: int, identities: int) -> None:
    world = World(items, seed, image_size=32, captions_per_item=10, identities=identities)
    with TemporaryDirectory() as folder:
        write(world, folder)
        assert_the_world_is_there(world, parsed(Path(folder)))


def test_what_is_odd_is_counted(published: Path) -> None:
    odd = of(parsed(published), Oddity)
    unseen = [str(p.number) for p in pictures(WORLD) if p.seen and p.class_number in TEST]
    garbled = [str(p.number) for p in pictures(WORLD) if p.garbled for _ in range(2)]
    assert unseen
    assert garbled
    assert [row.item for row in odd if row.rule == cub.UNSEEN] == unseen
    assert [row.item for row in odd if row.rule == cub.NOT_TEXT] == garbled
    assert all(re.fullmatch(rf"{SEEN}:\d+|{CAPTIONS}!.*\.txt:\d+", row.where) for row in odd)
    assert len(odd) == len(unseen) + len(garbled)


def test_the_publishers_quirks_are_there(published: Path) -> None:
    with tarfile.open(published / CAPTIONS) as archive:
        names = archive.getnames()
    folders = {name.split("/")[2] for name in names}
    assert folders - {p.folder for p in pictures(WORLD)}
    assert any("/._" in name for name in names)
    assert not any(row.name == "pcme/val" and row.item in unseen_items() for row in of(parsed(published), Split))


def unseen_items() -> set[str]:
    return {str(p.number) for p in pictures(WORLD) if p.class_number in TEST}


def test_pictures_are_taken_out_of_the_archive_as_far_as_they_are_wanted(published: Path, tmp_path: Path) -> None:
    raw = Raw.folder(published)
    listed = [source.path for source in cub.media(raw)]
    assert listed == [item.media for item in of(parsed(published), Item)]
    assert [source.path for source in cub.unpack(raw, {listed[3], "elsewhere.jpg"}, tmp_path)] == [listed[3]]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jpg")] == [listed[3]]
    assert [source.path for source in cub.unpack(raw, listed, tmp_path)] == listed
    for picture, path in zip(pictures(WORLD), listed, strict=True):
        with Image.open(tmp_path / path) as image:
            assert image.size == (picture.scene.width, picture.scene.height)


def test_a_picture_that_the_archive_lacks_is_absent_and_counted(folder: Path, tmp_path: Path) -> None:
    first = next(pictures(WORLD)).path
    retar(folder, IMAGES, f"CUB_200_2011/images/{first}", None)
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=folder)
    corpus = written(cub.CORPUS, folder, cub.CORPUS.counts)
    assert CorpusBuild(site, corpus).build("media").totals["counts"] == {"present": 59, "absent": 1}


def test_a_build_counts_what_the_publisher_wrote_and_classes_say_what_is_right(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    assert corpus.counts.keys() == cub.CORPUS.counts.keys()
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    records = CorpusBuild(site, corpus).build("records")
    assert records.totals["counts"]["odd: " + cub.NOT_TEXT] == 2 * sum(p.garbled for p in pictures(WORLD))
    assert CorpusBuild(site, corpus).build("media").totals["counts"] == {"present": 60, "absent": 0}
    dataset = xmodal.open(str(tmp_path / "root"), "cub")
    found = captions_by_item(dataset.records, View("cub", "pcme/train"))
    ids, owners = found.items, np.repeat(found.items, found.counts).tolist()
    gallery = Gallery(ids, list(found.ids), np.repeat(np.arange(len(ids)), 10))
    relevance = classes(gallery, "class", labels_of(dataset.records, ids)["class"])
    by_number = {str(p.number): p.class_name for p in pictures(WORLD)}
    expected = [[by_number[item] == by_number[owner] for owner in owners] for item in ids]
    np.testing.assert_array_equal(relevance.tile(slice(None), slice(None)), expected)
    assert np.sum(expected) > 10 * len(ids)


def test_what_is_published_are_ids_under_a_card(tmp_path: Path) -> None:
    corpus = write(WORLD, tmp_path / "raw")
    storage = open_storage(str(tmp_path / "root"))
    CorpusBuild(BuildOptions(storage, raw=tmp_path / "raw"), corpus).build("records")
    published = publish(corpus, storage, tmp_path / "out")
    assert published["withheld"] == {"annotations": "ids", "media": "features"}
    assert published["rows"]["pcme"]["val"] == corpus.counts["items:pcme/val"]
    table = pq.read_table(next((tmp_path / "out/captions/pcme").glob("val-*.parquet")))
    assert table.column_names == ["id", "url", "caption_ids"]
    card = (tmp_path / "out/README.md").read_text()
    assert "The captions are not here" in card
    assert "$" not in card
    assert describe(next(pictures(WORLD)).scene, WORLD, 0) not in card


def test_equal_worlds_are_equal_bytes(published: Path, tmp_path: Path) -> None:
    for source in write(WORLD, tmp_path).sources:
        assert (tmp_path / source.path).read_bytes() == (published / source.path).read_bytes()


@pytest.mark.parametrize("world", [World(captions_per_item=5), World(captions_per_item=10, motion=0.1)])
def test_a_world_that_cub_cannot_hold_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CUB has"):
        write(world, tmp_path)


def test_a_byte_order_mark_and_other_line_ends_do_no_harm(folder: Path) -> None:
    expected = parsed(folder)
    for name in cub.TABLES:
        retar(folder, IMAGES, f"CUB_200_2011/{name}.txt", windows)
    retar(folder, CAPTIONS, caption_file(1), windows)
    (folder / SEEN).write_bytes(windows((folder / SEEN).read_bytes()))
    rezip(folder, "testclasses", windows)
    assert parsed(folder) == expected


def windows(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("images", lambda d: d + d[:1], r"images\.txt:61: '1' is no number with class/picture\.jpg"),
        ("images", lambda d: d + b"1 002.X/y.jpg\n", r"images\.txt:61: id 1 is there a second time"),
        ("images", lambda d: d + b"61" + d[1 : d.index(b"\n") + 1], r"images\.txt:61: id \S+ is there a second time"),
        (
            "images",
            lambda d: d + b"61 ../x.jpg\n",
            r"images\.txt:61: '61 \.\./x\.jpg' is no number with class/picture\.jpg",
        ),
        ("images", lambda d: d + b"61 001.X/y.jpg\n", r"picture 61 is in one of images\.txt and \w+\.txt alone"),
        ("images", lambda d: b"", r"picture \d+ is in one of images\.txt and"),
        ("images", lambda d: d + b"61 001.X\xff/y.jpg\n", r"images\.txt:61 is not UTF-8"),
        ("bounding_boxes", lambda d: d.replace(b".0\n", b"\n", 1)[:-5], r"bounding_boxes\.txt:60: '60 "),
        (
            "bounding_boxes",
            lambda d: re.sub(rb"^1 \S+", b"1 x", d),
            r"boxes\.txt:1: '1 x .* is no number with left, top, width and",
        ),
        ("bounding_boxes", lambda d: re.sub(rb"^1 .*", b"1 1 1 0 4", d), r":1 has '1 1 0 4', which is no box"),
        ("bounding_boxes", lambda d: re.sub(rb"^1 .*", b"1 nan 1 2 4", d), r":1: '1 nan 1 2 4' is no number with left"),
        (
            "train_test_split",
            lambda d: re.sub(rb"^1 .*", b"1 2", d),
            r"split\.txt:1: '1 2' is no number with 1 .train. or 0",
        ),
        ("image_class_labels", lambda d: re.sub(rb"^1 .*", b"1 999", d), r"labels\.txt:1: there is no class 999"),
        ("image_class_labels", lambda d: re.sub(rb"^1 .*", b"1 1", d), r":1: picture 1 is of class 1, but lies in the"),
        ("classes", lambda d: d.replace(b"002.", b"003.", 1), r"classes\.txt:2: class 2 is called 003\.Red_square"),
        (
            "classes",
            lambda d: d.replace(b"002.", b"2.", 1),
            r"classes\.txt:2: '2 2\.Red_square' is no number with class",
        ),
    ],
)
def test_a_wrong_table_is_refused(folder: Path, name: str, edit: Edit, message: str) -> None:
    retar(folder, IMAGES, f"CUB_200_2011/{name}.txt", edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_an_archive_without_pictures_is_refused(folder: Path) -> None:
    for name in cub.TABLES.keys() - {"classes"}:
        retar(folder, IMAGES, f"CUB_200_2011/{name}.txt", lambda data: b"")
    with pytest.raises(UserError, match=r"images\.txt is empty"):
        parsed(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: b"", r"cvpr2016_cub\.tar\.gz!cvpr2016_cub/text_c10/.*\.txt has 0 captions, not 10"),
        (lambda d: d + b"one more\n", r"\.txt has 11 captions, not 10"),
    ],
)
def test_a_caption_file_has_ten(folder: Path, edit: Edit, message: str) -> None:
    retar(folder, CAPTIONS, caption_file(1), edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_captions_without_picture_twice_or_missing_are_refused(folder: Path) -> None:
    name = caption_file(1)
    stem = Path(name).stem
    retar(folder, CAPTIONS, name, None)
    with pytest.raises(UserError, match=rf"has no captions of 1 pictures, such as \d+/{stem}"):
        parsed(folder)
    retar(folder, CAPTIONS, "cvpr2016_cub/text_c10/001.Red_circle/Stray_1_2.txt", lambda data: b"a bird\n" * 10)
    with pytest.raises(UserError, match=r"Stray_1_2\.txt has captions, but CUB_200_2011\.tgz has no such picture"):
        parsed(folder)


def test_captions_in_two_folders_of_a_class_are_refused(folder: Path) -> None:
    name = caption_file(1)
    other = re.sub(r"(text_c10/\d+\.)", r"\1Old_", name)
    retar(folder, CAPTIONS, other, lambda data: b"a bird\n" * 10)
    with pytest.raises(UserError, match=r"id \S+ is there a second time"):
        parsed(folder)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("testclasses", lambda d: b"", r"xlsa17\.zip!xlsa17/data/CUB/testclasses\.txt is empty"),
        ("testclasses", lambda d: d + d[:20], r"testclasses\.txt:\d+: id 4 is there a second time"),
        ("testclasses", lambda d: d + b"999.Dodo\n", r"there is no class 999"),
        ("testclasses", lambda d: d + b"Dodo\n", r"'Dodo' is no class"),
        ("testclasses", lambda d: d + b"001.X\n", r"trainvalclasses and testclasses should divide 110 .* class 1"),
        ("valclasses2", lambda d: d[d.index(b"\n") + 1 :], r"trainclasses2 and valclasses2 should divide \d+ classes"),
    ],
)
def test_wrong_class_lists_are_refused(folder: Path, name: str, edit: Edit, message: str) -> None:
    rezip(folder, name, edit)
    with pytest.raises(UserError, match=message):
        parsed(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: b"", r"seen_test_images\.txt is empty"),
        (lambda d: d + b"001.X/y.jpg\n", r"seen_test_images\.txt:13: CUB_200_2011\.tgz has no picture 001/y"),
        (lambda d: d + d, r"seen_test_images\.txt:13: id .* is there a second time"),
        (lambda d: d + b"y.jpg\n", r"'y\.jpg' is no class/picture\.jpg"),
    ],
)
def test_a_wrong_list_of_pictures_is_refused(folder: Path, edit: Edit, message: str) -> None:
    (folder / SEEN).write_bytes(edit((folder / SEEN).read_bytes()))
    with pytest.raises(UserError, match=message):
        parsed(folder)


def test_missing_members_are_named(folder: Path) -> None:
    retar(folder, IMAGES, "CUB_200_2011/classes.txt", None)
    with pytest.raises(UserError, match=r"CUB_200_2011\.tgz has no member CUB_200_2011/classes\.txt"):
        parsed(folder)


def test_the_real_lists_divide_the_real_classes() -> None:
    """With a table of pictures that has those of the list alone: CUB's own is not at hand."""
    if not SHARED.is_dir():
        pytest.skip("no real samples")
    with TemporaryDirectory() as name:
        raw = Path(name)
        with zipfile.ZipFile(raw / LISTS, "w") as archive:
            for file in SHARED.glob("*classes*.txt"):
                archive.write(file, f"xlsa17/data/CUB/{file.name}")
        shutil.copy(SHARED / SEEN, raw / SEEN)
        every = sorted({line for file in SHARED.glob("t*classes.txt") for line in file.read_text().split()})
        paths = [f"{c}/One_Of_{c[4:]}_0001_1.jpg" for c in every] + (SHARED / SEEN).read_text().split()
        write_by_hand(raw, every, paths)
        rows = parsed(raw)
    splits = Counter(split.name for split in of(rows, Split))
    per_class = Counter(row.name for row in of(rows, Label))
    assert (len(every), len(per_class), len(paths)) == (200, 200, 1964)
    assert sum(row.rule == cub.UNSEEN for row in of(rows, Oddity)) == 10
    assert (splits["pcme/val"], splits["pcme/train"], splits["pcme/test"]) == (1754, 150, 60)
    assert of(rows, Caption)[0].text.startswith("a large bird has curly hair on its nape")
    for fold in (1, 2, 3):
        assert splits[f"xian{fold}/train"] + splits[f"xian{fold}/val"] == splits["xian/train"] == 1904


def write_by_hand(raw: Path, every: list[str], paths: list[str]) -> None:
    tables = {
        "images": [f"{n} {path}" for n, path in enumerate(paths, 1)],
        "classes": [f"{n} {name}" for n, name in enumerate(every, 1)],
        "image_class_labels": [f"{n} {int(path[:3])}" for n, path in enumerate(paths, 1)],
        "bounding_boxes": [f"{n} 60.0 27.0 325.0 304.0" for n in range(1, len(paths) + 1)],
        "train_test_split": [f"{n} 0" for n in range(1, len(paths) + 1)],
    }
    members = {f"CUB_200_2011/{name}.txt": "\n".join(lines).encode() for name, lines in tables.items()}
    save_tar(raw / IMAGES, members)
    sample = (SHARED / "text_c10.sample.txt").read_bytes().split(b"\n\n")[0]
    save_tar(raw / CAPTIONS, {f"cvpr2016_cub/text_c10/{path[:-4]}.txt": sample for path in paths})


def test_the_corpus_is_the_published_one() -> None:
    counts = cub.CORPUS.counts
    assert counts["captions"] == 10 * counts["items"]
    assert counts["items"] == counts["items:xian/train"] + counts["items:xian/test"]
    assert cub.CORPUS.release == {"annotations": "ids", "media": "features"}


def caption_file(number: int) -> str:
    picture = list(pictures(WORLD))[number]
    folder = picture.folder + ("s" if picture.class_number % 5 == 0 else "")
    return f"cvpr2016_cub/text_c10/{folder}/{picture.stem}.txt"


def retar(folder: Path, path: str, member: str, edit: Edit | None) -> None:
    """With one member changed, added, or taken out."""
    with tarfile.open(folder / path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        members = {name: file.read() for name, file in files.items() if file}
    data = members.pop(member, b"")
    save_tar(folder / path, members | ({member: edit(data)} if edit else {}))


def save_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def rezip(folder: Path, name: str, edit: Edit) -> None:
    member = f"xlsa17/data/CUB/{name}.txt"
    with zipfile.ZipFile(folder / LISTS) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(folder / LISTS, "w") as archive:
        for each, data in (members | {member: edit(members[member])}).items():
            archive.writestr(each, data)
