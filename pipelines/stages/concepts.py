"""The concepts stage: the tags that each caption names (xmodal/text/wordnet.py), a run of numbers a caption, by its id.

Numbers count from 1, in the order of the tags; a caption that names none has the number 0 alone, and is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, given
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import ArrayShard, ArrayWriter, PlannedArray, array_stage, write_items
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stages.texts.sentences import captions_in_order
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import FeatureStore
from xmodal.recipes import CONCEPTS
from xmodal.root.identity import fingerprint
from xmodal.root.outputs import Output
from xmodal.text.tokenizers import check_names, tokenizer
from xmodal.text.wordnet import NO_WORDNET, Concepts, read_wordnet, wordnet_sha256

VERSION = 1


@dataclass(frozen=True)
class ConceptsConfig:
    expansion: Literal["wordnet", "none"] = "wordnet"  # none: a tag's own words and their plurals
    tokenizer: str = "nltk"
    items_per_shard: int = 16_384
    wordnet: str = given()

    def __post_init__(self) -> None:
        check_names(self.tokenizer, "none")
        _ = self.spec  # refuses impossible lengths

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec(CONCEPTS, (), "int32", ragged=True, items_per_shard=self.items_per_shard)


def check(config: ConceptsConfig, files: Mapping[str, Path]) -> None:
    tokenizer(config.tokenizer)  # a lacking package is told before anything is built
    if config.expansion == "wordnet":
        wordnet_sha256(files.get("wordnet"))


STAGE = StageKind(
    name=CONCEPTS,
    config=ConceptsConfig,
    needs=("records", "tags"),
    of="image",
    files=("wordnet",),
    check=check,
    features=True,
    seconds=lambda config, counts: 1e-4 * counts["captions"],
    memory=1.0e9,
    small={"expansion": "none"},
)


def make(config: ConceptsConfig, needs: Needs) -> Stage[ConceptsConfig, Any]:
    path = needs.files.get("wordnet")
    if config.expansion == "wordnet":
        config = replace(config, wordnet=f"sha256:{wordnet_sha256(path)}")
    return array_stage(STAGE.name, config, (needs["records"], needs["tags"]), VERSION, _planned, partial(_open, path))


def _planned(config: ConceptsConfig, inputs: Inputs) -> PlannedArray:
    """A shard reads the texts of its captions and the names of the tags."""
    ids, texts = captions_in_order(inputs[0])
    names = fingerprint(_tags(inputs[1]))
    about = {"tags": names, "for": inputs[1].folder}
    return PlannedArray(config.spec, ids, lambda rows: (texts[rows.start : rows.stop], names), about)


def _tags(made: Output) -> tuple[str, ...]:
    return tuple(FeatureStore(made).provenance["tags"])


def _open(path: Path | None, config: ConceptsConfig, inputs: Inputs) -> ArrayWriter:
    wordnet = read_wordnet(path) if config.expansion == "wordnet" else NO_WORDNET
    concepts = Concepts(_tags(inputs[1]), wordnet, config.tokenizer)

    def numbers(text: str) -> NDArray[np.int32]:
        found = concepts.encode(text) + 1
        return found if len(found) else np.zeros(1, np.int32)

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        found = [numbers(text) for text in work.reads[0]]
        write_items(sink, config.spec, work.rows, found)
        none = sum(not each[0] for each in found)
        return {"rows": len(found), "concepts": sum(map(len, found)) - none, "without concepts": none}

    return ArrayWriter(config.spec, {}, fill)
