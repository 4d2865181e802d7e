"""The sentences stage: every caption of a corpus as one vector (xmodal/text/sentence_vectors.py), by its id.

A caption without any known word is a row of zeros, and counted.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import (
    ArrayShard,
    ArrayWriter,
    PlannedArray,
    array_stage,
    blocks_of,
    write_items,
    write_sources,
)
from pipelines.stage_forms.earlier_rows import EarlierRows
from pipelines.stages.texts.codebook import ABOUT, FILE
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.records.tables import read_columns
from xmodal.root.outputs import Output
from xmodal.text.sentence_vectors import AT_ONCE, Codebook

VERSION = 3
TextsOf = Callable[[Output], tuple[tuple[str, ...], tuple[str, ...]]]  # ids and texts


@dataclass(frozen=True)
class SentencesConfig:
    dtype: Literal["float16", "float32"] = "float16"
    rows_per_shard: int = 16_384

    def spec(self, name: str, width: int) -> FeatureSpec:
        try:
            return FeatureSpec(name, (width,), self.dtype, rows_per_shard=self.rows_per_shard)
        except ValueError as error:
            raise UserError(str(error)) from error


STAGE = StageKind(
    name="sentences",
    config=SentencesConfig,
    needs=("records", "codebook"),
    features=True,
    seconds=lambda config, counts: 0.0023 * counts["captions"],
    memory=1.0e9,
)


def make(config: SentencesConfig, needs: Needs) -> Stage[SentencesConfig, Any]:
    return text_stage(STAGE.name, config, needs, VERSION, captions_in_order)


def text_stage(
    name: str, config: SentencesConfig, needs: Needs, version: int, texts_of: TextsOf
) -> Stage[SentencesConfig, Any]:
    """Makes a stage that encodes texts, which `texts_of` reads with their ids from the records."""
    inputs = needs["records"], needs["codebook"]
    return array_stage(name, config, inputs, version, partial(_planned, name, texts_of), partial(_open, name))


def _planned(name: str, texts_of: TextsOf, config: SentencesConfig, inputs: Inputs) -> PlannedArray:
    """A shard reads its texts and the checksum of the codebook."""
    records, codebook = inputs
    ids, texts = texts_of(records)
    about = json.loads(codebook.read(ABOUT))
    spec, checksum = config.spec(name, about["width"]), codebook.checksums[FILE]
    return PlannedArray(spec, ids, lambda rows: (texts[rows.start : rows.stop], checksum), about)


@lru_cache(maxsize=1)
def captions_in_order(records: Output) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids and texts, in order of the ids."""
    table = read_columns(records, "captions.parquet", "id", "text").sort_by("id")
    return tuple(table["id"].to_pylist()), tuple(table["text"].to_pylist())


def _open(name: str, config: SentencesConfig, inputs: Inputs) -> ArrayWriter:
    made = inputs[1]
    codebook = Codebook.from_bytes(made.read(FILE), f"{made.where}/{FILE}")
    spec = config.spec(name, codebook.width)

    def encode(texts: list[str]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # the writer refuses what is infinite, by its row
            return codebook.encode(texts).astype(spec.dtype)

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        texts, _ = work.reads
        sources = list(map(codebook.source, texts))
        found = (earlier.find(source, sink, spec) for source in sources)
        looked_up = ((row.values, None) if row else (None, text) for row, text in zip(found, texts, strict=True))
        empty = 0

        def rows() -> Iterator[NDArray[Any]]:
            nonlocal empty
            for codes in blocks_of(looked_up, encode, AT_ONCE):
                empty += int((~codes.any(axis=1)).sum())
                yield codes

        write_items(sink, spec, work.rows, rows())
        write_sources(sink, work.ids, sources)
        return {"rows": len(texts), "without words": empty}

    return ArrayWriter(spec, {}, fill)
