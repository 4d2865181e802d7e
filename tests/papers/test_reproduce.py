"""Every experiment of the papers is listed, as the papers print it; whether it is ready follows from what there is."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.cli import main
from pipelines.commands import load_all
from pipelines.commands import parser as make_parser
from pipelines.commands.models import reproduce as reproduce_command
from pipelines.demo import coco, mrw, tgif
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.progress_line import ProgressLine
from pipelines.papers import recipe_runs
from pipelines.papers.experiments import (
    Available,
    Experiment,
    Row,
    find,
    is_measured,
    lacks,
    missing,
    of_paper,
    papers,
    parts_of,
    state,
)
from pipelines.papers.reproduction import about, measured, run, to_run
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.publishers import cub, cuhk_pedes, flickr30k, flickr30k_entities
from tests.toy_root import PICTURES, make_root
from tests.toy_root import one_thread as one_thread
from tests.training.test_trunk import SETTINGS
from tests.training.test_trunk import make_root as make_pictures
from xmodal.corpora import Corpus
from xmodal.corpora import load as load_corpus
from xmodal.errors import UserError
from xmodal.evaluation.matrix_metrics import score
from xmodal.evaluation.run_metrics import evaluate
from xmodal.metrics.protocols import headline
from xmodal.models.dual_path import FLICKR30K, SMALL
from xmodal.models.vsepp import VSEPP_COCO
from xmodal.raw.raw_files import Raw
from xmodal.recipes import Features, Phrases, Recipe, Relative, Tokens, View
from xmodal.records.derived_splits import Share
from xmodal.records.tables import Split
from xmodal.root.storage import open_storage
from xmodal.training.run_setup import Setup

TEXTS = Path(__file__).parents[3] / "shared/papers"
NUMBERED = re.compile(r"\b(table|figure|fig)\.?\s+(\d+|[IVX]+)\b", re.IGNORECASE)
CELL = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.]*\d)"
ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8}
ON_TOYS = (
    *("view.corpus=pictures", "view.split=toy/train", "validation.corpus=pictures", "validation.split=toy/val"),
    *("phase1.epochs=2", "batch_size=32", "model.width=16", "model.word_width=8", "text.minimum_count=2"),
)


def text_of(paper: str) -> str:
    path = TEXTS / f"{paper}.txt"
    if not path.is_file():
        pytest.skip(f"no text of {paper}")
    return path.read_text()


def every() -> tuple[Experiment, ...]:
    return find("")


def available() -> Available:
    return Available.now(load_all())


# ------------------------------------------------------------------------------------------- as complete as the papers


@pytest.mark.parametrize("paper", papers())
def test_no_table_and_no_figure_that_a_paper_names_is_absent(paper: str) -> None:
    named = {
        f"{'Table' if kind.lower() == 'table' else 'Figure'} {ROMAN.get(number, number)}"
        for kind, number in NUMBERED.findall(text_of(paper))
    }
    listed = {each.number for each in of_paper(paper) if not each.number.startswith("§")}
    assert named == listed


def test_the_papers_are_five_and_their_tables_these() -> None:
    tables = {paper: sum(each.number.startswith("Table") for each in of_paper(paper)) for paper in papers()}
    assert tables == {"a3vse": 5, "dual_path": 8, "pcme": 3, "pvse": 4, "two_branch": 5}


@pytest.mark.parametrize("paper", papers())
def test_every_value_is_printed_in_the_paper(paper: str) -> None:
    text = text_of(paper)
    printed = set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))
    for each in of_paper(paper):
        for row in each.rows:
            absent = [value for value in row.printed.split() if value != "-" and value not in printed]
            assert absent == [], (each.name, row.name)


@pytest.mark.parametrize("paper", papers())
def test_the_rows_of_a_table_stand_in_the_paper_value_by_value(paper: str) -> None:
    """Digits slip when they are copied. Dual-Path's table 8 has its 1K and its 5K rows apart."""
    joined = f" {' '.join(re.findall(CELL, text_of(paper)))} "

    def stands(values: list[str]) -> bool:
        return f" {' '.join(value for value in values if value != '-')} ".replace("  ", " ") in joined

    for each in of_paper(paper):
        for row in each.rows if each.number.startswith("Table") else ():
            values = row.printed.split()
            half = len(values) // 2
            assert stands(values) or (stands(values[:half]) and stands(values[half:])), (each.name, row)


