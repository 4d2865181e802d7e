"""VSE++ and VSE0 against the official code's values, and against what every model must do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.losses.ranking import order_similarity, ranking_loss
from xmodal.models import Inputs, Trainable, load
from xmodal.models.vsepp import VSE0_COCO, VSEPP, VSEPP_COCO, VSEPPConfig

INPUTS = Inputs(visual_width=12, text_width=15, instances=8)
SMALL = VSEPPConfig(width=10, word_width=7)
KINDS = [
    SMALL,
    replace(SMALL, negatives="all", normalise_image=False),
    replace(SMALL, similarity="order", margin=0.05),
    replace(SMALL, normalise_features=False),
]


def built(config: VSEPPConfig = SMALL) -> VSEPP:
    torch.manual_seed(0)
    return config.build(INPUTS)


def eight_pairs() -> Stream:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 12)).astype("float32") for row in range(8)])
    text = Padded.of([random.integers(4, 15, 2 + row % 4).astype("int32") for row in range(8)])
    return Stream.paired(visual, text, torch.arange(8), torch.arange(8))


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vsepp_loss_cosine_maxviol", SMALL),
        ("vsepp_loss_order_sumhinge", replace(SMALL, similarity="order", negatives="all")),
    ],
)
def test_the_loss_is_that_of_the_official_code(name: str, config: VSEPPConfig) -> None:
    official = tensors(name)
    image, text = official["im"].requires_grad_(), official["s"].requires_grad_()
    similarity = built(config).similarity(image, text)
    pairs = torch.arange(len(image))[:, None].expand(-1, 2)
    loss = ranking_loss(similarity, pairs, float(official["margin"]), config.negatives, "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(similarity.detach(), official["sim"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss.detach(), official["loss"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(image.grad, official["grad_im"], atol=1e-4, rtol=0)
    torch.testing.assert_close(text.grad, official["grad_s"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("out", {}),
        ("out_abs", {"similarity": "order"}),
        ("out_no_imgnorm", {"normalise_image": False}),
    ],
)
def test_images_are_encoded_as_by_the_official_code(expected: str, changes: dict[str, object]) -> None:
    official = tensors("vsepp_encoder_image_precomp")
    model = built(replace(SMALL, normalise_features=False, **changes))  # type: ignore[arg-type]
    weights = {"weight": official["param.fc.weight"], "bias": official["param.fc.bias"]}
    model.image.load_state_dict(weights)
    encoded = model.encode_visual(Padded.whole(official["feats"][:, None]))
    torch.testing.assert_close(encoded.detach(), official[expected], atol=1e-5, rtol=1e-5)


def test_captions_are_encoded_as_by_the_official_code() -> None:
    official = tensors("vsepp_encoder_text")
    model = built()
    model.words.load_state_dict({"weight": official["param.embed.weight"]})
    prefix = "param.rnn."
    model.sentence.load_state_dict({k.removeprefix(prefix): v for k, v in official.items() if k.startswith(prefix)})
    encoded = model.encode_text(Padded(official["ids"], official["lengths"]))
    torch.testing.assert_close(encoded.detach(), official["out"], atol=1e-5, rtol=1e-5)


def slow_loss(similarity: NDArray[np.float64], pairs: list[tuple[int, int]], margin: float, hardest: bool) -> float:
    total = 0.0
    for image, text in pairs:
        of_image = [
            max(0.0, margin + similarity[image, other] - similarity[image, text])
            for other in range(similarity.shape[1])
            if (image, other) not in pairs
        ]
        of_text = [
            max(0.0, margin + similarity[other, text] - similarity[image, text])
            for other in range(similarity.shape[0])
            if (other, text) not in pairs
        ]
        total += sum(max(costs, default=0.0) if hardest else sum(costs) for costs in (of_image, of_text))
    return total


@pytest.mark.parametrize("hardest", [True, False])
@pytest.mark.parametrize("pairs", [[(0, 0), (1, 1), (2, 2)], [(0, 0), (0, 1), (2, 3), (1, 2)], [(0, 0)]])
def test_the_loss_is_its_definition_for_any_pairs(hardest: bool, pairs: list[tuple[int, int]]) -> None:
    similarity = np.random.default_rng(0).normal(size=(3, 4))
    expected = slow_loss(similarity, pairs, 0.2, hardest)
    negatives = "hardest" if hardest else "all"
    found = ranking_loss(torch.from_numpy(similarity), torch.tensor(pairs), 0.2, negatives, "sum")  # type: ignore[arg-type]
    assert float(found) == pytest.approx(expected)


def test_order_similarity_is_its_definition_and_has_a_gradient_where_nothing_is_violated() -> None:
    random = np.random.default_rng(0)
    image, text = (torch.from_numpy(random.normal(size=(rows, 5))) for rows in (3, 4))
    expected = [[-np.linalg.norm(np.maximum(0, t - i)) for t in text.numpy()] for i in image.numpy()]
    torch.testing.assert_close(order_similarity(image, text), torch.tensor(expected))
    equal = torch.ones(1, 5, requires_grad=True)
    order_similarity(equal, equal).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(equal.grad, torch.zeros(1, 5))  # type: ignore[arg-type]


@pytest.mark.parametrize("config", KINDS)
def test_every_parameter_gets_a_gradient(config: VSEPPConfig) -> None:
    model = built(config)
    assert isinstance(model, Trainable)
    sum(model.objective(Batch({"annotated": eight_pairs()})).values()).backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("config", KINDS)
def test_eight_pairs_are_learned_by_heart(config: VSEPPConfig) -> None:
    model, stream = built(replace(config, width=32)), eight_pairs()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        model.objective(Batch({"annotated": stream}))["ranking"].backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    similarity = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text))
    for best in (similarity.argmax(0), similarity.argmax(1)):
        assert best.tolist() == list(range(8))


@pytest.mark.parametrize("config", KINDS)
def test_padding_changes_nothing(config: VSEPPConfig) -> None:
    model, stream = built(config), eight_pairs()
    visual = torch.nn.functional.pad(stream.visual.values, (0, 0, 0, 3), value=float("nan"))
    text = torch.nn.functional.pad(stream.text.values, (0, 3), value=99_999)
    images = model.encode_visual(Padded(visual, stream.visual.lengths))
    captions = model.encode_text(Padded(text, stream.text.lengths))
    for row in range(8):
        image = stream.visual.values[row : row + 1, : int(stream.visual.lengths[row])]
        caption = stream.text.values[row : row + 1, : int(stream.text.lengths[row])]
        torch.testing.assert_close(model.encode_visual(Padded.whole(image))[0], images[row])
        torch.testing.assert_close(model.encode_text(Padded.whole(caption))[0], captions[row])


@pytest.mark.parametrize("config", KINDS)
def test_tiles_equal_the_whole(config: VSEPPConfig) -> None:
    model, stream = built(config), eight_pairs()
    whole = model.similarity(model.encode_visual(stream.visual), model.encode_text(stream.text))
    visual, text = model.encode_visual(stream.visual[2:5]), model.encode_text(stream.text[1:7])
    torch.testing.assert_close(model.similarity(visual, text), whole[2:5, 1:7])


def test_the_recipes_are_those_of_the_papers() -> None:
    assert load("vsepp").RECIPES[:2] == (VSEPP_COCO, VSE0_COCO)
    model = VSEPPConfig().build(Inputs(2048, 11_755, 113_287))
    assert [model.image.weight.shape, model.words.weight.shape] == [(1024, 2048), (11_755, 300)]
    assert model.words.weight.abs().max() <= 0.1
    assert not model.image.bias.any()
    assert (VSEPP_COCO.view.captions_per_item, VSEPP_COCO.batch_size, VSEPP_COCO.phases[0].epochs) == (5, 128, 30)
