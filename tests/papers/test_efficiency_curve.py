"""`xmodal reproduce --curve`: what finished runs measure, by the share of pairs; nothing is trained."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.cli import main
from pipelines.commands.models import reproduce as reproduce_command
from pipelines.papers import efficiency_curve, recipe_runs
from pipelines.papers.efficiency_curve import Point, curve, share_of, why_not_measured
from pipelines.papers.experiments import Available, Experiment, Row
from pipelines.papers.reproduction import run
from tests.toy_root import fit, make_root
from tests.toy_root import one_thread as one_thread
from tests.training.test_training import Death, interrupt
from xmodal.errors import UserError
from xmodal.media.charts import Series, Titles
from xmodal.recipes import View
from xmodal.training.run_setup import Setup

TOYS = (
    *("view.corpus=pictures", "validation.corpus=pictures", "validation.split=toy/val", "phase1.epochs=2"),
    *("batch_size=32", "model.width=16", "model.word_width=8"),
)
KNOWN = Available(recipe_runs.recipes(), frozenset({"pictures"}), frozenset({"resnet"}), frozenset())


def on(split: str, *more: str) -> tuple[str, ...]:
    return (f"view.split={split}", *TOYS, *more)


ROWS = (
    Row("VSE++, half", "", "vsepp", on("toy/train@50%x2")),
    Row("VSE++, full", "", "vsepp", on("toy/train")),
    Row("Wide, half", "", "vsepp", on("toy/train@50%", "model.width=24")),
    Row("Wide, full", "", "vsepp", on("toy/train", "model.width=24")),
    Row("Another, half", "", "no-such-recipe"),
    Row("Quoted", "1 2"),
)
FIGURE = Experiment("a3vse", "Figure 9", "toys", ("t2i R@1", "rsum"), ROWS, ("pictures",))


def test_shares_are_of_the_pairs() -> None:
    known = recipe_runs.recipes()
    shares = {name: share_of(known[f"{name}"]) for name in ("a3vse-flickr30k-10-1", "scan-flickr30k-50-5", "vsepp")}
    assert shares == {"a3vse-flickr30k-10-1": 2, "scan-flickr30k-50-5": 50, "vsepp": 100}
    assert share_of(known["a3vse-coco-20-2"]) == 8
    assert share_of(known["sg-flickr30k"]) == 0  # learns from no pair
    assert share_of(known["cca-flickr30k"]) == 100  # solved from all pairs, if not trained
    half = replace(known["cca"].view, split="karpathy/train@50%x1")
    assert share_of(replace(known["cca"], view=half)) == 10
    every = replace(known["vsepp"], view=View("coco", "karpathy/train@10%x9", captions_per_item=5))
    assert share_of(every) == 10


def test_finished_runs_are_drawn_and_others_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third row is of other settings, the fourth was stopped in its second epoch."""
    root, runs, file = make_root(tmp_path, items=120), tmp_path / "runs", tmp_path / "pictures/curve.png"
    setup = Setup(root)
    with pytest.raises(UserError, match=r"no finished run in .*runs, so nothing is drawn \(VSE\+\+, half: not trained"):
        curve(FIGURE, KNOWN, setup, runs, file)
    assert not file.parent.exists()
    measured = run(replace(FIGURE, rows=ROWS[:2]), KNOWN, setup, runs)
    other = recipe_runs.recipe_with("vsepp", [*ROWS[2].settings, "seed=5"])
    recipe_runs.train(other, setup, runs / ROWS[2].run)
    killed = recipe_runs.recipe_with("vsepp", list(ROWS[3].settings))
    with pytest.raises(KeyboardInterrupt):
        fit(killed, root, str(runs / ROWS[3].run), progress=Death(25, interrupt))  # an epoch is of 15 steps
    assert (runs / ROWS[3].run / "best.pt").is_file()

    given = list[tuple[list[Series], Titles]]()
    draw = efficiency_curve.line_chart
    monkeypatch.setattr(efficiency_curve, "line_chart", lambda *what: given.append(what) or draw(*what))
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*.pt")}
    told = curve(FIGURE, KNOWN, setup, runs, file)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.pt")} == before  # nothing is trained
    ((line,), titles) = given[0]
    values = [row["measured"]["t2i R@1"] for row in measured]
    assert line.name == "VSE++"
    np.testing.assert_allclose(line.points_N2, [(20, values[0]), (100, values[1])])
    assert titles.up == "t2i R@1"
    assert titles.note == "Drawn are 2 of 6 rows, those with a finished run."
    assert "Figure 9: t2i R@1 on pictures" in titles.top
    assert told["points"] == [{"model": "VSE++", "share": share, "value": value} for share, value in line.points_N2]
    assert {name: reason.rpartition(" ")[2] for name, reason in told["missing"].items()} == {
        "Wide, half": "settings",
        "Wide, full": "finished",
        "Another, half": "yet",
    }
    left = [ROWS[2].run, ROWS[3].run]
    trained = [line for line in told["to_run"] if line.startswith("xmodal train ")]
    assert [shlex.split(line)[6] for line in trained] == [str(runs / name) for name in left]
    with Image.open(file) as image:
        image.load()
        assert (image.format, image.width > 900, image.height > 600) == ("PNG", True, True)
    lines = list(reproduce_command.text([told]))
    assert f"{file}: 2 of 6 rows, by the share of pairs learned from" in lines
    assert any(line.startswith("not in it: Wide, half (") and "Another, half (cannot be" in line for line in lines)
    assert json.loads(json.dumps(told))["curve"] == str(file)