def test_names_are_unique_and_every_experiment_says_what_it_takes_or_why_it_cannot_be() -> None:
    names = [each.name for each in every()]
    assert len(set(names)) == len(names)
    for each in every():
        assert each.number.split()[0] in ("Table", "Figure") or each.number.startswith("§"), each.name
        assert each.why_not or (each.data and each.features and each.compute and each.corpora), each.name
        assert each.why_not or each.recipes or each.commands or any(row.lacks for row in each.rows), each.name


def test_a_row_must_have_a_value_for_each_column() -> None:
    with pytest.raises(ValueError, match="'1 2' is not 1 values"):
        Experiment("pvse", "Table 9", "wrong", columns=("R@1",), rows=(Row("a", "1 2"),))


def test_steps_are_pairs_by_batches() -> None:
    counted = re.compile(r"epochs x ([\d,]+) steps \(([\d,]+) pairs in batches of ([\d,]+)\)")
    said = [found for each in every() for found in counted.findall(each.compute)]
    assert len(said) > 20
    for found in said:
        steps, pairs, batch = (int(number.replace(",", "")) for number in found)
        assert steps == math.ceil(pairs / batch)


# Multiplications and additions of one picture of 224 x 224, forward.
PRODUCTS = {"ResNet-50": 4.1e9, "ResNet-152": 11.5e9}


def test_a_network_that_is_trained_costs_three_times_its_forward_pass() -> None:
    counted = re.compile(r"([\d.]+) million pictures forward and back through (ResNet-\d+), (\de\+\d+) FLOP")
    said = [found for each in every() for found in counted.findall(each.compute)]
    assert {network for _, network, _ in said} == PRODUCTS.keys()
    for millions, network, operations in said:
        cost = 2 * 3 * PRODUCTS[network] * float(millions) * 1e6
        assert operations == f"{cost:.0e}", (millions, network)


# -------------------------------------------------------------------------------------------------------------- finding


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pvse table 1", "pvse Table 1"),
        ("PVSE-Table-1", "pvse Table 1"),
        ("pvse:1", "pvse Table 1"),
        ("pvse tab. 2", "pvse Table 2"),
        ("pvse figure 1", "pvse Figure 1"),
        ("pvse/fig7", "pvse Figure 7"),
        ("pvse 7", "pvse Figure 7"),
        ("dual-path table VIII", "dual_path Table 8"),
        ("DualPath IV", "dual_path Table 4"),
        ("dual path fig. 15", "dual_path Figure 15"),
        ("two branch §4.4a", "two_branch §4.4a"),
        ("twobranch section 4.4b", "two_branch §4.4b"),
        ("a3vse text 4.6", "a3vse §4.6"),
    ],
)
def test_one_experiment_is_found_however_it_is_spelled(text: str, name: str) -> None:
    assert [each.name for each in find(text)] == [name]


def test_every_experiment_is_found_by_its_own_name_and_a_paper_by_its() -> None:
    for each in every():
        assert find(each.name) == (each,)
    for paper in papers():
        assert find(paper.replace("_", "-").upper()) == of_paper(paper)
    assert len(every()) == sum(len(of_paper(paper)) for paper in papers())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clip", r"no paper 'clip'; there are: a3vse, dual_path, pcme, pvse, two_branch;"),
        ("pcme table 9", r"no experiment 'pcme table 9'; of pcme there are: Table 1, .*, Figure 8, .*§4.4"),
        ("pvse drawing", r"of pvse there are: Table 1"),
        ("a3vse table -1", r"no experiment 'a3vse table -1': tables and figures are counted from 1"),
    ],
)
def test_an_unknown_name_is_refused_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        find(text)


# -------------------------------------------------------------------------------------------------- whether it is ready

