"""PVSE against the official code's values, against slow definitions for all settings, and at its edges."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.losses.ranking import order_similarity
from xmodal.models import Inputs, load
from xmodal.models.pvse import (
    PVSE,
    PVSE_COCO,
    PVSE_MRW,
    PVSE_TGIF,
    RECIPES,
    Embedded,
    PIENet,
    PVSEConfig,
    best_similarity,
    discrepancy_loss,
)
from xmodal.recipes import Features, Relative
from xmodal.root.identity import canonical_json, fingerprint
from xmodal.training import run_folder
from xmodal.training.optimisers import total

Array = NDArray[np.float64]
INPUTS = Inputs(visual_width=12, text_width=15, instances=8)
SMALL = PVSEConfig(width=10, word_width=6)
WEIGHTS: dict[str, float | Relative] = {"ranking": 1.0, "diversity": 0.1, "mmd": 0.01}
PARTS = {  # official names of parts, and ours
    "pie_net.attention.w_1": "{}_pie.hidden",
    "pie_net.attention.w_2": "{}_pie.maps",
    "pie_net.fc": "{}_pie.guided",
    "pie_net.layer_norm": "{}_pie.norm",
}


def built(config: PVSEConfig = SMALL, inputs: Inputs = INPUTS) -> PVSE:
    torch.manual_seed(0)
    return config.build(inputs)


def eight_pairs() -> Stream:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 12)).astype("float32") for row in range(8)])
    text = Padded.of([random.integers(4, 15, 2 + row % 4).astype("int32") for row in range(8)])
    return Stream.paired(visual, text, torch.arange(8), torch.arange(8))


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.detach(), expected, atol=1e-5, rtol=1e-5)


def near_gradient(found: Tensor | None, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def pie_net(config: PVSEConfig, official: dict[str, Tensor]) -> PIENet:
    net = PIENet(config, official["w1"].shape[1])
    names = {"w1": net.hidden.weight, "w2": net.maps.weight, "w3": net.guided.weight, "b3": net.guided.bias}
    names |= {"ln_gamma": net.norm.weight, "ln_beta": net.norm.bias}  # type: ignore[dict-item]
    with torch.no_grad():
        for name, parameter in names.items():
            if name in official:
                parameter.copy_(official[name])
    return net


def mask_of(local: Tensor, official: dict[str, Tensor]) -> Tensor:
    lengths = official.get("lengths", torch.full(local.shape[:1], local.shape[1]))
    return Padded(local.detach(), lengths).mask


@pytest.mark.parametrize("masked", ["nomask", "mask"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_attention_is_that_of_the_official_code(count: int, masked: str) -> None:
    official = tensors(f"pvse_attention_pool_k{count}_{masked}")
    local = official["x"].requires_grad_()
    net = pie_net(replace(SMALL, embeddings=count), official)
    attention = net.attend(local, mask_of(local, official))
    pooled = attention.mT @ local
    pooled.backward(official["cotangent"].reshape_as(pooled))  # type: ignore[no-untyped-call]
    near(attention, official["attn"])
    near(pooled, official["out"].reshape_as(pooled))
    near_gradient(local.grad, official["grad_x"])
    near_gradient(net.hidden.weight.grad, official["grad_w1"])
    near_gradient(net.maps.weight.grad, official["grad_w2"])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["image", "video", "text"])
def test_the_pie_net_is_that_of_the_official_code(kind: str, count: int) -> None:
    official = tensors(f"pvse_pienet_{kind}_k{count}")
    whole, local = official["glob"].requires_grad_(), official["local"].requires_grad_()
    net = pie_net(PVSEConfig(embeddings=count, width=whole.shape[1]), official)
    points, guided = net(whole, local, mask_of(local, official))
    points.backward(official["cotangent"].reshape_as(points))
    near(net.attend(local, mask_of(local, official)), official["attn"])
    near(guided, official["residual"].reshape_as(guided))
    near(points, official["out"].reshape_as(points))
    near_gradient(whole.grad, official["grad_glob"])
    near_gradient(local.grad, official["grad_local"])
    for name, layer in (("grad_w1", net.hidden), ("grad_w2", net.maps), ("grad_w3", net.guided)):
        near_gradient(layer.weight.grad, official[name])


def official_model(config: PVSEConfig, official: dict[str, Tensor], side: str, whole: dict[str, str]) -> PVSE:
    """Ours with the weights that the file has of one side."""
    weights = {name.removeprefix("param."): value for name, value in official.items() if name.startswith("param.")}
    sizes = Inputs(16, len(official["param.embed.weight"]) if side == "text" else 9, 1)
    model = built(replace(config, width=8, word_width=10), sizes)
    names = {official: ours.format(side) for official, ours in PARTS.items()} | whole
    state = {f"{names[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": value for name, value in weights.items()}
    assert {name for name in model.state_dict() if name.startswith((*whole.values(), side))} == state.keys()
    model.load_state_dict(state, strict=False)
    return model


def check_encoded(points: Tensor, attention: Tensor, guided: Tensor | None, official: dict[str, Tensor]) -> None:
    assert guided is not None
    near(points, official["out"].reshape_as(points))
    near(attention, official["attn"])
    near(guided, official["residual"].reshape_as(guided))


@pytest.mark.parametrize("count", [1, 3])
def test_images_are_encoded_as_by_the_official_code(count: int) -> None:
    official = tensors(f"pvse_encoder_image_k{count}")
    model = official_model(PVSEConfig(embeddings=count), official, "visual", {"fc": "image"})
    grid = Padded.whole(official["featmap"].flatten(2).transpose(1, 2))
    check_encoded(model.encode_visual(grid), model.attention_visual(grid), model._visual(grid).guided_BKD, official)


@pytest.mark.parametrize("read", ["final", "legacy"])
@pytest.mark.parametrize("count", [1, 3])
def test_videos_are_encoded_as_by_the_official_code(count: int, read: str) -> None:
    official = tensors(f"pvse_encoder_video_k{count}_{read}")
    config = PVSEConfig(visual="video", embeddings=count, legacy_last_output=read == "legacy")
    model = official_model(config, official, "visual", {"rnn": "frames"})
    frames = Padded.whole(official["frames"])
    check_encoded(
        model.encode_visual(frames), model.attention_visual(frames), model._visual(frames).guided_BKD, official
    )


@pytest.mark.parametrize("read", ["final", "legacy"])
@pytest.mark.parametrize("count", [1, 3])
def test_captions_are_encoded_as_by_the_official_code(count: int, read: str) -> None:
    official = tensors(f"pvse_encoder_text_k{count}_{read}")
    config = PVSEConfig(embeddings=count, legacy_last_output=read == "legacy")
    model = official_model(config, official, "text", {"rnn": "sentence", "embed": "words"})
    text = Padded(official["ids"], official["lengths"])
    check_encoded(model.encode_text(text), model.attention_text(text), model._text(text).guided_BKD, official)


def several(official: dict[str, Tensor], name: str) -> Tensor:
    """(N, K, D), a leaf, also where the file has no K."""
    value = official[name]
    return (value if value.ndim == 3 else value[:, None]).clone().requires_grad_()


@pytest.mark.parametrize("order", ["", "_order"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("mining", ["sumhinge", "maxviol"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_losses_are_those_of_the_official_code(
    count: int, mining: str, reduction: Literal["mean", "sum"], order: str
) -> None:
    official = tensors(f"pvse_loss_k{count}_{mining}_{reduction}{order}")
    config = PVSEConfig(
        embeddings=count,
        width=8,
        margin=float(official["margin"]),
        negatives="hardest" if mining == "maxviol" else "all",
        reduction=reduction,
        similarity="order" if order else "cosine",
    )
    visual, text, of_visual, of_text = (several(official, n) for n in ("img", "txt", "img_residual", "txt_residual"))
    model = built(config)
    pairs = torch.arange(len(visual))[:, None].expand(-1, 2)
    terms = model.losses(Embedded(visual, of_visual), Embedded(text, of_text), pairs)
    weights = {"ranking": 1.0, "diversity": float(official["div_weight"]), "mmd": float(official["mmd_weight"])}
    loss = total(terms, weights)
    loss.backward()  # type: ignore[no-untyped-call]
    near(model.similarity(visual, text), official.get("scores", official["pair_scores"]))
    each = (visual.flatten(0, 1)[:, None], text.flatten(0, 1)[:, None])
    near(model.similarity(*each), official["pair_scores"])
    for ours, theirs in (("ranking", "ranking_loss"), ("diversity", "div_loss"), ("mmd", "mmd_loss")):
        near(terms[ours], official.get(theirs, torch.zeros(())))
    near(loss, official["loss"])
    for tensor, name in ((visual, "img"), (text, "txt"), (of_visual, "img_residual"), (of_text, "txt_residual")):
        if f"grad_{name}" in official:
            near_gradient(tensor.grad, official[f"grad_{name}"].reshape_as(tensor))


def test_the_order_similarity_and_the_kernel_are_those_of_the_official_code() -> None:
    official = tensors("pvse_order_sim")
    near(order_similarity(official["im"], official["s"]), official["sim"])
    kernel = [[slow_kernel(x, y, "laplacian_l2", 0.5) for y in official["y"].numpy()] for x in official["x"].numpy()]
    np.testing.assert_allclose(kernel, official["rbf_g05"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["pvse_loss_k3_maxviol_mean", "pvse_loss_k3_sumhinge_sum"])
def test_gamma_is_a_setting(name: str) -> None:
    official = tensors(name)
    points = (official["img"].flatten(0, 1), official["txt"].flatten(0, 1))
    reduction: Literal["mean", "sum"] = "mean" if name.endswith("mean") else "sum"
    near(discrepancy_loss(*points, "laplacian_l2", 1 / 8, reduction), official["mmd_default_gamma"])


@pytest.mark.parametrize("negatives", ["hardest", "all"])
def test_without_mil_the_embeddings_of_an_item_are_one_vector(negatives: Literal["hardest", "all"]) -> None:
    official = tensors("indep_pvse_ablations")
    model = built(PVSEConfig(embeddings=3, width=8, mil=False, negatives=negatives, margin=float(official["margin"])))
    visual, text = (Embedded(official[side], official["residual"]) for side in ("img", "txt"))
    near(model.similarity(model._compared(visual), model._compared(text)), official["no_mil_scores"])
    terms = model.losses(visual, text, torch.arange(5)[:, None].expand(-1, 2))
    short = {"hardest": "maxviol", "all": "sumhinge"}[negatives]
    near(terms["ranking"], official[f"no_mil_loss_{short}_mean"])


@pytest.mark.parametrize(("expected", "fusion"), [("no_global_out", "local"), ("no_residual_concat", "concatenated")])
def test_the_other_fusions_are_those_of_the_paper(expected: str, fusion: Literal["local", "concatenated"]) -> None:
    """A net whose guided features are the given ones: one position a row, whose logit goes through an identity."""
    official = tensors("indep_pvse_ablations")
    guided = official["residual"].flatten(0, 1)
    net = PIENet(PVSEConfig(embeddings=1, width=8, fusion=fusion), 8)
    net.guided.load_state_dict({"weight": torch.eye(8), "bias": torch.zeros(8)})
    whole = None if fusion == "local" else official["glob"].repeat_interleave(3, dim=0)
    points, found = net(whole, guided.logit()[:, None], torch.ones(15, 1, dtype=torch.bool))
    near(found[:, 0], guided)
    near(points[:, 0], official[expected].flatten(0, 1))


def test_no_embeddings_are_the_global_feature() -> None:
    official = tensors("indep_pvse_ablations")
    model = built(PVSEConfig(embeddings=0, width=8), replace(INPUTS, visual_width=8))
    assert model.image is not None
    model.image.load_state_dict({"weight": torch.eye(8), "bias": torch.zeros(8)})
    near(model.encode_visual(Padded.whole(official["glob"][:, None]))[:, 0], official["k0_out"])


def test_relative_weights_are_those_of_figure_7() -> None:
    official = golden("indep_pvse_ablations")
    terms = {"ranking": official["L_mil"], "diversity": official["L_div"], "mmd": official["L_mmd"]}
    first, second = float(official["rel_lambda1"]), float(official["rel_lambda2"])
    weights: dict[str, dict[str, float | Relative]] = {
        "relative_total": {"diversity": Relative(first, "ranking"), "mmd": Relative(second, "ranking")},
        "absolute_total": {"diversity": first, "mmd": second},
    }
    for name, others in weights.items():
        found = total(
            {key: torch.from_numpy(np.asarray(value)) for key, value in terms.items()}, {"ranking": 1.0} | others
        )
        assert float(found) == pytest.approx(float(official[name]), rel=1e-5)


def test_one_direction_of_the_loss_is_the_papers_with_its_sign_put_right() -> None:
    """The printed sum has the diagonal in it, where every cell is the margin."""
    official = tensors("indep_pvse_mil_paper_reading")
    margin, similarity = float(official["rho"]), best_similarity(official["img"], official["txt"], "cosine").numpy()
    one_way = np.maximum(0, margin + similarity - similarity.diagonal()[:, None]).mean()
    assert one_way == pytest.approx(float(official["single_direction_corrected_incl_diag"]), rel=1e-5)
    other_way = np.maximum(0, margin + similarity - similarity.diagonal()[None]).mean()
    model = built(PVSEConfig(embeddings=3, width=8, margin=margin, negatives="all"))
    visual, text = (Embedded(official[side], official[side].abs()) for side in ("img", "txt"))
    both = model.losses(visual, text, torch.arange(5)[:, None].expand(-1, 2))["ranking"]
    assert float(both) == pytest.approx(one_way + other_way - 2 * margin / 5, rel=1e-5)


def slow_kernel(x: Array, y: Array, kernel: str, gamma: float) -> float:
    distance = float(np.linalg.norm(x - y))
    return float(np.exp(-gamma * (distance**2 if kernel == "rbf" else distance)))


def slow_similarity(visual: Array, text: Array, config: PVSEConfig) -> Array:
    def pair(v: Array, t: Array) -> float:
        return float(
            v @ t
            if config.similarity == "cosine"
            else -np.sqrt(sum(max(0.0, b - a) ** 2 for a, b in zip(v, t, strict=True)))
        )

    if not config.mil:
        visual, text = ([np.concatenate(row)[None] / np.linalg.norm(row) for row in side] for side in (visual, text))  # type: ignore[assignment]
    return np.array([[max(pair(v, t) for v in vs for t in ts) for ts in text] for vs in visual])


def slow_ranking(similarity: Array, pairs: list[tuple[int, int]], config: PVSEConfig) -> float:
    costs: list[list[float]] = [[], []]
    for row, column in pairs:
        right = similarity[row, column]
        lines = (
            [(row, other) for other in range(similarity.shape[1])],
            [(other, column) for other in range(similarity.shape[0])],
        )
        for side, line in enumerate(lines):
            line_costs = [0.0 if cell in pairs else max(0.0, config.margin + similarity[cell] - right) for cell in line]
            costs[side] += [max(line_costs)] if config.negatives == "hardest" else line_costs
    return float(sum(np.mean(side) if config.reduction == "mean" else np.sum(side) for side in costs))


def slow_diversity(guided: Array, config: PVSEConfig) -> float:
    found = []
    for row in guided:
        unit = [vector / np.linalg.norm(vector) for vector in row]
        others = [(a @ b) ** 2 for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
        found.append(np.sqrt(sum(others)) / len(row) ** 2)
    return float(np.mean(found) if config.reduction == "mean" else np.sum(found))


def slow_discrepancy(visual: Array, text: Array, config: PVSEConfig) -> float:
    def mean(some: Array, others: Array) -> float:
        return float(np.mean([slow_kernel(x, y, config.kernel, config.gamma) for x in some for y in others]))

    visual, text = (side.reshape(-1, side.shape[-1]) for side in (visual, text))
    squared = mean(visual, visual) - 2 * mean(visual, text) + mean(text, text)
    return squared if config.reduction == "mean" else squared * len(visual) * len(text)


def unit(random: np.random.Generator, *shape: int) -> Array:
    values = random.normal(size=shape)
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True))


CONFIGS = st.builds(
    PVSEConfig,
    embeddings=st.integers(1, 8),
    width=st.sampled_from([2, 4, 6]),
    margin=st.sampled_from([0.0, 0.05, 0.1, 1.0]),
    negatives=st.sampled_from(["hardest", "all"]),
    reduction=st.sampled_from(["mean", "sum"]),
    similarity=st.sampled_from(["cosine", "order"]),
    mil=st.booleans(),
    kernel=st.sampled_from(["laplacian_l2", "rbf"]),
    gamma=st.sampled_from([0.125, 0.5, 2.0]),
)


@settings(max_examples=80, deadline=None)
@given(config=CONFIGS, seed=st.integers(0, 99), rows=st.tuples(st.integers(1, 4), st.integers(1, 4)), data=st.data())
def test_the_losses_are_their_definitions(
    config: PVSEConfig, seed: int, rows: tuple[int, int], data: st.DataObject
) -> None:
    """For any pairs between any numbers of rows; some vectors are equal, as for an item that a batch has twice."""
    cells = [(row, column) for row in range(rows[0]) for column in range(rows[1])]
    pairs = sorted(data.draw(st.sets(st.sampled_from(cells), min_size=1)))
    random = np.random.default_rng(seed)
    visual, text = (unit(random, count, config.embeddings, config.width) for count in rows)
    visual[-1] = visual[0]
    visual, text = (abs(visual), abs(text)) if config.similarity == "order" else (visual, text)
    of_visual, of_text = (random.uniform(0.1, 0.9, side.shape) for side in (visual, text))
    sides = [Embedded(torch.from_numpy(p), torch.from_numpy(g)) for p, g in ((visual, of_visual), (text, of_text))]
    found = built(config).losses(sides[0], sides[1], torch.tensor(pairs))
    several = config.embeddings > 1
    diversity = slow_diversity(of_visual, config) + slow_diversity(of_text, config)
    assert {name: float(term) for name, term in found.items()} == pytest.approx(
        {
            "ranking": slow_ranking(slow_similarity(visual, text, config), pairs, config),
            "diversity": diversity if several else 0.0,
            "mmd": slow_discrepancy(visual, text, config) if several else 0.0,
        },
        rel=1e-9,
        abs=1e-7,
    )


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def slow_gru(state: dict[str, Array], name: str, vectors: Array, legacy: bool) -> Array:
    """Both directions of a bi-GRU, a step at a time, gates in torch's order r, z, n."""

    def run(suffix: str, sequence: Array) -> list[Array]:
        into, back = state[f"{name}.weight_ih_l0{suffix}"], state[f"{name}.weight_hh_l0{suffix}"]
        into_bias, back_bias = state[f"{name}.bias_ih_l0{suffix}"], state[f"{name}.bias_hh_l0{suffix}"]
        hidden, states = np.zeros(back.shape[1]), []
        for vector in sequence:
            given, kept = np.split(into @ vector + into_bias, 3), np.split(back @ hidden + back_bias, 3)
            reset, update = sigmoid(given[0] + kept[0]), sigmoid(given[1] + kept[1])
            hidden = (1 - update) * np.tanh(given[2] + reset * kept[2]) + update * hidden
            states.append(hidden)
        return states

    forward, backward = run("", vectors), run("_reverse", vectors[::-1])
    return np.concatenate([forward[-1], backward[0 if legacy else -1]])


