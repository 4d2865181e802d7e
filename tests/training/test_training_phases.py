"""What a phase may ask for: pictures, an early end, mixed precision, fewer words, words that start from vectors."""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.cli import main
from pipelines.papers.recipe_runs import recipe_with, recipes
from tests.toy_root import fit, make_root, recipe
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import ADAM, Death, assert_same_run, interrupt, log
from tests.training.test_training_together import PCME, PVSE, assert_near, curve, processes, train
from tests.training.test_trunk import make_root as make_pictures
from xmodal import find
from xmodal.batches.dataset import open_dataset
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader, shortened, thinned
from xmodal.batches.sample_order import SampleRandom
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate
from xmodal.features.networks import load
from xmodal.features.store import FeatureStore
from xmodal.models.vsepp import VSEPPConfig
from xmodal.progress import Silence
from xmodal.recipes import Optimiser, Phase, Phrases, Pixels, Plateau, Recipe, Tokens, View
from xmodal.text.vector_files import VectorFile
from xmodal.text.vector_index import write_index
from xmodal.text.vocabularies import END, START, UNKNOWN
from xmodal.text.word_vectors import read_vectors
from xmodal.training import optimisers, run_folder
from xmodal.training.checkpoint import read_tensors
from xmodal.training.finetuning import network_of
from xmodal.training.run_setup import Setup
from xmodal.training.training_data import unbuilt

STILL = Optimiser("sgd", 1e-30)  # nothing moves, so that no validation is better than the first


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=60, places=2)


# Pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_pictures(tmp_path_factory.mktemp("pictures"), "pooled")


HEADS = Phase(2, ADAM, {"ranking": 1.0}, frozen=("words.*",))
SGD = Optimiser("sgd", 1e-3, momentum=0.9, clip_norm=2.0)
ALL = Phase(2, SGD, {"ranking": 1.0}, pixels=Pixels("resized", flip=True, erase=0.2))


def seen(*phases: Phase) -> Recipe:
    """Three steps and two ticks of validation an epoch."""
    return recipe(
        name="seen",
        view=View("pictures", "train"),
        validation=View("pictures", "val"),
        model=VSEPPConfig(width=24, word_width=12),
        phases=phases,
        batch_size=16,
    )


