"""The semantics stage: what a detector saw in each picture, as its caption: "blue car old man", surest region first.

Views read these captions by `text="semantics"`. A picture without regions has none; imported regions of pictures that
the corpus lacks are left out, and counted, as are those without an area. Regions that the small detector is not sure
of, and that are kept for their features, give no words: a picture without others is a failure, `unsure`.
"""

from dataclasses import dataclass, replace

import numpy as np

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.caption_stages import write_captions
from xmodal.detection.box_geometry import has_area
from xmodal.detection.region_semantics import SEMANTICS, SHOWN, semantics_of
from xmodal.detection.region_store import RegionStore
from xmodal.detectors import kind_of
from xmodal.number_rules import shares
from xmodal.records.tables import read_columns
from xmodal.root.identity import since
from xmodal.root.outputs import Output

VERSION = 3
WITHOUT_REGIONS = "without regions"  # the count of pictures that have no caption


@dataclass(frozen=True)
class SemanticsConfig:
    shown: float = SHOWN  # an attribute is said if it is more probable
    # a region is said from this score of its class on; none: the regions' threshold of the small detector, 0 of others
    least_score: float | None = since("0.2", None)

    def __post_init__(self) -> None:
        shares(shown=self.shown, least_score=self.least_score)

    def resolved(self, regions: Output) -> "SemanticsConfig":
        """The same, with the threshold of regions as their least score if the detector says only those."""
        found = regions.config
        if self.least_score is None and found.get("boxes") == "detected" and not kind_of(found["detector"]).says_all:
            return replace(self, least_score=found["threshold"])
        return self


STAGE = StageKind(
    name=SEMANTICS,
    config=SemanticsConfig,
    needs=("records", "regions"),
    of="image",
    seconds=lambda config, counts: 3e-4 * counts["items"],
    memory=0.5e9,
)


def make(config: SemanticsConfig, needs: Needs) -> Stage[SemanticsConfig, None]:
    config = config.resolved(needs["regions"])
    return single(STAGE.name, config, (needs["records"], needs["regions"]), VERSION, "captions", _write)


def _write(config: SemanticsConfig, inputs: Inputs, sink: Sink) -> Counts:
    regions = RegionStore(inputs[1])
    regions.require_words("class", "attribute")
    items = set(read_columns(inputs[0], "items.parquet", "id")["id"].to_pylist())
    own = [id for id in regions.ids if id in items]
    least, texts, unsure, without_area = config.least_score or 0.0, dict[str, str](), 0, 0
    for id in own:
        if id in regions.absent or (classes := regions.classes(id)) is None:
            continue
        has_area_K = has_area(regions.boxes(id))
        said_K = has_area_K & (classes.scores_K >= least)
        without_area += int(np.count_nonzero(~has_area_K))
        if said_K.any():
            texts[id] = semantics_of(regions.words, classes, regions.attributes(id), config.shown, said_K)
        else:
            unsure += 1
            surest = max(classes.scores_K[has_area_K], default=0.0)
            sink.fail(id, "unsure", f"no region has an area and a score of {least:g}: the surest has {surest:.2f}")
    captions = write_captions(sink, SEMANTICS, texts.items())
    counts = {"captions": captions, WITHOUT_REGIONS: len(own) - captions - unsure}
    counts |= {"not in the corpus": len(regions.ids) - len(own)}
    return counts | ({"regions without area": without_area} if without_area else {})
