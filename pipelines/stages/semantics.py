"""The semantics stage: what a detector saw in each picture, as its caption: "blue car old man", surest region first.

Views read these captions by `text="semantics"`. A picture without regions has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.stages import Needs, StageKind
from pipelines.stages._arrays import write_table
from xmodal.detection.region_semantics import SEMANTICS, SHOWN, semantics_of
from xmodal.detection.region_store import RegionStore
from xmodal.number_rules import shares
from xmodal.records.caption_sources import CAPTIONS
from xmodal.records.tables import Caption, schema

VERSION = 1


@dataclass(frozen=True)
class SemanticsConfig:
    shown: float = SHOWN  # an attribute is said if it is more probable

    def __post_init__(self) -> None:
        shares(shown=self.shown)


STAGE = StageKind(
    name=SEMANTICS,
    config=SemanticsConfig,
    needs=("records", "regions"),
    of="image",
    seconds=lambda config, counts: 3e-4 * counts["items"],
    memory=0.5e9,
)


def make(config: SemanticsConfig, needs: Needs) -> Stage[SemanticsConfig, None]:
    return single(STAGE.name, config, (needs["records"], needs["regions"]), VERSION, "captions", _write)


def _write(config: SemanticsConfig, inputs: Inputs, sink: Sink) -> Counts:
    regions = RegionStore(inputs[1])
    regions.require_words("class", "attribute")
    rows = [vars(caption) for caption in _captions(regions, config.shown)]
    write_table(sink, CAPTIONS, pa.Table.from_pylist(rows, schema(Caption)))
    return {"captions": len(rows), "without regions": len(regions.ids) - len(rows)}


def _captions(regions: RegionStore, shown: float) -> Iterator[Caption]:
    for id in regions.ids:
        if id in regions.absent:
            continue
        if text := semantics_of(regions.words, regions.classes(id), regions.attributes(id), shown):
            yield Caption(f"{SEMANTICS}:{id}", id, 0, text, SEMANTICS)
