"""A3VSE against its equations: attention, triplets, discriminators, reversed gradients."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.golden import golden
from xmodal.batches.batch import ANNOTATED, UNANNOTATED, Batch, Padded
from xmodal.checks import model_contract
from xmodal.checks.model_contract import INPUTS, built, eight_pairs
from xmodal.losses.adversarial import Discriminator, domain_loss, reversal_strength, reversed_gradient
from xmodal.models import Inputs
from xmodal.models.a3vse import A3VSE, DOMAINS, RECIPES, SMALL, A3VSEConfig, ContextAttention
from xmodal.recipes import Recipe
from xmodal.training.optimisers import total

SPARSE = next(recipe for recipe in RECIPES if recipe.unannotated)


def attention(heads: int, contexts: int, width: int, kind: str, temperature: float) -> ContextAttention:
    found = ContextAttention(A3VSEConfig(width=width, heads=heads, attention=kind, temperature=temperature))  # type: ignore[arg-type]
    found.context = torch.nn.Linear(width, heads * contexts, bias=False)
    found.position = torch.nn.Linear(width, heads * contexts, bias=False)
    return found


@pytest.mark.parametrize("name", ["bilinear_tanh_lam1", "bilinear_tanh_lam9", "context_lam1"])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_equation_1(name: str, masked: bool) -> None:
    values = golden(f"indep_a3vse_attention_{name}")
    heads, contexts, width = values["P"].shape
    network = attention(heads, contexts, width, name.rpartition("_")[0], float(values["lam"]))
    network.context.weight.data = torch.from_numpy(values["P"]).flatten(0, 1)
    network.position.weight.data = torch.from_numpy(values["Q"]).flatten(0, 1)
    rows = Padded.whole(torch.from_numpy(values["V"]))
    if masked:
        rows = Padded(rows.values.clone(), torch.from_numpy(values["lengths_masked"]).long())
        rows.values[~rows.mask] = torch.nan
    ending = "_masked" if masked else ""
    torch.testing.assert_close(network.weights(rows).mT, torch.from_numpy(values[f"alpha{ending}"]))
    expected = torch.from_numpy(values[f"out{ending}"]).flatten(1)
    torch.testing.assert_close(network(rows), expected)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["context", "bilinear_tanh"])
def test_attention_is_the_loop_over_heads_and_positions(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    heads, contexts, width = (int(random.integers(1, 6)) for _ in range(3))
    temperature = float(random.choice([0.0, 0.5, 1.0, 9.0]))
    items = [random.normal(size=(int(random.integers(1, 7)), width)).astype("float32") for _ in range(4)]
    network = attention(heads, contexts, width, kind, temperature)
    p_KCH = network.context.weight.detach().numpy().reshape(heads, contexts, width)
    q_KCH = network.position.weight.detach().numpy().reshape(heads, contexts, width)
    for item, found in zip(items, network(Padded.of(items)).detach().numpy(), strict=True):
        expected = []
        for head in range(heads):
            mean = sum(item) / len(item)
            scores = []
            for region in item:
                position, context = np.tanh(q_KCH[head] @ region), p_KCH[head] @ mean
                by = {"context": np.tanh(context) @ position, "bilinear_tanh": math.tanh(context @ position)}
                scores.append(math.exp(temperature * by[kind]))
            expected.append(sum(score * region for score, region in zip(scores, item, strict=True)) / sum(scores))
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=2e-4, atol=1e-5)


def test_the_reversal_grows_as_printed() -> None:
    values = golden("indep_a3vse_gamma_schedule")
    found = [reversal_strength(float(p), float(values["eta"])) for p in values["p"]]
    np.testing.assert_allclose(found, values["gamma"], rtol=1e-6, atol=1e-7)


def test_the_reversal_may_grow_by_epochs() -> None:
    by_step = A3VSE(replace(SMALL[0], reversal_epochs=None), INPUTS)
    by_epoch = A3VSE(replace(SMALL[0], reversal_epochs=4), INPUTS)
    assert [by_epoch._strength(progress) for progress in (0.0, 0.24, 0.25, 0.99)] == [
        reversal_strength(p) for p in (0.0, 0.0, 0.25, 0.75)
    ]
    assert by_step._strength(0.24) == reversal_strength(0.24)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 5), (8, 2)])
def test_the_domain_loss_is_the_negative_of_equation_4(sizes: tuple[int, int]) -> None:
    first, second = (torch.randn(size, dtype=torch.float64) for size in sizes)
    one = sum(math.log(1 / (1 + math.exp(-logit))) for logit in first) / len(first)
    other = sum(math.log(1 - 1 / (1 + math.exp(-logit))) for logit in second) / len(second)
    assert float(domain_loss(first, second)) == pytest.approx(-(one + other))


def test_sure_logits_have_a_finite_loss() -> None:
    assert float(domain_loss(torch.tensor([-1e4]), torch.tensor([1e4]))) == pytest.approx(2e4)


def two_streams(recipe: Recipe, progress: float) -> Batch:
    return Batch({ANNOTATED: eight_pairs(recipe), UNANNOTATED: eight_pairs(recipe, seed=1)}, progress)


def slow_triplets(visual: Tensor, text: Tensor, margin: float) -> float:
    """Equation 2, pair by pair."""
    total, count = 0.0, len(visual)
    score = [[float(torch.cosine_similarity(a, b, dim=0)) for b in text] for a in visual]
    for i in range(count):
        texts = max(score[i][j] for j in range(count) if j != i)
        visuals = max(score[j][i] for j in range(count) if j != i)
        total += max(0.0, margin - score[i][i] + texts) + max(0.0, margin - score[i][i] + visuals)
    return total / count


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("margins", [(0.2, 0.3), (0.0, 1.0)])
def test_the_terms_are_the_equations(seed: int, margins: tuple[float, float]) -> None:
    config = replace(SMALL[0], margin=margins[0], semantics_margin=margins[1])
    recipe = replace(SPARSE, model=config)
    model = built(recipe, seed).requires_grad_(False)
    batch = two_streams(recipe, 0.3)
    rows = {}
    for stream, names in ((ANNOTATED, ("picture", "caption")), (UNANNOTATED, ("other_picture", "semantics"))):
        rows[names[0]] = model.visual_rows(batch.streams[stream].visual)
        rows[names[1]] = model.text_rows(batch.streams[stream].text)
    terms = model.objective(batch)
    assert float(terms["annotated"]) == pytest.approx(slow_triplets(rows["picture"], rows["caption"], margins[0]), 1e-4)
    expected = slow_triplets(rows["other_picture"], rows["semantics"], margins[1])
    assert float(terms["unannotated"]) == pytest.approx(expected, 1e-4)
    for name, (first, second) in DOMAINS.items():
        tell_apart = model.discriminators[name]
        of_first = [math.log(float(tell_apart(row[None]).sigmoid())) for row in rows[first]]
        of_second = [math.log(1 - float(tell_apart(row[None]).sigmoid())) for row in rows[second]]
        expected = -sum(of_first) / len(of_first) - sum(of_second) / len(of_second)
        assert float(terms[name]) == pytest.approx(expected, 1e-4)


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.5, 1.0])
def test_encoders_get_the_reversed_gradient_and_discriminators_the_plain_one(progress: float) -> None:
    strength = reversal_strength(progress)
    torch.manual_seed(0)
    tell_apart, rows = Discriminator(4, 6), torch.randn(5, 4, requires_grad=True)
    plain = domain_loss(tell_apart(rows[:3]), tell_apart(rows[3:]))
    wanted = torch.autograd.grad(plain, [rows, *tell_apart.parameters()])
    turned = reversed_gradient(rows, strength)
    loss = domain_loss(tell_apart(turned[:3]), tell_apart(turned[3:]))
    found = torch.autograd.grad(loss, [rows, *tell_apart.parameters()])
    assert torch.equal(loss, plain)
    torch.testing.assert_close(found[0], -strength * wanted[0])
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other)


def test_the_network_s_encoders_see_the_reversed_gradient() -> None:
    recipe = replace(SPARSE, model=SMALL[0])
    gradients = []
    for progress in (0.2, 0.8):
        model = built(recipe)
        terms = model.objective(two_streams(recipe, progress))
        sum(terms[name] for name in DOMAINS).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    ratio = reversal_strength(0.8) / reversal_strength(0.2)
    for name, gradient in gradients[0].items():
        expected = gradient if name.startswith("discriminators") else ratio * gradient
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-3, atol=1e-7)
    model = built(recipe)
    rows = model.visual_rows(eight_pairs(recipe).visual)
    toward = torch.autograd.grad(domain_loss(model.discriminators["cross_annotated"](rows), torch.zeros(1)), rows)[0]
    turned = reversed_gradient(rows, 0.5)
    away = torch.autograd.grad(domain_loss(model.discriminators["cross_annotated"](turned), torch.zeros(1)), rows)[0]
    torch.testing.assert_close(away, -0.5 * toward)


def test_without_other_pictures_it_is_its_own_triplet_baseline_bit_for_bit() -> None:
    full = replace(SPARSE, model=SMALL[0], unannotated=None)
    plain = replace(full, model=replace(SMALL[0], adversaries=()))
    weights = SPARSE.phases[0].weights
    found = []
    for recipe in (full, plain):
        model = built(recipe)
        optimiser = torch.optim.Adam(model.parameters(), 0.01, weight_decay=1e-6)
        for step in range(5):
            terms = model.objective(Batch({ANNOTATED: eight_pairs(recipe, seed=step)}, step / 5))
            optimiser.zero_grad()
            torch.stack([weights[name] * term for name, term in terms.items()]).sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimiser.step()
        found.append({name: value for name, value in model.state_dict().items() if "discriminators" not in name})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_adversaries_are_left_out_under_the_weights_of_all() -> None:
    """As by `--set model.adversaries=intra_text`, which leaves a recipe's weights as they are."""
    weights = SPARSE.phases[0].weights
    recipe = replace(SPARSE, model=replace(SMALL[0], adversaries=("intra_text",)))
    terms = built(recipe).requires_grad_(False).objective(two_streams(recipe, 0.5))
    expected = sum(weights[name] * float(terms[name]) for name in ("annotated", "unannotated", "intra_text"))
    assert float(total(terms, weights)) == pytest.approx(expected)


