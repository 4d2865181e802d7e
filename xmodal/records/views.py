"""Views of a corpus: its splits of every kind, and the items, captions and classes of one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.recipes import WRITTEN, View
from xmodal.records.caption_sources import CAPTIONS, captions_output
from xmodal.records.derived_splits import DrawnSplit, RandomSplitSizes, Share
from xmodal.records.tables import BATCH, Caption, Label, read_batches, read_columns, read_rows, schema
from xmodal.root.outputs import Output, made_of

CLEAN, IDS = "clean", "ids.txt"  # the stage of cleaned splits and its file, an id a line
COLUMNS = schema(Caption).empty_table().select(["id", "position", "text"]).schema
USUAL = ("train", "val", "dev", "test")  # parts of an author's division, in the order of lists


@dataclass(frozen=True, eq=False, repr=False)
class TextColumn(Sequence[str]):
    """A column of text as a sequence: as Python objects it would take five times the memory."""

    column: pa.ChunkedArray

    def __len__(self) -> int:
        return len(self.column)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BATCH):  # Python objects at a time
            yield from self[start : start + BATCH]

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        found = self.column[place]
        text: str | list[str] = found.to_pylist() if isinstance(place, slice) else found.as_py()
        return text

    def kept(self, mask: NDArray[np.bool_]) -> "TextColumn":
        return TextColumn(self.column.filter(pa.array(mask)))


@dataclass(frozen=True, eq=False, repr=False)
class ViewCaptions:
    items: tuple[str, ...]  # of the whole split, in the order of the records, also those without captions
    starts: NDArray[np.int64]  # (items + 1,): where each item's captions begin
    ids: TextColumn  # (captions,)
    texts: TextColumn  # (captions,)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(items,)"""
        return np.diff(self.starts)

    def grouped(self, column: TextColumn) -> dict[str, list[str]]:
        """Ids or texts by the item that they are of."""
        values, starts = list(column), self.starts.tolist()
        return {item: values[a:b] for item, a, b in zip(self.items, starts, starts[1:], strict=False)}

    def of_items(self, kept: NDArray[np.bool_]) -> "ViewCaptions":
        """Keeps some items; `kept` has a value for each."""
        if kept.all():
            return self
        captions = np.repeat(kept, self.counts)
        items = tuple(item for item, stays in zip(self.items, kept.tolist(), strict=True) if stays)
        return ViewCaptions(items, starts_of(self.counts[kept]), self.ids.kept(captions), self.texts.kept(captions))


def captions_by_item(records: Output, view: View) -> ViewCaptions:
    """The first captions of every item of a split.

    For a sparse split, only the captions it keeps. Captions of its un-annotated part are never read.
    """
    return captions_of_views(records, [view])[0]


def captions_of_views(records: Output, views: Sequence[View]) -> list[ViewCaptions]:
    """Does `captions_by_item` for several views, reading each table once."""
    ids = read_columns(records, "items.parquet", "id")["id"].combine_chunks()
    found = []
    for view in views:
        wanted = pa.array(members(records, view.split), pa.string())
        found.append(_CaptionsBeingRead(view, Share.of(view.split), ids.filter(pc.is_in(ids, value_set=wanted))))
    visible = [some for some in found if not (some.share and some.share.hides(some.view.source))]
    outputs = {some.view.text: captions_output(records, some.view.text) for some in visible}
    for folder, output in {output.folder: output for output in outputs.values()}.items():
        reading = [some for some in visible if outputs[some.view.text].folder == folder]
        for rows in read_batches(output, CAPTIONS, "id", "item", "position", "text", "source"):
            for some in reading:
                some.add(rows)
    return [some.done() for some in found]


@dataclass(frozen=True, eq=False)
class _CaptionsBeingRead:
    view: View
    share: Share | None
    items: pa.Array
    owners: list[NDArray[np.int32]] = field(default_factory=list)  # places in `items`
    columns: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        owners = pc.index_in(rows["item"], value_set=self.items)
        kept = pc.and_(owners.is_valid(), pc.equal(rows["source"], self.view.source))
        self.owners.append(owners.filter(kept).to_numpy())
        self.columns.append(rows.select(COLUMNS.names).filter(kept))

    def done(self) -> ViewCaptions:
        owners = np.concatenate([np.zeros(0, np.int32), *self.owners])
        table = pa.Table.from_batches(self.columns, COLUMNS)
        positions, steps = table["position"].to_numpy(), np.diff(owners)
        if not ((steps > 0) | ((steps == 0) & (np.diff(positions) >= 0))).all():  # most corpora are in order
            order = np.lexsort((positions, owners))
            table, owners = table.take(pa.array(order)), owners[order]
        ids, texts, kept = TextColumn(table["id"]), TextColumn(table["text"]), np.ones(len(table), bool)
        if self.view.captions_per_item is not None:
            firsts = starts_of(np.bincount(owners, minlength=len(self.items)))[owners]
            kept = np.arange(len(table)) - firsts < self.view.captions_per_item
        if self.share and self.share.captions and self.view.source in WRITTEN:
            kept[kept] = self.share.drawn_captions(list(ids.kept(kept)), owners[kept])
        starts = starts_of(np.bincount(owners[kept], minlength=len(self.items)))
        return ViewCaptions(tuple(self.items.to_pylist()), starts, ids.kept(kept), texts.kept(kept))


