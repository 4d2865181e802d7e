"""The phrases stage: every phrase that captions say of a picture as one vector, as sentences have them, by its words.

Phrases of the same words are one row. Corpora without phrases have none.
"""

from dataclasses import dataclass
from typing import Any

from pipelines.engine.stage import Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stages.texts.sentences import SentencesConfig, captions_in_order, text_stage
from xmodal.recipes import PHRASES
from xmodal.records.tables import Match, read_rows
from xmodal.root.outputs import Output

VERSION = 1


@dataclass(frozen=True)
class PhrasesConfig(SentencesConfig):
    """Has the settings of captions; its name is in the identity of every output."""


STAGE = StageKind(
    name=PHRASES,
    config=PhrasesConfig,
    needs=("records", "codebook"),
    features=True,
    seconds=lambda config, counts: 0.001 * counts["captions"],
    memory=1.0e9,
)


def make(config: PhrasesConfig, needs: Needs) -> Stage[SentencesConfig, Any]:
    return text_stage(STAGE.name, config, needs, VERSION, _phrases)


def _phrases(records: Output) -> tuple[tuple[str, ...], tuple[str, ...]]:
    texts = dict(zip(*captions_in_order(records), strict=True))
    spans = (one for one in read_rows(records, Match) if one.start is not None and one.caption in texts)
    words = tuple(sorted({texts[one.caption][one.start : one.end] for one in spans}))
    return words, words
