"""Regions of others come in and go out with their boxes, in every format; hostile and truncated files are refused."""

import base64
import csv
import json
import pickle
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from pipelines.cli import main
from pipelines.engine.building import serial
from pipelines.engine.progress_line import ProgressLine
from pipelines.publishing.feature_export import export_features
from pipelines.publishing.feature_import import import_features
from tests.detection.test_region_store import WORDS, assert_same, make_store, some_regions
from tests.features.test_exchange import PICKLED, Evil, npy_of
from tests.toy_root import item_id, make_root
from xmodal.detection.region_formats import open_regions
from xmodal.detection.region_semantics import semantics_of
from xmodal.detection.region_store import PictureRegions, RegionStore
from xmodal.errors import UserError
from xmodal.features.foreign_formats import open_foreign
from xmodal.features.store import FeatureStore
from xmodal.recipes import View
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import captions_by_item
from xmodal.root.outputs import find
from xmodal.root.storage import open_storage

QUIET = ProgressLine(quiet=True)
FORMATS = ("x.tsv", "x_ims.npy", "x.h5", "folder")
MANY = [some_regions(id, count) for id, count in (("a", 3), ("b", 0), ("Straße-日本", 5), ("7", 1))]


def export(where: str, out: Path) -> dict[str, Any]:
    return export_features(where, out, None, None, None, None, QUIET)


def bring_in(path: Path, root: Path, ids: Path | None = None) -> RegionStore:
    source = open_regions(path, ids)
    assert source is not None
    return RegionStore(import_features(open_storage(str(root)), "mine", source, (), serial, QUIET)["path"])


def without_words(picture: PictureRegions) -> PictureRegions:
    return PictureRegions(picture.id, picture.boxes_K4, picture.features_KD, picture.size)


@pytest.mark.parametrize("out", FORMATS)
@pytest.mark.parametrize("words", [True, False])
def test_what_is_exported_and_imported_is_what_was_there(out: str, words: bool, tmp_path: Path) -> None:
    pictures = MANY if words else [without_words(picture) for picture in MANY]
    where = make_store(tmp_path / "made", pictures)
    export(where, tmp_path / out)
    store = bring_in(tmp_path / out, tmp_path / "root")
    assert (sorted(store.ids), store.absent) == (sorted(picture.id for picture in pictures), frozenset())
    for picture in pictures:
        assert_same(store.picture(picture.id), without_words(picture) if out == "x_ims.npy" else picture)


