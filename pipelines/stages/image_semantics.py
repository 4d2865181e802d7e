"""The image_semantics stage: the tags of each picture as its caption, those of a score of 0.3 or more, highest first.

It is what A3VSE's ablation reads in place of regional semantics (docs/models.md#a3vse-ablations). A picture without
such a tag has no caption.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.caption_stages import write_captions
from xmodal.detection.image_tags import TEXT_SCORE, tags_as_text
from xmodal.features.store import FeatureStore
from xmodal.number_rules import shares

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
    captions = write_captions(sink, STAGE.name, _texts(tags, ids, config.least))
    return {"captions": captions, "without tags": len(ids) - captions}


def _texts(tags: FeatureStore, ids: list[str], least: float) -> Iterator[tuple[str, str]]:
    names = tags.provenance["tags"]
    for first in range(0, len(ids), AT_ONCE):
        some = ids[first : first + AT_ONCE]
        for id, scores_T in zip(some, tags.read(some), strict=True):
            yield id, tags_as_text(names, scores_T, least)
