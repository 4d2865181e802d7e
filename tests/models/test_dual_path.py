"""Dual-Path against reference values, against slow definitions for all sizes, and its mining and its test features."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.golden import golden
from tests.models.test_two_branch import Sizes
from tests.toy_root import one_thread as one_thread
from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.batches.distributed import WholeBatchNorm
from xmodal.checks.model_contract import INPUTS
from xmodal.losses import instance
from xmodal.losses.instance import instance_loss
from xmodal.losses.mining import in_evaluation
from xmodal.losses.ranking import hinges
from xmodal.models import Inputs
from xmodal.models.dual_path import COCO, FLICKR30K, RECIPES, SMALL, Block, DualPath, DualPathConfig, TextNetwork
from xmodal.recipes import Recipe
from xmodal.root.identity import fingerprint
from xmodal.text.position_codes import places_of
from xmodal.training import optimisers

CONFIG = replace(SMALL[0], length=8)


def built(config: DualPathConfig = CONFIG, inputs: Inputs = INPUTS, seed: int = 0) -> DualPath:
    torch.manual_seed(seed)
    return config.build(inputs)


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(np.asarray(value)) for key, value in golden(name).items()}


def near(found: Tensor | None, expected: Tensor) -> None:
    assert found is not None
    torch.testing.assert_close(found.detach(), expected, atol=1e-5, rtol=1e-5)


def random_rows(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Losses


def test_the_instance_loss_is_that_of_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "CLASSES", 4)
    reference = tensors("indep_dualpath_instance_loss")
    visual, text, weights = (reference[name].requires_grad_() for name in ("f_img", "f_txt", "W_share"))
    of_visual, _ = instance_loss(visual, weights, reference["label_img"])
    of_text, _ = instance_loss(text, weights, reference["label_txt"])
    (of_visual.sum() + of_text.sum()).backward()  # type: ignore[no-untyped-call]
    near(of_visual, reference["loss_img_per_sample"])
    near(of_text, reference["loss_txt_per_sample"])
    near(of_visual.mean() + of_text.mean(), reference["loss_visual_mean"] + reference["loss_textual_mean"])
    for found, name in ((visual, "f_img"), (text, "f_txt"), (weights, "W_share")):
        near(found.grad, reference[f"grad_{name}_of_sum"])


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 7), classes=st.integers(1, 23), width=st.integers(1, 5), bias=st.booleans(),
    size=st.integers(1, 9),
)  # fmt: skip
def test_any_number_of_classes_in_chunks_of_any_size(
    rows: int, classes: int, width: int, bias: bool, size: int
) -> None:
    leaves = [random_rows(0, rows, width), random_rows(1, classes, width), random_rows(2, classes)]
    ours, theirs = ([one.clone().requires_grad_() for one in leaves] for _ in range(2))
    labels, cotangent = torch.arange(rows) * 7 % classes, random_rows(3, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance, "CLASSES", size)
        found, _ = instance_loss(ours[0], ours[1], labels, ours[2] if bias else None)
        found.backward(cotangent)
    logits = theirs[0] @ theirs[1].T + (theirs[2] if bias else 0)
    expected = functional.cross_entropy(logits, labels, reduction="none")
    expected.backward(cotangent)  # type: ignore[no-untyped-call]
    near(found, expected.detach())
    for one, other in zip(ours[: 2 + bias], theirs, strict=False):
        near(one.grad, other.grad if other.grad is not None else torch.zeros_like(other))


def test_logits_of_all_classes_are_never_in_memory_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3 rows and 50 classes: the largest tensors are the weights and their gradient."""
    monkeypatch.setattr(instance, "CLASSES", 8)
    rows, weights = random_rows(0, 3, 2).requires_grad_(), random_rows(1, 50, 2).requires_grad_()
    with Sizes() as sizes:
        instance_loss(rows, weights, torch.tensor([0, 7, 49]))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert sizes.largest == 50 * 2


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("draws", [18, 99])
def test_all_classes_drawn_are_all_classes(draws: int, bias: bool) -> None:
    """Of 20 classes the rows have 2."""
    leaves, labels = [random_rows(0, 4, 3), random_rows(1, 20, 3), random_rows(2, 20)], torch.tensor([7, 3, 7, 7])
    found = []
    for number in (0, draws):
        rows, weights, biases = (one.clone().requires_grad_() for one in leaves)
        losses, wrong = instance_loss(rows, weights, labels, biases if bias else None, draws=number)
        losses.square().sum().backward()  # type: ignore[no-untyped-call]
        found.append([losses.detach(), wrong, rows.grad, weights.grad, biases.grad])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("bias", [None, random_rows(2, 50)])
