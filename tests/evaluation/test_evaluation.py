"""Evaluation of runs: the numbers are those of the whole matrix, and damaged or foreign runs are refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pipelines.cli import main
from pipelines.engine.building import build
from tests import toy_root
from tests.features.test_open import records_root
from tests.toy_root import Facts, facts, fit, item_id, make_root, recipe
from tests.toy_root import one_thread as one_thread
from xmodal import find
from xmodal.batches.batch import Padded
from xmodal.batches.examples import Examples
from xmodal.batches.reader import Reader
from xmodal.batches.texts import Texts
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate, load
from xmodal.features.store import FeatureStore
from xmodal.metrics.reports import OWN
from xmodal.progress import Silence
from xmodal.recipes import View
from xmodal.root.storage import open_storage
from xmodal.training import run_folder
from xmodal.training.run_setup import Setup
from xmodal.training.validation import measure


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=120, absent=(9,))


@pytest.fixture(scope="module")
def run(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return fit(recipe(3), root, str(tmp_path_factory.mktemp("run") / "run")).run


@pytest.fixture
def copy(run: str, tmp_path: Path) -> Path:
    """A run that a test may spoil."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_a_run_without_a_test_split_beside_its_training_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = records_root(tmp_path, {"one/train": list(range(6)), "one/val": [6, 7], "all/test": [8, 9]})
    view, validation = (View("pictures", f"one/{part}", captions_per_item=5) for part in ("train", "val"))
    run = fit(recipe(1, view=view, validation=validation), root, str(tmp_path / "run")).run
    assert main(["evaluate", run, "--root", root]) == 1
    said = capsys.readouterr().err
    assert "was trained on one/train: say with --split what to ask it; pictures has no split 'one/test'" in said
    assert "there are: all/test, one/train, one/val" in said
    assert main(["evaluate", run, "--root", root, "--split", "all/test"]) == 0