def test_several_models_have_a_line_each_in_the_order_of_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    draw = efficiency_curve.line_chart
    monkeypatch.setattr(efficiency_curve, "line_chart", lambda *what: given.append(what) or draw(*what))
    points = [Point("A", 50, 40.0), Point("B", 2, 7.0), Point("A", 10, 30.0), Point("s_g", 0, 10.5)]
    efficiency_curve.draw_curve(FIGURE, points, tmp_path / "curve.png")
    ((first, second, third), titles) = given[0]
    assert "Points above" not in titles.note
    assert [one.name for one in (first, second, third)] == ["A", "B", "s_g"]
    assert first.points_N2.tolist() == [[10, 30], [50, 40]]
    assert third.points_N2.tolist() == [[0, 10.5]]
    efficiency_curve.draw_curve(FIGURE, [*points, Point("A", 50, 44.0)], tmp_path / "curve.png")
    (line, *_), titles = given[1]
    assert line.points_N2.tolist() == [[10, 30], [50, 40], [50, 44]]
    assert "Points above each other are of as many pairs" in titles.note


def test_semantics_of_any_output_are_the_recipe_s(tmp_path: Path) -> None:
    assert why_not_measured(recipe_runs.recipes()["vsepp"], tmp_path) == "not trained"
    known = recipe_runs.recipes()["a3vse-coco-10-5"]
    assert known.unannotated
    named = replace(known, unannotated=replace(known.unannotated, text="semantics/0123456789abcdef"))
    assert efficiency_curve._with_sources(named) == efficiency_curve._with_sources(known) == known


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a3vse figure 1"], "--curve evaluates runs: add --root"),
        (["a3vse", "--root", "ROOT"], "--curve draws one table or figure: name it, such as a3vse Table 1"),
        (["pvse table 3", "--root", "ROOT"], "has no curve: its rows do not learn from several shares"),
        (["a3vse figure 3", "--root", "ROOT"], "a3vse Figure 3 has no curve: it has no recall or other measure"),
        (["a3vse figure 1", "--root", "ROOT", "--curve", "ROOT"], "is a folder: name the PNG"),
        (["a3vse figure 1", "--root", "ROOT", "--curve", "ROOT/x.jpg"], "x.jpg: a curve is a PNG: give it a name that"),
        (["a3vse figure 1", "--root", "ROOT", "--runs", "ROOT/no"], "a3vse Figure 1 has no finished run in"),
        (
            ["a3vse figure 1", "--root", "ROOT", "--runs", "ROOT/no"],
            "`xmodal reproduce a3vse figure 1 --root ROOT --runs ROOT/no` trains and evaluates what is ready of it, or "
            "train its rows one by one (`xmodal train ",
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("ROOT", str(tmp_path)) for word in arguments]
    assert main(["reproduce", "--curve", str(tmp_path / "curve.png"), *given]) == 1
    assert said.replace("ROOT", str(tmp_path)) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
