"""Regions by commands: of anybody's folder as one store, and drawn on pictures."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.detection.test_region_store import make_store, some_regions
from tests.detectors.bottom_up_checkpoints import CLASSES, port_state, write
from tests.stages.test_regions_stage import BLUE, GREEN, RED, WHITE, picture
from tests.toy_detector import toy_detector as toy_detector
from tests.toy_root import fit, recipe
from tests.toy_root import one_thread as one_thread
from xmodal import detectors
from xmodal.detection.region_store import RegionStore
from xmodal.evaluation.region_pictures import (
    COLUMNS,
    LARGEST,
    LINE,
    PANEL,
    SIDE,
    attention_regions,
    draw_boxes,
    free_corner,
    region_sheet,
)
from xmodal.media.images import UnreadableImage
from xmodal.models.a3vse import WEIGHTS, A3VSEConfig
from xmodal.models.dan import DANConfig
from xmodal.models.scan import SCANConfig
from xmodal.recipes import Features, Optimiser, Phase, View
from xmodal.records.tables import Caption, read_rows
from xmodal.root.outputs import Output, find

FIXTURE = Path(__file__).parents[1] / "fixtures/pictures.py"


@pytest.fixture(autouse=True)
def small_is_a_toy(toy_detector: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(detectors.KINDS, "small", detectors.KINDS["toy"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pics/more").mkdir(parents=True)
    (tmp_path / "pics/a.png").write_bytes(picture(RED, GREEN, BLUE, WHITE))
    (tmp_path / "pics/more/b.png").write_bytes(picture(RED, RED, RED, RED))
    (tmp_path / "pics/blank.png").write_bytes(picture(WHITE, WHITE, WHITE, WHITE))
    return tmp_path / "pics"


def test_a_detectors_name_makes_a_store_of_regions(xmodal: Xmodal, folder: Path) -> None:
    said = xmodal("features", folder, "--model", "small-2", "--set=dtype=float32", "--json")
    assert (said.json["items"], list(said.json["absent"]), said.json["ragged"]) == (3, ["blank.png"], True)
    store = RegionStore(folder.parent / "pics-small-2.zarr")
    np.testing.assert_array_equal(store.features("a.png"), [RED, GREEN])
    assert len(store.boxes("more/b.png")) == 2
    again = xmodal("features", folder, "--model", "small-2", "--set=dtype=float32", "--json")
    assert not again.json["built"]
    (folder / "c.png").write_bytes(picture(BLUE, WHITE, WHITE, WHITE))
    xmodal("features", folder, "--model", "small-2", "--set=dtype=float32")
    assert "c.png" in RegionStore(folder.parent / "pics-small-2.zarr").ids


def test_weights_of_a_detector_are_a_file(xmodal: Xmodal, folder: Path) -> None:
    weights = folder.parent / "weights"
    weights.write_bytes(b"\x02")
    features = []
    for number, told in enumerate((["--weights", weights], ["--file", f"detector={weights}"])):
        xmodal("features", folder, "--model", "small-1-3", "--out", f"{number}.zarr", *told)
        features.append(RegionStore(folder.parent / f"{number}.zarr").features("a.png"))
    np.testing.assert_array_equal(features[0], 2 * np.array([RED, GREEN, BLUE], np.float16))
    np.testing.assert_array_equal(*features)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--model", "small-3-2"], "--model small-3-2: fewest, 3, is more than most, 2"),
        (["--model", "small", "--set=boxes=records"], "a folder has no annotated boxes"),
        (["--model", "small", "--set=boxes=file"], "--file boxes=PATH"),
        (["--model", "small", "--file", "gains=x"], "the names are: attribute_words, boxes, detector, object_words"),
        (["--model", "bottom-up-36"], "bottom_up .*file"),
        (["--model", "torchvision/fasterrcnn_resnet18-36"], "no detector torchvision/fasterrcnn_resnet18; there are"),
        (["--model", "torchvision/retinanet_resnet50_fpn"], "retinanet_resnet50_fpn"),
    ],
)
def test_what_a_folder_has_no_regions_by(asked: list[str], said: str, xmodal: Xmodal, folder: Path) -> None:
    assert re.search(said, xmodal("features", folder, *asked).complaint)
    assert [path.name for path in folder.parent.iterdir()] == ["pics"]


def test_boxes_beside_a_picture_of_a_folder_are_counted(xmodal: Xmodal, folder: Path) -> None:
    (folder.parent / "boxes.tsv").write_text("a.png\t0\t0\t9\t9\na.png\t900\t900\t990\t990\n")
    asked = ["features", folder, "--model", "small", "--set=boxes=file", "--file", f"boxes={folder.parent}/boxes.tsv"]
    assert "boxes without an area in their picture: 1, which have no row" in xmodal(*asked).out


def test_a_retry_takes_the_settings_of_what_was_built(
    xmodal: Xmodal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, root = eight_pictures(tmp_path), tmp_path / "root"
    (weights := tmp_path / "weights").write_bytes(b"\x02")
    settings = ["--set=regions.detector=toy", "--set=regions.most=2", "--file", f"detector={weights}"]

    def too_slow(*given: object) -> None:
        failure = UnreadableImage("it takes too long")
        failure.kind = "timeout"
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.engine.picture_decoder.PreparedDecoder.pixels", too_slow)
        xmodal("build", f"{FIXTURE}/semantics", "--root", root, "--raw", raw, *settings)
    (made,) = find(str(root), "regions")
    refused = xmodal("retry", f"{FIXTURE}/regions", "--root", root).complaint
    assert "there is no pictures/regions of these settings and files: give those" in refused
    assert "most=2" in refused
    flags = refused.partition(") by ")[2]
    assert {"regions.detector=toy", "regions.most=2", "detector=PATH"} <= {*flags.split()}
    assert "boxes=PATH" not in flags
    assert Output(made.storage, made.folder).complete, "a refusal leaves everything as it is"
    said = xmodal("retry", f"{FIXTURE}/regions", "--root", root, "--file", f"detector={weights}").out
    assert "regions: 8 of 8 pictures recovered" in said
    assert len(RegionStore(made).boxes("p003")) == 2
    xmodal("build", f"{FIXTURE}/regions", "--root", root, *settings, "--set=regions.threshold=0.3")
    again = ["retry", f"{FIXTURE}/regions", "--root", root, "--set=detector=toy"]
    one = r"\w+ \(threshold=0.[23]\) by --set [^,]* --file detector=PATH"
    assert re.search(rf"there are: {one}, {one}", xmodal(*again).complaint)
    assert "0 of 0 pictures" in xmodal(*again, *settings).out


def test_the_flags_that_a_retry_asks_for_work_as_they_are(xmodal: Xmodal, tmp_path: Path) -> None:
    raw, root, scores = eight_pictures(tmp_path), tmp_path / "root", tmp_path / "places.tsv"
    scores.write_text("id\ttag\tscore\np000.jpg\tbeach\t0.5\n")
    tags = [f"{FIXTURE}/tags", "--root", root]
    build = ["build", *tags, "--raw", raw, "--set=tags.model=torchvision/resnet18", "--set=tags.weights=random:0"]
    assert xmodal(*build, "--file", f"places={scores}").code == 0
    (flags,) = re.findall(r"\) by (.*)", xmodal("retry", *tags).complaint)
    assert flags.split()[-2:] == ["--file", "places=PATH"]
    again = xmodal("retry", *tags, *flags.replace("PATH", str(scores)).split())
    assert "is made of files" in again.complaint, "as it is found, and has no failures that pass"


def test_weights_that_are_refused_leave_nothing_in_the_root(xmodal: Xmodal, tmp_path: Path) -> None:
    raw, root, weights = eight_pictures(tmp_path), tmp_path / "root", tmp_path / "detector.pt"
    asked = [f"{FIXTURE}/regions", "--root", root, "--raw", raw, "--set=regions.detector=bottom_up"]
    asked += ["--file", f"detector={weights}"]
    assert xmodal("plan", *asked).complaint.endswith(f"there is no file {weights}")
    weights.write_bytes(b"\x00" * 100)
    assert f"weights {weights} are refused" in xmodal("build", *asked).complaint
    assert not (root / "regions").exists()
    assert "regions" not in xmodal("status", "--root", root).out


def test_words_that_do_not_fit_the_weights_leave_nothing_in_the_root(xmodal: Xmodal, tmp_path: Path) -> None:
    raw, root, words = eight_pictures(tmp_path), tmp_path / "root", tmp_path / "words.txt"
    words.write_text("cat\ndog\n")
    asked = [f"{FIXTURE}/regions", "--root", root, "--raw", raw, "--set=regions.detector=bottom_up"]
    asked += ["--file", f"detector={write('airsplay', port_state('airsplay'), tmp_path)}"]
    few = xmodal("build", *asked, "--file", f"object_words={words}").complaint
    assert f"{words} has 2 lines, but the weights tell {CLASSES} apart: give their list" in few
    assert not (root / "regions").exists()


def test_a_build_of_regions_without_words_says_that_semantics_need_them(xmodal: Xmodal, tmp_path: Path) -> None:
    raw, words = eight_pictures(tmp_path), tmp_path / "words.txt"
    words.write_text("\n".join(f"word {number}" for number in range(CLASSES)))
    asked = ["build", f"{FIXTURE}/regions", "--root", tmp_path / "root", "--raw", raw, "--serial"]
    asked += ["--set=regions.detector=bottom_up", "--file", f"object_words={words}"]
    said = xmodal(*asked, "--file", f"detector={write('airsplay', port_state('airsplay'), tmp_path)}").err
    assert "without --file attribute_words=PATH there can be no semantics of these regions" in said


def eight_pictures(folder: Path) -> Path:
    (raw := folder / "raw").mkdir()
    names = [f"p{number:03d}.jpg" for number in range(8)]
    for name in names:
        (raw / name).write_bytes(picture(RED, GREEN, BLUE, WHITE))
    (raw / "captions.tsv").write_text("".join(f"{name}\ta thing\n{name}\tanother thing\n" for name in names))
    (raw / "splits.json").write_text(
        '{"pictures/train": ["' + '", "'.join(names[:6]) + '"], "pictures/val": ["p006.jpg", "p007.jpg"]}'
    )
    (raw / "pictures.txt").write_text("".join(f"gopher://gone/{name}\n" for name in names))
    return raw


def test_ids_of_boxes_that_no_picture_has_are_told(xmodal: Xmodal, folder: Path, tmp_path: Path) -> None:
    (boxes := tmp_path / "b.tsv").write_text("".join(f"{id}\t0\t0\t9\t9\n" for id in ("p000", "p0.jpg", "a.png")))
    settings = ["--set=regions.detector=toy", "--set=regions.boxes=file", "--file", f"boxes={boxes}"]
    of_corpus = ["build", f"{FIXTURE}/semantics", "--root", tmp_path / "root", "--raw", eight_pictures(tmp_path)]
    said = xmodal(*of_corpus, *settings).err
    assert said.count("2 ids of b.tsv are no pictures of the corpus, such as 'p0.jpg'") == 1
    of_folder = ["features", folder, "--model", "small", *settings[1:]]
    assert "2 ids of b.tsv are no pictures of the folder, such as 'p000'" in xmodal(*of_folder).err
    boxes.write_text("a.png\t0\t0\t9\t9\nb.png\t0\t0\t9\t9\n")
    said = xmodal(*of_folder, "--out", "more.zarr").err
    assert "1 id of b.tsv is no picture of the folder, such as 'b.png'" in said
    boxes.write_text("a.png\t0\t0\t9\t9\n")
    assert "b.tsv" not in xmodal(*of_folder, "--out", "all.zarr").err


def test_semantics_of_no_picture_end_with_3(xmodal: Xmodal, tmp_path: Path) -> None:
    (boxes := tmp_path / "b.tsv").write_text("p000\t900\t900\t909\t909\n")
    settings = ["--set=regions.detector=toy", "--set=regions.boxes=file", "--file", f"boxes={boxes}"]
    asked = ["build", f"{FIXTURE}/semantics", "--root", tmp_path / "root", "--raw", eight_pictures(tmp_path), *settings]
    said = xmodal(*asked)
    assert said.code == 3
    assert "pictures/semantics: 8 of 8 absent or unusable, most often without regions: exit code 3" in said.out
    assert xmodal(*asked, "--most-absent", 1).code == 0


def test_a_region_that_only_fills_up_gives_its_feature_and_no_words(
    xmodal: Xmodal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dark blue has a score of 60 / 255, which is below the threshold of the small detector."""
    kind = replace(detectors.KINDS["toy"], fewest=1, threshold=0.5, says_all=False)
    monkeypatch.setitem(detectors.KINDS, "toy", kind)
    raw, root = eight_pictures(tmp_path), tmp_path / "root"
    (raw / "p005.jpg").write_bytes(picture(BLUE, BLUE, BLUE, BLUE))
    asked = ["build", f"{FIXTURE}/semantics", "--root", root, "--raw", raw, "--set=regions.detector=toy"]
    (said,) = xmodal.done(*asked)["outputs"]
    assert (said["counts"]["captions"], said["failures"], said["absent"]) == (7, {"unsure": 1}, 1)
    (regions,), (semantics,) = find(str(root), "regions"), find(str(root), "semantics")
    assert len(RegionStore(regions).features("p005")) == 1
    assert semantics.config["least_score"] == 0.5
    assert {caption.item for caption in read_rows(semantics, Caption)} == {f"p{n:03d}" for n in range(8)} - {"p005"}
    (said,) = xmodal.done(*asked, "--set=semantics.least_score=0")["outputs"]
    assert (said["counts"]["captions"], said["failures"]) == (8, {})
    (boxes := tmp_path / "b.tsv").write_text("p005\t0\t0\t9\t9\n")
    given = [*asked, "--set=regions.boxes=file", "--file", f"boxes={boxes}", "--most-absent", "1"]
    (said,) = xmodal.done(*given)["outputs"]
    assert (said["counts"]["captions"], said["failures"]) == (1, {}), "what somebody gives a box of is a thing"


