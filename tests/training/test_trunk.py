"""Pictures are cut as torchvision cuts them, by draws that are a sample's own; the trunk is what made the features."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import RandomErasing, RandomResizedCrop  # type: ignore[import-untyped]
from torchvision.transforms import functional as official

from pipelines.demo.world import World, describe, draw, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.toy_root import PICTURES
from tests.toy_root import make_root as make_toy_root
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch
from xmodal.batches.dataset import open_dataset
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.batches.sample_order import SampleRandom
from xmodal.corpora import load as load_corpus
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.media.images import DEVIATION, MEAN
from xmodal.models import Inputs, Trainable
from xmodal.models.vsepp import VSEPP, VSEPPConfig
from xmodal.progress import Silence
from xmodal.recipes import OnePerClass, Pixels, Tokens
from xmodal.root.outputs import find
from xmodal.root.storage import open_storage
from xmodal.training import picture_crops
from xmodal.training.finetuning import WithBackbone, attach_backbone, attach_empty_backbone, network_of
from xmodal.training.picture_crops import PictureReader, coloured, picture_reader, training_cuts
from xmodal.training.validation import measure

RESIZED = Pixels("resized", flip=False)
EVERYTHING = Pixels("resized", flip=True, jitter=True, erase=0.5)
PLANS = [EVERYTHING, Pixels("random", flip=True), Pixels("centre", flip=False, erase=0.2)]
WORLD = World(items=10, image_size=96)
SETTINGS = {"resnet.network": "resnet18", "resnet.weights": "random:0", "resnet.resize": 72, "resnet.crop": 64}
SETTINGS |= {"pixels.side": 72}


def places(side: int = 256) -> NDArray[np.uint8]:
    """(S, S, 3): every pixel says where it is: red is x, green is y."""
    x_SS, y_SS = np.meshgrid(np.arange(side), np.arange(side))
    return np.stack([x_SS, y_SS, np.full((side, side), 9)], axis=2).astype(np.uint8)


def training_pixels(pictures_BSS3: NDArray[np.uint8], plan: Pixels, crop: int, chance: SampleRandom) -> torch.Tensor:
    """(B, 3, H, W)"""
    cuts = training_cuts(np.array([picture.shape[:2] for picture in pictures_BSS3]), plan, crop, chance)
    made = [one.pixels(Image.fromarray(picture), crop) for one, picture in zip(cuts, pictures_BSS3, strict=True)]
    return torch.from_numpy(np.stack(made))


def cut(plan: Pixels, count: int, crop: int = 32, side: int = 256, seed: int = 0, epoch: int = 0) -> NDArray[Any]:
    """(B, H, W, 3): what comes of pictures that say where they are, as bytes again."""
    pictures_BSS3 = np.broadcast_to(places(side), (count, side, side, 3))
    return colours(training_pixels(pictures_BSS3, plan, crop, SampleRandom(seed, epoch, np.arange(count))))


def colours(pixels_B3HW: torch.Tensor) -> NDArray[Any]:
    values = pixels_B3HW.permute(0, 2, 3, 1).double() * torch.tensor(DEVIATION) + torch.tensor(MEAN)
    return np.asarray((values * 255).numpy())


@pytest.mark.parametrize("plan", PLANS)
def test_a_cut_is_the_samples_own(plan: Pixels) -> None:
    """Whatever else is in its batch; and nobody else's random numbers are touched or used."""
    dice = np.random.default_rng(0)
    pictures_BSS3 = dice.integers(0, 256, (6, 40, 40, 3)).astype(np.uint8)
    samples = np.array([5, 900, 3, 77, 1_000_003, 8])
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    whole = training_pixels(pictures_BSS3, plan, 32, SampleRandom(1, 2, samples))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (random.getstate(), repr(np.random.get_state())) == before[1:]
    torch.manual_seed(99)
    assert (whole.shape, whole.dtype) == ((6, 3, 32, 32), torch.float32)
    for rows in ([3], [5, 0, 1], [4, 2]):
        part = training_pixels(pictures_BSS3[rows], plan, 32, SampleRandom(1, 2, samples[rows]))
        assert torch.equal(part, whole[rows])
    for draws in (SampleRandom(1, 3, samples), SampleRandom(2, 2, samples)):
        assert not torch.equal(training_pixels(pictures_BSS3, plan, 32, draws), whole)


