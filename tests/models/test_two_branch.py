"""Two-Branch networks: reference values, and losses beside their definition, written as loops over triplets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.golden import golden
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.losses.triplets import farthest, squared_distances, triplet_loss
from xmodal.models import Inputs
from xmodal.models.two_branch import (
    OFFICIAL_CODE,
    Branch,
    SimilarityConfig,
    SimilarityNetwork,
    TwoBranch,
    TwoBranchConfig,
    combined_distance,
)

Array = NDArray[np.float64]


class Given(TwoBranch):
    """Takes what it reads for its two vectors."""

    def __init__(self, config: TwoBranchConfig) -> None:
        super().__init__(config, Inputs(2, 2, 0))

    def encode_together(self, stream: Stream) -> tuple[Tensor, Tensor]:
        return stream.visual.average(), stream.text.average()


def a_stream(visual: Any, text: Any, visual_items: Any, text_items: Any, pairs: Any, captions: Any = None) -> Stream:
    items = [torch.as_tensor(np.asarray(some), dtype=torch.int64) for some in (visual_items, text_items)]
    named = torch.arange(len(text)) if captions is None else torch.as_tensor(np.asarray(captions), dtype=torch.int64)
    sides = [Padded.whole(torch.as_tensor(rows)[:, None]) for rows in (visual, text)]
    return Stream(*sides, *items, named, torch.as_tensor(np.asarray(pairs), dtype=torch.int64).reshape(-1, 2))


def terms_of(config: TwoBranchConfig, stream: Stream) -> dict[str, Tensor]:
    return Given(config).objective(Batch({"annotated": stream}))


# ------------------------------------------------------------------------------------------------- reference values


@pytest.mark.parametrize("name", ["fi0_fs0", "fi15_fs5"])
def test_the_preset_of_the_official_code_gives_its_losses_and_gradients(name: str) -> None:
    """Two sentences an image, side by side; sentence-image pairs are `labels`."""
    known = golden(f"two_branch_loss_b6_s2_k3_m5_{name}")
    images, sentences = (torch.tensor(known[side], requires_grad=True) for side in ("im_embeds", "sent_embeds"))
    items = known["labels"].argmax(1)
    stream = a_stream(images, sentences, np.arange(6), items, np.stack([items, np.arange(12)], axis=1))
    config = replace(OFFICIAL_CODE, most=int(known["num_neg_sample"]), margin=float(known["margin"]))
    found = terms_of(config, stream)
    of = {"text": "im_loss", "visual": "sent_loss", "text_neighbours": "sent_only_loss"}
    factors = {"visual": 1.0, "text": known["im_loss_factor"], "text_neighbours": known["sent_only_loss_factor"]}
    for term, theirs in of.items():
        if theirs != "im_loss" or known["im_loss_factor"]:  # they leave it out with a factor of 0
            assert found[term].item() == pytest.approx(float(known[theirs]), abs=1e-6), term
    loss = torch.stack([float(factors[term]) * found[term] for term in of]).sum()
    assert loss.item() == pytest.approx(float(known["loss"]), abs=1e-6)
    loss.backward()  # type: ignore[no-untyped-call]
    assert images.grad is not None
    assert sentences.grad is not None
    np.testing.assert_allclose(images.grad.numpy(), known["grad_im"], atol=1e-4)
    np.testing.assert_allclose(sentences.grad.numpy(), known["grad_sent"], atol=1e-4)


@pytest.mark.parametrize(("name", "reduction"), [("topk0_sum", "sum"), ("topk4_mean", "mean")])
def test_losses_of_equation_6_are_those_of_the_reference(name: str, reduction: Any) -> None:
    known = golden(f"indep_two_branch_eq6_{name}")
    items = known["image_of_sentence"]
    stream = a_stream(known["x"], known["y"], np.arange(5), items, np.stack([items, np.arange(15)], axis=1))
    found = terms_of(TwoBranchConfig(most=int(known["topK"]) or None, reduction=reduction), stream)
    of = {"visual": "image_anchor", "text": "sentence_anchor", "text_neighbours": "sentence_neighbourhood"}
    for term, theirs in of.items():
        assert found[term].item() == pytest.approx(float(known[f"term_{theirs}"]), rel=1e-4), term
    loss = found["visual"] + 2 * found["text"] + 0 * found["visual_neighbours"] + 0.2 * found["text_neighbours"]
    assert loss.item() == pytest.approx(float(known["loss"]), rel=1e-4)


def fill(branch: Branch, known: dict[str, Any], side: str) -> None:
    """A layer that is normalised has no bias here: it moves the running mean instead."""

    def put(layer: nn.Module, **values: Any) -> None:
        missing = layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()}, strict=False)
        assert set(missing.missing_keys) <= {"num_batches_tracked"}

    first, second = ({"weight": known[f"{side}_W{n}"], "bias": known[f"{side}_b{n}"]} for n in (1, 2))
    layout = branch.config.layout
    if layout == "linear":
        put(branch.first, **first)
        return
    normalised, number = (first, 1) if layout == "code" else (second, 2)
    mean = known[f"{side}_bn{number}_m"] - normalised.pop("bias")
    put(branch.first, **first)
    put(branch.second, **second)
    norm = {"weight": "g", "bias": "b", "running_var": "v"}
    put(
        branch.norm,
        running_mean=mean,
        **{ours: known[f"{side}_bn{number}_{theirs}"] for ours, theirs in norm.items()},
    )


@pytest.mark.parametrize(("layout", "name"), [("paper", "paper"), ("code", "code_layout"), ("linear", "linear")])
def test_branches_are_those_of_the_reference(layout: Any, name: str) -> None:
    known = golden("indep_two_branch_networks")
    model = TwoBranchConfig(hidden=7, width=4, layout=layout).build(Inputs(10, 12, 0)).eval()
    fill(model.visual, known, "img")
    fill(model.text, known, "txt")
    images = model.encode_visual(Padded.whole(torch.tensor(known["img_feats"])[:, None]))
    sentences = model.encode_text(Padded.whole(torch.tensor(known["txt_feats"])[:, None]))
    np.testing.assert_allclose(images.detach().numpy(), known[f"img_embed_{name}"], atol=1e-6)
    np.testing.assert_allclose(sentences.detach().numpy(), known[f"txt_embed_{name}"], atol=1e-6)


def scoring_network(known: dict[str, Any]) -> SimilarityNetwork:
    """With layers of the reference, which are 4, 3 and 1 wide."""
    model = SimilarityConfig(hidden=7, width=4).build(Inputs(10, 12, 0)).eval()
    fill(model.visual, known, "img")
    fill(model.text, known, "txt")
    model.score = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    for number, place in enumerate((0, 2, 4), 1):
        weights = {"weight": known[f"sim_fc{number}_W"], "bias": known[f"sim_fc{number}_b"]}
        model.score[place].load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    return model


def test_scores_of_the_similarity_network_are_those_of_the_reference() -> None:
    known = golden("indep_two_branch_networks")
    model = scoring_network(known)
    images = model.encode_visual(Padded.whole(torch.tensor(known["img_feats"])[:, None]))
    sentences = model.encode_text(Padded.whole(torch.tensor(known["txt_feats"])[:, None]))
    found = model.similarity(images, sentences).detach().numpy()
    np.testing.assert_allclose(found.diagonal(), known["sim_score"], atol=1e-6)


def test_the_combined_distance_is_that_of_the_reference() -> None:
    known = golden("indep_two_branch_combined_distance")
    found = combined_distance(torch.tensor(known["d"]), torch.tensor(known["d_rp"]), float(known["alpha"]))
    np.testing.assert_allclose(found, known["D"], rtol=1e-6)
    assert combined_distance(torch.ones(1, 1), torch.zeros(1, 1)).item() == pytest.approx(0.8)


# ------------------------------------------------------------------------------------- definitions, the slow way


def distance(one: Array, other: Array, offset: float) -> float:
    return float(np.sqrt(((one - other) ** 2).sum() + offset))


def of_triplets(config: TwoBranchConfig, right: list[tuple[float, list[float]]]) -> float:
    """Of pairs: the distance of the right row, and those of all wrong ones."""
    kept = []
    for near, far in right:
        losses = sorted((max(config.margin + near - one, 0) for one in far), reverse=True)
        kept += losses[: config.most or len(losses)]
    return sum(kept) / (max(len(kept), 1) if config.reduction == "mean" else 1)


def slow_terms(config: TwoBranchConfig, stream: Stream) -> dict[str, float]:
    visual, text = stream.visual.values[:, 0].numpy(), stream.text.values[:, 0].numpy()
    items, of_texts, captions = (some.tolist() for some in (stream.visual_items, stream.text_items, stream.captions))
    pairs = [tuple(pair) for pair in stream.positives.tolist()]
    images, sentences = range(len(visual)), range(len(text))

    def d(one: Array, other: Array) -> float:
        return distance(one, other, config.offset)

    shared = {(a, b) for a, t in pairs for b, u in pairs if t == u and a != b}
    siblings = {
        (s, t) for s in sentences for t in sentences if of_texts[s] == of_texts[t] and captions[s] != captions[t]
    }

    def of_neighbours(rows: Array, near: set[tuple[int, int]], is_wrong: Any) -> float:
        right = []
        for one in range(len(rows)):
            distances = [d(rows[one], rows[other]) for other in range(len(rows)) if (one, other) in near]
            far = [d(rows[one], rows[other]) for other in range(len(rows)) if is_wrong(one, other)]
            if config.neighbour == "farthest":
                distances = [max(distances)] if distances else []
            right += [(found, far) for found in distances]
        return of_triplets(config, right)

    return {
        "visual": of_triplets(
            config,
            [
                (d(visual[v], text[t]), [d(visual[v], text[u]) for u in sentences if of_texts[u] != items[v]])
                for v, t in pairs
            ],
        ),
        "text": of_triplets(
            config,
            [
                (d(visual[v], text[t]), [d(visual[w], text[t]) for w in images if items[w] != of_texts[t]])
                for v, t in pairs
            ],
        ),
        "visual_neighbours": of_neighbours(
            visual, shared, lambda one, other: items[one] != items[other] and (one, other) not in shared
        ),
        "text_neighbours": of_neighbours(text, siblings, lambda one, other: of_texts[one] != of_texts[other]),
    }


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Any number of sentences of an image, images and sentences that come twice, and rows that are the same."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    visual_items = random.integers(0, draw(st.integers(1, 6)), draw(st.integers(1, 8)))
    pairs, captions, items = [], [], []
    for row, item in enumerate(visual_items):
        for _ in range(draw(st.integers(0, 3))):
            pairs.append((row, len(captions)))
            captions.append(10 * item + random.integers(0, 3))
            items.append(item)
    if not pairs:
        pairs, captions, items = [(0, 0)], [0], [visual_items[0]]
    if draw(st.booleans()):  # a text of two images
        pairs.append((int(random.integers(len(visual_items))), 0))
    sides = []
    for count in (len(visual_items), len(items)):
        rows = random.normal(size=(count, 3))
        if draw(st.booleans()):
            rows = rows[random.integers(0, count, count)].round(0)  # ties
            rows[:, 2] += 1
        sides.append(rows / np.linalg.norm(rows + 1e-9, axis=1, keepdims=True))
    return a_stream(*sides, visual_items, items, pairs, captions)


CONFIGS = st.builds(
    TwoBranchConfig,
    margin=st.sampled_from([0.0, 0.05, 0.1, 1.5]),
    most=st.sampled_from([None, 1, 2, 3, 50]),
    offset=st.sampled_from([0.0, 1e-4]),
    neighbour=st.sampled_from(["each", "farthest"]),
    reduction=st.sampled_from(["mean", "sum"]),
)


@given(CONFIGS, streams())
def test_losses_are_their_definition(config: TwoBranchConfig, stream: Stream) -> None:
    found = terms_of(config, stream)
    expected = slow_terms(config, stream)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, rel=1e-5, abs=1e-5), name


@given(CONFIGS, streams())
def test_gradients_are_finite_where_rows_are_the_same(config: TwoBranchConfig, stream: Stream) -> None:
    visual, text = (side.values[:, 0].clone().requires_grad_() for side in (stream.visual, stream.text))
    moving = replace(stream, visual=Padded.whole(visual[:, None]), text=Padded.whole(text[:, None]))
    torch.stack([*terms_of(config, moving).values()]).sum().backward()  # type: ignore[no-untyped-call]
    for side in (visual, text):
        assert side.grad is not None
        assert side.grad.isfinite().all()


def test_gradients_are_those_of_differences() -> None:
    random = torch.Generator().manual_seed(0)
    rows = [torch.randn(6, 4, generator=random, dtype=torch.float64).requires_grad_() for _ in range(2)]
    pairs, wrong = torch.stack([torch.arange(6)] * 2, dim=1), ~torch.eye(6, dtype=torch.bool)

    def loss(visual: Tensor, text: Tensor) -> Tensor:
        return triplet_loss(squared_distances(visual, text), pairs, wrong, 2.0, 3, "sum")

    assert torch.autograd.gradcheck(loss, rows)


def test_sentences_of_an_image_that_comes_twice_are_never_wrong() -> None:
    """In the official code they are each other's negatives: docs/models.md#two-branch-sampling."""
    point = torch.ones(2, 3, dtype=torch.float64)
    stream = a_stream(point, point, [7, 7], [7, 7], [(0, 0), (1, 1)])
    assert {name: term.item() for name, term in terms_of(TwoBranchConfig(), stream).items()} == dict.fromkeys(
        ("visual", "text", "visual_neighbours", "text_neighbours"), 0.0
    )
    apart = terms_of(TwoBranchConfig(), a_stream(point, point, [7, 8], [7, 8], [(0, 0), (1, 1)]))
    assert apart["visual"].item() == pytest.approx(0.1)


