"""DAN against reference values, and against its definition written as loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.golden import golden
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.models import Inputs
from xmodal.models.dan import DAN, RECIPES, DANConfig

LAYERS = {"local": "W{}", "memory": "W{}m", "score": "w{}h"}


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def built(config: DANConfig, visual_width: int = 9) -> DAN:
    torch.manual_seed(0)
    return config.build(Inputs(visual_width, 15, 0)).eval()


def filled(layer: nn.Module, weight: Tensor) -> None:
    with torch.no_grad():
        next(layer.parameters()).copy_(weight.reshape(next(layer.parameters()).shape))


def test_matching_is_that_of_the_equations() -> None:
    official = tensors("indep_dan_matching")
    model = built(DANConfig(width=7, word_width=4))
    for layer, weight in zip(model.projections, official["P"], strict=True):
        filled(layer, weight)
    for side, letter in ((model.visual_steps, "v"), (model.text_steps, "u")):
        for step, look in enumerate(side):
            for name, key in LAYERS.items():
                filled(getattr(look, name), official[key.format(letter)][step])
    visual = model.encode_visual(Padded.whole(official["regions"]))
    text = model.read(Padded(official["words"], official["lengths"]))
    torch.testing.assert_close(visual, official["z_v"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(text, official["z_u"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.similarity(visual, text), official["S_matrix"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.similarity(visual, text).diag(), official["S_paired"], atol=1e-5, rtol=1e-5)


def test_attention_is_that_of_the_equations() -> None:
    official = tensors("indep_dan_matching")
    model = built(DANConfig(width=7, word_width=4))
    for side, letter, width in (("visual", "v", official["regions"]), ("text", "u", official["words"])):
        whole = Padded.whole(width) if side == "visual" else Padded(width, official["lengths"])
        memory = whole.average()
        if side == "visual":
            memory = (memory @ official["P"][0].T).tanh()
        for step, look in enumerate(getattr(model, f"{side}_steps")):
            for name, key in LAYERS.items():
                filled(getattr(look, name), official[key.format(letter)][step])
            weights = look.attend(whole.zero_padded(), memory, whole.mask)
            torch.testing.assert_close(weights, official[f"att_{letter}{step + 1}"], atol=1e-5, rtol=1e-5)
            found = (weights[:, None] @ whole.zero_padded())[:, 0]
            memory = memory + ((found @ official["P"][step + 1].T).tanh() if side == "visual" else found)


def slow_visual(model: DAN, regions: Tensor) -> Tensor:
    weights = [layer.weight for layer in model.projections]  # type: ignore[union-attr]
    found = [torch.tanh(weights[0] @ regions.mean(0))]  # type: ignore[operator]
    for step, look in enumerate(model.visual_steps):
        summed = looked(look, regions, torch.stack(found).sum(0))
        found.append(torch.tanh(weights[step + 1] @ summed))  # type: ignore[operator]
    return torch.cat(found)


def slow_text(model: DAN, states: Tensor) -> Tensor:
    found = [states.mean(0)]
    for look in model.text_steps:
        found.append(looked(look, states, torch.stack(found).sum(0)))
    return torch.cat(found)


def looked(look: nn.Module, items: Tensor, memory: Tensor) -> Tensor:
    local, led, score = (getattr(look, name).weight for name in ("local", "memory", "score"))
    fits = [score[0] @ (torch.tanh(local @ item) * torch.tanh(led @ memory)) for item in items]
    shares = [fit.exp() / sum(one.exp() for one in fits) for fit in fits]
    return torch.stack([share * item for share, item in zip(shares, items, strict=True)]).sum(0)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 5], [2, 2]])
def test_encodings_are_their_definition(steps: int, lengths: list[int]) -> None:
    random = np.random.default_rng(steps)
    model = built(DANConfig(width=6, word_width=4, steps=steps))
    visual = Padded.of([random.normal(size=(length, 9)).astype("float32") for length in lengths])
    states = Padded.of([random.normal(size=(length, 6)).astype("float32") for length in lengths])
    for side in (visual, states):
        side.values[~side.mask] = float("nan")
    rows = range(len(lengths))
    expected = [slow_visual(model, visual.values[row, : lengths[row]]) for row in rows]
    torch.testing.assert_close(model.encode_visual(visual), torch.stack(expected))
    maps_BLS = model.attention_visual(visual)
    assert maps_BLS.shape == (len(lengths), max(lengths), steps)
    torch.testing.assert_close(maps_BLS.sum(1), torch.ones(len(lengths), steps))
    assert not maps_BLS[~visual.mask].any()
    expected = [slow_text(model, states.values[row, : lengths[row]]) for row in rows]
    torch.testing.assert_close(model.read(states), torch.stack(expected))


def test_the_state_of_a_word_is_the_sum_of_both_directions() -> None:
    model = built(DANConfig(width=6, word_width=4))
    ids = torch.tensor([[5, 9, 4]])
    states = model.sentence(model.words(ids))[0]
    expected = model.read(Padded.whole(states[..., :6] + states[..., 6:]))
    padded = torch.tensor([[5, 9, 4, 0, 0], [7, 7, 7, 7, 7]])
    torch.testing.assert_close(model.encode_text(Padded(padded, torch.tensor([3, 5])))[:1], expected)


def test_recipes_and_refusals() -> None:
    assert {r.name for r in RECIPES} >= {"dan-flickr30k-full", "dan-flickr30k-10-5", "dan-coco-10-1", "dan-coco-full"}
    with pytest.raises(ValueError, match="steps 0 must be"):
        replace(DANConfig(), steps=0)