def test_word_vectors_start_the_words_that_have_them() -> None:
    vectors = np.full((15, 6), np.nan, np.float32)
    vectors[4] = 0.25
    model = A3VSE(SMALL[0], Inputs(12, 15, 8, vectors))
    assert torch.equal(model.words.weight[4], torch.full((6,), 0.25))
    assert model.words.weight.isfinite().all()


def test_recipes_are_every_row_of_the_tables() -> None:
    by_name = {recipe.name: recipe for recipe in RECIPES}
    assert len(by_name) == len(RECIPES) == 9 + 10 + 2 + 7
    sparse = by_name["a3vse-flickr30k-10-2"]
    assert sparse.view.split == "karpathy/train@10%x2"
    assert sparse.unannotated is not None
    assert (sparse.unannotated.split, sparse.unannotated.text) == ("karpathy/train@10%x2:unannotated", "semantics")
    assert by_name["a3vse-coco-full"].unannotated is None
    for recipe in RECIPES:
        assert list(model_contract.objective_names(recipe)) == []


@pytest.mark.parametrize(
    "wrong", [{"attention": "max"}, {"adversaries": ("intra",)}, {"heads": 0}, {"margin": -1.0}, {"reversal_epochs": 0}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="|".join([*wrong, "adversary"])):
        A3VSEConfig(**wrong)  # type: ignore[arg-type]


def test_where_it_looks_sums_to_one_and_a_mean_looks_nowhere() -> None:
    visual = Padded.of([np.ones((length, 6), np.float32) for length in (3, 1)])
    maps_BLK = A3VSEConfig(width=8, word_width=4, heads=2).build(Inputs(6, 9, 0)).attention_visual(visual)
    torch.testing.assert_close(maps_BLK.sum(1), torch.ones(2, 2))
    with pytest.raises(ValueError, match="attention=mean looks at all regions alike"):
        A3VSEConfig(width=8, word_width=4, attention="mean").build(Inputs(6, 9, 0)).attention_visual(visual)