TINY = Experiment("pvse", "Table 9", "VSE++", ("i2t R@1", "rsum"), (Row("VSE++", "1 2", "vsepp"),), ("coco",))
ALL = Available({"vsepp": VSEPP_COCO}, frozenset({"coco"}), frozenset({"resnet"}), frozenset({"stats"}))


def test_ready_is_what_lacks_nothing() -> None:
    assert state(TINY, ALL) == "ready"
    assert state(replace(TINY, why_not="drawn"), ALL) == "not reproducible here: drawn"


@pytest.mark.parametrize(
    ("experiment", "known", "lacking"),
    [
        (TINY, replace(ALL, recipes={}), ["recipe vsepp"]),
        (TINY, replace(ALL, corpora=frozenset()), ["corpus coco"]),
        (TINY, replace(ALL, stages=frozenset()), ["stage resnet"]),
        (replace(TINY, corpora=("mrw",)), ALL, ["corpus mrw"]),
        (replace(TINY, commands=("search x",)), ALL, ["command `xmodal search`"]),
        (replace(TINY, commands=("stats coco",)), ALL, []),
        (replace(TINY, rows=(Row("a", "", "vsepp", ("model.layers=2",)),)), ALL, ["setting model.layers=2 of"]),
        (replace(TINY, rows=(Row("a", "", "vsepp", ("model.width=2",)),)), ALL, []),
        (replace(TINY, rows=(Row("a", "", "vsepp", lacks="way"),)), ALL, ["way"]),
        (replace(TINY, rows=(Row("a", "", lacks="way"),)), ALL, ["way"]),
        (replace(TINY, columns=("phrase R@3", "1K t2i colour")), ALL, ["measure 'phrase R@3'", "measure '1K t2i c"]),
        (replace(TINY, columns=("clips", "words"), rows=(Row("a", "1 2"),)), ALL, []),
    ],
)
def test_what_is_lacking_is_named(experiment: Experiment, known: Available, lacking: list[str]) -> None:
    found = missing(experiment, known)
    assert len(found) == len(lacking)
    assert all(one.startswith(start) for one, start in zip(found, lacking, strict=True)), found


def test_a_recipe_that_training_refuses_is_not_ready() -> None:
    (phase,) = VSEPP_COCO.phases
    drawn = replace(VSEPP_COCO, phases=(replace(phase, sampler=Phrases(0.7, 0.3, 2)),))
    assert state(TINY, replace(ALL, recipes={"vsepp": drawn})) == (
        "not yet: no training with a sampler of captions for phrases, or of phrases for captions"
    )


def test_a_figure_of_examples_says_what_it_waits_for_and_what_can_be_run() -> None:
    examples = [each for number in (9, 10, 12, 13, 14, 15) for each in find(f"dual_path figure {number}")]
    assert {state(each, available()) for each in examples} == {
        "not yet: no command `xmodal search`, which would find what it shows; the runs that it reads can be trained"
    }


def test_columns_that_evaluation_gives_are_known() -> None:
    given = ("1K i2t R@1", "5K t2i R@10", "v2t Med R", "t2v nMR", "rsum", "phrase R@5")
    assert all(map(is_measured, given))
    assert not any(map(is_measured, ("R@1", "i2t R@3", "phrase R@3", "p of rsum", "i2t R@1 by uncertainty")))


def test_what_is_said_to_be_ready_has_commands_that_the_command_line_takes() -> None:
    known, parser = available(), make_parser()
    for each in every():
        commands = to_run(each, known)
        assert commands or state(each, known) != "ready"
        for command in commands:
            parser.parse_args(command.replace("'", "").split()[1:])
    settings = replace(TINY, rows=(Row("a", "", "vsepp", ("model.width=2",)),), on_validation=True)
    assert to_run(settings, ALL) == [
        "xmodal build coco --root data",
        "xmodal build coco/resnet --root data",
        "xmodal train vsepp --root data --run runs/vsepp,model.width=2 --set model.width=2",
        "xmodal evaluate runs/vsepp,model.width=2 --root data --split karpathy/val",
    ]


