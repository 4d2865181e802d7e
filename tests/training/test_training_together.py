"""Several processes train as one does, and a run that was killed anywhere goes on, with any number of them.

Processes are forked from a server that has imported torch once: a rank then costs what it computes.
"""

import json
import math
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.ray_runner import disconnect
from pipelines.papers.recipe_runs import train_on_ray
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.toy_root import PICTURES, Facts, facts, fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import Death, assert_same, assert_same_run, contents, interrupt, kill, log
from xmodal.batches import distributed
from xmodal.batches.batch import ANNOTATED, Batch, Stream
from xmodal.batches.dataset import open_dataset
from xmodal.batches.loader import Loader
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.metrics.protocols import headline
from xmodal.models import pcme
from xmodal.models.corr_ae import CorrAEConfig
from xmodal.models.dan import DANConfig
from xmodal.models.devise import DeViSEConfig
from xmodal.models.dual_path import DualPathConfig
from xmodal.models.order_embeddings import OrderConfig
from xmodal.models.pcme import PCMEConfig
from xmodal.models.pvse import PVSEConfig
from xmodal.models.scan import SCANConfig
from xmodal.progress import Silence
from xmodal.raw.raw_files import Raw
from xmodal.recipes import Candidates, Config, OnePerClass, Optimiser, Phase, Recipe, Tokens, View
from xmodal.records.tables import Label, Row
from xmodal.root.storage import open_storage
from xmodal.training import fit as fitting
from xmodal.training import run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.run_setup import Setup

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__, "nltk.tokenize.destructive", "torch._dynamo"])  # what a first step imports
TIME = 90  # seconds after which processes wait for each other for ever
HERE = Path(__file__).parents[2]
CLASSES = 6
SAMPLES = 225

