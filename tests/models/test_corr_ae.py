"""Corr-AE against its definition written as loops."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.models import Inputs
from xmodal.models.corr_ae import RECIPES, AutoEncoder, CorrAE, CorrAEConfig

Array = NDArray[np.float64]


def built() -> CorrAE:
    torch.manual_seed(0)
    return CorrAEConfig(width=6).build(Inputs(9, 15, 0)).double()


def sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def slow(encoder: AutoEncoder, inputs: Array) -> tuple[Array, float]:
    """The code, and the squared error of the reconstruction."""
    hidden, output = (
        (layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in (encoder.hidden, encoder.output)
    )
    code = sigmoid(hidden[0] @ inputs + hidden[1])
    return code, float(((inputs - sigmoid(output[0] @ code + output[1])) ** 2).sum())


@pytest.mark.parametrize("pairs", [[(0, 0), (1, 1), (2, 2)], [(0, 0), (0, 1), (2, 2)], [(1, 2)]])
def test_terms_are_their_definition(pairs: list[tuple[int, int]]) -> None:
    """Captions are bags of words: a word counts once, and padding not at all."""
    model, random = built(), np.random.default_rng(0)
    visual = Padded.whole(torch.from_numpy(random.random((3, 2, 9))))
    text = Padded(torch.tensor([[5, 5, 9], [4, 99, 99], [14, 6, 99]]), torch.tensor([3, 1, 2]))
    bags = np.zeros((3, 15))
    for row, words in enumerate(([5, 9], [4], [14, 6])):
        bags[row, words] = 1
    images = [slow(model.visual, row) for row in visual.values.mean(1).numpy()]
    captions = [slow(model.text, row) for row in bags]
    rows = torch.arange(3)
    stream = Stream(visual, text, rows, rows, rows, torch.tensor(pairs))
    terms = model.objective(Batch({"annotated": stream}))
    reconstruction = np.mean([images[i][1] + captions[c][1] for i, c in pairs])
    correlation = np.mean([((images[i][0] - captions[c][0]) ** 2).sum() for i, c in pairs])
    assert terms["reconstruction"].item() == pytest.approx(float(reconstruction))
    assert terms["correlation"].item() == pytest.approx(float(correlation))
    found = model.similarity(model.encode_visual(visual), model.encode_text(text))
    expected = [[-np.linalg.norm(image - caption) for caption, _ in captions] for image, _ in images]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9)


def test_codes_that_hardly_differ_keep_their_distance() -> None:
    codes = torch.full((1, 1024), 0.5)
    near = codes + 1e-4
    assert built().similarity(codes, near).item() == pytest.approx(-1e-4 * 32, rel=1e-3)
    assert built().similarity(codes, codes).item() == 0


def test_recipes_weigh_correlation_by_a_fifth() -> None:
    for recipe in RECIPES:
        assert recipe.phases[0].weights == {"reconstruction": 0.8, "correlation": 0.2}