def test_recipes_that_exist_are_of_the_corpora_that_their_experiments_name() -> None:
    known = available()
    for each in every():
        for name in each.recipes:
            if name in known.recipes:
                assert known.recipes[name].view.corpus in each.corpora, (each.name, name)


def test_a_recipe_is_built_alike_for_every_experiment_of_a_paper() -> None:
    """Else a figure asks for other features than the table had whose runs it shows."""
    known, built = available(), dict[tuple[str, str], tuple[list[str], str]]()
    for each in every():
        for row in each.rows:
            if row.recipe in known.recipes:
                alone = to_run(replace(each, rows=(replace(row, lacks=""),)), known)
                commands = [command for command in alone if command.startswith("xmodal build")]
                first, where = built.setdefault((each.paper, row.run), (commands, each.name))
                assert commands == first, (row.run, each.name, where)


PUBLISHERS: dict[str, tuple[Callable[[World, Path], Corpus], World]] = {
    "coco": (coco.write, World(items=30, image_size=32)),
    "cub": (cub.write, World(items=60, image_size=32, captions_per_item=10, identities=12)),
    "cuhk_pedes": (cuhk_pedes.write, World(items=60, image_size=32, captions_per_item=2, identities=12)),
    "flickr30k": (flickr30k.write, World(items=30, image_size=32)),
    "flickr30k_entities": (flickr30k_entities.write, World(items=30, image_size=32)),
    "mrw": (mrw.write, World(items=20, image_size=32, motion=0.9)),
    "tgif": (tgif.write, World(items=20, image_size=32, captions_per_item=3, motion=0.9)),
}  # of every corpus that a recipe reads


def test_every_recipe_reads_splits_that_its_corpus_has_and_is_tested_on_one(tmp_path: Path) -> None:
    of: dict[str, list[Recipe]] = {}
    for recipe in recipe_runs.recipes().values():
        assert recipe.validation.corpus == recipe.view.corpus
        of.setdefault(recipe.view.corpus, []).append(recipe)
    assert of.keys() == PUBLISHERS.keys()
    for name, (write, world) in PUBLISHERS.items():
        corpus = write(world, tmp_path / name)
        there = {row.name for row in corpus.parse(Raw.folder(tmp_path / name)) if isinstance(row, Split)}
        there |= {f"{who}/{part}" for who in corpus.drawn for part in ("train", "val", "test")}
        for recipe in of[name]:
            share = Share.of(recipe.view.split)
            beside = f"{recipe.view.split.rpartition('/')[0]}/test"  # where `xmodal evaluate` looks by default
            read = share.whole if share else recipe.view.split
            assert {read, recipe.validation.split, beside} <= there, recipe.name


def test_corpora_and_the_recipes_of_pvse_and_pcme_exist() -> None:
    known = available()
    assert {name for each in every() for name in each.corpora} <= known.corpora
    absent = {name for paper in ("pvse", "pcme") for each in of_paper(paper) for name in each.recipes} - {
        *known.recipes
    }
    assert absent == set()


def test_what_look_measures_is_ready_with_its_command() -> None:
    known = available()
    for figure, recipe in (("6", "pcme-coco"), ("7", "pcme-cub")):
        (each,) = find(f"pcme figure {figure}")
        assert state(each, known) == "ready"
        assert to_run(each, known)[-2:] == [
            f"xmodal evaluate runs/{recipe} --root data",
            f"xmodal look runs/{recipe} --root data --probes",
        ]


def test_pictures_of_a3vse_are_ready_with_their_commands() -> None:
    known = available()
    (planes,), (curves,) = find("a3vse figure 3"), find("a3vse figure 1")
    assert state(planes, known) == "ready"
    shown = [command.split() for command in to_run(planes, known)[-3:]]
    assert [words[2] for words in shown] == [f"runs/{row.run}" for row in planes.rows]
    assert all(words[1] == "look" and "--tsne" in words for words in shown)
    assert to_run(curves, known)[-1].startswith("xmodal reproduce a3vse figure 1 --root data --curve ")


