"""The pixels stage: pictures resized once, one row of bytes an item, for phases that train the network that sees them.

The shorter side is resized, of the longer one the middle is kept. Lost are what lies beyond the square (of 640 x 480 a
quarter) and finer detail (a random crop of an eighth of the square is 90 pixels wide, of the picture 170). Rows are
mapped, not decoded every epoch. They are the media over again: never published as features.
"""

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from pipelines.engine.picture_decoder import DEADLINE, SquareDecoder
from pipelines.engine.stage import Stage, listed
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.media_stages import PictureExtractor, bytes_of_rows, picture_stage
from xmodal import __version__
from xmodal.features.feature_spec import FeatureSpec
from xmodal.number_rules import above_zero
from xmodal.root.identity import since

VERSION = 4
PICTURES_AT_ONCE = 16


@dataclass(frozen=True)
class PixelsConfig:
    """`side` is the `resize` of the network that will look: 256 of 224."""

    side: int = 256
    rows_per_shard: int = 1024
    items: str = listed()
    deadline: float = since("0.2", DEADLINE)  # seconds for one picture

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f"a side has at least 1 pixel, not {self.side}")
        above_zero(deadline=self.deadline)
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec("pixels", (self.side, self.side, 3), "uint8", rows_per_shard=self.rows_per_shard)


STAGE = StageKind(
    name="pixels",
    config=PixelsConfig,
    needs=("records", "media"),
    of="image",
    estimate=bytes_of_rows,
    seconds=lambda config, counts: 0.003 * counts["items"],
    memory=0.2e9,
    small={"side": 32},
)


def make(config: PixelsConfig, needs: Needs) -> Stage[PixelsConfig, Any]:
    return picture_stage(STAGE.name, config, needs, VERSION, _extractor)


def _extractor(config: PixelsConfig) -> PictureExtractor:
    side = config.side
    preprocessing = {"resize": side, "crop": side, "interpolation": "bilinear", "colours": "RGB"}
    versions = {"pillow": version("pillow"), "xmodal": __version__}
    provenance = {"preprocessing": preprocessing, "versions": versions}
    decoder = SquareDecoder(side, side, config.deadline)
    return PictureExtractor(decoder.pixels, np.asarray, PICTURES_AT_ONCE, provenance, decoder.expect)
