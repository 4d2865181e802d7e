"""Models of transformers: rows are those of its own processor and model; code and strangers' weights are refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from tests.features.hub import COMMIT, empty_cache, repository
from tests.features.test_image_models import of_file, save
from tests.media.test_preparation import photographs, upright
from xmodal.errors import UserError
from xmodal.features.image_models import ImageModel, open_model, resolved
from xmodal.features.weight_files import hub_folder, weights_sha256
from xmodal.media.preparation import prepare

transformers = pytest.importorskip("transformers")
T: Any = transformers
PICTURES = photographs()[::3]
SQUARE, SHORT = {"height": 32, "width": 32}, {"shortest_edge": 40}
SIDES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
WORDS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 1}


def clip() -> Any:
    config = T.CLIPConfig(vision_config=SIDES | {"intermediate_size": 64}, text_config=WORDS, projection_dim=24)
    return T.CLIPModel(config), T.CLIPImageProcessorPil(size=SHORT, crop_size=SQUARE)


def siglip() -> Any:
    config = T.SiglipConfig(vision_config=SIDES | {"intermediate_size": 64}, text_config=WORDS)
    return T.SiglipModel(config), T.SiglipImageProcessorPil(size=SQUARE)


def vit() -> Any:
    return T.ViTModel(T.ViTConfig(**SIDES, intermediate_size=64)), T.ViTImageProcessorPil(size=SQUARE)


def dinov2() -> Any:
    return T.Dinov2Model(T.Dinov2Config(**SIDES)), T.BitImageProcessorPil(size=SHORT, crop_size=SQUARE)


def convnext() -> Any:
    config = T.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    return T.ConvNextForImageClassification(config), T.ConvNextImageProcessorPil(size={"shortest_edge": 64})


def resnet() -> Any:
    config = T.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return T.ResNetForImageClassification(config), T.ConvNextImageProcessorPil(size={"shortest_edge": 64})


MODELS = {"clip": clip, "siglip": siglip, "vit": vit, "dinov2": dinov2, "convnext": convnext, "resnet": resnet}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path / "hub", monkeypatch)


def published(cache: Path, name: str, weights: bool = True) -> Any:
    model, processor = MODELS[name]()
    folder = repository(cache, f"somebody/{name}")
    processor.save_pretrained(folder)
    model.config.save_pretrained(folder)
    if weights:
        save(model.state_dict(), folder / "model.safetensors")
    return model.eval(), processor, folder


def seen_by(model: Any, processor: Any, data: bytes, output: str) -> Any:
    pixels = processor(upright(data), return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        if hasattr(model, "get_image_features"):
            seen = model.get_image_features(pixel_values=pixels)
        else:
            seen = model.base_model(pixel_values=pixels)
    if output == "pooled":
        return seen.pooler_output.flatten(1).numpy()
    maps = seen.last_hidden_state
    return (maps.flatten(2).transpose(1, 2) if maps.ndim == 4 else maps).numpy()


@pytest.mark.parametrize("output", ["pooled", "tokens"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_transformers(name: str, output: Any, cache: Path) -> None:
    model, processor, folder = published(cache, name)
    extractor = open_model(ImageModel(f"transformers/somebody/{name}", output=output, dtype="float32"))
    for data in PICTURES:
        (row,) = extractor.rows([prepare(data, extractor.config.preparation)])
        np.testing.assert_allclose(row[None], seen_by(model, processor, data, output), rtol=1e-4, atol=1e-5)
    told = extractor.provenance()
    assert (told["network"], told["weights"]) == (f"transformers/somebody/{name}@{COMMIT}", "published")
    assert told["weights_sha256"] == weights_sha256(folder / "model.safetensors")
    assert {"transformers", "pillow", "torch"} < told["versions"].keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"No such repository. {'It is long. ' * 40}", f"No such repository. {'It is long. ' * 14}It is long"),
        (f"One{' word' * 60}.\nAnother.", f"One{' word' * 60}"),
        (f"All{' names' * 200}", f"All{' names' * 82} …"),
    ],
)
def test_what_the_hub_says_is_told_in_whole_sentences(
    said: str, told: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, local_files_only: bool, **__: object) -> None:
        raise LocalEntryNotFoundError("not here") if local_files_only else OSError(said)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    with pytest.raises(UserError) as refused:
        hub_folder("no/body", None, ("a",), "it", "go on")
    assert str(refused.value) == f"it cannot be fetched from huggingface.co/no/body ({told}): go on"


def test_a_name_means_the_commit_that_is_here(cache: Path) -> None:
    published(cache, "vit", weights=False)
    name = "transformers/somebody/vit"
    config = resolved(ImageModel(name, "random:3"))
    assert config == resolved(ImageModel(f"{name}@main", "random:3")) == resolved(config)
    assert config.model == f"{name}@{COMMIT}"
    first, again, other = (open_model(replace(config, weights=f"random:{seed}")) for seed in (3, 3, 4))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    prepared = [prepare(PICTURES[0], config.preparation)]
    np.testing.assert_array_equal(first.rows(prepared), again.rows(prepared))
    assert np.isfinite(other.rows(prepared)).all()


def test_what_cannot_be_fetched_says_what_to_do(cache: Path) -> None:
    told = r"transformers/no/body cannot be fetched from huggingface\.co/no/body \(.*\): check its name, and that this"
    with pytest.raises(UserError, match=told):
        resolved(ImageModel("transformers/no/body"))
    published(cache, "vit", weights=False)
    told = r"weights of transformers/somebody/vit@\w+: .* nor could be fetched: give their file by --weights FILE"

    with pytest.raises(UserError, match=told):
        open_model(ImageModel("transformers/somebody/vit"))


def test_a_head_is_left_and_a_pooled_output_that_was_not_published_is_refused(cache: Path, tmp_path: Path) -> None:
    published(cache, "vit", weights=False)
    whole = T.ViTForImageClassification(T.ViTConfig(**SIDES, intermediate_size=64))
    file = tmp_path / "mine.pth"
    save(whole.state_dict(), file)
    asked = ImageModel("transformers/somebody/vit", dtype="float32", output="tokens")
    extractor = open_model(of_file(asked, file), file)
    found = extractor.rows([prepare(PICTURES[0], extractor.config.preparation)])
    np.testing.assert_allclose(found, seen_by(whole.eval(), vit()[1], PICTURES[0], "tokens"), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="the weights of this ViTModel have no pooled output: --set output=tokens"):
        open_model(of_file(replace(asked, output="pooled"), file), file)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "layernorm.bias"}, r"it lacks layernorm\.bias$"),
        (lambda state: state | {"encoder.layer.9.x": torch.ones(1)}, r"it has unknown \S+\.9\.x$"),
        (lambda state: state | {"layernorm.bias": torch.ones(3)}, ""),
        (lambda state: resnet()[0].state_dict(), "it lacks"),
    ],
)
def test_weights_of_another_model_are_refused(change: Any, told: str, cache: Path, tmp_path: Path, capfd: Any) -> None:
    model, _, _ = published(cache, "vit", weights=False)
    file = tmp_path / "mine.pth"
    save(change(dict(model.state_dict())), file)
    capfd.readouterr()
    asked = of_file(ImageModel("transformers/somebody/vit"), file)
    with pytest.raises(UserError, match=rf"mine\.pth are no state_dict of a transformers/somebody/vit@\w+: {told}"):
        open_model(asked, file)
    assert capfd.readouterr() == ("", "")


OTHERWISE = "prepares pictures in a way that Pillow alone cannot repeat"
UNSAID = "does not say how Pillow alone can prepare pictures for it"


def rewrite(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"do_pad": True, "pad_size": {"height": 50, "width": 50}}, OTHERWISE),
        ({"rescale_factor": 1 / 127.5}, OTHERWISE),
        ({"size": {"longest_edge": 32}}, UNSAID),
        ({"image_processor_type": "Nobodys"}, UNSAID),
    ],
)
def test_a_preparation_that_cannot_be_repeated_is_refused(changes: dict[str, Any], told: str, cache: Path) -> None:
    _, _, folder = published(cache, "vit", weights=False)
    rewrite(folder / "preprocessor_config.json", **changes)
    with pytest.raises(UserError, match=rf"transformers/somebody/vit@\w+ {told}"):
        resolved(ImageModel("transformers/somebody/vit", "random:0"))


def test_code_of_a_repository_is_not_run(cache: Path) -> None:
    _, _, folder = published(cache, "vit", weights=False)
    rewrite(folder / "config.json", auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Own"}, model_type="nobodys")
    (folder / "own.py").write_text("raise SystemExit('code of a repository was run')")
    with pytest.raises(UserError, match="has no model that transformers knows"):
        resolved(ImageModel("transformers/somebody/vit", "random:0"))


def test_a_model_of_texts_is_refused(cache: Path) -> None:
    _, _, folder = published(cache, "vit", weights=False)
    T.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(folder)
    with pytest.raises(UserError, match="makes no features of a picture alone"):
        resolved(ImageModel("transformers/somebody/vit", "random:0"))


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    told = r"transformers/a/b needs transformers: pip install -e '\.\[transformers\]' in the checkout$"
    with pytest.raises(UserError, match=told):
        resolved(ImageModel("transformers/a/b"))
