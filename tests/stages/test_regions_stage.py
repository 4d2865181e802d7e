"""The regions stage: what a detector sees of each picture, for any workers, kills, and pictures that came or went."""

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipelines.engine.building import build, pending
from pipelines.engine.commits import UnitAttempt
from pipelines.engine.stage import Stage
from pipelines.stages.regions import RegionsConfig
from tests.conftest import tree_digest
from tests.made import made
from tests.records.test_sparse import tables
from tests.stages.test_features_stage import interrupted
from tests.stages.test_resnet_stage import backwards, by_turns, sealed
from tests.stages.test_resnet_stage import storage as storage
from tests.toy_detector import ToyDetector
from tests.toy_detector import toy_detector as toy_detector
from xmodal.detection.region_arrays import Regions
from xmodal.detection.region_formats import RegionsToWrite, writer_for
from xmodal.detection.region_store import PictureRegions, RegionStore
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.records.tables import Item, Region
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage, open_storage

RED, GREEN, BLUE, WHITE = (200, 0, 0), (0, 100, 0), (0, 0, 60), (255, 255, 255)
TOY = RegionsConfig("toy", "random:0", fewest=1, dtype="float32", items_per_shard=2)
Seen = list[tuple[int, ...]]

pytestmark = pytest.mark.usefixtures("toy_detector")


