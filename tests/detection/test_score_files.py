"""Files with scores of tags: what they hold is read by id, and what is damaged or no score is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xmodal.detection.score_files import TagScores, open_scores
from xmodal.errors import UserError

IDS, NAMES = ("b", "a", "é 1"), ("dog", "Hot dog", "beach")
SCORES = np.float32([[0.5, 0, 0.25], [0, 1, 0], [0, 0, 0.125]])


def lines(path: Path) -> Path:
    rows = [(id, name, SCORES[i, n]) for i, id in enumerate(IDS) for n, name in enumerate(NAMES) if SCORES[i, n]]
    path.write_text("id\ttag\tscore\n" + "".join(f"{id}\t{name}\t{score}\n" for id, name, score in rows))
    return path


def matrix(path: Path, **changes: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in ({"ids": list(IDS), "names": list(NAMES), "scores": SCORES} | changes).items():
            if values is not None:
                file[name] = values
    return path


def by_name(scores: TagScores, ids: list[str]) -> Mapping[str, list[float]]:
    return dict(zip(scores.names, scores.read(ids).T.tolist(), strict=True))


@pytest.mark.parametrize(("write", "name"), [(lines, "x.tsv"), (lines, "scores"), (matrix, "x.h5")])
def test_scores_are_read_by_id_in_any_order(write: Callable[[Path], Path], name: str, tmp_path: Path) -> None:
    scores = open_scores(write(tmp_path / name))
    assert scores.places.keys() == {*IDS}
    assert by_name(scores, ["é 1", "nobody", "b", "b"]) == {
        "dog": [0, 0, 0.5, 0.5],
        "Hot dog": [0, 0, 0, 0],
        "beach": [0.125, 0, 0.25, 0.25],
    }
    assert scores.read([]).shape == scores.read(["nobody"])[:0].shape == (0, 3)
    assert not scores.read(["nobody"]).any()


def test_lines_need_no_order_and_the_higher_of_two_scores_counts(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('id\ttag\tscore\nb\tdog\t.5\na\t"cat"\t1\nb\tcat\t2\nb\tdog\t.75\nb\tdog\t0.25')
    assert by_name(open_scores(tmp_path / "x.tsv"), ["a", "b"]) == {"dog": [0, 0.75], '"cat"': [1, 0], "cat": [0, 2]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot be read: Empty CSV file"),
        ("id\ttag\tscore\n", "has no line with a score"),
        (
            "a\tdog\t0.5\n",
            "begins with 'a, dog, 0.5', .*: it is a .tsv that begins with the line id<tab>tag<tab>score, or an .h5",
        ),
        ("id\ttag\tscore\na\tdog\n", "cannot be read: CSV parse error"),
        ("id\ttag\tscore\na\tdog\thigh\n", "cannot be read: .*'high'"),
        ("id\ttag\tscore\na\tdog\t-1\n", "a score is lacking, negative, infinite or NaN"),
        ("id\ttag\tscore\na\tdog\tnan\n", "a score is lacking, negative, infinite or NaN"),
        ("id\ttag\tscore\na\tdog\tinf\n", "a score is lacking, negative, infinite or NaN"),
        ("id\ttag\tscore\na\tdog\t\n", "a score is lacking, negative, infinite or NaN"),
    ],
)
def test_lines_that_are_no_scores_are_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text(text)
    with pytest.raises(UserError, match=rf"x\.tsv.*{told}"):
        open_scores(tmp_path / "x.tsv")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"names": None}, "cannot be read"),
        ({"names": ["dog", "cat"]}, r"scores is \(3, 3\), for 3 ids and 2 names: it must have a row an id"),
        ({"ids": ["a", "b"]}, "has 3 rows, but there are 2 ids"),
        ({"ids": ["a", "b", "a"]}, "id 'a' is there twice"),
        ({"scores": np.zeros(3, np.float32)}, r"scores is \(3,\), for 3 ids and 3 names"),
    ],
)
def test_a_matrix_that_does_not_fit_its_names_is_refused(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"x\.h5.*{told}"):
        open_scores(matrix(tmp_path / "x.h5", **changes))


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5])
def test_a_matrix_with_what_is_no_score_is_refused_where_it_is_read(value: float, tmp_path: Path) -> None:
    scores = SCORES.copy()
    scores[1, 2] = value
    opened = open_scores(matrix(tmp_path / "x.h5", scores=scores))
    assert opened.read(["b"]).any()
    with pytest.raises(UserError, match=r"x\.h5: a score is lacking, negative, infinite or NaN"):
        opened.read(["b", "a"])


def test_what_is_not_there_or_no_hdf5_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"x\.h5 cannot be read"):
        open_scores(tmp_path / "x.h5")
    with pytest.raises(UserError, match=r"y\.tsv cannot be read: .*No such file"):
        open_scores(tmp_path / "y.tsv")
