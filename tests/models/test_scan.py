"""SCAN against the official code's values, and against its definition written as loops."""

import math
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils import rnn

from tests.golden import FOLDER, golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.losses.ranking import ranking_loss
from xmodal.models import Inputs, scan
from xmodal.models.scan import RECIPES, SCAN, Encoded, Normalisation, SCANConfig, attention, cross_attention

DIRECTIONS = {"t2i": "text_to_image", "i2t": "image_to_text"}
FILES = sorted(path.stem for path in FOLDER.glob("scan_?2?_*.npz"))
NORMALISATIONS, AGGREGATIONS = get_args(Normalisation), ("logsumexp", "mean", "max", "sum")


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def config_of(name: str, official: dict[str, Tensor]) -> SCANConfig:
    """Of a file's name, such as scan_t2i_logsumexp_clipped_l2norm."""
    _, side, aggregation, normalisation = name.split("_", 3)
    sharpness = float(official["lambda_lse"]) or 1.0  # 0 where it is not asked for
    smoothing: Any = float(official["lambda_softmax"])
    how: Any = {"direction": DIRECTIONS[side], "aggregation": aggregation, "normalisation": normalisation}
    return SCANConfig(**how, smoothing=smoothing, sharpness=sharpness)


# ------------------------------------------------------------------------------------------------ the official values


def test_there_are_twenty_official_matrices() -> None:
    assert len(FILES) == 20