def test_classes_that_are_drawn_stand_for_all_others(bias: Tensor | None) -> None:
    """The sum of the softmax is right on average; only classes that are in it move."""
    rows, weights, labels = random_rows(0, 3, 4), random_rows(1, 50, 4), torch.tensor([7, 3, 7])
    sums, seen = torch.zeros(3), torch.zeros(50)
    torch.manual_seed(0)
    for _ in range(2000):
        learned = weights.clone().requires_grad_()
        losses, _ = instance_loss(rows, learned, labels, bias, draws=6)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        assert learned.grad is not None
        moved = learned.grad.any(dim=1)
        assert moved.sum() == 2 + 6
        sums, seen = sums + losses.detach().exp(), seen + moved
    exact = instance_loss(rows, weights, labels, bias)[0].exp()
    torch.testing.assert_close(sums / 2000, exact, atol=0, rtol=0.05)
    others = seen[torch.isin(torch.arange(50), labels, invert=True)] / 2000
    torch.testing.assert_close(others, torch.full((48,), 6 / 48), atol=0.03, rtol=0)


def test_a_model_splits_its_classes_only_if_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = list[int]()
    monkeypatch.setattr(distributed, "own_share", lambda things: shared.append(things) or slice(0, things))
    for splits, expected in ((False, []), (True, [INPUTS.instances])):
        built(replace(CONFIG, splits_classes=splits)).objective(Batch({ANNOTATED: mined_stream(candidates=0)}))
        assert shared == expected


