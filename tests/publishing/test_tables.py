"""Records as published tables: joined as they belong together, whatever their order, and cut as readers like them."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.publishing import hub_tables
from pipelines.publishing.hub_tables import DatasetConfig, write_captions
from pipelines.stages.records import Census
from xmodal.errors import UserError
from xmodal.records.tables import ROWS, Caption, Item, Label, Row, Split, Tables
from xmodal.root.outputs import Output
from xmodal.root.storage import LocalStorage


@dataclass(frozen=True)
class Toy:
    corpus: str = "toy"


def records(root: Path, rows: Iterable[Row]) -> Output:
    def parse(rows: list[Row], sink: Sink) -> Counts:
        census = Census("toy")
        with ExitStack() as stack, Tables({n: stack.enter_context(sink.file(f"{n}.parquet")) for n in ROWS}, 8) as into:
            for row in rows:
                if not isinstance(row, Label):  # records of earlier versions may name unknown items in these
                    census.add(row)
                into.add(row)
        return into.counts | census.counts()

    def opened(config: Toy, inputs: Inputs) -> Callable[[list[Row], Sink], Counts]:
        return parse

    given = list(rows)
    return build(
        Stage("records", Toy(), lambda config, inputs: iter([("all", given)]), opened), LocalStorage(str(root))
    )


def written(
    tmp_path: Path, rows: Iterable[Row], allowed: Callable[[str], bool] = lambda column: True
) -> tuple[dict[str, DatasetConfig], LocalStorage]:
    target = LocalStorage(str(tmp_path / "out"))
    return {c.name: c for c in write_captions(records(tmp_path / "root", rows), target, allowed)}, target


def read(target: LocalStorage, config: DatasetConfig, split: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.concat_tables(
        pq.read_table(target.path(k)) for k in config.files[split]
    ).to_pylist()
    return rows


MIXED: list[Row] = [
    Caption("c2", "b", 1, "second of b"),
    Label("a", "identity", "p7"),
    Caption("s0", "a", 0, "what a detector said", source="semantics"),
    Split("b", "train"),
    Split("a", "two/halves/left-1"),
    Item("b", "b.jpg"),
    Caption("c1", "b", 0, "first of b"),
    Item("a", "a.jpg"),
    Split("a", "train"),
    Label("a", "category", "zebra"),
    Label("a", "category", "ant"),
    Caption("c0", "a", 0, "of a"),
]


def test_rows_belong_together_in_whatever_order_they_came(tmp_path: Path) -> None:
    configs, target = written(tmp_path, MIXED)
    b, a = read(target, configs["default"], "train")
    assert (b["id"], a["id"]) == ("b", "a")
    assert (b["captions"], b["caption_ids"]) == (["first of b", "second of b"], ["c1", "c2"])
    assert (a["captions"], a["semantics_captions"], b["semantics_captions"]) == (["of a"], ["what a detector said"], [])
    assert (a["categories"], a["identities"], b["categories"]) == (["zebra", "ant"], ["p7"], [])
    assert "classes" not in a


def test_split_names_are_what_datasets_takes(tmp_path: Path) -> None:
    configs, target = written(tmp_path, MIXED)
    assert {name: config.named for name, config in configs.items()} == {
        "default": {"train": "train"},
        "two-halves": {"left_1": "two/halves/left-1"},
    }
    assert configs["two-halves"].data_files == [{"split": "left_1", "path": "captions/two-halves/left_1-*.parquet"}]
    assert target.size("captions/two-halves/left_1-00000-of-00001.parquet")


def test_splits_that_would_become_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"splits 'val-1' and 'val\.1' would both be 'val_1' of config 'default'"):
        written(tmp_path, [Item("a", "a.jpg"), Split("a", "val-1"), Split("a", "val.1")])


def test_an_item_of_no_split_is_not_lost(tmp_path: Path) -> None:
    configs, target = written(tmp_path, [*MIXED, Item("c", "c.jpg")])
    (row,) = read(target, configs["default"], "unassigned")
    assert (row["id"], row["captions"]) == ("c", [])


def test_a_label_of_an_unknown_item_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name an item that does not exist"):
        written(tmp_path, [*MIXED, Label("nobody", "category", "ant")])


def test_only_allowed_columns_are_written(tmp_path: Path) -> None:
    configs, target = written(tmp_path, MIXED, {"id", "caption_ids"}.__contains__)
    assert read(target, configs["default"], "train")[1] == {"id": "a", "caption_ids": ["c0"]}


def test_large_splits_become_shards_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_tables, "SHARD_BYTES", 8_000)
    monkeypatch.setattr(hub_tables, "ROW_GROUP_BYTES", 2_000)
    items = [f"item{number:03d}" for number in range(200)]
    rows = [row for id in items for row in (Item(id, f"{id}.jpg"), Split(id, "train"), Caption(f"c{id}", id, 0, id))]
    configs, target = written(tmp_path, rows)
    keys = configs["default"].files["train"]
    assert keys == [f"captions/default/train-{n:05d}-of-{len(keys):05d}.parquet" for n in range(len(keys))]
    assert len(keys) > 1
    assert all(pq.read_table(target.path(key)).nbytes <= 8_000 for key in keys)
    assert [row["id"] for row in read(target, configs["default"], "train")] == items
    footers = [pq.read_metadata(target.path(key)) for key in keys]
    assert all(footer.num_row_groups > 1 for footer in footers)
    (split,) = configs["default"].info["splits"]
    assert split["num_examples"] == 200


def test_files_are_cut_by_content_and_have_a_page_index(tmp_path: Path) -> None:
    configs, target = written(tmp_path, MIXED)
    footer = pq.read_metadata(target.path(configs["default"].files["train"][0]))
    assert b"content_defined_chunking" in footer.metadata
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    assert all(column.has_offset_index and column.has_column_index for column in columns)
