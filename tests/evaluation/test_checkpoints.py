"""Released weights: files in the official layouts give the official outputs, and all others a clear refusal."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.errors import UserError
from xmodal.evaluation.released_weights import convert, read
from xmodal.models import Inputs, Scorer
from xmodal.models.pvse import PVSEConfig
from xmodal.models.scan import SCANConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.recipes import Config

INPUTS = Inputs(visual_width=12, text_width=15, instances=0)
OFFICIAL = {  # our beginnings of names, and the official ones
    "image.": "img_enc.fc.",
    "frames.": "img_enc.rnn.",
    "words.": "txt_enc.embed.",
    "sentence.": "txt_enc.rnn.",
    **{
        f"{side}_pie.{ours}.": f"{encoder}.pie_net.{theirs}."
        for side, encoder in (("visual", "img_enc"), ("text", "txt_enc"))
        for ours, theirs in (
            ("hidden", "attention.w_1"),
            ("maps", "attention.w_2"),
            ("guided", "fc"),
            ("norm", "layer_norm"),
        )
    },
}
CNN = {"img_enc.cnn.conv1.weight": torch.ones(2, 3), "img_enc.cnn.bn1.num_batches_tracked": torch.tensor(7)}
KINDS: list[Config] = [
    PVSEConfig(width=10, word_width=6, legacy_last_output=True),
    PVSEConfig(visual="video", embeddings=3, width=10, word_width=6, legacy_last_output=True),
    PVSEConfig(embeddings=0, width=10, word_width=6, legacy_last_output=True),
    VSEPPConfig(width=10, word_width=6),
]


def model_of(config: Config) -> nn.Module:
    torch.manual_seed(0)
    model = config.build(INPUTS)
    assert isinstance(model, nn.Module)
    return model.eval()


def official_state(model: nn.Module) -> dict[str, Tensor]:
    state = {}
    for name, value in model.state_dict().items():
        (beginning,) = [ours for ours in OFFICIAL if name.startswith(ours)]
        state[OFFICIAL[beginning] + name.removeprefix(beginning)] = value
    return state


def as_vsepp(state: dict[str, Tensor], **options: object) -> dict[str, Any]:
    sides = [{n.removeprefix(p): v for n, v in state.items() if n.startswith(p)} for p in ("img_enc.", "txt_enc.")]
    return {"epoch": 3, "model": sides, "best_rsum": 400.0, "opt": argparse.Namespace(**options), "Eiters": 9}


def wrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As networks that ran on several GPUs are saved: a whole, or a part of one."""
    return {name.replace("cnn.", "cnn.module.").replace("img_enc.", "img_enc.module."): v for name, v in state.items()}


def saved(path: Path, content: object, **how: Any) -> Path:
    torch.save(content, path, **how)
    return path


def visual_and_text() -> tuple[Padded, Padded]:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 12)).astype("float32") for row in range(6)])
    return visual, Padded.of([random.integers(0, 15, 2 + row % 4) for row in range(6)])


def encoded(model: nn.Module) -> list[Tensor]:
    assert isinstance(model, Scorer)
    visual, text = visual_and_text()
    return [model.encode_visual(visual).detach(), model.encode_text(text).detach()]


