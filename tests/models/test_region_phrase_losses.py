"""Losses of regions and phrases beside the definition: loops over triplets of algorithm 1 and equation 6."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.metrics.test_phrase_localisation import task_of
from xmodal.batches.batch import Batch, Padded, PairStream, TripletStream
from xmodal.batches.region_phrase_pairs import triplets
from xmodal.models import Inputs
from xmodal.models.two_branch import SimilarityConfig, TwoBranch, TwoBranchConfig
from xmodal.recipes import Phrases

TRUE = [(0, 0, 9, 9), (20, 20, 29, 29)]
PROPOSED = [(0, 0, 9, 8), (1, 0, 9, 9), (20, 21, 29, 29), (20, 20, 24, 29), (40, 40, 45, 45)]


class Given(TwoBranch):
    """Takes what it reads for its two vectors."""

    def encode_together(self, stream: Any) -> Any:
        return stream.visual.average(), stream.text.average()


def rows(draw: np.random.Generator, count: int) -> Any:
    found = draw.normal(size=(count, 3))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def d(one: Any, other: Any) -> float:
    return float(np.linalg.norm(one - other))


def shortfalls(config: TwoBranchConfig, near: float, far: list[float]) -> list[float]:
    return sorted((max(0.0, config.margin + near - one) for one in far), reverse=True)[: config.most]


@given(st.integers(0, 2**32), st.sampled_from([None, 1, 4]), st.sampled_from(["mean", "sum"]), st.integers(1, 3))
def test_terms_are_their_definition(seed: int, most: int | None, reduction: Any, neighbours: int) -> None:
    draw = np.random.default_rng(seed)
    task = task_of([(TRUE, PROPOSED)] * 3, np.sort(draw.integers(0, 6, 9)).tolist())
    drawn = triplets(task, draw.permutation(9)[:5], Phrases(0.7, 0.3, neighbours), seed % 1000, 0)
    numbers, proposals = drawn.regions_R.tolist(), len(task.proposals_N4)
    of_region = [int(task.pictures_A[n - proposals]) if n >= proposals else n // len(PROPOSED) for n in numbers]
    chains = task.boxes_P[drawn.phrases_Q].tolist()
    of_phrase, count = task.pictures_A[chains].tolist(), range(len(chains))
    visual, text = rows(draw, len(of_region)), rows(draw, len(chains))
    stream = TripletStream(
        *(Padded.whole(torch.tensor(side)[:, None]) for side in (visual, text)),
        *(torch.tensor(items) for items in (of_region, of_phrase, drawn.phrases_Q.tolist())),
        torch.from_numpy(drawn.pairs_M2),
        text_classes=torch.tensor(chains),
        targets=torch.from_numpy(drawn.targets_M2),
        wrong_regions=torch.from_numpy(drawn.wrong_regions_QR),
    )
    config = TwoBranchConfig(most=most, margin=0.5, reduction=reduction)
    found = Given(config, Inputs(3, 3, 0)).objective(Batch({"annotated": stream}))
    told = dict[str, list[float]](visual=[], text=[], visual_neighbours=[], text_neighbours=[])
    shown = {(x, chains[y]): y for x, y in drawn.pairs_M2.tolist()}
    for (x, y), (is_of_x, is_of_y) in zip(drawn.pairs_M2.tolist(), drawn.targets_M2.tolist(), strict=True):
        near, wrong = d(visual[x], text[y]), np.flatnonzero(drawn.wrong_regions_QR[y])
        if is_of_x:
            told["visual"] += shortfalls(config, near, [d(visual[x], text[k]) for k in count if chains[k] != chains[y]])
        if is_of_y:
            told["text"] += shortfalls(config, near, [d(visual[k], text[y]) for k in wrong])
    for ((x, chain), y), (other, same) in product(shown.items(), shown):
        if chain == same and x != other:
            is_out = [of != of_phrase[y] or bool(drawn.wrong_regions_QR[y, k]) for k, of in enumerate(of_region)]
            far = [d(visual[x], visual[k]) for k in np.flatnonzero(is_out)]
            told["visual_neighbours"] += shortfalls(config, d(visual[x], visual[other]), far)
    for y, other in product(count, count):
        if y != other and chains[y] == chains[other]:
            far = [d(text[y], text[k]) for k in count if chains[k] != chains[y]]
            told["text_neighbours"] += shortfalls(config, d(text[y], text[other]), far)
    for name, values in told.items():
        expected = sum(values) / (max(1, len(values)) if reduction == "mean" else 1)
        assert found[name].item() == pytest.approx(expected, rel=1e-6, abs=1e-6), name


def test_sampling_gives_each_target_two_pairs_and_no_more() -> None:
    task = task_of([([(0, 0, 9, 9)], [(0, 0, 9, 8), (20, 20, 25, 25)])] * 4, [0, 0, 1, 1, 2, 2, 3, 3])
    plain, sampled = (triplets(task, np.array([0, 2, 4, 6]), Phrases(0.7, 0.3, count), 0, 0) for count in (1, 2))
    assert plain.targets_M2.tolist() == [[True, True]] * 4
    assert sampled.targets_M2.sum(0).tolist() == [8, 8]
    assert sampled.pairs_M2[:4, 1].tolist() == [0, 1, 2, 3]


def test_the_similarity_network_weighs_right_and_wrong_pairs_alike() -> None:
    draw = np.random.default_rng(0)
    model = SimilarityConfig(hidden=6, width=4, dropout=0.0).build(Inputs(3, 3, 0)).eval()
    visual, text = (Padded.whole(torch.tensor(rows(draw, 5), dtype=torch.float32)[:, None]) for _ in range(2))
    right, wrong = (torch.from_numpy(draw.integers(0, 5, (7, 2))) for _ in range(2))
    five, none = torch.arange(5), torch.zeros(0, 2, dtype=torch.int64)
    stream = PairStream(visual, text, five, five, five, right, negatives=wrong)
    scores = model.similarity(model.encode_visual(visual), model.encode_text(text)).detach().numpy()
    signed = [-scores[x, y] for x, y in right.tolist()] + [scores[x, y] for x, y in wrong.tolist()]
    expected = np.mean([np.log1p(np.exp(one)) for one in signed])
    assert model.objective(Batch({"annotated": stream}))["logistic"].item() == pytest.approx(expected, rel=1e-5)
    empty = PairStream(visual[:0], text[:0], five[:0], five[:0], five[:0], none, negatives=none)
    assert model.objective(Batch({"annotated": empty}))["logistic"].item() == 0