def test_boxes_are_drawn_with_their_words(xmodal: Xmodal, tmp_path: Path) -> None:
    raw, root, out = eight_pictures(tmp_path), tmp_path / "root", tmp_path / "boxes"
    xmodal("build", f"{FIXTURE}/semantics", "--root", root, "--raw", raw, "--set", "regions.detector=toy")
    said = xmodal("look", "pictures", "--root", root, "--regions", out, "--items", "p003", "p006", "--json")
    assert [one["item"] for one in said.json["pictures"]] == ["p003", "p006"]
    with Image.open(out / "p003.png") as drawn:
        assert max(drawn.size) >= SIDE
    assert xmodal("look", "pictures", "--root", root, "--regions", out, "--first", 3, "--json").json["pictures"][2:]
    (regions,) = find(str(root), "regions")
    xmodal.done("export", regions.where, tmp_path / "out.tsv")
    mine = xmodal.done("import", tmp_path / "out.tsv", "--root", root, "--name", "mine")
    named = f"mine/{mine['identity']}"
    said = xmodal(
        "look", "pictures", "--root", root, "--regions", out, "--features", named, "--items", "p003", "--json"
    )
    assert [one["item"] for one in said.json["pictures"]] == ["p003"]
    complaint = xmodal("look", "pictures", "--root", root, "--regions", out, "--items", "p009").complaint
    assert "p009: " in complaint
    assert "has no regions of such items" in complaint


