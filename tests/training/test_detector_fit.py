"""A detector is trained from a corpus' regions: the same weights whatever happens, and what is wrong is said."""

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from pipelines.commands.data.prune import _kept
from pipelines.demo import visual_genome
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.toy_root import make_root
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import Death, interrupt
from xmodal.corpora import Corpus, Source
from xmodal.detectors import small_faster_rcnn
from xmodal.errors import UserError
from xmodal.progress import Silence
from xmodal.raw.raw_files import Raw
from xmodal.recipes import DetectorRecipe
from xmodal.records.tables import Item, Region, Row, Split
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.training import detector_fit
from xmodal.training.detector_fit import DetectorOutcome, fit_detector, one_cycle
from xmodal.training.detector_samples import DetectorSamples, config_of, open_data
from xmodal.training.run_setup import Setup

Box = tuple[float, float, float, float]
TINY = {"side": 32, "width": 2, "feature": 8, "proposals": 8, "regions": 4, "batch_size": 2}
RECIPE = replace(DetectorRecipe(steps=12), **TINY)  # type: ignore[arg-type]
DRAWN = replace(RECIPE, corpus="drawn")


@dataclass(frozen=True)
class Drawing:
    """A picture of squares, of a corpus without attributes."""

    id: str
    split: str
    data: bytes
    regions: tuple[tuple[Box | None, str], ...]


def squares(count: int) -> list[Drawing]:
    """One large or small square each, on black."""
    found = []
    for number in range(count):
        side, (x, y) = (14, 8)[number % 2], np.random.default_rng(number).integers(0, 16, 2).tolist()
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[y : y + side, x : x + side] = 220
        split = "drawn/val" if number % 5 == 4 else "drawn/train"
        name = ("large", "small")[number % 2]
        found.append(Drawing(f"{number:03d}", split, png(pixels), (((x, y, x + side, y + side), name),)))
    return found


