"""The features stages: rows of pictures and of frames of clips by any image model, and what is no number."""

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.cli import main
from pipelines.engine.building import build, pending, serial
from pipelines.engine.stage import Stage
from pipelines.engine.typed_settings import parse_settings
from pipelines.publishing.dataset_card import store_settings
from pipelines.stages.clip_features import ClipFeaturesConfig
from pipelines.stages.clips import ClipsConfig
from pipelines.stages.features import FeaturesConfig
from pipelines.stages.resnet import ResNetConfig
from tests.conftest import tree_digest
from tests.features.hub import empty_cache
from tests.made import clip_features, clips, features, frames, resnet
from tests.media.test_preparation import photographs
from tests.stages.test_clips_stage import DELAYS_MS, TAKEN, frames_of
from tests.stages.test_clips_stage import ITEMS as CLIPS
from tests.stages.test_clips_stage import files as clip_files
from tests.stages.test_resnet_stage import archives as archives
from tests.stages.test_resnet_stage import backwards, by_turns, sealed
from tests.stages.test_resnet_stage import storage as storage
from xmodal.errors import UserError
from xmodal.features.image_models import ModelExtractor, open_model, resolved
from xmodal.features.store import FeatureStore
from xmodal.media.preparation import prepare
from xmodal.root.storage import Storage, open_storage

PICTURES = {f"{number:02d}.jpg": data for number, data in enumerate(photographs()[::2])}
ITEMS = tuple((name, name) for name in PICTURES)
TINY = FeaturesConfig("torchvision/resnet18", "random:0", resize=64, crop=64, batch_size=4, rows_per_shard=4)
CLIP = ClipFeaturesConfig("torchvision/resnet18", "random:0", resize=64, crop=64, batch_size=4, items_per_shard=3)
CASES: dict[str, dict[str, Any]] = {
    "pooled": {},
    "grid": {"output": "grid", "dtype": "float32"},
    "ten": {"views": "ten"},
    "whole": {"views": "whole", "resize": None, "crop": None},
    "timm": {"model": "timm/test_vit", "resize": None, "crop": None},
    "tokens": {"model": "timm/test_resnet", "resize": None, "crop": None, "output": "tokens"},
}


def asked(case: str) -> FeaturesConfig:
    if "timm/" in CASES[case].get("model", ""):
        pytest.importorskip("timm")
    return replace(TINY, **CASES[case])


def alone(extractor: ModelExtractor, data: bytes) -> Any:
    return extractor.rows([prepare(data, extractor.config.preparation)])[0]


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_what_the_model_makes_of_the_picture(case: str, storage: Storage) -> None:
    config = asked(case)
    store = FeatureStore(build(features(sealed(storage, PICTURES), ITEMS, config), storage))
    extractor = open_model(config)
    assert not store.absent
    assert (store.spec.row_shape, store.spec.dtype) == (config.spec.row_shape, config.dtype)
    for name, data in PICTURES.items():
        np.testing.assert_array_equal(store.read([name])[0], alone(extractor, data))
    told = store.provenance
    assert told["network"] == resolved(config).model
    assert (told["weights"], told["weights_sha256"]) == ("random:0", extractor.weights_sha256)
    assert told["preprocessing"]["interpolation"] in ("bilinear", "bicubic")


def test_workers_their_order_and_interruptions_change_no_byte(tmp_path: Path) -> None:
    trees = set()
    media = PICTURES | {"03.jpg": PICTURES["03.jpg"][:200], "05.jpg": None}
    for case in ("pooled", "timm"):
        for number, run in enumerate((serial, backwards, by_turns, interrupted)):
            storage = open_storage(str(tmp_path / f"{case}{number}"))
            stage = features(sealed(storage, media), ITEMS, asked(case))
            with suppress(KeyboardInterrupt):
                build(stage, storage, run)
            assert (pending(stage, storage)[1] > 0) is (run is interrupted)
            build(stage, storage)
            trees.add((case, tree_digest(storage.url)))
    assert len(trees) == 2


def interrupted(open_worker: Any, units: Any, resources: Any) -> Any:
    yield from serial(open_worker, iter([next(units)]), resources)
    raise KeyboardInterrupt


def test_what_decides_an_identity(storage: Storage, tmp_path: Path) -> None:
    media = sealed(storage, PICTURES)
    changes: list[dict[str, Any]] = [{}, {"weights": "random:1"}, {"views": "ten"}, {"output": "grid"}]
    changes += [{"resize": 72}, {"crop": 32}, {"dtype": "float32"}, {"batch_size": 5}]
    assert len({features(media, ITEMS, replace(TINY, **change)).identity for change in changes}) == len(changes)
    file, extractor = tmp_path / "mine.pth", open_model(replace(TINY, weights="random:7"))
    torch.save(extractor.network.state_dict(), file)
    of_file = features(media, ITEMS, replace(TINY, weights="IMAGENET1K_V2"), file)  # which no file has to be
    found = FeatureStore(build(of_file, storage))
    np.testing.assert_array_equal(found.read(["00.jpg"])[0], alone(extractor, PICTURES["00.jpg"]))
    named = [replace(TINY, weights=weights) for weights in ("published", "IMAGENET1K_V1")]
    assert len({features(media, ITEMS, config).identity for config in named}) == 1