RANKING = {"ranking": 1.0}
ATTENTIVE = {
    "words": (SCANConfig(width=8, word_width=4), RANKING),
    "regions": (SCANConfig("image_to_text", width=8, word_width=4), RANKING),
    "steps": (DANConfig(width=8, word_width=4), RANKING),
    "heads": (A3VSEConfig(width=8, word_width=4), WEIGHTS),
}


@pytest.mark.parametrize("looking", ATTENTIVE)
def test_attention_over_regions_is_drawn_on_their_picture(looking: str, xmodal: Xmodal, tmp_path: Path) -> None:
    raw, root, out = eight_pictures(tmp_path), tmp_path / "root", tmp_path / "maps"
    xmodal("build", f"{FIXTURE}/regions", "--root", root, "--raw", raw, "--set", "regions.detector=toy")
    model, weights = ATTENTIVE[looking]
    phase = Phase(1, Optimiser("adam", 1e-3), weights)
    views = {"view": View("pictures", "pictures/train"), "validation": View("pictures", "pictures/val")}
    some = replace(recipe(1), **views, visual=Features("regions"), model=model, phases=(phase,), batch_size=2)
    fit(some, str(root), str(tmp_path / "run"))
    look = ["look", tmp_path / "run", "--root", root, "--split", "pictures/val", "--attention", out, "--json"]
    assert [one["item"] for one in xmodal(*look).json["pictures"]] == ["p006", "p007"]
    with Image.open(out / "p006.png") as drawn:
        assert drawn.width >= PANEL
        assert drawn.convert("RGB").getcolors(1 << 20)