def test_the_farthest_right_row_of_an_anchor_is_taken() -> None:
    squared, right = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 9.0]]), torch.tensor([[True, True, True], [False] * 3])
    assert farthest(squared, right).tolist() == [[0, 1]]


# ----------------------------------------------------------------------------------------------- memory of a step


class Sizes(TorchDispatchMode):
    """Numbers in the largest tensor that any operation gives, also in the backward pass."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, list | tuple) else [found]:
            if isinstance(one, Tensor):
                self.largest = max(self.largest, one.numel())
        return found


@pytest.mark.parametrize("neighbour", ["each", "farthest"])
def test_a_step_on_1500_pairs_never_builds_a_table_of_triplets(neighbour: Any) -> None:
    """The largest tensor is that of distances between sentences, of which each pair brought two: 36 MB of float32.

    Of all triplets of sentences there would be 3,000 x 2 x 3,000, and of each direction 3,000 x 1,500 or twice that.
    """
    pairs, texts = 1500, 3000
    random, items = np.random.default_rng(0), np.arange(pairs) // 2  # each image twice, of four sentences
    of_texts = np.repeat(items, 2)
    visual, text = (random.normal(size=(rows, 8)).astype("float32") for rows in (pairs, texts))
    belongs = np.stack([np.repeat(np.arange(pairs), 2), np.arange(texts)], axis=1)
    stream = a_stream(visual, text, items, of_texts, belongs)
    moving = replace(stream, text=Padded.whole(stream.text.values.requires_grad_()))
    with Sizes() as sizes:
        terms = terms_of(TwoBranchConfig(neighbour=neighbour), moving)
        torch.stack([*terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
    assert sizes.largest == texts**2


# ------------------------------------------------------------------------------------------------------- networks


def test_one_pair_alone_is_a_batch() -> None:
    """The last batch of an epoch may be one: batch normalisation has no variance of it."""
    for config in (TwoBranchConfig(hidden=5, width=4), SimilarityConfig(hidden=5, width=4)):
        model = config.build(Inputs(3, 3, 0)).train()
        stream = a_stream(torch.ones(1, 3), torch.ones(1, 3), [0], [0], [(0, 0)])
        terms = model.objective(Batch({"annotated": stream}))
        loss = torch.stack([*terms.values()]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.item() == 0


@pytest.mark.parametrize("layout", ["paper", "code"])
def test_training_drops_half_of_the_hidden_numbers_and_doubles_the_others(layout: Any) -> None:
    torch.manual_seed(0)
    branch = Branch(6, TwoBranchConfig(hidden=400, width=4, layout=layout)).train()
    seen, rows = list[Tensor](), torch.randn(50, 6)
    branch.second.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    branch(rows)
    hidden = branch.first(rows)
    whole = (hidden if layout == "paper" else (hidden - hidden.mean(0)) / hidden.std(0, correction=0)).relu()
    is_kept = seen[0] > 0
    torch.testing.assert_close(seen[0][is_kept], 2 * whole[is_kept], rtol=1e-3, atol=1e-3)
    assert is_kept.sum() / (whole > 0).sum() == pytest.approx(0.5, abs=0.02)
    branch.eval()(rows)
    assert (seen[1] > 0).float().mean() > 0.4


@pytest.mark.parametrize(("layout", "momentum"), [("paper", 0.1), ("code", 0.9)])
def test_running_statistics_follow_a_batch_as_fast_as_the_paper_s_or_the_code_s(layout: Any, momentum: float) -> None:
    """TensorFlow's momentum of 0.1 is torch's 0.9: docs/models.md#two-branch-embedding."""
    torch.manual_seed(0)
    branch, rows = Branch(6, TwoBranchConfig(hidden=5, width=4, layout=layout, dropout=0.0)), torch.randn(50, 6)
    branch.train()(rows)
    inside = branch.first(rows) if layout == "code" else branch.second(branch.first(rows).relu())
    torch.testing.assert_close(branch.norm.running_mean, momentum * inside.mean(0))