def png(pixels: NDArray[np.uint8]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def drawn(folder: Path, drawings: Sequence[Drawing]) -> str:
    """A root with these pictures as a corpus."""

    def parse(raw: Raw) -> Iterator[Row]:
        for drawing in drawings:
            yield Item(drawing.id, f"{drawing.id}.png")
            yield Split(drawing.id, drawing.split)
        for drawing in drawings:
            for number, (box, name) in enumerate(drawing.regions):
                sides = dict(zip(("left", "top", "right", "bottom"), box, strict=True)) if box else {}
                yield Region(f"{drawing.id}/{number}", drawing.id, **sides, names=(name,))

    raw = folder / "raw"
    raw.mkdir(parents=True)
    for drawing in drawings:
        (raw / f"{drawing.id}.png").write_bytes(drawing.data)
    (raw / "boxes.txt").touch()
    media = [Source(f"{drawing.id}.png", how="drawn here", part="media") for drawing in drawings]
    corpus = Corpus(
        name="drawn",
        homepage="http://drawn.invalid",
        licence="CC0-1.0",
        media_set="drawn",
        sources=(Source("boxes.txt", how="drawn here"), *media),
        parse=parse,
        release={"annotations": "all", "media": "all"},
        counts={},
        kinds=frozenset({"image"}),
    )
    return built(corpus, folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("genome")
    corpus = visual_genome.write(World(items=20, image_size=48), folder / "raw")
    return built(corpus, folder)


def built(corpus: Corpus, folder: Path) -> str:
    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw")
    CorpusBuild(options, corpus).build("records")
    CorpusBuild(options, corpus).build("media")
    return str(folder / "root")


@pytest.fixture(scope="module")
def whole(root: str, tmp_path_factory: pytest.TempPathFactory) -> DetectorOutcome:
    return fit(root, str(tmp_path_factory.mktemp("whole")))


def fit(root: str, run: str, recipe: DetectorRecipe = RECIPE, **setup: Any) -> DetectorOutcome:
    return fit_detector(recipe, Setup(root, **setup), run)


def fit_saving_often(root: str, run: str, **setup: Any) -> DetectorOutcome:
    detector_fit.SAVE_EVERY = 5
    return fit(root, run, **setup)


def files(run: str) -> dict[str, bytes]:
    return {name: Path(run, name).read_bytes() for name in ("detector.json", "detector.pt", "log.jsonl")}


def log(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]


# --------------------------------------------------------------------------------------------------------- what is made


def test_the_words_are_those_of_the_training_regions(root: str, whole: DetectorOutcome) -> None:
    data = open_data(RECIPE, root, Setup(root).tables("visual_genome"))
    regions = list(data.regions("bottom_up/train"))
    detector = small_faster_rcnn.load("", f"sha256:{whole.weights_sha256}", {"detector": Path(whole.weights)}, "cpu")
    assert detector.words.classes == tuple(sorted({region.names[0] for region in regions}))
    assert detector.words.attributes == tuple(sorted({word for region in regions for word in region.attributes}))
    assert (whole.classes, whole.attributes) == (len(detector.words.classes), len(detector.words.attributes))
    assert (whole.split, whole.validation, whole.steps, whole.trained) == ("bottom_up/train", "bottom_up/val", 12, True)
    assert whole.pictures == len({region.item for region in regions})
    assert whole.regions == len(list(data.regions("bottom_up/val")))
    measured = log(whole.run)[-1]
    assert measured == {
        "step": 12, "recall": whole.recall, "precision": whole.precision, "regions": whole.regions,
        "unreadable": 0,
    }  # fmt: skip
    assert [line["step"] for line in log(whole.run)[:-1]] == [0, 10]


def test_rare_words_are_left_out(root: str) -> None:
    records = Setup(root).tables("visual_genome")
    some = replace(RECIPE, least_count=3)
    data = open_data(some, root, records)
    kept = config_of(some, data)
    every = [region.names[0] for region in data.regions(data.split)]
    assert kept.classes == tuple(sorted({name for name in every if every.count(name) >= 3}))
    labels = np.concatenate([things.label_K for things in DetectorSamples(some, kept, data).things.values()])
    assert len(labels) == sum(name in kept.classes for name in every)
    with pytest.raises(UserError, match="has no 1,000 regions of a class in 'bottom_up/train'"):
        config_of(replace(RECIPE, least_count=1000), data)


def test_it_learns_from_regions_without_attributes(tmp_path: Path) -> None:
    recipe = replace(DRAWN, side=64, width=6, feature=32, anchors=(0.25, 0.4), steps=100, batch_size=4, regions=8)
    outcome = fit(drawn(tmp_path, squares(40)), str(tmp_path / "run"), recipe)
    assert (outcome.classes, outcome.attributes, outcome.regions) == (2, 0, 8)
    assert outcome.recall > 0.7
    assert outcome.precision > 0.7


class Told(Silence):
    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_what_cannot_be_learned_from_is_left_out(tmp_path: Path) -> None:
    """Boxes are cut to their picture; where nobody said what is there, nothing is learned."""
    first, beyond, outside, unreadable, silent, *others = squares(12)
    beyond = replace(beyond, regions=(((-5, 4, 500, 12), "small"), ((20, 20, 20.1, 30), "thin")))
    outside = replace(outside, regions=(((100, 100, 120, 120), "large"),))
    unreadable, silent = replace(unreadable, data=b"no picture"), replace(silent, split="drawn/train", regions=())
    where, told = drawn(tmp_path, [first, beyond, outside, unreadable, silent, *others]), Told()
    fit(where, str(tmp_path / "run"), DRAWN, progress=told)
    assert told.lines == [
        "detector: 10 pictures of drawn/train with 3 classes and 0 attributes to train on",
        "left out: 2 pictures that are absent or unreadable, or have no box in them, such as 002",
    ]
    data = open_data(DRAWN, where, Setup(where).tables("drawn"))
    samples = DetectorSamples(replace(DRAWN, batch_size=10, flip=False), config_of(DRAWN, data), data)
    batch = samples.batch(0)
    assert batch is not None
    pixels, sizes, targets = batch
    assert (pixels.shape, sizes) == ((8, 3, 32, 32), [(32, 32)] * 8)
    assert [[0.0, 4.0, 32.0, 12.0]] in [target["boxes"].tolist() for target in targets]
    nobody = replace(DRAWN, batch_size=1)
    assert [DetectorSamples(nobody, samples.config, data).batch(step) for step in range(10)].count(None) == 2


def test_pictures_of_which_none_can_be_used_are_told(tmp_path: Path) -> None:
    where = drawn(tmp_path, [replace(drawing, data=b"no picture") for drawing in squares(10)])
    for steps in (12, 12, 1000):
        recipe, watched = replace(DRAWN, steps=steps), Death(4, interrupt)
        with pytest.raises(
            UserError, match="drawn: none of the 8 pictures of drawn/train can be used: they are absent"
        ):
            fit(where, str(tmp_path / f"run-{steps}"), recipe, progress=watched)  # told after one pass of four steps
    assert not [*tmp_path.glob("run-*/*.pt")]


def test_validation_pictures_that_cannot_be_measured_are_counted(root: str, tmp_path: Path, xmodal: Xmodal) -> None:
    pictures = squares(20)
    pictures[4] = replace(pictures[4], data=b"no picture")
    where, run = drawn(tmp_path / "some", pictures), tmp_path / "run"
    outcome = fit(where, str(run), DRAWN)
    assert (outcome.measured, outcome.unreadable, outcome.regions) == (3, 1, 3)
    assert log(str(run))[-1]["unreadable"] == 1
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    command = ("train", "detector", "--root", where, "--corpus", "drawn", "--run", run, "--set", "steps=12", *settings)
    shown = xmodal(*command).out
    assert "not measured, as absent or unreadable: 1 of 4 pictures of drawn/val" in shown
    assert "of classes, as there are no attributes, on drawn/val after 12 steps" in shown
    none = [replace(drawing, data=b"no picture") if "val" in drawing.split else drawing for drawing in pictures]
    where = drawn(tmp_path / "none", none)
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"drawn: none of the 4 pictures of drawn/val can be read .*/last/detector.pt"
        ):
            fit(where, str(tmp_path / "last"), DRAWN)


def test_a_flipped_picture_has_flipped_boxes(tmp_path: Path) -> None:
    data = open_data(DRAWN, where := drawn(tmp_path, squares(10)), Setup(where).tables("drawn"))
    samples = DetectorSamples(replace(DRAWN, batch_size=8), config_of(DRAWN, data), data)
    flipped = 0
    for step in range(4):
        batch = samples.batch(step)
        assert batch is not None
        for pixels_3SS, target in zip(batch[0], batch[2], strict=True):
            left, top, right, bottom = map(int, target["boxes"][0])
            inside = pixels_3SS[:, top:bottom, left:right]
            assert (inside > 0).all()
            assert (pixels_3SS > 0).sum() == inside.numel()
            flipped += (left, top, right, bottom) not in [
                tuple(map(int, one.regions[0][0] or ())) for one in squares(10)
            ]
    assert 8 < flipped < 24


def test_the_rate_goes_up_and_down() -> None:
    rates = [one_cycle(step / 100) for step in range(100)]
    top = rates.index(max(rates))
    assert 0 < top < 40
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) <= 1
    assert 0 < min(rates[0], rates[-1]) < 0.05


