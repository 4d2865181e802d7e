"""Scoring a matrix of anybody's, as the command line does it: the order of rows and columns, refusals, reports."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipelines.cli import main
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.ranking.test_ranked_lists import LIST_COLUMNS, slow_hits, slow_metrics, slow_pmrp
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.evaluation.matrix_metrics import score, write_ids
from xmodal.metrics.pmrp import plausible_answers
from xmodal.metrics.protocols import (
    ECCV,
    ECCV_FILES,
    OWN,
    Gallery,
    all_metrics,
    classes,
    eccv,
    plausible_scores,
    rank_scores,
)
from xmodal.ranking.ranks import fold_windows, ranks
from xmodal.ranking.relevance import Classes, pack_names
from xmodal.ranking.similarities import Similarities
from xmodal.raw.raw_files import Raw
from xmodal.records.tables import Caption, Item, Label, Row, Split
from xmodal.root.storage import open_storage

PICTURES = Path(__file__).parents[1] / "fixtures/pictures.py"
ITEMS = 60
NAMES = ("bench", "dog", "person", "tree")


def labels(number: int) -> list[str]:
    """Every 50th picture shows nothing that has a name."""
    return [] if number % 50 == 0 else [name for bit, name in enumerate(NAMES) if (number * 7919 >> bit) % 2] or ["sky"]


def parse(raw: Raw) -> Iterator[Row]:
    """Captions are not in the order of the items, the seventh item has a third one, the last of the split none."""
    for number in range(ITEMS + 2):
        yield Item(f"i{number}", f"{number}.jpg")
        yield Split(f"i{number}", "toy/train" if number == ITEMS + 1 else "toy/test")
        yield Label(f"i{number}", "class", f"kind {number % 4}")
        yield from (Label(f"i{number}", "category", name) for name in labels(number))
    for number in reversed([*range(ITEMS), ITEMS + 1]):
        for position in reversed(range(2 + (number == 7))):
            yield Caption(f"c{number}.{position}", f"i{number}", position, "a picture")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("scored")
    for name in ("captions.tsv", "splits.json", "pictures.txt"):
        (folder / name).write_text("")
    corpus = replace(load(str(PICTURES)), parse=parse, counts={})
    CorpusBuild(BuildOptions(open_storage(str(folder / "root")), raw=folder), corpus).build("records")
    return str(folder / "root")


@pytest.fixture(scope="module")
def matrix() -> NDArray[np.float32]:
    """Of the items and the first two captions of each: some are found, some tie, some are lost."""
    random = np.random.default_rng(0)
    signal = np.repeat(np.eye(ITEMS), 2, axis=1) * random.random((ITEMS, 2 * ITEMS)) * 0.8
    return np.round(random.random((ITEMS, 2 * ITEMS)) * 0.8 + signal - 0.6, 2).astype(np.float32)


def saved(folder: Path, matrix: NDArray[Any]) -> Path:
    np.save(folder / "sims.npy", matrix)
    return folder / "sims.npy"


def slow_means(matrix: NDArray[Any], right: NDArray[np.bool_]) -> list[float]:
    rows = [slow_metrics(slow_hits(*query)) for query in zip(matrix, right, strict=True) if query[1].any()]
    return [100 * float(value) for value in np.mean(rows, axis=0)]


def values(found: Mapping[str, float]) -> list[float]:
    return [found[name] for name in LIST_COLUMNS]


def test_every_metric_of_a_matrix_is_its_definition(root: str, matrix: NDArray[np.float32], tmp_path: Path) -> None:
    report, owners = score(saved(tmp_path, matrix), root, "pictures"), np.arange(2 * ITEMS) // 2
    assert (report.items, report.captions, report.absent, report.silent, report.seen) == (ITEMS, 2 * ITEMS, 0, 1, None)
    assert (report.split, report.recipe, report.features) == ("toy/test", "sims.npy", None)
    relevances = {OWN: (np.arange(ITEMS), owners), "class": (np.arange(ITEMS) % 4, owners % 4)}
    lists, plausible = report.metrics.tables["lists"], report.metrics.tables["plausible"]
    assert list(lists) == list(relevances)
    for name, (visual, text) in relevances.items():
        right = visual[:, None] == text
        assert values(lists[name].visual_to_text) == pytest.approx(slow_means(matrix, right))
        assert values(lists[name].text_to_visual) == pytest.approx(slow_means(matrix.T, right.T))
        recalls = report.scores["all" if name == OWN else name]
        assert recalls == rank_scores(ranks(Similarities.of(matrix), Classes(visual, text)))
    table = np.array([[name in labels(number) for name in (*NAMES, "sky")] for number in range(ITEMS)])
    of_visual, of_text = (
        [side[f"PMRP zeta {zeta}"] for zeta in (0, 1, 2)]
        for side in (plausible["all"].visual_to_text, plausible["all"].text_to_visual)
    )
    assert of_visual == pytest.approx(slow_pmrp(matrix, table, table[owners]))
    assert of_text == pytest.approx(slow_pmrp(matrix.T, table[owners], table))
    assert plausible["all"].visual_to_text["queries"] == ITEMS - 2


def test_rows_and_columns_may_come_in_any_named_order(root: str, matrix: NDArray[np.float32], tmp_path: Path) -> None:
    path, random = saved(tmp_path, matrix), np.random.default_rng(1)
    expected, prefix = score(path, root, "pictures"), str(tmp_path / "mine")
    items, captions = write_ids(prefix, root, "pictures")
    assert Path(items).read_text().split() == [f"i{number}" for number in range(ITEMS)]
    wanted = [f"c{number}.{position}" for number in range(ITEMS) for position in range(2 + (number == 7))]
    assert Path(captions).read_text().split() == wanted
    rows, columns = random.permutation(ITEMS), random.permutation(2 * ITEMS)
    wanted.remove("c7.2")
    Path(items).write_text("\n".join(f"i{row}" for row in rows))
    Path(captions).write_text("\n".join(wanted[column] for column in columns))
    for order in "CF":  # as `matrix[rows][:, columns]` is saved
        path = saved(tmp_path, np.asarray(matrix[rows][:, columns], order=order))
        report = score(path, root, "pictures", prefix=prefix)
        assert report.metrics == expected.metrics
        assert report.fingerprint != expected.fingerprint


def test_ids_are_not_written_into_a_folder_that_does_not_exist(root: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is no folder: make it"):
        write_ids(str(tmp_path / "none/ids"), root, "pictures")


def test_all_captions_and_the_first_ones_are_told_apart(root: str, tmp_path: Path) -> None:
    for columns, first in ((2 * ITEMS + 1, 2), (ITEMS, 1)):
        report = score(saved(tmp_path, np.random.default_rng(0).random((ITEMS, columns))), root, "pictures")
        assert report.captions == columns
        own = report.metrics.tables["lists"][OWN]
        assert own.text_to_visual["queries"] == columns
        assert own.visual_to_text["R-P by chance"] == pytest.approx(100 * first / columns, rel=0.02)


WRONG: list[tuple[NDArray[Any], str]] = [
    (np.zeros((2 * ITEMS, ITEMS)), r"is 120 x 60, which has captions as rows: save its transpose"),
    (np.zeros((ITEMS, 5)), r"is 60 x 5, but the split has 60 items and 121 captions \(or 60, 120: the first captions"),
    (np.zeros((5, 2 * ITEMS)), r"is 5 x 120, but the split has 60 items"),
    (np.zeros(5), r"sims\.npy is 5: a matrix of rows and columns is expected, at least one of each"),
    (np.zeros(()), r"sims\.npy is one number: a matrix of rows and columns is expected"),
    (np.zeros((0, 0)), r"sims\.npy is 0 x 0: a matrix of rows and columns is expected"),
    (np.zeros((ITEMS, 2 * ITEMS), bool), r"sims\.npy has values of type bool: floats or integers are expected"),
    (np.zeros((ITEMS, 2 * ITEMS), complex), r"sims\.npy has values of type complex128: floats or integers are"),
    (np.full((ITEMS, 2 * ITEMS), np.nan), r"sims\.npy: the similarity of visual row 0 and text row 0 is nan"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_matrix_that_cannot_be_scored_is_refused(
    wrong: NDArray[Any], message: str, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, wrong)
    assert main(["evaluate", "--scores", str(path), "--corpus", "pictures", "--root", root]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(message, said.err)
    assert len(said.err.splitlines()) == 1


def test_files_that_are_no_matrix_are_refused(root: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        score(tmp_path / "none.npy", root, "pictures")
    for content in (b"", b"\x93NUMPY", b"1,2,3\n"):
        (tmp_path / "sims.npy").write_bytes(content)
        with pytest.raises(UserError, match=r"is no \.npy file of a matrix of numbers") as found:
            score(tmp_path / "sims.npy", root, "pictures")
        assert "pickle" not in str(found.value)
    np.savez(tmp_path / "sims.npz", one=np.zeros((ITEMS, ITEMS)))
    with pytest.raises(UserError, match=r"holds several arrays, as numpy\.savez writes them"):
        score(tmp_path / "sims.npz", root, "pictures")


@pytest.mark.parametrize(
    ("items", "captions", "message"),
    [
        (["i1", "i2"], ["c1.0", "c2.0", "c3.0"], r"caption 'c3\.0' is not of the split, or has no item there \(1 such"),
        (["i1", "i2"], ["c1.0", "c2.1", "c1.2"], r"caption 'c1\.2' is not of the split"),
        (["i1", "i2"], ["c1.0", "c1.1", "c1.2"], r"item 'i2' is not of the split, or has no caption there \(1 such\)"),
        (["i1", "i2"], ["c1.0", "c1.1"], r"the matrix has 3 columns, but .* names 2"),
        (["i1", "i1"], ["c1.0", "c1.1", "c2.0"], r"names 1 of its 2 ids twice"),
        (["i1", "i3"], ["c1.0", "c1.1", "c1.0"], r"names 1 of its 3 ids twice"),
        (["i1", "elephant"], ["c1.0", "c1.1", "c2.0"], r"item 'elephant' is not of the split"),
        (None, [], r"mine\.items\.txt is not there: `--write-ids` writes one"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    items: list[str] | None, captions: list[str], message: str, root: str, tmp_path: Path
) -> None:
    if items is not None:
        (tmp_path / "mine.items.txt").write_text("\n".join(items))
        (tmp_path / "mine.captions.txt").write_text("\n".join(captions))
    with pytest.raises(UserError, match=message):
        score(saved(tmp_path, np.zeros((2, 3))), root, "pictures", prefix=str(tmp_path / "mine"))


def test_extended_matches_ask_only_the_judged_queries(tmp_path: Path) -> None:
    """Each direction has queries and answers of its own; what the gallery has not is left out."""
    owners = np.arange(20) // 2
    gallery = Gallery([str(n) for n in range(10)], [str(100 + n) for n in range(20)], owners)
    of_visual, of_text = {3: [100, 107, 115, 9999], 9: [118]}, {104: [4, 5, 7], 119: [2], 100: [77]}
    for name, found in zip(ECCV_FILES, (of_visual, of_text), strict=True):
        (tmp_path / name).write_text(json.dumps(found))
    matrix = np.random.default_rng(0).integers(0, 6, (10, 20)) / 6
    found = all_metrics(Similarities.of(matrix), gallery, {}, eccv(tmp_path, gallery)).tables["lists"][ECCV]
    by_visual, by_text = found.visual_to_text, found.text_to_visual
    right = np.zeros((2, 10, 20), bool)
    right[0, [3, 3, 3, 9], [0, 7, 15, 18]] = right[1, [4, 5, 7, 2], [4, 4, 4, 19]] = True
    assert values(by_visual) == pytest.approx(slow_means(matrix, right[0]))
    assert values(by_text) == pytest.approx(slow_means(matrix.T, right[1].T))
    assert (by_visual["queries"], by_text["queries"]) == (2, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"is not there: --eccv takes the folder with eccv_image_to_caption\.json and eccv_caption"),
        ("[1]", "is no object of lists of ids"),
        ('{"1": 5}', "is no object of lists of ids"),
        ("{", "is no object of lists of ids"),
        ('{"1": [2]}', "judges no item or no caption of this split"),
    ],
)
def test_extended_matches_that_are_none_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    for name in ECCV_FILES if content is not None else ():
        (tmp_path / name).write_text(content or "")
    with pytest.raises(UserError, match=message):
        eccv(tmp_path, Gallery(["7"], ["8"], np.zeros(1, int)))


def test_an_item_of_two_classes_is_refused() -> None:
    gallery = Gallery(["a", "b"], ["c"], np.zeros(1, int))
    for of_item in ({"a": ["x"], "b": ["x", "y"]}, {"a": ["x"]}):
        with pytest.raises(UserError, match=r"item b has [02] labels of the kind 'identity', not one \(1 such items\)"):
            classes(gallery, "identity", of_item)


def test_two_thousand_items_are_judged_in_folds_too() -> None:
    random = np.random.default_rng(0)
    gallery = Gallery([str(n) for n in range(2000)], [str(n) for n in range(2000)], np.arange(2000))
    matrix, names = random.random((2000, 2000), np.float32), {str(n): [NAMES[n % 3], NAMES[3]] for n in range(2000)}
    found = all_metrics(Similarities.of(matrix), gallery, {"category": names}).tables
    bits, windows = pack_names([names.get(item, ()) for item in gallery.ids]), fold_windows(gallery.caption_items, 2000)
    alone = [
        plausible_scores(plausible_answers(Similarities.of(matrix[window]), bits[window[0]], bits[window[1]]))
        for window in windows
    ]
    assert list(found["scores"]) == list(found["plausible"]) == ["all", "1K"]
    for side in ("visual_to_text", "text_to_visual"):
        expected = np.mean([getattr(fold, side)["PMRP"] for fold in alone])
        in_folds = getattr(found["plausible"]["1K"], side)
        assert in_folds["PMRP"] == pytest.approx(expected)
        assert in_folds["queries"] == 2000


def test_the_command_prints_text_json_and_latex(
    root: str, matrix: NDArray[np.float32], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--scores", str(saved(tmp_path, matrix)), "--corpus", "pictures", "--root", root]
    expected = score(tmp_path / "sims.npy", root, "pictures")
    said = []
    for flag in ([], ["--json"], ["--latex"]):
        assert main([*command, *flag]) == 0
        said.append(capsys.readouterr().out)
    text, plain, latex = said[0], json.loads(said[1]), said[2]
    assert text == expected.to_text() + "\n"
    assert (
        len({len(line) for line in text.splitlines() if "chance" not in line and line.startswith(("all", "class"))}) < 4
    )
    for name in ("own captions", "class", "R-P", "mAP@R", "PMRP", "indicator S", "by chance", "left out: 0 not in the"):
        assert name in text
    own, tables = plain["lists"]["own captions"]["visual_to_text"], expected.metrics.tables
    assert own["precision"]["10"] == tables["lists"][OWN].visual_to_text["P@10"]
    assert plain["plausible"]["all"]["visual_to_text"]["mean"] == tables["plausible"]["all"].visual_to_text["PMRP"]
    assert plain["scores"]["class"]["rsum"] == expected.scores["class"].rsum
    assert (plain["separation"], plain["seen"]) == (expected.metrics.value("indicator S"), None)
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    tables = [part.split(r"\end{tabular}")[0].splitlines() for part in latex.split(r"\begin{tabular}")[1:]]
    assert [[line.split(" & ")[0] for line in table[3:]] for table in tables] == [
        ["all", "class"],
        ["own captions", "class"],
        ["all"],
    ]
    for columns, _, head, *rows in tables:
        cells = head.count(" & ") + 1
        assert columns == "{l" + "r" * (cells - 1) + "}"
        assert {line.count(" & ") for line in (head, *rows)} == {cells - 1}
        assert all(line.endswith(r" \\") for line in rows)
    assert tables[0][3].split(" & ")[-1] == rf"{expected.scores['all'].rsum:.1f} \\"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to evaluate"),
        (["run", "--scores", "sims.npy", "--corpus", "pictures"], "say what to evaluate"),
        (["--scores", "sims.npy"], "--scores and --write-ids need --corpus"),
        (["run", "--corpus", "pictures"], "a run knows its own corpus: leave out --corpus"),
        (["run", "--ids", "mine"], "--ids belongs to --scores"),
        (["--scores", "x.npy", "--corpus", "toy", "--distance", "elk"], "--distance belongs to a run or a file of"),
        (["--scores", "sims.npy", "--corpus", "pictures", "--split", "toy/dev"], "has no split 'toy/dev'"),
        (["--scores", "sims.npy", "--corpus", "coco"], "no corpus 'coco' under"),
    ],
)
def test_a_command_that_asks_for_nothing_or_too_much_is_refused(
    arguments: list[str],
    message: str,
    root: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved(tmp_path, np.zeros((ITEMS, ITEMS)))
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", *arguments, "--root", root]) == 1
    assert message in capsys.readouterr().err


def test_ids_are_written_by_the_command(root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--write-ids", str(tmp_path / "mine"), "--corpus", "pictures", "--root", root]
    assert main([*command, "--split", "toy/train"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in ("mine.items.txt", "mine.captions.txt")]
    assert (tmp_path / "mine.items.txt").read_text() == f"i{ITEMS + 1}\n"
    assert (tmp_path / "mine.captions.txt").read_text() == f"c{ITEMS + 1}.0\nc{ITEMS + 1}.1\n"