def slow_side(state: dict[str, Array], config: PVSEConfig, pie: str, whole: Array | None, local: Array) -> Array:
    """The embeddings of one item, as they are compared."""
    if not config.embeddings:
        assert whole is not None
        return np.asarray(whole[None] / np.linalg.norm(whole))
    scores = np.tanh(local @ state[f"{pie}.hidden.weight"].T) @ state[f"{pie}.maps.weight"].T
    attention = np.exp(scores) / np.exp(scores).sum(0)
    guided = sigmoid(attention.T @ local @ state[f"{pie}.guided.weight"].T + state[f"{pie}.guided.bias"])
    if config.fusion == "concatenated":
        assert whole is not None
        points = np.stack([np.concatenate([whole, row]) for row in guided])
    else:
        summed = guided if whole is None else whole + guided
        spread = np.sqrt(summed.var(1, keepdims=True) + 1e-5)
        points = (summed - summed.mean(1, keepdims=True)) / spread * state[f"{pie}.norm.weight"]
        points = points + state[f"{pie}.norm.bias"]
    points = points / np.linalg.norm(points, axis=1, keepdims=True)
    points = abs(points) if config.similarity == "order" else points
    return points if config.mil else np.asarray(points.reshape(1, -1) / np.linalg.norm(points))


NETWORKS = st.builds(
    PVSEConfig,
    visual=st.sampled_from(["image", "video"]),
    embeddings=st.integers(1, 8),
    width=st.sampled_from([4, 6]),
    word_width=st.sampled_from([2, 5]),
    similarity=st.sampled_from(["cosine", "order"]),
    mil=st.booleans(),
    fusion=st.sampled_from(["residual", "local", "concatenated"]),
    legacy_last_output=st.booleans(),
    xavier_image=st.booleans(),
) | st.builds(PVSEConfig, visual=st.sampled_from(["image", "video"]), embeddings=st.just(0), width=st.just(4))


