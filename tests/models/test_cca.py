"""CCA: against its definition, solved from any blocks, as a run, and what it refuses."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipelines.cli import main
from pipelines.papers import reproduction
from pipelines.papers.experiments import Available, find
from pipelines.stages.texts.codebook import CodebookConfig
from tests.golden import golden
from tests.toy_root import coded, fit, make_root
from tests.toy_root import one_thread as one_thread
from xmodal.batches.batch import Padded, Stream
from xmodal.errors import UserError
from xmodal.evaluation.run_metrics import evaluate, load
from xmodal.features.store import FeatureStore
from xmodal.models import Inputs, Solvable, Trainable
from xmodal.models.cca import CCA, CCAConfig
from xmodal.recipes import Features, Recipe, View
from xmodal.training import checkpoint, closed_form
from xmodal.training.run_setup import Setup

Numbers = NDArray[np.float64]
GONG = CCAConfig(eta=0.0, ridge=1e-4, weights="eigenvalues", power=4.0)
TOY = Recipe(
    name="cca-toy",
    cites="ours",
    view=View("pictures", "toy/train", captions_per_item=5),
    validation=View("pictures", "toy/val", captions_per_item=5),
    visual=Features("resnet"),
    text=Features("sentences"),
    model=CCAConfig(eta=0.01),
    phases=(),
    batch_size=100,
)


def whole(rows: Numbers) -> Padded:
    return Padded.whole(torch.from_numpy(rows)[:, None])


def block(visual: Numbers, text: Numbers, owners: NDArray[np.int64] | None = None) -> Stream:
    """The n-th text is of the n-th visual row, or of its owner."""
    owners = np.arange(len(text)) if owners is None else owners
    items, numbers = torch.from_numpy(owners), torch.arange(len(text))
    positives = torch.stack([items, numbers], dim=1)
    return Stream(whole(visual), whole(text), torch.arange(len(visual)), items, numbers, positives)


def solved(config: CCAConfig, *blocks: Stream) -> CCA:
    model = config.build(Inputs(blocks[0].visual.values.shape[-1], blocks[0].text.values.shape[-1], 0))
    model.solve(iter(blocks))
    return model


def scores(model: CCA, visual: Numbers, text: Numbers) -> Numbers:
    found = model.similarity(model.encode_visual(whole(visual)), model.encode_text(whole(text)))
    return found.double().numpy()


def related(random: np.random.Generator, pairs: int, visual: int, text: int) -> tuple[Numbers, Numbers]:
    """Both sides show the same few facts, with noise, at different scales, far from zero."""
    facts = random.normal(size=(pairs, 3))
    sides = (
        (facts @ random.normal(size=(3, width)) + random.normal(size=(pairs, width))) * random.uniform(0.1, 3, width)
        + 5
        for width in (visual, text)
    )
    return next(sides), next(sides)


def cosines(visual: Numbers, text: Numbers) -> Numbers:
    return (visual / np.linalg.norm(visual, axis=1)[:, None]) @ (text / np.linalg.norm(text, axis=1)[:, None]).T


@pytest.mark.parametrize("power", [0, 1, 2, 4])
def test_scores_are_those_of_the_reference(power: int) -> None:
    reference = {name: array.astype(float) for name, array in golden("indep_cca_eta0").items()}
    model = solved(CCAConfig(eta=0.0, power=power), block(reference["X"], reference["Y"]))
    found = scores(model, reference["X_test"], reference["Y_test"])
    np.testing.assert_allclose(found, reference[f"cos_sim_power{power}"], atol=1e-6)
    np.testing.assert_allclose(model.correlations, reference["corr"], atol=1e-6)
    for axes, mean, side in (("visual_axes", "visual_mean", "x"), ("text_axes", "text_mean", "y")):
        np.testing.assert_allclose(getattr(model, mean), reference[f"mean_{side}"], atol=1e-6)
        signless = np.abs(reference[f"W{side}"])
        np.testing.assert_allclose(getattr(model, axes).abs(), signless, rtol=1e-5, atol=1e-5)


def by_definition(x: Numbers, y: Numbers, x_test: Numbers, y_test: Numbers, config: CCAConfig) -> Numbers:
    """By eigenvectors of Cxx^-1 Cxy Cyy^-1 Cyx, of the same text vector for each visual one."""

    def covariance(one: Numbers, other: Numbers) -> Numbers:
        found = np.zeros((one.shape[1], other.shape[1]))
        for first, second in zip(one - one.mean(0), other - other.mean(0), strict=True):
            found += np.outer(first, second) / (len(one) - 1)
        return found

    def ridged(matrix: Numbers) -> Numbers:
        return matrix + (config.eta * np.linalg.eigvalsh(matrix)[-1] + config.ridge) * np.eye(len(matrix))

    cxx, cyy, cxy = ridged(covariance(x, x)), ridged(covariance(y, y)), covariance(x, y)
    squares, vectors = np.linalg.eig(np.linalg.solve(cxx, cxy) @ np.linalg.solve(cyy, cxy.T))
    columns_x, columns_y = [], []
    order = np.argsort(-squares.real)[: config.width or min(cxy.shape)]
    for place in order:
        r, a = np.sqrt(squares[place].real), vectors[:, place].real
        a /= np.sqrt(a @ cxx @ a)
        weight = (r + (config.weights == "eigenvalues")) ** config.power
        columns_x.append((x_test - x.mean(0)) @ a * weight)
        columns_y.append((y_test - y.mean(0)) @ np.linalg.solve(cyy, cxy.T @ a) / r * weight)
    return cosines(np.stack(columns_x, 1), np.stack(columns_y, 1))


@given(st.integers(0, 9999), st.sampled_from([0.0, 1e-3, 0.3]), st.sampled_from([1.0, 2.0, 4.0]), st.booleans())
def test_scores_are_those_of_the_definition(seed: int, eta: float, power: float, gong: bool) -> None:
    random = np.random.default_rng(seed)
    visual, text, pairs = random.integers(2, 7), random.integers(2, 7), random.integers(20, 60)
    x, y = related(random, pairs, visual, text)
    width = int(random.integers(1, min(visual, text) + 1))
    config = CCAConfig(eta, 1e-6, width, "eigenvalues" if gong else "correlations", power)
    x_test, y_test = random.normal(size=(4, visual)) + 5, random.normal(size=(3, text)) + 5
    expected = by_definition(x, y, x_test, y_test, config)
    np.testing.assert_allclose(scores(solved(config, block(x, y)), x_test, y_test), expected, atol=1e-5)


@given(st.integers(0, 9999))
def test_gongs_problem_is_solved_by_the_same_axes(seed: int) -> None:
    """Its k largest eigenvalues, of both sides together: docs/models.md#cca."""
    random = np.random.default_rng(seed)
    (x, y), width = related(random, 50, 5, 4), int(random.integers(1, 5))
    together = np.cov(np.hstack([x, y]).T)
    blocks = together.copy()
    blocks[:5, 5:] = blocks[5:, :5] = 0
    root = np.linalg.cholesky(blocks + 1e-4 * np.eye(9))
    within = np.linalg.solve(root, np.linalg.solve(root, together + 1e-4 * np.eye(9)).T)
    values, vectors = np.linalg.eigh(within)
    largest, axes = values[::-1][:width], np.linalg.solve(root.T, vectors[:, ::-1][:, :width])
    x_test, y_test = random.normal(size=(6, 5)) + 5, random.normal(size=(7, 4)) + 5
    expected = cosines(
        (x_test - x.mean(0)) @ axes[:5] * largest**4,
        (y_test - y.mean(0)) @ axes[5:] * largest**4,
    )
    model = solved(replace(GONG, width=width), block(x, y))
    np.testing.assert_allclose(1 + model.correlations.numpy(), largest, atol=1e-9)
    np.testing.assert_allclose(scores(model, x_test, y_test), expected, atol=1e-5)