FILES: dict[str, Callable[[Path, dict[str, Tensor]], Path]] = {
    "weights alone": lambda path, state: saved(path, state),
    "wrapped": lambda path, state: saved(path, wrapped(state)),
    "wholly wrapped": lambda path, state: saved(path, {f"module.{name}": value for name, value in state.items()}),
    "no archive": lambda path, state: saved(path, state, _use_new_zipfile_serialization=False),
    "in a dict": lambda path, state: saved(path, {"epoch": 3, "model": state}),
    "two encoders": lambda path, state: saved(path, as_vsepp(state)),
    "two old ones": lambda path, state: saved(path, as_vsepp(state), _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("config", KINDS)
def test_a_file_gives_the_model_that_was_saved(tmp_path: Path, config: Config, kind: str) -> None:
    model = model_of(config)
    released = read(FILES[kind](tmp_path / "ckpt.pth", official_state(model) | CNN))
    assert released.config == config
    assert vars(released.inputs) == vars(INPUTS)
    assert released.trunk.keys() == {"conv1.weight", "bn1.num_batches_tracked"}
    built = released.build()
    assert not built.training
    assert all(parameter.requires_grad for parameter in built.parameters())
    for found, expected in zip(encoded(built), encoded(model), strict=True):
        assert torch.equal(found, expected)


def test_two_models_of_one_file_do_not_share_weights() -> None:
    released = convert(official_state(model_of(KINDS[0])))
    first, second = released.build(), released.build()
    with torch.no_grad():
        next(first.parameters()).fill_(9)
    assert (next(second.parameters()) != 9).all()


def parameters(name: str, encoder: str) -> dict[str, Tensor]:
    prefix = "param."
    named = {key: torch.from_numpy(value) for key, value in golden(name).items() if key.startswith(prefix)}
    return {f"{encoder}.{key.removeprefix(prefix)}": value for key, value in named.items()}


def near(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found.detach().squeeze(1), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("read_out", "options"), [("legacy", {}), ("final", {"legacy": False})])
def test_official_weights_of_pvse_give_official_outputs(
    tmp_path: Path, read_out: str, options: dict[str, object]
) -> None:
    text, image, video = (
        f"pvse_encoder_{name}" for name in (f"text_k1_{read_out}", "image_k1", f"video_k1_{read_out}")
    )
    for visual, key in ((image, "featmap"), (video, "frames")):
        state = parameters(visual, "img_enc") | parameters(text, "txt_enc") | CNN
        model = read(saved(tmp_path / "a.pth", {"model": state, "args": argparse.Namespace(**options)})).build()
        assert isinstance(model, Scorer)
        local = torch.from_numpy(golden(visual)[key])
        local = local.flatten(2).transpose(1, 2) if local.ndim == 4 else local
        near(model.encode_visual(Padded.whole(local)), golden(visual)["out"])
        ids, lengths = (torch.from_numpy(golden(text)[name]) for name in ("ids", "lengths"))
        near(model.encode_text(Padded(ids, lengths)), golden(text)["out"])


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("out", {}),
        ("out", {"measure": "cosine", "use_abs": False, "no_imgnorm": False, "margin": 0.2, "max_violation": True}),
        ("out_abs", {"measure": "order", "use_abs": True, "margin": 0.05, "max_violation": False}),
        ("out_no_imgnorm", {"no_imgnorm": True, "max_violation": False}),
    ],
)
def test_official_weights_of_vsepp_give_official_outputs(
    tmp_path: Path, expected: str, options: dict[str, object]
) -> None:
    state = parameters("vsepp_encoder_image_precomp", "img_enc") | parameters("vsepp_encoder_text", "txt_enc")
    released = read(saved(tmp_path / "a.pth.tar", as_vsepp(state, **options)))
    model, images, texts = released.build(), golden("vsepp_encoder_image_precomp"), golden("vsepp_encoder_text")
    assert isinstance(model, Scorer)
    assert isinstance(released.config, VSEPPConfig)
    assert released.config.margin == options.get("margin", 0.2)
    near(model.encode_visual(Padded.whole(torch.from_numpy(images["feats"])[:, None])), images[expected])
    text = model.encode_text(Padded(*(torch.from_numpy(texts[name]) for name in ("ids", "lengths"))))
    near(text, abs(texts["out"]) if expected == "out_abs" else texts["out"])


SCAN = SCANConfig(width=10, word_width=6)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(SCAN, aggregation="logsumexp"), {}),
        (replace(SCAN, aggregation="logsumexp"), {"cross_attn": "t2i", "bi_gru": True, "no_txtnorm": False}),
        (SCAN, {"agg_func": "Mean", "max_violation": True, "margin": 0.2}),
        (replace(SCAN, bidirectional=False), {"cross_attn": "t2i", "agg_func": "Mean"}),
        (
            replace(SCAN, direction="image_to_text", aggregation="logsumexp", smoothing=4.0, sharpness=20.0),
            {"cross_attn": "i2t", "agg_func": "LogSumExp", "lambda_softmax": 4.0, "lambda_lse": 20.0},
        ),
        (
            replace(SCAN, normalisation="no_norm", normalise_image=False, negatives="all", margin=0.1),
            {
                "agg_func": "Mean",
                "raw_feature_norm": "no_norm",
                "no_imgnorm": True,
                "max_violation": False,
                "margin": 0.1,
            },
        ),
    ],
)
def test_a_file_of_scan_gives_the_model_and_the_scores_that_were_saved(
    tmp_path: Path, config: SCANConfig, options: dict[str, object]
) -> None:
    model = model_of(config)
    released = read(saved(tmp_path / "a.pth.tar", as_vsepp(official_state(model), **options)))
    assert (released.layout, released.config) == ("SCAN", config)
    built = released.build()
    assert isinstance(model, Scorer)
    assert isinstance(built, Scorer)
    visual, text = visual_and_text()
    expected = model.similarity(model.encode_visual(visual), model.encode_text(text))
    assert torch.equal(built.similarity(built.encode_visual(visual), built.encode_text(text)), expected)