def test_commands_are_whole() -> None:
    """The network of the paper, pictures where a phase sees them, and the file of vectors."""
    (table,) = find("pcme table 1")
    assert to_run(table, available())[:5] == [
        "xmodal build cub --root data",
        "xmodal build cub/resnet --root data --set resnet.network=resnet50",
        "xmodal build cub/pixels --root data",
        "xmodal train pcme-cub-mu --root data --run runs/pcme-cub-mu --vectors glove.840B.300d.txt",
        "xmodal evaluate runs/pcme-cub-mu --root data",
    ]
    (figure,) = find("pvse figure 7")
    assert "xmodal build coco/resnet --root data" in to_run(figure, available())
    assert not any("pixels" in command for command in to_run(figure, available()))


def test_the_weights_of_figure_7_are_relative_in_the_recipes_that_exist() -> None:
    (figure,), known = find("pvse figure 7"), available()
    assert len(figure.rows) == 4 * 4 * 3
    for name in set(figure.recipes) & known.recipes.keys():
        kinds = [type(weight) for weight in known.recipes[name].phases[0].weights.values()]
        assert kinds.count(Relative) == 2, name


# ------------------------------------------------------------------------------------------------------ running one


def test_a_table_is_trained_evaluated_and_found_finished_the_second_time(tmp_path: Path) -> None:
    root, runs = make_root(tmp_path), tmp_path / "runs"
    settings = tuple(setting for setting in ON_TOYS if not setting.startswith("text."))
    rows = (
        Row("VSE++", "64.6 1 400", "vsepp", settings),
        Row("Twice the same", "", "vsepp", settings),
        Row("Another", "1 2 3", "no-such-recipe"),
        Row("Quoted", "1 2 3"),
    )
    table = Experiment("pvse", "Table 9", "toys", ("i2t R@1", "t2i Med R", "rsum"), rows, ("pictures",))
    known = replace(ALL, recipes=recipe_runs.recipes(), corpora=frozenset({"pictures"}))
    found = run(table, known, Setup(root), runs)
    (folder,) = runs.iterdir()
    assert (folder / "best.pt").is_file()
    first, second, another, quoted = (row["measured"] for row in found)
    assert first == second
    assert (another, quoted) == (None, None)
    assert first.keys() == {"i2t R@1", "t2i Med R", "rsum"}
    report = evaluate(str(folder), Setup(root), "toy/test")
    assert first["rsum"] == pytest.approx(report.scores["all"].rsum)
    assert first["i2t R@1"] == report.scores["all"].visual_to_text["R@1"]
    assert first["t2i Med R"] == report.scores["all"].text_to_visual["Med R"]
    told = list(reproduce_command.text([about(table, known) | {"rows": found}]))
    shown = [re.split(r"\s{2,}", line.strip()) for line in told if line.startswith("VSE++")]
    assert [(cells[1].split()[-1], cells[-2]) for cells in shown] == [("R@1", "64.6"), ("R", "1"), ("rsum", "400")]
    assert [cells[-1] for cells in shown] == [f"{value:.2f}" for value in first.values()]
    assert not any("Quoted" in line for line in told)
    before = (folder / "best.pt").stat().st_mtime_ns, (folder / "log.jsonl").read_bytes()
    assert run(table, known, Setup(root), runs) == found
    assert ((folder / "best.pt").stat().st_mtime_ns, (folder / "log.jsonl").read_bytes()) == before