def test_a_row_of_any_length_fills_whole_pages() -> None:
    pytest.importorskip("timm")
    config = FeaturesConfig("timm/efficientvit_m0", "random:0", rows_per_shard=3)
    assert config.spec.shard_rows % 3 or config.spec.shard_rows > 3
    assert config.spec.shard_rows * config.spec.row_bytes % 4096 == 0


# -------------------------------------------------------------------------------------------------- what is no number


def overflowing(folder: Path) -> tuple[Path, set[str]]:
    """Weights that make about half of the pictures too bright for float16; and which."""
    config = replace(TINY, dtype="float32")

    def brightest(factor: float) -> tuple[ModelExtractor, dict[str, float]]:
        extractor = open_model(config)
        for name, values in extractor.network.named_parameters():
            if name.startswith("layer4.1.bn2."):
                values.mul_(factor)
        return extractor, {name: float(alone(extractor, data).max()) for name, data in PICTURES.items()}

    _, found = brightest(1e6)
    lower, upper = sorted(found.values())[len(found) // 2 :][:2]
    extractor, found = brightest(1e6 * 65504 * 2 / (lower + upper))
    torch.save(extractor.network.state_dict(), folder / "bright.pth")
    return folder / "bright.pth", {name for name, most in found.items() if most > 65504}


@pytest.mark.parametrize("name", ["features", "resnet"])
def test_a_row_that_is_not_finite_is_a_failure_of_its_picture(name: str, storage: Storage, tmp_path: Path) -> None:
    weights, bright = overflowing(tmp_path)
    assert 0 < len(bright) < len(PICTURES)
    media, stage = sealed(storage, PICTURES), {"features": features, "resnet": resnet}[name]
    old = ResNetConfig("resnet18", "random:0", 64, 64, "pooled", batch_size=4, rows_per_shard=4)
    output = build(stage(media, ITEMS, TINY if name == "features" else old, weights), storage)
    store = FeatureStore(output)
    assert store.absent == bright
    assert output.totals["failures"] == {"not_finite": len(bright)}
    assert output.totals["counts"] == {"rows": len(PICTURES) - len(bright)}
    told = {(row, kind, why) for unit in output.units() for row, kind, why in unit.failures}
    assert {row for row, _, _ in told} == bright
    assert all("--set dtype=float32" in why for _, _, why in told)
    assert np.isfinite(store.read([name for name in PICTURES if name not in bright])).all()
    with pytest.raises(UserError, match="has no features of"):
        store.read([min(bright)])
    whole = replace(TINY, dtype="float32") if name == "features" else replace(old, dtype="float32")
    assert not FeatureStore(build(stage(media, ITEMS, whole, weights), storage)).absent


@pytest.mark.parametrize("name", ["clip_features", "clips"])
def test_a_clip_with_a_frame_that_is_not_finite_is_a_failure(name: str, storage: Storage, tmp_path: Path) -> None:
    state = open_model(CLIP).network.state_dict()
    state["layer1.0.bn1.bias"][0] = torch.nan
    torch.save(state, tmp_path / "nan.pth")
    taken, stage = (
        frames(sealed(storage, clip_files()), CLIPS, TAKEN),
        {"clip_features": clip_features, "clips": clips}[name],
    )
    old = ClipsConfig("resnet18", "random:0", 64, 64, dtype="float32", batch_size=4, items_per_shard=3)
    config = replace(CLIP, dtype="float32") if name == "clip_features" else old
    output = build(stage(taken, config, tmp_path / "nan.pth"), storage)
    assert output.totals["failures"] == {"not_finite": len(CLIPS)}
    told = {reason for unit in output.units() for _, _, reason in unit.failures}
    assert told == {"the network makes NaN or infinite numbers of it: its weights may have some, too"}
    assert FeatureStore(output).absent == {id for id, _ in CLIPS}
    assert output.totals["counts"] == {"clips": 0, "rows": 0}


# -------------------------------------------------------------------------------------------------------------- clips


def clip_stage(storage: Storage, config: ClipFeaturesConfig = CLIP) -> Stage[Any, Any]:
    return clip_features(frames(sealed(storage, clip_files(c4=None)), CLIPS, TAKEN), config)


@pytest.mark.parametrize("case", ["pooled", "ten", "timm"])
def test_every_sample_has_the_features_of_its_frame(case: str, storage: Storage) -> None:
    asked(case)
    config = replace(CLIP, **CASES[case])
    output = build(clip_stage(storage, config), storage)
    store, taken, extractor = FeatureStore(output), frames_of(output), open_model(config)
    assert store.absent == {"c4"}
    for id in DELAYS_MS.keys() - store.absent:
        (found,) = store.read([id])
        looks = np.stack([alone(extractor, jpeg) for jpeg in taken.jpegs(id)])
        np.testing.assert_array_equal(found, looks[taken.frame_of_sample(id)])
    assert store.provenance["network"] == resolved(config).model
    assert "short_side" in store.provenance["frames"]


def test_clips_by_any_workers_are_the_same_bytes(tmp_path: Path) -> None:
    trees = set()
    for number, run in enumerate((serial, backwards, by_turns)):
        storage = open_storage(str(tmp_path / str(number)))
        build(clip_stage(storage), storage, run)
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def test_a_frame_has_one_row() -> None:
    with pytest.raises(ValueError, match="a frame of a clip has one row: its output is pooled or fc7"):
        replace(CLIP, output="grid")


# ------------------------------------------------------------------------------------------------- the command line


def test_the_command_line_can_set_what_decides() -> None:
    texts = ["model=timm/vit_base_patch16_siglip_224", "output=tokens", "weights=random:3", "features.batch_size=8"]
    settings = parse_settings(texts, {"features": FeaturesConfig()})
    assert settings["features.model"] == "timm/vit_base_patch16_siglip_224"
    for text, told in (
        ("facts=x", "no setting 'facts'"),
        ("model=resnet50", "say torchvision/NAME"),
        ("views=two", "not one of centre, ten, whole"),
        ("resize=9", "crop is a multiple of 32 and at most resize"),
    ):
        with pytest.raises(UserError, match=told):
            parse_settings([text], {"features": FeaturesConfig()})
    assert parse_settings(["resize=none"], {"features": FeaturesConfig()}) == {"features.resize": None}


def test_settings_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "features"]) == 0
    shown = re.sub(" +", " ", capsys.readouterr().out)
    for line in (
        "features.model str torchvision/resnet152 xmodal/features/image_models.py",
        "features.output pooled|grid|tokens|fc7|classes pooled",
        "features.resize int|none none",
        "it reads a file: --file weights=PATH",
    ):
        assert line in shown, shown
    assert "facts" not in shown


