"""The image_semantics stage: the tags of each picture as its caption, those of a score of 0.3 or more, highest first.

It is what A3VSE's ablation reads in place of regional semantics (docs/models.md#a3vse-ablations). A picture without
such a tag has no caption.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.stages import Needs, StageKind
from pipelines.stages._arrays import write_table
from xmodal.detection.image_tags import TEXT_SCORE, tags_as_text
from xmodal.features.store import FeatureStore
from xmodal.number_rules import shares
from xmodal.records.tables import Caption, schema

VERSION = 1
AT_ONCE = 256  # pictures


@dataclass(frozen=True)
class ImageSemanticsConfig:
    least: float = TEXT_SCORE  # score of a tag that is said

    def __post_init__(self) -> None:
        shares(least=self.least)


STAGE = StageKind(
    name="image_semantics",
    config=ImageSemanticsConfig,
    needs=("records", "tags"),
    of="image",
    seconds=lambda config, counts: 3e-4 * counts["items"],
    memory=0.5e9,
)


def make(config: ImageSemanticsConfig, needs: Needs) -> Stage[ImageSemanticsConfig, None]:
    return single(STAGE.name, config, (needs["records"], needs["tags"]), VERSION, "captions", _write)


def _write(config: ImageSemanticsConfig, inputs: Inputs, sink: Sink) -> Counts:
    tags = FeatureStore(inputs[1])
    ids = [id for id in tags.ids if id in tags]
    rows = [vars(caption) for caption in _captions(tags, ids, config.least)]
    write_table(sink, "captions.parquet", pa.Table.from_pylist(rows, schema(Caption)))
    return {"captions": len(rows), "without tags": len(ids) - len(rows)}


def _captions(tags: FeatureStore, ids: list[str], least: float) -> Iterator[Caption]:
    names = tags.provenance["tags"]
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        for id, scores_T in zip(some, tags.read(some), strict=True):
            if text := tags_as_text(names, scores_T, least):
                yield Caption(f"{STAGE.name}:{id}", id, 0, text, STAGE.name)