def test_a_table_without_a_row_that_is_ready_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = replace(TINY, rows=(Row("a", "", "no-such-recipe"),))
    with pytest.raises(UserError, match="no row that can be run; not yet: no recipe no-such-recipe"):
        run(table, ALL, Setup(str(tmp_path / "root")), tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


SEEN = (
    *("view.corpus=pictures", "view.split=train", "validation.corpus=pictures", "validation.split=val"),
    *("phase1.epochs=1", "phase2.epochs=1", "batch_size=8", "model.width=8", "model.word_width=4"),
    "text.minimum_count=2",
)
STAGED = Available(
    recipe_runs.recipes(), frozenset({"pictures", "coco"}), frozenset({"resnet", "pixels"}), frozenset({"look"})
)


class Said(ProgressLine):
    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def test_a_row_with_vectors_and_a_phase_of_pictures_is_trained(tmp_path: Path) -> None:
    root, vectors, told = make_pictures(tmp_path, "grid"), tmp_path / "v.txt", Said()
    vectors.write_text("a 1 2 3 4\nred 4 3 2 1\nblue 0 1 0 1\nand 1 1 1 1\n")
    without_second = tuple(setting for setting in SEEN if not setting.startswith("phase2"))
    rows = (Row("PVSE", "400", "pvse-coco", SEEN), Row("VSE0", "300", "vse0", without_second))
    table = Experiment("pvse", "Table 9", "toys", ("rsum",), rows, ("pictures",), on_validation=True)
    found = run(table, STAGED, Setup(root, vectors=vectors, progress=told), tmp_path / "runs")
    assert all(0 < row["measured"]["rsum"] <= 600 for row in found)
    facts = json.loads((tmp_path / "runs" / rows[0].run / "recipe.json").read_text())
    assert (len(facts["vectors"]), bool(facts["pixels"])) == (64, True)
    about_features = [text for text in told.texts if "not by the resnet152 of pvse Table 9" in text]
    assert [text.partition(" is by ")[2].split()[0] for text in about_features] == ["resnet18"]
    again = run(table, STAGED, Setup(root), tmp_path / "runs")
    assert again == found


def test_what_any_row_misses_is_said_before_the_first_is_trained(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=40)
    toys = tuple(setting for setting in ON_TOYS if "phase" not in setting)
    rows = (
        Row("VSE++", "1", "vsepp", ON_TOYS),
        Row("PVSE", "1", "pvse-coco", toys),
        Row("on", "1", "vsepp", ("view.corpus=pictures", "validation.corpus=pictures")),
        Row("elsewhere", "1", "vse0"),
    )
    table = Experiment("pvse", "Table 9", "toys", ("rsum",), rows, ("pictures",))
    with pytest.raises(UserError) as caught:
        run(table, STAGED, Setup(root), tmp_path / "runs")
    assert "nothing of pvse Table 9 is trained yet: " in str(caught.value)
    for lacking in (
        "pvse-coco starts its words from glove.840B.300d: give the file (--vectors FILE)",
        f"(`xmodal build pictures/pixels --root {root}`)",
        "pictures has no split 'karpathy/train'; there are: toy/",
        f"(`xmodal build coco --root {root}`)",
    ):
        assert str(caught.value).count(lacking) == 1, lacking
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UserError, match=r"no\.txt is no file"):
        run(replace(table, rows=rows[1:2]), STAGED, Setup(root, vectors=tmp_path / "no.txt"), tmp_path / "runs")


def test_pictures_that_no_stage_makes_are_waited_for() -> None:
    row = Row("PVSE", "", "pvse-coco")
    assert lacks(row, replace(STAGED, stages=frozenset({"resnet"}))) == ["stage pixels"]
    assert lacks(row, STAGED) == []


def test_recall_is_by_classes_where_the_corpus_has_them(tmp_path: Path) -> None:
    """Of CUB's generated publisher, by the metrics of a matrix in which a class is found and an item is not."""
    world = World(items=60, image_size=32, captions_per_item=10, identities=12)
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path)
    CorpusBuild(site, cub.write(world, tmp_path)).build("records")
    kinds = {str(picture.number): picture.class_number for picture in cub.pictures(world)}
    ids = [item for item, number in kinds.items() if number in cub.TEST]
    matrix = np.array([[float(kinds[item] == kinds[other]) for other in ids for _ in range(10)] for item in ids])
    np.save(tmp_path / "sims.npy", matrix)
    report = score(tmp_path / "sims.npy", site.storage.url, "cub", "pcme/test")
    assert len({kinds[item] for item in ids}) < len(ids)
    found = measured(report, ("i2t R@1", "t2i R@1", "rsum", "i2t R-P", "1K i2t R@1", "i2t colour"))
    assert found == {"i2t R@1": 100, "t2i R@1": 100, "rsum": 600, "i2t R-P": 100}
    assert report.scores["all"].rsum < 600
    assert headline(report.scores) is report.scores["class"]
    assert headline({"all": report.scores["all"]}) is report.scores["all"]