# ------------------------------------------------------------------------------------------------- the same, whatever


def test_equal_runs_are_equal_and_another_seed_is_not(root: str, whole: DetectorOutcome, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    again = fit(root, str(tmp_path / "again"))
    assert torch.equal(state, torch.get_rng_state()), "the caller's own randomness is left alone"
    assert files(again.run) == files(whole.run)
    assert fit(root, str(tmp_path / "other"), replace(RECIPE, seed=1)).weights_sha256 != whole.weights_sha256


@pytest.mark.parametrize("after", [1, 7, 12, 13])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    root: str, whole: DetectorOutcome, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detector_fit, "SAVE_EVERY", 5)
    run = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(root, run, progress=Death(after, interrupt))
    outcome = fit(root, run)
    assert asdict(outcome) == asdict(whole) | {
        "run": run, "weights": f"{run}/detector.pt", "trained": after < 12
    }  # fmt: skip
    assert files(run) == files(whole.run)


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(root: str, whole: DetectorOutcome, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code = (
        "import sys; from tests.training.test_training import Death, kill;"
        "from tests.training.test_detector_fit import fit_saving_often;"
        "fit_saving_often(sys.argv[1], sys.argv[2], progress=Death(8, kill))"
    )
    killed = subprocess.run([sys.executable, "-c", code, root, run], cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not Path(run, "detector.pt").exists()
    assert fit(root, run).trained
    assert files(run) == files(whole.run)


def test_a_finished_run_is_left_as_it_is(root: str, whole: DetectorOutcome) -> None:
    before = files(whole.run)
    assert fit(root, whole.run) == replace(whole, trained=False)
    assert files(whole.run) == before


def test_pictures_that_do_not_fit_into_memory_change_nothing(
    root: str, whole: DetectorOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xmodal.training.detector_samples.KEPT_BYTES", 5000)
    assert fit(root, str(tmp_path / "run")).weights_sha256 == whole.weights_sha256


def test_prune_keeps_what_a_detector_was_trained_on(root: str, whole: DetectorOutcome) -> None:
    assert _kept(whole.run) == [find_output(root, name).identity for name in ("records", "media")]


# ---------------------------------------------------------------------------------------------------- what is refused


def test_another_run_s_folder_is_refused(root: str, whole: DetectorOutcome, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds another run: steps is 12 there and 13 here: choose another folder"):
        fit(root, whole.run, replace(RECIPE, steps=13))
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UserError, match=r"is no run and not empty \(it has mine.txt\)"):
        fit(root, str(tmp_path))


@pytest.mark.parametrize("name", ["detector.json", "last.pt"])
def test_a_damaged_run_is_told(root: str, tmp_path: Path, name: str) -> None:
    run = fit(root, str(tmp_path / "run")).run
    Path(run, name).write_bytes(b"[1")
    with pytest.raises(UserError, match=f"{name} is damaged"):
        fit(root, run)
    if name == "last.pt":
        torch.save({"step": 99, "log_bytes": 0}, Path(run, name))
        with pytest.raises(UserError, match=r"is no state of this run .*step 99 of 12"):
            fit(root, run)


def test_a_corpus_without_regions_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'media'"):
        fit(make_root(tmp_path, 20), str(tmp_path / "run"), replace(RECIPE, corpus="pictures"))
    nothing = [replace(drawing, regions=((None, "large"),)) for drawing in squares(5)]
    with pytest.raises(UserError, match="drawn has no regions with boxes and names in 'drawn/train'"):
        fit(drawn(tmp_path / "other", nothing), str(tmp_path / "run"), DRAWN)
    assert not (tmp_path / "run").exists()


def test_splits_are_named_where_none_is_meant(root: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"items are in both 'bottom_up/val' and 'bottom_up/val'"):
        fit(root, str(tmp_path), replace(RECIPE, split="bottom_up/val"))
    with pytest.raises(UserError, match="visual_genome has no split 'nobody/train'"):
        fit(root, str(tmp_path), replace(RECIPE, split="nobody/train", validation="bottom_up/val"))
    with pytest.raises(UserError, match="visual_genome has no split 'foo'; there are: bottom_up/train, bottom_up/val"):
        fit(root, str(tmp_path), replace(RECIPE, split="foo"))
    with pytest.raises(ValueError, match="measured on split 'bottom_up/test'"):
        replace(RECIPE, validation="bottom_up/test")
    where = drawn(tmp_path / "drawn", [replace(drawing, split="drawn/dev") for drawing in squares(4)])
    with pytest.raises(UserError, match="no split 'train': take one by --set split=NAME; there are: drawn/dev"):
        fit(where, str(tmp_path / "run"), DRAWN)
    with pytest.raises(
        UserError, match="no split 'drawn/val': take one by --set validation=NAME; there are: drawn/dev"
    ):
        fit(where, str(tmp_path / "run"), replace(DRAWN, split="drawn/dev"))
    bare = [replace(drawing, regions=()) if "val" in drawing.split else drawing for drawing in squares(10)]
    with pytest.raises(UserError, match=r"with boxes and names in 'drawn/val' to measure on: --set validation=NAME"):
        fit(drawn(tmp_path / "bare", bare), str(tmp_path / "run"), DRAWN)
    assert not (tmp_path / "run").exists()


# ----------------------------------------------------------------------------------------------------- as a command


def test_the_command_trains_and_says_where_the_weights_are(root: str, tmp_path: Path, xmodal: Xmodal) -> None:
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    command = ("train", "detector", "--root", root, "--run", tmp_path / "run", "--set", "steps=12", *settings)
    shown = xmodal(*command)
    assert shown.code == 0
    assert f"its weights are {tmp_path}/run/detector.pt" in shown.out
    assert "recall 0." in shown.out
    assert "of pairs of attribute and class on bottom_up/val after 12 steps" in shown.out
    assert f"--set regions.detector=small --file detector={tmp_path}/run/detector.pt" in shown.out
    found = xmodal.done(*command)
    assert (found["steps"], found["trained"], found["split"]) == (12, False, "bottom_up/train")
    use = f"is a run of a detector, which finds regions: `xmodal build .*detector={tmp_path}/run/detector.pt`"
    for asked in (("evaluate", "run"), ("evaluate", "run/detector.pt"), ("look", "run", "--attention", "maps")):
        what, name, *rest = asked
        assert re.search(use, xmodal(what, tmp_path / name, "--root", root, *rest).complaint)
    assert xmodal(*command, "--workers", "2").err.endswith("a detector is trained without --workers: leave that out\n")


def test_its_recipe_is_listed_with_its_settings(xmodal: Xmodal) -> None:
    assert "detector" in [row["name"] for row in xmodal.done("recipes")]
    settings = {
        row["name"]: row["default"] for row in json.loads(xmodal("settings", "detector", "--json").out)["settings"]
    }
    assert settings["detector.steps"] == DetectorRecipe().steps
    assert "detector.corpus" not in settings
    *rows, _ = xmodal("recipes").out.splitlines()
    place = rows[0].index("corpus")
    assert {(row[place - 2 : place], row[place] == " ") for row in rows} == {("  ", False)}, "columns are aligned"
    shown = [line.split()[:3] for line in xmodal("settings", "detector").out.splitlines()]
    assert ["detector.split", "str", '""'] in shown