def starts_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """(counts + 1,): where adjacent groups begin, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def items_with_captions(records: Output, view: View) -> frozenset[str]:
    captions = captions_by_item(records, view)
    return frozenset(captions.of_items(captions.counts > 0).items)


def caption_texts(records: Output, view: View) -> Sequence[str]:
    return captions_by_item(records, view).texts


def classes(records: Output, ids: Sequence[str]) -> NDArray[np.int64]:
    """(ids,): the class or identity of each item, counted from 0 in order of the classes' names."""
    found = {label.item: label.name for label in read_rows(records, Label) if label.kind in ("class", "identity")}
    if without := [id for id in ids if id not in found]:
        cure = "take a corpus with a class or an identity for each (categories are none), or a model that needs none"
        raise UserError(
            f"{records.config.get('corpus')}: {len(without):,} items have no class, such as {without[0]!r}: {cure}"
        )
    numbers = {name: number for number, name in enumerate(sorted({found[id] for id in ids}))}
    return np.array([numbers[found[id]] for id in ids], np.int64)


def members(records: Output, split: str) -> set[str]:
    """The items of a split: recorded, cleaned, a share of one, or drawn by a seed."""
    names, drawn, share = splits(records), drawn_splits(records), Share.of(split)
    whole = share.whole if share else split
    if whole in names:
        found = set(names[whole])
    elif drawn_split := DrawnSplit.of(whole, drawn):
        every = read_columns(records, "items.parquet", "id")["id"].to_pylist()
        found = drawn_split.items(every, drawn[drawn_split.who], names)
    else:
        items = records.totals["counts"]["items"]
        large = [who for who, sizes in drawn.items() if sizes.val + sizes.test < items]
        there = [*names, *(f"{who}/{part}" for who in large for part in ("train", "val", "test"))]
        raise UserError(
            f"{records.config.get('corpus')} has no split {whole!r}; there are: {', '.join(there)}; "
            "a share is written NAME@50%, the rest NAME@50%:unannotated"
        )
    return share.items(found) if share else found


def has_split(records: Output, split: str) -> bool:
    share = Share.of(split)
    whole = share.whole if share else split
    return whole in splits(records) or DrawnSplit.of(whole, drawn_splits(records)) is not None


def drawn_splits(records: Output) -> Mapping[str, RandomSplitSizes]:
    return {who: RandomSplitSizes(val, test) for who, val, test in records.config.get("drawn", ())}


def splits(records: Output) -> dict[str, list[str]]:
    """Items by split, recorded and cleaned, author by author: train, val, test, then others."""
    names = recorded_splits(records)
    for output in made_of(records, CLEAN):  # what `xmodal leakage --clean` has left
        names[clean_name(output)] = output.read(IDS).decode().split("\n")[:-1]
    return {name: names[name] for name in sorted(names, key=_place)}


def training_split(records: Output, stage: str) -> str:
    """The only split to train on."""
    there = list(splits(records))
    found = [name for name in there if name.rpartition("/")[2] == "train"]
    if len(found) != 1:
        which = "several splits" if found else "no split"
        raise UserError(
            f"{records.config['corpus']} has {which} to train on, so say whose captions to take "
            f"(--set {stage}.split=NAME); there are: {', '.join(there) or 'none'}"
        )
    return found[0]


def recorded_splits(records: Output) -> dict[str, list[str]]:
    table = read_columns(records, "splits.parquet", "name", "item")
    names = pc.unique(table["name"]).to_pylist()
    return {name: table["item"].filter(pc.equal(table["name"], name)).to_pylist() for name in sorted(names, key=_place)}


def _place(split: str) -> tuple[str, int, str]:
    author, _, part = split.rpartition("/")
    return author, USUAL.index(part) if part in USUAL else len(USUAL), part


def clean_name(output: Output) -> str:
    """The name of a cleaned split, such as "karpathy/test-clean-1f3a09c2"."""
    return f"{output.config['split']}-{CLEAN}-{output.identity[:8]}"
