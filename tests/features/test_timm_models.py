"""Models of timm: pictures are prepared as their config says, rows are timm's own, and weights are whole."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.features.hub import empty_cache, repository
from tests.features.test_image_models import of_file, save
from tests.media.test_preparation import photographs, upright
from xmodal.errors import UserError
from xmodal.features.image_models import ImageModel, ModelExtractor, known, open_model, resolved
from xmodal.features.model_facts import pixels_of
from xmodal.features.weight_files import weights_sha256
from xmodal.media.preparation import prepare, ten_crops

timm = pytest.importorskip("timm")
PICTURES = photographs()[::3]
SMALL = ("test_vit", "test_resnet", "test_convnext", "test_efficientnet", "test_byobnet", "test_vit3")
VIT = ImageModel("timm/test_vit", "random:0", dtype="float32")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path / "hub", monkeypatch)


def theirs(extractor: ModelExtractor) -> tuple[Any, Any]:
    """timm's own network with the same weights, and its transform."""
    network = timm.create_model(extractor.config.name, num_classes=0).eval()
    network.load_state_dict(extractor.network.state_dict())
    return network, timm.data.create_transform(**timm.data.resolve_data_config(model=network))


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_those_of_timm(name: str) -> None:
    extractor = open_model(replace(VIT, model=f"timm/{name}"))
    network, transform = theirs(extractor)
    tokens = replace(extractor, config=resolved(replace(VIT, model=f"timm/{name}", output="tokens")))
    for data in PICTURES:
        prepared = prepare(data, extractor.config.preparation)
        pixels = transform(upright(data))[None]
        with torch.inference_mode():
            expected, maps = network(pixels), network.forward_features(pixels)
        np.testing.assert_allclose(extractor.rows([prepared]), expected.numpy(), rtol=1e-4, atol=1e-5)
        maps = maps.flatten(2).transpose(1, 2) if maps.ndim == 4 else maps
        np.testing.assert_allclose(tokens.rows([prepared]), maps.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch16_siglip_224",
        "vit_small_patch14_dinov2.lvd142m",
        "vit_base_patch32_clip_224.openai",
        "swin_tiny_patch4_window7_224",
        "convnext_tiny.fb_in1k",
        "resnet50.tv_in1k",
        "efficientnet_b0",
        "eva02_base_patch14_224.mim_in22k",
        "vit_base_patch16_rope_reg1_gap_256.sbb_in1k",
        "mobilenetv3_large_100",
        "regnety_032",
        "beit_base_patch16_224",
        "maxvit_tiny_tf_224",
        "vit_base_patch16_siglip_384.webli",
    ],
)
def test_known_models_are_described_without_their_numbers(name: str) -> None:
    config = resolved(ImageModel(f"timm/{name}"))
    assert config.name.startswith(name)
    assert "." in config.name, "whose weights and preparation is said"
    (width,) = config.spec.row_shape
    assert 100 < width < 5000
    assert 0.1 < config.gigaflops < 300
    told = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    transform = timm.data.create_transform(**told)
    for data in PICTURES[:2]:
        pixels = torch.from_numpy(np.stack([prepare(data, config.preparation)]))
        np.testing.assert_allclose(pixels_of(pixels, known(config).preparation)[0], transform(upright(data)), atol=1e-6)