@pytest.mark.parametrize(("draws", "classes"), [(1, 7), (0, INPUTS.instances)])
def test_a_model_moves_the_classes_of_a_batch_and_those_that_it_draws(draws: int, classes: int) -> None:
    model = built(replace(CONFIG, sampled_classes=draws))
    terms = model.objective(Batch({ANNOTATED: mined_stream(candidates=0)}))  # six pictures
    terms["instance_visual"].backward()  # type: ignore[no-untyped-call]
    assert model.classifier.weight.grad is not None
    assert model.classifier.weight.grad.any(dim=1).sum() == classes


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_an_error_is_a_row_whose_class_has_not_the_highest_logit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole numbers, whose highest logits are often several: the first one counts, in chunks of any size."""
    monkeypatch.setattr(instance, "CLASSES", size)
    rows, weights, labels = random_rows(0, 30, 4).round(), random_rows(1, 5, 4).round(), torch.arange(30) % 5
    losses, wrong = instance_loss(rows.requires_grad_(), weights, labels)
    assert torch.equal(wrong.bool(), (rows @ weights.T).argmax(dim=1) != labels)
    assert 0 < wrong.sum() < 30
    assert losses.requires_grad
    assert not wrong.requires_grad


def test_a_logit_that_would_overflow_does_not() -> None:
    rows = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    losses, _ = instance_loss(rows, torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 0]))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(losses.detach(), torch.tensor([0.0, 400.0]))
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_the_ranking_loss_is_that_of_the_official_code() -> None:
    reference = tensors("indep_dualpath_rankloss_m10")
    visual, text = (reference[name].requires_grad_() for name in ("X_l2", "Y_l2"))
    of_pictures, of_texts = hinges(visual, text, float(reference["margin"]))
    near(of_pictures, reference["image_anchor_terms"])
    near(of_texts, reference["text_anchor_terms"])
    loss = of_pictures.sum() + of_texts.sum()
    near(loss, reference["loss_sum"])
    loss.backward()  # type: ignore[no-untyped-call]
    near(visual.grad, reference["grad_X"])
    near(text.grad, reference["grad_Y"])


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(1, 9), margin=st.sampled_from([0.0, 0.5, 1.0, 2.0]), seed=st.integers(0, 99))
def test_the_terms_are_their_definitions(rows: int, margin: float, seed: int) -> None:
    """With a wrong partner of the own item nothing is asked of a pair; an odd row takes no part in the ranking."""
    model = built(replace(CONFIG, margin=margin, class_bias=True))
    visual, text = random_rows(seed, rows, 64).relu(), random_rows(seed + 1, rows, 64).relu()
    labels = torch.arange(rows) * 3 % 8
    labels_of_text = labels.clone()
    labels_of_text[rows // 2 :] = (labels[rows // 2 :] + seed) % 8
    terms = model.losses(visual, text, labels, labels_of_text)
    unit = [np.asarray(functional.normalize(side, dim=1)) for side in (visual, text)]
    expected = 0.0
    for pair in range(rows // 2):
        other = pair + rows // 2
        right = unit[0][pair] @ unit[1][pair]
        if labels_of_text[other] != labels[pair]:
            expected += max(0.0, margin - right + unit[0][pair] @ unit[1][other])
        if labels[other] != labels[pair]:
            expected += max(0.0, margin - right + unit[1][pair] @ unit[0][other])
    assert float(terms["ranking"]) == pytest.approx(expected / rows, abs=1e-5)
    for name, side, right_classes in (("visual", visual, labels), ("text", text, labels_of_text)):
        near(terms[f"instance_{name}"], functional.cross_entropy(model.classifier(side), right_classes).detach())


# Text network


def slow_norm(norm: WholeBatchNorm, maps_BCL: Tensor) -> Tensor:
    mean, variance = maps_BCL.mean((0, 2)), maps_BCL.var((0, 2), correction=0)
    unit = (maps_BCL - mean[:, None]) / (variance[:, None] + 1e-3).sqrt()
    return unit * norm.weight[:, None] + norm.bias[:, None]


def slow_block(block: Block, maps_BCL: Tensor) -> Tensor:
    """By convolutions as MatConvNet has them: a zero on the left, the stride in the 1 x 2."""
    inner = slow_norm(block.first_norm, functional.conv1d(maps_BCL, block.first.weight[..., None])).relu()
    half = inner.shape[1]
    kernel = torch.stack([block.pair.weight[:, :half], block.pair.weight[:, half:]], dim=2)
    inner = functional.conv1d(functional.pad(inner, (1, 0)), kernel, stride=block.stride)
    inner = slow_norm(block.pair_norm, inner).relu()
    changed = slow_norm(block.last_norm, functional.conv1d(inner, block.last.weight[..., None]))
    if not hasattr(block, "shortcut"):
        return (maps_BCL + changed).relu()
    short = functional.conv1d(maps_BCL, block.shortcut.weight[..., None], stride=block.stride)
    return (slow_norm(block.shortcut_norm, short) + changed).relu()


def slow_text(network: TextNetwork, codes_BL: Tensor) -> Tensor:
    maps_BCL = slow_norm(network.words_norm, network.words(codes_BL).transpose(1, 2))
    for block in network.blocks:
        assert isinstance(block, Block)
        maps_BCL = slow_block(block, maps_BCL)
    return maps_BCL.amax(2) if network.pool == "maximum" else maps_BCL.mean(2)


def with_random_norms(module: nn.Module) -> Any:
    for norm in module.modules():
        if isinstance(norm, WholeBatchNorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return module.double()


def random_codes(seed: int, texts: int, length: int) -> Tensor:
    """Of few words, so that many codes begin alike and some are the same."""
    return torch.tensor([0, 4, 5])[torch.randint(3, (texts, length), generator=torch.Generator().manual_seed(seed))]


@settings(deadline=None, max_examples=30)
@given(
    texts=st.integers(2, 9), length=st.sampled_from([4, 8, 12]), channels=st.integers(2, 6), inner=st.integers(1, 5),
    outputs=st.integers(2, 6), stride=st.sampled_from([1, 2]), seed=st.integers(0, 9),
)  # fmt: skip
def test_a_block_is_its_convolutions(
    texts: int, length: int, channels: int, inner: int, outputs: int, stride: int, seed: int
) -> None:
    outputs = outputs if stride == 1 or outputs != channels else outputs + 1
    torch.manual_seed(seed)
    block: Block = with_random_norms(Block(channels, inner, outputs, stride))
    before = places_of(random_codes(seed, texts, length), texts)
    maps_RC = random_rows(seed, len(before.counts_R), channels).double()
    found_RC, places = block(maps_RC, before)
    expected = slow_block(block, maps_RC[before.rows_BL].transpose(1, 2)).transpose(1, 2)
    assert expected.shape == (texts, length // stride, outputs)
    torch.testing.assert_close(found_RC[places.rows_BL], expected)


@settings(deadline=None, max_examples=20)
@given(texts=st.integers(2, 20), config=st.sampled_from(SMALL), seed=st.integers(0, 9))
def test_texts_that_begin_alike_have_the_features_gradients_and_statistics_of_each_alone(
    texts: int, config: DualPathConfig, seed: int
) -> None:
    network: TextNetwork = with_random_norms(built(config, seed=seed).text).train()
    codes, found = random_codes(seed, texts, config.length), list[list[Tensor]]()
    for features in (network(codes), slow_text(network, codes)):
        network.zero_grad()
        features.square().sum().backward()
        gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
        found.append([features.detach(), *map(torch.clone, gradients)])
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)
    words = network.words(codes).flatten(0, 1)
    torch.testing.assert_close(network.words_norm.running_mean, words.mean(0) * 0.1)
    torch.testing.assert_close(network.words_norm.running_var, 0.9 + words.var(0) * 0.1)


def test_several_threads_have_the_same_gradients_every_time() -> None:
    """A batch of pictures with four captions each, large enough to be shared among threads."""
    config = DualPathConfig((1, 1, 1, 1), channels=64, width=1024, alignment="left")
    model, random = config.build(Inputs(8, 500, 10)).train(), np.random.default_rng(0)
    text = Padded.of([random.integers(4, 500, 8).astype("int32") for _ in range(32)])
    items, texts = torch.arange(8), torch.arange(32)
    pairs = torch.stack([texts % 8, texts], dim=1)
    stream = Stream(Padded.whole(random_rows(0, 8, 1, 8)), text, items, texts % 8, texts, pairs)
    found, before = list[list[Tensor]](), torch.get_num_threads()
    torch.set_num_threads(2)
    for _ in range(4):
        model.zero_grad()
        torch.manual_seed(0)
        sum(model.objective(Batch({ANNOTATED: stream})).values(), torch.tensor(0.0)).backward()  # type: ignore[no-untyped-call]
        found.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    torch.set_num_threads(before)
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))


def test_one_text_of_one_place_leaves_finite_statistics() -> None:
    model = built(replace(CONFIG, length=4))
    assert model.text_features(torch.tensor([[4, 5, 0, 0]])).isfinite().all()
    assert all(values.isfinite().all() for values in model.state_dict().values())


@pytest.mark.parametrize(("pool", "length"), [("maximum", 32), ("average", 32), ("maximum", 56)])
def test_the_official_network_has_fourteen_blocks(pool: Any, length: int) -> None:
    model = DualPathConfig(pool=pool, length=length).build(Inputs(2048, 40, 10))
    widths = [
        (block.first.in_features, block.first.out_features, block.last.out_features) for block in model.text.blocks
    ]
    assert widths == [
        (300, 128, 256), *[(256, 64, 256)] * 2, (256, 512, 512), *[(512, 128, 512)] * 3, (512, 1024, 1024),
        *[(1024, 256, 1024)] * 5, (1024, 2048, 2048),
    ]  # fmt: skip
    codes = torch.randint(4, 40, (4, length))
    torch.testing.assert_close(model.text(codes), slow_text(model.text, codes), atol=1e-3, rtol=1e-3)
    assert len(DualPathConfig(depths=(3, 4, 6, 3)).build(Inputs(2048, 40, 10)).text.blocks) == 16


def test_a_row_of_the_word_table_is_a_one_hot_code_times_a_convolution() -> None:
    model = built()
    codes = torch.tensor([[0, 4, 9, 4, 0, 0, 14, 0]])
    one_hot = functional.one_hot(codes, 15).float()
    one_hot[..., 0] = 0  # no word
    near(model.text.words(codes), (one_hot @ model.text.words.weight).detach())


def test_codes_hold_the_first_words_that_have_a_vector() -> None:
    vectors = random_rows(0, 15, CONFIG.word_width).numpy()
    vectors[[0, 1, 2, 3, 7, 9]] = np.nan
    model = built(inputs=replace(INPUTS, word_vectors=vectors))
    texts = Padded.of([np.array(ids, np.int32) for ids in ([1, 7, 5, 3, 6, 2], [2], [1, *range(4, 15), 4, 5, 2])])
    assert model.codes(texts).tolist() == [
        [5, 6, 0, 0, 0, 0, 0, 0], [0] * 8, [4, 5, 6, 8, 10, 11, 12, 13],
    ]  # fmt: skip
    assert not model.text.words.weight[[0, 1, 2, 3, 7, 9]].any()
    near(model.text.words.weight[5], torch.from_numpy(vectors[5]))
    other = built(seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.codes(texts), model.codes(texts))  # a run that is opened again has no file of vectors


def test_a_text_falls_anywhere_in_training_and_stays_at_the_left_if_told_so() -> None:
    text = Padded.of([np.array([1, 5, 6, 7, 8, 9, 2], np.int32)] * 64)
    for alignment, expected in (("shifted", {0, 1, 2, 3}), ("left", {0})):
        model = built(replace(CONFIG, alignment=alignment))
        codes = model._placed(model.codes(text), torch.arange(64))
        assert {row.index(5) for row in codes.tolist()} == expected
        assert all(row[row.index(5) :][:5] == [5, 6, 7, 8, 9] for row in codes.tolist())
        codes = model.eval()._placed(model.codes(text), torch.arange(64))
        assert {row.index(5) for row in codes.tolist()} == {0}


# Test features


def test_test_features_are_sums_at_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = tensors("indep_dualpath_test_features")
    model = built(replace(CONFIG, width=8)).eval()
    rows = reference["text_shift_features"]
    monkeypatch.setattr(model, "text_features", lambda codes: rows[[code.index(5) for code in codes.tolist()]])
    text = Padded.of([np.array([1, 5, 6, 7, 8, 2], np.int32)])  # four words, at five places of eight
    near(model.encode_text(text)[0], reference["text_feature"])
    monkeypatch.setattr(model, "visual_head", nn.Identity())
    windows = torch.cat([reference[name].flatten(0, 1) for name in ("img_map", "img_map_flipped")])
    near(model.encode_windows(Padded.whole(windows[None]))[0], reference["img_feature"])
    units = tensors("indep_dualpath_lrn_l2")
    near(functional.normalize(units["x"], dim=1), units["y"])


def test_the_sum_over_all_places_is_that_of_each_alone() -> None:
    model = built().eval()
    text = Padded.of([np.array(ids, np.int32) for ids in ([1, 4, 5, 2], [1, 2], [1, *range(4, 12), 2])])
    found = model.encode_text(text)
    for row, words in enumerate(([4, 5], [], list(range(4, 12)))):
        places = [[0] * place + words + [0] * (8 - place - len(words)) for place in range(9 - len(words))]
        expected = model.text_features(torch.tensor(places)).sum(0)
        near(found[row], functional.normalize(expected, dim=0).detach())


def test_one_window_is_an_item() -> None:
    model, visual = built().eval(), Padded.whole(random_rows(0, 5, 1, 12))
    near(model.encode_windows(visual), model.encode_visual(visual).detach())


def test_windows_beyond_those_of_a_picture_count_nothing() -> None:
    model, pictures = built().eval(), [random_rows(seed, windows, 12) for seed, windows in enumerate((4, 1, 2))]
    nn.init.normal_(model.visual_head.get_submodule("1").bias)  # so that f of zeros is not zero
    found = model.encode_windows(Padded.of([one.numpy() for one in pictures]))
    for row, one in zip(found, pictures, strict=True):
        near(row, model.encode_windows(Padded.whole(one[None]))[0].detach())


@pytest.mark.parametrize(
    ("head", "visual", "text"),
    [("official", "Linear Norm ReLU Linear Norm", "Linear Norm"), ("paper", *2 * ["Linear Norm ReLU Linear"])],
)
def test_heads_are_those_of_the_code_or_of_the_paper(
    head: Any, visual: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code's f is activated before both losses, the paper's is not."""
    model, seen = built(replace(CONFIG, head=head)), list[Tensor]()
    for layers, expected in ((model.visual_head, visual), (model.text_head, text)):
        names = [type(layer).__name__.replace("WholeBatchNorm", "Norm") for layer in layers]
        assert " ".join(names) == expected
    monkeypatch.setattr(model, "losses", lambda visual_ND, text_ND, *labels: seen.extend((visual_ND, text_ND)))
    model.objective(Batch({ANNOTATED: mined_stream()}))
    assert [bool((side < 0).any()) for side in seen] == 2 * [head == "paper"]


