"""The baseline s_g: scores against their definition, and a run that nothing was fitted for."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.cli import main
from pipelines.engine.building import build
from tests.golden import golden
from tests.made import concepts
from tests.tagged_root import PLAIN, SG, make_tagged_root
from tests.toy_root import fit, recipe
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.store import FeatureStore
from xmodal.models import Inputs, Scorer, Solvable, Trainable
from xmodal.models.sg import SGConfig
from xmodal.records.tables import Caption, Split, read_rows
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.training.run_setup import Setup


def scores(s_g: NDArray[np.float32], named: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """(images, captions), of captions by the places of their tags."""
    model = SGConfig().build(Inputs(s_g.shape[1], 4, 0))
    text = Padded.of([(places + 1 if len(places) else np.zeros(1, int)).astype(np.int32) for places in named])
    visual = Padded.whole(torch.from_numpy(s_g)[:, None])
    return np.asarray(model.similarity(model.encode_visual(visual), model.encode_text(text)).numpy())


def test_scores_are_those_of_the_reference() -> None:
    reference = golden("indep_sg_wordnet_baseline")
    found = scores(reference["s_g"], [np.flatnonzero(query) for query in reference["q_khot"]])
    np.testing.assert_allclose(found.T, reference["score"], rtol=1e-6)


@given(st.integers(0, 999))
def test_a_score_is_the_product_of_scores_and_a_query_of_zeros_and_ones(seed: int) -> None:
    random = np.random.default_rng(seed)
    images, captions, tags = random.integers(1, 7, 3).tolist()
    s_g = random.random((images, tags), np.float32)
    queries = random.random((captions, tags)) < random.random()
    expected = [[sum(s_g[image][queries[caption]]) for caption in range(captions)] for image in range(images)]
    np.testing.assert_allclose(scores(s_g, [np.flatnonzero(query) for query in queries]), expected, rtol=1e-5)


def test_it_is_neither_trained_nor_solved() -> None:
    model = SGConfig().build(Inputs(5, 4, 0))
    assert isinstance(model, Scorer)
    assert not isinstance(model, Trainable | Solvable)
    assert model.state_dict() == {}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tagged_root(tmp_path_factory.mktemp("tagged"))[0]


def test_a_run_is_written_without_training_and_evaluated_as_any_other(root: str, tmp_path: Path) -> None:
    outcome = fit(SG, root, run := str(tmp_path / "run"))
    assert (outcome.steps, outcome.trained) == (0, False)
    report = evaluate(run, Setup(root))
    assert report.split == "toy/test"
    found = report.metrics.value("R@1", "visual_to_text")
    assert found == pytest.approx(100 * recall_by_definition(root, "toy/test"))
    assert outcome.rsum > 200  # of 600: tags that are mostly right find what they name
    assert fit(SG, root, run) == outcome


def recall_by_definition(root: str, split: str) -> float:
    """Of images whose best caption, ties against it, is one of their own."""
    tags, texts = FeatureStore(find_output(root, "tags")), FeatureStore(find_output(root, "concepts"))
    records = find_output(root, "records")
    items = [row.item for row in read_rows(records, Split) if row.name == split]
    captions = [row for row in read_rows(records, Caption) if row.item in items]
    s_g = tags.read(items).astype(np.float32)
    hits = 0
    for item, row in zip(items, s_g, strict=True):
        found = [(sum(row[number - 1] for number in texts.read([c.id])[0] if number), c.item == item) for c in captions]
        best = {own: max(score for score, is_own in found if is_own is own) for own in (True, False)}
        hits += best[True] > best[False] + 1e-6
    return hits / len(items)


def test_the_command_line_trains_and_evaluates_it(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    where = ["--root", root, "--run", run]
    assert main(["train", "sg-coco", "--corpus", "pictures", *where]) == 0
    assert re.search(r"sg-coco: rsum \d+\.\d on validation without any training; in ", capsys.readouterr().out)
    assert main(["evaluate", run, "--root", root]) == 0
    assert "R@1" in capsys.readouterr().out


def test_captions_by_the_numbers_of_other_tags_are_refused(tmp_path: Path) -> None:
    root, *_ = make_tagged_root(tmp_path / "one", items=30)
    fit(SG, root, run := str(tmp_path / "run"))
    build(
        concepts(find_output(root, "records"), find_output(root, "tags"), replace(PLAIN, tokenizer="whitespace")),
        open_storage(root),
    )
    with pytest.raises(
        UserError,
        match=r"pictures in .* has several concepts, so say which by --texts IDENTITY; there are: .*tokenizer",
    ):
        fit(SG, root, str(tmp_path / "other"))
    assert evaluate(run, Setup(root)).items  # a run knows which it was
    with pytest.raises(UserError, match=r"has no concepts for .*/resnet/.*: build them"):
        fit(replace(SG, visual=replace(SG.visual, stage="resnet")), root, str(tmp_path / "another"))


def test_what_learns_by_phases_is_refused_without_any(root: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"recipe 'sg-toy' has no phases, but VSEPP is no torch\.nn\.Module that needs no"
    ):
        fit(replace(SG, model=recipe().model), root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
