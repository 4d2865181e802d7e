"""`xmodal look`: pictures show the maps that the model has, and probes are what the run gives for changed inputs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor

from pipelines.cli import main
from tests.toy_root import fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training_together import PCME, PVSE
from tests.training.test_trunk import make_root as make_pictures
from xmodal.batches.batch import Padded
from xmodal.evaluation import attention_pictures, uncertainty_probes
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.evaluation.uncertainty_probes import cut_out, mark_unknown, mix
from xmodal.media.drawing import GAP, LINE
from xmodal.media.preparation import square
from xmodal.models.pcme import PCMEConfig
from xmodal.models.pvse import PVSEConfig
from xmodal.raw.raw_files import raw_of
from xmodal.recipes import Pixels, Recipe, View
from xmodal.root.selection import ancestor
from xmodal.training.run_setup import Setup

SIDE = 320  # five times the crop of 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("looking")


@pytest.fixture(scope="module")
def root(folder: Path) -> str:
    """Ten pictures, eight of them for training; features are grids of 2 x 2."""
    (folder / "pictures").mkdir()
    return make_pictures(folder / "pictures", "grid")


@pytest.fixture(scope="module")
def toy(folder: Path) -> str:
    """Features of no network that is known, and no pictures."""
    return make_root(folder / "toy", items=40, places=2)


def seen(known: Recipe, **changes: object) -> Recipe:
    views = {"view": View("pictures", "train"), "validation": View("pictures", "val")}
    return replace(known, **views, **changes)  # type: ignore[arg-type]


def from_pixels(known: Recipe) -> Recipe:
    phase = replace(known.phases[0], epochs=1, pixels=Pixels("centre", flip=False))
    return seen(known, phases=(phase,))


@pytest.fixture(scope="module")
def runs(folder: Path, root: str, toy: str) -> Callable[[str], str]:
    """A trained run by its name, made when it is first asked for."""
    twin = PCMEConfig(width=16, word_width=12, samples=0, kl="off", distance="mean")
    off = replace(PCME.phases[0], weights={"matching": 1.0, "uniformity": 0.0, "kl": 0.0})
    known = {
        "pvse": seen(PVSE),
        "pcme": seen(PCME),
        "vsepp": seen(recipe(1)),
        "pvse-whole": seen(PVSE, model=PVSEConfig(width=16, word_width=12, embeddings=0)),
        "pcme-mu": seen(PCME, model=twin, phases=(off,)),
        "pvse-pixels": from_pixels(PVSE),
        "pcme-pixels": from_pixels(PCME),
        "toy-pcme": replace(PCME, phases=(replace(PCME.phases[0], epochs=1),)),
    }

    def run(name: str) -> str:
        where = folder / name
        if not where.exists():
            fit(known[name], toy if name.startswith("toy") else root, str(where))
        return str(where)

    return run


def look(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["look", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err.splitlines()[-1] if said.err else ""


def test_a_picture_shows_what_the_network_saw_and_where_each_map_is_highest(
    root: str, runs: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = [runs("pvse"), "--root", root, "--split", "train", "--attention", tmp_path / "maps"]
    code, out, _ = look(capsys, *command, "--items", "p005", "p002", "--json")
    drawn = json.loads(out)["pictures"]
    assert (code, [one["item"] for one in drawn]) == (0, ["p005", "p002"])
    asked = open_run(runs("pvse"), Setup(root), "train")
    media = ancestor(asked.features.output, "media")
    assert media is not None
    for one in drawn:
        assert Path(one["path"]) == tmp_path / f"maps/{one['item']}.png"
        with Image.open(one["path"]) as image:
            pixels = np.asarray(image).astype(int)
        assert pixels.shape[1] == 3 * SIDE + 2 * GAP
        panels = [pixels[LINE : LINE + SIDE, start : start + SIDE] for start in range(0, pixels.shape[1], SIDE + GAP)]
        with raw_of(media).open(f"pictures/{one['item']}.jpg") as file:
            np.testing.assert_array_equal(panels[0], square(file.read(), 5 * 72, 5 * 64))
        for map_L, panel in zip(maps(asked, one["item"]).T, panels[1:], strict=True):
            warm = panel[..., 0] - panel[..., 2]
            quarters = warm.reshape(2, SIDE // 2, 2, SIDE // 2).mean((1, 3)).flatten()
            assert quarters.argmax() == map_L.argmax()
            assert warm.max() > 100
        assert (pixels[LINE + SIDE + GAP :] < 128).any()  # a legend


def test_a_caption_that_is_longer_than_a_legend_is_cut_between_words(
    root: str,
    runs: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [runs("pvse"), "--root", root, "--split", "train", "--attention", tmp_path, "--items", "p005", "--json"]
    (whole,) = json.loads(look(capsys, *command)[1])["pictures"]
    monkeypatch.setattr(attention_pictures, "LONGEST_LEGEND", 10)
    (cut,) = json.loads(look(capsys, *command)[1])["pictures"]
    assert len(whole["caption"]) > 10 >= len(cut["caption"])
    words = cut["caption"].removesuffix(" …")
    assert whole["caption"].startswith(f"{words} ")


def maps(asked: OpenedRun, item: str) -> Tensor:
    """(L, K)"""
    place = asked.reader.examples.ids.index(item)
    visual = asked.reader.visual(slice(place, place + 1))
    model: Any = asked.scorer
    with torch.inference_mode():
        found: Tensor = model.attention_visual(Padded.whole(visual.values.float()))[0]
    return found


def test_a_map_of_pcme_pools_what_its_mean_is_made_of(root: str, runs: Callable[[str], str]) -> None:
    asked = open_run(runs("pcme"), Setup(root), "train")
    model: Any = asked.scorer
    visual = Padded.whole(asked.reader.visual(slice(None)).values.float())
    with torch.inference_mode():
        maps_BLK = model.attention_visual(visual)
        head = model.image_mean
        pooled_BF = (maps_BLK.mT @ visual.values)[:, 0]
        mean_BD = head.norm(model.image(visual.values.mean(1)) + head.local(pooled_BF).sigmoid())
        torch.testing.assert_close(
            torch.nn.functional.normalize(mean_BD, dim=1), model.encode_visual(visual).mean, rtol=1e-4, atol=1e-5
        )
    assert maps_BLK.shape == (8, 4, 1)


@pytest.mark.parametrize(("name", "count"), [("pcme", 1), ("pvse-pixels", 2), ("pcme-pixels", 1)])
def test_the_first_items_of_a_split_are_drawn_also_of_runs_that_read_pixels(
    name: str,
    count: int,
    root: str,
    runs: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command = [runs(name), "--root", root, "--split", "train", "--attention", tmp_path, "--first", 3]
    code, out, _ = look(capsys, *command)
    lines = out.splitlines()
    assert (code, lines[-1]) == (0, f"3 pictures in {tmp_path}")
    assert [Path(line.partition(": ")[0]).name for line in lines[:-1]] == ["p000.png", "p001.png", "p002.png"]
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert image.width == (1 + count) * SIDE + count * GAP


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("vsepp", ["--attention", "OUT"], "toy has no attention to look at; PVSE, PCME, A3VSE, DAN and SCAN have"),
        ("pvse-whole", ["--attention", "OUT"], "no embeddings (K = 0) has no attention"),
        ("toy-pcme", ["--attention", "OUT"], "does not say which network saw the pictures"),
        ("pvse", ["--attention", "OUT", "--items", "p001", "p009"], "p009: not among the 8 items of train that have"),
        ("pvse", ["--probes"], "toy-pvse has no uncertainty to probe, as its items are points"),
        ("pcme-mu", ["--probes"], "toy-pcme has no uncertainty to probe"),
        ("pcme", ["--probes", "--first", "2"], "--items and --first belong to pictures"),
        ("pcme", ["--probes", "--items", "p001"], "--items and --first belong to pictures"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(
    name: str,
    arguments: list[str],
    message: str,
    root: str,
    toy: str,
    runs: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    told = [str(tmp_path / "out") if argument == "OUT" else argument for argument in arguments]
    where = ["--root", toy, "--split", "toy/train"] if name.startswith("toy") else ["--root", root, "--split", "train"]
    code, out, complaint = look(capsys, runs(name), *where, *told)
    assert (code, out) == (1, "")
    assert message in complaint
    assert not (tmp_path / "out").exists()


def test_features_without_places_and_pictures_that_are_gone_or_damaged_are_refused(
    root: str, runs: Callable[[str], str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pooled").mkdir()
    pooled = make_pictures(tmp_path / "pooled", "pooled")
    whole = PVSEConfig(width=16, word_width=12, embeddings=0)  # others refuse a store of one position
    fit(seen(PVSE, model=whole), pooled, str(tmp_path / "run"))
    told = ["--split", "train", "--attention", tmp_path / "out"]
    assert "is pooled, which is no grid" in look(capsys, tmp_path / "run", "--root", pooled, *told)[2]
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    for blob in (path for path in (copy / "blobs").rglob("*") if path.is_file()):
        data = blob.read_bytes()
        blob.unlink()
        blob.write_bytes(data[:200] if data[:2] == b"\xff\xd8" else data)
    _, _, complaint = look(capsys, runs("pvse"), "--root", copy, *told)
    assert "pictures/p000.jpg of media/" in complaint
    assert "is 200 bytes instead of" in complaint
    assert "xmodal verify --forget" in complaint
    shutil.rmtree(copy / "media")
    _, _, complaint = look(capsys, runs("pvse"), "--root", copy, *told)
    assert "`xmodal build pictures/media --root " in complaint
    assert not (tmp_path / "out").exists()


def uncertainty(encoded: Any) -> float:
    return float(encoded.log_sigma.double().mean(1).exp().mean())


def test_probes_are_the_uncertainty_of_what_was_changed(
    root: str, runs: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = look(capsys, runs("pcme"), "--root", root, "--split", "train", "--probes", "--json")
    found = json.loads(out)
    assert (code, found["items"], found["captions"], found["unprobed"]) == (0, 8, 40, None)
    asked = open_run(runs("pcme"), Setup(root), "train")
    visual = Padded.whole(asked.reader.visual(slice(None)).values.float())
    text, after = asked.reader.text(slice(None)), Padded.whole(visual.values.roll(-1, 0))
    assert [probed["share"] for probed in found["probes"]] == [0.0, *uncertainty_probes.SHARES]
    with torch.inference_mode():
        for probed in found["probes"]:
            share, chance = probed["share"], [Generator().manual_seed(0) for _ in range(3)]
            unknown = asked.scorer.encode_text(mark_unknown(text, share, chance[0]))
            erased = asked.scorer.encode_visual(cut_out(visual, (2, 2), share, chance[1]))
            mixed = asked.scorer.encode_visual(mix(visual, after, (2, 2), share, chance[2]))
            expected = [uncertainty(encoded) for encoded in (unknown, erased, mixed)]
            assert [probed[name] for name in ("unknown", "erased", "mixed")] == pytest.approx(expected, rel=1e-5)
    assert len({probed["unknown"] for probed in found["probes"]}) > 3


def test_bins_share_the_recall_of_the_evaluation(
    root: str, runs: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = look(capsys, runs("pcme"), "--root", root, "--split", "train", "--probes", "--json")
    assert main(["evaluate", runs("pcme"), "--root", root, "--split", "train", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]["all"]
    for side, count in (("visual_to_text", 8), ("text_to_visual", 40)):
        bins = json.loads(out)[side]
        assert (len(bins), sum(each["count"] for each in bins)) == (min(10, count), count)
        recall = sum(each["recall"] * each["count"] for each in bins) / count
        assert recall == pytest.approx(scores[side]["recall"]["1"])
        assert [each["least"] for each in bins] == sorted(each["least"] for each in bins)


def test_pixels_are_probed_where_the_run_reads_them(
    root: str, runs: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing changed is the same picture; everything is black, or the next picture, and so the same pictures."""
    monkeypatch.setattr(uncertainty_probes, "SHARES", (0.0, 0.5, 1.0))
    plain, nothing, half, everything = uncertainty_probes.probe(runs("pcme-pixels"), Setup(root), "train").probes
    assert nothing == replace(plain, share=0.0)
    asked = open_run(runs("pcme-pixels"), Setup(root), "train")
    with torch.inference_mode():
        empty = asked.scorer.encode_visual(Padded.whole(torch.zeros(1, 1, 3, 64, 64)))
    assert everything.erased == pytest.approx(uncertainty(empty), rel=1e-4)
    assert everything.mixed == pytest.approx(plain.mixed, rel=1e-6)
    assert half.erased not in (plain.erased, everything.erased)
    assert half.mixed != plain.mixed


def test_of_features_without_places_the_words_are_probed_alone(
    toy: str, runs: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = look(capsys, runs("toy-pcme"), "--root", toy, "--probes")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "mean uncertainty of 15 captions and 3 pictures of toy/test")
    assert lines[1].split() == ["share", "words", "<unk>", "erased", "mixed"]
    assert [line.split("%")[0].strip() for line in lines[2:8]] == ["0", "10", "20", "30", "40", "50"]
    assert all(line.endswith("-") for line in lines[3:8])
    assert lines[8].startswith("pictures are not probed: ")
    assert "does not say which network saw the pictures" in lines[8]
    assert any(line.startswith("text to visual  R@1") for line in lines)