@given(st.integers(0, 9999), st.integers(1, 12))
def test_any_blocks_give_the_same_to_ten_digits(seed: int, cuts: int) -> None:
    """Blocks of one pair and of none too; an item has one row for all of its captions, or one for each."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, 6, 40)
    owners = np.repeat(np.arange(40), counts)
    y, facts = related(random, len(owners), 5, 7)
    x = np.stack([facts[owners == item].mean(0) for item in range(40)])
    at_once = solved(CCAConfig(), block(x[owners], y))
    ends = [0, *np.sort(random.integers(0, 41, cuts)).tolist(), 40]
    starts = np.append(0, np.cumsum(counts))
    streamed = solved(CCAConfig(), *(
        block(x[begin:end], y[starts[begin] : starts[end]], owners[starts[begin] : starts[end]] - begin)
        for begin, end in pairwise(ends)
    ))  # fmt: skip
    np.testing.assert_allclose(streamed.correlations, at_once.correlations, rtol=0, atol=1e-10)
    np.testing.assert_allclose(streamed.visual_mean, at_once.visual_mean, rtol=0, atol=1e-10)
    for name in ("visual_axes", "text_axes"):
        found, expected = (getattr(model, name).abs() for model in (streamed, at_once))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_numbers_far_from_zero_lose_no_digits() -> None:
    """Sums of squares would: a spread of one at a million."""
    random = np.random.default_rng(0)
    x, y = related(random, 500, 4, 4)
    near, far = (solved(CCAConfig(), *(
        block(x[n : n + 50] + shift, y[n : n + 50] - shift) for n in range(0, 500, 50)
    )) for shift in (0.0, 1e6))  # fmt: skip
    np.testing.assert_allclose(far.correlations, near.correlations, atol=1e-8)


def test_wide_sides_are_computed_in_panels() -> None:
    random = np.random.default_rng(0)
    x, y = related(random, 1500, 700, 530)
    model = solved(CCAConfig(eta=0.0), *(block(x[n : n + 400], y[n : n + 400]) for n in range(0, 1500, 400)))
    for axes, side in ((model.visual_axes, x), (model.text_axes, y)):
        projected = (side - side.mean(0)) @ axes.numpy()
        np.testing.assert_allclose(projected.T @ projected / 1499, np.eye(530), atol=1e-6)


# ----------------------------------------------------------------------------------------------------- hard inputs


@pytest.mark.parametrize(("side", "name"), [(0, "visual"), (1, "text")])
def test_a_constant_number_and_a_sum_of_others_weigh_nothing_by_a_ridge_and_are_refused_without(
    side: int, name: str
) -> None:
    random = np.random.default_rng(0)
    sides = list(related(random, 60, 5, 4))
    expected = solved(CCAConfig(eta=0.0, ridge=1e-6), block(*sides))
    for new in (np.full((60, 1), 0.1), sides[side].sum(1, keepdims=True)):
        wider = [*sides]
        wider[side] = np.hstack([sides[side], new])
        number = sides[side].shape[1]
        with pytest.raises(UserError, match=rf"^number {number} \(from 0\) of the {number + 1} of the {name} side is"):
            solved(CCAConfig(eta=0.0, ridge=0.0), block(*wider))
        found = solved(CCAConfig(eta=0.0, ridge=1e-6), block(*wider))
        np.testing.assert_allclose(found.correlations[:4], expected.correlations, atol=1e-5)
    constant = [*sides]
    constant[side] = np.hstack([sides[side], np.full((60, 1), 0.1)])
    test = [rows[:9] + 0.3 for rows in constant]  # where it is not what it was in training
    for config in (CCAConfig(eta=0.0), GONG):
        without = solved(config, block(*sides)), [rows[:9] + 0.3 for rows in sides]
        np.testing.assert_allclose(
            scores(solved(config, block(*constant)), test[0], test[1]), scores(without[0], *without[1]), atol=1e-5
        )


def test_a_ridge_below_the_rounding_of_a_variance_is_refused() -> None:
    random = np.random.default_rng(0)
    x, y = related(random, 60, 5, 4)
    x = np.hstack([x, x[:, :1]]) * 1e6
    with pytest.raises(UserError, match=r"number 5 .* the ridge is too small"):
        solved(CCAConfig(eta=0.0), block(x, y))
    assert solved(CCAConfig(eta=1e-6), block(x, y)).correlations[0] > 0.5


def test_fewer_pairs_than_numbers_correlate_perfectly_but_for_eta() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(6, 20)), random.normal(size=(6, 15))  # unrelated
    np.testing.assert_allclose(solved(CCAConfig(eta=0.0), block(x, y)).correlations[:5], 1, atol=1e-6)
    assert solved(CCAConfig(eta=0.5), block(x, y)).correlations[0] < 0.9


def test_nothing_to_correlate_is_refused() -> None:
    random = np.random.default_rng(0)
    x, y = related(random, 30, 5, 4)
    with pytest.raises(UserError, match="CCA needs two pairs at least, and has 1"):
        solved(CCAConfig(), block(x[:1], y[:1]))
    with pytest.raises(UserError, match="CCA finds no correlation at all"):
        solved(CCAConfig(), block(np.ones_like(x), y))
    with pytest.raises(ValueError, match="sides of 5 and 4 numbers have no 6 directions"):
        CCAConfig(width=6).build(Inputs(5, 4, 0))
    for wrong in ({"eta": -1.0}, {"ridge": -1.0}, {"power": -1.0}, {"width": 0}, {"weights": "r"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CCAConfig(**wrong)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- a run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = make_root(tmp_path_factory.mktemp("cca"), items=400, absent=(5, 18))
    coded(root)
    return root


def test_it_is_solved_and_not_trained() -> None:
    model = CCAConfig().build(Inputs(5, 4, 0))
    assert isinstance(model, Solvable)
    assert not isinstance(model, Trainable)


def test_a_run_is_solved_once_and_finds_far_more_than_chance(root: str, tmp_path: Path) -> None:
    """Of 39 items, R@10 by chance is 26 and 26, R@1 3 and 3, R@5 13 and 13: rsum 82."""
    outcome = fit(TOY, root, run := str(tmp_path / "run"))
    assert (outcome.trained, outcome.solved_pairs) == (True, 5 * 319)
    assert (outcome.phase, outcome.epoch, outcome.steps) == (0, 0, 0)  # there are none
    assert outcome.rsum > 300
    report = evaluate(run, Setup(root))
    assert (report.split, report.items, report.captions) == ("toy/test", 39, 195)
    assert report.metrics.value("R@1", "visual_to_text") > 25
    assert report.metrics.value("R@1", "text_to_visual") > 25
    before = (Path(run) / "best.pt").read_bytes()
    assert fit(TOY, root, run) == replace(outcome, trained=False)
    assert (Path(run) / "best.pt").read_bytes() == before


def test_a_run_is_the_solution_of_all_pairs_of_its_view(root: str, tmp_path: Path) -> None:
    """Whatever the blocks, of captions by their items; items without features are left out."""
    runs = [str(tmp_path / f"{size}") for size in (1, 7, 100_000)]
    models: list[Any] = []
    for size, run in zip((1, 7, 100_000), runs, strict=True):
        fit(replace(TOY, batch_size=size), root, run)
        models.append(load(run))
    for model in models[:2]:
        np.testing.assert_allclose(model.correlations, models[2].correlations, atol=1e-10)
        np.testing.assert_allclose(model.text_mean, models[2].text_mean, atol=1e-10)
    reader = _reader(root)
    items, captions = reader.examples.caption_items, np.arange(len(reader.examples.words))
    x = reader.visual(items).values[:, 0].double().numpy()
    y = reader.text(captions).values[:, 0].double().numpy()
    assert len(x) == 5 * 319
    expected = solved(CCAConfig(eta=0.01), block(x, y))
    np.testing.assert_allclose(models[0].correlations, expected.correlations, atol=1e-10)


def _reader(root: str) -> Any:
    from xmodal.batches.examples import Examples
    from xmodal.batches.reader import Reader

    setup = Setup(root)
    tables = setup.tables("pictures")
    store = setup.store("resnet", tables)
    return Reader(Examples.of(tables, TOY.view, store, setup.texts_of(TOY.text, tables, store)), store)


def test_settings_that_cannot_be_solved_leave_nothing_behind(root: str, tmp_path: Path) -> None:
    """Features of 64 numbers are sums of fewer facts."""
    singular = replace(TOY, model=CCAConfig(eta=0.0, ridge=0.0))
    run = tmp_path / "run"
    with pytest.raises(
        UserError, match=r"recipe 'cca-toy' on .*/resnet/\w+ and .*/sentences/\w+: number \d+ \(from 0\)"
    ):
        fit(singular, root, str(run))
    fit(TOY, root, str(run))
    with pytest.raises(UserError, match=r"holds another run: .*model\.eta is 0\.01 there and 0 here"):
        fit(singular, root, str(run))


def test_a_killed_or_damaged_run_is_solved_again(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", _stop)
        with pytest.raises(KeyboardInterrupt):
            fit(TOY, root, str(run))
        patch.undo()
        patch.setattr(closed_form, "measure", _stop)
        assert (run / "recipe.json").exists()
        with pytest.raises(KeyboardInterrupt):
            fit(TOY, root, str(run))
    assert not fit(TOY, root, str(run)).trained  # as it was solved before it was measured
    (run / "best.pt").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"best\.pt is damaged: remove it, and train again"):
        fit(TOY, root, str(run))
    (run / "best.pt").unlink()
    assert fit(TOY, root, str(run)).trained


def _stop(*args: object, **others: object) -> None:
    raise KeyboardInterrupt


def test_validation_on_what_it_is_solved_from_is_refused(root: str, tmp_path: Path) -> None:
    common = replace(TOY, validation=replace(TOY.view, captions_per_item=1))
    with pytest.raises(UserError, match="319 items are in both 'toy/train' and 'toy/train'"):
        fit(common, root, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("array", ["facts", "sentences"])
def test_features_that_are_not_finite_are_refused_by_their_row(
    array: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a store that was imported: what stages make is finite."""
    take = FeatureStore.take

    def broken(self: FeatureStore, rows: Any, out: Any = None) -> Any:
        values = take(self, rows, out)
        if self.spec.name == array:
            values[np.asarray(rows) == 17] = np.inf
        return values

    monkeypatch.setattr(FeatureStore, "take", broken)
    stage = {"facts": "resnet"}.get(array, array)
    with pytest.raises(UserError, match=rf"{stage}/\w+: the row of '.*17.*' is not finite: build these features again"):
        fit(TOY, root, str(tmp_path / "run"))