def test_distances_are_euclidean() -> None:
    torch.manual_seed(0)
    model = TwoBranchConfig(hidden=50, width=4).build(Inputs(6, 7, 0)).eval()
    visual = model.encode_visual(Padded.whole(torch.randn(3, 1, 6)))
    text = model.encode_text(Padded.whole(torch.randn(5, 1, 7)))
    torch.testing.assert_close(model.distance(visual, text), torch.cdist(visual, text))
    visual[1] = text[2] = 0
    torch.testing.assert_close(model.distance(visual, text), torch.cdist(visual, text), msg="of rows of zeros, too")
    assert model.distance(visual, visual).diagonal().isfinite().all(), "rounding may bring a square below 0"


def scored_pairs(model: SimilarityNetwork, stream: Stream) -> tuple[Tensor, Tensor]:
    """Products of right and of wrong pairs, of which the objective asks the scores."""
    asked = list[Tensor]()
    handle = model.score.register_forward_pre_hook(lambda _, inputs: asked.append(inputs[0]))
    model.objective(Batch({"annotated": stream}))
    handle.remove()
    return asked[0], asked[1]


def test_the_similarity_network_has_as_many_wrong_pairs_of_the_same_image_as_right_ones() -> None:
    model = SimilarityConfig(hidden=5, width=4, layout="linear", dropout=0.0).build(Inputs(6, 6, 0)).eval()
    random = torch.Generator().manual_seed(1)
    visual, text = torch.randn(3, 6, generator=random), torch.randn(7, 6, generator=random)
    items, pairs = [0, 0, 1, 1, 1, 2, 2], [(0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    stream = a_stream(visual, text, [0, 1, 2], items, pairs)
    images, sentences = model.encode_visual(stream.visual), model.encode_text(stream.text)
    drawn = set[tuple[int, int]]()
    for seed in range(60):
        torch.manual_seed(seed)
        right, wrong = scored_pairs(model, stream)
        assert len(right) == len(wrong) == len(pairs)
        for row, (image, sentence) in enumerate(pairs):
            assert torch.allclose(right[row], images[image] * sentences[sentence])
            products = images[image] * sentences
            found = int((products - wrong[row]).abs().sum(1).argmin())
            assert torch.allclose(products[found], wrong[row])
            assert items[found] != image
            drawn.add((image, found))
    assert drawn == {(image, text) for image in range(3) for text in range(7) if items[text] != image}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_logistic_loss_is_its_definition(reduction: Any) -> None:
    known = golden("indep_two_branch_networks")
    found = np.log1p(np.exp(-known["z"] * known["sim_score"]))
    np.testing.assert_allclose(found, known["logistic_per_pair"], rtol=1e-6)
    model = scoring_network(known)
    model.reduction = reduction
    visual, text = torch.tensor(known["img_feats"][:2]), torch.tensor(known["txt_feats"][:2])
    stream = a_stream(visual, text, [0, 1], [0, 1], [(0, 0), (1, 1)])
    scores = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text)).detach().numpy()
    expected = np.log1p(np.exp(-np.array([scores[0, 0], scores[1, 1], -scores[0, 1], -scores[1, 0]])))
    loss = model.objective(Batch({"annotated": stream}))["logistic"].item()
    assert loss == pytest.approx(float(getattr(expected, reduction)()), rel=1e-6)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_to_three_layers_follow_the_product(layers: int) -> None:
    model = SimilarityConfig(layers=layers).build(Inputs(4, 4, 0))
    widths = [(layer.in_features, layer.out_features) for layer in model.score if isinstance(layer, nn.Linear)]
    assert (
        widths == [(512, 512), (512, 256), (256, 1)] if layers == 3 else [512, *widths[-1]] == [512, widths[-1][0], 1]
    )
    assert len(widths) == layers
    with pytest.raises(ValueError, match="layers is 1, 2 or 3, not 4"):
        SimilarityConfig(layers=4)