# ------------------------------------------------------------------------------------------------------- the command


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["reproduce", *arguments])
    return code, *capsys.readouterr()


def test_all_experiments_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys)
    assert (code, err) == (0, "")
    for each in every():
        assert sum(line.startswith(f"{each.name} ") for line in out.splitlines()) == 1
    assert out.splitlines()[-1].startswith(f"{len(every())} in all; ")


def test_they_are_listed_without_loading_torch() -> None:
    program = "import sys; from pipelines.cli import main; main(['reproduce']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_json_says_what_a_row_lacks() -> None:
    (table,) = find("pvse table 3")
    known = replace(available(), recipes={})
    rows = {row["name"]: row for row in about(table, known)["rows"]}
    assert (rows["DeViSE"]["ready"], rows["DeViSE"]["lacks"]) == (False, ["recipe devise-tgif"])
    for each in every():
        for row in about(each, available())["rows"]:
            assert row["ready"] == (not row["lacks"] if row["recipe"] else None), (each.name, row["name"])


def test_a_paper_is_shown_with_its_rows_and_one_experiment_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    _, paper, _ = said(capsys, "pcme")
    assert "pcme-cub-mu" in paper
    assert "24.70" not in paper
    _, table, _ = said(capsys, "pcme", "table", "2")
    for piece in ("Xian", "0.0"):
        assert piece not in table
    for piece in ("PVSE K=4", "pvse-cub-k4", "34.4", "note: ", "compute: ", "R-P"):
        assert piece in table


def test_json_has_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = said(capsys, "pvse 2", "--json")
    (table,) = json.loads(out)
    assert code == 0
    assert table == json.loads(json.dumps(about(find("pvse 2")[0], available())))
    assert table["rows"][-1]["printed"].startswith("69.2")
    assert set(table["recipes"]) >= {"pvse-coco", "pvse-coco-k1"}
    assert len(json.loads(said(capsys, "--json")[1])) == len(every())


def test_what_cannot_be_shown_or_run_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = said(capsys, "nothing")
    assert (code, out) == (1, "")
    assert err.startswith("xmodal: no paper 'nothing'; there are: ")
    code, out, err = said(capsys, "pvse", "--root", str(tmp_path))
    assert (code, out) == (1, "")
    assert "name it, such as pvse Table 1" in err


def test_columns_go_side_by_side() -> None:
    """Every direction of a table has the same measures in the same order."""
    for each in every():
        sides: dict[str, list[str]] = {}
        for column in each.columns:
            measure = parts_of(column)[2]
            sides.setdefault(column.removesuffix(measure), []).append(measure)
        first, *others = sides.values() or [[]]
        assert all(other == first for other in others), each.name
        assert list(each.columns) == [side + measure for side in sides for measure in first], each.name


def test_a_paper_s_file_is_read_as_it_stands() -> None:
    """Values that a file lines up by spaces are told apart by one, as they are printed."""
    (table,) = find("pvse table 3")
    assert table.columns[:5] == ("v2t R@1", "v2t R@5", "v2t R@10", "v2t Med R", "v2t nMR")
    row = next(row for row in table.rows if row.name == "VSE++")
    assert row == Row("VSE++", "0.42 1.63 3.60 692 0.09 0.55 1.89 3.77 620 0.09", "vsepp-tgif")
    assert find("pcme figure 5")[0].rows[0].settings == ("model.width=2",)


def test_tables_of_phrases_build_proposals_and_the_boxes_that_phrases_name() -> None:
    (table,) = find("two_branch table 1")
    assert state(table, available()) == "ready"
    commands = to_run(table, available())
    assert commands[:4] == [
        "xmodal build flickr30k_entities --root data",
        "xmodal build flickr30k_entities/proposals --root data",
        "xmodal build flickr30k_entities/phrases --root data --set codebook.method=hglmm "
        "--set codebook.split=plummer/train --vectors word2vec.bin",
        "xmodal build flickr30k_entities/regions --root data --set regions.detector=proposals/vgg16 "
        "--set regions.boxes=phrases",
    ]
    assert "xmodal evaluate runs/similarity-phrases-linear-single --root data" in commands
    assert sum(command.startswith("xmodal train") for command in commands) == 11


