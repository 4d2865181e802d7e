"""Dual-Path's two stages: what moves and how fast, whole pictures at the test, a kill in either, and two processes."""

import copy
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.toy_root import fit, recipe
from tests.toy_root import make_root as toy_root
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import assert_same_run
from tests.training.test_training_together import CLASSES, classed_root, curve, processes, train
from tests.training.test_trunk import make_root
from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.batches.dataset import open_dataset
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.checks.model_contract import INPUTS
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.networks import ResNet
from xmodal.losses.instance import instance_loss
from xmodal.models import Inputs
from xmodal.models.dual_path import END_TO_END, FLICKR30K, DualPath, DualPathConfig
from xmodal.models.two_branch import TwoBranchConfig
from xmodal.progress import Silence
from xmodal.recipes import Candidates, Optimiser, Pixels, Recipe, Tokens, View
from xmodal.text.vocabularies import SPECIALS
from xmodal.training import optimisers, run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import WithBackbone, attach_backbone
from xmodal.training.picture_crops import PictureReader, picture_reader
from xmodal.training.run_setup import Setup

CONFIG = DualPathConfig((1, 1, 1, 1), channels=16, width=32, word_width=12, length=16, dropout=0.2)
STAGE_1, STAGE_2 = FLICKR30K.phases
WHOLE = Pixels("random", flip=True, evaluation="whole_and_flipped")


def stages(*phases: Any) -> Recipe:
    """Eight pictures with five captions each, of which an epoch takes one: two steps."""
    return recipe(
        name="stages",
        view=View("pictures", "train"),
        validation=View("pictures", "val"),
        model=CONFIG,
        phases=phases,
        batch_size=4,
    )


FEATURES = replace(STAGE_1, epochs=2)
PICTURES = replace(STAGE_2, epochs=2, sampler=Candidates(6))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("pictures"), "pooled")


