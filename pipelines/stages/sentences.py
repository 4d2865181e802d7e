"""The sentences stage: every caption of a corpus as one vector, a row each by its id
(xmodal/text/sentence_vectors.py says how).

    codebook    fitted once, as one unit, on captions of the training split; it has the vectors of all words too
    sentences   the captions of all splits and sources, in shards

A caption without any known word is a row of zeros, and counted.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stages._arrays import write_index, write_items
from xmodal.batches.dataset import SENTENCES
from xmodal.errors import UserError
from xmodal.features.store import FeatureSpec, shard_ranges
from xmodal.recipes import View
from xmodal.records.tables import read_columns
from xmodal.records.views import caption_texts, training_split
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output
from xmodal.text.sentence_vectors import AT_ONCE, Codebook, Coding, fit
from xmodal.text.tokenizers import count_words, tokenizer
from xmodal.text.word_vectors import read_vectors, vectors_sha256

VERSION = 2
FILE, ABOUT = "codebook.npz", "codebook.json"


@dataclass(frozen=True)
class CodebookConfig(Coding):
    """`split` is the corpus' only training split unless it is named; `sample` counts captions, drawn by the seed."""

    split: str = ""
    sample: int = 20_000
    vectors: str = field(default="", metadata={"given": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample < 1:
            raise ValueError(f"a sample has at least one caption, not {self.sample}")

    @property
    def coding(self) -> Coding:
        return Coding(**{part.name: getattr(self, part.name) for part in fields(Coding)})


@dataclass(frozen=True)
class SentencesConfig:
    dtype: Literal["float16", "float32"] = "float16"
    rows_per_shard: int = 16_384

    def spec(self, width: int) -> FeatureSpec:
        try:
            return FeatureSpec(SENTENCES, (width,), self.dtype, rows_per_shard=self.rows_per_shard)
        except ValueError as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class Index:
    """The work of the unit that says what the array is and whose its rows are, with the codebook's checksum."""

    ids: tuple[str, ...]
    width: int
    about: str


@dataclass(frozen=True)
class Shard:
    """The work: captions, and the checksum of the codebook."""

    first: int
    texts: tuple[str, ...]
    codebook: str


def sentences(
    records: Output, coding: CodebookConfig, config: SentencesConfig, vectors_file: Path | None = None
) -> Stage[SentencesConfig, Index | Shard]:
    """`vectors_file` has the word vectors, which every method but tfidf needs."""
    made = codebook(records, coding, vectors_file)
    return Stage(SENTENCES, config, _plan, _open, (records, made), VERSION, reuse=True)


def codebook(records: Output, config: CodebookConfig, vectors_file: Path | None = None) -> Stage[CodebookConfig, None]:
    if config.method == "tfidf":
        vectors_file = None
    elif vectors_file is None:
        raise UserError(
            f"codes of sentences by {config.method} need word vectors: give the file (--vectors FILE), or take tfidf, "
            "which needs none (--set codebook.method=tfidf)"
        )
    tokenizer(config.tokenizer)  # what it needs is missed before anything is fitted
    vectors = f"sha256:{vectors_sha256(vectors_file)}" if vectors_file else ""
    config = replace(config, split=config.split or training_split(records, "codebook"), vectors=vectors)
    return Stage("codebook", config, _plan_codebook, partial(_open_codebook, vectors_file), (records,), VERSION)


def _plan_codebook(config: CodebookConfig, inputs: Inputs) -> Iterator[tuple[str, None]]:
    yield "codebook", None


def _open_codebook(vectors_file: Path | None, config: CodebookConfig, inputs: Inputs) -> Callable[[None, Sink], Counts]:
    (records,) = inputs

    def write(work: None, sink: Sink) -> Counts:
        sample = _sample(config, records)
        words, vectors = tuple[str, ...](), None
        if vectors_file:
            texts = read_columns(records, "captions.parquet", "text")["text"].to_pylist()
            words = tuple(sorted(count_words(texts, config.tokenizer, config.cleaning)))
            vectors = read_vectors(vectors_file, words)
        made, told = fit(config.coding, sample, words, vectors)
        about = {**asdict(config), **told, "captions": len(sample), "width": made.width}
        for name, data in ((FILE, made.to_bytes()), (ABOUT, canonical_json(about))):
            with sink.file(name) as file:
                file.write(data)
        known = len(made.words) if vectors_file else 0
        return {"captions": len(sample), "words": len(made.words), "words without vectors": len(words) - known}

    return write


def _sample(config: CodebookConfig, records: Output) -> list[str]:
    texts = list(caption_texts(records, View(str(records.config["corpus"]), config.split)))
    if not texts:
        raise UserError(f"{records.config['corpus']} has no human captions in {config.split!r} to fit a codebook on")
    size = min(config.sample, len(texts))
    chosen = np.random.default_rng(config.seed).choice(len(texts), size, replace=False)
    return [texts[place] for place in np.sort(chosen).tolist()]


def _plan(config: SentencesConfig, inputs: Inputs) -> Iterator[tuple[str, Index | Shard]]:
    records, made = inputs
    table = read_columns(records, "captions.parquet", "id", "text").sort_by("id")
    ids, texts = (table[name].to_pylist() for name in ("id", "text"))
    about = made.read(ABOUT).decode()
    width = json.loads(about)["width"]
    yield "index", Index(tuple(ids), width, about)
    for shard, rows in enumerate(shard_ranges(config.spec(width), len(ids))):
        yield f"shard-{shard:05d}", Shard(rows.start, tuple(texts[rows.start : rows.stop]), made.checksums[FILE])


def _open(config: SentencesConfig, inputs: Inputs) -> Callable[[Index | Shard, Sink], Counts]:
    made = inputs[1]
    codebook = Codebook.from_bytes(made.read(FILE), f"{made.where}/{FILE}")
    spec = config.spec(codebook.width)

    def write(work: Index | Shard, sink: Sink) -> Counts:
        if isinstance(work, Index):
            return write_index(sink, spec, work.ids, json.loads(work.about))
        empty: list[int] = []
        rows = range(work.first, work.first + len(work.texts))
        write_items(sink, spec, rows, _codes(codebook, work.texts, spec, empty))
        return {"rows": len(rows), "without words": sum(empty)}

    return write


def _codes(codebook: Codebook, texts: Sequence[str], spec: FeatureSpec, empty: list[int]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(texts), AT_ONCE):
        codes = codebook.encode(texts[start : start + AT_ONCE])
        empty.append(int((~codes.any(axis=1)).sum()))
        with np.errstate(over="ignore"):  # the writer refuses what is infinite, by its row
            narrowed = codes.astype(spec.dtype)
        yield narrowed
