"""Outputs that lend rows: what is damaged, foreign or hostile in one lends nothing, and stops nobody."""

import hashlib
import io
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.building import build
from pipelines.engine.commits import Commits
from pipelines.engine.stage import Counts, Sink, Stage
from tests.clips import gif, numbered
from tests.conftest import tree_digest
from tests.stages.test_growing_lists import FRAMES, MAKES, stage_of
from tests.userdata.test_own import picture
from xmodal.features.frame_store import CLIPS
from xmodal.root.outputs import Unit
from xmodal.root.storage import LocalStorage, Storage, open_storage

PICTURES = {f"i{number}": picture(number) for number in range(10)}
CLIP = gif([numbered(0)])


def bytes_from_nothing(name: str, items: dict[str, bytes], folder: Path) -> str:
    return tree_digest(build(stage_of(MAKES[name], open_storage(str(folder)), items), open_storage(str(folder))).where)


def test_a_finished_output_whose_list_of_units_is_damaged_lends_nothing(tmp_path: Path) -> None:
    root = open_storage(str(tmp_path / "root"))
    before = build(stage_of(MAKES["pixels"], root, PICTURES), root)
    units = Path(before.where, "units.tsv")
    units.write_bytes(units.read_bytes()[:-9] + b"}")
    grown = build(stage_of(MAKES["pixels"], root, PICTURES | {"new": picture(99)}), root)
    items = PICTURES | {"new": picture(99)}
    assert tree_digest(grown.where) == bytes_from_nothing("pixels", items, tmp_path / "nothing")


def writing(stage: Stage[Any, Any], unit: str, files: dict[str, bytes]) -> Stage[Any, Any]:
    """Somebody else's output that says it is of this stage, over the same inputs."""

    def write(work: None, sink: Sink) -> Counts:
        for name, data in files.items():
            with sink.file(name) as file:
                file.write(data)
        return {}

    return replace(stage, plan=lambda config, inputs: iter([(unit, None)]), open=lambda c, i: write, reuse=False)


def table(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, store_schema=False)
    return file.getvalue()


SOURCE = hashlib.sha256(PICTURES["i0"]).hexdigest()
TABLES = {
    "ids that are lists": table(id=[["i0"]], sha256=[SOURCE]),
    "no column of sources": table(id=["i0"]),
    "sources that are numbers": table(id=["i0"], sha256=[[1]]),
    "a source that is cut in a letter": table(id=["i0"], sha256=["f" * 63 + "é"]),
    "sources that are no UTF-8": table(
        id=["i0"], sha256=pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff" * 64]).buffers())
    ),
    "a source in a unit without a number": table(id=["i0"], sha256=[SOURCE]),
    "no table": b"no table",
}


@pytest.mark.parametrize("what", TABLES)
def test_tables_of_another_schema_lend_nothing(tmp_path: Path, what: str) -> None:
    root = open_storage(str(tmp_path / "root"))
    foreign = writing(stage_of(MAKES["pixels"], root, PICTURES), "x", {"sources/x.parquet": TABLES[what]})
    build(foreign, root)
    items = PICTURES | {"new": picture(99)}
    grown = build(stage_of(MAKES["pixels"], root, items), root)
    assert tree_digest(grown.where) == bytes_from_nothing("pixels", items, tmp_path / "nothing")


@pytest.mark.parametrize("extent", [(0, 2**60), (2**62, 1), (-5, 1), (0, -1), (3, 1)])
def test_places_outside_of_a_shard_lend_nothing(tmp_path: Path, extent: tuple[int, int]) -> None:
    root, items = open_storage(str(tmp_path / "root")), {"a": CLIP}
    genuine = build(
        stage_of(MAKES["frames"], open_storage(str(tmp_path / "other")), items), open_storage(str(tmp_path / "other"))
    )
    files = {name: genuine.read(name) for name in genuine.files}
    files["frames_extents/c/0/0"] = np.array([extent] * FRAMES.items_per_shard, "<i8").tobytes()
    files["frames/c/0"] = b"abc"
    assert pq.read_schema(io.BytesIO(files["clips/00000.parquet"])).names == CLIPS.names
    build(writing(stage_of(MAKES["frames"], root, items), "shard-00000", files), root)
    grown = build(stage_of(MAKES["frames"], root, items | {"b": PICTURES["i0"]}), root)
    expected = bytes_from_nothing("frames", items | {"b": PICTURES["i0"]}, tmp_path / "nothing")
    assert tree_digest(grown.where) == expected


@pytest.mark.parametrize("place", [0, -1])
def test_a_damaged_shard_lends_no_damaged_row(any_root: str, tmp_path: Path, place: int) -> None:
    root = open_storage(any_root)
    before = build(stage_of(MAKES["pixels"], root, PICTURES), root)
    name = next(file for file in before.files if "/c/1/" in file)
    data = root.read(f"{before.folder}/{name}")
    damaged = bytearray(data)
    damaged[place] ^= 1  # a row, or the index
    root.write(f"{before.folder}/{name}", bytes(damaged))
    items = {"first": picture(99)} | PICTURES  # so that every shard is another
    grown = build(stage_of(MAKES["pixels"], root, items), root)
    expected = build(stage_of(MAKES["pixels"], open_storage(str(tmp_path)), items), open_storage(str(tmp_path)))
    assert grown.checksums == expected.checksums


class Forgetful(LocalStorage):
    """Another driver deletes the files of the lender once their sizes were seen."""

    def link(self, source: str, second: str) -> None:
        shutil.rmtree(self.path("stage/lender"), ignore_errors=True)
        super().link(source, second)


def test_a_unit_that_is_deleted_meanwhile_is_not_taken(tmp_path: Path) -> None:
    storage: Storage = Forgetful(str(tmp_path))
    storage.write("stage/lender/data", b"abc")
    from xmodal.root.outputs import Output

    unit = Unit("u", {"data": (3, hashlib.sha256(b"abc").hexdigest())}, {})
    assert Commits(storage, "stage/mine").take(unit, Output(storage, "stage/lender")) is None
