"""Captions into words: counted and encoded, beside NLTK's own tokenizer in a loop, and by two processes beside one.

Captions are generated: as many are plain as in COCO, where 97 of 100 have letters, commas and a full stop alone.
"""

import io
import multiprocessing
import statistics
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from nltk import word_tokenize

from pipelines.stages.texts.vocabulary import COUNTS, VocabularyConfig
from tests.benchmarks.measured import Measured, timed
from tests.made import made
from tests.records.test_sparse import tables
from xmodal.records.tables import Caption, Item, Split
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage
from xmodal.text.tokenizers import count_words, tokenized, tokenizer
from xmodal.text.vocabularies import Vocabulary

CAPTIONS = 1 << 20  # sixteen units of the stage
SAMPLE = 5_000  # captions a round: NLTK takes up to a tenth of a millisecond for each
SOME = {"nltk": CAPTIONS // 4, "spacy": CAPTIONS // 4, "whitespace": CAPTIONS}  # as fast as they are
TYPES, ROUNDS, TURNS = 20_000, 5, 3


def measure() -> dict[str, Measured]:
    captions = list(_captions(CAPTIONS))
    return {
        "tokenize_vs_map": _beside_map(captions),
        "count_vs_nltk": _beside_nltk(captions),
        "tokenize_two_workers_vs_one": _workers(captions),
    }


def _captions(count: int, types: int = TYPES) -> Iterator[str]:
    """Eleven words each, some of them far more often than others."""
    draws = np.random.default_rng(0)
    words = ["".join(letters) for letters in draws.choice([*"abcdefghijklmnopqrstuvwxyz"], (types, 6))]
    places = (types ** draws.random((count, 11))).astype(int)
    for number, row in enumerate(places.tolist()):
        first, *others = (words[place] for place in row)
        odd = '\'s "red" one' if number % 33 == 0 else "," if number % 5 == 0 else ""
        yield f"{first.capitalize()}{odd} {' '.join(others)}."


def _beside_map(captions: Sequence[str]) -> Measured:
    """The corpus as one stream, by the tokenizer for which this is slowest."""
    runs = dict[str, list[float]]()
    for name in ("nltk", "spacy", "whitespace"):
        split = tokenizer(name)
        some = captions[: SOME[name]]
        ways: dict[str, Callable[[], Iterator[list[str]]]] = {
            "ours": lambda name=name, some=some: tokenized(some, name),
            "map": lambda split=split, some=some: map(split, some),
        }
        _refuse_other(*(Counter(map(tuple, way())) for way in ways.values()))
        for turn in range(TURNS):
            spent = {
                way: timed(lambda way=way, ways=ways: deque(ways[way](), 0))
                for way in sorted(ways, reverse=turn % 2 == 1)
            }
            runs.setdefault(name, []).append(spent["map"] / spent["ours"])
    slowest = min(runs, key=lambda name: statistics.median(runs[name]))
    return _median(runs[slowest], f"map(tokenizer, captions), of {', '.join(runs)} the slowest beside it: {slowest}")


def _beside_nltk(captions: Sequence[str]) -> Measured:
    encoder = Vocabulary.build(captions[:SAMPLE], "nltk", 1)
    ways: dict[str, Callable[[list[str]], Any]] = {
        "nltk": lambda some: deque(map(_nltk, some), 0),
        "counted": lambda some: count_words(some, "nltk"),
        "encoded": lambda some: deque(map(encoder.encode, some), 0),
    }
    ratios, spent = list[float](), dict[str, float]()
    for turn in range(ROUNDS):
        some = list(captions[turn * SAMPLE : (turn + 1) * SAMPLE])
        _refuse_other(count_words(some, "nltk"), Counter(word for caption in some for word in _nltk(caption)))
        for way in sorted(ways, reverse=turn % 2 == 1):
            spent[way] = timed(lambda way=way, some=some: ways[way](some))
        ratios.append(spent["nltk"] / max(spent["counted"], spent["encoded"]))
    whole = timed(lambda: count_words(captions, "nltk"))
    told = (
        f"nltk.word_tokenize mapped over captions in lower case, {SAMPLE / spent['nltk']:,.0f} a second; ours "
        f"counts {CAPTIONS:,} in {whole:.1f} s; the slower of counting and encoding"
    )
    return _median(ratios, told)


def _nltk(caption: str) -> list[str]:
    return list(word_tokenize(caption.lower(), preserve_line=True))


def _workers(captions: Sequence[str]) -> Measured:
    """The stage's units by processes that are there and warm."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        records = tables(Path(folder) / "root", "pictures", _rows(captions))
        parts = [(folder, records.folder, unit) for unit, _ in enumerate(captions[:: 1 << 16])]
        with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(2, context) as two:
            pools, spent = {1: one, 2: two}, dict[int, list[float]]({1: [], 2: []})
            _refuse_other(*(list(pool.map(_count, parts)) for pool in pools.values()))
            for turn in range(TURNS):
                for count in sorted(pools, reverse=turn % 2 == 1):
                    spent[count].append(timed(lambda count=count: list(pools[count].map(_count, parts))))
    told = (
        f"{CAPTIONS:,} captions in {len(parts)} units of the stage, {statistics.median(spent[1]):.1f} s by one process"
    )
    return _median([alone / both for alone, both in zip(spent[1], spent[2], strict=True)], told)


def _rows(captions: Sequence[str]) -> Iterator[Item | Caption | Split]:
    for number, caption in enumerate(captions):
        if number % 5 == 0:
            yield Item(f"{number // 5}", f"{number // 5}.jpg")
            yield Split(f"{number // 5}", "train")
        yield Caption(f"{number}", f"{number // 5}", number % 5, caption)


def _count(part: tuple[str, str, int]) -> bytes:
    """What a unit of the stage writes."""
    folder, records, unit = part
    sink = _Memory()
    work, do = _opened(folder, records)
    do(work[unit], sink)
    return sink.written.getvalue()


@cache
def _opened(folder: str, records: str) -> tuple[list[Any], Callable[[Any, Any], object]]:
    """Once in a worker, as the engine does."""
    stage = made("vocabulary", VocabularyConfig("train"), records=Output(open_storage(f"{folder}/root"), records))
    counts: Any = next(made for made in stage.inputs if not isinstance(made, Output) and made.name == COUNTS)
    return [work for _, work in counts.plan(counts.config, counts.inputs)], counts.open(counts.config, counts.inputs)


class _Memory:
    def __init__(self) -> None:
        self.written = io.BytesIO()

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        yield self.written


def _refuse_other(ours: object, theirs: object) -> None:
    if ours != theirs:
        raise RuntimeError("two ways of counting the same captions found other words")


def _median(runs: Sequence[float], told: str) -> Measured:
    return Measured(statistics.median(runs), "x", told, tuple(round(run, 4) for run in runs))


if __name__ == "__main__":
    for name, found in measure().items():
        print(name, found)