def test_two_resnets_are_built_under_one_root_and_each_recipe_reads_its_own() -> None:
    (table,) = find("dual_path table 1")
    assert state(table, available()) == "ready"
    built = {command for command in to_run(table, available()) if "flickr30k/resnet" in command}
    assert built == {
        f"xmodal build flickr30k/resnet --root data --set resnet.network={network} --set resnet.output=pooled"
        for network in ("resnet50", "resnet152")
    }
    networks = {row.recipe: available().recipes[row.recipe].visual.network for row in table.rows if row.recipe}
    for recipe, network in networks.items():
        assert network.removeprefix("torchvision/") == recipe.removesuffix("-stage1").rpartition("-")[2]


def test_a_table_of_two_resnets_is_trained_under_one_root(tmp_path: Path) -> None:
    """By both networks, whichever was built first, without a word of which is meant."""
    root = make_pictures(tmp_path, "pooled")
    settings = SETTINGS | {"resnet.network": "resnet34", "resnet.output": "pooled"}
    site = BuildOptions(open_storage(root), raw=tmp_path / "raw", settings=settings)
    CorpusBuild(site, replace(load_corpus(str(PICTURES)), counts={})).build("resnet")
    first, _ = FLICKR30K.phases
    small = replace(
        FLICKR30K,
        view=View("pictures", "train"),
        validation=View("pictures", "val"),
        text=Tokens("dual-path", minimum_count=1),
        model=SMALL[0],
        phases=(replace(first, epochs=1),),
        batch_size=4,
    )
    networks = "resnet18", "resnet34", "resnet50"
    known = {name: replace(small, name=name, visual=Features("resnet", network=name)) for name in networks}
    rows = tuple(Row(name, "1", name) for name in networks)
    table = Experiment("dual_path", "Table 9", "toys", ("rsum",), rows[:2], ("pictures",), on_validation=True)
    told, there = Said(), replace(STAGED, recipes=known)
    found = run(table, there, Setup(root, progress=told), tmp_path / "runs")
    assert all(row["measured"]["rsum"] > 0 for row in found)
    assert [
        json.loads((tmp_path / "runs" / row.run / "recipe.json").read_text())["weights"].split()[0] for row in rows[:2]
    ] == ["resnet18", "resnet34"]
    assert not any("not by the" in text for text in told.texts)
    message = (
        r"has features by resnet\d\d, not by the recipe's resnet50: build these \(`xmodal build pictures/resnet .*"
    )
    with pytest.raises(UserError, match=message + r"--set resnet.network=resnet50`\), or take those \(--set visual.n"):
        run(replace(table, rows=rows), there, Setup(root), tmp_path / "others")
    assert not (tmp_path / "others").exists()


def test_the_tables_of_two_branch_build_ten_crops_and_codes_of_the_training_split() -> None:
    (table,) = find("two_branch table 4")
    assert state(table, available()) == "ready"
    commands = to_run(table, available())
    assert {
        "xmodal build flickr30k/features --root data --set features.model=torchvision/vgg19 --set features.output=fc7 "
        "--set features.views=ten",
        "xmodal build flickr30k/sentences --root data --set codebook.method=hglmm --set codebook.split=plummer/train "
        "--vectors word2vec.bin",
        "xmodal build coco/sentences --root data --set codebook.method=hglmm --set codebook.split=two_branch/train "
        "--vectors word2vec.bin",
        "xmodal train two-branch-coco-sampling --root data --run runs/two-branch-coco-sampling",
    } <= {*commands}
    for name in ("table 2", "table 3", "§5.3"):
        (table,) = find(f"two_branch {name}")
        rows = [row for row in table.rows if row.recipe.startswith(("two-branch", "similarity"))]
        assert [lacks(row, available()) for row in rows] == [[]] * len(rows)
