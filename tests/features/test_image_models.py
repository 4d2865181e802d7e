"""Image models: their rows equal a slow reference, whatever is in the batch; wrong names and weights are refused."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision import models, transforms  # type: ignore[import-untyped]
from torchvision.models.feature_extraction import create_feature_extractor  # type: ignore[import-untyped]

from tests.media.test_preparation import FINISH, photographs, upright
from tests.media.test_vision import Bomb
from xmodal.errors import UserError
from xmodal.features.image_models import ImageModel, ModelExtractor, open_model, resolved
from xmodal.features.networks import ResNet, load
from xmodal.features.weight_files import filled_network, load_exactly, weights_sha256
from xmodal.media.images import normalised
from xmodal.media.preparation import prepare, square

PICTURES = photographs()
TINY = ImageModel("torchvision/resnet18", "random:0", resize=72, crop=64, dtype="float32", batch_size=4)


def rows(extractor: ModelExtractor, pictures: Sequence[bytes]) -> NDArray[Any]:
    return extractor.rows([prepare(data, extractor.config.preparation) for data in pictures])


def whole_network(extractor: ModelExtractor) -> torch.nn.Module:
    """torchvision's own network with the same weights."""
    network: torch.nn.Module = models.get_model(extractor.config.name, weights=None).eval()
    found = network.load_state_dict(extractor.network.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert {key.rpartition(".")[0] for key in found.missing_keys} <= {"fc", "classifier.6"}
    return network


def test_features_are_those_of_the_resnet_stage() -> None:
    for output in ("pooled", "grid"):
        config = replace(TINY, output=output)  # type: ignore[arg-type]
        same = ResNet("resnet18", "random:0", resize=72, crop=64, output=output, dtype="float32")  # type: ignore[arg-type]
        expected = load(same)(np.stack([normalised(square(data, 72, 64)) for data in PICTURES]))
        found = rows(open_model(config), PICTURES)
        assert found.shape == (len(PICTURES), *config.spec.row_shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_ten_crops_are_the_mean_of_their_rows() -> None:
    extractor = open_model(replace(TINY, views="ten"))
    network = create_feature_extractor(whole_network(extractor), ["flatten"])
    crops = transforms.Compose([transforms.Resize(72), transforms.TenCrop(64)])
    found = rows(extractor, PICTURES)
    for row, data in zip(found[::3], PICTURES[::3], strict=True):
        with torch.inference_mode():
            views = torch.stack([transforms.Compose(FINISH)(crop) for crop in crops(upright(data))])
            expected = network(views)["flatten"].mean(0)
        np.testing.assert_allclose(row, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def vgg() -> ModelExtractor:
    return open_model(ImageModel("torchvision/vgg16", "random:0", output="fc7", resize=72, crop=64, dtype="float32"))


def test_fc7_of_a_vgg_is_after_its_relu_and_has_the_mean_of_ten_crops(vgg: ModelExtractor) -> None:
    extractor = replace(vgg, config=replace(vgg.config, views="ten"))
    network = create_feature_extractor(whole_network(vgg), ["classifier.4"])
    crops = transforms.Compose([transforms.Resize(72), transforms.TenCrop(64)])
    (row,) = rows(extractor, PICTURES[:1])
    with torch.inference_mode():
        views = torch.stack([transforms.Compose(FINISH)(crop) for crop in crops(upright(PICTURES[0]))])
        expected = network(views)["classifier.4"].mean(0).numpy()
    assert row.shape == (4096,)
    assert row.min() >= 0
    np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)


def seen_whole(features: torch.nn.Module, window: Any, data: bytes) -> NDArray[Any]:
    """Every window of 7 x 7 positions of the picture and its mirror image, one by one."""
    total = torch.zeros(1)
    for turn in (transforms.RandomHorizontalFlip(0.0), transforms.RandomHorizontalFlip(1.0)):
        pixels = transforms.Compose([transforms.Resize(256), turn, *FINISH])(upright(data))
        maps = features(pixels[None])
        for top in range(maps.shape[2] - 6):
            for left in range(maps.shape[3] - 6):
                total = total + window(maps[:, :, top : top + 7, left : left + 7])
    found: NDArray[Any] = (total / total.norm()).flatten().numpy()
    return found


def test_a_whole_picture_is_the_sum_over_its_windows_and_those_of_its_mirror_image(vgg: ModelExtractor) -> None:
    with torch.inference_mode():
        extractor = open_model(replace(TINY, resize=None, crop=None, views="whole"))
        trunk = torch.nn.Sequential(*list(whole_network(extractor).children())[:-2])
        found = rows(extractor, PICTURES[:3])
        for row, data in zip(found, PICTURES, strict=False):
            expected = seen_whole(trunk, lambda maps: maps.mean((2, 3)), data)
            np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-6)
            assert np.linalg.norm(row) == pytest.approx(1)
        config = resolved(replace(vgg.config, resize=None, crop=None, views="whole", facts=None))
        network = whole_network(vgg)
        (row,) = rows(replace(vgg, config=config), PICTURES[:1])
        head = network.classifier[:4]  # type: ignore[index]
        expected = seen_whole(network.features, lambda maps: head(maps.flatten(1)), PICTURES[0])  # type: ignore[arg-type]
    assert row.min() < 0  # as Dual-Path takes it: before the last ReLU
    np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("change", [{}, {"views": "ten"}, {"output": "grid"}, {"views": "whole", "resize": 224}])
def test_a_row_is_the_same_bits_whatever_else_is_in_the_batch(change: dict[str, Any]) -> None:
    sides = {} if "resize" not in change else {"crop": None}
    extractor = open_model(replace(TINY, **change, **sides))
    together = rows(extractor, PICTURES[:5])
    for place in range(5):
        np.testing.assert_array_equal(rows(extractor, PICTURES[place : place + 1])[0], together[place])
    np.testing.assert_array_equal(rows(extractor, PICTURES[4::-1]), together[::-1])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        np.testing.assert_array_equal(rows(extractor, PICTURES[:5]), together)
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("network", ["resnet34", "resnet50", "resnet101", "vgg19"])
def test_a_model_is_known_without_torch(network: str) -> None:
    output = "fc7" if network == "vgg19" else "pooled"
    config = resolved(ImageModel(f"torchvision/{network}", output=output))  # type: ignore[arg-type]
    assert config.weights == ("IMAGENET1K_V1" if network in ("resnet34", "vgg19") else "IMAGENET1K_V2")
    assert config.spec.row_shape == ({"resnet34": 512, "vgg19": 4096}.get(network, 2048),)
    assert 3 < config.gigaflops < 40
    assert replace(config, views="ten").gigaflops == pytest.approx(10 * config.gigaflops)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model": "resnet50"}, "no model 'resnet50': say torchvision/NAME, timm/NAME or transformers/"),
        ({"model": "timm/hf-hub:a/b"}, "no model 'timm/hf-hub:a/b'"),
        ({"model": "timm/local-dir:/etc"}, "no model 'timm/local-dir:/etc'"),
        ({"model": "transformers/clip"}, "no model 'transformers/clip': .* or transformers/ORGANISATION/NAME"),
        ({"model": "transformers/../../etc"}, "no model 'transformers/../../etc'"),
        ({"weights": "best"}, "no weights 'best'; there are: published, random:<seed>, and --weights FILE"),
        ({"output": "tokens"}, "torchvision/resnet18 has no output tokens; there are: pooled, grid"),
        ({"model": "torchvision/vgg19"}, "torchvision/vgg19 has no output pooled; there are: fc7"),
        ({"output": "grid", "views": "ten"}, "views=ten makes one row of a picture: its output is pooled or fc7"),
        ({"model": "timm/test_vit"}, "resize, crop and views=whole are for torchvision: timm/test_vit has sides of"),
        ({"crop": 65}, "crop is a multiple of 32 and at most resize, not 65 of 72"),
        ({"views": "whole"}, "a whole picture is seen through windows of 224 pixels: leave crop out"),
        ({"batch_size": 0}, "batch_size is at least 1, not 0"),
        ({"views": "nine"}, "no views 'nine'; there are: centre, ten, whole"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(TINY, **settings)


@pytest.mark.parametrize(
    ("model", "weights", "told"),
    [
        ("torchvision/alexnet", "published", "no model torchvision/alexnet; there are: resnet18, .*, vgg19"),
        ("torchvision/resnet18", "IMAGENET1K_V2", "no weights 'IMAGENET1K_V2' for resnet18; there are: IMAGENET1K_V1,"),
        ("timm/test_vit", "IMAGENET1K_V1", "no weights 'IMAGENET1K_V1' for timm/test_vit; there are: published"),
    ],
)
def test_models_and_weights_that_are_unknown_are_refused(model: str, weights: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        resolved(ImageModel(model, weights))


def test_a_gpu_with_too_little_memory_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = open_model(TINY, stage="clip_features")

    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(extractor.network.conv1, "forward", full)
    told = r"the GPU has too little memory for 4 pictures at once: --set clip_features\.batch_size=2$"
    with pytest.raises(UserError, match=told):
        rows(extractor, PICTURES[:1])
    last = replace(extractor, config=replace(TINY, batch_size=1))
    with pytest.raises(UserError, match=r"for 1 pictures at once: --set clip_features\.device=cpu$"):
        rows(last, PICTURES[:1])
    old = load(ResNet("resnet18", "random:0", resize=72, crop=64, batch_size=8))
    monkeypatch.setattr(old.trunk, "forward", full)
    with pytest.raises(UserError, match=r"too little memory for 8 pictures at once: --set batch_size=4$"):
        old(np.zeros((2, 3, 64, 64), np.float32))


def test_without_a_gpu_that_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("here is one")
    with pytest.raises(UserError, match="torch finds no GPU here; --set device=cpu does without"):
        open_model(replace(TINY, device="cuda"))


def of_file(config: ImageModel, file: Path) -> ImageModel:
    return replace(config, weights=f"sha256:{weights_sha256(file)}", facts=None)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_weights_of_a_file_give_the_same_rows(suffix: str, tmp_path: Path) -> None:
    extractor, file = open_model(TINY), tmp_path / f"mine.{suffix}"
    save(dict(extractor.network.state_dict()), file)
    loaded = open_model(of_file(TINY, file), file)
    np.testing.assert_array_equal(rows(loaded, PICTURES[:2]), rows(extractor, PICTURES[:2]))
    told = loaded.provenance()
    assert told["weights"] == f"sha256:{told['weights_sha256']}" == f"sha256:{weights_sha256(file)}"
    assert told["network"] == "torchvision/resnet18"


def save(state: Any, file: Path) -> None:
    if file.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({key: values.contiguous() for key, values in state.items()}, file)
    else:
        torch.save(state, file)


@pytest.mark.parametrize("state", [{}, {"conv1.weight": torch.zeros(2)}, [1, 2], Bomb()])
def test_a_file_of_something_else_is_refused_and_not_run(
    state: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.pth"
    save(state, file)
    with pytest.raises(UserError, match=r"mine\.pth are no state_dict of a resnet18: "):
        open_model(of_file(TINY, file), file)
    file = file.rename(tmp_path / "mine.safetensors")  # a name does not make it run
    with pytest.raises(UserError, match=r"mine\.safetensors are no state_dict of a resnet18: "):
        open_model(of_file(TINY, file), file)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_damage_anywhere_in_a_file_is_refused_or_harmless(suffix: str, tmp_path: Path) -> None:
    state, file = {"weight": torch.arange(6.0).view(3, 2), "bias": torch.ones(3)}, tmp_path / f"a.{suffix}"
    save(state, file)
    whole, draw, refused = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(300):
        damaged = bytearray(whole[: draw.integers(len(whole))] if draw.random() < 0.3 else whole)
        for place in draw.integers(0, max(len(damaged), 1), 3 if damaged else 0):
            damaged[place] = draw.integers(256)
        file.write_bytes(damaged)
        weights = f"sha256:{weights_sha256(file)}"
        try:
            filled_network("line", weights, file, partial(torch.nn.Linear, 2, 3), partial(load_exactly, head=()), Path)
        except UserError:
            refused += 1
    assert refused > 100