def test_a_plan_knows_bytes_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, data in PICTURES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "mine.csv").write_text("url,caption\n" + "".join(f"{name},a thing {name}\n" for name in PICTURES))
    where = ["--root", str(tmp_path / "root"), "--json"]
    targets = [f"{tmp_path}/mine.csv/{stage}" for stage in ("records", "media")]
    assert main(["build", *targets, *where, "--serial", "--quiet"]) == 0
    told = {}
    for model, more in (("resnet18", []), ("resnet50", []), ("resnet50", ["views=ten"]), ("vgg19", ["output=fc7"])):
        capsys.readouterr()
        sets = [word for text in (f"model=torchvision/{model}", *more) for word in ("--set", f"features.{text}")]
        assert main(["plan", "mine/features", *where, *sets]) == 0
        (row,) = json.loads(capsys.readouterr().out)["stages"]
        told[model, *more] = row["writes"] // len(PICTURES), row["compute_seconds"]
    sizes, seconds = zip(*told.values(), strict=True)
    assert sizes == (2 * 512, 2 * 2048, 2 * 2048, 2 * 4096)
    assert seconds[0] < seconds[1] < seconds[3] < seconds[2] == pytest.approx(10 * seconds[1], rel=0.1)


def test_a_card_names_the_model_its_weights_and_their_sha256(storage: Storage) -> None:
    output = build(features(sealed(storage, PICTURES), ITEMS, TINY), storage)
    said = store_settings(output)
    assert {"model torchvision/resnet18", "weights random:0", "views centre", "crop 64"} <= {*said.split(", ")}
    assert f"weights_sha256 {FeatureStore(output).provenance['weights_sha256']}" in said
    assert "facts" not in said


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["features.model=torchvision/nosuch"], "no model torchvision/nosuch; there are: resnet18"),
        (["features.model=timm/nosuch"], "no model timm/nosuch"),
        (["features.model=transformers/no/such"], "transformers/no/such cannot be fetched from huggingface.co/no/such"),
        (["features.model=torchvision/resnet18", "features.weights=IMAGENET1K_V2"], "no weights 'IMAGENET1K_V2' for"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_fetched(
    settings: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty_cache(tmp_path / "hub", monkeypatch)
    corpus = Path(__file__).parents[1] / "fixtures/pictures.py"
    sets = [word for setting in settings for word in ("--set", setting)]
    code = main(["build", f"{corpus}/features", "--root", str(tmp_path / "root"), *sets])
    assert (code, told in capsys.readouterr().err) == (1, True)
    assert not list(tmp_path.glob("root/**/*"))
