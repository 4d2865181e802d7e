"""Writes records as the Parquet files of a dataset repository: one row an item, by split, in shards that viewers read.

Chunks are cut by content: a later version uploads what changed.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from xmodal.errors import UserError
from xmodal.records.tables import open_table, read_columns
from xmodal.root.outputs import Output
from xmodal.root.storage import LocalStorage

SHARD_BYTES, ROW_GROUP_BYTES = 500_000_000, 100_000_000  # in memory: files are smaller
CHUNKING = {"min_chunk_size": 256 * 1024, "max_chunk_size": 1024 * 1024, "norm_level": 0}  # what datasets itself takes
PARQUET: Mapping[str, Any] = {"compression": "zstd", "store_schema": False, "write_page_index": True}
LABELS = {"category": "categories", "class": "classes", "identity": "identities", "attribute": "attributes"}
DTYPES = {"double": "float64", "float": "float32", "halffloat": "float16"}  # where datasets has another name than Arrow
ROWS = "rows.parquet"  # of a feature store: the id of each of its rows


@dataclass(frozen=True)
class DatasetConfig:
    name: str
    target: LocalStorage
    files: dict[str, list[str]] = field(default_factory=dict)  # of each split
    named: dict[str, str] = field(default_factory=dict)  # what the records call a split

    @property
    def data_files(self) -> list[dict[str, str]]:
        shard = re.compile(r"-\d+-of-\d+\.")
        return [{"split": split, "path": shard.sub("-*.", keys[0])} for split, keys in self.files.items()]

    @cached_property
    def info(self) -> dict[str, Any]:
        """The dataset_info, from the footers of the files."""
        splits = []
        for name, keys in self.files.items():
            footers = [pq.read_metadata(self.target.path(key)) for key in keys]
            groups = (footer.row_group(number) for footer in footers for number in range(footer.num_row_groups))
            size, rows = sum(group.total_byte_size for group in groups), sum(footer.num_rows for footer in footers)
            splits.append({"name": name, "num_bytes": size, "num_examples": rows})
        every = [key for keys in self.files.values() for key in keys]
        return {
            "config_name": self.name,
            "features": [_feature(column) for column in pq.read_schema(self.target.path(every[0]))],
            "splits": splits,
            "download_size": sum(self.target.size(key) or 0 for key in every),
            "dataset_size": sum(split["num_bytes"] for split in splits),
        }


def write_captions(records: Output, target: LocalStorage, allowed: Callable[[str], bool]) -> list[DatasetConfig]:
    items = _items(records)
    items = items.select(list(filter(allowed, items.column_names)))
    configs: dict[str, DatasetConfig] = {}
    for named, members in _splits(records, items["id"]):
        name, split = _place(named)
        config = configs.setdefault(name, DatasetConfig(name, target))
        if split in config.named:
            raise UserError(f"splits {config.named[split]!r} and {named!r} would both be {split!r} of config {name!r}")
        config.named[split] = named
        config.files[split] = _write(items.filter(members), target, f"captions/{name}/{split}")
    return list(configs.values())


def read_ids(output: Output, name: str) -> set[str]:
    """The ids of a table; a feature store's include failed items."""
    return set(read_columns(output, name, "id")["id"].to_pylist())


def write_index(features: Output, target: LocalStorage, stem: str) -> DatasetConfig:
    """Writes id and row of every item that has features; the store's zeros of absent ones are not named."""
    absent = [row for unit in features.units() for row in unit.absent]
    rows = read_columns(features, ROWS, "id", "row")
    present = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=pa.array(absent, pa.string()))))
    return DatasetConfig(features.folder.replace("/", "-"), target, {"rows": _write(present, target, stem)})


def _feature(column: pa.Field) -> dict[str, str]:
    of_list = pa.types.is_list(column.type)
    dtype = str(column.type.value_type if of_list else column.type)
    return {"name": column.name, "list" if of_list else "dtype": DTYPES.get(dtype, dtype)}


def _items(records: Output) -> pa.Table:
    """One row an item, with its captions and a column for each kind of label."""
    items, labels = _table(records, "items"), _table(records, "labels")
    columns = dict(zip(items.column_names, items.columns, strict=True))
    columns |= _captions(items["id"], _table(records, "captions"), records.cure)
    for kind, column in LABELS.items():
        if (rows := labels.filter(pc.equal(labels["kind"], kind))).num_rows:
            columns[column] = _lists(items["id"], rows, "name", records.cure)
    return pa.table(columns)


def _captions(ids: Any, captions: pa.Table, cure: str) -> dict[str, Any]:
    """People's captions by position; another source's name stands before its columns."""
    columns = {}
    for source in ["human", *sorted({*captions["source"].unique().to_pylist()} - {"human"})]:
        rows = captions.filter(pc.equal(captions["source"], source)).sort_by("position")
        prefix = "" if source == "human" else f"{source}_"
        columns[f"{prefix}captions"] = _lists(ids, rows, "text", cure)
        columns[f"{prefix}caption_ids"] = _lists(ids, rows, "id", cure)
    return columns


def _lists(ids: Any, rows: pa.Table, column: str, cure: str) -> Any:
    owner = pc.index_in(rows["item"], value_set=ids)
    if owner.null_count:
        raise UserError(f"the records name an item that does not exist: {cure}")
    owners = owner.to_numpy()
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(ids)))])
    values = rows[column].take(np.argsort(owners, kind="stable"))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values.combine_chunks())


def _splits(records: Output, ids: Any) -> Iterator[tuple[str, Any]]:
    """Every split with a mask of its items; others are "unassigned"."""
    splits, counts = _table(records, "splits"), records.totals["counts"]
    for name in sorted(splits["name"].unique().to_pylist()):
        members = pc.is_in(ids, value_set=splits.filter(pc.equal(splits["name"], name))["item"])
        if pc.sum(members).as_py() != counts[f"items:{name}"]:
            raise UserError(f"{records.where}: {name} has no longer {counts[f'items:{name}']:,} items: {records.cure}")
        yield name, members
    unassigned = pc.invert(pc.is_in(ids, value_set=splits["item"]))
    if pc.any(unassigned).as_py():
        yield "unassigned", unassigned


def _place(named: str) -> tuple[str, str]:
    """Config and split: no name has a "/" in datasets."""
    config, _, split = named.rpartition("/")
    return re.sub(r"[^\w-]+", "-", config) or "default", re.sub(r"\W+", "_", split)


def _write(table: pa.Table, target: LocalStorage, stem: str) -> list[str]:
    shards = list(_pieces(table, SHARD_BYTES))
    keys = [f"{stem}-{number:05d}-of-{len(shards):05d}.parquet" for number in range(len(shards))]
    for key, shard in zip(keys, shards, strict=True):
        with (
            target.writer(key) as file,
            pq.ParquetWriter(file, table.schema, use_content_defined_chunking=CHUNKING, **PARQUET) as writer,
        ):
            for piece in _pieces(shard, ROW_GROUP_BYTES):
                writer.write_table(piece, row_group_size=piece.num_rows)
            writer.add_key_value_metadata({"content_defined_chunking": json.dumps(CHUNKING)})
    return keys


def _pieces(table: pa.Table, limit: int) -> Iterator[pa.Table]:
    half = table.num_rows // 2
    if table.nbytes <= limit or not half:
        yield table
    else:
        yield from _pieces(table.slice(0, half), limit)
        yield from _pieces(table.slice(half), limit)


def _table(records: Output, name: str) -> pa.Table:
    with open_table(records, f"{name}.parquet") as file:
        return file.read(use_threads=False)
