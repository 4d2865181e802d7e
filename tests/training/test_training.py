"""Training on a toy root: it learns, says what it did, goes on after any death, and never sees a test split."""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipelines.papers.recipe_runs import recipe_with
from tests.golden import golden
from tests.toy_root import fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from xmodal import find
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.progress import Silence
from xmodal.recipes import Cosine, Features, Optimiser, Phase, Phrases, Plateau, Relative, Step, View
from xmodal.root.storage import LocalStorage
from xmodal.text.vocabularies import SPECIALS
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.fit import Outcome
from xmodal.training.optimisers import rate, total
from xmodal.training.run_setup import Setup

ADAM = Optimiser("adam", 5e-3)
ABSENT = (3, 8, 40)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=60, absent=ABSENT)


@pytest.fixture(scope="module")
def whole(root: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three epochs without any trouble."""
    return fit(recipe(3), root, str(tmp_path_factory.mktemp("run") / "whole"))


def log(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run) / run_folder.LOG).read_text().splitlines()]


def contents(run: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(run).iterdir() if path.is_file()}


def assert_same_run(one: str, other: str) -> None:
    for name in (run_folder.LOG, run_folder.RECIPE, run_folder.VOCABULARY):
        assert (Path(one) / name).read_bytes() == (Path(other) / name).read_bytes(), name
    for name in (run_folder.LAST, run_folder.BEST):
        assert_same(read_tensors(one, name), read_tensors(other, name))


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_it_learns_what_it_was_shown(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=60)
    (phase,) = recipe(10).phases
    last = recipe(phases=(replace(phase, validate_every=10),))  # so that the weights kept are those of the last epoch
    run = fit(last, root, str(tmp_path / "run")).run
    report = evaluate(run, Setup(root), "toy/train")
    scores = report.scores["all"]
    chance = scores.sums_by_chance["rsum"]
    assert scores.rsum > 3 * chance
    assert (report.seen, report.items) == (48, 48)
    assert "48 items, 240 captions; 48 of them were trained on" in report.to_text()
    losses = [line["loss"] for line in log(run) if "loss" in line]
    assert losses[-1] < losses[0]


def test_a_run_says_what_it_was_trained_on_and_keeps_its_best(root: str, whole: Outcome) -> None:
    run = run_folder.read(whole.run)
    assert run.recipe == recipe(3)
    assert (run.records, run.features) == (find(root, "records")[0].identity, find(root, "resnet")[0].identity)
    assert run.vocabulary.words[4] in ("a", ".")
    assert (run.visual_width, run.instances) == (64, 46)
    rsums = [line["rsum"] for line in log(whole.run) if "rsum" in line]
    assert len(rsums) == 3
    known = {"words": len(run_folder.read(whole.run).vocabulary) - len(SPECIALS), "known_words": whole.known_words}
    assert whole == Outcome(whole.run, max(rsums), 1, 1 + rsums.index(max(rsums)), 3 * 8, trained=True, **known)
    assert [line["step"] for line in log(whole.run) if "loss" in line] == [0, 10, 20]


def test_equal_runs_are_equal_and_another_seed_is_not(root: str, whole: Outcome, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    again = fit(recipe(3), root, str(tmp_path / "again"))
    assert torch.equal(state, torch.get_rng_state()), "the caller's own randomness is left alone"
    assert_same_run(whole.run, again.run)
    other = fit(recipe(3, seed=1), root, str(tmp_path / "other"))
    assert log(other.run)[1] != log(whole.run)[1]


class Death(Silence):
    """Ends the process, or only the call, at a chosen tick."""

    def __init__(self, after: int, die: Callable[[], None]) -> None:
        self._left, self._die = after, die

    @contextmanager
    def over(self, name: str, total: int, done: int = 0, unit: str = "units") -> Iterator[Callable[[int], None]]:
        yield self._tick

    def _tick(self, count: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._die()


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("after", [1, 8, 9, 10, 14, 20, 28, 30])
def test_a_run_that_was_interrupted_anywhere_ends_as_if_it_had_not_been(
    root: str, whole: Outcome, tmp_path: Path, after: int
) -> None:
    run = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(3), root, run, progress=Death(after, interrupt))
    outcome = fit(recipe(3), root, run)
    assert outcome == replace(whole, run=run)
    assert_same_run(whole.run, run)


def test_a_run_that_was_killed_ends_as_if_it_had_not_been(root: str, whole: Outcome, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code = (
        "import sys, torch; torch.set_num_threads(1);"
        "from tests.training.test_training import Death, fit, kill, recipe;"
        "fit(recipe(3), sys.argv[1], sys.argv[2], progress=Death(15, kill))"
    )
    killed = subprocess.run([sys.executable, "-c", code, root, run], cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert fit(recipe(3), root, run) == replace(whole, run=run)
    assert_same_run(whole.run, run)


def test_a_finished_run_is_left_as_it_is(root: str, whole: Outcome) -> None:
    before = contents(whole.run)
    assert fit(recipe(3), root, whole.run, progress=Death(1, interrupt)) == replace(whole, trained=False)
    assert contents(whole.run) == before


def test_another_recipe_in_the_same_folder_is_refused(root: str, whole: Outcome) -> None:
    with pytest.raises(
        UserError, match=r"holds another run: phase1\.epochs is 3 there and 4 here: choose another folder"
    ):
        fit(recipe(4), root, whole.run)


class Watcher(Death):
    """Does something at a chosen tick, and hears what is said."""

    def __init__(self, after: int = 0, act: Callable[[], None] = interrupt) -> None:
        super().__init__(after, act)
        self.said = list[str]()

    def say(self, text: str) -> None:
        self.said.append(text)


def test_a_folder_takes_one_training_at_a_time(root: str, whole: Outcome, tmp_path: Path) -> None:
    """The second is refused, and the first is not disturbed by it."""
    run, refused = str(tmp_path / "run"), list[str]()

    def second() -> None:
        with pytest.raises(UserError) as found:
            fit(recipe(3), root, run)
        refused.append(str(found.value))

    assert fit(recipe(3), root, run, progress=Death(11, second)) == replace(whole, run=run)
    us = f"process {os.getpid()} on {socket.gethostname()}"
    assert refused == [f"{run} is being trained by {us}: wait for it, or choose another folder"]
    assert_same_run(whole.run, run)


def test_a_training_that_was_killed_holds_its_folder_no_longer(root: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code = (
        "import sys, time; from xmodal.training import run_folder\n"
        "with run_folder.held(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, run], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match=f"{run} is being trained by process {other.pid} on "):
            fit(recipe(1), root, run)
        assert not (tmp_path / "run" / run_folder.RECIPE).exists()
        other.kill()
    assert fit(recipe(1), root, run).trained


def test_a_batch_size_beyond_the_corpus_is_told(root: str, tmp_path: Path) -> None:
    exact, beyond = Watcher(), Watcher()
    fit(recipe(1, batch_size=230), root, str(tmp_path / "exact"), progress=exact)
    fit(recipe(1, batch_size=1000), root, str(tmp_path / "beyond"), progress=beyond)
    told = "batch_size 1,000 is more than the 230 captions there are: every epoch is one step of them all"
    assert told in beyond.said
    assert not [line for line in exact.said if "batch_size" in line]


def test_one_item_to_choose_on_is_told(root: str, tmp_path: Path) -> None:
    one, several = Watcher(), Watcher()
    fit(recipe(1), make_root(tmp_path, 10), str(tmp_path / "1"), progress=one)
    fit(recipe(1), root, str(tmp_path / "2"), progress=several)
    told = "one item to choose on is always found: R@1 is 100, and the first epoch stays the best"
    assert (told in one.said, told in several.said) == (True, False)


def test_weights_of_terms_that_the_objective_lacks_are_refused_before_anything_is_written(
    root: str, tmp_path: Path
) -> None:
    (phase,) = recipe(1).phases
    wrong = replace(phase, weights={"mail": 1.0})
    with pytest.raises(UserError, match="the objective has the terms ranking, but a phase weighs mail: "):
        fit(recipe(phases=(phase, wrong)), root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_in_place_of_a_file_is_refused(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    for run in ("file", "file/run"):
        with pytest.raises(UserError, match=f"run .*/{run} cannot be written .*: choose another folder"):
            fit(recipe(1), root, str(tmp_path / run))
    assert (tmp_path / "file").read_text() == "here"


@pytest.mark.parametrize("name", [run_folder.LAST, run_folder.BEST])
def test_what_is_told_of_damaged_weights_mends_the_run(root: str, whole: Outcome, tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    fit(recipe(3), root, str(run))
    (run / name).write_bytes((run / name).read_bytes()[:-100])
    with pytest.raises(UserError, match=rf"{name} is damaged .*: remove {run}/last\.pt and train again") as found:
        fit(recipe(3), root, str(run)) if name == run_folder.LAST else evaluate(str(run), Setup(root), "toy/test")
    assert "\n" not in str(found.value)
    (run / run_folder.LAST).unlink()
    fit(recipe(3), root, str(run))
    assert_same_run(whole.run, str(run))


def test_a_phase_starts_from_the_weights_of_the_one_before_and_leaves_what_is_frozen(
    root: str, whole: Outcome, tmp_path: Path
) -> None:
    (first,) = recipe(3).phases
    frozen = Phase(2, ADAM, {"ranking": 1.0}, frozen=("words.*", "image.*"), validate_every=2)
    two = recipe(phases=(first, frozen))
    outcome = fit(two, root, str(tmp_path / "two"))
    before, after = (read_tensors(run, run_folder.LAST)["model"] for run in (whole.run, outcome.run))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith("sentence.")}
    assert [line["epoch"] for line in log(outcome.run) if "rsum" in line and line["phase"] == 2] == [2]


def test_an_interrupted_second_phase_goes_on_too(root: str, tmp_path: Path) -> None:
    two = recipe(phases=(Phase(1, ADAM, {"ranking": 1.0}), Phase(2, replace(ADAM, rule="sgd"), {"ranking": 1.0})))
    whole = fit(two, root, str(tmp_path / "whole"))
    for after in (11, 21):
        run = str(tmp_path / f"run{after}")
        with pytest.raises(KeyboardInterrupt):
            fit(two, root, run, progress=Death(after, interrupt))
        fit(two, root, run)
        assert_same_run(whole.run, run)


def test_what_a_phase_freezes_is_not_in_its_gradient_norm(root: str, tmp_path: Path) -> None:
    first = Phase(1, ADAM, {"ranking": 1.0})
    second = Phase(1, replace(ADAM, clip_norm=1e-3), {"ranking": 1.0}, frozen=("words.*", "image.*"))
    whole = fit(recipe(phases=(first, second)), root, str(tmp_path / "whole"))
    run = str(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):  # in the first step of the second phase
        fit(recipe(phases=(first, second)), root, run, progress=Death(11, interrupt))
    fit(recipe(phases=(first, second)), root, run)
    assert_same_run(whole.run, run)


def test_items_that_are_trained_on_cannot_choose(root: str, tmp_path: Path) -> None:
    same = recipe(validation=View("pictures", "toy/train"))
    with pytest.raises(UserError, match=r"46 items are in both 'toy/train' and 'toy/train', such as 'p0000'"):
        fit(same, root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(
    root: str, whole: Outcome, tmp_path: Path, device: str
) -> None:
    for call in (
        lambda: fit(recipe(), root, str(tmp_path / "run"), device=device),
        lambda: evaluate(whole.run, Setup(root, device=device), "toy/test"),
    ):
        with pytest.raises(UserError, match=f"device '{device}'") as found:
            call()
        assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


def test_threads_are_the_callers_again_afterwards(root: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(), root, str(tmp_path / "run"), threads=2, progress=Death(1, interrupt))
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda saved: [saved],
        lambda saved: {},
        lambda saved: saved | {"state": {"phases": 1}},
        lambda saved: saved | {"state": saved["state"] | {"epoch": "1"}},
        lambda saved: saved | {"state": saved["state"] | {"phase": 7}},
        lambda saved: {name: saved[name] for name in ("state", "model")},
        lambda saved: saved | {"optimiser": {"state": {}, "param_groups": []}},
    ],
)
def test_a_spoiled_state_is_refused(root: str, tmp_path: Path, spoil: Callable[[Any], Any]) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(recipe(), root, str(run), progress=Death(11, interrupt))
    torch.save(spoil(read_tensors(str(run), run_folder.LAST)), run / run_folder.LAST)
    with pytest.raises(UserError, match=r"last\.pt is (damaged|no state of this run)"):
        fit(recipe(), root, str(run))


def test_features_of_another_media_set_are_refused(root: str, tmp_path: Path) -> None:
    own, other = (make_root(tmp_path / name, items=30, media=name) for name in ("pictures", "others"))
    run = fit(recipe(1), own, str(tmp_path / "run")).run
    with pytest.raises(
        UserError,
        match=r"has features of the media set 'others', but pictures is of 'pictures': .*xmodal build pictures/resnet",
    ):
        fit(recipe(1), other, str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    assert evaluate(run, Setup(own), "toy/test").items == 2


class Watched(Silence):
    """Notes what is said, and how many lines the log has after every tick."""

    def __init__(self, run: Path) -> None:
        self.said, self.lines, self.log = list[str](), list[int](), run / run_folder.LOG

    def say(self, text: str) -> None:
        self.said.append(text)

    @contextmanager
    def over(self, name: str, total: int, done: int = 0, unit: str = "units") -> Iterator[Callable[[int], None]]:
        self.said.append(name)
        yield lambda count: self.lines.append(len(self.log.read_bytes().splitlines()) if self.log.exists() else 0)


def test_the_log_can_be_read_while_a_run_goes_on_and_counts_from_one(root: str, tmp_path: Path) -> None:
    watched = Watched(tmp_path / "run")
    fit(recipe(2), root, str(tmp_path / "run"), progress=watched)
    assert watched.lines[0] == 1, "the first step is in the log before anything is saved"
    assert [name for name in watched.said if name.startswith("epoch")] == ["epoch 1", "epoch 2"]
    assert {(line["phase"], line["epoch"]) for line in log(str(tmp_path / "run"))} == {(1, 1), (1, 2)}


def test_a_run_says_how_many_words_it_knows_and_needs_some(root: str, tmp_path: Path) -> None:
    watched = Watched(tmp_path / "few")
    text = recipe(1).text
    few = fit(recipe(1, text=replace(text, minimum_count=40)), root, str(tmp_path / "few"), progress=watched)
    every = fit(recipe(1, text=replace(text, minimum_count=1)), root, str(tmp_path / "every"))
    assert every.known_words == 1.0
    assert 0 < few.known_words < 1
    assert few.words == len(run_folder.read(few.run).vocabulary) - len(SPECIALS) < every.words
    unknown = f"{1 - few.known_words:.1%} of the captions' words are not in it"
    assert f"vocabulary: {few.words} words; {unknown}" in watched.said
    with pytest.raises(UserError, match=r"no word of the captions is in the vocabulary.*text\.minimum_count=9999"):
        fit(recipe(1, text=replace(text, minimum_count=9999)), root, str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_a_training_reads_the_captions_once(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, plain = list[str](), LocalStorage.open
    monkeypatch.setattr(LocalStorage, "open", lambda self, key: opened.append(key) or plain(self, key))
    fit(recipe(1), root, str(tmp_path / "run"))
    assert sum(key.endswith("captions.parquet") for key in opened) == 1


def test_settings_reach_the_views() -> None:
    changed = recipe_with("vsepp", ["view.captions_per_item=none", "validation.captions_per_item=2"])
    assert (changed.view.captions_per_item, changed.validation.captions_per_item) == (None, 2)
    with pytest.raises(UserError, match=r"--set view\.split=karpathy/test: .* would train or choose on split"):
        recipe_with("vsepp", ["view.split=karpathy/test"])


def test_a_loss_that_is_no_number_stops_the_run_and_names_the_step(root: str, tmp_path: Path) -> None:
    steep = Phase(1, replace(ADAM, rule="sgd", learning_rate=1e38), {"ranking": 1.0})
    wild = recipe(phases=(steep,))
    with pytest.raises(UserError, match=r"is (nan|inf) at step \d+ \(phase 1, epoch 1\); the terms were: ranking"):
        fit(wild, root, str(tmp_path / "run"))
    assert not (tmp_path / "run" / run_folder.BEST).exists()


def test_a_test_split_cannot_reach_fit() -> None:
    assert not [name for name in inspect.signature(fit).parameters if "test" in name or "split" in name]
    for view in ("view", "validation"):
        with pytest.raises(ValueError, match="would train or choose on split 'toy/test'"):
            replace(recipe(), **{view: View("pictures", "toy/test")})  # type: ignore[arg-type]


def test_where_there_are_several_outputs_one_must_be_named(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=30, features=2)
    told = (
        r"several outputs of resnet, so say which by --features IDENTITY; there are: \w+ \(seed=\d\), \w+ \(seed=\d\)$"
    )
    with pytest.raises(UserError, match=told):
        fit(recipe(1), root, str(tmp_path / "run"))
    chosen = find(root, "resnet")[1].identity
    assert run_folder.read(fit(recipe(1), root, str(tmp_path / "run"), features=chosen).run).features == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text": Features("fisher"), "unannotated": View("pictures", "toy/val", text="semantics")},
            "dense texts beside un-annotated items",
        ),
        ({"phases": ()}, "captions as words, but no phases"),
        ({"phases": (Phase(1, ADAM, {"ranking": 1.0}, sampler=Phrases(0.7, 0.3, 1)),)}, "a sampler"),
    ],
)
def test_what_training_cannot_do_yet_is_refused(root: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"'toy' asks for what training cannot do: {message}"):
        fit(recipe(**changes), root, "nowhere")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "phase",
    [
        Phase(1, ADAM, {"ranking": 1.0}, frozen=("word.*",)),
        Phase(1, replace(ADAM, multipliers=(("word.*", 0.1),)), {"ranking": 1.0}),
        Phase(1, replace(ADAM, unclipped=("word.*",)), {"ranking": 1.0}),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(root: str, tmp_path: Path, phase: Phase) -> None:
    with pytest.raises(UserError, match=r"no parameter is named 'word\.\*'; there are: image.weight"):
        fit(recipe(phases=(phase,)), root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_multipliers_and_every_optimiser_reach_the_parameters(root: str, tmp_path: Path) -> None:
    for rule, momentum in (("adam", 0.0), ("amsgrad", 0.0), ("sgd", 0.9), ("nesterov", 0.9)):
        optimiser = Optimiser(rule, 1e-3, momentum=momentum, multipliers=(("words.*", 0.5), ("image.*", 2.0)))  # type: ignore[arg-type]
        run = fit(recipe(phases=(Phase(1, optimiser, {"ranking": 1.0}),)), root, str(tmp_path / rule)).run
        assert log(run)[0]["rates"] == [0.0005, 0.001, 0.002]


def rates(schedule: Plateau | Cosine | Step | None, epochs: int, first: float) -> list[float]:
    return [rate(Optimiser("adam", first, schedule=schedule), epoch, []) for epoch in range(epochs)]


@pytest.mark.parametrize(
    ("name", "schedule", "first"),
    [
        ("vsepp_step", Step((15,), 0.1), 2e-4),
        ("pcme_coco_cosine", Cosine(30), 2e-4),
        ("pcme_cub_cosine", Cosine(50), 1e-4),
    ],
)
def test_schedules_are_those_of_the_official_code(name: str, schedule: Step | Cosine, first: float) -> None:
    expected = golden("lr_schedules")[name].astype(float) / 1e4
    np.testing.assert_allclose(rates(schedule, len(expected), first), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["noise", "slow rises"])
def test_a_plateau_is_counted_as_torch_counts_it(kind: str) -> None:
    plateau, random = Plateau(0.5, patience=2, minimum=1e-3), np.random.default_rng(0)
    weights = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(weights, "max", 0.5, 2, min_lr=1e-3, eps=0)
    rises = 400 + random.uniform(0, 0.03, 60).cumsum()  # a rise is 0.04 at least
    rsums = (random.integers(0, 50, 60).astype(float) if kind == "noise" else rises).tolist()
    for epoch, rsum in enumerate(rsums):
        theirs.step(rsum)
        ours = rate(Optimiser("sgd", 1.0, schedule=plateau), epoch, rsums[: epoch + 1])
        assert ours == pytest.approx(weights.param_groups[0]["lr"])


def test_relative_weights_are_constants() -> None:
    main, extra = torch.tensor(8.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    loss = total({"main": main, "extra": extra}, {"main": 2.0, "extra": Relative(0.1, to="main")})
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(16.8)
    assert [float(leaf.grad or 0) for leaf in (main, extra)] == pytest.approx([2.0, 0.4])
    with pytest.raises(UserError, match="the objective has the terms main, but a phase weighs mail: "):
        total({"main": main}, {"mail": 1.0})
