"""DeViSE against reference values, and against its definition written as loops."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.losses.ranking import Negatives, Reduction, ranking_loss, shortfall
from xmodal.models import Inputs
from xmodal.models.devise import RECIPES, DeViSEConfig


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def test_the_loss_is_that_of_the_equation() -> None:
    """Vectors of the file have length 1; gradients are those of their products."""
    official = tensors("indep_devise_loss")
    visual, text = official["v"].requires_grad_(), official["t"].requires_grad_()
    similarity = visual @ text.T
    pairs = torch.arange(6)[:, None].expand(-1, 2)
    loss = shortfall(similarity, pairs, float(official["margin"]), "all", "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss.detach(), official["loss_sum"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(loss.detach() / 6, official["loss_mean_per_query"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(visual.grad, official["grad_v"], atol=1e-4, rtol=0)
    torch.testing.assert_close(text.grad, official["grad_t"], atol=1e-4, rtol=0)
    for row, column in np.ndindex(6, 6):
        alone = shortfall(similarity.detach()[row : row + 1, [row, column]], torch.tensor([[0, 0]]), 0.1, "all", "sum")
        expected = official["per_pair"][row, column] if row != column else torch.tensor(0.1)  # itself as a wrong one
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("negatives", ["hardest", "all"])
@pytest.mark.parametrize("pairs", [[(0, 0), (1, 1), (2, 2)], [(0, 0), (0, 1), (2, 3), (1, 2)], [(0, 0)]])
def test_only_images_ask(negatives: Negatives, reduction: Reduction, pairs: list[tuple[int, int]]) -> None:
    similarity = np.random.default_rng(0).normal(size=(3, 4))
    rows = []
    for image, text in pairs:
        wrong = [other for other in range(4) if (image, other) not in pairs]
        costs = [max(0.0, 0.1 + similarity[image, other] - similarity[image, text]) for other in wrong]
        costs += [0.0] * (4 - len(wrong))  # a mean is over all texts
        rows.append([max(costs)] if negatives == "hardest" else costs)
    expected = np.sum(rows) if reduction == "sum" else np.mean(rows)
    found = shortfall(torch.from_numpy(similarity), torch.tensor(pairs), 0.1, negatives, reduction)
    assert float(found) == pytest.approx(float(expected))
    backwards = shortfall(torch.from_numpy(similarity.T), torch.tensor(pairs).flip(1), 0.1, negatives, reduction)
    both = ranking_loss(torch.from_numpy(similarity), torch.tensor(pairs), 0.1, negatives, reduction)
    assert float(both) == pytest.approx(float(found + backwards))


def test_the_objective_is_the_loss_of_its_encodings() -> None:
    torch.manual_seed(0)
    model = DeViSEConfig(width=6, word_width=4).build(Inputs(9, 15, 0))
    visual, text = Padded.whole(torch.randn(3, 2, 9)), Padded.whole(torch.randint(4, 15, (3, 5)))
    stream = Stream.paired(visual, text, torch.arange(3), torch.arange(3))
    images, captions = model.encode_visual(visual), model.encode_text(text)
    torch.testing.assert_close(images.norm(dim=1), torch.ones(3))
    states = model.sentence(model.words(text.values))[1]
    torch.testing.assert_close(captions, torch.nn.functional.normalize(torch.cat([states[0], states[1]], 1), dim=1))
    expected = shortfall(images @ captions.T, stream.positives, 0.1, "all", "sum")
    torch.testing.assert_close(model.objective(Batch({"annotated": stream}))["ranking"], expected)


def test_words_start_from_vectors_where_they_are_known() -> None:
    vectors = np.full((15, 4), np.nan, np.float32)
    vectors[5] = 7
    model = DeViSEConfig(width=6, word_width=4).build(Inputs(9, 15, 0, vectors))
    assert torch.equal(model.words.weight[5], torch.full((4,), 7.0))
    assert model.words.weight.isfinite().all()
    assert all(recipe.text.vectors for recipe in RECIPES)  # type: ignore[union-attr]