@settings(max_examples=60, deadline=None)
@given(config=NETWORKS, seed=st.integers(0, 99))
def test_the_encoders_are_their_definitions(config: PVSEConfig, seed: int) -> None:
    model = built(config).double().eval()
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    random = np.random.default_rng(seed)
    items = [random.normal(size=(length, 12)) for length in random.integers(1, 6, 3)]
    texts = [random.integers(0, 15, length) for length in random.integers(1, 6, 3)]
    expected_visual, expected_text = [], []
    for item, text in zip(items, texts, strict=True):
        words, whole, sentence = state["words.weight"][text], None, None
        if config.fusion != "local":
            sentence = slow_gru(state, "sentence", words, config.legacy_last_output)
            if config.visual == "image":
                whole = item.mean(0) @ state["image.weight"].T + state["image.bias"]
            else:
                whole = slow_gru(state, "frames", item, config.legacy_last_output)
        expected_visual.append(slow_side(state, config, "visual_pie", whole, item))
        expected_text.append(slow_side(state, config, "text_pie", sentence, words))
    visual, text = model.encode_visual(Padded.of(items)).detach(), model.encode_text(Padded.of(texts)).detach()
    np.testing.assert_allclose(visual, np.stack(expected_visual), atol=1e-9)
    np.testing.assert_allclose(text, np.stack(expected_text), atol=1e-9)


