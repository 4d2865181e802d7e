"""The commands that `xmodal reproduce` prints do what they say, and what it measured says on what."""

import shlex
from collections import defaultdict
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.commands import load_all
from pipelines.commands.models import reproduce as reproduce_command
from pipelines.papers import recipe_runs
from pipelines.papers.experiments import Available, Experiment, Row, find
from pipelines.papers.reproduction import about, run, to_run
from pipelines.stages import with_needs
from tests.commands.test_cli import Xmodal
from tests.commands.test_cli import xmodal as xmodal
from tests.commands.test_region_commands import FIXTURE, eight_pictures
from tests.toy_detector import toy_detector as toy_detector
from tests.toy_root import make_root
from tests.toy_root import one_thread as one_thread
from xmodal import detectors
from xmodal.root.outputs import find as find_outputs
from xmodal.training.run_setup import Setup

COUNTED = (
    *("view.corpus=pictures", "view.split=toy/train", "validation.corpus=pictures", "validation.split=toy/val"),
    *("phase1.epochs=1", "batch_size=32", "model.width=16", "model.word_width=8"),
)
ROWS = (Row("VSE++", "64.6 400", "vsepp", COUNTED), Row("VSE0, 1 %", "", "vse0", COUNTED))
TABLE = Experiment("pvse", "Table 9", "toys", ("i2t R@1", "rsum"), ROWS, ("pictures",))
KNOWN = Available(
    recipe_runs.recipes(),
    frozenset({"pictures"}),
    frozenset({"resnet", "regions", "semantics"}),
    frozenset({"look", "reproduce"}),
)


@pytest.mark.parametrize("each", find("a3vse"), ids=lambda each: each.number)
def test_builds_of_a_table_give_each_stage_the_same_settings(each: Experiment) -> None:
    known, given = Available.now(load_all()), defaultdict[str, set[str]](set)
    for command in to_run(each, known):
        words = shlex.split(command)
        if words[1] == "build" and "/" in words[2]:
            for stage in with_needs([words[2].rpartition("/")[2]]):
                own = [word for word in words[4:] if word.startswith((f"{stage}.", "detector=", "object_words="))]
                given[stage].add(" ".join(own if stage == "regions" else own[:0]))
    assert given["regions"] in (
        set(),
        {"regions.fewest=36 regions.most=36 detector=vg.pkl object_words=objects_vocab.txt"},
    )


def test_running_the_list_builds_each_stage_once(
    xmodal: Xmodal, toy_detector: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = detectors.DetectorKind("toy_detector", 0.0, files=detectors.KINDS["bottom_up"].files)
    monkeypatch.setitem(detectors.KINDS, "bottom_up", kind)
    monkeypatch.chdir(tmp_path)
    for name in ("vg.pkl", "objects_vocab.txt", "attributes_vocab.txt"):
        (tmp_path / name).write_bytes(b"\x02")
    raw, named = eight_pictures(tmp_path), ("view.corpus=pictures", "validation.corpus=pictures")
    xmodal.done("build", f"{FIXTURE}/records", "--root", "data", "--raw", raw)
    rows = tuple(Row(name, "", name, named) for name in ("scan-flickr30k-10-5", "a3vse-flickr30k-10-5"))
    table = Experiment("a3vse", "Table 9", "", (), rows, ("pictures",), build=("regions.fewest=2", "regions.most=3"))
    builds = [command for command in to_run(table, KNOWN) if " build " in command]
    assert len(builds) == 3
    for command in builds:
        xmodal.done(*shlex.split(command)[1:], "--raw", raw)
    counts = {stage: len(find_outputs("data", stage)) for stage in ("records", "regions", "semantics")}
    assert counts == {"records": 1, "regions": 1, "semantics": 1}


def test_commands_name_the_root_and_the_runs_that_are_used(tmp_path: Path) -> None:
    root, runs = make_root(tmp_path / "my data"), tmp_path / "mine"
    further = ("look runs/vsepp --root data --tsne out", "reproduce pvse table 9 --root data --curve c.png")
    table, setup = Experiment(**vars(TABLE) | {"commands": further}), Setup(root)
    at = f"--root {shlex.quote(root)}"
    left = to_run(table, KNOWN, setup, runs)
    assert not [command for command in left if " build " in command], "all that is trained from is there"
    assert left[0].startswith(f"xmodal train vsepp {at} --run {runs / ROWS[0].run}")
    assert left[1] == f"xmodal evaluate {runs / ROWS[0].run} {at}"
    assert left[-2:] == [
        f"xmodal look {runs}/vsepp {at} --tsne out",
        f"xmodal reproduce pvse table 9 {at} --curve c.png --runs {runs}",
    ]
    elsewhere = to_run(table, KNOWN, Setup(str(tmp_path / "none")), runs)
    assert elsewhere[:2] == [
        f"xmodal build pictures --root {tmp_path}/none",
        f"xmodal build pictures/resnet --root {tmp_path}/none",
    ]


def test_what_was_measured_says_on_what_and_from_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(make_root(tmp_path))
    rows = run(TABLE, KNOWN, setup, tmp_path / "runs")
    (features,) = find_outputs(setup.root, "resnet")
    told = about(TABLE, KNOWN) | {"rows": rows, "to_run": []}
    assert rows[0]["on"] == {"split": "toy/test", "items": 11, "captions": 55}
    assert rows[0]["from"] == {"features": features.folder, "network": "toynet random:0 (sha256 abcd)"}
    where = (
        f"measured on 11 items and 55 captions of toy/test, features {features.folder} by toynet random:0 (sha256 ab"
    )
    assert [line[: len(where)] for line in reproduce_command.text([told])].count(where) == 1
    latex = list(reproduce_command._latex(told))
    assert latex[1].startswith(f"% {where}")
    assert latex[4] == r"VSE++ & printed & 64.6 & 400 \\"
    assert latex[6].startswith(r"VSE0, 1 \% & measured & ")
    assert f"{rows[0]['measured']['rsum']:.1f}" in latex[5]
    rows[1]["on"] = {"split": "toy/val", "items": 12, "captions": 60}
    differing = [line for line in reproduce_command.text([told]) if line.startswith("measured on ")]
    assert [line.rpartition(": ")[2] for line in differing] == ["VSE++", "VSE0, 1 %"]


def test_a_table_is_printed_as_latex_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "a3vse", "table", "5", "--latex"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (table,) = find("a3vse table 5")
    assert len([line for line in lines if " & printed & " in line]) == len(table.rows)
    assert (lines[1][:16], lines[-1]) == (r"\begin{tabular}{", r"\end{tabular}")
    assert main(["reproduce", "a3vse", "table", "5", "--latex", "--json"]) == 1
    assert "--json and --latex" in capsys.readouterr().err