@pytest.mark.parametrize("name", FILES)
def test_similarities_are_those_of_the_official_code(name: str) -> None:
    official = tensors(name)
    found = cross_attention(
        config_of(name, official), Padded.whole(official["images"]), Padded(official["captions"], official["cap_lens"])
    )
    torch.testing.assert_close(found, official["sim"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sparse", [0.0, 1.0])
@pytest.mark.parametrize("negatives", ["hardest", "all"])
@pytest.mark.parametrize("name", ["scan_i2t_logsumexp_clipped_l2norm", "scan_t2i_mean_clipped_l2norm"])
def test_losses_and_gradients_are_those_of_the_official_code(
    name: str, negatives: Any, sparse: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backward by tiles, and by pairs."""
    monkeypatch.setattr(scan, "SPARSE", sparse)
    official, kind = tensors(name), {"hardest": "maxviol", "all": "sumhinge"}[negatives]
    images, captions = official["images"].requires_grad_(), official["captions"].requires_grad_()
    similarity = cross_attention(
        config_of(name, official), Padded.whole(images), Padded(captions, official["cap_lens"])
    )
    loss = ranking_loss(similarity, torch.arange(4)[:, None].expand(-1, 2), 0.2, negatives, "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), official[f"loss_{kind}"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(images.grad, official[f"grad_images_{kind}"], atol=1e-4, rtol=0)
    torch.testing.assert_close(captions.grad, official[f"grad_captions_{kind}"], atol=1e-4, rtol=0)


def test_attention_is_that_of_the_official_code() -> None:
    official = tensors("scan_func_attention")
    query, context = official["query"], official["context"]
    masks = (torch.ones(*vectors.shape[:2], dtype=torch.bool) for vectors in (context, query))
    sources, looking = masks
    config = SCANConfig(smoothing=float(official["smooth"]))
    weights = attention(config, (context @ query.mT)[..., None], sources, looking[..., None])[..., 0]
    torch.testing.assert_close(weights, official["attn_T"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights.mT @ context, official["weighted_context"], atol=1e-5, rtol=1e-5)


def test_regions_are_encoded_as_by_the_official_code() -> None:
    official = tensors("scan_encoder_image")
    model = SCANConfig(width=10, word_width=7).build(Inputs(12, 15, 0))
    model.image.load_state_dict({name: official[f"param.fc.{name}"] for name in ("weight", "bias")})
    found = model.regions(Padded.whole(official["feats"]))
    torch.testing.assert_close(found.values.detach(), official["out"], atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------ the definition


def slow_attended(config: SCANConfig, queries: Tensor, sources: Tensor) -> list[Tensor]:
    """The mean of the sources that each query attends to."""
    columns = []
    for source in sources:
        column = torch.stack([query @ source for query in queries])
        if config.normalisation.startswith("clipped"):
            column = torch.where(column > 0, column, 0.1 * column)
        if config.normalisation == "softmax":
            column = column.exp() / column.exp().sum()
        elif config.normalisation.endswith("l2norm"):
            column = column / (column.square().sum().sqrt() + 1e-8)
        elif config.normalisation.endswith("l1norm"):
            column = column / (column.abs().sum() + 1e-8)
        columns.append((config.smoothing * column).exp())
    attended = []
    for weights in torch.stack(columns, 1):  # of one query
        parts = [weight * source for weight, source in zip(weights, sources, strict=True)]
        attended.append(torch.stack(parts).sum(0) / weights.sum())
    return attended


def slow_score(config: SCANConfig, image: Tensor, caption: Tensor) -> Tensor:
    queries, sources = (caption, image) if config.direction == "text_to_image" else (image, caption)
    pairs = zip(queries, slow_attended(config, queries, sources), strict=True)
    cosines = torch.stack([query @ other / (query.norm() * other.norm()).clamp(min=1e-8) for query, other in pairs])
    if config.aggregation == "logsumexp":
        return (config.sharpness * cosines).exp().sum().log() / config.sharpness
    return {"mean": cosines.mean(), "max": cosines.max(), "sum": cosines.sum()}[config.aggregation]


def slow_similarity(config: SCANConfig, visual: Padded, text: Padded) -> Tensor:
    images, captions = (
        [item[:length].double() for item, length in zip(side.values, side.lengths.tolist(), strict=True)]
        for side in (visual, text)
    )
    return torch.stack([torch.stack([slow_score(config, image, one) for one in captions]) for image in images])


def ragged(random: np.random.Generator, lengths: list[int], width: int) -> Padded:
    """Vectors of all sizes; what lies beyond the lengths is NaN."""
    items = Padded.of([random.normal(size=(length, width)).astype("float32") for length in lengths])
    items.values[~items.mask] = math.nan
    return items


SHAPES = {"ragged": ([3, 1, 5], [2, 7, 1, 4], 6), "one": ([1], [1], 2), "narrow": ([4], [3, 3], 2)}
SHAPES |= {"tiles": ([2] * 20, [5, 2] * 20, 3)}


@pytest.mark.parametrize("sparse", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("direction", DIRECTIONS.values())
def test_similarities_and_gradients_are_their_definition(
    direction: Any, shape: str, sparse: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every normalisation and aggregation, and any lengths; backward by tiles, and by pairs."""
    monkeypatch.setattr(scan, "SPARSE", sparse)
    *lengths, width = SHAPES[shape]
    cases = list(product(NORMALISATIONS, AGGREGATIONS))
    for number, (normalisation, aggregation) in enumerate(cases if shape != "tiles" else cases[:1]):
        random = np.random.default_rng(number)
        config = SCANConfig(direction, aggregation, normalisation, *random.uniform(0.5, 6, 2).tolist())
        visual, text = (ragged(random, of_side, width) for of_side in lengths)
        weights = torch.from_numpy(random.normal(size=(len(visual), len(text))))
        found = []
        for similarity in (cross_attention, slow_similarity):
            leaves = [side.values.clone().requires_grad_() for side in (visual, text)]
            scores = similarity(config, Padded(leaves[0], visual.lengths), Padded(leaves[1], text.lengths)).double()
            (scores * weights).sum().backward()
            found.append([scores.detach(), *(leaf.grad for leaf in leaves)])
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_scores_that_nothing_asks_for_have_gradients_of_zero() -> None:
    """As where no pair falls short of the margin."""
    images, captions = torch.randn(3, 4, 5, requires_grad=True), torch.randn(2, 6, 5, requires_grad=True)
    found = cross_attention(SCANConfig(), Padded.whole(images), Padded.whole(captions))
    (0 * found).sum().backward()  # type: ignore[no-untyped-call]
    for side in (images, captions):
        assert side.grad is not None
        assert not side.grad.any()


@pytest.mark.parametrize("direction", DIRECTIONS.values())
def test_vectors_of_zeros_have_finite_scores_and_gradients(direction: Any) -> None:
    images, captions = torch.zeros(3, 4, 5, requires_grad=True), torch.zeros(3, 2, 5, requires_grad=True)
    for kind in NORMALISATIONS:
        found = cross_attention(SCANConfig(direction, normalisation=kind), Padded.whole(images), Padded.whole(captions))
        found.sum().backward()  # type: ignore[no-untyped-call]
        assert torch.equal(found, torch.zeros(3, 3))
    assert all(side.grad is not None and side.grad.isfinite().all() for side in (images, captions))


def test_equal_captions_have_equal_scores_whatever_their_place() -> None:
    """Items are sorted by length within: their columns come back where they were."""
    random = np.random.default_rng(0)
    visual, text = ragged(random, [4] * 50, 8), ragged(random, [3, 9, 1, 3, 5] * 20, 8)
    whole = cross_attention(SCANConfig(), visual, text)
    for columns in (torch.arange(99, -1, -1), torch.tensor([7, 7, 0])):
        torch.testing.assert_close(cross_attention(SCANConfig(), visual, text[columns]), whole[:, columns])


# ------------------------------------------------------------------------------------------------------------ encoders


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_state_of_a_word_is_the_mean_of_both_directions_at_length_one(bidirectional: bool) -> None:
    torch.manual_seed(0)
    model = SCANConfig(width=6, word_width=4, bidirectional=bidirectional).build(Inputs(12, 15, 0))
    ids, lengths = torch.randint(4, 15, (5, 7)), torch.tensor([3, 7, 1, 2, 6])
    found = model.word_states(Padded(ids, lengths))
    for row, length in enumerate(lengths.tolist()):
        states = model.sentence(rnn.pack_sequence([model.words(ids[row, :length])]))[0].data
        mean = states.view(length, -1, 6).mean(1)
        expected = mean / mean.norm(dim=1, keepdim=True)
        torch.testing.assert_close(found.values[row, :length], expected)
        assert not found.values[row, length:].any()


def test_a_gallery_is_kept_in_half_precision_without_padding() -> None:
    text = Padded.of([np.arange(4, 6 + row % 9, dtype=np.int32) for row in range(30)])
    model = built(SCANConfig(width=16, word_width=8)).eval()
    kept = model.encode_text(text)
    assert (kept.vectors_ND.dtype, kept.vectors_ND.shape) == (torch.float16, (int(text.lengths.sum()), 16))
    torch.testing.assert_close(kept.padded().values, model.word_states(text).values, atol=5e-4, rtol=0)
    unscaled = built(replace(model.config, normalise_text=False)).eval()  # may be beyond half precision
    assert unscaled.encode_text(text).vectors_ND.dtype == torch.float32


def test_half_precision_moves_scores_by_less_than_a_thousandth_of_their_spread() -> None:
    random = np.random.default_rng(0)
    config, model = SCANConfig(), built(SCANConfig(width=1024)).eval()
    sides = [ragged(random, lengths, 1024) for lengths in ([36] * 12, [9, 14, 11] * 4)]
    units = [Padded(normalize(side.zero_padded(), dim=2), side.lengths) for side in sides]
    kept = (Encoded(unit.values[unit.mask].half(), unit.lengths) for unit in units)
    exact = cross_attention(config, *units)
    assert (model.similarity(*kept) - exact).std() < 1e-3 * exact.std()


def built(config: SCANConfig) -> SCAN:
    torch.manual_seed(0)
    return config.build(Inputs(12, 15, 0))


@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
def test_where_words_look_is_what_makes_their_attended_vectors(direction: Any) -> None:
    model = built(config := SCANConfig(direction, width=6, word_width=5)).eval()
    image, caption = Padded.whole(torch.randn(1, 4, 12)), Padded.whole(torch.tensor([[1, 3, 5, 7, 2]]))
    regions, words = model.regions(image).values[0], model.word_states(caption).values[0]
    with torch.inference_mode():
        weights_LW = model.attention_of_words(image, caption)
        if direction == "text_to_image":
            found, expected = weights_LW.T @ regions, slow_attended(config, words, regions)
        else:
            found, expected = weights_LW @ words, slow_attended(config, regions, words)
    torch.testing.assert_close(found, torch.stack(expected))


def test_numbers_that_cannot_be_are_refused() -> None:
    for wrong in ({"smoothing": 0}, {"sharpness": -1}, {"margin": -0.1}, {"width": 0}):
        with pytest.raises(ValueError, match="must be"):
            SCANConfig(**wrong)  # type: ignore[arg-type]


def test_recipes_have_the_numbers_of_the_official_readme() -> None:
    """And the sparse ones A3VSE's epochs: 2.5 times as many for a tenth."""
    known = {recipe.name: recipe for recipe in RECIPES}
    flickr, coco = known["scan-flickr30k-full"], known["scan-coco-full"]
    assert flickr.model == SCANConfig("text_to_image", "mean", "clipped_l2norm", 9.0)
    assert coco.model == SCANConfig("image_to_text", "logsumexp", "clipped_l2norm", 4.0, 20.0)
    found = [(r.phases[0].epochs, r.phases[0].optimiser.learning_rate) for r in (flickr, coco)]
    assert found == [(30, 2e-4), (20, 5e-4)]
    tenth = known["scan-coco-10-2"]
    assert (tenth.view.split, tenth.validation.split) == ("karpathy/train@10%x2", "karpathy/val")
    assert (tenth.phases[0].epochs, tenth.phases[0].optimiser.schedule.after) == (50, (25,))  # type: ignore[union-attr]