@pytest.mark.parametrize("visual", ["image", "video"])
def test_padding_reaches_no_gradient(visual: Literal["image", "video"]) -> None:
    """NaN beyond a length, and ids that no word has, change neither the terms nor what any parameter learns."""
    config, stream = replace(SMALL, visual=visual, embeddings=3), eight_pairs()
    worse = replace(
        stream,
        visual=Padded(torch.nn.functional.pad(stream.visual.values, (0, 0, 0, 3)), stream.visual.lengths),
        text=Padded(torch.nn.functional.pad(stream.text.values, (0, 3)), stream.text.lengths),
    )
    worse.visual.values[~worse.visual.mask] = float("nan")
    worse.text.values[~worse.text.mask] = 99_999
    models = [built(config), built(config)]
    for model, some in zip(models, (stream, worse), strict=True):
        total(model.objective(Batch({ANNOTATED: some})), WEIGHTS).backward()  # type: ignore[no-untyped-call]
    for (name, parameter), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert other.grad.isfinite().all(), name
        torch.testing.assert_close(parameter.grad, other.grad)
    assert not models[1].words.weight.grad[0].any()  # type: ignore[index]


@pytest.mark.parametrize("exact", [True, False])
def test_equal_vectors_have_no_distance_and_no_gradient(exact: bool) -> None:
    """Also where rounding leaves exactly zero of it, at which a root has no slope."""
    random = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    points = torch.eye(3, 5) if exact else torch.nn.functional.normalize(random, dim=1)
    twice = points[[0, 0, 1, 1, 2, 2]].requires_grad_()
    loss = discrepancy_loss(twice, twice, "laplacian_l2", 0.5, "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0, abs=1e-4)
    torch.testing.assert_close(twice.grad, torch.zeros_like(twice), atol=1e-5, rtol=0)
    alone = points[:1].clone().requires_grad_()
    discrepancy_loss(alone, alone, "laplacian_l2", 0.5, "mean").backward()  # type: ignore[no-untyped-call]
    assert torch.equal(alone.grad, torch.zeros_like(alone))  # type: ignore[arg-type]


def test_a_block_of_evaluation_is_the_maximum_over_all_pairs() -> None:
    random = np.random.default_rng(0)
    visual, text = (torch.from_numpy(unit(random, rows, 8, 4).astype("float32")) for rows in (256, 1024))
    found = best_similarity(visual, text, "cosine")
    assert found.shape == (256, 1024)
    few = torch.einsum("vkd,tld->vtkl", visual[:9], text[-50:]).amax((2, 3))
    torch.testing.assert_close(found[:9, -50:], few)


def test_attention_is_a_distribution_over_real_positions() -> None:
    model, stream = built(replace(SMALL, embeddings=3)), eight_pairs()
    for padded, attention in (
        (stream.visual, model.attention_visual(stream.visual)),
        (stream.text, model.attention_text(stream.text)),
    ):
        assert attention.shape == (8, padded.values.shape[1], 3)
        torch.testing.assert_close(attention.sum(1), torch.ones(8, 3))
        assert not attention[~padded.mask].any()
    with pytest.raises(ValueError, match="no embeddings"):
        built(replace(SMALL, embeddings=0)).attention_text(stream.text)


def test_words_start_from_their_vectors_if_they_have_one() -> None:
    vectors = np.random.default_rng(0).normal(size=(15, 6)).astype("float32")
    vectors[[0, 3]] = np.nan
    weights = built(SMALL, replace(INPUTS, word_vectors=vectors)).words.weight.detach()
    has = ~np.isnan(vectors[:, 0])
    np.testing.assert_array_equal(weights[has], vectors[has])
    torch.manual_seed(0)
    torch.testing.assert_close(weights[~has], torch.nn.Embedding(15, 6).weight.detach()[~has])
    with pytest.raises(AssertionError):
        built(SMALL, replace(INPUTS, word_vectors=vectors[:, :5]))


def test_dropout_is_for_training_alone() -> None:
    model, stream = built(replace(SMALL, dropout=0.5)), eight_pairs()
    assert not torch.equal(model.encode_text(stream.text), model.encode_text(stream.text))
    model.eval()
    assert torch.equal(model.encode_text(stream.text), model.encode_text(stream.text))
    plain = built(SMALL)
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.encode_visual(stream.visual), plain.encode_visual(stream.visual))