def test_an_attention_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth.tar", as_vsepp(official_state(model_of(SCAN)), cross_attn="both"))
    with pytest.raises(UserError, match="looks like SCAN, but does not fit: 'both'"):
        read(path)
    wrong = as_vsepp(official_state(model_of(SCAN)), raw_feature_norm="batchnorm")
    with pytest.raises(UserError, match="looks like SCAN, but does not fit: no normalisation 'batchnorm'"):
        read(saved(path, wrong))


class Command:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch harmed",)


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = official_state(model_of(KINDS[0]))
    for how in ({}, {"_use_new_zipfile_serialization": False}):
        for bad in ({"model": state, "opt": Command()}, {"model": state, "opt": argparse.Namespace(a=Command())}):
            with pytest.raises(UserError, match=r"bad\.pth: it has other objects than tensors \("):
                read(saved(tmp_path / "bad.pth", bad, **how))
    assert not (tmp_path / "harmed").exists()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "ckpt.pth", official_state(model_of(KINDS[0])))
    data = path.read_bytes()
    weight = data.index(model_of(KINDS[0]).state_dict()["words.weight"].numpy().tobytes()) + 20
    flipped = data[:weight] + bytes([data[weight] ^ 1]) + data[weight + 1 :]
    for wrong, told in (
        (data[: len(data) // 2], "it ends early or is damaged: get the file again"),
        (b"", "it is empty: get the file again"),
        (b"<html>not here</html>", "it is a web page: download the file"),
        (data[:-1], "it ends early or is damaged: get the file again"),
        (flipped, ".* in it has changed since it was written: get the file again"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(UserError, match=rf"ckpt\.pth: {told}"):
            read(path)
    with pytest.raises(UserError, match=r"other\.pth: cannot be read: No such file"):
        read(tmp_path / "other.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s: {f"encoder.{n}": v for n, v in s.items()},
            r"no checkpoint of PVSE, PCME, .*encoder.img_enc.fc.bias",
        ),
        (lambda s: {}, "nobody knows what is in it, which is nothing"),
        (
            lambda s: s | {"img_enc.gate.weight": torch.ones(1)},
            r"looks like PVSE, but has weights of other names: img_enc\.gate\.weight$",
        ),
        (
            lambda s: s | {f"img_enc.x{n}": torch.ones(1) for n in range(7)},
            r"of other names: img_enc\.x0, img_enc\.x1, .*img_enc\.x4 and 2 more$",
        ),
        (lambda s: {n: v for n, v in s.items() if "txt_enc.pie_net" not in n}, "Missing key.*text_pie.hidden.weight"),
        (lambda s: {n: v for n, v in s.items() if "embed" not in n}, "does not fit: 'txt_enc.embed.weight'"),
        (lambda s: s | {"img_enc.fc.weight": torch.ones(9, 12)}, "size mismatch for image.weight"),
        (lambda s: {"model": s, "criterion": {"shift": torch.ones(1)}}, "has weights of other names: criterion.shift$"),
        (lambda s: {"model": [s, s, s]}, "holds a dict, not weights by name"),
        (lambda s: s | {"epoch": 3}, "holds what is no weight: epoch"),
        (lambda s: [1, 2], "holds a list, not weights by name"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    path = saved(tmp_path / "ckpt.pth", change(official_state(model_of(KINDS[0]))))
    with pytest.raises(UserError, match=f"ckpt.pth: .*{message}"):
        read(path)


def test_absolute_values_without_order_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", as_vsepp(official_state(model_of(KINDS[3])), use_abs=True))
    with pytest.raises(UserError, match="absolute values go with the order similarity"):
        read(path)