def test_a_panel_shows_the_regions_that_a_map_looks_at_most() -> None:
    boxes = np.array([[0, 0, 10, 10], [20, 20, 39, 29], [5, 5, 9, 9], [0, 20, 9, 29]], np.float32)
    maps = np.array([[0.7, 0.0], [0.2, 0.8], [0.1, 0.0], [0.0, 0.2]], np.float32)
    white = Image.new("RGB", (40, 30), "white")
    panels = attention_regions(white, boxes, maps, ["a", "dog"])
    assert panels.shape[1] % 2 == 0
    first, second = np.split(panels, 2, axis=1)
    right_below = (slice(-110, -40), slice(200, 300))  # where only the second box is
    assert (first[right_below] < 255).any()
    assert (second[right_below] < 255).any()
    assert not np.array_equal(first, second)
    many = attention_regions(white, boxes, np.tile(maps, 4), ["word"] * 8)
    assert many.shape == (2 * panels.shape[0], COLUMNS * first.shape[1], 3)


def test_regions_without_words_are_drawn_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.detection.test_region_store.WORDS", {})
    store = RegionStore(make_store(tmp_path, [some_regions("a", 3)]))
    assert max(region_sheet(store, "a", Image.new("RGB", (64, 48))).size) >= SIDE
    assert store.classes("a") is not None, "the numbers stay"


