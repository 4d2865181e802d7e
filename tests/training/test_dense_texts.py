"""Training on captions that are vectors: Two-Branch from end to end, by one process or two, killed or not."""

import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.cli import main
from pipelines.commands.data.prune import _kept
from pipelines.engine.building import build
from pipelines.engine.stage_kind import Needs
from pipelines.stages.texts.codebook import CodebookConfig
from pipelines.stages.texts.sentences import SentencesConfig, captions_in_order, text_stage
from tests.made import sentences
from tests.toy_root import coded, fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import assert_same_run
from tests.training.test_training_together import assert_near, curve, processes, train
from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, Batch, Stream
from xmodal.batches.dataset import open_dataset
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate, open_run
from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore
from xmodal.models.two_branch import SimilarityConfig, TwoBranch, TwoBranchConfig
from xmodal.recipes import Features, Neighbours, Optimiser, Phase, Recipe, Step
from xmodal.records.tables import Item, read_rows
from xmodal.root.outputs import Output
from xmodal.root.selection import ancestor, find_output
from xmodal.root.storage import open_storage
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.run_setup import Setup

SAMPLES = 225  # one more than seven batches: the last one is a single pair
WEIGHTS = {"visual": 1.0, "text": 2.0, "visual_neighbours": 0.0, "text_neighbours": 0.2}
SGD = Optimiser("sgd", 0.1, weight_decay=5e-4, momentum=0.9)
SMALL = TwoBranchConfig(hidden=24, width=16, most=10, dropout=0.3)


def dense(name: str, model: Any, *phases: Phase) -> Recipe:
    return recipe(name=f"toy-{name}", text=Features("sentences"), model=model, phases=phases)


PAPER = dense("paper", SMALL, Phase(2, SGD, WEIGHTS), Phase(1, SGD, WEIGHTS, sampler=Neighbours(2)))
CODE = dense(
    "code",
    replace(SMALL, layout="code", offset=1e-4, neighbour="farthest", statistics="test"),
    Phase(3, Optimiser("adam", 1e-3), WEIGHTS, sampler=Neighbours(3)),
)
SIMILARITY = dense("similarity", SimilarityConfig(hidden=24, width=16), Phase(3, SGD, {"logistic": 1.0}))
RECIPES = {one.name.removeprefix("toy-"): one for one in (PAPER, CODE, SIMILARITY)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("dense"), items=60, absent=(3, 8, 40, 1))
    coded(root)
    assert len(open_dataset(root, "pictures").reader("toy/train").examples.words) == SAMPLES
    return root


def train_all(root: str, folder: str) -> None:
    with distributed.process_group("cpu"):
        for name, known in RECIPES.items():
            train(known, root, f"{folder}/{name}")


@pytest.fixture(scope="module")
def alone(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("alone"))
    train_all(root, folder)
    return folder


@pytest.fixture(scope="module")
def by_two(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("two"))
    assert processes(2, train_all, root, folder) == [0, 0]
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_two_processes_learn_what_one_learns(alone: str, by_two: str, name: str) -> None:
    """With dropout and batch normalisation too: both are of the whole batch, also where one process borrowed a pair."""
    assert len(curve(f"{alone}/{name}")) == 3 * math.ceil(SAMPLES / 32)
    assert_near(f"{alone}/{name}", f"{by_two}/{name}")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_that_is_killed_goes_on(root: str, alone: str, tmp_path: Path, name: str) -> None:
    run = str(tmp_path / "run")
    assert processes(1, train, RECIPES[name], root, run, 3, 14) == [-signal.SIGKILL]
    train(RECIPES[name], root, run, save_every=3)
    assert_same_run(f"{alone}/{name}", run)