PVSE = recipe(
    name="toy-pvse",
    model=PVSEConfig(width=16, word_width=12, embeddings=2),
    phases=(Phase(3, Optimiser("amsgrad", 5e-3, clip_norm=2.0), {"ranking": 1.0, "diversity": 0.1, "mmd": 0.01}),),
)
PCME = recipe(
    name="toy-pcme",
    model=PCMEConfig(width=16, word_width=12, samples=3, scale=5.0, shift=5.0, uniformity="distinct"),
    text=Tokens("nltk", minimum_count=2, marked=0.1, deleted=0.1),
    phases=(
        Phase(
            3,
            Optimiser("adamp", 2e-3, clip_norm=2.0, unclipped=("scale", "shift")),
            {"matching": 1.0, "uniformity": 10.0, "kl": 1e-3},
        ),
    ),
)
SCAN = recipe(3, name="toy-scan", model=SCANConfig(width=16, word_width=12))  # captions of any length are gathered
BASELINES: dict[str, Config] = {
    "dan": DANConfig(width=16, word_width=12, margin=1.0),
    "devise": DeViSEConfig(width=16, word_width=12),
    "order": OrderConfig(width=16, word_width=12),
}
NESTEROV = Optimiser("nesterov", 2e-3, weight_decay=1e-4, momentum=0.9, clip_norm=2.0)
CORR_AE = recipe(
    name="toy-corrae",
    model=CorrAEConfig(width=16),
    phases=(Phase(3, Optimiser("adam", 5e-3), {"reconstruction": 0.8, "correlation": 0.2}),),
)
DUAL_PATH = recipe(  # dropout and shifts are drawn for whole batches, and hardest texts found among those of all
    name="toy-dualpath",
    model=DualPathConfig((1, 1, 1, 1), channels=16, width=32, word_width=12, length=16, dropout=0.2),
    phases=(
        Phase(2, NESTEROV, {"instance_visual": 1.0, "instance_text": 1.0, "ranking": 0.0}),
        Phase(1, NESTEROV, {"instance_visual": 1.0, "instance_text": 1.0, "ranking": 0.1}, sampler=Candidates(12)),
    ),
)
RECIPES = {"vsepp": recipe(3), "pvse": PVSE, "pcme": PCME, "scan": SCAN, "corrae": CORR_AE, "dualpath": DUAL_PATH} | {
    name: recipe(3, name=f"toy-{name}", model=model) for name, model in BASELINES.items()
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An odd number of captions: two processes cannot share the last batch of an epoch equally."""
    root = make_root(tmp_path_factory.mktemp("toy"), items=60, absent=(3, 8, 40, 1), places=2)
    assert len(open_dataset(root, "pictures").reader("toy/train").examples.words) == SAMPLES
    return root


def train(recipe: Recipe, root: str, run: str, save_every: int = 500, dies_after: int = 0, **settings: Any) -> None:
    """Every step is logged; `dies_after` so many ticks of progress the first process kills itself."""
    before = fitting.LOG_EVERY, fitting.SAVE_EVERY
    fitting.LOG_EVERY, fitting.SAVE_EVERY = 1, save_every
    try:
        fit(recipe, root, run, progress=Death(dies_after, kill) if dies_after else Silence(), **settings)
    finally:
        fitting.LOG_EVERY, fitting.SAVE_EVERY = before


def train_all(root: str, folder: str) -> None:
    with distributed.process_group("cpu"):
        for name, known in RECIPES.items():
            train(known, root, f"{folder}/{name}")


def train_often(root: str, folder: str) -> None:
    for seed in range(5):
        fit(recipe(1, seed=seed), root, f"{folder}/{seed}")


def rank_of(rank: int, world: int, port: int, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """As torchrun starts it; alone it is a process without ranks."""
    torch.set_num_threads(1)
    if world > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}
        told = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo"}
        os.environ |= told | {name: str(value) for name, value in places.items()}
    act(*arguments)


def processes(world: int, act: Callable[..., None], *arguments: Any, time_limit: float = TIME) -> list[int | None]:
    """Exit codes. Where one was killed the others may wait for it: they are killed too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks: list[BaseProcess] = [
        FORKS.Process(target=rank_of, args=(rank, world, port, act, arguments)) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    stop = time.monotonic() + time_limit
    try:
        while any(process.is_alive() for process in ranks) and time.monotonic() < stop:
            ranks[0].join(0.05)
            if any(process.exitcode for process in ranks):
                break
    finally:
        for process in ranks:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
    return [process.exitcode for process in ranks]


def curve(run: str) -> list[dict[str, Any]]:
    return [line for line in log(run) if "loss" in line]


def assert_near(one: str, other: str, rel: float = 1e-4) -> None:
    """The same steps with the same losses, but for rounding; the same choice; weights as near as rounding leaves."""
    ours, theirs = log(one), log(other)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    for mine, other_line in zip(ours, theirs, strict=True):
        assert all(mine[name] == other_line[name] for name in ("phase", "epoch", "step"))
        for name in mine.keys() & {"loss", "norm", "rsum"}:
            near = 10 * rel if name == "norm" else rel
            assert mine[name] == pytest.approx(other_line[name], rel=near), (name, mine["step"])
        for name, value in mine.get("terms", {}).items():
            assert value == pytest.approx(other_line["terms"][name], rel=rel, abs=1e-6), (name, mine["step"])
    before, after = (read_tensors(run, run_folder.BEST) for run in (one, other))
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=10 * rel, atol=2 * rel, msg=name)


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
    one, two = f"{alone}/{name}", f"{by_two}/{name}"
    losses, steps = [line["loss"] for line in curve(one)], math.ceil(SAMPLES / 32)
    assert len(losses) == 3 * steps
    assert sum(losses[-steps:]) < sum(losses[:steps])
    # Batch norm of the last few rows of an epoch is steep: rounding then decides which hinges and units are on.
    assert_near(one, two, rel=1e-2 if name == "dualpath" else 1e-4)
    for file in (run_folder.RECIPE, run_folder.VOCABULARY):
        assert contents(one)[file] == contents(two)[file]


def dropping(root: str, folder: str) -> None:
    with pytest.raises(UserError, match=r"dropout draws for a whole batch, .* 2 processes: .*--set model\.dropout=0"):
        fit(DROPPING, root, f"{folder}/run")
    assert not Path(f"{folder}/run").exists()


DROPPING = replace(PVSE, model=replace(PVSE.model, dropout=0.1), phases=(replace(PVSE.phases[0], epochs=1),))


def test_dropout_is_for_one_process(root: str, tmp_path: Path) -> None:
    """Its masks are drawn for a batch: processes that drew them for parts would silently train something else."""
    assert processes(2, dropping, root, str(tmp_path)) == [0, 0]
    assert fit(DROPPING, root, str(tmp_path / "run")).steps == math.ceil(SAMPLES / 32)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_ray_train_learns_what_one_process_learns(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the cluster has no room for so many, it says so at once."""
    monkeypatch.chdir(tmp_path)
    runs_of, alone = Path("runs"), str(tmp_path / "alone")
    elsewhere = replace(RECIPES["vsepp"], view=View("coco", "karpathy/train"))
    fit(RECIPES["vsepp"], root, alone)
    try:
        outcome = train_on_ray(RECIPES["vsepp"], Setup(root, threads=1), runs_of / "vsepp", workers=2, address=None)
        with pytest.raises(UserError, match=r"room for \d+ of 1000 processes"):
            train_on_ray(RECIPES["vsepp"], Setup(root), runs_of / "more", workers=1000, address=None)
        with pytest.raises(UserError, match="no corpus 'coco' under"):
            train_on_ray(elsewhere, Setup(root), runs_of / "else", workers=2, address=None)
    finally:
        disconnect()
    assert (outcome["trained"], outcome["steps"]) == (True, 24)
    assert_near(alone, str(runs_of / "vsepp"))
    assert [path.name for path in runs_of.iterdir()] == ["vsepp"]


def test_a_run_of_two_processes_is_finished_for_one_too(root: str, by_two: str) -> None:
    before = contents(f"{by_two}/vsepp")
    outcome = fit(RECIPES["vsepp"], root, f"{by_two}/vsepp")
    assert (outcome.trained, outcome.steps) == (False, 24)
    assert contents(f"{by_two}/vsepp") == before
    assert evaluate(f"{by_two}/vsepp", Setup(root), "toy/test").items > 0


def gradients(folder: str) -> None:
    """Of small functions of rows that all processes share, and of one weight that each applies after the gathering."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with distributed.process_group("cpu"):
        told = {}
        for name, function in FUNCTIONS.items():
            rows, others, weight = leaves()
            mine = slice(rank * 4 // world, (rank + 1) * 4 // world)
            loss = function(distributed.gather(rows[mine]), distributed.gather(others[mine] * 1.0), weight)
            loss.backward()
            distributed.average_gradients([rows, others, weight])
            told[name] = [loss.detach(), *(leaf.grad for leaf in (rows, others, weight) if leaf.grad is not None)]
    torch.save(told, f"{folder}/{world}-{rank}.pt")


def leaves() -> tuple[torch.nn.Parameter, torch.nn.Parameter, torch.nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    rows, others, weight = (
        torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in ((4, 3), (4, 3), (3,))
    )
    return rows, others, weight


FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "products": lambda rows, others, weight: ((rows * weight) @ others.T).sin().sum(),
    "worst": lambda rows, others, weight: (rows @ others.T).max(dim=1).values.sum() * weight.sum(),
    "twice": lambda rows, others, weight: (rows.square().sum() + (rows @ others.T).exp().sum()) * weight.prod(),
    "added": lambda rows, others, weight: ((rows + others) * weight).square().sum(),
}


@pytest.fixture(scope="module")
def found_gradients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gradients")
    for world in (1, 2):
        assert processes(world, gradients, str(folder)) == [0] * world
    return folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gathered_rows_have_the_gradient_of_one_process(found_gradients: Path, name: str) -> None:
    """`added`: both summands get the very same tensor as their gradient, which neither may change in place."""
    alone, *ranks = (torch.load(found_gradients / f"{file}.pt")[name] for file in ("1-0", "2-0", "2-1"))
    assert len(alone) == 4
    for rank in ranks:
        for ours, theirs in zip(rank, alone, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.fixture(scope="module")
def saving(root: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """PCME, which draws most, saved every third step and never disturbed."""
    run = str(tmp_path_factory.mktemp("saving") / "run")
    train(PCME, root, run, save_every=3)
    return run


def test_saving_within_an_epoch_changes_nothing(alone: str, saving: str) -> None:
    assert (Path(saving) / run_folder.LOG).read_bytes() == (Path(alone) / "pcme" / run_folder.LOG).read_bytes()
    assert_same(read_tensors(saving, run_folder.LAST), read_tensors(f"{alone}/pcme", run_folder.LAST))


def test_scan_goes_on_after_a_kill_as_if_there_had_been_none(root: str, alone: str, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    assert processes(1, train, SCAN, root, run, 3, 12) == [-signal.SIGKILL]
    assert processes(1, train, SCAN, root, run, 3) == [0]
    assert_same_run(f"{alone}/scan", run)


def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    root: str, saving: str, tmp_path: Path
) -> None:
    """A tick is a step, or a block that is encoded for validation: every process dies in the middle of something."""
    dice, run, deaths, codes = random.Random(), str(tmp_path / "run"), list[int](), {-signal.SIGKILL}
    while codes == {-signal.SIGKILL} and len(deaths) < 20:
        deaths.append(dice.randint(6, 12))
        codes = set(processes(1, train, PCME, root, run, 3, deaths[-1]))
    assert codes == {0}, deaths
    assert len(deaths) > 1
    assert_same_run(saving, run)


def test_a_run_of_two_that_is_killed_in_an_epoch_goes_on_with_one_and_with_two(
    root: str, alone: str, tmp_path: Path
) -> None:
    """Step 12 is saved, the fourth of the second epoch; what was logged after it is logged anew."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    assert -signal.SIGKILL in processes(2, train, PCME, root, str(run), 3, 8 + 2 + 6)
    place = read_tensors(str(run), run_folder.LAST)["state"]
    assert (place["step"], place["epoch"], place["cursor"]) == (12, 1, 4 * 32)
    copy.mkdir()
    for name, data in contents(str(run)).items():
        (copy / name).write_bytes(data)
    train(PCME, root, str(run), save_every=3)
    assert processes(2, train, PCME, root, str(copy), 3) == [0, 0]
    for one in (run, copy):
        assert_near(f"{alone}/pcme", str(one))


def classed_root(folder: Path, unnamed: str | None = None) -> str:
    """60 pictures, every one of one of six classes, but for one that is `unnamed`."""
    corpus = load(str(PICTURES))
    make_root(folder / "plain", items=60)  # for its raw files

    def parse(raw: Raw) -> Iterator[Row]:
        yield from corpus.parse(raw)
        for number in range(60):
            if (item := f"p{number:04d}") != unnamed:
                yield Label(item, "class", f"class {(number * 7) % CLASSES if number > 2 else 0}")

    storage = open_storage(str(folder / "root"))
    CorpusBuild(BuildOptions(storage, raw=folder / "plain/raw"), replace(corpus, counts={}, parse=parse)).build(
        "records"
    )
    build(facts(Facts(60, places=2)), storage)
    return storage.url


@pytest.fixture(scope="module")
def classed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return classed_root(tmp_path_factory.mktemp("classed"))


BY_CLASS = replace(
    PCME,
    view=View("pictures", "toy/train", captions_per_item=2),
    phases=(replace(PCME.phases[0], epochs=2, sampler=OnePerClass()),),
)
STEPS = 48 * 2 // CLASSES


@pytest.fixture(scope="module")
def by_class(classed: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Stream]]:
    """A run, and every batch that it was trained on."""
    run, seen, objective = str(tmp_path_factory.mktemp("class") / "run"), list[Stream](), pcme.PCME.objective

    def watched(model: pcme.PCME, batch: Batch) -> dict[str, Tensor]:
        seen.append(batch.streams[ANNOTATED])
        return objective(model, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcme.PCME, "objective", watched)
        train(BY_CLASS, classed, run, save_every=7)
    return run, seen[1:]  # the first one was tried before anything was written


def test_a_batch_has_one_caption_of_every_class(by_class: tuple[str, list[Stream]]) -> None:
    """The recipe's batch size says nothing then."""
    run, streams = by_class
    assert len(streams) == len(curve(run)) == 2 * STEPS
    for stream in streams:
        assert sorted(stream.text_classes.tolist()) == list(range(CLASSES))
        assert torch.equal(stream.visual_classes, stream.text_classes)
        assert torch.equal(stream.positives, torch.arange(CLASSES)[:, None].expand(-1, 2))
    firsts = [int(stream.captions[0]) for stream in streams]
    for epoch in (firsts[:STEPS], firsts[STEPS:]):
        assert len(set(epoch)) == STEPS, "the first ones are a shuffled list"
    assert firsts[:STEPS] != firsts[STEPS:]
    others = np.concatenate([stream.captions[1:].numpy() for stream in streams])
    assert len(set(others.tolist())) > 60


def test_one_per_class_goes_on_after_a_kill_and_with_two_processes(
    classed: str, by_class: tuple[str, list[Stream]], tmp_path: Path
) -> None:
    run, two = str(tmp_path / "run"), str(tmp_path / "two")
    assert processes(1, train, BY_CLASS, classed, run, 7, 25) == [-signal.SIGKILL]
    assert read_tensors(run, run_folder.LAST)["state"]["cursor"] == (21 - STEPS) * CLASSES
    train(BY_CLASS, classed, run, save_every=7)
    assert_same_run(by_class[0], run)
    assert processes(2, train, BY_CLASS, classed, two, 7) == [0, 0]
    assert_near(by_class[0], two, rel=1e-3)  # small batches of steep losses: rounding grows


def test_weights_are_chosen_by_class_where_the_corpus_has_classes(
    classed: str, by_class: tuple[str, list[Stream]]
) -> None:
    """A caption is right for every picture of its class: not the scores by which a picture has its own alone."""
    run, _ = by_class
    report = evaluate(run, Setup(classed), "toy/val")
    chosen = max(line["rsum"] for line in log(run) if "rsum" in line)
    assert chosen == pytest.approx(report.scores["class"].rsum)
    assert chosen != pytest.approx(report.scores["all"].rsum)
    assert headline(report.scores) == report.scores["class"]
    assert headline({"all": report.scores["all"], "1K": report.scores["class"]}) == report.scores["all"]
    assert headline({"identity": report.scores["class"], "all": report.scores["all"]}) == report.scores["class"]


def test_an_item_without_a_class_is_named(root: str, tmp_path: Path) -> None:
    unnamed = classed_root(tmp_path, unnamed="p0011")
    with pytest.raises(UserError, match=r"pictures: 1 items have no class, such as 'p0011'"):
        fit(BY_CLASS, unnamed, str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"have no class, such as 'p0000': take a corpus with a class"):
        fit(BY_CLASS, root, str(tmp_path / "other"))
    assert not (tmp_path / "run").exists(), "nothing is written before it is known whether it can be trained"


def test_classes_that_cannot_be_shared_are_refused_with_advice_that_can_be_followed(
    classed: str, tmp_path: Path
) -> None:
    """The number of classes is what it is: only the number of processes can be another."""
    reader = open_dataset(classed, "pictures").reader("toy/train")
    reader = replace(reader, classes=np.arange(len(reader.examples.ids)) % 5)
    with pytest.raises((ValueError, UserError)) as found:
        Loader(reader, 32, sampler=OnePerClass(), rank=0, world=2)
    assert "5" in str(found.value)
    assert "take 6 or 4" not in str(found.value)


def test_torchrun_trains_a_named_recipe(root: str, tmp_path: Path) -> None:
    """With the settings of a command line; one process tells the result."""
    run = tmp_path / "run"
    settings = [
        "view.corpus=pictures",
        "view.split=toy/train",
        "validation.corpus=pictures",
        "validation.split=toy/val",
    ]
    settings += ["model.width=32", "model.word_width=16", "text.minimum_count=2", "batch_size=64", "epochs=2"]
    told = [part for setting in settings for part in ("--set", setting)]
    command = ["train", "vsepp", "--root", root, "--run", str(run), "--json", *told]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "--"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*launch, "pipelines.cli", *command],  # without `--` torchrun takes --run for one of its own
        **{"cwd": HERE, "env": environment, "capture_output": True, "text": True, "timeout": TIME, "check": False},
    )
    assert done.returncode == 0, done.stderr
    assert [line["epoch"] for line in log(str(run)) if "rsum" in line] == [1, 2]
    assert not torch.distributed.is_initialized()
    outcome = json.loads(done.stdout)
    assert (outcome["steps"], outcome["trained"]) == (8, True)


def test_the_same_processes_train_one_run_after_the_other(root: str, tmp_path: Path) -> None:
    assert processes(2, train_often, root, str(tmp_path), time_limit=8) == [0, 0]


def test_two_processes_that_cannot_share_a_batch_say_so(root: str, tmp_path: Path) -> None:
    codes = processes(2, refused, root, str(tmp_path / "run"))
    assert codes == [0, 0]
    assert not (tmp_path / "run").exists()


def refused(root: str, run: str) -> None:
    with pytest.raises(UserError, match="33 samples a step cannot be shared equally by 2 ranks: take 34 or 32"):
        fit(recipe(batch_size=33), root, run)


def test_interrupting_in_an_epoch_keeps_what_was_saved_in_it(root: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "SAVE_EVERY", 3)
        with pytest.raises(KeyboardInterrupt):
            fit(recipe(), root, str(tmp_path / "run"), progress=Death(5, interrupt))
    place = read_tensors(str(tmp_path / "run"), run_folder.LAST)["state"]
    assert (place["step"], place["cursor"], place["epoch"]) == (3, 96, 0)