@pytest.mark.parametrize("looked_at", [(128, 96), (64, 64), None])
def test_boxes_in_pixels_of_another_size_are_drawn_where_they_are(
    looked_at: tuple[int, int] | None, tmp_path: Path
) -> None:
    picture = Image.new("RGB", (128, 96), "white")
    seen = replace(some_regions("a", 1, words=False, size=looked_at), boxes_K4=np.array([[64, 48, 96, 72]], np.float32))
    if looked_at == (64, 64):
        seen = replace(seen, boxes_K4=np.array([[32, 32, 48, 48]], np.float32))
    sheet = np.asarray(region_sheet(RegionStore(make_store(tmp_path, [seen])), "a", picture))
    assert (sheet[300, 318:325] < 255).any(), "the left edge, at 320 of 640 pixels"
    assert (sheet[300, 477:484] < 255).any(), "the right edge, at 480"
    assert (sheet[300, 170:310] == 255).all()


@pytest.mark.parametrize("size", [(6000, 4000), (20_000, 30), (2, 3000), (300, 20), (16, 12)])
def test_large_and_thin_pictures_are_drawn_at_a_size_to_read(size: tuple[int, int], tmp_path: Path) -> None:
    store = RegionStore(make_store(tmp_path, [some_regions("a", 3, size=size)]))
    drawn = region_sheet(store, "a", Image.new("RGB", size))
    assert SIDE <= max(drawn.size) <= LARGEST + 5 * LINE
    assert drawn.width >= PANEL
    assert drawn.height >= 2 * LINE


def test_a_box_that_ends_before_it_begins_is_drawn_between_its_corners() -> None:
    ones, others = Image.new("RGB", (64, 48)), Image.new("RGB", (64, 48))
    draw_boxes(ones, np.array([[40, 30, 8, 5]], np.float32), ["1"])
    draw_boxes(others, np.array([[8, 5, 40, 30]], np.float32), ["1"])
    assert ones.tobytes() == others.tobytes()


@given(st.lists(st.tuples(*[st.floats(-20, 320)] * 4, st.floats(10, 140)), min_size=1, max_size=12))
def test_no_name_is_cut_at_an_edge_or_hides_another(asked: list[tuple[float, ...]]) -> None:
    """The picture has room for all of them."""
    size, taken = (300, 30 * LINE), list[tuple[float, float, float]]()
    for *box, width in asked:
        left, top = free_corner(box, width, size, taken)
        assert 0 <= left <= left + width <= size[0]
        assert 0 <= top <= top + LINE <= size[1]
        for other_left, other_top, wide in taken:
            apart = left + width <= other_left or other_left + wide <= left
            assert apart or abs(top - other_top) >= LINE
        taken.append((left, top, width))


def test_proposals_are_numbered_and_a_long_name_is_shortened() -> None:
    image = Image.new("RGB", (100, 80), "white")
    draw_boxes(image, np.array([[10, 10, 60, 60], [0, 0, 100, 80]], np.float32), ["1", "a name " * 30])
    assert image.getcolors(10_000)
    draw_boxes(image, np.zeros((0, 4), np.float32), [])


def test_proposals_that_are_not_drawn_are_counted_and_not_listed(tmp_path: Path) -> None:
    store = RegionStore(make_store(tmp_path, [some_regions("a", 16, words=False), some_regions("b", 200, words=False)]))
    sizes = [region_sheet(store, id, Image.new("RGB", (64, 48))).size for id in ("a", "b")]
    assert sizes[0] == sizes[1]