def test_a_batch_reads_the_vectors_of_its_captions_and_their_neighbours(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, objective = list[Stream](), TwoBranch.objective

    def watched(model: TwoBranch, batch: Batch) -> Any:
        seen.append(batch.streams[ANNOTATED])
        return objective(model, batch)

    monkeypatch.setattr(TwoBranch, "objective", watched)
    fit(CODE, root, str(tmp_path / "run"))
    data, store = open_dataset(root, "pictures"), FeatureStore(find_output(root, "sentences"))
    examples = data.reader("toy/train", sentences=store).examples
    steps = seen[1:]  # the first one was tried before anything was written
    for stream in steps:
        captions = stream.captions.reshape(-1, 3)
        assert len(captions) == len(stream.visual)
        assert all(len(set(some)) == 3 for some in captions.tolist())
        assert torch.equal(stream.text_items, stream.visual_items.repeat_interleave(3))
        assert torch.equal(stream.positives[:, 0], torch.arange(len(captions)).repeat_interleave(3))
        ids = [examples.caption_ids[caption] for caption in stream.captions.tolist()]
        expected = torch.from_numpy(store.read(ids)).float()
        assert torch.equal(stream.text.values[:, 0], expected)
    firsts = torch.cat([stream.captions[::3] for stream in steps[:8]])
    assert sorted(firsts.tolist()) == list(range(SAMPLES)), "every pair comes once an epoch"


@pytest.mark.parametrize("stage", ["sentences", "concepts", "phrases"])
def test_captions_as_vectors_are_no_pictures(root: str, tmp_path: Path, stage: str) -> None:
    with pytest.raises(UserError, match=f"{stage} has a row a caption, not one a picture or clip: name features of th"):
        fit(recipe(visual=Features(stage)), root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_rows_of_texts_are_told_by_their_ids_not_by_the_name_of_their_stage(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=30)
    records, codebook = find_output(root, "records"), ancestor(coded(root).output, "codebook")
    assert codebook is not None

    def of_pictures(records: Output) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ids = tuple(item.id for item in read_rows(records, Item))
        return ids, ids

    for name, texts_of in {"own_texts": captions_in_order, "own_numbers": of_pictures}.items():
        needs = Needs({"records": records, "codebook": codebook})
        build(text_stage(name, SentencesConfig("float32"), needs, 1, texts_of), open_storage(root))
    with pytest.raises(
        UserError, match="own_texts has a row a caption, not one a picture or clip: name features of th"
    ):
        fit(recipe(visual=Features("own_texts")), root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert open_features(root, "own_numbers", None, records).output.stage == "own_numbers"
    stages = [features.stage for features in open_dataset(root, "pictures").features]
    assert sorted(stages) == ["own_numbers", "resnet"]


def test_what_a_run_of_vectors_remembers(root: str, alone: str) -> None:
    started = run_folder.read(f"{alone}/paper")
    texts = find_output(root, "sentences")
    assert (started.texts, started.text_width) == (texts.identity, FeatureStore(texts).spec.row_shape[0])
    assert started.inputs.text_width == started.text_width
    outcome = fit(PAPER, root, f"{alone}/paper")
    assert (outcome.trained, outcome.words) == (False, 0)


def test_a_run_is_evaluated_on_the_vectors_that_it_was_trained_on(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=60)
    made = coded(root).output
    run = fit(replace(PAPER, phases=PAPER.phases[1:]), root, str(tmp_path / "run")).run
    before = evaluate(run, Setup(root))
    build(
        sentences(find_output(root, "records"), CodebookConfig(method="tfidf", sample=50), SentencesConfig()),
        open_storage(root),
    )
    assert evaluate(run, Setup(root)).scores == before.scores
    opened = open_run(run, Setup(root)).reader.examples.sentences
    assert opened is not None
    assert opened.output.identity == made.identity
    with pytest.raises(UserError, match=r"pictures in .* has several sentences, so say which by --texts IDENTITY"):
        fit(PAPER, root, str(tmp_path / "other"))


def test_the_command_line_trains_on_the_texts_that_are_named_and_prune_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = make_root(tmp_path, items=30), str(tmp_path / "run")
    made = coded(root).output
    other = CodebookConfig(method="tfidf", sample=50)
    build(sentences(find_output(root, "records"), other, SentencesConfig()), open_storage(root))
    small = (
        "model.hidden=16",
        "model.width=8",
        "phase1.epochs=1",
        "batch_size=40",
        "visual.stage=resnet",
        "text.method=tfidf",
    )
    command = ["train", "two-branch-flickr30k-sampling", "--corpus", "pictures", "--root", root, "--run", run]
    assert main([*command, "--texts", made.identity, *(part for one in small for part in ("--set", one))]) == 0
    assert run_folder.read(run).texts == made.identity
    assert main(["evaluate", run, "--root", root]) == 0
    assert "sentence to sentence R@1" in capsys.readouterr().out
    assert made.identity in _kept(run)


def test_statistics_of_the_test_set_are_not_kept(root: str, alone: str) -> None:
    """Validation by its own statistics leaves nothing in the weights; evaluation takes those of its split."""
    names = {name for name in read_tensors(f"{alone}/code", run_folder.BEST) if "running" in name}
    assert names == {f"{side}.norm.running_{what}" for side in ("visual", "text") for what in ("mean", "var")}
    assert evaluate(f"{alone}/code", Setup(root)).scores["all"].rsum > 0


SEEDS = range(3)
LEARNED = {
    "embedding": dense(
        "embedding",
        TwoBranchConfig(hidden=128, width=64, most=20),
        Phase(8, replace(SGD, schedule=Step((6,), 0.1)), WEIGHTS, sampler=Neighbours(2)),
    ),
    "similarity": dense(
        "similarity",
        SimilarityConfig(hidden=128, width=64),
        Phase(12, Optimiser("adam", 2e-3, schedule=Step((9,), 0.1)), {"logistic": 1.0}),
    ),
}


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("larger"), items=240)
    coded(root)
    return root


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LEARNED)
def test_both_networks_learn_the_generated_world(larger: str, tmp_path: Path, name: str, seed: int) -> None:
    """On items that were not trained on."""
    known = replace(LEARNED[name], seed=seed, batch_size=100)
    report = evaluate(fit(known, larger, str(tmp_path / "run")).run, Setup(larger))
    scores = report.scores["all"]
    chance = sum(scores.sums_by_chance.values())
    assert (report.items, report.split) == (23, "toy/test")
    sentence = report.metrics.value("sentence R@1")
    assert (sentence is None) == (name == "similarity")
    assert sentence is None or sentence > 50  # found: by chance 4 of 114
    assert ("sentence to sentence R@1" in report.to_text()) == (name == "embedding")
    assert scores.rsum > 3 * chance  # found: 507 to 554 and 449 to 486, of 600, by chance 131