# Mining


def mined_stream(candidates: int = 9, rows: int = 6) -> Stream:
    """Rows of pictures with a text each, and more texts, of which some are of the first pictures."""
    random = np.random.default_rng(0)
    text = [random.integers(4, 15, 2 + row % 4).astype("int32") for row in range(rows + candidates)]
    items = torch.arange(rows)
    of_text = torch.cat([items, torch.arange(candidates) % 8])
    pairs = items[:, None].expand(-1, 2)
    visual = Padded.whole(random_rows(0, rows, 1, 12))
    return Stream(visual, Padded.of(text), items, of_text, torch.arange(len(text)), pairs)


@torch.no_grad()
def hardest(model: DualPath, stream: Stream, codes: Tensor) -> list[int]:
    """The text row that each picture of the first half should meet, by one picture and one text at a time."""
    found = []
    for picture in range(len(stream.visual) // 2):
        seen = model.visual_head(stream.visual.values[picture]).relu()
        others = [row for row in range(len(stream.visual), len(stream.text)) if stream.text_items[row] != picture]
        read = {row: model.text_features(codes[row : row + 1]).relu() for row in others}
        found.append(max(others, key=lambda row: float(functional.cosine_similarity(seen, read[row]))))
    return found


def test_mining_takes_the_hardest_by_the_network_as_it_is_in_evaluation_mode() -> None:
    model, stream = built(replace(CONFIG, alignment="left")), mined_stream()
    for _ in range(20):  # statistics that differ from those of a batch
        model.objective(Batch({ANNOTATED: stream}))
    chosen = []
    for step in range(4):
        before = {name: values.clone() for name, values in model.state_dict().items()}
        codes, labels = model._texts(stream, stream.visual_items)
        after = model.state_dict()
        assert all(torch.equal(values, after[name]) for name, values in before.items())
        assert all(module.training for module in model.modules())
        own = model.codes(stream.text)
        rows = hardest(model.eval(), stream, own)
        model.train()
        assert torch.equal(codes, own[[0, 1, 2, *rows]])
        assert labels.tolist() == [0, 1, 2, *stream.text_items[rows].tolist()]
        chosen.append(tuple(rows))
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    assert len(set(chosen)) > 1  # weights of this step


def test_without_candidates_the_second_half_has_its_own_texts() -> None:
    model, stream = built(replace(CONFIG, alignment="left")), mined_stream(candidates=0)
    codes, labels = model._texts(stream, stream.visual_items)
    assert torch.equal(codes, model.codes(stream.text))
    assert torch.equal(labels, stream.visual_items)


@pytest.mark.parametrize("rows", [1, 5])
def test_an_odd_row_keeps_its_own_text(rows: int) -> None:
    model, stream = built(replace(CONFIG, alignment="left")), mined_stream(rows=rows)
    codes, _ = model._texts(stream, stream.visual_items)
    own = model.codes(stream.text)
    assert torch.equal(codes[: rows // 2], own[: rows // 2])
    assert torch.equal(codes[-1], own[rows - 1])
    assert all(term.isfinite() for term in model.objective(Batch({ANNOTATED: stream})).values())


def test_mining_is_of_a_backbone_in_evaluation_mode_where_there_is_one() -> None:
    model, stream = built(replace(CONFIG, alignment="left")), mined_stream(candidates=40)
    seen = replace(stream, visual=Padded.whole(random_rows(1, 6, 1, 12)), visual_in_evaluation=stream.visual)
    assert torch.equal(model._texts(seen, stream.visual_items)[0], model._texts(stream, stream.visual_items)[0])


def test_parts_that_were_frozen_stay_in_evaluation_mode() -> None:
    model = built()
    model.text.eval()
    with in_evaluation(model):
        assert not model.visual_head.training
        assert not torch.is_grad_enabled()
    assert model.visual_head.training
    assert not model.text.training


@pytest.mark.parametrize("by", [{"learns_identities": True}, {"clusters": 3}])
def test_classes_may_be_identities_or_clusters(by: dict[str, Any]) -> None:
    model = built(replace(CONFIG, **by), replace(INPUTS, instances=3))
    classes = torch.arange(6) % 3
    stream = replace(mined_stream(candidates=0), visual_classes=classes, text_classes=classes)
    terms = model.objective(Batch({ANNOTATED: stream}))
    assert terms["ranking"].item() == 0  # partners of the second half are of the same identities
    assert terms["instance_text"].isfinite()


def test_dropout_is_before_the_classifier_alone() -> None:
    model, visual, text = (
        built(replace(CONFIG, dropout=0.75)),
        random_rows(0, 6, 64).relu(),
        random_rows(1, 6, 64).relu(),
    )
    labels = torch.arange(6)
    one, other = (model.losses(visual, text, labels, labels) for _ in range(2))
    assert one["instance_visual"] != other["instance_visual"]
    assert one["ranking"] == other["ranking"]


# Recipes


def test_no_two_recipes_are_the_same_but_for_their_names() -> None:
    assert len({fingerprint(replace(recipe, name="")) for recipe in RECIPES}) == len(RECIPES)


@pytest.mark.parametrize(("recipe", "last"), [(FLICKR30K, 0.01), (COCO, 0.001)])
def test_the_second_stage_ends_at_a_lower_rate(recipe: Recipe, last: float) -> None:
    second = recipe.phases[1]
    rates = [optimisers.rate(second.optimiser, epoch, []) for epoch in (0, second.epochs - 1)]
    assert rates == [0.1, pytest.approx(last)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": (3, 0, 6, 1)}, "depths 0"),
        ({"channels": 6}, "channels 6 must be a multiple of 4"),
        ({"length": 30}, "length 30 must be a multiple of 4"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"margin": -1.0}, "margin -1.0"),
        ({"clusters": -1}, "clusters -1"),
        ({"sampled_classes": -1}, "sampled_classes -1"),
        ({"clusters": 3, "learns_identities": True}, "identities or 3 clusters, not both"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)