def guided(side: Embedded) -> Tensor:
    assert side.guided_BKD is not None
    return side.guided_BKD


WIDE = PVSEConfig(width=1000, word_width=500, dropout=0.5)
DROPPED: dict[str, tuple[PVSEConfig, Callable[[PVSE, Stream], Tensor]]] = {  # docs/models.md#pvse-inputs
    "an image's global feature": (replace(WIDE, embeddings=0), lambda m, s: m.encode_visual(s.visual)),
    "a clip's final states": (
        replace(WIDE, embeddings=0, visual="video"),
        lambda m, s: m.encode_visual(s.visual),
    ),
    "a clip's last output": (
        replace(WIDE, embeddings=0, visual="video", legacy_last_output=True),
        lambda m, s: m.encode_visual(s.visual),
    ),
    "a sentence's final states": (replace(WIDE, embeddings=0), lambda m, s: m.encode_text(s.text)),
    "the words": (WIDE, lambda m, s: m._word_vectors(s.text)),
    "an item's guided features": (WIDE, lambda m, s: guided(m._visual(s.visual))),
    "a sentence's guided features": (WIDE, lambda m, s: guided(m._text(s.text))),
}


@pytest.mark.parametrize("place", DROPPED)
def test_half_is_dropped_at_every_place_once(place: str) -> None:
    config, read = DROPPED[place]
    model, stream = built(config), eight_pairs()
    assert float((read(model, stream) == 0).float().mean()) == pytest.approx(0.5, abs=0.05)
    assert not (read(model.eval(), stream) == 0).any()


