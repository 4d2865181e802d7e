"""A metric is one file: it is found because it exists, and text, JSON, LaTeX and `reproduce` have its columns."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import xmodal.metrics
from pipelines.papers.experiments import is_measured
from pipelines.papers.reproduction import measured
from xmodal.errors import UserError
from xmodal.metrics.protocols import Gallery, Metrics, all_metrics
from xmodal.metrics.reports import Report
from xmodal.ranking.similarities import Similarities

OWNERS = np.arange(12) // 2
GALLERY = Gallery([f"i{row}" for row in range(6)], [f"c{row}" for row in range(12)], OWNERS)
MATRIX = np.random.default_rng(0).integers(0, 9, (6, 12)) / 9

RECIPROCAL = '''
"""Mean reciprocal rank of the best right answer."""

import numpy as np

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranks import Ranks

METRIC = Metric(
    "toy_reciprocal",
    needs=Ranks,
    compute=lambda found: [100 * float(np.mean(1 / (found.ranks + 1)))],
    columns=(Column("toyRR", key="toy_reciprocal", text="toyRR", latex="toyRR"),),
)
'''
LAST = '''
"""Where the last right answer stands, as a share of the gallery."""

from xmodal.metrics import Column, Metric
from xmodal.ranking.ranked_lists import RelevantRanks

METRIC = Metric(
    "toy_last_rank",
    needs=RelevantRanks,
    compute=lambda found: [found.ranks[found.number == found.relevant.repeat(found.relevant)] / found.gallery],
    columns=(Column("toyLast", key="toy_last_rank", text="toyLast", latex="toyLast"),),
)
'''
SPREAD = '''
"""How far similarities lie apart."""

from xmodal.metrics import Column, Metric
from xmodal.metrics.protocols import Comparison


def spread(compared: Comparison) -> list[float]:
    tiles = [compared.similarities.checked(*window) for window in compared.similarities.cells()]
    return [max(tile.max() for tile in tiles) - min(tile.min() for tile in tiles)]


METRIC = Metric(
    "toy_spread",
    needs=Comparison,
    compute=spread,
    columns=(Column("toySpread", key="toy_spread", text="toySpread"),),
)
'''


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Puts a file where metrics are looked for, beside those that there are."""
    monkeypatch.setattr(xmodal.metrics, "__path__", [*xmodal.metrics.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for path in tmp_path.glob("*.py"):
        del sys.modules[f"xmodal.metrics.{path.stem}"]


def report(metrics: Metrics) -> Report:
    return Report(
        recipe="sims.npy",
        fingerprint="0" * 64,
        records="r",
        features=None,
        weights=None,
        corpus="toys",
        split="test",
        relevance="own",
        items=6,
        captions=12,
        absent=0,
        silent=0,
        seen=None,
        chosen=None,
        metrics=metrics,
    )


def scored() -> Report:
    return report(all_metrics(Similarities.of(MATRIX), GALLERY, {}))


def line_of(report: Report, start: str) -> str:
    return next(line for line in report.to_text().splitlines() if line.startswith(start))


def test_a_value_is_looked_up_by_its_column_and_direction(add: Callable[[str, str], None]) -> None:
    add("toy_reciprocal", RECIPROCAL)
    add("toy_last_rank", LAST)
    matrix = np.array([[0.1, 0.4, 0.9], [0.0, 0.2, 0.7]])  # the third caption is of the second item
    metrics = all_metrics(Similarities.of(matrix), Gallery(["a", "b"], ["x", "y", "z"], np.array([0, 0, 1])), {})
    assert metrics.value("toyRR", "visual_to_text") == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert metrics.value("toyRR", "text_to_visual") == pytest.approx(100 * (1 + 1 + 1 / 2) / 3)
    assert metrics.value("toyLast", "visual_to_text") == pytest.approx(100 * (3 / 3 + 1 / 3) / 2)


def test_a_metric_of_ranks_is_one_file(add: Callable[[str, str], None]) -> None:
    before = scored()
    assert not is_measured("i2t toyRR")
    add("toy_reciprocal", RECIPROCAL)
    found = scored()
    best = [max(row[item == OWNERS]) for item, row in enumerate(MATRIX)]
    ahead = [np.sum(row[item != OWNERS] >= best[item]) for item, row in enumerate(MATRIX)]
    expected = 100 * float(np.mean([1 / (count + 1) for count in ahead]))
    assert found.scores["all"].visual_to_text["toyRR"] == pytest.approx(expected)
    assert json.loads(found.to_json())["scores"]["all"]["visual_to_text"]["toy_reciprocal"] == pytest.approx(expected)
    others, same = json.loads(before.to_json()), json.loads(found.to_json())
    assert others.pop("scores") != same.pop("scores")
    assert others == same
    heads, row = line_of(found, "gallery"), line_of(found, "all")
    assert row.split()[heads.split().index("toyRR")] == f"{expected:.2f}"
    assert len(heads) == len(row)
    table = found.to_latex().splitlines()
    (heads,) = (line for line in table if line.startswith("gallery"))
    cells = table[table.index(heads) + 1].split(" & ")
    assert cells[heads.split(" & ").index("toyRR")] == f"{expected:.1f}"
    assert is_measured("i2t toyRR")
    assert measured(found, ["t2i R@1", "i2t toyRR", "1K i2t toyRR"]) == {
        "t2i R@1": before.scores["all"].text_to_visual["R@1"],
        "i2t toyRR": found.scores["all"].visual_to_text["toyRR"],
    }


def test_a_metric_of_all_right_answers_is_one_file(add: Callable[[str, str], None]) -> None:
    add("toy_last_rank", LAST)
    found = scored()
    worst = [min(row[item == OWNERS]) for item, row in enumerate(MATRIX)]
    expected = 100 * np.mean([np.sum(row[item != OWNERS] >= worst[item]) + 2 for item, row in enumerate(MATRIX)]) / 12
    plain = json.loads(found.to_json())["lists"]["own captions"]["visual_to_text"]
    assert plain["toy_last_rank"] == pytest.approx(expected)
    heads, row = line_of(found, "right are").split(), line_of(found, "own captions").split()
    assert row[heads.index("toyLast")] == f"{expected:.2f}"
    assert found.to_latex().count(" & toyLast") == 2


def test_a_metric_of_the_whole_has_a_line_of_its_own(add: Callable[[str, str], None]) -> None:
    add("toy_spread", SPREAD)
    found = scored()
    assert json.loads(found.to_json())["toy_spread"] == pytest.approx(np.ptp(MATRIX))
    assert [value for column, value in found.metrics.numbers.items() if column.name == "toySpread"] == [np.ptp(MATRIX)]
    assert f"toySpread {np.ptp(MATRIX):.2f}" in found.to_text().splitlines()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"toyRR", key',
            '"R@1", key',
            "metrics 'recall' and 'toy_reciprocal' both have a column 'R@1': give one of them",
        ),
        ('="toy_reciprocal"', '="recall.5"', "metrics 'recall' and 'toy_reciprocal' both have the key 'recall.5'"),
        (
            '="toy_reciprocal"',
            '="chance"',
            "metrics 'recall' and 'toy_reciprocal' both have the key 'chance' in JSON",
        ),
        (
            '="toy_reciprocal"',
            '="mean_rank.1"',
            "metrics 'median_rank' and 'toy_reciprocal' both have the key 'mean_r",
        ),
        (
            'text="toyRR"',
            'text="mean RR!"',
            "metric 'toy_reciprocal' heads a column 'mean RR!': .* at most 7 characters",
        ),
        ("+ 1)))]", "+ 1)))] * 2", "metric 'toy_reciprocal' computes 2 values for its 1 columns: return one for each"),
        ("[100 * float(np.mean(1 / (found.ranks + 1)))]", "[]", "metric 'toy_reciprocal' computes 0 values for its 1"),
        ("[100 * float(np.mean(1 / (found.ranks + 1)))]", "1.5", "metric 'toy_reciprocal' computes no list of values"),
        ("1 / (found.ranks", "np.nan / (found.ranks", "metric 'toy_reciprocal' gives toyRR a value that is not finite"),
        (
            'latex="toyRR"',
            'latex="toyRR%"',
            r"metric 'toy_reciprocal': LaTeX reads 'toyRR%' otherwise: write \\% for %",
        ),
        (
            '    "toy_reciprocal",',
            '    "recall",',
            "2 files of xmodal/metrics have a metric 'recall': give each a name of its own",
        ),
        ("METRIC = ", "METRICS = ", r"toy_reciprocal\.py has a Metric of another name: call it METRIC"),
        ("needs=Ranks", "needs=int", "metric 'toy_reciprocal' needs <class 'int'>, which nobody computes"),
    ],
)
def test_a_metric_that_cannot_be_reported_is_named(
    add: Callable[[str, str], None], old: str, new: str, message: str
) -> None:
    assert RECIPROCAL.count(old) == 1
    add("toy_reciprocal", RECIPROCAL.replace(old, new))
    with pytest.raises(UserError, match=message) as caught:
        scored()
    assert "\n" not in str(caught.value)


def test_metrics_of_different_tables_may_have_the_same_key(add: Callable[[str, str], None]) -> None:
    add("toy_reciprocal", RECIPROCAL.replace('="toy_reciprocal"', '="r_precision"'))
    plain = json.loads(scored().to_json())
    assert plain["scores"]["all"]["visual_to_text"]["r_precision"] > 0
    assert plain["lists"]["own captions"]["visual_to_text"]["r_precision"] > 0
