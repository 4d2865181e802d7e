"""Regions come in and go out with their boxes, in every format, by function and by command."""

import base64
import csv
import json
from dataclasses import replace
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from pipelines.cli import main
from tests.detection.test_region_store import WORDS, assert_same, make_store, some_regions
from tests.publishing.region_files import FORMATS, MANY, bring_in, export, fields_of, tsv, without_words
from tests.toy_root import item_id, make_root
from xmodal.detection.region_semantics import semantics_of
from xmodal.detection.region_store import RegionStore
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import View
from xmodal.records.tables import Caption, read_rows
from xmodal.records.views import captions_by_item
from xmodal.root.outputs import find


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
    np.save(tmp_path / "plain.npy", np.zeros((12, 4), np.float32))
    (tmp_path / "plain_ids.txt").write_text("\n".join(item_id(number) for number in range(12)))
    plain = ["import", str(tmp_path / "plain.npy"), "--root", root, "--name", "plain", "--semantics", "pictures"]
    assert main([*plain, *given, "--quiet"]) == 1
    assert "plain.npy has no regions to make --semantics of" in capsys.readouterr().err
    assert (len([*find(root, "vg36")]), len([*find(root, "plain")])) == (1, 0), "refused before anything is imported"


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


def test_imports_are_told_apart_by_their_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = tsv(tmp_path / "vg.tsv", [fields_of(some_regions("a", 2))]), tmp_path / "words.txt"
    asked = ["import", str(path), "--root", str(tmp_path / "root"), "--name", "x", "--object-words", str(words)]
    for text in ("cat\ndog\nsky\n", "road\ndog\nsky\n"):
        words.write_text(text)
        assert main([*asked, "--serial", "--quiet"]) == 0
    assert main(["status", "--root", str(tmp_path / "root")]) == 0
    said = capsys.readouterr().out
    assert "(words=cat,dog,sky)" in said
    assert "(words=road,dog,sky)" in said
    assert "_type" not in said


@pytest.mark.parametrize("text", ["cat\ndog\ncat\n", "cat\ndog, cat"])
def test_a_word_that_is_there_twice_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, words = tsv(tmp_path / "vg.tsv", [fields_of(some_regions("a", 2))]), tmp_path / "words.txt"
    words.write_text(text)
    asked = ["import", str(path), "--root", str(tmp_path / "root"), "--name", "x", "--object-words", str(words)]
    assert main([*asked, "--quiet"]) == 1
    line = 2 if "," in text else 3
    assert f"words.txt:{line}: the name 'cat' is there a second time: give each line its own" in capsys.readouterr().err


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
def test_ids_with_slashes_go_into_folders_below_and_come_back(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = [replace(some_regions(id, 3), id=id) for id in ("a", "b/c", "b/d/e")]
    export(make_store(tmp_path / "made", pictures), tmp_path / out)
    if out == "folder":
        assert (tmp_path / "folder/b/d/e.npz").is_file()
        store = bring_in(tmp_path / out, tmp_path / "root")
        for picture in pictures:
            assert_same(store.picture(picture.id), picture)
        return
    asked = ["import", str(tmp_path / out), "--root", str(tmp_path / "root"), "--name", "mine", "--json", "--quiet"]
    assert main([*asked, "--serial"]) == 0
    features = FeatureStore(json.loads(capsys.readouterr().out)["path"])
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