@pytest.mark.parametrize("xavier", [True, False])
def test_the_image_layer_starts_as_torchs_unless_told_otherwise(xavier: bool) -> None:
    layer = built(PVSEConfig(xavier_image=xavier)).image
    assert layer is not None
    bound = math.sqrt(6 / (12 + 1024)) if xavier else 1 / math.sqrt(12)
    assert 0.95 * bound < layer.weight.abs().max() <= bound
    assert layer.bias.any() != xavier


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embeddings": -1}, "embeddings -1 must be 0 or more"),
        ({"width": 7}, "^width 7 must be even"),
        ({"margin": -0.1}, "margin -0.1"),
        ({"gamma": 0.0}, "gamma 0.0"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"embeddings": 0, "mil": False}, "nothing to fuse"),
        ({"embeddings": 0, "fusion": "local"}, "nothing to fuse"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_the_recipes_are_those_of_the_papers() -> None:
    assert load("pvse").RECIPES[:3] == (PVSE_COCO, PVSE_TGIF, PVSE_MRW)
    assert len({fingerprint(recipe) for recipe in RECIPES}) == len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    model = PVSEConfig().build(Inputs(2048, 11_755, 566_435))
    assert model.image is not None
    assert model.image.weight.shape == (1024, 2048)
    assert model.visual_pie is not None
    assert [model.visual_pie.maps.weight.shape, model.visual_pie.guided.weight.shape] == [(2, 1024), (1024, 2048)]
    assert model.sentence is not None
    assert model.sentence.weight_hh_l0.shape == (3 * 512, 512)
    assert [phase.epochs for phase in PVSE_COCO.phases] == [50, 50]
    assert [phase.pixels is None for phase in PVSE_COCO.phases] == [True, False]
    assert [recipe.model.embeddings for recipe in RECIPES[:3]] == [2, 3, 5]  # type: ignore[attr-defined]
    assert PVSE_TGIF.visual == Features("clips", frames=8, ends=6)
    assert PVSE_MRW.visual == Features("clips", frames=4)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_can_be_written_down_and_fits_its_model(recipe: Any) -> None:
    assert run_folder.recipe_of(json.loads(canonical_json(recipe)), "pvse") == recipe
    model = replace(recipe.model, width=8, word_width=6).build(INPUTS)
    terms = model.objective(Batch({ANNOTATED: eight_pairs()}))
    names = dict(model.named_parameters())
    for phase in recipe.phases:
        assert total(terms, phase.weights).isfinite()
        assert {pattern.replace("*", "weight") for pattern in phase.frozen} <= names.keys()