@pytest.mark.parametrize("out", ["x.tsv", "x.h5", "folder"])
def test_words_go_out_beside_their_regions_and_come_back(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = RegionStore(make_store(tmp_path / "made", [picture for picture in MANY if len(picture.boxes_K4)]))
    assert main(["export", before.store.output.where, str(tmp_path / out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["beside"] == [f"{out}.objects_vocab.txt", f"{out}.attributes_vocab.txt"]
    assert not told["lost"]
    given = [
        f"--{kind}-words={tmp_path / name}" for kind, name in zip(("object", "attribute"), told["beside"], strict=True)
    ]
    command = ["import", str(tmp_path / out), "--root", str(tmp_path / "root"), "--name", "mine", *given, "--serial"]
    assert main([*command, "--json", "--quiet"]) == 0
    store = RegionStore(json.loads(capsys.readouterr().out)["path"])
    assert store.words == before.words
    for id in before.ids:
        ones, others = (semantics_of(one.words, one.classes(id), one.attributes(id)) for one in (before, store))
        assert ones == others != ""


@pytest.mark.parametrize(
    ("out", "words", "lost"),
    [
        ("x_ims.npy", ["circle", "square", "star"], "classes and attributes"),
        ("x.tar", ["circle", "square", "star"], "boxes and classes and attributes"),
        ("x.tsv", ["circle, round", "square", "star"], "words of class"),
        ("x.tsv", ["circle", "star", "star"], "words of class"),
    ],
)
def test_an_export_says_what_its_format_cannot_hold(
    out: str,
    words: list[str],
    lost: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(WORDS, "classes", words)
    where = make_store(tmp_path / "made", [some_regions("a", 3)])
    assert main(["export", where, str(tmp_path / out)]) == 0
    assert f"its format cannot hold {lost}" in capsys.readouterr().out
    assert not list(tmp_path.glob("*objects_vocab*"))


@pytest.mark.parametrize("out", ["x.h5", "folder", "x_ims.npy"])
def test_a_picture_of_unknown_size_and_an_absent_one_are_exported(out: str, tmp_path: Path) -> None:
    pictures = [some_regions("a", 3, words=False, size=None), some_regions("gone", 2), some_regions("c", 2)]
    about = export(make_store(tmp_path / "made", pictures, absent="gone"), tmp_path / out)
    assert (about["items"], about["absent"]) == (2, 1)
    store = bring_in(tmp_path / out, tmp_path / "root")
    assert sorted(store.ids) == ["a", "c"]
    assert_same(store.picture("a"), pictures[0])
    assert store.size("c") == (64, 48)


def test_a_tsv_says_the_size_of_every_picture(tmp_path: Path) -> None:
    where = make_store(tmp_path / "made", [some_regions("a", 3, size=None)])
    with pytest.raises(UserError, match=r"size of picture 'a' is not known.*export to x\.h5"):
        export(where, tmp_path / "x.tsv")
    assert not (tmp_path / "x.tsv").exists()


def test_pictures_without_any_region_are_no_array_of_scan(tmp_path: Path) -> None:
    where = make_store(tmp_path / "made", [some_regions("a", 0), some_regions("b", 0)])
    with pytest.raises(UserError, match=r"no picture has regions.*export to x\.h5"):
        export(where, tmp_path / "x_ims.npy")
    assert not list(tmp_path.glob("x_ims*"))


def test_exports_are_as_their_own_readers_expect_them(tmp_path: Path) -> None:
    where = make_store(tmp_path / "made", MANY)
    for out in FORMATS:
        export(where, tmp_path / out)
    names = ["image_id", "image_w", "image_h", "num_boxes", "boxes", "features"]
    csv.field_size_limit(10**7)
    with (tmp_path / "x.tsv").open() as file:
        row = list(csv.DictReader(file, delimiter="\t", fieldnames=names))[2]
    assert (row["image_id"], row["image_w"], row["image_h"], row["num_boxes"]) == ("Straße-日本", "64", "48", "5")
    features = np.frombuffer(base64.b64decode(row["features"]), np.float32).reshape(5, -1)
    np.testing.assert_array_equal(features, MANY[2].features_KD)
    images, boxes = np.load(tmp_path / "x_ims.npy"), np.load(tmp_path / "x_ims_bbx.npy")
    assert (images.shape, boxes.shape) == ((4, 5, 4), (4, 5, 4))
    np.testing.assert_array_equal(images[0], np.pad(MANY[0].features_KD, [(0, 2), (0, 0)]))
    assert np.load(tmp_path / "x_ims_size.npy")[0]["image_w"] == 64
    assert (tmp_path / "x_ims_ids.txt").read_text("utf-8").split("\n") == ["a", "b", "Straße-日本", "7", ""]
    with np.load(tmp_path / "folder/a.npz", allow_pickle=True) as item:
        assert {*item} == {"x", "bbox", "num_bbox", "image_h", "image_w", "info"}
        assert (int(item["num_bbox"]), int(item["image_h"])) == (3, 48)
        assert item["info"].item()["objects_id"].tolist() == MANY[0].classes.ids_K.tolist()  # type: ignore[union-attr]
    with h5py.File(tmp_path / "x.h5") as opened:
        assert opened["offsets"][()].tolist() == [0, 3, 3, 8, 9]
        np.testing.assert_array_equal(opened["boxes"][3:8], MANY[2].boxes_K4)


@pytest.mark.parametrize("out", FORMATS)
def test_a_box_that_ends_before_it_begins_is_refused_by_its_picture(out: str, tmp_path: Path) -> None:
    wrong = some_regions("Straße-日本", 2)
    wrong.boxes_K4[1] = [30, 4, 8, 9]
    export(make_store(tmp_path / "made", [*MANY[:2], wrong]), tmp_path / out)
    said = rf"{out}.*box 2 of 'Straße-日本', 30, 4, 8, 9, ends before it begins: give left, top, right and bottom"
    with pytest.raises(UserError, match=said):
        bring_in(tmp_path / out, tmp_path / "root")


def test_boxes_that_are_hardly_meant_are_kept_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some, relative = some_regions("a", 4), some_regions("b", 2)
    some.boxes_K4[:] = [[0, 0, 64, 48], [-0.5, 0, 64.5, 48], [-9, 0, 9, 9], [50, 0, 90, 9]]
    export(make_store(tmp_path / "made", [some, relative]), tmp_path / "x.h5")
    command = ["import", str(tmp_path / "x.h5"), "--root", str(tmp_path / "root"), "--name", "mine", "--serial"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["doubtful"] == {"boxes that leave their picture": 2, "boxes smaller than a pixel": 2}
    np.testing.assert_array_equal(RegionStore(told["path"]).boxes("a"), some.boxes_K4)
    assert main(command) == 0
    said = (
        "2 boxes that leave their picture and 2 boxes smaller than a pixel: they are kept, but boxes should be in pix"
    )
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("out", ["x.h5", "folder", "x_ims.npy"])
def test_a_size_that_is_not_above_zero_is_refused(out: str, tmp_path: Path) -> None:
    export(make_store(tmp_path / "made", [replace(MANY[0], size=(64, -1))]), tmp_path / out)
    with pytest.raises(UserError, match="'a' are of a picture of 64 x -1 pixels: give its width and height, above 0"):
        bring_in(tmp_path / out, tmp_path / "root")
    path = tsv(tmp_path / "x.tsv", [fields_of(replace(MANY[0], size=(0, 48)))])
    with pytest.raises(UserError, match="'a' are of a picture of 0 x 48 pixels"):
        bring_in(path, tmp_path / "root")


def test_boxes_too_large_for_their_type_are_refused_without_a_warning(tmp_path: Path) -> None:
    export(make_store(tmp_path / "made", [MANY[0]]), tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file["boxes"]
        file["boxes"] = np.full((3, 4), 1e39)
    with pytest.raises(UserError, match="the regions of 'a' have numbers that are NaN or infinite"):
        bring_in(tmp_path / "x.h5", tmp_path / "root")


# ------------------------------------------------------------------------------------------------------------------ TSV


def b64(values: Any, dtype: str) -> str:
    return base64.b64encode(np.asarray(values, dtype).tobytes()).decode()


def fields_of(picture: PictureRegions) -> dict[str, str]:
    """One line, written the slow way."""
    assert picture.size
    found = {"image_id": picture.id, "image_w": str(picture.size[0]), "image_h": str(picture.size[1])}
    found |= {"num_boxes": str(len(picture.boxes_K4)), "boxes": b64(picture.boxes_K4, "f4")}
    found |= {"features": b64(picture.features_KD, "f4")}
    for name, named in (("objects", picture.classes), ("attrs", picture.attributes)):
        if named:
            found |= {f"{name}_id": b64(named.ids_K, "i8"), f"{name}_conf": b64(named.scores_K, "f4")}
    return found


def tsv(path: Path, lines: Sequence[dict[str, str]], names: Sequence[str] = (), end: str = "\r\n") -> Path:
    rows = ["\t".join(line[name] for name in names or line) for line in lines]
    path.write_text("".join(row + end for row in rows), "utf-8", newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_public_tsv_is_read_as_its_own_code_wrote_it(end: str, tmp_path: Path) -> None:
    """Six columns, ended by CRLF, as Python's csv writes them; the last line may lack its end."""
    pictures = [some_regions(id, count, words=False) for id, count in (("150367", 36), ("1", 12), ("2", 1))]
    path = tsv(tmp_path / "trainval.tsv", [fields_of(picture) for picture in pictures], end=end)
    path.write_bytes(path.read_bytes().removesuffix(end.encode()))
    store = bring_in(path, tmp_path / "root")
    assert store.ids == ("150367", "1", "2")
    for picture in pictures:
        assert_same(store.picture(picture.id), picture)


def test_the_ten_columns_of_lxmert_are_told_from_those_of_bottom_up_attention(tmp_path: Path) -> None:
    names = ["image_id", "image_h", "image_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"]
    names += ["num_boxes", "boxes", "features"]
    picture = some_regions("COCO_val2014_000000000042", 36)
    path = tsv(tmp_path / "val.tsv", [fields_of(picture)], names, "\n")
    assert_same(bring_in(path, tmp_path / "root").picture(picture.id), picture)


GOOD = fields_of(some_regions("a", 3, words=False))
OTHER = fields_of(some_regions("b", 2, words=False))
CUT = "\t".join(OTHER.values())[:-20]
BAD_LINES: dict[str, tuple[str, str]] = {
    "cut within base64": (CUT, r"line 2: features has \d+ bytes"),
    "cut within a column": ("\t".join(list(OTHER.values())[:5]), r"line 2: it has 5 columns, not 6: it was cut off"),
    "an empty line": ("", "line 2: it has 1 columns"),
    "no number": ("\t".join((OTHER | {"image_w": "wide"}).values()), "line 2: image_w is b'wide', no number"),
    "a negative number": ("\t".join((OTHER | {"num_boxes": "-2"}).values()), "line 2: num_boxes is b'-2', no number"),
    "a huge number": ("\t".join((OTHER | {"num_boxes": "9" * 4301}).values()), "line 2: num_boxes is b'999"),
    "too many boxes": ("\t".join((OTHER | {"num_boxes": "3"}).values()), "line 2: boxes has 32 bytes, not the 48 of 3"),
    "no base64": ("\t".join((OTHER | {"boxes": "?" * 43 + "="}).values()), "line 2: boxes is no base64"),
    "another width": (
        "\t".join((OTHER | {"features": b64(np.ones((2, 5)), "f4")}).values()),
        "line 2: its features have 5 numbers, those above 4",
    ),
    "NaN": ("\t".join((OTHER | {"features": b64([[np.nan] * 4] * 2, "f4")}).values()), "regions of 'b' have .* NaN"),
    "an infinite box": ("\t".join((OTHER | {"boxes": b64([[np.inf] * 4] * 2, "f4")}).values()), "of 'b' have .* NaN"),
    "no text": ("\udcff\t" + "\t".join(list(OTHER.values())[1:]), "line 2: .*utf-8"),
    "twice": ("\t".join(GOOD.values()), "id 'a' is there twice"),
}


@pytest.mark.parametrize("fault", BAD_LINES)
def test_a_bad_line_is_refused_by_its_number(fault: str, tmp_path: Path) -> None:
    line, said = BAD_LINES[fault]
    path = tmp_path / "x.tsv"
    path.write_bytes(("\t".join(GOOD.values()) + "\n" + line + "\n").encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=said):
        bring_in(path, tmp_path / "root")


@pytest.mark.parametrize("data", [b"", b"a\tb\tc\n", b"\x00" * 1000])
def test_what_is_no_tsv_of_regions_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(data)
    with pytest.raises(UserError, match=r"has no regions|columns"):
        open_regions(tmp_path / "x.tsv")


def test_a_part_of_a_tsv_is_one_and_no_other_file_of_such_a_name(tmp_path: Path) -> None:
    """Public ones are in parts; an array beside a .tsv may be called after it."""
    path = tsv(tmp_path / "test2014.tsv.0", [fields_of(picture) for picture in MANY if len(picture.boxes_K4)])
    source = open_regions(path)
    assert source is not None
    assert len(source.ids) == 3
    for name in ("x.tsv.npy", "x.tsv.gz", "x.tsv.0.bak"):
        assert open_regions(path.rename(tmp_path / name)) is None
        path = tmp_path / name


def test_a_large_tsv_is_never_held_as_a_whole(tmp_path: Path) -> None:
    wide = PictureRegions("x", np.ones((36, 4), "f4"), np.ones((36, 2048), "f4"), (640, 480))
    fields = fields_of(wide)
    path = tsv(tmp_path / "x.tsv", [fields | {"image_id": str(n)} for n in range(120)])
    tracemalloc.start()
    try:
        bring_in(path, tmp_path / "root")
        assert tracemalloc.get_traced_memory()[1] < 20e6 < path.stat().st_size / 2
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------------------------------------------------------- others


def npz(folder: Path, change: dict[str, Any] | None = None) -> Path:
    folder.mkdir()
    x, bbox = np.ones((3, 4), "f4"), np.ones((3, 4), "f4")
    arrays: dict[str, Any] = {"x": x, "bbox": bbox, "num_bbox": 3, "image_h": 48, "image_w": 64}
    np.savez_compressed(folder / "a.npz", **arrays | (change or {}))
    return folder


def info(**change: Any) -> Any:
    found = {"image_id": "a", "objects_id": np.array([2, 0, 1]), "objects_conf": np.array([0.5, 0.25, 1], "f4")}
    return np.array(found | change, object)


def test_words_of_milvlg_are_read_from_their_pickle(tmp_path: Path) -> None:
    store = bring_in(npz(tmp_path / "f", {"info": info(num_boxes=np.int64(3))}), tmp_path / "root")
    classes = store.classes("a")
    assert classes is not None
    assert (classes.ids_K.tolist(), classes.scores_K.tolist()) == ([2, 0, 1], [0.5, 0.25, 1])
    assert (store.attributes("a"), store.size("a")) == (None, (64, 48))


BAD_NPZ: dict[str, tuple[dict[str, Any], str]] = {
    "code in info": ({"info": np.array({"objects_id": Evil()}, object)}, "holds other objects than arrays"),
    "code in x": ({"x": np.array([Evil()], object)}, "it holds pickled objects, which are never read"),
    "info without scores": ({"info": np.array({"objects_id": np.zeros(3, int)}, object)}, "objects_conf"),
    "too few words": ({"info": info(objects_id=np.array([1]))}, "not as many boxes or words as features"),
    "words as text": ({"info": info(objects_id=np.array(["a", "b", "c"]))}, "an array of 'U1', not of numbers"),
    "no dict": ({"info": np.array([1, 2])}, "a.npz cannot be read: it holds no objects"),
    "a list": ({"info": np.array([1, None])}, "a.npz cannot be read: info is no dict"),
    "too few boxes": ({"bbox": np.ones((2, 4))}, r"x is \(3, 4\) and bbox \(2, 4\)"),
    "NaN": ({"x": np.full((3, 4), np.nan, "f4")}, "regions of 'a' have numbers that are NaN"),
    "two widths": ({"image_w": np.array([64, 65])}, r"image_w is no number of pixels, but \(2,\) int64: \[64 65\]"),
    "a width as text": ({"image_w": np.array("wide")}, "a.npz cannot be read: image_w is no number of pixels"),
    "an endless height": ({"image_h": np.float64("inf")}, "image_h is no number of pixels"),
    "a huge height": ({"image_h": 2**40}, "image_h is no number of pixels"),
}


@pytest.mark.parametrize("fault", BAD_NPZ)
def test_a_bad_npz_is_refused(fault: str, tmp_path: Path) -> None:
    change, said = BAD_NPZ[fault]
    with pytest.raises(UserError, match=said):
        bring_in(npz(tmp_path / "f", change), tmp_path / "root")


@pytest.mark.parametrize("side", ["image_w", "image_h"])
def test_one_side_of_a_picture_says_nothing_of_its_size(side: str, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    np.savez(tmp_path / "f/a.npz", x=np.ones((3, 4), "f4"), bbox=np.ones((3, 4), "f4"), **{side: 64})
    with pytest.raises(UserError, match=f"a.npz cannot be read: it has {side} alone: give image_w and image_h, or nei"):
        bring_in(tmp_path / "f", tmp_path / "root")


def test_scan_arrays_have_a_row_a_caption_or_a_row_a_picture(tmp_path: Path) -> None:
    features, boxes = np.arange(2 * 36 * 4, dtype="f4").reshape(2, 36, 4) + 1, np.ones((2, 36, 4), "f4")
    (tmp_path / "test_ids.txt").write_text("17\n9\n")
    sizes = np.array([{"image_w": 64, "image_h": 48}, {"image_w": 50, "image_h": 60}], object)
    for number, copies in enumerate((1, 5)):
        np.save(tmp_path / "test_ims.npy", np.repeat(features, copies, axis=0))
        np.save(tmp_path / "test_ims_bbx.npy", np.repeat(boxes, copies, axis=0))
        np.save(tmp_path / "test_ims_size.npy", np.repeat(sizes, copies), allow_pickle=True)
        store = bring_in(tmp_path / "test_ims.npy", tmp_path / f"root{number}")
        np.testing.assert_array_equal(store.features("9"), features[1])
        assert (store.size("9"), store.boxes("17").shape) == ((50, 60), (36, 4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: np.save(folder / "x_ims_bbx.npy", np.ones((2, 5, 4), "f4")),
            r"the \(2, 5, 4\) of x_ims_bbx.npy",
        ),
        (lambda folder: (folder / "x_ims_bbx.npy").write_bytes(PICKLED), "it holds pickled objects"),
        (lambda folder: (folder / "x_ims_size.npy").write_bytes(PICKLED), "holds other objects than arrays"),
        (lambda folder: (folder / "x_ims_size.npy").write_bytes(npy_of(np.ones(2))), "x_ims_size.npy cannot be read"),
        (lambda folder: (folder / "x_ims_size.npy").write_bytes(pickle.dumps(Evil())), "x_ims_size.npy cannot be read"),
    ],
)
def test_bad_files_beside_a_scan_array_are_refused(change: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x_ims.npy", np.ones((2, 3, 4), "f4"))
    np.save(tmp_path / "x_ims_bbx.npy", np.ones((2, 3, 4), "f4"))
    (tmp_path / "ids.txt").write_text("a\nb\n")
    change(tmp_path)
    with pytest.raises(UserError, match=said):
        open_regions(tmp_path / "x_ims.npy")


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("boxes", np.ones((8, 4), "f4"), r"boxes is \(8, 4\), but there are 9 regions"),
        ("sizes", np.ones((3, 2), "i4"), "offsets or sizes are not those of its 4 pictures"),
        ("offsets", np.array([0, 3, 2, 8, 9]), "its offsets must rise from 0 to the 9 rows of features"),
        ("offsets", np.array([0, 3, 3, 8, 12]), "they begin with 0 and end with 12"),
        ("class_ids", np.zeros(7, "i4"), r"class_ids is \(7,\), but there are 9"),
    ],
)
def test_a_bad_hdf5_is_refused(name: str, values: Any, said: str, tmp_path: Path) -> None:
    export(make_store(tmp_path / "made", MANY), tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        del file[name]
        file[name] = values
    with pytest.raises(UserError, match=said):
        open_regions(tmp_path / "x.h5")


def test_features_without_boxes_are_no_regions(tmp_path: Path) -> None:
    np.save(tmp_path / "x_ims.npy", np.ones((2, 3, 4), "f4"))
    assert open_regions(tmp_path / "x_ims.npy") is None
    assert open_regions(tmp_path) is None


def test_the_commands_take_and_give_regions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tsv(tmp_path / "trainval_36.tsv", [fields_of(picture) for picture in MANY if len(picture.boxes_K4)])
    root, out = str(tmp_path / "root"), tmp_path / "given"
    assert main(["import", str(path), "--root", root, "--name", "regions36", "--serial", "--json"]) == 0
    where = json.loads(capsys.readouterr().out)["path"]
    assert main(["export", where, str(out), "--quiet"]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["7.npz", "Straße-日本.npz", "a.npz"]


def test_regions_of_others_become_captions_of_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_root(tmp_path, items=12)
    seen = [replace(some_regions(item_id(number), 3), id=item_id(number)) for number in range(4)]
    path = tsv(tmp_path / "vg.tsv", [fields_of(picture) for picture in [*seen, some_regions("stranger", 2)]])
    words = {"object": "cat,kitten\nBlue Car\ndog\ntree\nsky\nroad", "attribute": "red\nold\nwet\nbig\nnew\nlow"}
    for name, text in words.items():
        (tmp_path / f"{name}.txt").write_text(text)
    given = [part for name in words for part in (f"--{name}-words", str(tmp_path / f"{name}.txt"))]
    command = ["import", str(path), "--root", root, "--name", "vg36", "--serial", "--json"]
    assert main([*command, *given, "--semantics", "pictures"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["captions"], told["not_in_the_corpus"]) == (len(seen), 1)
    (semantics,) = find(root, "semantics")
    assert {caption.item for caption in read_rows(semantics, Caption)} == {picture.id for picture in seen}
    (records,) = find(root, "records")
    captions = captions_by_item(records, View("pictures", "toy/train", text="semantics"))
    texts = captions.grouped(captions.texts)
    store = RegionStore(told["path"])
    for picture in seen:
        expected = semantics_of(store.words, store.classes(picture.id), store.attributes(picture.id))
        assert texts.get(picture.id, [expected]) == [expected]
        assert expected
    assert main([*command[:-1], *given, "--semantics", "pictures"]) == 0
    assert "4 captions by semantics; 1 pictures are not in the corpus" in capsys.readouterr().out
    assert main([*command, "--semantics", "pictures"]) == 1
    assert "--object-words" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["cat\n\ndog\n", "\ncat\n", "\ufeff\ncat", "cat\r\n \r\ndog\r\n"])
def test_a_blank_line_among_words_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = tsv(tmp_path / "vg.tsv", [fields_of(some_regions("a", 2))]), tmp_path / "words.txt"
    words.write_bytes(text.encode())
    asked = ["import", str(path), "--root", str(tmp_path / "root"), "--name", "x", "--object-words", str(words)]
    assert main([*asked, "--quiet"]) == 1
    line = 1 if "cat" not in text.splitlines()[0] else 2
    assert capsys.readouterr().err.startswith(f"xmodal: {words}:{line} is blank: give it a name, or remove it")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("kind", ["object", "attribute"])
def test_too_few_words_are_refused_before_anything_is_written(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = some_regions("a", 2)
    for named in (seen.classes, seen.attributes):
        assert named
        named.ids_K[:] = 1
    path, words = tsv(tmp_path / "vg.tsv", [fields_of(seen)]), tmp_path / "words.txt"
    words.write_text("cat\n")
    asked = ["import", str(path), "--root", str(tmp_path / "root"), "--name", "x", f"--{kind}-words", str(words)]
    assert main([*asked, "--serial", "--quiet"]) == 1
    told = f"'a' has {kind} 1, counted from 0, of which --{kind}-words has 1: give the words of its detector"
    assert told in capsys.readouterr().err
    assert not list((tmp_path / "root").glob("x/*"))
    words.write_text("cat\ndog\n")
    assert main([*asked, "--serial", "--quiet"]) == 0


@pytest.mark.parametrize("text", ["cat\ndog\ncat\n", "cat\ndog, cat"])
def test_a_word_that_is_there_twice_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = tsv(tmp_path / "vg.tsv", [fields_of(some_regions("a", 2))]), tmp_path / "words.txt"
    words.write_text(text)
    asked = ["import", str(path), "--root", str(tmp_path / "root"), "--name", "x", "--object-words", str(words)]
    assert main([*asked, "--quiet"]) == 1
    line = 2 if "," in text else 3
    assert f"words.txt:{line}: the name 'cat' is there a second time" in capsys.readouterr().err


def test_regions_without_an_area_are_no_words_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, seen = make_root(tmp_path, items=12), replace(some_regions(item_id(1), 3), id=item_id(1))
    seen.boxes_K4[1, 2] = seen.boxes_K4[1, 0]
    path = tsv(tmp_path / "vg.tsv", [fields_of(seen)])
    (tmp_path / "words.txt").write_text("cat\ndog\nsky\n")
    words = [f"--{name}-words={tmp_path / 'words.txt'}" for name in ("object", "attribute")]
    asked = ["import", str(path), "--root", root, "--name", "x", *words, "--semantics", "pictures", "--serial"]
    assert main(asked) == 0
    assert "1 captions by semantics; 1 regions without an area are left out" in capsys.readouterr().out


def test_no_array_holds_regions_but_those_of_scan(tmp_path: Path) -> None:
    where = make_store(tmp_path / "made", [some_regions("a", 3)])
    with pytest.raises(
        UserError, match=r"ragged, which no \.npy can be: export to x_ims\.npy, x\.h5, x\.tar or a folder"
    ):
        export(where, tmp_path / "r.npy")


@pytest.mark.parametrize("out", ["folder", "x.tar"])
def test_ids_with_slashes_go_into_folders_below_and_come_back(out: str, tmp_path: Path) -> None:
    pictures = [replace(some_regions(id, 3), id=id) for id in ("a", "b/c", "b/d/e")]
    export(make_store(tmp_path / "made", pictures), tmp_path / out)
    if out == "folder":
        assert (tmp_path / "folder/b/d/e.npz").is_file()
        store = bring_in(tmp_path / out, tmp_path / "root")
        for picture in pictures:
            assert_same(store.picture(picture.id), picture)
        return
    about = import_features(
        open_storage(str(tmp_path / "root")), "mine", open_foreign(tmp_path / out), (), serial, QUIET
    )
    features = FeatureStore(about["path"])
    assert features.ids == ("a", "b/c", "b/d/e")
    for picture in pictures:
        np.testing.assert_array_equal(features.read([picture.id])[0], picture.features_KD)


def test_semantics_of_no_item_of_a_corpus_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_root(tmp_path, items=12)
    path = tsv(tmp_path / "vg.tsv", [fields_of(some_regions("stranger", 2))])
    (tmp_path / "words.txt").write_text("\n".join("abcdefgh"))
    words = [f"--{name}-words={tmp_path / 'words.txt'}" for name in ("object", "attribute")]
    assert (
        main(["import", str(path), "--root", root, "--name", "x", *words, "--semantics", "pictures", "--serial"]) == 1
    )
    assert "pictures has no item 'stranger'" in capsys.readouterr().err
