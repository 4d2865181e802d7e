"""What a view of a corpus has, as its records say: splits of every kind, items, captions and classes."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.recipes import WRITTEN, View
from xmodal.records.derived_splits import Drawn, DrawnSplit, Share
from xmodal.records.tables import Caption, Item, Label, Split, read_rows
from xmodal.root.outputs import Output, made_of

CLEAN, IDS = "clean", "ids.txt"  # the stage of cleaned splits, and its file: an id a line
USUAL = ("train", "val", "dev", "test")  # parts of an author's division, in the order in which they are told


def items(records: Output, view: View) -> frozenset[str]:
    """Those that a view's captions describe, also without features."""
    return frozenset(item for item, some in described(records, view).items() if some)


def classes(records: Output, ids: Sequence[str]) -> NDArray[np.int64]:
    """(ids,): the class or identity of each item, counted from 0 in order of the classes' names."""
    with records.open("labels.parquet") as file:
        found = {label.item: label.name for label in read_rows(file, Label) if label.kind in ("class", "identity")}
    if without := [id for id in ids if id not in found]:
        raise UserError(f"{records.config.get('corpus')}: {len(without):,} items have no class, such as {without[0]!r}")
    numbers = {name: number for number, name in enumerate(sorted({found[id] for id in ids}))}
    return np.array([numbers[found[id]] for id in ids], np.int64)


def captions(records: Output, view: View) -> Iterator[str]:
    """Every caption of a view, also of items that have no features."""
    return (caption.text for some in described(records, view).values() for caption in some)


def described(records: Output, view: View) -> dict[str, list[Caption]]:
    """Of every item of the split, in the order of the records, its first captions by position.

    Of a sparse split those that it keeps of them; the captions of its un-annotated part are not even read.
    """
    share, wanted = Share.of(view.split), members(records, view.split)
    with records.open("items.parquet") as file:
        found = {item.id: list[Caption]() for item in read_rows(file, Item) if item.id in wanted}
    if share and share.hides(view.text):
        return found
    with records.open("captions.parquet") as file:
        for caption in read_rows(file, Caption):
            if caption.item in found and caption.source == view.text:
                found[caption.item].append(caption)
    first = {item: _first(some, view.captions_per_item) for item, some in found.items()}
    return {item: share.kept(some) for item, some in first.items()} if share and view.text in WRITTEN else first


def members(records: Output, split: str) -> set[str]:
    """The items of a split of whatever kind: recorded, cleaned, a share of one, or drawn."""
    names, drawn, share = splits(records), drawn_splits(records), Share.of(split)
    whole = share.whole if share else split
    drawn_split = None if whole in names else DrawnSplit.of(whole, drawn)
    if whole not in names and not drawn_split:
        there = ", ".join([*names, *(f"{who}/{part}" for who in drawn for part in ("train", "val", "test"))])
        raise UserError(f"{records.config.get('corpus')} has no split {whole!r}; there are: {there}")
    found = drawn_split.items(_every(records), drawn[drawn_split.who]) if drawn_split else set(names[whole])
    return share.items(found) if share else found


def has_split(records: Output, split: str) -> bool:
    """Recorded, cleaned, a share of one, or drawn."""
    share = Share.of(split)
    whole = share.whole if share else split
    return whole in splits(records) or DrawnSplit.of(whole, drawn_splits(records)) is not None


def drawn_splits(records: Output) -> Mapping[str, Drawn]:
    """What the corpus said that papers drew, when it was parsed."""
    return {who: Drawn(val, test) for who, val, test in records.config.get("drawn", ())}


def _every(records: Output) -> set[str]:
    with records.open("items.parquet") as file:
        return {item.id for item in read_rows(file, Item)}


def splits(records: Output) -> dict[str, list[str]]:
    """Items by the name of their split, author by author: train, val, test, and then others, also those cleaned."""
    names = recorded(records) | cleaned(records)
    return {name: names[name] for name in sorted(names, key=_place)}


def training_split(records: Output, stage: str) -> str:
    """The only split to train on, for a `stage` whose settings name none."""
    there = list(splits(records))
    found = [name for name in there if name.rpartition("/")[2] == "train"]
    if len(found) != 1:
        which = "no split" if not found else "several splits"
        raise UserError(
            f"{records.config['corpus']} has {which} to train on, so say whose captions to take "
            f"(--set {stage}.split=NAME); there are: {', '.join(there) or 'none'}"
        )
    return found[0]


def recorded(records: Output) -> dict[str, list[str]]:
    """The splits that the corpus itself has."""
    names = defaultdict[str, list[str]](list)
    with records.open("splits.parquet") as file:
        for split in read_rows(file, Split):
            names[split.name].append(split.item)
    return {name: names[name] for name in sorted(names, key=_place)}


def _place(split: str) -> tuple[str, int, str]:
    author, _, part = split.rpartition("/")
    return author, USUAL.index(part) if part in USUAL else len(USUAL), part


def cleaned(records: Output) -> dict[str, list[str]]:
    """What `xmodal leakage --clean` has left of splits of these records: tables of their own, as records are sealed.

    A name ends in the identity that decided what was left: "karpathy/test-clean-1f3a09c2".
    """
    made = made_of(records, CLEAN)
    return {clean_name(output): output.read(IDS).decode().split("\n")[:-1] for output in made}


def clean_name(output: Output) -> str:
    return f"{output.config['split']}-{CLEAN}-{output.identity[:8]}"


def _first(captions: list[Caption], count: int | None) -> list[Caption]:
    return sorted(captions, key=lambda caption: caption.position)[:count]