@pytest.mark.parametrize("layout", ["paper", "code"])
def test_statistics_of_the_test_set_are_those_of_all_its_rows(layout: Any) -> None:
    """As a batch of them all in training, where blocks of any size were seen."""
    torch.manual_seed(0)
    config = TwoBranchConfig(hidden=5, width=4, layout=layout, dropout=0.0, statistics="test")
    model, random = config.build(Inputs(6, 6, 0)), np.random.default_rng(0)
    visual, text = (Padded.whole(torch.tensor(random.normal(3, 2, (n, 1, 6)), dtype=torch.float32)) for n in (9, 11))
    blocks = [[side[slice(0, 4)], side[slice(4, 5)], side[slice(5, 11)]] for side in (visual, text)]
    by_training = model.eval().encode_visual(visual)
    model.observe(*blocks)
    found, sentences = model.encode_visual(visual), model.encode_text(text[slice(3, 5)])
    model.train()
    torch.testing.assert_close(found, model.encode_visual(visual))
    torch.testing.assert_close(sentences, model.encode_text(text)[3:5])
    assert not torch.allclose(found, by_training)
    assert (
        model.state_dict().keys() == replace(config, statistics="training").build(Inputs(6, 6, 0)).state_dict().keys()
    )


def test_statistics_of_training_are_kept_unless_the_test_sets_are_asked_for() -> None:
    model = TwoBranchConfig(hidden=5, width=4).build(Inputs(6, 6, 0)).eval()
    rows = Padded.whole(torch.randn(9, 1, 6))
    before = model.encode_visual(rows)
    model.observe([rows], [rows])
    assert torch.equal(model.encode_visual(rows), before)
