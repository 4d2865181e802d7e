"""The leakage report of corpora under a root, and the clean stage: a split without the items that leak.

A clean split is a file of ids, one a line. Readers list it beside the splits of the records; `xmodal export --ids`
takes it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, single
from pipelines.fetching.ledger import Ledger
from pipelines.stages.fingerprints import planned
from xmodal.checks.leaks import DISTANCE, Leak, SplitMedia, clean, leaks, read_fingerprints
from xmodal.errors import UserError
from xmodal.records.tables import Item, read_columns, read_rows
from xmodal.records.views import CLEAN, IDS, clean_name, has_split, members, recorded_splits
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output, find
from xmodal.root.sealed_sets import records_now
from xmodal.root.selection import build_command
from xmodal.root.storage import Storage

VERSION = 2


@dataclass(frozen=True)
class CleanConfig:
    corpus: str
    split: str
    distance: int
    against: tuple[str, ...]  # such as "coco: karpathy/train"


@dataclass(frozen=True, eq=False)
class FingerprintedCorpus:
    corpus: str
    records: Output
    fingerprints: Output

    @staticmethod
    def of(storage: Storage, corpus: str) -> "FingerprintedCorpus":
        """Takes the fingerprints of the media that are sealed now."""
        if records := records_now(storage, corpus):
            media = fingerprint(planned(read_rows(records, Item)))
            sealed = Ledger(storage, "media", records.config["media_set"]).sealed
            made = find(storage.url, "fingerprints", media=media)
            if found := [output for output in made if output.about["inputs"][0]["identity"] == sealed]:
                return FingerprintedCorpus(corpus, records, max(found, key=lambda output: output.about["version"]))
        cure = build_command(storage.url, corpus, "fingerprints")
        raise UserError(f"{corpus} has no fingerprints under {storage.url}: build them first ({cure})")

    def parts(self, asked: Iterable[str]) -> list[SplitMedia]:
        """The splits of the records, and those asked for that the corpus derives."""
        known = read_fingerprints(self.fingerprints)
        items = read_columns(self.records, "items.parquet", "id", "media")
        media = dict(zip(items["id"].to_pylist(), items["media"].to_pylist(), strict=True))
        splits: dict[str, Iterable[str]] = dict(recorded_splits(self.records))
        splits |= {name: members(self.records, name) for name in asked if has_split(self.records, name)}
        parts = []
        for name, ids in splits.items():
            there = {id: known[media[id]] for id in ids if media[id] in known}
            parts.append(SplitMedia(self.corpus, name, tuple(sorted(ids)), there))
        return parts

    def about(self) -> dict[str, Any]:
        counts, failures = (self.fingerprints.totals[name] for name in ("counts", "failures"))
        counted = {name: counts.get(name, 0) for name in ("media", "flat")}
        return {"corpus": self.corpus, "fingerprints": self.fingerprints.identity, **counted, **failures}


def leakage(
    storage: Storage,
    names: Iterable[str],
    distance: int = DISTANCE,
    split: str | None = None,
    against: Collection[str] = (),
) -> dict[str, Any]:
    """Reports which media the splits of these corpora share, and writes `split` of the first without its leaks.

    A leak lies also in a split of `against`, by default in a training split of the author or of another corpus.
    """
    known = [FingerprintedCorpus.of(storage, name) for name in dict.fromkeys(names)]
    if split is not None:
        members(known[0].records, split)  # where there is none it says which there are
    own = [] if split is None else [split, f"{split.rpartition('/')[0]}/train"]  # which may be drawn as it is
    parts = [part for each in known for part in each.parts([*against, *(own if each is known[0] else ())])]
    target = next((part for part in parts if (part.corpus, part.split) == (known[0].corpus, split)), None)
    beside = _named(parts, target, against)
    found = leaks(parts, distance, {(min(pair), max(pair)) for pair in beside})
    report = {"distance": distance, "corpora": [each.about() for each in known], "pairs": [*map(_row, found)]}
    if target is None:
        return report
    training = [parts[other] for _, other in beside]
    training = training or [part for leak in found if (part := leak.beside(target)) and part.is_training]
    if not training:
        raise UserError(f"no training split is of the author of {target.name}: name one with --against")
    left, dropped = clean([leak for leak in found if leak.beside(target) in training], target)
    config = CleanConfig(target.corpus, target.split, distance, tuple(part.name for part in training))
    inputs = tuple(output for each in known for output in (each.records, each.fingerprints))
    # config and inputs decide which items are left
    output = build(single(CLEAN, config, inputs, VERSION, "ids", partial(_write, left)), storage)
    about = {"split": target.split, "name": clean_name(output), "path": f"{output.where}/{IDS}"}
    return report | {"clean": about | {"against": config.against, "items": len(left), "dropped": sorted(dropped)}}


def _row(leak: Leak) -> dict[str, Any]:
    one, other = leak.one, leak.other
    row: dict[str, Any] = {"one": one.name, "other": other.name}
    row |= {"items_of_one": len(leak.items(one)), "items_of_other": len(leak.items(other))}
    return row | {"same": leak.same, "exact": leak.exact, "near": leak.near}


def _named(parts: list[SplitMedia], target: SplitMedia | None, against: Collection[str]) -> list[tuple[int, int]]:
    """Pairs of places in `parts`: the split to clean, and each of `against`."""
    if target is None and against:
        raise UserError("--against says what a split is cleaned of: name that with --clean")
    there = {part.split for part in parts if part is not target}
    if missing := [name for name in against if name not in there]:
        raise UserError(f"there is no split {missing[0]!r} to compare with; there are: {', '.join(sorted(there))}")
    chosen = [place for place, part in enumerate(parts) if part.split in against and part is not target]
    return [(parts.index(target), place) for place in chosen] if target else []


def _write(ids: Collection[str], config: CleanConfig, inputs: Inputs, sink: Sink) -> Counts:
    with sink.file(IDS) as file:
        file.writelines(f"{id}\n".encode() for id in ids)
    return {"items": len(ids)}