def test_weights_that_are_not_finite_are_one_line_that_names_a_pair(
    root: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = torch.load(copy / "best.pt", weights_only=True)
    torch.save({name: torch.full_like(value, torch.nan) for name, value in state.items()}, copy / "best.pt")
    assert main(["evaluate", str(copy), "--root", root, "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("xmodal: toy/test of pictures cannot be evaluated: the similarity of ")
    assert "is nan; only finite numbers can be ranked" in said


def reader(root: str, run: str, split: str) -> Reader:
    started, store = run_folder.read(run), FeatureStore(find(root, "resnet")[0])
    view = replace(started.recipe.validation, split=split)
    return Reader(Examples.of(find(root, "records")[0], view, store, started.vocabulary), store)


def slow_recalls(matrix: Tensor, owners: list[int]) -> list[float]:
    """Six recalls by the definition, one query at a time."""
    right = torch.tensor(owners)[None] == torch.arange(len(matrix))[:, None]
    recalls = []
    for scores, answers in ((matrix, right), (matrix.T, right.T)):
        for k in (1, 5, 10):
            best = torch.where(answers, scores, -torch.inf).max(dim=1, keepdim=True).values
            ahead = ((scores >= best) & ~answers).sum(dim=1)
            recalls.append(100 * (ahead < k).double().mean().item())
    return recalls


def test_a_report_has_the_numbers_of_the_whole_matrix(root: str, run: str) -> None:
    report, model, test = evaluate(run, Setup(root), "toy/test"), load(run), reader(root, run, "toy/test")
    with torch.no_grad():
        visual, text = test.visual(slice(None)), test.text(slice(None))
        matrix = model.similarity(model.encode_visual(Padded.whole(visual.values.float())), model.encode_text(text))
    scores = report.scores["all"]
    found = [side[f"R@{k}"] for side in (scores.visual_to_text, scores.text_to_visual) for k in (1, 5, 10)]
    assert found == pytest.approx(slow_recalls(matrix, test.examples.caption_items.tolist()))
    assert scores.rsum == pytest.approx(sum(found))
    assert (report.items, report.captions, report.absent, report.silent) == (10, 50, 1, 0)
    assert (report.split, report.relevance, list(report.scores)) == ("toy/test", OWN, ["all"])
    chances = [scores.text_to_visual[f"R@{k} by chance"] for k in (1, 5, 10)]
    assert chances == pytest.approx([10.0, 50.0, 100.0])


def test_what_was_chosen_on_validation_is_what_is_evaluated(root: str, run: str) -> None:
    log = [json.loads(line) for line in (Path(run) / run_folder.LOG).read_text().splitlines()]
    best = max(line["rsum"] for line in log if "rsum" in line)
    assert evaluate(run, Setup(root), "toy/val").scores["all"].rsum == best


@pytest.mark.parametrize("blocks", [(1, 1), (3, 7), (4, 1000)])
def test_tiles_equal_the_whole(root: str, run: str, blocks: tuple[int, int]) -> None:
    model, train = load(run), reader(root, run, "toy/train")
    assert measure(model, train, Silence(), blocks=blocks) == measure(model, train, Silence())


def test_reports_are_read_by_people_and_by_programs(root: str, run: str) -> None:
    report = evaluate(run, Setup(root), "toy/test")
    plain = json.loads(report.to_json())
    assert plain["scores"]["all"]["rsum"] == report.scores["all"].rsum
    assert plain["scores"]["all"]["visual_to_text"]["recall"]["5"] == report.scores["all"].visual_to_text["R@5"]
    assert (plain["seen"], plain["weights"]) == (0, "toynet random:0 (sha256 abcd)")
    assert run_folder.read(run).weights == plain["weights"]
    assert plain["features"] == f"resnet/{find(root, 'resnet')[0].identity}"
    text = report.to_text()
    assert "toy/test: 10 items, 50 captions; left out: 1 without features, 0 without captions" in text
    assert OWN in text
    assert plain["weights"] in text
    assert "trained on" not in text
    (recalls,) = [line for line in text.splitlines() if line.startswith("all ")]
    chance = text.splitlines()[text.splitlines().index(recalls) + 1]
    assert recalls.split()[-1] == f"{report.scores['all'].rsum:.1f}"
    assert chance.split()[:2] == ["by", "chance"]
    heads = [line for line in text.splitlines() if line.startswith("gallery ")]
    assert len(chance) == len(recalls) == len(heads[0])
    of_text = report.metrics.tables["lists"]["own captions"].text_to_visual
    assert plain["lists"]["own captions"]["text_to_visual"]["r_precision"] == of_text["R-P"]
    assert of_text["R-P"] == pytest.approx(report.scores["all"].text_to_visual["R@1"])


class Oracle:
    """Knows where half of the items are by one feature each, and cannot tell the others apart."""

    def encode_visual(self, visual: Padded) -> Tensor:
        return visual.values[:, 0, 0]

    def encode_text(self, text: Padded) -> Tensor:
        return text.values[:, 1].float()

    def similarity(self, visual: Tensor, text: Tensor) -> Tensor:
        return -(visual[:, None] - text).abs()


def test_two_thousand_items_are_evaluated_in_folds_of_one_thousand_too(tmp_path: Path) -> None:
    items = 2000
    store = FeatureStore(build(facts(Facts(items, shown="number", width=2)), open_storage(str(tmp_path))))
    words = Texts.of(np.array([1, number, 2], np.int32) for number in range(items))
    ids = tuple(map(item_id, range(items)))
    examples = Examples(ids, store.rows(ids), ids, np.arange(items), words)
    scores = measure(Oracle(), Reader(examples, store), Silence())
    assert (list(scores), scores["all"].galleries, scores["1K"].galleries) == (["all", "1K"], 1, 2)
    assert scores["all"].visual_to_text["R@1"] == scores["1K"].visual_to_text["R@1"] == 100
    assert scores["1K"].visual_to_text["R@1 by chance"] == pytest.approx(
        2 * scores["all"].visual_to_text["R@1 by chance"]
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (run_folder.BEST, None, r"has no best\.pt: train it first"),
        (run_folder.BEST, b"", r"best\.pt is damaged"),
        (run_folder.BEST, b"PK\x03\x04 not a zip after all", r"best\.pt is damaged"),
        (run_folder.BEST, b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.", r"best\.pt is damaged"),
        (run_folder.RECIPE, None, r"is no run: it has no recipe\.json"),
        (run_folder.VOCABULARY, None, r"vocabulary\.txt is missing"),
    ],
)
def test_a_damaged_run_is_refused(copy: Path, name: str, change: bytes | None, message: str) -> None:
    (copy / name).unlink()
    if change is not None:
        (copy / name).write_bytes(change)
    with pytest.raises(UserError, match=message):
        load(str(copy))


def test_weights_of_another_network_are_refused(root: str, copy: Path, tmp_path: Path) -> None:
    wider = recipe(1, model=replace(recipe().model, width=48))  # type: ignore[type-var]
    shutil.copy(Path(fit(wider, root, str(tmp_path / "wider")).run) / run_folder.BEST, copy / run_folder.BEST)
    with pytest.raises(UserError, match=r"best\.pt are no weights of its recipe"):
        load(str(copy))


@pytest.mark.parametrize("spoiled", [[1], {1: torch.zeros(1)}, {"image.weight": "text"}])
def test_a_checkpoint_that_holds_no_weights_is_refused(copy: Path, spoiled: object) -> None:
    torch.save(spoiled, copy / run_folder.BEST)
    with pytest.raises(
        UserError, match=r"best\.pt (is damaged \(it holds a list, no tensors\): remove .*last\.pt|are no weights)"
    ):
        load(str(copy))


def test_weights_cut_or_changed_anywhere_are_refused(copy: Path) -> None:
    data = (copy / run_folder.BEST).read_bytes()
    tensors = range(len(data) // 4, len(data) // 2, len(data) // 40)
    changed = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in tensors]
    for damaged in [data[:length] for length in np.linspace(1, len(data) - 1, 12).astype(int)] + changed:
        (copy / run_folder.BEST).write_bytes(damaged)
        with pytest.raises(UserError, match=r"best\.pt is damaged"):
            load(str(copy))


def test_features_of_no_named_network_are_told_by_their_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_root, "TOLD", {})
    root = make_root(tmp_path / "root")
    report = evaluate(fit(recipe(1), root, str(tmp_path / "run")).run, Setup(root), "toy/test")
    assert report.weights == "stage resnet"


def test_a_run_is_evaluated_on_what_it_was_trained_on_or_not_at_all(run: str, tmp_path: Path) -> None:
    elsewhere = make_root(tmp_path, items=30)
    with pytest.raises(UserError, match=f"no records of pictures is {run_folder.read(run).records}; there are: "):
        evaluate(run, Setup(elsewhere), "toy/val")


def test_features_that_are_gone_are_asked_for_by_their_identity_and_command(
    root: str, run: str, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(root, bare)
    shutil.rmtree(bare / "resnet")
    settings = f"build it first, with the settings of {run_folder.read(run).features}"
    with pytest.raises(UserError, match=rf"{settings} \(`xmodal build pictures/resnet --root {bare}`\)"):
        evaluate(run, Setup(str(bare)), "toy/val")


def test_a_split_that_is_not_there_is_refused(root: str, run: str) -> None:
    with pytest.raises(UserError, match="has no split 'karpathy/test'; there are: toy/train"):
        evaluate(run, Setup(root), "karpathy/test")


def test_extended_matches_are_read_before_anything_is_compared(root: str, run: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"eccv_image_to_caption\.json is not there: --eccv takes the folder"):
        evaluate(run, Setup(root), "toy/test", extended=tmp_path)
