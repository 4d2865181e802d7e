"""Phases of pixels on clips: the frames that features were made of go through the network, changed alike in a clip."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pipelines.cli import main
from pipelines.demo import mrw, tgif
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.papers.experiments import Available, Experiment, Row
from pipelines.papers.recipe_runs import recipes
from pipelines.papers.reproduction import run as reproduce
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.clips import gif, numbered
from tests.evaluation.test_checkpoints import official_state, saved
from tests.evaluation.test_released import cnn_of
from tests.toy_root import fit, item_id, recipe
from tests.toy_root import make_root as make_pictures
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import ADAM, assert_same_run
from tests.training.test_training_together import assert_near, processes, train
from xmodal import find
from xmodal.batches.dataset import open_dataset
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import SampleRandom
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.frame_store import FrameStore
from xmodal.features.networks import ResNet, load
from xmodal.features.store import FeatureStore
from xmodal.models import Inputs
from xmodal.models.pvse import PVSE, PVSEConfig
from xmodal.progress import Silence
from xmodal.recipes import Features, Optimiser, Phase, Pixels, Recipe, View
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import SPECIALS, load_vocabulary
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import WithBackbone, attach_backbone
from xmodal.training.fit import Outcome
from xmodal.training.picture_crops import ClipReader, picture_reader
from xmodal.training.run_setup import Setup
from xmodal.training.training_data import unbuilt
from xmodal.training.validation import measure

EVERYTHING = Pixels("resized", flip=True, jitter=True, erase=0.5)
SETTINGS = {"clips.network": "resnet18", "clips.weights": "random:0", "frames.short_side": 48}
SMALL = {"clips.resize": 64, "clips.crop": 64}
WEIGHTS = {"ranking": 1.0, "diversity": 0.1, "mmd": 0.01}
HEADS = Phase(2, ADAM, WEIGHTS, frozen=("words.*",))
ALL = Phase(2, Optimiser("sgd", 1e-3, momentum=0.9, clip_norm=2.0), WEIGHTS, pixels=EVERYTHING)


def make_root(folder: Path, stage: str, **settings: object) -> str:
    """Ten clips of 1, 3, 5, … frames, wider than high, stored 48 pixels high."""
    rows = []
    for number in range(10):
        shown = [numbered(10 * number + frame, delay=6 + 7 * (frame % 3)) for frame in range(1 + 2 * number)]
        (folder / f"c{number}.gif").write_bytes(gif(shown))
        split = "train" if number < 8 else "val"
        rows += [f"c{number}.gif,{caption} of number {number},{split}\n" for caption in ("a clip", "blocks above red")]
    (folder / "moving.csv").write_text("url,caption,split\n" + "".join(rows))
    asked = [word for name, value in (SETTINGS | settings).items() for word in ("--set", f"{name}={value}")]
    target = [f"{folder}/moving.csv/{stage}", "--split", "split", "--root", str(folder / "root"), "--serial"]
    assert main(["build", *target, *asked]) == 0
    return str(folder / "root")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("moving"), "clips", **SMALL)


def seen(*phases: Phase, **changes: Any) -> Recipe:
    """Three steps and two ticks of validation an epoch."""
    some = recipe(
        name="seen",
        view=View("moving", "own/train"),
        validation=View("moving", "own/val"),
        visual=Features("clips", frames=3, ends=1),
        model=PVSEConfig(visual="video", width=16, word_width=8),
        phases=phases,
        batch_size=6,
    )
    return replace(some, **changes)


def opened(root: str, plan: Pixels = EVERYTHING) -> tuple[Reader, ClipReader]:
    features = open_dataset(root, "moving").reader("own/train", "clips")
    features = replace(features, frames=Features("clips", frames=3, ends=1))
    reader = picture_reader(features, FrameStore(find(root, "frames")[0]), plan)
    assert isinstance(reader, ClipReader)
    return features, reader


def model_of(reader: Reader) -> PVSE:
    return PVSE(PVSEConfig(visual="video", width=16, word_width=8), Inputs(reader.store.spec.row_shape[-1], 50, 8))


@pytest.mark.parametrize("epoch", [None, 0, 1])
def test_the_network_gives_the_stored_features_of_the_same_frames(root: str, epoch: int | None) -> None:
    """In evaluation, and in training too where pictures are cut in the middle and changed no further."""
    features, pictures = opened(root, Pixels("centre", flip=False))
    draws = None if epoch is None else SampleRandom(3, epoch, np.arange(8))
    stored, given = features.visual(np.arange(8), draws), pictures.visual(np.arange(8), draws)
    assert given.values.shape == (8, 3, 3, 64, 64)
    fronted = attach_backbone(model_of(features), features.store).eval()
    with torch.inference_mode():
        computed = fronted.features(given)
    assert computed.values.shape == stored.values.shape == (8, 3, 512)
    torch.testing.assert_close(computed.values, stored.values.float(), rtol=1e-3, atol=1e-4)
    assert not torch.equal(stored.values[7, 0], stored.values[7, 2])


def test_all_frames_of_a_clip_are_changed_alike_and_every_sample_otherwise(root: str) -> None:
    """The first clip is one frame, held: whatever is drawn for it, its three pictures stay equal."""
    _, pictures = opened(root)
    samples = np.arange(40)
    held = pictures.visual(np.zeros(40, np.int64), SampleRandom(0, 0, samples)).values
    assert torch.equal(held[:, 0], held[:, 1])
    assert torch.equal(held[:, 0], held[:, 2])
    assert len({picture.numpy().tobytes() for picture in held[:, 0]}) == 40
    moving = pictures.visual(np.full(40, 7), SampleRandom(0, 0, samples)).values
    assert not torch.equal(moving[:, 0], moving[:, 2])
    erased_BFHW = (moving == 0).all(2)
    assert 8 < erased_BFHW.any((1, 2, 3)).sum() < 32
    assert torch.equal(erased_BFHW[:, 0], erased_BFHW[:, 2])


def test_a_cut_is_the_samples_own_whatever_else_is_in_its_batch(root: str) -> None:
    _, pictures = opened(root)
    items, samples = np.array([7, 2, 5, 0]), np.array([5, 900, 3, 77])
    whole = pictures.visual(items, SampleRandom(1, 2, samples)).values
    for rows in ([3], [2, 0]):
        part = pictures.visual(items[rows], SampleRandom(1, 2, samples[rows])).values
        assert torch.equal(part, whole[rows])
    assert not torch.equal(pictures.visual(items, SampleRandom(1, 3, samples)).values, whole)


def test_ranks_and_worker_processes_read_the_same_cuts(root: str) -> None:
    _, pictures = opened(root)
    whole = [batch.streams["annotated"].visual.values for batch in Loader(pictures, 6, seed=4)]
    ranks = zip(*(Loader(pictures, 6, seed=4, rank=rank, world=2) for rank in (0, 1)), strict=True)
    workers = DataLoader(Loader(pictures, 6, seed=4), batch_size=None, num_workers=1)
    for values, both, read in zip(whole, ranks, workers, strict=True):
        halves = torch.cat([half.streams["annotated"].visual.values for half in both])
        assert torch.equal(halves[: len(values)], values)
        assert torch.equal(read.streams["annotated"].visual.values, values)


def test_released_weights_see_frames_by_the_cnn_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_root(tmp_path, "frames")
    words = [*SPECIALS, "a", "clip", "of", "number", "blocks", "red"]
    torch.manual_seed(0)
    model = PVSEConfig(visual="video", width=10, word_width=6, legacy_last_output=True).build(
        Inputs(512, len(words), 0)
    )
    heads = official_state(model)
    extractor = load(ResNet("resnet18", "random:3", output="pooled"))
    fronted = WithBackbone(model, extractor.trunk, extractor.config)
    saved(tmp_path / "model.pth", heads | cnn_of(fronted))
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    store, visual = FrameStore(find(root, "frames")[0]), Features("frames", frames=2)
    vocabulary = load_vocabulary(tmp_path / "words.txt")
    examples = Examples.of(find(root, "records")[0], View("moving", "own/train"), store, vocabulary)
    reader = ClipReader(examples, store, visual, plan=Pixels("centre", flip=False), crop=224, resize=256)
    expected = measure(fronted.eval(), reader, Silence())["all"]
    asked = ["--vocabulary", str(tmp_path / "words.txt"), "--root", root, "--corpus", "moving", "--split", "own/train"]
    given = ["evaluate", str(tmp_path / "model.pth"), *asked, "--json", "--set", "visual.stage=frames"]
    capsys.readouterr()
    assert main([*given, "--set", "visual.frames=2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["scores"]["all"]["rsum"] == expected.rsum
    assert report["scores"]["all"]["text_to_visual"]["mean_rank"] == expected.text_to_visual["Mean R"]
    assert report["weights"] == "the resnet18 in the file"
    assert main(given) == 1
    assert (
        "model.pth (PVSE) reads frames of clips: say how many of each: --set visual.frames=8" in capsys.readouterr().err
    )


# Runs


@pytest.fixture(scope="module")
def whole(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = str(tmp_path_factory.mktemp("seen") / "run")
    train(seen(HEADS, ALL), root, run)
    return run


class Said(Silence):
    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture(scope="module")
def moved(root: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[str]]:
    """A run of pixels alone, and what was said."""
    said = Said()
    return fit(seen(ALL), root, str(tmp_path_factory.mktemp("moved") / "run"), progress=said), said.lines


def test_the_network_learns_from_frames(root: str, whole: str) -> None:
    assert run_folder.read(whole).pixels == find(root, "frames")[0].identity
    before, after = attach_backbone(model_of(opened(root)[0]), opened(root)[0].store), read_tensors(whole, "last.pt")
    trunk = {name: values for name, values in before.state_dict().items() if name.startswith("trunk.")}
    assert [name for name, values in trunk.items() if torch.equal(values, after["model"][name])] == []


def test_a_run_whose_best_weights_are_of_pixels_is_evaluated_and_looked_at(
    root: str, moved: tuple[Outcome, list[str]], tmp_path: Path
) -> None:
    outcome, _ = moved
    report = evaluate(outcome.run, Setup(root), "own/val")
    assert (report.items, report.scores["all"].rsum) == (2, outcome.rsum)
    assert report.features == f"frames/{find(root, 'frames')[0].identity}"
    assert "resnet18 random:0" in report.weights
    assert report.weights.endswith("trained further from pixels")
    looked = ["look", outcome.run, "--root", root, "--split", "own/val", "--attention", str(tmp_path / "maps")]
    assert main(looked) == 0
    assert len(list((tmp_path / "maps").iterdir())) == 2


@pytest.mark.parametrize("after", [11, 12])
def test_a_run_that_is_killed_in_either_phase_or_between_them_goes_on(
    root: str, whole: str, tmp_path: Path, after: int
) -> None:
    """Ten ticks are the phase of features: after the eleventh it goes on between the phases, after 12 in an epoch."""
    run, save_every = str(tmp_path / "run"), 1 if after == 12 else 500
    assert processes(1, train, seen(HEADS, ALL), root, run, save_every, after) == [-signal.SIGKILL]
    place = read_tensors(run, run_folder.LAST)["state"]
    assert (place["phase"], place["epoch"], place["step"]) == (1, 0, {11: 6, 12: 8}[after])
    train(seen(HEADS, ALL), root, run)
    assert_same_run(whole, run)


def test_a_frozen_network_keeps_weights_and_statistics_with_any_number_of_processes(root: str, tmp_path: Path) -> None:
    fixed, one, two = seen(replace(ALL, epochs=1, frozen=("trunk.*",))), str(tmp_path / "one"), str(tmp_path / "two")
    train(fixed, root, one)
    features, _ = opened(root)
    after = read_tensors(one, run_folder.LAST)["model"]
    for name, values in attach_backbone(model_of(features), features.store).state_dict().items():
        assert not name.startswith("trunk.") or torch.equal(values, after[name]), name
    assert processes(2, train, fixed, root, two) == [0, 0]
    assert_near(one, two)


def test_frames_are_seen_in_mixed_precision_too(root: str, tmp_path: Path) -> None:
    assert fit(seen(replace(ALL, epochs=1), precision="mixed"), root, str(tmp_path / "run")).steps == 3


def test_frames_stored_smaller_than_the_network_reads_are_told(moved: tuple[Outcome, list[str]]) -> None:
    _, said = moved
    assert "the shorter side of stored frames, 48 pixels, is enlarged to 64, as it was for the features" in said


def test_frames_that_are_gone_or_others_are_refused_with_what_to_build(
    root: str, moved: tuple[Outcome, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"was made of the frames \w+, not of other: leave out --pixels"):
        fit(seen(ALL), root, str(tmp_path / "run"), pixels="other")
    with pytest.raises(UserError, match=r"is of clips: say how many frames are seen: --set visual\.frames=8"):
        fit(seen(ALL, visual=Features("clips")), root, str(tmp_path / "run"))
    copied = str(tmp_path / "root")
    shutil.copytree(root, copied)
    shutil.rmtree(f"{copied}/frames")
    gone = r"the frames of .*clips/\w+ are not under .*: `xmodal build moving/frames --root .*` gets them again"
    for act in (
        lambda: fit(seen(ALL), copied, str(tmp_path / "run")),
        lambda: evaluate(moved[0].run, Setup(copied), "own/val"),
    ):
        with pytest.raises(UserError, match=gone):
            act()
    there = Available(recipes(), frozenset({"moving"}), frozenset({"clips"}), frozenset())
    views = "view.corpus=moving", "view.split=own/train", "validation.corpus=moving", "validation.split=own/val"
    row = Row("PVSE", "1", "pvse-tgif", (*views, "text.vectors=none"))
    table = Experiment("pvse", "Table 9", "toys", ("rsum",), (row,), ("moving",))
    with pytest.raises(UserError, match=f"nothing of pvse Table 9 is trained yet: {gone}"):
        reproduce(table, there, Setup(copied), tmp_path / "runs")
    assert not (tmp_path / "run").exists()


def test_regions_were_made_of_no_frames(tmp_path: Path) -> None:
    """Nor are there frames to build of a corpus of pictures."""
    root = make_pictures(tmp_path, items=20)
    (tmp_path / "arrays").mkdir()
    for number in range(20):
        np.save(tmp_path / f"arrays/{item_id(number)}.npy", np.ones((1 + number % 3, 4), np.float32))
    given = ["import", str(tmp_path / "arrays"), "--root", root, "--name", "found", "--serial", "--quiet"]
    assert main(given) == 0
    with pytest.raises(UserError, match=r"found/\w+ does not say which network made it .*: training from pixels needs"):
        Setup(root).pictures(FeatureStore(find_output(root, "found")), find_output(root, "records"))


# The paper's recipes


@pytest.mark.parametrize(("name", "publisher", "frames"), [("tgif", tgif, 8), ("mrw", mrw, 4)])
def test_both_phases_of_pvse_run_on_the_generated_world(
    name: str, publisher: Any, frames: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = publisher.write(World(20, image_size=64, motion=1.0), tmp_path / "raw")
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw", settings=SETTINGS | SMALL)
    build_stages(CorpusBuild(site, corpus), ["clips"])
    known = recipes()[f"pvse-{name}"]
    assert unbuilt(known) == []
    assert known.visual.frames == frames
    assert [phase.pixels for phase in known.phases] == [None, Pixels("resized", flip=True, jitter=True)]
    sets = ("text.vectors=none", "phase1.epochs=1", "phase2.epochs=1", "model.width=16", "model.word_width=8")
    settings = [part for text in (*sets, "batch_size=8") for part in ("--set", text)]
    run, at = str(tmp_path / "run"), ["--root", site.storage.url]
    assert main(["train", f"pvse-{name}", *at, "--run", run, *settings]) == 0
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines if "rsum" in line] == [1, 2]
    capsys.readouterr()
    assert main(["evaluate", run, *at, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == f"{name}/test"
