"""A VGG is trained further from pictures: its convolutions give the stored fc7, and a run goes through both stages."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torchvision  # type: ignore[import-untyped]
from torch import nn
from torch.nn.functional import normalize

from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.toy_root import PICTURES, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training_together import curve, train
from tests.training.test_trunk import make_raw
from xmodal.batches.dataset import open_dataset
from xmodal.batches.reader import Reader
from xmodal.corpora import load as load_corpus
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features import torchvision_models
from xmodal.models import Inputs
from xmodal.models.dual_path import RECIPES, DualPathConfig
from xmodal.recipes import Features, Pixels, View
from xmodal.root.storage import open_storage
from xmodal.training import optimisers, run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import WithBackbone, attach_backbone, network_of
from xmodal.training.picture_crops import PictureReader, picture_reader
from xmodal.training.run_setup import Setup

MODEL = DualPathConfig((1, 1, 1, 1), channels=16, width=32, word_width=12, length=16, dropout=0.2)
WHOLE = Pixels("random", flip=True, evaluation="whole_and_flipped")
VGG19 = next(one for one in RECIPES if one.name == "dual-path-flickr30k-vgg19")
SIDE = 256


def thin(name: str, weights: None = None) -> nn.Module:
    """A VGG of two channels, but for fc7, whose width is known to the store."""
    assert name == "vgg16"
    maps: list[Any] = []
    for channels in (3, 2, 2, 2, 2):
        maps += [nn.Conv2d(channels, 2, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    network = torchvision.models.VGG(nn.Sequential(*maps), init_weights=False)
    network.classifier[0], network.classifier[3] = nn.Linear(2 * 49, 8), nn.Linear(8, 4096)
    return network  # type: ignore[no-any-return]


@pytest.fixture(scope="module", autouse=True)
def thin_vgg() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchvision.models, "get_model", thin)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures, eight for training."""
    folder = tmp_path_factory.mktemp("vgg")
    make_raw(folder)
    return folder


def vgg_root(folder: Path, views: str) -> str:
    """The pictures' fc7, and their squares."""
    root = folder / views
    settings = {"features.model": "torchvision/vgg16", "features.weights": "random:0", "features.output": "fc7"}
    settings |= {"features.views": views, "features.dtype": "float32", "pixels.side": SIDE}
    site = BuildOptions(open_storage(str(root)), raw=folder / "raw", settings=settings)
    if not root.exists():
        build_stages(CorpusBuild(site, replace(load_corpus(str(PICTURES)), counts={})), ["features", "pixels"])
    return str(root)


def opened(root: str, plan: Pixels) -> tuple[Reader, PictureReader, WithBackbone]:
    dataset = open_dataset(root, "pictures")
    features = dataset.reader("train", "features")
    seen = picture_reader(features, dataset.store("pixels"), plan)
    assert isinstance(seen, PictureReader)
    torch.manual_seed(0)
    words = 1 + max(int(caption.max()) for caption in features.examples.words)
    return features, seen, attach_backbone(MODEL.build(Inputs(4096, words, 8)), features.store).eval()


def test_convolutions_give_the_stored_rows_of_the_middle(folder: Path) -> None:
    features, seen, model = opened(vgg_root(folder, "centre"), replace(WHOLE, evaluation="centre"))
    given = seen.visual(slice(0, 3))
    assert given.values.shape == (3, 1, 3, 224, 224)
    with torch.inference_mode():
        stored, computed = features.visual(slice(0, 3)), model.features(given)
    assert computed.values.shape == (3, 1, 4096)
    assert stored.values.min() == 0  # after the ReLU
    torch.testing.assert_close(computed.values, stored.values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("views", ["centre", "whole"])
def test_a_whole_picture_is_seen_through_every_window(folder: Path, views: str) -> None:
    _, seen, model = opened(vgg_root(folder, views), WHOLE)
    given = seen.visual(slice(0, 2))
    assert given.values.shape == (2, 2, 3, SIDE, SIDE)
    network = torchvision_models.load("vgg16", "random:0", None, "fc7")[0]
    places = [(top, left) for top in (0, 32) for left in (0, 32)]
    fc7 = nn.Sequential(*list(cast(Any, network).classifier)[: 5 if views == "centre" else 4])
    rows = []
    with torch.inference_mode():
        for side, (top, left) in product((0, 1), places):
            # windows share the borders of the picture, so each is of its maps, not of a crop
            maps = cast(Any, network).features(given.values[:, side])[:, :, top // 32 :, left // 32 :][..., :7, :7]
            rows.append(fc7(maps.flatten(1)))
        windows_BRD = torch.stack(rows, dim=1)
        head = cast(Any, model.model).visual_head
        if views == "centre":
            expected = normalize(head(windows_BRD).sum(1), dim=1)
        else:
            expected = normalize(head(normalize(windows_BRD.sum(1), dim=1)), dim=1)
        torch.testing.assert_close(model.encode_visual(given), expected, rtol=1e-3, atol=1e-4)


def test_a_run_goes_through_both_stages_and_its_test(folder: Path, tmp_path: Path) -> None:
    root, run = vgg_root(folder, "whole"), str(tmp_path / "run")
    first, second = VGG19.phases
    quick = replace(second.optimiser, multipliers=())  # by the recipe's a weight moves by less than it is rounded
    phases = replace(first, epochs=1), replace(second, epochs=1, sampler=None, optimiser=quick)
    views = {"view": View("pictures", "train"), "validation": View("pictures", "val")}
    both = recipe(visual=Features("features"), model=MODEL, phases=phases, batch_size=4, **views)
    before = {name: values.clone() for name, values in opened(root, WHOLE)[2].state_dict().items()}
    train(both, root, run)
    assert [line["phase"] for line in curve(run)] == [1, 1, 2, 2]
    after = read_tensors(run, run_folder.LAST)["model"]
    trunk = [name for name in after if name.startswith("trunk.")]
    assert len(trunk) == 2 * (5 + 2)
    assert [name for name in trunk if torch.equal(after[name], before[name])] == []
    assert evaluate(run, Setup(root), "val").items == 2


def test_the_recipes_multipliers_reach_every_weight_of_a_vgg(folder: Path) -> None:
    model = opened(vgg_root(folder, "whole"), WHOLE)[2]
    groups = optimisers.build(model, VGG19.phases[1].optimiser).param_groups
    rates = {id(weight): group["multiplier"] for group in groups for weight in group["params"]}
    found = {name: rates[id(weight)] for name, weight in model.named_parameters() if name.startswith("trunk.")}
    for name, rate in found.items():
        assert rate == (1e-4 if name.startswith("trunk.0.") else 0.02 if name.endswith("bias") else 1e-3), name


def test_features_that_training_cannot_go_on_with_are_refused(folder: Path) -> None:
    store = opened(vgg_root(folder, "centre"), WHOLE)[0].store
    for told in ({"views": "ten"}, {"output": "classes"}):
        store.provenance.update({"views": "centre", "output": "fc7"} | told)
        with pytest.raises(
            UserError, match=r"further by fc7 of views=centre or whole and crop=224, not by .*7 of a VGG"
        ):
            network_of(store)
