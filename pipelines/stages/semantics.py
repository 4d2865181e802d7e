"""The semantics stage: what a detector saw in each picture, as its caption: "blue car old man", surest region first.

Views read these captions by `text="semantics"`. A picture without regions has none; imported regions of pictures that
the corpus lacks are left out, and counted.
"""

from dataclasses import dataclass

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.caption_stages import write_captions
from xmodal.detection.region_semantics import SEMANTICS, SHOWN, semantics_of
from xmodal.detection.region_store import RegionStore
from xmodal.number_rules import shares
from xmodal.records.tables import read_columns

VERSION = 2
WITHOUT_REGIONS = "without regions"  # the count of pictures that have no caption


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
    items = set(read_columns(inputs[0], "items.parquet", "id")["id"].to_pylist())
    own = [id for id in regions.ids if id in items]
    present = (id for id in own if id not in regions.absent)
    words, shown = regions.words, config.shown
    texts = ((id, semantics_of(words, regions.classes(id), regions.attributes(id), shown)) for id in present)
    captions = write_captions(sink, SEMANTICS, texts)
    counts = {"captions": captions, WITHOUT_REGIONS: len(own) - captions}
    return counts | {"not in the corpus": len(regions.ids) - len(own)}