def rectangles(count: int) -> NDArray[Any]:
    """(B, 4): left, top, width and height of what is cut from a side of 128: larger than that, its corners are kept."""
    pictures_BSS3 = np.broadcast_to(places(128), (count, 128, 128, 3))
    pixels_B3HW = training_pixels(pictures_BSS3, RESIZED, 130, SampleRandom(0, 0, np.arange(count)))
    corners_B22 = np.rint(colours(pixels_B3HW[:, :, ::129, ::129])).astype(int)[:, [0, 1], [0, 1], :2]
    return np.concatenate([corners_B22[:, 0], corners_B22[:, 1] - corners_B22[:, 0] + 1], axis=1)


@pytest.mark.parametrize("size", [(96, 170), (170, 96)])
def test_crops_of_pictures_that_are_not_square_are_drawn_as_torchvision_draws_them(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    cuts = training_cuts(np.array([size] * 1500), RESIZED, 64, SampleRandom(0, 0, np.arange(1500)))
    theirs = [RandomResizedCrop.get_params(torch.zeros(3, *size), (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(1500)]
    ours_B4, theirs_B4 = np.array([one.box for one in cuts]), np.array(theirs)
    assert (ours_B4[:, :2] + ours_B4[:, 2:]).max(0).tolist() == list(size)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        np.testing.assert_allclose(np.quantile(ours_B4, level, axis=0), np.quantile(theirs_B4, level, axis=0), atol=7)


@pytest.mark.parametrize("size", [(10, 1000), (1000, 10), (128, 128)])
def test_where_no_crop_fits_the_middle_is_taken_as_torchvision_takes_it(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No crop is ever so small that it fits these long ones."""
    area = (0.08, 1.0) if max(size) == 1000 else (1.5, 2.0)
    monkeypatch.setattr(picture_crops, "CROP", (area, (3 / 4, 4 / 3)))
    (found,) = training_cuts(np.array([size]), RESIZED, 64, SampleRandom(0, 0, np.arange(1)))
    assert found.box == RandomResizedCrop.get_params(torch.zeros(3, *size), area, (3 / 4, 4 / 3))


def test_resized_crops_are_drawn_as_torchvision_draws_them() -> None:
    """Area and aspect stay within their limits, but for rounding, and all their quantiles are near."""
    torch.manual_seed(0)
    ours_B4 = rectangles(1000)
    areas, aspects = ours_B4[:, 2] * ours_B4[:, 3] / 128**2, ours_B4[:, 2] / ours_B4[:, 3]
    assert 0.075 < areas.min() < 0.1 < 0.95 < areas.max() <= 1
    assert 0.73 < aspects.min() < 0.77 < 1.3 < aspects.max() < 1.37
    assert ours_B4[:, :2].min() == 0
    assert (ours_B4[:, :2] + ours_B4[:, 2:]).max() == 128
    image = torch.zeros(3, 128, 128)
    theirs = [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(1500)]
    theirs_B4 = np.array([(left, top, width, height) for top, left, height, width in theirs])
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        np.testing.assert_allclose(np.quantile(ours_B4, level, axis=0), np.quantile(theirs_B4, level, axis=0), atol=6)


@pytest.mark.parametrize("crop", [32, 96])
def test_what_is_cut_out_is_resized_as_torchvision_resizes_it(crop: int) -> None:
    picture = np.random.default_rng(3).integers(0, 256, (128, 128, 3)).astype(np.uint8)
    found = colours(training_pixels(np.stack([picture] * 9), RESIZED, crop, SampleRandom(0, 0, np.arange(9))))
    for sample, (left, top, width, height) in enumerate(rectangles(9).tolist()):
        expected = official.resized_crop(Image.fromarray(picture), top, left, height, width, [crop, crop])
        np.testing.assert_allclose(found[sample], np.asarray(expected), atol=1e-3)


def test_random_crops_are_not_resized_and_reach_every_edge() -> None:
    cuts = np.rint(cut(Pixels("random", flip=False), 600, crop=32, side=40)).astype(int)
    corners = {tuple(one[0, 0, :2]) for one in cuts}
    assert corners == set(product(range(9), repeat=2))
    for one in cuts[:20]:
        left, top = one[0, 0, :2]
        np.testing.assert_array_equal(one, places(40)[top : top + 32, left : left + 32])


def test_half_of_the_pictures_are_flipped() -> None:
    straight, maybe = cut(Pixels("centre", False), 1)[0], cut(Pixels("centre", True), 1000)
    flipped = maybe[:, 0, 0, 0] > maybe[:, 0, -1, 0]
    assert 430 < flipped.sum() < 570
    np.testing.assert_array_equal(maybe[flipped][0], straight[:, ::-1])
    np.testing.assert_array_equal(maybe[~flipped][0], straight)
    np.testing.assert_allclose(straight, places()[112:144, 112:144], atol=1e-3)


def erased(probability: float, count: int) -> Iterator[tuple[int, int] | None]:
    """Height and width of what was erased of each picture: it is zero, and nothing else is."""
    black = np.zeros((count, 64, 64, 3), np.uint8)
    plan = Pixels("centre", False, erase=probability)
    for picture_3HW in training_pixels(black, plan, 64, SampleRandom(0, 0, np.arange(count))).numpy():
        zeros_HW = (picture_3HW == 0).all(axis=0)
        assert ((picture_3HW == 0).any(axis=0) == zeros_HW).all()
        if not zeros_HW.any():
            yield None
            continue
        rows, columns = np.flatnonzero(zeros_HW.any(axis=1)), np.flatnonzero(zeros_HW.any(axis=0))
        height, width = int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
        assert zeros_HW.sum() == height * width
        yield height, width


def test_the_share_of_pictures_that_are_erased() -> None:
    assert 0.17 < np.mean([size is not None for size in erased(0.2, 2000)]) < 0.23
    assert set(erased(0.0, 50)) == {None}


def test_erased_rectangles_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    ours = np.array([size for size in erased(1.0, 1200) if size])
    assert len(ours) > 1190
    areas, aspects = ours.prod(axis=1) / 64**2, ours[:, 0] / ours[:, 1]
    assert 0.017 < areas.min() < 0.03 < 0.31 < areas.max() < 0.35
    assert 0.25 < aspects.min() < 0.35 < 2.9 < aspects.max() < 4
    theirs = [RandomErasing.get_params(torch.zeros(3, 64, 64), (0.02, 1 / 3), (0.3, 1 / 0.3), [0]) for _ in range(1200)]
    sizes = np.array([(height, width) for _, _, height, width, _ in theirs])
    for level in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(ours, level, axis=0), np.quantile(sizes, level, axis=0), atol=3)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_colours_change_as_torchvision_changes_them(order: tuple[int, ...]) -> None:
    image = Image.fromarray(draw(scene(WORLD, 0)))
    found = coloured(image, (1.07, 0.93, -0.06), order)
    steps = (
        lambda one: official.adjust_brightness(one, 1.07),
        lambda one: official.adjust_contrast(one, 0.93),
        lambda one: official.adjust_hue(one, -0.06),
    )
    expected = image
    for step in order:
        expected = steps[step](expected)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_jitter_changes_the_light_of_each_picture_a_little() -> None:
    gray = np.full((300, 32, 32, 3), 128, np.uint8)
    found = colours(training_pixels(gray, Pixels("centre", False, jitter=True), 32, SampleRandom(0, 0, np.arange(300))))
    light = found.mean(axis=(1, 2, 3)) / 128
    assert 0.89 < light.min() < 0.92 < 1.08 < light.max() < 1.11


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {output: make_root(tmp_path_factory.mktemp(output), output) for output in ("grid", "pooled")}


def make_raw(folder: Path) -> Path:
    """Ten scenes, wider than they are high, and their captions."""
    raw = folder / "raw"
    raw.mkdir()
    names = [f"p{number:03d}.jpg" for number in range(10)]
    for number, name in enumerate(names):
        Image.fromarray(draw(scene(WORLD, number))).resize((123, 90)).save(raw / name, "JPEG")
    lines = [f"{name}\t{describe(scene(WORLD, n), WORLD, p)}\n" for n, name in enumerate(names) for p in range(5)]
    (raw / "captions.tsv").write_text("".join(lines))
    (raw / "splits.json").write_text(json.dumps({"train": names[:8], "val": names[8:]}))
    (raw / "pictures.txt").write_text("".join(f"gopher://gone/{name}\n" for name in names))
    return raw


def make_root(folder: Path, output: str, **settings: object) -> str:
    """The scenes with their features and their pixels."""
    raw = make_raw(folder)
    site = BuildOptions(
        open_storage(str(folder / "root")), raw=raw, settings=SETTINGS | {"resnet.output": output} | settings
    )
    build_stages(CorpusBuild(site, replace(load_corpus(str(PICTURES)), counts={})), ["resnet", "pixels"])
    return site.storage.url


def opened(root: str, split: str = "train", plan: Pixels = EVERYTHING) -> tuple[Reader, PictureReader]:
    dataset = open_dataset(root, "pictures")
    features = dataset.reader(split, "resnet")
    return features, picture_reader(features, dataset.store("pixels"), plan)


def model_of(reader: Reader, negatives: Any = "hardest") -> VSEPP:
    torch.manual_seed(0)
    words = 1 + max(int(caption.max()) for caption in reader.examples.words)
    return VSEPPConfig(width=24, word_width=12, negatives=negatives).build(
        Inputs(reader.store.spec.row_shape[-1], words, 8)
    )


@pytest.mark.parametrize("output", ["grid", "pooled"])
def test_in_evaluation_the_trunk_gives_the_stored_features(roots: dict[str, str], output: str) -> None:
    features, seen = opened(roots[output])
    fronted = attach_backbone(model_of(features), features.store).eval()
    assert isinstance(fronted, Trainable)
    stored, given = features.visual(slice(None)), seen.visual(slice(None))
    assert given.values.shape == (8, 1, 3, 64, 64)
    with torch.inference_mode():
        computed = fronted.features(given)
        assert computed.values.shape == stored.values.shape == (8, 4 if output == "grid" else 1, 512)
        torch.testing.assert_close(computed.values, stored.values.float(), rtol=1e-3, atol=1e-4)
        whole, alone = fronted.encode_visual(given), fronted.model.get_submodule("image")
        model = model_of(features).eval()
        torch.testing.assert_close(alone.weight, model.image.weight)
        expected = model.encode_visual(replace(stored, values=stored.values.float()))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-3)


def test_the_names_of_a_model_stay_and_those_of_the_network_are_the_trunks(roots: dict[str, str]) -> None:
    features, _ = opened(roots["pooled"])
    before = set(model_of(features).state_dict())
    fronted = attach_backbone(model_of(features), features.store)
    after = set(fronted.state_dict())
    assert after - before == {name for name in after if name.startswith("trunk.")}
    assert before < after
    assert {name for name, _ in fronted.named_parameters()} <= after
    assert len(list(fronted.parameters())) == len(list(model_of(features).parameters())) + 60
    other = attach_empty_backbone(model_of(features), features.store)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(fronted.state_dict())
    for name, values in other.state_dict().items():
        assert torch.equal(values, fronted.state_dict()[name]), name


@pytest.mark.parametrize("output", ["grid", "pooled"])
def test_a_step_reaches_every_parameter_and_two_steps_help(roots: dict[str, str], output: str) -> None:
    features, seen = opened(roots[output])
    fronted = attach_backbone(model_of(features, "all"), features.store).train()
    batch = next(iter(Loader(seen, 8, captions="one")))
    optimiser = torch.optim.Adam(fronted.parameters(), 1e-5)
    losses = []
    for step in range(3):
        loss = fronted.objective(batch)["ranking"]
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        if step == 0:
            still = [name for name, p in fronted.named_parameters() if p.grad is None or not p.grad.any()]
            assert still == []
        optimiser.step()
    assert losses[2] < losses[1] < losses[0]


def test_pictures_keep_what_a_recipe_says_of_texts_and_classes(roots: dict[str, str]) -> None:
    features, _ = opened(roots["pooled"])
    tokens, classes = Tokens("nltk", 1, longest=2, marked=0.5), np.arange(len(features.examples.ids)) % 4
    told = replace(features, tokens=tokens, classes=classes)
    seen = picture_reader(told, open_dataset(roots["pooled"], "pictures").store("pixels"), EVERYTHING)
    for batch, other in zip(
        Loader(told, 4, captions="one", sampler=OnePerClass()),
        Loader(seen, 4, captions="one", sampler=OnePerClass()),
        strict=True,
    ):
        ours, theirs = batch.streams["annotated"], other.streams["annotated"]
        assert ours.text.lengths.max() <= 4
        assert torch.equal(ours.text.values, theirs.text.values)
        assert ours.visual_classes is not None
        assert theirs.visual_classes is not None
        assert ours.visual_classes.tolist() == theirs.visual_classes.tolist()


def test_the_loader_reads_pictures_as_it_reads_features(roots: dict[str, str]) -> None:
    """Any number of ranks sees the same cuts, each epoch sees others, and one that was broken off goes on alike."""
    features, seen = opened(roots["pooled"])
    whole, ranks = list(Loader(seen, 8, seed=4)), [Loader(seen, 8, seed=4, rank=rank, world=2) for rank in (0, 1)]
    halves = [list(loader) for loader in ranks]
    for place, batch in enumerate(whole):
        streams = [half[place].streams["annotated"] for half in halves]
        assert torch.equal(torch.cat([s.visual.values for s in streams]), batch.streams["annotated"].visual.values)
    plain = list(Loader(features, 8, seed=4))
    for ours, theirs in zip(whole, plain, strict=True):
        assert torch.equal(ours.streams["annotated"].captions, theirs.streams["annotated"].captions)
    later = Loader(seen, 8, seed=4)
    later.load_state_dict({"seed": 4, "epoch": 0, "cursor": 16})
    assert torch.equal(
        next(iter(later)).streams["annotated"].visual.values, whole[2].streams["annotated"].visual.values
    )
    later.set_epoch(1)
    assert not cuts(list(later)) & cuts(whole)


def cuts(batches: list[Batch]) -> set[tuple[int, bytes]]:
    """Captions with the pixels that they came with."""
    streams = [batch.streams["annotated"] for batch in batches]
    return {(int(c), v.numpy().tobytes()) for s in streams for c, v in zip(s.captions, s.visual.values, strict=True)}


def test_evaluation_cuts_the_middle_every_time(roots: dict[str, str]) -> None:
    features, seen = opened(roots["pooled"], "val")
    fronted = attach_backbone(model_of(features), features.store)
    scores = [measure(fronted, seen, Silence(), blocks=blocks)["all"] for blocks in ((256, 1024), (1, 3))]
    assert scores[0] == scores[1]
    assert not fronted.model.get_submodule("trunk").training


def test_squares_of_another_side_are_refused(roots: dict[str, str]) -> None:
    features, seen = opened(roots["pooled"])
    other = FeatureStore(find(roots["grid"], "pixels")[0])
    features.store.provenance["preprocessing"]["resize"] = 80
    with pytest.raises(UserError, match=r"side 72, but the features .* resized to 80: build pixels with .*side=80"):
        picture_reader(features, other, EVERYTHING)
    with pytest.raises(UserError, match="holds no squares of pixels"):
        replace(seen, store=features.store)
    with pytest.raises(UserError, match="side 72, too small to cut 96"):
        replace(seen, crop=96)


def test_features_of_an_unknown_or_another_network_are_refused(roots: dict[str, str], tmp_path: Path) -> None:
    toy = FeatureStore(find(make_toy_root(tmp_path, items=20), "resnet")[0])
    with pytest.raises(
        UserError, match=r"does not say which network made it .*features of the resnet or the clips stage"
    ):
        network_of(toy)
    features, _ = opened(roots["pooled"])
    features.store.provenance["weights_sha256"] = "0"
    with pytest.raises(UserError, match="was made with other weights than resnet18 random:0 has here"):
        attach_backbone(model_of(features), features.store)


def test_a_model_has_one_trunk(roots: dict[str, str]) -> None:
    features, _ = opened(roots["pooled"])
    fronted = attach_backbone(model_of(features), features.store)
    assert isinstance(fronted, WithBackbone)
    with pytest.raises(ValueError, match="VSEPP has a trunk already"):
        attach_backbone(fronted.model, features.store)