@pytest.fixture(scope="module")
def whole(pictures: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = str(tmp_path_factory.mktemp("stages") / "run")
    train(stages(FEATURES, PICTURES), pictures, run)
    return run


def opened(root: str, split: str = "train") -> tuple[Reader, PictureReader]:
    dataset = open_dataset(root, "pictures")
    features = dataset.reader(split, "resnet")
    seen = picture_reader(features, dataset.store("pixels"), WHOLE)
    assert isinstance(seen, PictureReader)
    return features, seen


def end_to_end(features: Reader) -> WithBackbone:
    torch.manual_seed(0)
    words = 1 + max(int(caption.max()) for caption in features.examples.words)
    return attach_backbone(CONFIG.build(Inputs(512, words, len(features.examples.ids))), features.store)


def test_the_second_stage_moves_everything_by_the_rates_that_it_says(pictures: str) -> None:
    features, seen = opened(pictures)
    model = end_to_end(features).train()
    expected = {
        "text.words.weight": 1e-3, "trunk.0.weight": 1e-4, "trunk.1.weight": 0.02, "trunk.1.bias": 0.02,
        "trunk.4.0.conv1.weight": 1e-3, "trunk.4.0.bn2.bias": 0.02, "trunk.5.0.downsample.0.weight": 1e-3,
        "trunk.5.0.downsample.1.weight": 0.02, "classifier.weight": 1.0, "text.blocks.0.first.weight": 1.0,
        "visual_head.0.weight": 1.0,
    }  # fmt: skip
    plain = replace(END_TO_END, rule="sgd", momentum=0.0, weight_decay=0.0, schedule=None)
    optimiser = optimisers.build(model, plain)
    for group in optimiser.param_groups:
        group["lr"] = optimisers.rate(plain, 0, []) * group["multiplier"]
    drawn = {"captions": PICTURES.captions, "sampler": PICTURES.sampler, "dtype": torch.float32}
    batch = next(iter(Loader({ANNOTATED: seen}, stages(PICTURES).batch_size, seed=recipe().seed, **drawn)))
    torch.manual_seed(0)
    optimisers.total(model.objective(batch), STAGE_2.weights).backward()  # type: ignore[no-untyped-call]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
        rate = expected.get(name) or (0.02 if name.startswith("trunk") and ".bn" in name else None)
        if rate is not None:
            moved = before[name] - 0.1 * rate * parameter.grad
            torch.testing.assert_close(parameter.detach(), moved, msg=name)
    known = {multiplier for group in optimiser.param_groups for multiplier in [group["multiplier"]]}
    assert known == {1e-4, 1e-3, 0.02, 1.0}


def test_the_first_stage_leaves_pictures_alone_and_the_second_trains_all(pictures: str, whole: str) -> None:
    lines = curve(whole)
    assert [line["phase"] for line in lines] == [1] * 4 + [2] * 4
    assert all(0 <= line["terms"][f"error_{side}"] <= 1 for line in lines for side in ("visual", "text"))
    assert [line["rates"] for line in lines[::4]] == [[1e-4, 0.1], [1e-5, 1e-4, 0.002, 0.1]]
    after = read_tensors(whole, run_folder.LAST)["model"]
    first = {name: values.clone() for name, values in end_to_end(opened(pictures)[0]).state_dict().items()}
    trunk = [name for name in after if name.startswith("trunk.")]
    assert [name for name in trunk if torch.equal(after[name], first[name])] == []
    # steps of stage II alone: mining, which sees pictures once more in each, has moved no statistics
    assert {int(after[name]) for name in trunk if name.endswith("num_batches_tracked")} == {4}


def test_a_frozen_network_stays_with_its_statistics(pictures: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    train(stages(replace(PICTURES, epochs=1, frozen=("trunk.*",))), pictures, run)
    after, first = read_tensors(run, run_folder.LAST)["model"], end_to_end(opened(pictures)[0]).state_dict()
    assert all(torch.equal(after[name], values) for name, values in first.items() if name.startswith("trunk."))


@pytest.mark.parametrize("after", [3, 7, 9])
def test_a_run_that_is_killed_in_either_stage_goes_on(pictures: str, whole: str, tmp_path: Path, after: int) -> None:
    run = str(tmp_path / "run")
    assert processes(1, train, stages(FEATURES, PICTURES), pictures, run, 1, after) == [-signal.SIGKILL]
    place = read_tensors(run, run_folder.LAST)["state"]
    assert place["step"] < 8
    train(stages(FEATURES, PICTURES), pictures, run)
    assert_same_run(whole, run)


def test_whole_pictures_and_their_mirror_images_are_summed_behind_the_head(pictures: str, whole: str) -> None:
    """Pictures of 72 through a network whose crop is 64: windows of 2 x 2 positions of 3 x 3."""
    features, seen = opened(pictures, "val")
    model = end_to_end(features).eval()
    given = seen.visual(slice(None))
    assert given.values.shape == (2, 2, 3, 72, 72)
    assert torch.equal(given.values[:, 1], given.values[:, 0].flip(3))
    inner = model.model
    assert isinstance(inner, DualPath)
    with torch.no_grad():
        maps = [inner.get_submodule("trunk")(given.values[:, side]) for side in (0, 1)]
        assert maps[0].shape == (2, 512, 3, 3)
        corners = [(top, left) for top in (0, 1) for left in (0, 1)]
        windows = [one[:, :, top : top + 2, left : left + 2].mean((2, 3)) for one in maps for top, left in corners]
        expected = functional.normalize(torch.stack([inner.visual_head(one) for one in windows]).sum(0), dim=1)
        torch.testing.assert_close(model.encode_visual(given), expected, atol=1e-5, rtol=1e-5)
    assert evaluate(whole, Setup(pictures), "val").items == 2


def test_the_middle_of_a_picture_is_one_window(pictures: str) -> None:
    features, seen = opened(pictures, "val")
    middle = replace(seen, plan=replace(WHOLE, evaluation="centre")).visual(slice(None))
    assert middle.values.shape == (2, 1, 3, 64, 64)
    assert end_to_end(features).features(middle).values.shape == (2, 1, 512)


MODELS = {
    "all classes": CONFIG,
    "pixels": CONFIG,
    "split classes": replace(CONFIG, splits_classes=True),
    "classes drawn": replace(CONFIG, sampled_classes=3, splits_classes=True, class_bias=True),
}


def share_of_a_step(folder: str, name: str) -> None:
    """Loss, gradients and statistics of batches of several sizes; two processes borrow where they are odd."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    found, config, from_pixels = [], MODELS[name], name == "pixels"
    with distributed.process_group("cpu"):
        for rows in (5, 6):
            torch.manual_seed(0)
            model = in_front(config.build(INPUTS)) if from_pixels else config.build(INPUTS)
            share = -(-rows // world)
            stream = part(
                range(rank * share, (rank + 1) * share), (3, 64, 64) if from_pixels else (INPUTS.visual_width,)
            )
            batch = Batch({ANNOTATED: stream}, borrowed=share * world - rows)
            with distributed.whole_batch(batch):
                loss = optimisers.total(model.objective(batch), STAGE_2.weights)
            loss.backward()  # type: ignore[no-untyped-call]
            distributed.average_gradients(model.parameters())
            gradients = [parameter.grad for parameter in model.parameters()]
            found.append([loss.detach(), *gradients, *model.buffers()])
    torch.save(found, f"{folder}/{world}-{rank}.pt")


def in_front(model: DualPath) -> WithBackbone:
    """A CNN of one layer before the model, whose grid is 2 x 2."""
    trunk = nn.Sequential(
        nn.Conv2d(3, INPUTS.visual_width, 32, stride=32), nn.BatchNorm2d(INPUTS.visual_width), nn.ReLU()
    )
    network = ResNet("resnet18", "random:0", resize=72, crop=64, output="pooled")
    return WithBackbone(model, distributed.normalise_whole_batches(trunk), network).train()


def part(rows: range, shape: tuple[int, ...]) -> Stream:
    random = np.random.default_rng(0)
    visual = torch.from_numpy(random.normal(size=(6, 1, *shape)).astype("float32"))
    texts = [random.integers(4, INPUTS.text_width, 2 + row % 4).astype("int32") for row in range(11)]
    items, candidates = torch.tensor(list(rows)), torch.arange(6, 11)
    text_rows = torch.cat([items, candidates])
    text = Padded.of([texts[row] for row in text_rows.tolist()])
    pairs = torch.arange(len(items))[:, None].expand(-1, 2)
    return Stream(Padded.whole(visual[items]), text, items, text_rows % 8, text_rows, pairs)


@pytest.mark.parametrize("each", [1, 3])
@pytest.mark.parametrize(("samples", "world"), [(6, 1), (5, 2), (1, 3), (5, 4), (7, 5)])
def test_processes_have_the_rows_of_a_batch_once(
    samples: int, world: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four processes the last has none of five samples: both of its own are borrowed, and one before it."""
    share, own = -(-samples // world), list[int]()
    batch = Batch({ANNOTATED: part(range(share), (INPUTS.visual_width,))}, borrowed=share * world - samples)
    monkeypatch.setattr(distributed, "world", lambda: world)
    for rank in range(world):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        with distributed.whole_batch(batch) as whole:
            whole.is_gathered = True
            own.append(distributed.own_rows(share * each))
    assert own == [max(0, min(share, samples - rank * share)) * each for rank in range(world)]


@pytest.mark.parametrize("name", MODELS)
def test_two_processes_take_the_step_of_one(tmp_path: Path, name: str) -> None:
    for world in (1, 2):
        assert processes(world, share_of_a_step, str(tmp_path), name) == [0] * world
    alone, *ranks = (torch.load(tmp_path / f"{file}.pt") for file in ("1-0", "2-0", "2-1"))
    for rank in ranks:
        for ours, theirs in zip(rank, alone, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                assert isinstance(one, Tensor)
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def half_of_maps(folder: str) -> None:
    """Maps of half of a batch in half precision, normalised by those of both processes."""
    with distributed.process_group("cpu"), torch.autocast("cpu", torch.bfloat16):
        norm, rank = distributed.WholeBatchNorm2d(3), distributed.rank()
        maps = norm(maps_of_a_batch()[3 * rank : 3 * rank + 3])
    torch.save([maps, norm.running_mean, norm.running_var], f"{folder}/{rank}.pt")


def maps_of_a_batch() -> Tensor:
    return torch.randn(6, 3, 40, 40, generator=torch.Generator().manual_seed(0)).add(3).bfloat16()


def test_batch_norm_of_half_precision_has_the_statistics_of_single(tmp_path: Path) -> None:
    assert processes(2, half_of_maps, str(tmp_path)) == [0, 0]
    whole, maps = nn.BatchNorm2d(3), maps_of_a_batch()
    expected = whole(maps.float()).detach().bfloat16()
    assert whole.running_mean is not None
    assert whole.running_var is not None
    for rank, (found, mean, variance) in enumerate(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected[3 * rank : 3 * rank + 3])
        torch.testing.assert_close(mean, whole.running_mean, atol=0, rtol=1e-6)
        torch.testing.assert_close(variance, whole.running_var, atol=0, rtol=1e-6)


def split_losses(folder: str) -> None:
    """Losses, errors and gradients of whole numbers, whose highest logits are often several."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    found, random = [], torch.Generator().manual_seed(0)
    with distributed.process_group("cpu"):
        for classes, draws in ((1, 0), (2, 0), (3, 0), (9, 0), (9, 4)):
            torch.manual_seed(0)
            shapes = (12, 3), (classes, 3), (classes,)
            leaves = [nn.Parameter(torch.randint(-1, 2, shape, generator=random).float()) for shape in shapes]
            labels = torch.randint(classes, (12,), generator=random)
            losses, wrong = instance_loss(leaves[0], leaves[1], labels, leaves[2], draws=draws, is_split=True)
            losses.square().sum().backward()  # type: ignore[no-untyped-call]
            distributed.average_gradients(leaves)
            found.append([losses.detach(), wrong, *(leaf.grad for leaf in leaves)])
    torch.save(found, f"{folder}/{world}-{rank}.pt")


def test_any_number_of_classes_is_split_among_processes(tmp_path: Path) -> None:
    for world in (1, 3):
        assert processes(world, split_losses, str(tmp_path)) == [0] * world
    alone, *ranks = (torch.load(tmp_path / f"{file}.pt") for file in ("1-0", "3-0", "3-1", "3-2"))
    for rank in ranks:
        torch.testing.assert_close(rank, alone)
    assert 0 < torch.cat([case[1] for case in alone[1:]]).mean() < 1


def test_a_network_has_the_batch_norms_and_the_bits_of_before_in_one_process() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.BatchNorm2d(4, eps=0.1, momentum=0.3)), nn.ReLU())
    whole, maps = distributed.normalise_whole_batches(copy.deepcopy(plain)), torch.randn(5, 3, 8, 8)
    assert isinstance(whole.get_submodule("1.0"), distributed.WholeBatchNorm2d)
    for training in (True, False):
        assert torch.equal(whole.train(training)(maps), plain.train(training)(maps))
    assert whole.state_dict().keys() == plain.state_dict().keys()
    assert all(torch.equal(values, whole.state_dict()[name]) for name, values in plain.state_dict().items())


def test_classes_are_items_or_what_the_corpus_calls_them(tmp_path: Path) -> None:
    """Of 48 pictures to train on, in six classes."""
    root = classed_root(tmp_path)
    for learns_identities, classes in ((False, 48), (True, CLASSES)):
        model = replace(CONFIG, learns_identities=learns_identities)
        small = recipe(model=model, phases=(replace(STAGE_1, epochs=1),))
        outcome = fit(small, root, str(tmp_path / f"run{classes}"))
        assert len(read_tensors(outcome.run, run_folder.BEST)["classifier.weight"]) == classes
        assert evaluate(outcome.run, Setup(root), "toy/val").items > 0


class Saying(Silence):
    def __init__(self) -> None:
        self.said = list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)


def test_captions_that_are_cut_are_counted_at_the_start_alone(tmp_path: Path) -> None:
    root = toy_root(tmp_path, items=20)
    small = recipe(model=replace(CONFIG, length=8), phases=(replace(STAGE_1, epochs=1),))
    words = open_dataset(root, "pictures").reader("toy/train", "resnet", tokens=Tokens("nltk", 2)).examples.words
    known = [np.count_nonzero(text >= len(SPECIALS)) for text in words]
    cut = sum(count > 8 for count in known)
    line = f"model.length=8 cuts {cut} of {len(known)} captions to their first 8 known words"
    assert 0 < cut < len(known)
    starts_alone(line, small, root, tmp_path / "run")
    ten = sum(len(text) > 10 + 2 for text in words)  # beside <start> and <end>
    fewer = sum(np.count_nonzero(text[1:11] >= len(SPECIALS)) > 8 for text in words)  # of the ten that are left
    assert 0 < ten < len(words)
    assert fewer < cut
    starts_alone(
        f"text.longest=10 cuts {ten} of {len(words)} captions to their first 10 words",
        replace(small, text=Tokens("nltk", 2, longest=10)),
        root,
        tmp_path / "ten",
        f"model.length=8 cuts {fewer} of {len(known)} captions to their first 8 known words",
    )


def starts_alone(line: str, recipe: Recipe, root: Setup, run: Path, *others: str) -> None:
    for times in (1, 0):
        heard = Saying()
        fit(recipe, root, str(run), progress=heard)
        assert [heard.said.count(each) for each in (line, *others)] == [times] * (1 + len(others)), heard.said


@pytest.mark.parametrize("model", [CONFIG, TwoBranchConfig(hidden=8, width=8)])
def test_a_batch_of_one_pair_is_refused_before_anything_is_written(model: Any, tmp_path: Path) -> None:
    root = toy_root(tmp_path, items=20)
    one = recipe(model=model, phases=(replace(STAGE_1, weights={"ranking": 1.0}),), batch_size=1)
    with pytest.raises(UserError, match=r"^batch_size 1 leaves batch norm one row.*\(--set batch_size=32\)$"):
        fit(one, root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_rates_are_those_of_the_recipe() -> None:
    assert isinstance(STAGE_1.optimiser, Optimiser)
    assert [optimisers.rate(STAGE_2.optimiser, epoch, []) for epoch in (0, 39, 40)] == [0.1, 0.1, pytest.approx(0.01)]
