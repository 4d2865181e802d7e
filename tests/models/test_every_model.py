"""What holds for every model that learns by gradients: a new one is an entry in `CONFIGS`."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.toy_root import make_root, recipe
from tests.toy_root import one_thread as one_thread
from xmodal import models
from xmodal.batches.batch import ANNOTATED, Batch, Padded, Stream
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import open_run
from xmodal.features.opening import open_features
from xmodal.models import Inputs, Trainable
from xmodal.models.pcme import PCMEConfig
from xmodal.models.pvse import PVSEConfig
from xmodal.models.vsepp import VSEPPConfig
from xmodal.progress import Silence
from xmodal.recipes import Config, View
from xmodal.root.selection import find_output
from xmodal.text.vocabularies import SPECIALS, Vocabulary
from xmodal.training import run_folder
from xmodal.training.optimisers import total
from xmodal.training.run_folder import Run
from xmodal.training.validation import measure

INPUTS = Inputs(visual_width=12, text_width=15, instances=8)
_VSEPP = VSEPPConfig(width=10, word_width=7)
_PCME = PCMEConfig(width=10, word_width=6, scale=5.0, shift=5.0)
_PVSE = PVSEConfig(width=10, word_width=6, margin=0.2)
CONFIGS: dict[str, tuple[Config, ...]] = {
    "vsepp": (
        _VSEPP,
        replace(_VSEPP, negatives="all", normalise_image=False),
        replace(_VSEPP, similarity="order", margin=0.05),
        replace(_VSEPP, normalise_features=False),
    ),
    "pvse": (
        _PVSE,
        replace(_PVSE, embeddings=1, negatives="all"),
        replace(_PVSE, embeddings=0),
        replace(_PVSE, embeddings=8, reduction="sum"),
        replace(_PVSE, similarity="order", embeddings=3),
        replace(_PVSE, visual="video", embeddings=3, kernel="rbf", negatives="all"),
        replace(_PVSE, visual="video", legacy_last_output=True),
        replace(_PVSE, fusion="local"),
        replace(_PVSE, visual="video", fusion="local"),
        replace(_PVSE, fusion="concatenated"),
        replace(_PVSE, mil=False, xavier_image=True),
    ),
    "pcme": (
        _PCME,
        replace(_PCME, uniformity="distinct", kl="exact", sigmoid_scale=1.0),
        replace(_PCME, distance="elk"),
        replace(_PCME, samples=0, kl="off", distance="mean"),
    ),
}
MODELS = [
    pytest.param(name, config, id=f"{name}{n}") for name, kinds in CONFIGS.items() for n, config in enumerate(kinds)
]


def built(config: Config, seed: int = 0, inputs: Inputs = INPUTS) -> Any:
    torch.manual_seed(seed)
    model = config.build(inputs)
    assert isinstance(model, nn.Module)
    assert isinstance(model, Trainable)
    return model


def eight_pairs() -> Stream:
    random = np.random.default_rng(0)
    visual = Padded.of([random.normal(size=(1 + row % 3, 12)).astype("float32") for row in range(8)])
    text = Padded.of([random.integers(4, 15, 2 + row % 4).astype("int32") for row in range(8)])
    return Stream.paired(visual, text, torch.arange(8), torch.arange(8))


def loss(name: str, model: Any, stream: Stream) -> Tensor:
    """Weighed as the model's first recipe does at first."""
    return total(model.objective(Batch({ANNOTATED: stream})), models.load(name).RECIPES[0].phases[0].weights)


def similarity(model: Any, visual: Padded, text: Padded) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.similarity(model.encode_visual(visual), model.encode_text(text))
    return found


def is_idle(parameter: str, config: Config) -> bool:
    """The legacy read-out takes the backward half after one step, when recurrent weights have met zeros alone."""
    legacy = getattr(config, "legacy_last_output", isinstance(config, PCMEConfig))
    return legacy and parameter.endswith("weight_hh_l0_reverse")