def test_ten_crops_are_of_the_models_own_size() -> None:
    extractor = open_model(replace(VIT, views="ten"))
    prepared, how = prepare(PICTURES[0], extractor.config.preparation), known(extractor.config).preparation
    crops = pixels_of(torch.from_numpy(ten_crops(prepared, how)), how)
    with torch.inference_mode():
        expected = theirs(extractor)[0](crops).mean(0)
    np.testing.assert_allclose(extractor.rows([prepared])[0], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_row_is_the_same_bits_whatever_else_is_in_the_batch() -> None:
    extractor = open_model(VIT)
    prepared = [prepare(data, extractor.config.preparation) for data in PICTURES]
    together = extractor.rows(prepared)
    np.testing.assert_array_equal(extractor.rows(prepared[::-1]), together[::-1])
    np.testing.assert_array_equal(extractor.rows(prepared[2:3])[0], together[2])


def test_published_weights_are_fetched_once_and_named(cache: Path) -> None:
    told = r"weights of timm/test_vit\.r160_in1k cannot be fetched from huggingface\.co/timm/test_vit.*--weights FILE"
    with pytest.raises(UserError, match=told):
        open_model(replace(VIT, weights="published"))
    whole = timm.create_model("test_vit")  # with its classes
    file = repository(cache, "timm/test_vit.r160_in1k") / "model.safetensors"
    save(whole.state_dict(), file)
    extractor = open_model(replace(VIT, weights="published"))
    about = extractor.provenance()
    assert (about["network"], about["weights"]) == ("timm/test_vit.r160_in1k", "published")
    assert about["weights_sha256"] == weights_sha256(file)
    prepared = prepare(PICTURES[0], extractor.config.preparation)
    with torch.inference_mode():
        maps = whole.eval().forward_features(theirs(extractor)[1](upright(PICTURES[0]))[None])
        expected = whole.forward_head(maps, pre_logits=True)
    np.testing.assert_allclose(extractor.rows([prepared]), expected.numpy(), rtol=1e-4, atol=1e-5)


def in_parts(folder: Path, changes: Mapping[str, str] | None = None) -> Path:
    """A test_vit in two files, as huggingface_hub divides large ones; `changes` are of the index."""
    state = timm.create_model("test_vit").state_dict()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    placed = {key: names[place % 2] for place, key in enumerate(state)}
    for name in names:
        save({key: state[key] for key in placed if placed[key] == name}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": placed | (changes or {})}))
    whole = folder / "whole.safetensors"
    save(state, whole)
    return whole


@pytest.mark.parametrize("how", ["published", "given"])
def test_weights_in_several_files_are_those_of_one(how: str, cache: Path, tmp_path: Path) -> None:
    folder = repository(cache, "timm/test_vit.r160_in1k") if how == "published" else tmp_path
    whole, index = in_parts(folder), folder / "model.safetensors.index.json"
    model = replace(VIT, weights="published") if how == "published" else of_file(VIT, index)
    ones, others = open_model(model, None if how == "published" else index), open_model(of_file(VIT, whole), whole)
    prepared = [prepare(PICTURES[0], ones.config.preparation)]
    np.testing.assert_array_equal(ones.rows(prepared), others.rows(prepared))
    lines = (f"{weights_sha256(part)}  {part.name}\n" for part in sorted(folder.glob("model-*.safetensors")))
    assert ones.weights_sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"norm.bias": "../../norm.safetensors"}, "weight_map must name .safetensors beside it"),
        ({"norm.bias": "pytorch_model.bin"}, "weight_map must name .safetensors beside it"),
        ({"norm.bias": "model-00003-of-00003.safetensors"}, "model-00003-of-00003.safetensors"),
        ({"more.bias": "model-00001-of-00002.safetensors"}, r"it lacks more\.bias"),
        ({"cls_token": "model-00002-of-00002.safetensors"}, r"does not place cls_token in model-00001-of-00002"),
    ],
)
def test_an_index_of_weights_is_not_believed(changes: Mapping[str, str], told: str, tmp_path: Path) -> None:
    in_parts(tmp_path, changes)
    index = tmp_path / "model.safetensors.index.json"
    with pytest.raises(UserError, match=told):
        open_model(of_file(VIT, index), index)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "norm.bias"}, r"it lacks norm\.bias$"),
        (lambda state: state | {"blocks.9.x": torch.ones(1)}, r"it has unknown blocks\.9\.x$"),
        (lambda state: timm.create_model("test_resnet").state_dict(), r"it lacks cls_token, .* and has unknown"),
        (lambda state: state | {"norm.bias": torch.ones(3)}, r"it has other sides of norm\.bias \(3, not 64\)$"),
    ],
)
def test_weights_of_another_model_are_refused(change: Any, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.safetensors"
    save(change(timm.create_model("test_vit").state_dict()), file)
    with pytest.raises(UserError, match=rf"mine\.safetensors are no state_dict of a timm/test_vit\.r160_in1k: {told}"):
        open_model(of_file(VIT, file), file)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("test_vitt", r"no model timm/test_vitt \(do you mean timm/test_vit\?\): timm\.list_models\(\) has all"),
        ("test_vit.nobodys", r"no model timm/test_vit\.nobodys: Invalid pretrained tag"),
        ("naflexvit_base_patch16_gap", "naflexvit"),
    ],
)
def test_names_that_timm_does_not_have_are_refused(name: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        open_model(ImageModel(f"timm/{name}"))


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    told = r"timm/test_vit needs timm: pip install -e '\.\[timm\]' in the checkout$"
    with pytest.raises(UserError, match=told):
        resolved(replace(VIT, weights="random:0"))
