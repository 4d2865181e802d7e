"""PCME against the official code's values, against its definition written slowly, and what every model must do."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.golden import golden
from tests.toy_root import fit, make_root
from tests.toy_root import one_thread as one_thread
from tests.toy_root import recipe as toy_recipe
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.evaluation.run_metrics import load as load_run
from xmodal.losses.gaussians import (
    AT_ONCE,
    SAMPLES,
    Distance,
    Gaussians,
    compare_samples,
    floats_per_item,
    squared_between_samples,
)
from xmodal.losses.gaussians import (
    similarity as score,
)
from xmodal.models import Inputs, Trainable, load
from xmodal.models.pcme import DRAWN, PCME, PCMEConfig, kl_divergence, log_odds, own_name, pair_losses, uniformity
from xmodal.recipes import Cosine, OnePerClass, Optimiser, Phase, View
from xmodal.root.identity import fingerprint

Array = NDArray[Any]
INPUTS = Inputs(visual_width=12, text_width=15, instances=8)
SMALL = PCMEConfig(width=10, word_width=6, samples=7, scale=5.0, shift=5.0)
TWIN = replace(SMALL, samples=0, kl="off", distance="mean")
KINDS = [
    SMALL,
    replace(SMALL, samples=1, kl="exact", uniformity="distinct", sigmoid_scale=1.0),
    replace(SMALL, uniformity="repeated", distance="elk"),
    TWIN,
    replace(TWIN, uniformity="distinct", distance="l2"),
]
DISTANCES: tuple[Distance, ...] = get_args(Distance)


def built(config: PCMEConfig = SMALL, inputs: Inputs = INPUTS) -> PCME:
    torch.manual_seed(0)
    return config.build(inputs)


def eight_pairs() -> Stream:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 12)).astype("float32") for row in range(8)])
    text = Padded.of([random.integers(4, 15, 2 + row % 4).astype("int32") for row in range(8)])
    return Stream.paired(visual, text, torch.arange(8), torch.arange(8))


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def with_weights(model: PCME, official: dict[str, Tensor], prefix: str) -> PCME:
    """The published weights of one encoder under our names; every one of them must have a place."""
    found = {own_name(prefix + k.removeprefix("param.")): v for k, v in official.items() if k.startswith("param.")}
    own = model.state_dict()
    used = {name: value for name, value in found.items() if name in own}
    unused = {name for name in found.keys() - own.keys() if not name.startswith(("text_sigma.", "sentence_spread."))}
    assert not unused
    assert used.keys() >= {name for name in own if name.startswith(("image",) if "img" in prefix else ("text", "sen"))}
    model.load_state_dict(used, strict=False)
    return model


def drawn(samples_BJD: Tensor) -> Gaussians:
    return Gaussians(samples_BJD[:, 0], samples_BJD[:, 0], samples_BJD)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5, relative: float = 1e-5) -> None:
    torch.testing.assert_close(found.detach(), expected.to(found.dtype), atol=tolerance, rtol=relative)


@pytest.mark.parametrize("kind", ["prob", "mu_only"])
def test_images_are_encoded_as_by_the_official_code(kind: str) -> None:
    official = tensors(f"pcme_encoder_image_{kind}")
    config = replace(SMALL if kind == "prob" else TWIN, width=8)
    model = with_weights(built(config, replace(INPUTS, visual_width=16)), official, "img_enc.")
    encoded = model.encode_visual(Padded.whole(official["featmap"].flatten(2).mT))
    close(encoded.mean, official["mean"])
    if kind == "prob":
        close(encoded.log_sigma, official["logsigma"])


def test_captions_are_encoded_as_by_the_official_code() -> None:
    official = tensors("pcme_encoder_text_mu_only")
    model = with_weights(
        built(replace(TWIN, width=8, word_width=10), replace(INPUTS, text_width=20)), official, "txt_enc."
    )
    close(model.encode_text(Padded(official["ids"], official["lengths"])).mean, official["mean"])


def test_the_spread_of_captions_is_that_of_the_official_code_and_so_are_its_gradients() -> None:
    official = tensors("pcme_uncertainty_text")
    model = built(replace(SMALL, width=8, word_width=10), replace(INPUTS, text_width=28))
    prefix = "txt_enc.uncertain_net."
    weights = {own_name(prefix + k.removeprefix("param.")): v for k, v in official.items() if k.startswith("param.")}
    assert weights.keys() == {name for name in model.state_dict() if name.startswith(("text_sigma", "sentence_spread"))}
    model.load_state_dict(weights | {"words.weight": official["wemb"].flatten(0, 1)}, strict=False)
    found = model.text_gaussians(Padded(torch.arange(28).view(4, 7), official["lengths"])).log_sigma
    (found * official["cotangent"]).sum().backward()  # type: ignore[no-untyped-call]
    close(found, official["logsigma"])
    assert model.words.weight.grad is not None
    close(model.words.weight.grad.view(4, 7, 10), official["grad_wemb"], 1e-4, 0)


def test_samples_are_those_of_the_official_code() -> None:
    official = tensors("pcme_sampling")
    close(Gaussians(official["mu"], official["logsigma"]).at(official["eps"]), official["samples"])


@pytest.mark.parametrize("name", ["pcme_loss_coco", "pcme_loss_plain"])
def test_the_loss_and_its_gradients_are_those_of_the_official_code(name: str) -> None:
    official = tensors(name)
    scale, shift = float(official["negative_scale_init"]), float(official["shift_init"])
    model = built(replace(SMALL, scale=scale, shift=shift))
    sides = []
    for part in ("image", "caption"):
        samples, log_sigma = (official[f"{part}_{of}"].clone().requires_grad_() for of in ("samples", "logsigma"))
        sides.append(Gaussians(torch.zeros_like(log_sigma), log_sigma, samples))
    image, caption = sides
    logits = model.logits(image.drawn, caption.drawn)
    losses = pair_losses(logits, torch.eye(4, dtype=torch.bool))
    divergences = [kl_divergence(side, "official") for side in sides]
    spread = uniformity(torch.cat([side.drawn.flatten(0, 1) for side in sides]), "distinct")
    total = 2 * losses.sum() + official["vib_beta"] * sum(divergences) + official["uniform_lambda"] * spread
    total.backward()  # type: ignore[no-untyped-call]
    distances = squared_between_samples(image.drawn, caption.drawn).add(1e-6).sqrt().permute(0, 2, 3, 1)
    close(distances.reshape(16, 49), official["pair_distance"])
    close(losses.flatten(), official["pair_nll"])
    close(torch.sigmoid(log_odds(logits)), official["match_prob_matrix"])
    close(torch.stack(divergences), torch.stack([official["kl_image"], official["kl_caption"]]))
    close(spread, official["uniformity"])
    close(total, official["loss_total"], 0)
    for part, side in zip(("image", "caption"), sides, strict=True):
        close(_gradient(side.samples), official[f"grad_{part}_samples"], 1e-4, 0)
        close(_gradient(side.log_sigma), official[f"grad_{part}_logsigma"], 1e-4, 0)
    close(_gradient(model.scale), official["grad_negative_scale"], 1e-4)
    close(_gradient(model.shift), official["grad_shift"], 1e-4)


def _gradient(leaf: Tensor | None) -> Tensor:
    assert leaf is not None
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


@pytest.mark.parametrize(("name", "positives"), [("pcme_cub_eval_matmul", "class"), ("pcme_coco_eval_matmul", "own")])
def test_products_of_samples_rank_as_in_the_official_evaluation(name: str, positives: str) -> None:
    official = tensors(name)
    similarity = score(drawn(official["image_samples"]), drawn(official["caption_samples"]), "matmul_sum").numpy()
    images, captions = similarity.shape
    of_image, of_caption = np.arange(images), np.arange(captions) // (captions // images)
    if positives == "class":
        of_image, of_caption = golden(name)["image_class"], golden(name)["caption_class"]
    right = of_image[:, None] == of_caption
    unit = 1 if positives == "class" else 100
    for direction, scores, answers in (("i2t", similarity, right), ("t2i", similarity.T, right.T)):
        best = np.where(answers, scores, -np.inf).max(1)
        ranks = ((scores > best[:, None]) & ~answers).sum(1)
        for k in (1, 5, 10):
            assert unit * (ranks < k).mean() == pytest.approx(float(official[f"{direction}_recall_{k}"]), abs=1e-4)


# Definitions, from the table of docs/models.md#pcme-scores, an item at a time.


def density(rows: int, width: int, seed: int, spread: float = 0.5) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    mean = random.normal(size=(rows, width))
    return mean / np.linalg.norm(mean, axis=1, keepdims=True), random.normal(-1, spread, size=(rows, width))


def slow_score(distance: str, m1: Array, l1: Array, m2: Array, l2: Array) -> float:
    s1, s2 = np.exp(l1), np.exp(l2)
    d2 = (m1 - m2) ** 2
    formulas: dict[str, Callable[[], Any]] = {
        "mean": lambda: m1 @ m2,
        "l2": lambda: -d2.sum(),
        "min": lambda: -d2.min(),
        "max": lambda: -d2.max(),
        "elk": lambda: -0.5 * (d2 / (s1**2 + s2**2) + np.log(s1**2 + s2**2)).sum(),
        "js": lambda: -((d2 + s1**2) / s2**2 + (d2 + s2**2) / s1**2).sum(),
        "wasserstein": lambda: -(d2 + (s1 - s2) ** 2).sum(),
        "official_kl": lambda: -(d2 / s2**2 + 2 * (l1 - l2) + s1**2 / s2**2).sum(),
        "official_reverse_kl": lambda: -(d2 / s1**2 + 2 * (l2 - l1) + s2**2 / s1**2).sum(),
        "kl": lambda: -(d2 / s2**2 + 2 * (l2 - l1) + s1**2 / s2**2).sum(),
        "reverse_kl": lambda: -(d2 / s1**2 + 2 * (l1 - l2) + s2**2 / s1**2).sum(),
        "bhattacharyya": lambda: -0.25 * (d2 / (s1**2 + s2**2) + 2 * np.log(s1 / s2 + s2 / s1) - 2 * math.log(2)).sum(),
    }
    return float(formulas[distance]())


def slow_sampled_score(distance: str, v: Array, t: Array, scale: float, shift: float, sigmoid_scale: float) -> float:
    products = [a @ b for a in v for b in t]
    gaps = [np.sqrt(((a - b) ** 2).sum()) for a in v for b in t]
    if distance == "matmul_sum":
        return float(sum(products))
    if distance == "matmul_max":
        return float(max(products))
    if distance == "average_l2":
        return -float(np.mean(gaps))
    near = [shift - scale * np.sqrt(gap**2 + 1e-6) for gap in gaps]
    return float(np.mean([1 / (1 + np.exp(-sigmoid_scale * logit)) for logit in near]))


OF_DENSITIES = [d for d in DISTANCES if d not in SAMPLES]


@pytest.mark.parametrize("distance", OF_DENSITIES)
@pytest.mark.parametrize(("width", "spread"), [(8, 0.5), (64, 1.0), (1, 0.1)])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_scores_of_densities_are_their_definitions(
    distance: Distance, width: int, spread: float, kind: torch.dtype, tolerance: float
) -> None:
    first, second = density(4, width, 0, spread), density(6, width, 1, spread)
    expected = [[slow_score(distance, *a, *b) for b in zip(*second, strict=True)] for a in zip(*first, strict=True)]
    visual, text = (Gaussians(*(torch.tensor(part, dtype=kind) for part in side)) for side in (first, second))
    close(score(visual, text, distance), torch.tensor(expected, dtype=torch.float64), tolerance, tolerance)


@pytest.mark.parametrize("distance", SAMPLES)
@pytest.mark.parametrize("sigmoid_scale", [1.0, 2.0])
@pytest.mark.parametrize("samples", [1, 7])
def test_scores_of_samples_are_their_definitions(distance: Distance, sigmoid_scale: float, samples: int) -> None:
    random = np.random.default_rng(0)
    v, t = 0.4 * random.normal(size=(AT_ONCE + 3, samples, 8)), 0.4 * random.normal(size=(6, samples, 8))
    model = built(replace(SMALL, width=8, distance=distance, sigmoid_scale=sigmoid_scale))
    expected = [[slow_sampled_score(distance, a, b, 5.0, 5.0, sigmoid_scale) for b in t] for a in v]
    found = model.similarity(drawn(torch.from_numpy(v)), drawn(torch.from_numpy(t)))
    found = torch.sigmoid(found) if distance == "match_probability" else found
    close(found, torch.tensor(expected, dtype=torch.float64), 1e-9, 1e-7)


def test_scores_hang_together_as_divergences_do() -> None:
    visual, text = (Gaussians(*map(torch.from_numpy, density(5, 8, seed))) for seed in (0, 1))
    kl, reverse = (-0.5 * (score(visual, text, d) + 8) for d in ("kl", "reverse_kl"))
    assert (kl > 0).all()
    assert (reverse > 0).all()
    close((kl + reverse) / 2, -score(visual, text, "js") / 4 - 4, 1e-9)
    close(score(visual, visual, "kl").diagonal(), torch.full((5,), -8.0), 1e-9)
    close(score(visual, visual, "bhattacharyya").diagonal(), torch.zeros(5), 1e-9)
    assert torch.equal(score(visual, text, "l2").argsort(1), score(visual, text, "mean").argsort(1))


def test_match_probability_ranks_what_a_probability_rounds_to_zero_or_one() -> None:
    model = built(replace(SMALL, width=4, scale=15.0, shift=15.0))
    text = torch.zeros(4, 1, 4)
    text[:, 0, 0] = torch.tensor([0.1, 0.2, 30.0, 40.0])
    scores = model.similarity(drawn(torch.zeros(1, 1, 4)), drawn(text))
    assert torch.sigmoid(scores)[0].tolist() == [1, 1, 0, 0]
    assert (scores[0].diff() < 0).all()
    assert scores.isfinite().all()


def test_only_a_few_visual_rows_are_compared_at_once() -> None:
    seen = []

    def score(visual: Tensor, text: Tensor) -> Tensor:
        seen.append((len(visual), len(text)))
        return visual.sum((1, 2))[:, None] + text.sum((1, 2))

    visual, text = (drawn(torch.randn(rows, 2, 3)) for rows in (2 * AT_ONCE + 1, 5))
    found = compare_samples(visual, text, score)
    assert seen == [(AT_ONCE, 5), (AT_ONCE, 5), (1, 5)]
    close(found, score(visual.drawn, text.drawn))


@pytest.mark.parametrize("config", [*(replace(SMALL, distance=distance) for distance in DISTANCES), TWIN])
def test_the_cost_of_a_score_is_what_a_gallery_keeps(config: PCMEConfig) -> None:
    model, stream = built(config), eight_pairs()
    for items in (model.encode_visual(stream.visual), model.encode_text(stream.text)):
        kept = [part for part in (items.mean, items.log_sigma, items.samples) if part is not None]
        assert sum(part.numel() for part in kept) == 8 * model.floats_per_item
    assert model.floats_per_item == floats_per_item(config.distance, 10, config.samples)
    assert [floats_per_item(distance, 64, 7) for distance in ("match_probability", "elk", "mean")] == [576, 128, 128]


def slow_gru(words: Array, weights: dict[str, Array], suffix: str) -> list[Array]:
    half = weights[f"weight_hh_l0{suffix}"].shape[1]
    state, states = np.zeros(half), []
    for word in words:
        given = weights[f"weight_ih_l0{suffix}"] @ word + weights[f"bias_ih_l0{suffix}"]
        known = weights[f"weight_hh_l0{suffix}"] @ state + weights[f"bias_hh_l0{suffix}"]
        reset, update = (1 / (1 + np.exp(-(given + known)[g * half : (g + 1) * half])) for g in (0, 1))
        new = np.tanh(given[2 * half :] + reset * known[2 * half :])
        state = (1 - update) * new + update * state
        states.append(state)
    return states


def slow_caption(ids: Array, model: PCME) -> tuple[Array, Array]:
    """Mean and log sigma of one caption."""
    weights = {name: value.numpy().astype(float) for name, value in model.state_dict().items()}

    def part(prefix: str) -> dict[str, Array]:
        return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}

    def whole(gru: dict[str, Array]) -> Array:
        return np.concatenate([slow_gru(words, gru, "")[-1], slow_gru(words[-1:], gru, "_reverse")[-1]])

    def local(head: dict[str, Array]) -> Array:
        scores = np.array(
            [head["attention.score.weight"] @ np.tanh(head["attention.hidden.weight"] @ w) for w in words]
        )
        shares = np.exp(scores) / np.exp(scores).sum()
        return np.asarray(head["local.weight"] @ (shares * words).sum(0) + head["local.bias"])

    words = weights["words.weight"][ids]
    mean = whole(part("sentence.")) + 1 / (1 + np.exp(-local(part("text_mean."))))
    mean = (mean - mean.mean()) / np.sqrt(mean.var() + 1e-5)
    mean = mean * weights["text_mean.norm.weight"] + weights["text_mean.norm.bias"]
    return mean / np.linalg.norm(mean), whole(part("sentence_spread.")) + local(part("text_sigma."))


def test_captions_are_encoded_as_defined() -> None:
    model, text = built(), eight_pairs().text
    for name in ("text_mean.norm.weight", "text_mean.norm.bias", "text_mean.local.bias", "text_sigma.local.bias"):
        torch.nn.init.normal_(model.get_parameter(name))
    found = model.encode_text(text)
    for row in range(8):
        mean, log_sigma = slow_caption(text.values[row, : int(text.lengths[row])].numpy(), model)
        close(found.mean[row], torch.from_numpy(mean))
        close(found.log_sigma[row], torch.from_numpy(log_sigma))


def slow_terms(config: PCMEConfig, sides: list[dict[str, Array]], right: Array) -> dict[str, float]:
    image, caption = sides
    loss = 0.0
    for row, v in enumerate(image["samples"]):
        for column, t in enumerate(caption["samples"]):
            sign = 1 if right[row, column] else -1
            gaps = np.sqrt(((v[:, None] - t) ** 2).sum(-1) + 1e-6)
            near = 1 / (1 + np.exp(-config.sigmoid_scale * sign * (config.shift - config.scale * gaps)))
            loss -= 2 * np.log(near.mean())
    kl = 0.0
    for side in sides if config.kl != "off" else []:
        official = config.kl == "official"
        mean, log_variance = (side["samples"].mean(1) if official else side["mean"]), side["log_sigma"] * (2 - official)
        kl += -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum()
    points = np.concatenate([side["samples"].reshape(-1, config.width) for side in sides])
    pairs = [np.exp(-2 * ((a - b) ** 2).sum()) for i, a in enumerate(points) for b in points[:i]]
    return {"matching": loss, "kl": kl, "uniformity": 0.0 if config.uniformity == "off" else np.log(np.mean(pairs))}


@pytest.mark.parametrize("config", KINDS)
@pytest.mark.parametrize("listed", [[(i, i) for i in range(8)], [(0, 0), (0, 1), (3, 2), (7, 7), (6, 7)]])
def test_the_objective_is_its_definition(config: PCMEConfig, listed: list[tuple[int, int]]) -> None:
    model, stream = built(config), replace(eight_pairs(), positives=torch.tensor(listed))
    torch.manual_seed(5)
    terms = model.objective(Batch({"annotated": stream}))
    torch.manual_seed(5)
    sides = []
    for items in (model.image_gaussians(stream.visual), model.text_gaussians(stream.text)):
        mean, log_sigma = (part.detach().double().numpy() for part in (items.mean, items.log_sigma))
        noise = torch.randn(8, config.samples, config.width).double().numpy()
        samples = mean[:, None] + noise * np.exp(log_sigma)[:, None] if config.samples else mean[:, None]
        sides.append({"mean": mean, "log_sigma": log_sigma, "samples": samples})
    right = np.zeros((8, 8), bool)
    right[tuple(zip(*listed, strict=True))] = True
    expected = slow_terms(config, sides, right)
    assert terms.keys() == expected.keys()
    assert terms["matching"].item() == pytest.approx(expected["matching"], rel=1e-5)
    assert terms["kl"].item() == pytest.approx(expected["kl"], rel=1e-5, abs=1e-6)
    if 2 * 8 * max(config.samples, 1) <= DRAWN or config.uniformity == "off":
        assert terms["uniformity"].item() == pytest.approx(expected["uniformity"], rel=1e-4, abs=1e-6)


def test_uniformity_draws_each_point_once_unless_told_otherwise() -> None:
    """Of far points that are all there once no pair is at one place, and of repeated ones some are."""
    far = 100 * torch.eye(DRAWN + 1)
    assert uniformity(far, "distinct") < -1000
    assert uniformity(far, "repeated") > -20
    assert uniformity(torch.zeros(DRAWN + 40, 3), "distinct") == pytest.approx(0, abs=1e-5)


def test_the_objective_is_decided_by_torchs_generator() -> None:
    model, batch = built(), Batch({"annotated": eight_pairs()})
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(model.objective(batch)["matching"].item())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("config", [replace(SMALL, width=1024, kl="exact"), replace(TWIN, width=1024)])
def test_what_is_encoded_in_half_precision_is_compared_in_single(config: PCMEConfig) -> None:
    model, stream, right = built(config), eight_pairs(), np.eye(8, dtype=bool)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(5)
        terms = model.objective(Batch({"annotated": stream}))
        encoded = model.image_gaussians(stream.visual), model.text_gaussians(stream.text)
    torch.manual_seed(5)
    sides = []
    for items in encoded:
        mean, log_sigma = (part.detach().double().numpy() for part in (items.mean, items.log_sigma))
        noise = torch.randn(8, config.samples, config.width).double().numpy()
        samples = mean[:, None] + noise * np.exp(log_sigma)[:, None] if config.samples else mean[:, None]
        sides.append({"mean": mean, "log_sigma": log_sigma, "samples": samples})
    expected = slow_terms(config, sides, right)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert terms["matching"].item() == pytest.approx(expected["matching"], rel=1e-5)
    assert terms["kl"].item() == pytest.approx(expected["kl"], rel=1e-5)


@pytest.mark.parametrize("config", KINDS)
def test_every_parameter_gets_a_gradient_but_the_memory_of_one_word(config: PCMEConfig) -> None:
    """What a backward GRU has read before the last word is nothing."""
    model = built(config)
    assert isinstance(model, Trainable)
    sum(model.objective(Batch({"annotated": eight_pairs()})).values()).backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.abs().sum() > 0) == (not name.endswith("weight_hh_l0_reverse")), name


@pytest.mark.parametrize("config", KINDS)
def test_eight_pairs_are_learned_by_heart(config: PCMEConfig) -> None:
    model, stream = built(replace(config, width=32)), eight_pairs()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        terms = model.objective(Batch({"annotated": stream}))
        optimiser.zero_grad()
        (terms["matching"] + 1e-4 * terms["kl"] + terms["uniformity"]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    similarity = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text))
    for best in (similarity.argmax(0), similarity.argmax(1)):
        assert best.tolist() == list(range(8))


@pytest.mark.parametrize("config", KINDS)
def test_padding_changes_nothing(config: PCMEConfig) -> None:
    model, stream = built(config), eight_pairs()
    visual = torch.nn.functional.pad(stream.visual.values, (0, 0, 0, 3), value=float("nan"))
    text = torch.nn.functional.pad(stream.text.values, (0, 3), value=99_999)
    images = model.encode_visual(Padded(visual, stream.visual.lengths))
    captions = model.encode_text(Padded(text, stream.text.lengths))
    for row in range(8):
        image = stream.visual.values[row : row + 1, : int(stream.visual.lengths[row])]
        caption = stream.text.values[row : row + 1, : int(stream.text.lengths[row])]
        alone = model.encode_visual(Padded.whole(image)), model.encode_text(Padded.whole(caption))
        for one, many in zip(alone, (images, captions), strict=True):
            torch.testing.assert_close(one.mean[0], many.mean[row])
            torch.testing.assert_close(one.log_sigma[0], many.log_sigma[row])
            if many.samples is not None:
                torch.testing.assert_close(one.drawn[0], many.samples[row])


@pytest.mark.parametrize("distance", DISTANCES)
def test_tiles_equal_the_whole_in_any_order(distance: Distance) -> None:
    model, stream = built(replace(SMALL, distance=distance)), eight_pairs()
    whole = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text))
    torch.manual_seed(3)
    order = torch.tensor([4, 2, 3])
    visual, text = model.encode_visual(stream.visual[order]), model.encode_text(stream.text[1:7])
    torch.testing.assert_close(model.similarity(visual, text), whole[order, 1:7])


def noise_of(items: Gaussians) -> Tensor:
    return (items.drawn - items.mean[:, None]) / items.log_sigma.exp()[:, None]


def test_all_items_of_a_side_have_the_same_noise_and_the_sides_do_not_share_it() -> None:
    model, stream = built(replace(SMALL, width=1024)), eight_pairs()
    found = [noise_of(side) for side in (model.encode_visual(stream.visual), model.encode_text(stream.text))]
    for noise in found:
        close(noise, noise[:1].expand_as(noise), 1e-4)
        assert abs(noise[0].mean()) < 0.05
        assert abs(noise[0].std() - 1) < 0.05
    samples = torch.cat([noise[0] for noise in found])
    assert (torch.corrcoef(samples) - torch.eye(14)).abs().max() < 0.15


@pytest.mark.parametrize("distance", SAMPLES)
def test_the_last_bits_of_an_item_change_its_scores_in_the_last_bits_alone(distance: Distance) -> None:
    model, stream = built(replace(SMALL, distance=distance)), eight_pairs()
    other = Padded(stream.visual.values * (1 + 2**-23), stream.visual.lengths)
    assert not torch.equal(other.values, stream.visual.values)
    text = model.encode_text(stream.text)
    found = [model.similarity(model.encode_visual(visual), text) for visual in (stream.visual, other)]
    close(found[1], found[0].detach(), 1e-4, 1e-4)


def test_words_start_from_vectors_where_they_have_any() -> None:
    vectors = np.random.default_rng(0).normal(size=(15, 6)).astype("float32")
    vectors[3:6] = np.nan
    words = built(inputs=replace(INPUTS, word_vectors=vectors)).words.weight.detach()
    found = np.r_[0:3, 6:15]
    assert torch.equal(words[found], torch.from_numpy(vectors[found]))
    assert words.isfinite().all()
    assert words[3:6].abs().max() > 0.8  # N(0, 1)
    assert built().words.weight.abs().max() <= math.sqrt(6 / (15 + 6))  # Xavier
    with pytest.raises(AssertionError):
        built(replace(SMALL, word_width=8), replace(INPUTS, word_vectors=vectors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 9}, "^width 9 must be even"),
        ({"samples": -1}, "^samples -1 must be 0 or more$"),
        ({"samples": 0}, "without samples kl must be off"),
        ({"samples": 0, "kl": "off", "distance": "elk"}, "distance one of mean, l2, min, max"),
        ({"sigmoid_scale": 0.0}, "^sigmoid_scale 0.0 must be above zero$"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)  # type: ignore[arg-type]


def test_scores_that_need_samples_or_learned_numbers_say_so() -> None:
    items = Gaussians(torch.ones(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="encoded without samples"):
        score(items, items, "average_l2")
    with pytest.raises(ValueError, match="'match_probability' cannot be told from two Gaussians"):
        score(items, items, "match_probability")


def test_the_recipes_are_those_of_the_paper() -> None:
    recipes = {recipe.name: recipe for recipe in load("pcme").RECIPES}
    assert list(recipes) == ["pcme-coco", "pcme-coco-mu", "pcme-cub", "pcme-cub-mu"]
    assert len({fingerprint(recipe) for recipe in recipes.values()}) == 4
    rates = {name: [phase.optimiser.learning_rate for phase in r.phases] for name, r in recipes.items()}
    assert (rates["pcme-coco"], rates["pcme-cub"]) == ([2e-4, 2e-5], [1e-4, 1e-4])
    assert [phase.optimiser.schedule for phase in recipes["pcme-cub"].phases] == [Cosine(50), Cosine(50)]
    assert all(isinstance(phase.sampler, OnePerClass) for phase in recipes["pcme-cub"].phases)
    for recipe in recipes.values():
        model = recipe.model.build(Inputs(8, 9, 10))
        terms = model.objective(Batch({"annotated": replace_width(eight_pairs(), 8)}))
        for phase in recipe.phases:
            assert terms.keys() == phase.weights.keys()
            off = {name for name, term in terms.items() if not term.requires_grad}
            assert off == {name for name in terms if not phase.weights[name]} | ({"kl"} & off)


def replace_width(stream: Stream, width: int) -> Stream:
    visual = Padded(stream.visual.values[..., :width], stream.visual.lengths)
    return replace(stream, visual=visual, text=Padded(stream.text.values % 9, stream.text.lengths))


def test_it_trains_in_two_phases_and_a_run_is_scored_alike_twice(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=60, places=2)
    adamp = Optimiser("adamp", 5e-3, clip_norm=2.0, unclipped=("scale", "shift"), schedule=Cosine(6))
    weights = {"matching": 1.0, "uniformity": 0.0, "kl": 1e-5}
    config = replace(SMALL, width=32, word_width=16)
    phases = (Phase(2, adamp, weights, frozen=("words.*",)), Phase(6, adamp, weights))
    recipe = toy_recipe(model=config, phases=phases, view=View("pictures", "toy/train", 2))
    outcome = fit(recipe, root, str(tmp_path / "run"))
    assert outcome.steps == 8 * 3
    assert outcome.rsum > 150
    model, stream = load_run(str(tmp_path / "run")), replace_width(eight_pairs(), 12)
    visual = Padded.whole(torch.randn(3, 1, 64))
    assert torch.equal(model.encode_visual(visual).drawn, model.encode_visual(visual).drawn)
    assert torch.equal(model.encode_text(stream.text).drawn, model.encode_text(stream.text).drawn)
