"""The codebook stage: fits once, on captions of the training split, what sentence vectors are computed with.

It has the vectors of all the corpus' words in the file of vectors.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, given, single
from pipelines.engine.stage_kind import Needs, StageKind
from pipelines.stage_forms.array_stages import write_files
from xmodal.errors import UserError
from xmodal.recipes import View
from xmodal.records.tables import read_columns
from xmodal.records.views import caption_texts, training_split
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output
from xmodal.text.sentence_vectors import Coding, fit
from xmodal.text.tokenizers import count_words, tokenizer
from xmodal.text.word_vectors import read_vectors, vectors_sha256

VERSION = 3
FILE, ABOUT = "codebook.npz", "codebook.json"


@dataclass(frozen=True)
class CodebookConfig(Coding):
    """`split` is the corpus' only training split unless it is named; `sample` counts captions, drawn by the seed."""

    split: str = ""
    sample: int = 20_000
    vectors: str = given()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample < 1:
            raise ValueError(f"a sample has at least one caption, not {self.sample}")

    @property
    def coding(self) -> Coding:
        return Coding(**{part.name: getattr(self, part.name) for part in fields(Coding)})


def check(config: CodebookConfig, files: Mapping[str, Path]) -> None:
    if config.method != "tfidf" and "vectors" not in files:
        cure = "give the file (--vectors FILE), or take tfidf, which needs none (--set codebook.method=tfidf)"
        raise UserError(f"codes of sentences by {config.method} need word vectors: {cure}")
    tokenizer(config.tokenizer)  # a lacking package is told before anything is fitted


def _seconds(config: CodebookConfig, counts: Mapping[str, int]) -> float:
    """Most is the principal axes of Fisher vectors."""
    sample = min(config.sample, counts["captions"])
    return 2.8e-6 * sample**2 if config.method in ("hglmm", "gmm", "lmm") else 1e-5 * counts["captions"]


STAGE = StageKind(
    name="codebook",
    config=CodebookConfig,
    needs=("records",),
    files=("vectors",),
    packages=("sklearn",),
    check=check,
    seconds=_seconds,
    memory=2.9e9,
    small={"method": "tfidf"},
)


def make(config: CodebookConfig, needs: Needs) -> Stage[CodebookConfig, None]:
    check(config, needs.files)
    records = needs["records"]
    file = needs.files.get("vectors") if config.method != "tfidf" else None  # the only method without vectors
    vectors = f"sha256:{vectors_sha256(file)}" if file else ""
    config = replace(config, split=config.split or training_split(records, STAGE.name), vectors=vectors)
    return single(STAGE.name, config, (records,), VERSION, "codebook", partial(_write, file))


def _write(vectors_file: Path | None, config: CodebookConfig, inputs: Inputs, sink: Sink) -> Counts:
    (records,) = inputs
    sample = _sample(config, records)
    words, vectors = tuple[str, ...](), None
    if vectors_file:
        texts = read_columns(records, "captions.parquet", "text")["text"].to_pylist()
        words = tuple(sorted(count_words(texts, config.tokenizer, config.cleaning)))
        vectors = read_vectors(vectors_file, words)
    codebook, about = fit(config.coding, sample, words, vectors, lambda text: sink.say(f"{STAGE.name}: {text}"))
    about = {**asdict(config), **about, "captions": len(sample), "width": codebook.width}
    write_files(sink, {FILE: codebook.to_bytes(), ABOUT: canonical_json(about)})
    known = len(codebook.words) if vectors_file else 0
    return {"captions": len(sample), "words": len(codebook.words), "words without vectors": len(words) - known}


def _sample(config: CodebookConfig, records: Output) -> list[str]:
    texts = list(caption_texts(records, View(str(records.config["corpus"]), config.split)))
    if not texts:
        raise UserError(f"{records.config['corpus']} has no human captions in {config.split!r} to fit a codebook on")
    size = min(config.sample, len(texts))
    chosen = np.random.default_rng(config.seed).choice(len(texts), size, replace=False)
    return [texts[place] for place in np.sort(chosen).tolist()]
