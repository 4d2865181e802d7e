"""A user's boxes file: what cannot be read is one line, and the process ends as any other."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xmodal.detection.given_boxes import boxes_in_file
from xmodal.detection.region_store import Named, PictureRegions
from xmodal.detection.region_tsv import write_tsv
from xmodal.errors import UserError

READ = """
import os, sys
from pathlib import Path
from xmodal.detection.given_boxes import boxes_in_file
from xmodal.errors import UserError
before = len(os.listdir("/proc/self/task"))
try:
    boxes_in_file(Path(sys.argv[1]))
except UserError as error:
    print(len(os.listdir("/proc/self/task")) - before, "new threads")
    raise SystemExit(str(error))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    ("ids", "boxes", "said"),
    [
        (["a", "a"], [[1.0, 2.0, 3.0, 4.0]] * 2, "has an id twice"),
        (["a"], [[[1.0, 2.0, 3.0, 4.0]]], "is no Parquet table with columns id and boxes"),
        (["a"], ["1 2 3 4"], "is no Parquet table with columns id and boxes"),
    ],
)
def test_a_refused_table_of_boxes_ends_the_process_with_one_line(
    ids: list[str], boxes: list[Any], said: str, tmp_path: Path
) -> None:
    """Threads of Arrow that still run at a process's exit abort it, now and then."""
    pq.write_table(pa.table({"id": ids, "boxes": boxes}), tmp_path / "boxes.parquet")
    command = [sys.executable, "-c", READ, str(tmp_path / "boxes.parquet")]
    for _ in range(3):
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stdout) == (1, "0 new threads\n"), found.stderr
        assert said in found.stderr
        assert found.stderr.count("\n") == 1


def test_lines_of_boxes_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text("a.jpg\t1\t2\t3\t4\n", "utf-8-sig")
    assert boxes_in_file(tmp_path / "b.tsv") == {"a.jpg": ((1.0, 2.0, 3.0, 4.0),)}


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n \r\n"])
def test_blank_last_lines_of_boxes_are_nothing(end: str, tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text(f"a.jpg\t1\t2\t3\t4{end}", newline="")
    assert boxes_in_file(tmp_path / "b.tsv") == {"a.jpg": ((1.0, 2.0, 3.0, 4.0),)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\t1\t2\t3\t4\t0.9\n", r"b\.tsv:1 is not id, left, top, right, bottom with tabs between: it has 6 columns"),
        ("a\t1\t2\t3\t4\nb\t1\t2\t3\t4\t0.9\n", r"b\.tsv:2 is not id, .*: it has 6 columns"),
        ("a\t1\t2\t3\t4\nb\t1\t2\n", r"b\.tsv:2 is not id, .*: it has 3 columns"),
        ("a\t1\t2\t3\t4\n\nb\t1\t2\t3\t4\n", r"b\.tsv:2 is not id, .*: it is blank"),
    ],
)
def test_lines_that_are_no_boxes_are_told_by_their_columns(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text(text)
    with pytest.raises(UserError, match=said):
        boxes_in_file(tmp_path / "b.tsv")


@pytest.mark.parametrize("columns", [6, 8, 10])
def test_boxes_are_taken_of_regions_as_their_makers_store_them(columns: int, tmp_path: Path) -> None:
    boxes, named = np.array([[1, 2, 3, 4]], np.float32), Named(np.array([1]), np.array([0.5]))
    picture = PictureRegions("a.jpg", boxes, np.ones((1, 2), np.float32), (9, 9), named, named)
    write_tsv(tmp_path / "b.tsv", [picture], columns)
    assert boxes_in_file(tmp_path / "b.tsv") == {"a.jpg": ((1.0, 2.0, 3.0, 4.0, 9.0, 9.0),)}
