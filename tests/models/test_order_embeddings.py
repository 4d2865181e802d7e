"""Order embeddings against their definition written as loops."""

from typing import Literal

import numpy as np
import pytest
import torch

from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Batch, Padded, Stream
from xmodal.models import Inputs
from xmodal.models.order_embeddings import OrderConfig, OrderEmbeddings
from xmodal.models.vsepp import VSEPPConfig


def built(violation: Literal["squared", "root"], width: int = 6) -> OrderEmbeddings:
    torch.manual_seed(0)
    return OrderConfig(width=width, word_width=4, violation=violation).build(Inputs(9, 15, 0))


@pytest.mark.parametrize("rows", [(1, 1), (3, 5), (4, 1)])
@pytest.mark.parametrize("violation", ["squared", "root"])
def test_similarity_is_its_definition(violation: Literal["squared", "root"], rows: tuple[int, int]) -> None:
    random = np.random.default_rng(rows[1])
    images, captions = (abs(random.normal(size=(count, 6))) for count in rows)
    beyond = [[sum(max(0.0, c - i) ** 2 for c, i in zip(y, x, strict=True)) for y in captions] for x in images]
    expected = -np.array(beyond) if violation == "squared" else -np.sqrt(beyond)
    found = built(violation).similarity(torch.from_numpy(images), torch.from_numpy(captions))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_a_caption_that_is_more_general_costs_nothing_and_has_no_gradient() -> None:
    image, caption = torch.full((1, 6), 2.0, requires_grad=True), torch.ones(1, 6, requires_grad=True)
    found = built("squared").similarity(image, caption)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert found.item() == 0
    assert image.grad is not None
    assert not image.grad.any()


def test_the_objective_is_the_sum_of_both_directions() -> None:
    model = built("squared")
    visual, text = Padded.whole(torch.randn(4, 2, 9)), Padded.whole(torch.randint(4, 15, (4, 5)))
    images, captions = model.encode_visual(visual), model.encode_text(text)
    for side in (images, captions):
        torch.testing.assert_close(side.norm(dim=1), torch.ones(4))
        assert (side >= 0).all()
    scores, expected = model.similarity(images, captions).detach(), 0.0
    for row, column in np.ndindex(4, 4):
        if row != column:
            expected += max(0.0, 0.05 + float(scores[row, column] - scores[row, row]))
            expected += max(0.0, 0.05 + float(scores[column, row] - scores[row, row]))
    stream = Stream.paired(visual, text, torch.arange(4), torch.arange(4))
    assert model.objective(Batch({"annotated": stream}))["ranking"].item() == pytest.approx(expected, rel=1e-5)


def test_with_the_root_and_equal_weights_it_scores_as_vsepps_variant() -> None:
    ours = built("root", 8)
    theirs = VSEPPConfig(width=8, word_width=4, similarity="order", normalise_features=False).build(Inputs(9, 15, 0))
    theirs.load_state_dict(ours.state_dict())
    visual, text = Padded.whole(torch.randn(4, 2, 9)), Padded.whole(torch.randint(4, 15, (4, 5)))
    found, expected = (m.similarity(m.encode_visual(visual), m.encode_text(text)) for m in (ours, theirs))
    torch.testing.assert_close(found, expected)