@pytest.fixture(scope="module")
def whole(pictures: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    run = str(tmp_path_factory.mktemp("seen") / "run")
    train(seen(HEADS, ALL), pictures, run)
    return run


def first_trunk(pictures: str) -> dict[str, torch.Tensor]:
    trunk = load(network_of(FeatureStore(find(pictures, "resnet")[0]))).trunk
    return {f"trunk.{name}": values.clone() for name, values in trunk.state_dict().items()}


def test_the_trunk_moves_in_the_phase_of_pictures_alone(pictures: str, whole: str, tmp_path: Path) -> None:
    heads = fit(seen(HEADS), pictures, str(tmp_path / "heads"))
    train(seen(HEADS), pictures, str(tmp_path / "logged"))
    assert curve(whole)[:6] == curve(str(tmp_path / "logged"))
    before, after = (read_tensors(run, run_folder.LAST)["model"] for run in (heads.run, whole))
    trunk = first_trunk(pictures)
    assert after.keys() - before.keys() == trunk.keys()
    still = [name for name, values in trunk.items() if torch.equal(values, after[name])]
    assert still == []
    assert not torch.equal(before["words.weight"], after["words.weight"])
    assert {int(values) for name, values in after.items() if name.endswith("num_batches_tracked")} == {6}
    assert [line["phase"] for line in curve(whole)] == [1] * 6 + [2] * 6
    assert run_folder.read(whole).pixels == find(pictures, "pixels")[0].identity


@pytest.mark.parametrize("after", [11, 12])
def test_a_run_that_is_killed_in_either_phase_or_between_them_goes_on(
    pictures: str, whole: str, tmp_path: Path, after: int
) -> None:
    """Ten ticks are the phase of features: after the eleventh it goes on between the phases, after 12 in an epoch."""
    run, save_every = str(tmp_path / "run"), 1 if after == 12 else 500
    assert processes(1, train, seen(HEADS, ALL), pictures, run, save_every, after) == [-signal.SIGKILL]
    place = read_tensors(run, run_folder.LAST)["state"]
    assert (place["phase"], place["epoch"], place["step"]) == (1, 0, {11: 6, 12: 8}[after])
    train(seen(HEADS, ALL), pictures, run)
    assert_same_run(whole, run)


def test_a_run_that_stops_before_the_first_step_of_a_phase_goes_on(
    pictures: str, whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its network is in no state yet."""
    freeze, calls, run = optimisers.freeze, list[int](), str(tmp_path / "run")

    def frozen(model: torch.nn.Module, patterns: tuple[str, ...]) -> None:
        calls.append(1)
        if len(calls) == 2:
            interrupt()
        freeze(model, patterns)

    monkeypatch.setattr(optimisers, "freeze", frozen)
    with pytest.raises(KeyboardInterrupt):
        train(seen(HEADS, ALL), pictures, run)
    assert not any(name.startswith("trunk.") for name in read_tensors(run, run_folder.LAST)["model"])
    train(seen(HEADS, ALL), pictures, run)
    assert_same_run(whole, run)


FIXED = replace(ALL, frozen=("trunk.*",))


def test_a_frozen_trunk_keeps_its_weights_and_its_statistics_with_any_number_of_processes(
    pictures: str, tmp_path: Path
) -> None:
    run, two = str(tmp_path / "run"), str(tmp_path / "two")
    train(seen(FIXED), pictures, run)
    after = read_tensors(run, run_folder.LAST)["model"]
    for name, values in first_trunk(pictures).items():
        assert torch.equal(values, after[name]), name
    assert any("running_mean" in name for name in after)
    assert processes(2, train, seen(FIXED), pictures, two) == [0, 0]
    assert_near(run, two)


def test_a_run_whose_trunk_was_trained_is_evaluated(pictures: str, tmp_path: Path) -> None:
    outcome = fit(seen(ALL), pictures, str(tmp_path / "run"))
    best = read_tensors(outcome.run, run_folder.BEST)
    assert any(name.startswith("trunk.") for name in best)
    report = evaluate(outcome.run, Setup(pictures), "val")
    assert (report.items, report.scores["all"].rsum) == (2, outcome.rsum)


def test_a_phase_of_features_after_one_of_pictures_is_refused(pictures: str, tmp_path: Path) -> None:
    short = seen(replace(ALL, epochs=1), replace(HEADS, epochs=1))
    with pytest.raises(UserError, match="'seen' asks for what training cannot do: features after pictures"):
        fit(short, pictures, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_samplers_that_training_lacks_are_refused(pictures: str, tmp_path: Path) -> None:
    """And told without training, for those who plan one."""
    asked = seen(HEADS, replace(ALL, sampler=Phrases(0.7, 0.3, 2)))
    assert len(unbuilt(asked)) == 1
    assert unbuilt(seen(HEADS, ALL)) == []
    with pytest.raises(UserError, match=r"'seen' asks for what training cannot do: a sampler"):
        fit(asked, pictures, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_phase_of_no_epochs_is_left_out() -> None:
    """The others keep their numbers, and the recipe is the one that never had the phase."""
    whole = recipes()["pvse-coco"]
    assert recipe_with("pvse-coco", ["phase2.epochs=0"]) == replace(whole, phases=whole.phases[:1])
    second = recipe_with("pvse-coco", ["phase1.epochs=0", "phase2.epochs=7"]).phases
    assert second == (replace(whole.phases[1], epochs=7),)
    assert len(recipe_with("pvse-coco", ["phase2.epochs=0", "phase2.epochs=3"]).phases) == 2
    with pytest.raises(UserError, match="every phase of pvse-coco is left out"):
        recipe_with("pvse-coco", ["phase1.epochs=0", "phase2.epochs=0"])
    with pytest.raises(UserError, match=r"no setting 'phase2\.epoch'"):
        recipe_with("pvse-coco", ["phase2.epochs=0", "phase2.epoch=3"])


def test_the_optimiser_and_the_weights_of_a_phase_may_be_set() -> None:
    settings = ["phase2.optimiser.learning_rate=0.5", "phase2.optimiser.clip_norm=none", "phase2.weights.ranking=3"]
    (first, second), changed = recipes()["pvse-coco"].phases, recipe_with("pvse-coco", settings).phases
    optimiser = replace(second.optimiser, learning_rate=0.5, clip_norm=None)
    assert changed == (first, replace(second, optimiser=optimiser, weights={**second.weights, "ranking": 3.0}))
    assert recipe_with("pvse-coco", ["phase1.weights.ranking=1"]) == recipes()["pvse-coco"]
    for wrong, message in (
        ("phase1.learning_rate=1", r"do you mean phase1\.optimiser\.learning_rate\?"),
        ("phase1.optimiser.learning_rate=0", "must be above zero"),
        ("phase1.weights.rank=1", r"do you mean phase1\.weights\.ranking\?"),
        ("phase1.optimiser.multipliers=a", "no setting"),
    ):
        with pytest.raises(UserError, match=message):
            recipe_with("pvse-coco", [wrong])


def test_pictures_need_a_pixels_stage_and_features_that_say_what_made_them(
    root: str, pictures: str, tmp_path: Path
) -> None:
    toy = replace(seen(HEADS, ALL), view=recipe().view, validation=recipe().validation)
    with pytest.raises(UserError, match=r"no 'pixels' under .*`xmodal build pictures/pixels --root .*root`"):
        fit(toy, root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="no pixels is nothing; there are"):
        fit(seen(HEADS, ALL), pictures, str(tmp_path / "run"), pixels="nothing")


# Early ends


def validations(run: str, phase: int = 1) -> list[float]:
    return [line["rsum"] for line in log(run) if "rsum" in line and line["phase"] == phase]


@pytest.mark.parametrize(("patience", "every"), [(1, 1), (3, 1), (2, 2)])
def test_a_phase_ends_after_so_many_validations_without_a_better_one(
    root: str, tmp_path: Path, patience: int, every: int
) -> None:
    """The first one is the best; the next phase counts for itself."""
    plateau = replace(STILL, schedule=Plateau(0.5, patience=1))
    patient = Phase(12, plateau, {"ranking": 1.0}, patience=patience, validate_every=every)
    two, run = recipe(phases=(patient, patient), batch_size=128), str(tmp_path / "run")
    train(two, root, run)
    for phase in (1, 2):
        assert len(validations(run, phase)) == 1 + patience
        assert len(set(validations(run, phase))) == 1
        epochs = [line["epoch"] for line in curve(run) if line["phase"] == phase]
        assert sorted(set(epochs)) == list(range(1, 1 + (1 + patience) * every))
        waited = [epoch // every - 1 for epoch in range((1 + patience) * every)]  # validations after the first
        expected = [1e-30 * 0.5 ** max(0, number // 2) for number in waited]
        rates = {line["epoch"]: line["rates"][0] for line in curve(run) if line["phase"] == phase}
        assert list(rates.values()) == pytest.approx(expected)


def test_a_phase_does_not_end_before_and_rises_count(root: str, tmp_path: Path) -> None:
    """Against the definition, on what a real training validates."""
    patient = Phase(14, replace(ADAM, learning_rate=2e-2), {"ranking": 1.0}, patience=2)
    outcome = fit(recipe(phases=(patient,), batch_size=64), root, str(tmp_path / "run"))
    rsums = validations(outcome.run)
    ends = [n for n in range(1, len(rsums) + 1) if n - 1 - rsums.index(max(rsums[:n])) >= 2]
    assert len(rsums) == (ends[0] if ends else 14)
    assert (outcome.rsum, outcome.epoch) == (max(rsums), 1 + rsums.index(max(rsums)))
    assert outcome.steps == len(rsums) * 4


@pytest.mark.parametrize("after", [9, 14, 16])
def test_waiting_goes_on_where_it_was_interrupted(root: str, tmp_path: Path, after: int) -> None:
    patient = Phase(12, STILL, {"ranking": 1.0}, patience=3)
    one, run, whole = recipe(phases=(patient,), batch_size=128), str(tmp_path / "run"), str(tmp_path / "whole")
    expected = fit(one, root, whole)
    with pytest.raises(KeyboardInterrupt):
        fit(one, root, run, progress=Death(after, interrupt))
    assert fit(one, root, run) == replace(expected, run=run)
    assert fit(one, root, run) == replace(expected, run=run, trained=False)
    assert_same_run(whole, run)


@pytest.mark.parametrize("patience", [0, -1])
def test_no_patience_at_all_is_refused(patience: int) -> None:
    with pytest.raises(ValueError, match=f"^patience {patience} must be a whole number, 1 or more"):
        Phase(3, ADAM, {"ranking": 1.0}, patience=patience)
    with pytest.raises(UserError, match=rf"--set .*patience {patience} must be a whole number"):
        recipe_with("vsepp", [f"patience={patience}"])
    assert recipe_with("vsepp", ["patience=2"]).phases[0].patience == 2


# Mixed precision


@pytest.fixture(scope="module")
def both(root: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, str]]:
    """Runs of a recipe in single and in mixed precision."""
    folder, done = tmp_path_factory.mktemp("precision"), dict[str, tuple[str, str]]()

    def runs_of(name: str) -> tuple[str, str]:
        if name not in done:
            pair = str(folder / f"{name}-single"), str(folder / f"{name}-mixed")
            for run, precision in zip(pair, ("single", "mixed"), strict=True):
                train(replace(BY_NAME[name], precision=precision), root, run)  # type: ignore[arg-type]
            done[name] = pair
        return done[name]

    return runs_of


BY_NAME = {"vsepp": recipe(2), "pvse": PVSE, "pcme": PCME}


@pytest.mark.parametrize("name", BY_NAME)
def test_mixed_precision_learns_nearly_the_same_with_weights_in_single(
    both: Callable[[str], tuple[str, str]], name: str
) -> None:
    single, mixed = both(name)
    losses = [np.array([line["loss"] for line in curve(run)]) for run in (single, mixed)]
    assert np.isfinite(losses[1]).all()
    assert not np.array_equal(*losses)
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.02)
    assert losses[1][-1] < losses[1][0]
    for tensors in (
        read_tensors(mixed, run_folder.BEST),
        *read_tensors(mixed, run_folder.LAST)["optimiser"]["state"].values(),
    ):
        assert {value.dtype for value in tensors.values() if isinstance(value, torch.Tensor)} == {torch.float32}


@pytest.mark.parametrize("name", BY_NAME)
def test_in_mixed_precision_the_loss_is_not_rounded_to_half(both: Callable[[str], tuple[str, str]], name: str) -> None:
    """Matrix products are in bfloat16; what is summed and compared after them has all its digits."""
    terms = [line["terms"] for line in curve(both(name)[1])]
    for term in terms[0]:
        values = torch.tensor([line[term] for line in terms])
        assert not torch.equal(values, values.bfloat16().float()), term


def test_two_processes_in_mixed_precision(root: str, tmp_path: Path) -> None:
    """Rows are rounded before they are compared, in whichever process."""
    mixed = recipe(1, precision="mixed")
    train(mixed, root, str(tmp_path / "one"))
    assert processes(2, train, mixed, root, str(tmp_path / "two")) == [0, 0]
    one, two = ([line["loss"] for line in curve(str(tmp_path / name))] for name in ("one", "two"))
    assert two == pytest.approx(one, rel=0.02)


def test_another_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="no precision 'half'"):
        recipe(precision="half")
    with pytest.raises(UserError, match="not one of single, mixed"):
        recipe_with("vsepp", ["precision=half"])


# Words


LONG = np.array([START, *range(10, 30), END], np.int32)


def tokens(**changes: Any) -> Tokens:
    return replace(Tokens("nltk", minimum_count=2), **changes)


@pytest.fixture(scope="module")
def reader(root: str) -> Reader:
    return open_dataset(root, "pictures").reader("toy/train")


@pytest.mark.parametrize(("longest", "kept"), [(1, 1), (7, 7), (19, 19), (20, 20), (21, 20)])
def test_the_longest_caption_keeps_its_first_words_and_its_ends(longest: int, kept: int) -> None:
    found = shortened(LONG, longest)
    assert found.tolist() == [START, *range(10, 10 + kept), END]


def test_long_captions_are_short_in_evaluation_too(reader: Reader) -> None:
    short = replace(reader, tokens=tokens(longest=4))
    whole, cut = reader.text(slice(None)), short.text(slice(None))
    assert int(cut.lengths.max()) == 6 < int(whole.lengths.max())
    for row, length in enumerate(cut.lengths.tolist()):
        assert (cut.values[row, 0], cut.values[row, length - 1]) == (START, END)
        assert torch.equal(cut.values[row, : length - 1], whole.values[row, : length - 1])


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_share_of_words_that_are_marked_and_deleted(share: float) -> None:
    """docs/models.md#pcme-training: each word with this chance, then int(share x words) of all, marked or not."""
    chance = np.random.default_rng(0)
    marked = [thinned(LONG, tokens(marked=share), chance) for _ in range(2000)]
    assert {(len(one), one[0], one[-1]) for one in marked} == {(22, START, END)}
    where = np.array([one[1:-1] == UNKNOWN for one in marked])
    np.testing.assert_allclose(where.mean(axis=0), share, atol=0.05)
    deleted = [thinned(LONG, tokens(deleted=share), chance) for _ in range(2000)]
    assert {(len(one), one[0], one[-1]) for one in deleted} == {(22 - int(share * 20), START, END)}
    assert all((np.diff(one[1:-1]) > 0).all() for one in deleted), "what is left keeps its order"
    kept = np.array([np.isin(np.arange(10, 30), one) for one in deleted])
    np.testing.assert_allclose(1 - kept.mean(axis=0), share, atol=0.05)
    both = [thinned(LONG, tokens(marked=share, deleted=share), chance)[1:-1] for _ in range(500)]
    assert np.mean([(one == UNKNOWN).mean() for one in both]) == pytest.approx(share, abs=0.02)
    assert [thinned(LONG[[0, -1]], tokens(marked=1.0, deleted=1.0), chance).tolist()] == [[START, END]]
    assert thinned(LONG, tokens(deleted=1.0), chance).tolist() == [START, END]
    assert (LONG[1:-1] == np.arange(10, 30)).all(), "the caption itself is left alone"


def test_what_is_left_out_is_the_captions_own_and_another_in_every_epoch(reader: Reader) -> None:
    thin = replace(reader, tokens=tokens(marked=0.2, deleted=0.2))
    some, none = np.array([5, 90, 3]), np.arange(0)
    whole = thin.text(some, SampleRandom(1, 2, none))
    for row, caption in enumerate(some):
        alone, length = thin.text(np.array([caption]), SampleRandom(1, 2, none)), int(whole.lengths[row])
        assert alone.values[0].tolist() == whole.values[row, :length].tolist()
    all_of_it = slice(None)
    for other in (SampleRandom(1, 3, none), SampleRandom(2, 2, none)):
        one, two = thin.text(all_of_it, SampleRandom(1, 2, none)), thin.text(all_of_it, other)
        assert one.values.shape != two.values.shape or not torch.equal(one.values, two.values)
    captions = {(int(c), tuple(row.tolist())) for batch in Loader(thin, 32, seed=7) for c, row in rows(batch)}
    by_rank = {
        (int(c), tuple(row.tolist()))
        for rank in (0, 1)
        for batch in Loader(thin, 48, seed=7, rank=rank, world=2)
        for c, row in rows(batch)
    }
    assert captions == by_rank


def rows(batch: Any) -> list[tuple[Any, Any]]:
    stream = batch.streams["annotated"]
    return [
        (caption, row[:length])
        for caption, row, length in zip(stream.captions, stream.text.values, stream.text.lengths.tolist(), strict=True)
    ]


def test_evaluation_reads_every_word(root: str, reader: Reader, tmp_path: Path) -> None:
    thin = replace(reader, tokens=tokens(marked=0.9, deleted=0.9))
    assert torch.equal(thin.text(slice(None)).values, reader.text(slice(None)).values)
    still = Phase(1, STILL, {"ranking": 1.0})
    found = [
        fit(recipe(phases=(still,), text=text), root, str(tmp_path / f"run{number}")).rsum
        for number, text in enumerate((tokens(), tokens(marked=0.9, deleted=0.9)))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "setting",
    ["text.longest=0", "text.longest=-1", "text.marked=1.5", "text.marked=-0.1", "text.deleted=-0.5", "text.deleted=2"],
)
def test_shares_and_lengths_that_cannot_be_are_refused(setting: str) -> None:
    """A negative share deletes words, a negative length takes <start> away."""
    with pytest.raises(UserError, match="--set"):
        recipe_with("vsepp", [setting])


@pytest.mark.parametrize("setting", ["visual.frames=0", "visual.frames=-2", "visual.ends=-1"])
def test_frames_that_cannot_be_are_refused(setting: str) -> None:
    with pytest.raises(UserError, match="--set"):
        recipe_with("pvse-tgif", [setting])


@pytest.mark.parametrize("setting", ["text.tokenizer=nothing", "text.minimum_count=0"])
def test_a_setting_of_the_text_that_cannot_be_is_one_line(
    root: str, tmp_path: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    on_toy = ["view.corpus=pictures", "view.split=toy/train", "validation.corpus=pictures", "validation.split=toy/val"]
    told = [part for each in (*on_toy, setting) for part in ("--set", each)]
    assert main(["train", "vsepp", "--root", root, "--run", str(tmp_path / "run"), *told]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# Word vectors


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


NAMED = replace(PVSE, text=tokens(vectors="toy.vectors"), phases=(replace(PVSE.phases[0], epochs=1),))


def toy_vectors(root: str, file: Path, width: int = 12) -> Path:
    words = open_dataset(root, "pictures").vocabulary().words
    random = np.random.default_rng(0)
    lines = (f"{word} {' '.join(f'{value:.4f}' for value in random.normal(size=width))}" for word in words[4:])
    return written(file, *lines)


def test_a_recipe_that_names_vectors_starts_from_them_and_needs_them_once(root: str, tmp_path: Path) -> None:
    file, run = toy_vectors(root, tmp_path / "v.txt"), str(tmp_path / "run")
    advice = r"starts its words from toy.vectors: give the file \(--vectors FILE\).*--set text.vectors=none"
    with pytest.raises(UserError, match=advice):
        fit(NAMED, root, run)
    assert not Path(run).exists()
    frozen = replace(NAMED, phases=(replace(NAMED.phases[0], epochs=2, frozen=("words.*",)),))
    whole = fit(frozen, root, str(tmp_path / "whole"), vectors=file)
    words, table = (
        run_folder.read(whole.run).vocabulary.words,
        read_tensors(whole.run, run_folder.LAST)["model"]["words.weight"],
    )
    given = read_vectors(file, words)
    has = ~np.isnan(given).any(axis=1)
    assert has.sum() > 20
    np.testing.assert_array_equal(table.numpy()[has], given[has])
    with pytest.raises(KeyboardInterrupt):
        fit(frozen, root, run, vectors=file, progress=Death(14, interrupt))
    assert fit(frozen, root, run).steps == whole.steps
    assert_same_run(whole.run, run)


def test_an_index_is_the_same_run_as_its_file_and_how_many_words_it_has_is_told(root: str, tmp_path: Path) -> None:
    file, run = toy_vectors(root, tmp_path / "v.txt"), str(tmp_path / "run")
    lines = file.read_text().splitlines()
    written(file, *lines[1:])
    told: list[str] = []

    class Telling(Silence):
        def say(self, text: str) -> None:
            told.append(text)

    fit(NAMED, root, run, vectors=file, progress=Telling())
    word, count = lines[0].split()[0], len(lines)
    said = next(text for text in told if text.startswith(str(file)))
    assert f": {count - 1} of {count} (" in said
    assert said.endswith(f"that occur; without: {word}")
    write_index(VectorFile.open(file), tmp_path / "index")
    assert not fit(NAMED, root, run, vectors=tmp_path / "index").trained
    assert fit(NAMED, root, str(tmp_path / "other"), vectors=tmp_path / "index").trained
    assert_same_run(run, str(tmp_path / "other"))


def test_a_run_that_stopped_before_its_first_state_still_starts_from_its_vectors(root: str, tmp_path: Path) -> None:
    """Without the file it could only start at random, and would still say that it started from the file."""
    file, run = toy_vectors(root, tmp_path / "v.txt"), str(tmp_path / "run")
    whole = fit(NAMED, root, str(tmp_path / "whole"), vectors=file)
    with pytest.raises(KeyboardInterrupt):
        fit(NAMED, root, run, vectors=file, progress=Death(2, interrupt))
    try:
        fit(NAMED, root, run)
    except UserError:
        fit(NAMED, root, run, vectors=file)
    assert_same_run(whole.run, run)


def test_vectors_of_another_file_are_another_run(root: str, tmp_path: Path) -> None:
    file, other, run = toy_vectors(root, tmp_path / "v.txt"), tmp_path / "other.txt", str(tmp_path / "run")
    fit(NAMED, root, run, vectors=file)
    other.write_text(file.read_text().replace("1", "2"))
    with pytest.raises(UserError, match=r"holds another run: vectors is \"\w+\" there and \"\w+\" here: choose"):
        fit(NAMED, root, run, vectors=other)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(file.read_bytes())
    assert not fit(NAMED, root, run, vectors=copy).trained


def test_vectors_that_cannot_be_used_are_refused_before_anything_is_written(root: str, tmp_path: Path) -> None:
    """Or the right file would be another run's."""
    run = tmp_path / "run"
    narrow, bad = toy_vectors(root, tmp_path / "narrow.txt", width=5), written(tmp_path / "bad.txt", "a 1 2", "in 1")
    wide = "words of 12 numbers, the word vectors have 5"
    for file, message in ((bad, r"line 2 \(byte 6\) has 1 numbers"), (narrow, wide)):
        with pytest.raises(UserError, match=message):
            fit(NAMED, root, str(run), vectors=file)
    assert not run.exists()


def test_vectors_that_nobody_asked_for_are_refused(root: str, tmp_path: Path) -> None:
    file = toy_vectors(root, tmp_path / "v.txt")
    with pytest.raises(UserError, match=r"'toy-pvse' starts its words from no vectors, so .*v\.txt is of no use"):
        fit(PVSE, root, str(tmp_path / "run"), vectors=file)
    assert not (tmp_path / "run").exists()


def test_a_model_that_takes_no_vectors_does_not_pass_over_them(root: str, tmp_path: Path) -> None:
    """VSE++ starts its words at random: given a file it uses it, or says that it cannot."""
    file = toy_vectors(root, tmp_path / "v.txt", width=16)
    named = recipe(1, text=tokens(vectors="toy.vectors"), phases=(Phase(1, STILL, {"ranking": 1.0}),))
    try:
        run = fit(named, root, str(tmp_path / "run"), vectors=file).run
    except (UserError, ValueError):
        return
    given = read_vectors(file, run_folder.read(run).vocabulary.words)
    has = ~np.isnan(given).any(axis=1)
    np.testing.assert_allclose(read_tensors(run, run_folder.BEST)["words.weight"].numpy()[has], given[has])


def test_settings_reach_text_and_visual() -> None:
    for name, known in recipes().items():
        if isinstance(known.text, Tokens) and known.text.vectors:
            changed = recipe_with(name, ["text.vectors=none", "text.longest=20", "visual.stage=mine"])
            assert changed.text == replace(known.text, vectors=None, longest=20)
            assert changed.visual == replace(known.visual, stage="mine")
    with pytest.raises(UserError, match=r"no setting 'text\.vector'"):
        recipe_with("vsepp", ["text.vector=none"])


# TensorBoard


def test_without_tensorboard_it_says_what_to_install(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="TensorBoard is not installed: pip install tensorboard") as found:
        fit(recipe(1), root, str(tmp_path / "run"), tensorboard=True)
    assert found.value.__cause__ is None
    assert fit(recipe(1), root, str(tmp_path / "run")).trained, "it can go on without"


def test_tensorboard_shows_what_the_log_says(root: str, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = str(tmp_path / "run")
    train(recipe(2), root, run, tensorboard=True)
    events = EventAccumulator(f"{run}/tensorboard", size_guidance={"scalars": 0}).Reload()
    assert {"loss", "norm", "ranking", "rsum"} <= set(events.Tags()["scalars"])
    for name in ("loss", "norm", "rsum"):
        expected = [(line["step"], line[name]) for line in log(run) if name in line]
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in shown] == [step for step, _ in expected]
        assert [value for _, value in shown] == pytest.approx([value for _, value in expected])
    plain = str(tmp_path / "plain")
    train(recipe(2), root, plain)
    assert (Path(run) / run_folder.LOG).read_bytes() == (Path(plain) / run_folder.LOG).read_bytes()


# The test split


@pytest.mark.parametrize("part", ["view", "validation"])
def test_no_setting_names_a_test_split(part: str) -> None:
    for name, known in recipes().items():
        own = getattr(known, part).split.rpartition("/")[0]
        of_words = ["text.longest=9"] if isinstance(known.text, Tokens) else []
        for split in ("test", f"{own}/test", "toy/test", "1k-test"):
            with pytest.raises(UserError, match="would train or choose on split"):
                recipe_with(name, [f"{part}.split={split}", "visual.stage=mine", *of_words])


@pytest.mark.parametrize("split", ["Test", "karpathy/TEST"])
def test_a_test_split_is_one_in_capitals_too(split: str) -> None:
    with pytest.raises(UserError, match="would train or choose on split"):
        recipe_with("vsepp", [f"view.split={split}"])


def test_features_and_texts_bring_no_split(root: str, tmp_path: Path) -> None:
    """Whatever visual and text say, only items of the two views are read."""
    for setting in ("visual.split=toy/test", "text.split=toy/test", "visual.view=toy/test"):
        with pytest.raises(UserError, match="no setting"):
            recipe_with("vsepp", [setting])
    run = fit(recipe(1), root, str(tmp_path / "run")).run
    test_items = open_dataset(root, "pictures").reader("toy/test").examples.ids
    assert test_items
    assert evaluate(run, Setup(root), "toy/test").seen == 0
    for number in range(2):
        again = fit(recipe(1, text=tokens(longest=3 + number)), root, str(tmp_path / f"run{number}"))
        assert run_folder.read(again.run).recipe.view.split == "toy/train"
        assert evaluate(again.run, Setup(root), "toy/test").seen == 0
