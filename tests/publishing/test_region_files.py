"""Files of regions by others are read as their own code wrote them; hostile and truncated ones are refused."""

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.detection.test_region_store import assert_same, make_store, some_regions
from tests.features.test_exchange import PICKLED, Evil, npy_of
from tests.publishing.region_files import MANY, b64, bring_in, export, fields_of, tsv
from xmodal.detection.region_formats import open_regions
from xmodal.detection.region_store import PictureRegions
from xmodal.errors import UserError


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
