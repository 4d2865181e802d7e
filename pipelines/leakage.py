"""The leakage report of corpora under a root, and the clean stage: what is left of a split without leaks.

Records are sealed, so what is left is an output of its own, which readers list beside the records' splits: a file of
ids, one a line, which decides its name by all that it was made of, and which `xmodal export --ids` takes as it is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipelines.corpus import Site, fingerprints_stage, records_stage
from pipelines.engine import build
from pipelines.stage import Counts, Inputs, Sink, Stage
from xmodal.corpora import Corpus
from xmodal.dataset import CLEAN, IDS, clean_name
from xmodal.leakage import DISTANCE, Fingerprints, Leak, Part, clean, leaks
from xmodal.outputs import Output
from xmodal.records import Item, Split, read_rows
from xmodal.trouble import Trouble

VERSION = 1


@dataclass(frozen=True)
class CleanConfig:
    """`against` are the corpora whose training splits the split was compared with, its own the first."""

    corpus: str
    split: str
    distance: int
    against: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Known:
    """A corpus whose media have fingerprints."""

    corpus: str
    records: Output
    fingerprints: Output

    @staticmethod
    def of(site: Site, corpus: Corpus) -> "Known":
        records = records_stage(site, corpus)
        stage = records and fingerprints_stage(site, corpus)
        found = stage and Output(site.storage, stage.folder)
        if not records or not found or not found.complete:
            there = f"under {site.storage.url}"
            raise Trouble(f"{corpus.name} has no fingerprints {there}: xmodal build {corpus.name}/fingerprints first")
        return Known(corpus.name, Output(site.storage, records.folder), found)

    def parts(self) -> list[Part]:
        known = Fingerprints.read(self.fingerprints)
        with self.records.open("items.parquet") as file:
            media = {item.id: item.media for item in read_rows(file, Item)}
        splits: dict[str, dict[str, str]] = {}
        with self.records.open("splits.parquet") as file:
            for split in read_rows(file, Split):
                splits.setdefault(split.name, {})[split.item] = media[split.item]
        return [Part.of(self.corpus, name, some, known) for name, some in splits.items()]

    def told(self) -> dict[str, Any]:
        totals = self.fingerprints.totals
        counted = {name: totals["counts"].get(name, 0) for name in ("media", "flat")}
        return {"corpus": self.corpus, "fingerprints": self.fingerprints.identity, **counted, **totals["failures"]}


def leakage(
    site: Site, corpora: Sequence[Corpus], distance: int = DISTANCE, split: str | None = None
) -> dict[str, Any]:
    """What the splits of these corpora share; `split`, of the first of them, is written without its leaks."""
    known = [Known.of(site, corpus) for corpus in {corpus.name: corpus for corpus in corpora}.values()]
    parts = [part for each in known for part in each.parts()]
    found = leaks(parts, distance)
    report = {
        "distance": distance,
        "corpora": [each.told() for each in known],
        "pairs": [_told(leak) for leak in found],
    }
    return report if split is None else report | {"clean": _clean(site, known, parts, found, distance, split)}


def _told(leak: Leak) -> dict[str, Any]:
    names = {"one": leak.one.name, "other": leak.other.name}
    sizes = {"items_of_one": len(leak.items(leak.one)), "items_of_other": len(leak.items(leak.other))}
    return names | sizes | {"same": leak.same, "exact": leak.exact, "near": leak.near}


def _clean(
    site: Site, known: list[Known], parts: list[Part], found: list[Leak], distance: int, split: str
) -> dict[str, Any]:
    corpus = known[0].corpus
    of_first = {part.split: part for part in parts if part.corpus == corpus}
    if split not in of_first:
        raise Trouble(f"{corpus} has no split {split!r}; there are: {', '.join(sorted(of_first))}")
    left, dropped = clean(found, of_first[split])
    config = CleanConfig(corpus, split, distance, tuple(each.corpus for each in known))
    inputs = tuple(output for each in known for output in (each.records, each.fingerprints))
    output = build(clean_stage(config, tuple(left), inputs), site.storage)
    about = {"split": split, "name": clean_name(output), "path": f"{output.where}/{IDS}"}
    return about | {"items": len(left), "dropped": sorted(dropped)}


def clean_stage(
    config: CleanConfig, ids: tuple[str, ...], inputs: tuple[Output, ...]
) -> Stage[CleanConfig, tuple[str, ...]]:
    """`ids` are what `config` and `inputs` decide; the first of these are the records of the split."""
    return Stage(CLEAN, config, partial(_plan, ids), _open, inputs, VERSION)


def _plan(ids: tuple[str, ...], config: CleanConfig, inputs: Inputs) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "ids", ids


def _open(config: CleanConfig, inputs: Inputs) -> Callable[[tuple[str, ...], Sink], Counts]:
    def work(ids: tuple[str, ...], sink: Sink) -> Counts:
        with sink.file(IDS) as file:
            file.writelines(f"{id}\n".encode() for id in ids)
        return {"items": len(ids)}

    return work