def test_every_model_is_here() -> None:
    assert sorted(CONFIGS) == models.names()


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_similarities_are_finite_and_their_gradients_reach_every_parameter(name: str, config: Config) -> None:
    model, stream = built(config), eight_pairs()
    found = similarity(model, stream.visual, stream.text[:5])
    assert found.shape == (8, 5)
    assert found.isfinite().all()
    loss(name, model, stream).backward()  # type: ignore[no-untyped-call]
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any() != is_idle(parameter_name, config), parameter_name


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_a_batch_may_bring_several_captions_of_an_item(name: str, config: Config) -> None:
    model, stream = built(config), eight_pairs()
    positives = torch.tensor([[0, 0], [0, 1], [1, 2], [2, 3], [2, 4]])
    ids = torch.tensor([0, 0, 1, 2, 2])
    unequal = Stream(stream.visual[:3], stream.text[:5], torch.arange(3), ids, torch.arange(5), positives)
    terms = model.objective(Batch({ANNOTATED: unequal}))
    assert all(term.ndim == 0 and term.isfinite() for term in terms.values())
    assert terms.keys() == models.load(name).RECIPES[0].phases[0].weights.keys()


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_eight_pairs_are_learned_by_heart(name: str, config: Any) -> None:
    model, stream = built(replace(config, width=32)), eight_pairs()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss(name, model, stream).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    found = similarity(model.eval(), stream.visual, stream.text)
    for best in (found.argmax(0), found.argmax(1)):
        assert best.tolist() == list(range(8))


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_padding_changes_nothing(name: str, config: Config) -> None:
    """NaN features and ids of no word beyond the lengths, and each item alone without padding."""
    model, stream = built(config).eval(), eight_pairs()
    visual = torch.nn.functional.pad(stream.visual.values, (0, 0, 0, 3))
    text = torch.nn.functional.pad(stream.text.values, (0, 3))
    worse = Padded(visual, stream.visual.lengths), Padded(text, stream.text.lengths)
    visual[~worse[0].mask], text[~worse[1].mask] = float("nan"), 99_999
    found = similarity(model, *worse)
    torch.testing.assert_close(found, similarity(model, stream.visual, stream.text))
    for row in range(8):
        item = Padded.whole(stream.visual.values[row : row + 1, : int(stream.visual.lengths[row])])
        caption = Padded.whole(stream.text.values[row : row + 1, : int(stream.text.lengths[row])])
        torch.testing.assert_close(similarity(model, item, caption)[0, 0], found[row, row])
    worst = replace(stream, visual=worse[0], text=worse[1])
    loss(name, model, worst).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_tiles_equal_the_whole(name: str, config: Config) -> None:
    model, stream = built(config).eval(), eight_pairs()
    whole = similarity(model, stream.visual, stream.text)
    torch.testing.assert_close(similarity(model, stream.visual[2:5], stream.text[1:7]), whole[2:5, 1:7])
    torch.testing.assert_close(similarity(model, stream.visual[7:], stream.text[:1]), whole[7:, :1])


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_saved_and_loaded_it_is_the_same(name: str, config: Config) -> None:
    model, other, stream, file = built(config).eval(), built(config, seed=1).eval(), eight_pairs(), BytesIO()
    before = similarity(model, stream.visual, stream.text)
    assert not torch.equal(similarity(other, stream.visual, stream.text), before)
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(similarity(other, stream.visual, stream.text), before)


@pytest.fixture(scope="module")
def toy_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("root"), items=40)


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_a_model_that_chooses_among_positions_refuses_a_store_of_one(
    name: str, config: Config, toy_root: str, tmp_path: Path
) -> None:
    """Where a run is opened, too; a grid is read by all."""
    records, grids = find_output(toy_root, "records"), make_root(tmp_path / "grids", items=20, places=2)
    _ = open_features(grids, "resnet", None, find_output(grids, "records"), config)
    store = open_features(toy_root, "resnet", None, records)
    started = Run(
        recipe(model=config, phases=()), records.identity, store.output.identity, Vocabulary("nltk", SPECIALS), 64, 8
    )
    run_folder.start(str(tmp_path / "run"), started)
    if name == "vsepp" or (isinstance(config, PVSEConfig) and not config.embeddings):
        _ = open_features(toy_root, "resnet", None, records, config)
        with pytest.raises(UserError, match="train it first"):
            open_run(str(tmp_path / "run"), toy_root, "toy/test")
        return
    message = f"has one position an item, and {name.upper()} chooses among several: .*--set resnet.output=grid"
    with pytest.raises(UserError, match=message):
        open_features(toy_root, "resnet", None, records, config)
    with pytest.raises(UserError, match=message):
        open_run(str(tmp_path / "run"), toy_root, "toy/test")


@pytest.mark.parametrize(("name", "config"), MODELS)
def test_it_is_measured_but_never_on_an_empty_gallery(name: str, config: Config, toy_root: str) -> None:
    records, vocabulary = find_output(toy_root, "records"), Vocabulary("nltk", (*SPECIALS, "a", "and", "red", "blue"))
    store = open_features(toy_root, "resnet", None, records)
    examples = Examples.of(records, View("pictures", "toy/train", captions_per_item=2), store, vocabulary)
    model = built(config, inputs=Inputs(64, len(vocabulary), len(examples.ids)))
    scores = measure(model, Reader(examples, store), Silence(), blocks=(7, 13))
    assert 0 < scores["all"].rsum <= 600
    empty = replace(examples, caption_ids=(), caption_items=np.zeros(0, np.int64), words=())
    with pytest.raises(ValueError, match="an empty gallery cannot be searched"):
        measure(model, Reader(empty, store), Silence())
    nothing = replace(empty, ids=(), rows=np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="an empty gallery cannot be searched: 0 visual rows, 0 text rows"):
        measure(model, Reader(nothing, store), Silence())
