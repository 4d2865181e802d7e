"""The clusters stage: classes that k-means finds among the pictures of a split, by their ResNet's features.

A grid is averaged. Dual-Path trains on such classes in place of one for every picture (table IV).
"""

from dataclasses import dataclass, replace

import pyarrow as pa

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import write_table
from xmodal.batches.cluster_classes import CLUSTERS, FILE, k_means, pooled_rows
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.number_rules import one_or_more, zero_or_more
from xmodal.records.views import members, training_split

VERSION = 1


@dataclass(frozen=True)
class ClustersConfig:
    """`split` is the corpus' only training split unless it is named; k-means ends before `rounds` if nothing moves."""

    count: int = 3000
    split: str = ""
    rounds: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        one_or_more(count=self.count, rounds=self.rounds)
        zero_or_more(seed=self.seed)


STAGE = StageKind(
    name=CLUSTERS,
    config=ClustersConfig,
    needs=("records", "resnet"),
    of="image",
    packages=("sklearn",),
    seconds=lambda config, counts: 4.5e-8 * counts["items"] * config.count * config.rounds,
    memory=2.5e9,
    small={"count": 2, "split": "train"},
)


def make(config: ClustersConfig, needs: Needs) -> Stage[ClustersConfig, None]:
    records = needs["records"]
    config = replace(config, split=config.split or training_split(records, STAGE.name))
    return single(STAGE.name, config, (records, needs["resnet"]), VERSION, "clusters", _write)


def _write(config: ClustersConfig, inputs: Inputs, sink: Sink) -> Counts:
    records, store = inputs[0], FeatureStore(inputs[1])
    ids = sorted(item for item in members(records, config.split) if item in store)
    if len(ids) < config.count:
        there = f"{len(ids):,} pictures of {config.split!r} have features"
        raise UserError(f"{there}, too few for {config.count:,} classes: --set clusters.count=N")
    found = k_means(pooled_rows(store, ids), config.count, config.rounds, config.seed)
    write_table(sink, FILE, pa.table({"item": ids, "class": found}))
    return {"items": len(ids), "classes": config.count}
