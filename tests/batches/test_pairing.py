"""Texts that are right for a class or a person: from the publisher's files to one epoch of PCME and its evaluation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import xmodal
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.papers.recipe_runs import recipe_with, recipes
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.publishers import cub, cuhk_pedes
from tests.toy_root import fit, one_thread
from xmodal.batches.batch import Padded
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.evaluation import run_metrics
from xmodal.evaluation.run_metrics import evaluate
from xmodal.metrics.reports import Report
from xmodal.models.pcme import PCME_CUB, PCMEConfig
from xmodal.recipes import Features, OnePerClass, Optimiser, Phase, Recipe, Tokens, View
from xmodal.records.tables import Label, read_rows
from xmodal.records.views import caption_texts, classes
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import Vocabulary
from xmodal.training.run_setup import Setup

__all__ = ["one_thread"]
RESNET = {
    "resnet.network": "resnet18",
    "resnet.weights": "random:0",
    "resnet.resize": 64,
    "resnet.crop": 64,
    "resnet.rows_per_shard": 128,
}
ONCE = (Phase(1, Optimiser("adamp", 1e-3, clip_norm=2.0), PCME_CUB.phases[0].weights, sampler=OnePerClass()),)
FOLDS = [("pcme/train", "pcme/val"), *((f"xian{fold}/train", f"xian{fold}/val") for fold in (1, 2, 3))]


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """CUB of some classes, with grids of a network with random weights."""
    folder = tmp_path_factory.mktemp("birds")
    corpus = cub.write(World(items=150, image_size=32, captions_per_item=10, identities=30), folder / "raw")
    return built(folder, corpus)


@pytest.fixture(scope="module")
def persons(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("persons")
    corpus = cuhk_pedes.write(World(items=90, image_size=32, captions_per_item=2, identities=15), folder / "raw")
    return built(folder, corpus)


def built(folder: Path, corpus: xmodal.corpora.Corpus) -> str:
    root = str(folder / "root")
    CorpusBuild(BuildOptions(open_storage(root), raw=folder / "raw", settings=RESNET), corpus).build("resnet")
    return root


def small(view: View, validation: View) -> Recipe:
    model = PCMEConfig(width=16, word_width=8, samples=3, scale=5.0, shift=5.0, uniformity="distinct")
    text = Tokens("nltk", minimum_count=2, marked=0.1, deleted=0.1)
    return Recipe("tiny", "ours", view, validation, Features("resnet"), text, model, ONCE, batch_size=8)


def reader(root: str, split: str) -> Reader:
    """With the class of every item."""
    dataset = xmodal.open(root, corpus_of(root))
    view, store = View(dataset.corpus, split), dataset.store()
    words = Vocabulary.build(caption_texts(dataset.records, view), "nltk", 2)
    examples = Examples.of(dataset.records, view, store, words)
    return Reader(examples, store, classes=classes(dataset.records, examples.ids))


def corpus_of(root: str) -> str:
    return str(find_output(root, "records").config["corpus"])


def names(root: str, ids: tuple[str, ...]) -> list[str]:
    """The class of each item as the world has it."""
    records = xmodal.open(root, corpus_of(root)).records
    found = {label.item: label.name for label in read_rows(records, Label)}
    return [found[id] for id in ids]


@pytest.mark.parametrize(
    ("where", "split"), [("birds", "pcme/train"), ("birds", "xian2/train"), ("persons", "cuhk_pedes/train")]
)
def test_a_batch_has_one_pair_of_every_class(where: str, split: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(where)
    read = reader(root, split)
    named = names(root, read.examples.ids)
    loader = Loader(read, 4, sampler=OnePerClass())
    batches = [batch.streams["annotated"] for batch in loader]
    assert loader.batch_size == len(set(named))
    assert len(batches) == len(read.examples.words) // loader.batch_size
    for stream in batches:
        assert {named[item] for item in stream.visual_items.tolist()} == set(named)
        assert len(stream.text_items) == len(set(named))
        assert stream.visual_classes is not None
        assert torch.equal(stream.visual_classes, stream.text_classes)
        assert torch.equal(stream.visual_items, stream.text_items)
    drawn = {caption for stream in batches for caption in stream.captions.tolist()}
    assert len(drawn) > len(read.examples.ids)


@pytest.mark.parametrize(("train", "val"), FOLDS)
def test_pcme_trains_on_birds_and_is_chosen_by_classes(birds: str, tmp_path: Path, train: str, val: str) -> None:
    tiny = small(View("cub", train), View("cub", val))
    run = str(tmp_path / "run")
    outcome = fit(tiny, birds, run)
    read = reader(birds, train)
    assert outcome.steps == len(read.examples.words) // len(set(names(birds, read.examples.ids)))
    opened = run_metrics.open_run(run, Setup(birds), val)
    by_hand = rsum_by_class(opened, names(birds, opened.reader.examples.ids))
    assert outcome.rsum == pytest.approx(by_hand)


def rsum_by_class(opened: run_metrics.OpenedRun, named: list[str]) -> float:
    """The definition: a query is answered at k where one of its k best is of its class; ties count against it."""
    read = opened.reader
    every = slice(0, len(read.examples.ids)), slice(0, len(read.examples.words))
    with torch.inference_mode():
        visual = opened.scorer.encode_visual(single(read.visual(every[0])))
        table = opened.scorer.similarity(visual, opened.scorer.encode_text(read.text(every[1]))).numpy()
    right = np.array([[a == named[item] for item in read.examples.caption_items] for a in named])
    total = 0.0
    for scores, is_right in ((table, right), (table.T, right.T)):
        best = np.where(is_right, scores, -np.inf).max(1, keepdims=True)
        ahead = ((scores >= best) & ~is_right).sum(1)
        total += sum(100 * float(np.mean(ahead < k)) for k in (1, 5, 10))
    return total


def single(padded: Padded) -> Padded:
    return replace(padded, values=padded.values.float())


def test_birds_are_evaluated_by_class_beside_their_own_captions(birds: str, tmp_path: Path) -> None:
    fit(small(View("cub", "pcme/train"), View("cub", "pcme/val")), birds, str(tmp_path / "run"))
    report: Report = evaluate(str(tmp_path / "run"), Setup(birds))
    assert (report.split, report.seen, report.chosen) == ("pcme/test", 0, 0)
    assert report.captions == 10 * report.items
    assert set(report.scores) == {"all", "class"}
    own, of_class = (report.scores[name].visual_to_text for name in ("all", "class"))
    assert of_class["R@1 by chance"] > own["R@1 by chance"]
    assert of_class["R@1"] >= own["R@1"]
    assert set(report.metrics.tables["lists"]) == {"own captions", "class"}
    assert "class" in report.to_text()


def test_persons_are_learned_and_evaluated_by_identity(persons: str, tmp_path: Path) -> None:
    """One folder of pictures is lacking, as in recent copies of the archive."""
    tiny = small(View("cuhk_pedes", "cuhk_pedes/train"), View("cuhk_pedes", "cuhk_pedes/val"))
    outcome = fit(tiny, persons, str(tmp_path / "run"))
    assert outcome.steps > 0
    report: Report = evaluate(str(tmp_path / "run"), Setup(persons))
    assert report.split == "cuhk_pedes/test"
    lacking = [
        reader(persons, f"cuhk_pedes/{split}").examples.items_without_features for split in ("train", "val", "test")
    ]
    assert sum(lacking) > 0
    assert report.absent == lacking[2]
    assert report.seen == 0
    assert set(report.scores) == {"all", "identity"}
    chance = {name: row.text_to_visual["R-P by chance"] for name, row in report.metrics.tables["lists"].items()}
    assert chance["identity"] > chance["own captions"]


def test_the_recipe_for_cub_names_splits_that_cub_has(birds: str) -> None:
    there = xmodal.open(birds, "cub").splits
    for recipe in recipes().values():
        if recipe.view.corpus == "cub":
            assert {recipe.view.split, recipe.validation.split} <= there.keys()
            assert isinstance(recipe.phases[0].sampler, OnePerClass)
    fold = recipe_with("pcme-cub", ["view.split=xian1/train", "validation.split=xian1/val"])
    assert {fold.view.split, fold.validation.split} <= there.keys()