def picture(*quarters: tuple[int, int, int], size: tuple[int, int] = (32, 24), turn: int = 1) -> bytes:
    """A PNG of four quarters; `turn` is its EXIF orientation."""
    whole, (width, height) = Image.new("RGB", size), size
    for number, colour in enumerate(quarters):
        left, top = number % 2 * width // 2, number // 2 * height // 2
        whole.paste(colour, (left, top, left + width // 2, top + height // 2))
    exif, data = Image.Exif(), io.BytesIO()
    exif[0x0112] = turn
    whole.save(data, "PNG", exif=exif)
    return data.getvalue()


PICTURES: Mapping[str, bytes | None] = {
    "a.png": picture(RED, GREEN, BLUE, WHITE),
    "b.png": picture(GREEN, WHITE, WHITE, WHITE),
    "blank.png": picture(WHITE, WHITE, WHITE, WHITE),
    "broken.png": b"no picture",
    "cut.png": picture(RED, RED, BLUE, BLUE, size=(320, 240))[:-300],
    "gone.png": None,
    "z.png": picture(BLUE, BLUE, BLUE, BLUE),
}


def regions(
    media: Output, config: RegionsConfig = TOY, files: Any = None, names: Any = PICTURES, **outputs: Any
) -> Stage[Any, Any]:
    return made(
        "regions", config, [(name.partition(".")[0], name) for name in sorted(names)], files, media=media, **outputs
    )


def test_rows_and_tables_say_what_the_detector_saw(storage: Storage) -> None:
    output = build(regions(sealed(storage, PICTURES)), storage)
    store = RegionStore(output)
    seen = store.picture("a")
    np.testing.assert_array_equal(seen.boxes_K4, [[0, 0, 16, 12], [16, 0, 32, 12], [0, 12, 16, 24]])
    np.testing.assert_array_equal(seen.features_KD, [RED, GREEN, BLUE])
    assert seen.size == (32, 24)
    assert seen.classes
    assert seen.attributes
    assert [store.words.classes[number] for number in seen.classes.ids_K] == ["red", "green", "blue"]
    np.testing.assert_allclose(seen.classes.scores_K, np.array([200, 100, 60]) / 255)
    assert [store.words.attributes[number] for number in seen.attributes.ids_K] == ["dark"] * 3
    assert store.absent == {"blank", "broken", "gone"}
    assert output.totals["failures"] == {"absent": 1, "no_regions": 1, "truncated": 1, "unreadable": 1}
    assert output.totals["counts"] == {"pictures": 4, "regions": 3 + 1 + 4 + len(store.boxes("cut"))}
    assert "cut" in store.ids
    told = store.store.provenance
    assert told["network"] == "toy"
    assert {"boxes": "detected", "fewest": 1, "most": 100, "threshold": 0.2, "suppression": 0.3}.items() <= told.items()


def test_selection_and_precision_are_settings(storage: Storage) -> None:
    media = sealed(storage, PICTURES)
    wanted = {"fewest": 2, "most": 2, "dtype": "float16"}
    store = RegionStore(build(regions(media, replace(TOY, **wanted)), storage))
    np.testing.assert_array_equal(store.features("a"), np.array([RED, GREEN], np.float16))
    assert len(store.features("b")) == 1, "a picture may have fewer"
    sure = RegionStore(build(regions(media, replace(TOY, threshold=0.7)), storage))
    np.testing.assert_array_equal(sure.features("a"), [RED])
    assert len({regions(media, replace(TOY, **{name: value})).identity for name, value in wanted.items()}) == 3
    none = build(regions(media, replace(TOY, fewest=0, threshold=0.5)), storage)
    assert RegionStore(none).absent == {"b", "blank", "broken", "gone", "z"}, "one without a sure region has none"


def test_pictures_stand_upright_and_keep_their_size(storage: Storage, toy_detector: Seen) -> None:
    turned = {"a.png": picture(RED, WHITE, WHITE, WHITE, size=(40, 20), turn=6)}
    store = RegionStore(build(regions(sealed(storage, turned), names=turned), storage))
    assert toy_detector == [(40, 20, 3)]
    assert store.size("a") == (20, 40)
    np.testing.assert_array_equal(store.boxes("a"), [[10, 0, 20, 20]])


def test_workers_their_order_and_interruptions_change_no_byte(tmp_path: Path) -> None:
    trees = set()
    for number, run in enumerate((None, backwards, by_turns, interrupted)):
        storage = open_storage(str(tmp_path / str(number)))
        stage = regions(sealed(storage, PICTURES))
        if run:
            with suppress(KeyboardInterrupt):
                build(stage, storage, run)
            assert (pending(stage, storage)[1] > 0) is (run is interrupted)
        build(stage, storage)
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def test_a_slow_detector_says_how_far_it_is_within_a_unit(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(UnitAttempt, "say", lambda attempt, text: said.append(text))
    build(regions(sealed(storage, PICTURES), replace(TOY, items_per_shard=4)), storage)
    assert len(said) == len(PICTURES) == 7
    assert [text.partition(" pictures")[0] for text in said[2:6]] == [
        f"regions: {n}" for n in ("3 of 4", "4 of 4", "1 of 3", "2 of 3")
    ]


def test_pictures_that_stay_are_not_looked_at_again(storage: Storage, tmp_path: Path, toy_detector: Seen) -> None:
    build(regions(sealed(storage, PICTURES)), storage)
    toy_detector.clear()
    grown = {"0.png": picture(GREEN, GREEN, WHITE, WHITE), **PICTURES, "b2.png": PICTURES["b.png"]}
    del grown["a.png"]
    output = build(regions(sealed(storage, grown), names=grown), storage)
    assert len(toy_detector) == 1
    fresh = open_storage(str(tmp_path / "fresh"))
    again = build(regions(sealed(fresh, grown), names=grown), fresh)
    assert tree_digest(output.where) == tree_digest(again.where)
    assert output.totals["failures"] == {"absent": 1, "no_regions": 1, "truncated": 1, "unreadable": 1}


def test_numbers_that_are_not_finite_are_failures(storage: Storage, tmp_path: Path) -> None:
    """Half precision ends at 65,504."""
    files = {"detector": tmp_path / "weights"}
    files["detector"].write_bytes((258).to_bytes(2))
    bright = {"a.png": picture(WHITE, (249, 249, 255), WHITE, WHITE), "b.png": PICTURES["b.png"]}
    media = sealed(storage, bright)
    wide, half = (replace(TOY, dtype=dtype) for dtype in ("float32", "float16"))
    assert not RegionStore(build(regions(media, wide, files, bright), storage)).absent
    output = build(regions(media, half, files, bright), storage)
    assert RegionStore(output).absent == {"a"}
    assert output.totals["failures"] == {"not_finite": 1}
    assert output.config["weights"].startswith("sha256:")


def test_scores_that_are_not_finite_are_no_picture_without_things(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = ToyDetector.extract

    def broken(self: ToyDetector, images: Any, boxes: Any = None) -> list[Regions]:
        return [replace(found, class_scores_KC=found.class_scores_KC * np.nan) for found in look(self, images, boxes)]

    monkeypatch.setattr(ToyDetector, "extract", broken)
    pictures = {name: PICTURES[name] for name in ("a.png", "blank.png")}
    output = build(regions(sealed(storage, pictures), names=pictures), storage)
    assert output.totals["failures"] == {"not_finite": 2}, "of no picture can it be said that nothing is in it"


def test_a_network_that_drops_its_own_broken_candidates_is_found_out(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = ToyDetector.extract

    def broken(self: ToyDetector, images: Any, boxes: Any = None) -> list[Regions]:
        given = [replace(found, features_KD=found.features_KD * np.nan) for found in look(self, images, boxes)]
        return [found[np.arange(0)] for found in given] if boxes is None else given

    monkeypatch.setattr(ToyDetector, "extract", broken)
    pictures = {"a.png": PICTURES["a.png"]}
    output = build(regions(sealed(storage, pictures), names=pictures), storage)
    assert output.totals["failures"] == {"not_finite": 1}


def test_a_picture_that_a_detector_cannot_resize_is_a_failure_alone(storage: Storage, tmp_path: Path) -> None:
    pictures = {"a.png": PICTURES["a.png"], "thin.png": picture(RED, RED, BLUE, BLUE, size=(2, 3000))}
    config = replace(TOY, detector="torchvision/fasterrcnn_mobilenet_v3_large_320_fpn", boxes="file")
    files = table_of_boxes(tmp_path / "boxes.parquet", a=[0, 0, 16, 12], thin=[0, 0, 2, 9])
    output = build(regions(sealed(storage, pictures), config, files, pictures), storage)
    assert RegionStore(output).absent == {"thin"}
    assert output.totals["failures"] == {"unreadable": 1}


# -------------------------------------------------------------------------------------------------------- given boxes


def test_annotated_boxes_are_looked_at_in_their_order(storage: Storage) -> None:
    media = sealed(storage, PICTURES)
    rows = [*(Item(name.partition(".")[0], name) for name in sorted(PICTURES))]
    boxes = [("a", 0, 12, 16, 24), ("a", 0, 0, 40, 12), ("z", 1, 1, 2, 2), ("a", 31, 23, 31, 23)]
    given = [Region(f"r{number}", item, None, *sides) for number, (item, *sides) in enumerate(boxes)]
    scene = Region("scene", "b")
    records = tables(Path(storage.url), "boxed", iter([*rows, *given, scene]))  # type: ignore[list-item]
    config = replace(TOY, boxes="records", most=1, threshold=1.0)
    output = build(regions(media, config, records=records), storage)
    store = RegionStore(output)
    np.testing.assert_array_equal(store.boxes("a"), [[0, 12, 16, 24], [0, 0, 32, 12]])
    np.testing.assert_array_equal(store.features("a"), [BLUE, np.mean([RED, GREEN], axis=0)])
    assert store.absent == {"b", "blank", "broken", "cut", "gone"}
    assert "no boxes are given for it" in {why for unit in output.units() for *_, why in unit.failures}


def table_of_boxes(file: Path, **boxes: list[float]) -> dict[str, Path]:
    pq.write_table(pa.table({"id": [*boxes], "boxes": [*boxes.values()]}), file)
    return {"boxes": file}


def test_boxes_of_a_file_decide_their_pictures_alone(storage: Storage, tmp_path: Path, toy_detector: Seen) -> None:
    media, config = sealed(storage, PICTURES), replace(TOY, boxes="file")
    files = table_of_boxes(tmp_path / "boxes.parquet", a=[0, 0, 16, 12], z=[0, 0, 8, 8, 8, 8, 16, 16])
    before = regions(media, config, files)
    store = RegionStore(build(before, storage))
    assert [len(store.boxes(id)) for id in ("a", "z")] == [1, 2]
    toy_detector.clear()
    table_of_boxes(tmp_path / "boxes.parquet", a=[16, 0, 32, 12], z=[0, 0, 8, 8, 8, 8, 16, 16])
    after = regions(media, config, files)
    assert after.identity != before.identity
    np.testing.assert_array_equal(RegionStore(build(after, storage)).features("a"), [GREEN])
    assert len(toy_detector) == 1, "the other picture's boxes are those of before"


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ({"a": [1.0, 2.0, 3.0]}, "the boxes of 'a' are not four finite numbers each"),
        ({"a": [1.0, 2.0, 3.0, float("nan")]}, "the boxes of 'a' are not four finite numbers each"),
        ({"a": [0, 0, 9, 9, 20.0, 5, 8, 30]}, "box 2 of 'a', 20, 5, 8, 30, ends before it begins: give left"),
        ({"a": [0.0, 9, 9, 8]}, "box 1 of 'a', 0, 9, 9, 8, ends before it begins"),
        ({}, "boxes.parquet has no boxes: give a line a box: the picture's id, left, top, right and bottom"),
    ],
)
def test_a_file_without_usable_boxes_is_refused(boxes: Any, said: str, storage: Storage, tmp_path: Path) -> None:
    files = table_of_boxes(tmp_path / "boxes.parquet", **boxes)
    if not boxes:
        files["boxes"].write_text("id,boxes")
    with pytest.raises(UserError, match=said):
        regions(sealed(storage, PICTURES), replace(TOY, boxes="file"), files)


def test_lines_of_boxes_without_tabs_are_told_what_lines_are(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "boxes.tsv").write_text("a 1 2 30 20\n")
    with pytest.raises(
        UserError, match=r"boxes\.tsv, line 1: .*; boxes alone are a line a box: the picture's id, left, "
    ):
        regions(sealed(storage, PICTURES), replace(TOY, boxes="file"), {"boxes": tmp_path / "boxes.tsv"})


def test_boxes_without_area_in_their_picture_are_left_out_and_counted(storage: Storage, tmp_path: Path) -> None:
    beside = [100, 100, 120, 120, 32, 0, 40, 9, -9, 0, 0, 9, 5, 5, 5, 9, 1e39, 0, 1e39, 9]
    files = table_of_boxes(tmp_path / "boxes.parquet", a=[*beside, 16, 0, 1e39, 12], z=beside)
    output = build(regions(sealed(storage, PICTURES), replace(TOY, boxes="file"), files), storage)
    store = RegionStore(output)
    np.testing.assert_array_equal(store.boxes("a"), [[16, 0, 32, 12]])
    assert "z" in store.absent
    assert output.totals["counts"] == {"pictures": 1, "regions": 1, "boxes without area in their picture": 5}
    assert "no box has an area in the picture of 32 x 24 pixels" in {
        why for unit in output.units() for *_, why in unit.failures
    }


@pytest.mark.parametrize("size", [(32, 24), (16, 48), None])
def test_boxes_of_a_file_of_regions_are_scaled_to_the_picture(
    size: tuple[int, int] | None, storage: Storage, tmp_path: Path
) -> None:
    """The picture is of 32 x 24 pixels, the box its upper right quarter."""
    boxes = np.array([[8, 0, 16, 24] if size == (16, 48) else [16, 0, 32, 12]], np.float32)
    seen = PictureRegions("a", boxes, np.zeros((1, 4), np.float32), size)
    write = writer_for(file := tmp_path / "seen.h5")
    assert write
    write(file, RegionsToWrite([seen], ["a"], np.array([1]), 4, "float32", False, False))
    media = sealed(storage, {"a.png": PICTURES["a.png"]})
    store = RegionStore(build(regions(media, replace(TOY, boxes="file"), {"boxes": file}), storage))
    np.testing.assert_array_equal(store.boxes("a"), [[16, 0, 32, 12]])
    np.testing.assert_array_equal(store.features("a"), [GREEN])


def test_selection_follows_the_detector_where_none_is_set(storage: Storage) -> None:
    media = sealed(storage, PICTURES)
    usual = [regions(media, RegionsConfig(name, "random:0")).config for name in ("bottom_up", "small")]
    assert [(config.threshold, config.fewest, config.most) for config in usual] == [(0.2, 10, 100), (0.5, 1, 100)]
    assert regions(media, RegionsConfig("small", "random:0", most=4)).config.most == 4
    assert regions(media, RegionsConfig("bottom_up", "random:0", most=4)).config.fewest == 4
    told = RegionsConfig("small", "random:0", threshold=0.5, fewest=1)
    assert regions(media, told).identity == regions(media, RegionsConfig("small", "random:0")).identity


def test_boxes_are_also_lines_of_text(storage: Storage, tmp_path: Path) -> None:
    file = tmp_path / "boxes.txt"
    file.write_text("a\t16\t0\t32\t12\nz\t0\t0\t8\t8\na\t0\t0\t16\t12\n")
    config = replace(TOY, boxes="file")
    store = RegionStore(build(regions(sealed(storage, PICTURES), config, {"boxes": file}), storage))
    np.testing.assert_array_equal(store.features("a"), [GREEN, RED])
    assert len(store.boxes("z")) == 1
    file.write_text("a\t16\t0\t32\tx\n")
    with pytest.raises(UserError, match=r"boxes\.txt:1 is not id, left, top, right, bottom"):
        regions(sealed(storage, PICTURES), config, {"boxes": file})


def test_what_cannot_be_is_refused_before_anything_is_fetched(storage: Storage) -> None:
    media = sealed(storage, PICTURES)
    with pytest.raises(UserError, match="no detector 'tyo'; there are: bottom_up"):
        regions(media, replace(TOY, detector="tyo"))
    with pytest.raises(UserError, match="boxes=file needs the file: --file boxes=PATH"):
        regions(media, replace(TOY, boxes="file"))
    with pytest.raises(UserError, match="a folder has no annotated boxes"):
        regions(media, replace(TOY, boxes="records"))
    for config in (TOY, replace(TOY, boxes="records")):
        with pytest.raises(UserError, match=f"boxes=PATH is not read with boxes={config.boxes}: set boxes=file"):
            regions(media, config, {"boxes": Path("boxes.tsv")})
    words = {"object_words": Path("words.txt"), "attribute_words": Path("more.txt")}
    with pytest.raises(UserError, match="detector toy does not read --file object_words=PATH and --file attribute_wor"):
        regions(media, TOY, words)
    with pytest.raises(UserError, match="detector small does not read --file object_words=PATH: leave that out"):
        regions(media, replace(TOY, detector="small"), {"object_words": Path("words.txt")})
    for wrong in ({"fewest": 37, "most": 36}, {"threshold": 2}, {"fewest": -1}, {"most": 0}, {"items_per_shard": 0}):
        with pytest.raises(ValueError, match=r"fewest|threshold|most|at least one"):
            replace(TOY, **wrong)


def test_readers_take_regions_as_any_ragged_features(storage: Storage) -> None:
    store = FeatureStore(build(regions(sealed(storage, PICTURES)), storage))
    assert store.lengths(store.rows(["a", "z"])).tolist() == [3, 4]
    assert store.take_padded(store.rows(["a", "b"])).shape == (2, 3, 3)