def test_features_of_the_validation_that_are_not_finite_are_one_line(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FeatureStore.take

    def broken(self: FeatureStore, rows: Any, out: Any = None) -> Any:
        values = take(self, rows, out)
        if self.spec.name == "facts":
            values[np.asarray(rows) == 28] = np.nan
        return values

    monkeypatch.setattr(FeatureStore, "take", broken)
    with pytest.raises(UserError, match=r"'cca-toy' cannot be validated: the similarity of .* is nan; only finite"):
        fit(TOY, root, str(tmp_path / "run"))


def test_sentences_are_those_of_the_method_that_a_recipe_names(root: str, tmp_path: Path) -> None:
    words = make_root(tmp_path / "several", items=100)
    coded(words)
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("red 1 0 0\nblue 0 1 0\ngreen 0 0 1\n")
    mean = replace(TOY, text=Features("sentences", method="mean"))
    message = r"has no sentences by mean: build them \(.*--set codebook\.method=mean`\)"
    with pytest.raises(UserError, match=message):
        fit(mean, words, str(tmp_path / "run"))
    coded(words, CodebookConfig("mean", width=3), vectors)
    with pytest.raises(UserError, match="has several sentences, so say which by --texts IDENTITY"):
        fit(TOY, words, str(tmp_path / "run"))
    fit(mean, words, str(tmp_path / "run"))
    assert load(str(tmp_path / "run")).text_mean.shape == (3,)  # type: ignore[attr-defined]
    assert evaluate(str(tmp_path / "run"), Setup(words)).items == 9


def test_a_table_of_the_paper_names_the_sentences_that_its_rows_read(root: str) -> None:
    (table,) = find("two_branch table 2")
    commands = reproduction.to_run(table, Available.now(()))
    for method in ("hglmm", "mean"):
        settings = f"--set codebook.method={method} --set codebook.split=plummer/train --vectors word2vec.bin"
        assert f"xmodal build flickr30k/sentences --root data {settings}" in commands
    assert "xmodal train cca-flickr30k --root data --run runs/cca-flickr30k" in commands
    assert list(reproduction._not_built(TOY, table, Setup(root))) == []
    (missing,) = reproduction._not_built(replace(TOY, text=Features("sentences", method="mean")), table, Setup(root))
    assert "has no sentences by mean: build them" in missing


def test_the_command_line_solves_and_evaluates_it(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "cca", "--corpus", "pictures", "--root", root, "--run", run, "--set", "batch_size=1000"]) == 0
    assert "cca: rsum" in (told := capsys.readouterr().out)
    assert "on validation by a closed form of 1,595 pairs; in " in told
    assert "epoch" not in told
    assert main(["evaluate", run, "--root", root, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "cca"


@pytest.mark.parametrize(
    ("recipe", "flags", "said"),
    [
        ("cca", ["--workers", "2", "--tensorboard"], "'cca' does not take --workers, --tensorboard: leave that out"),
        ("cca", ["--pixels", "0123", "--weights", "file"], "'cca' does not take --pixels, --weights"),
        ("cca", ["--vectors", "file"], "'cca' starts its words from no vectors, so file is of no use"),
        ("vsepp", ["--texts", "0123"], "'vsepp' does not take --texts"),
        ("pvse-coco", ["--set", "phase2.epochs=0", "--weights", "file"], "'pvse-coco' does not take --weights"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(
    recipe: str, flags: list[str], said: str, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", recipe, "--corpus", "pictures", "--root", root, "--run", str(run), *flags]) == 1
    assert said in capsys.readouterr().err
    assert not run.exists()
