"""The vocabulary stage: the words of a split's captions, counted part by part and merged once.

Counting is a stage of its own, `word-counts`, which another minimum count uses again: a unit is a row group of the
captions, its file every word with its number, in order. The merge reads files in pieces.
"""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.engine.stage import Counts, Inputs, Sink, Stage, single
from pipelines.engine.stage_kind import Needs, StageKind
from xmodal.batches.texts import VOCABULARY, WORDS
from xmodal.errors import UserError
from xmodal.recipes import HUMAN, View
from xmodal.records.caption_sources import CAPTIONS, captions_output, named_text
from xmodal.records.derived_splits import Share
from xmodal.records.views import members, training_split
from xmodal.root.outputs import Output
from xmodal.text.tokenizers import check_names, count_words, tokenizer
from xmodal.text.vocabularies import SPECIALS, Vocabulary

VERSION = 1
COUNTS = "word-counts"
PIECE = 1 << 16  # bytes of a file of counts
Entry = tuple[str, int]  # a word and how often it occurs


@dataclass(frozen=True)
class Counted:
    """The captions to count, as by a `View`, and how they become words; the split defaults to the training one."""

    split: str = ""
    captions_per_item: int | None = None
    text: str = HUMAN
    tokenizer: str = "nltk"
    cleaning: str = "none"

    def __post_init__(self) -> None:
        check_names(self.tokenizer, self.cleaning)
        View("", self.split, self.captions_per_item, self.text)  # refuses what is no view
        share = Share.of(self.split)
        if share and (share.captions or share.hides(self.text)):
            raise ValueError(f"the captions of {self.split!r} are drawn item by item: training counts these itself")


@dataclass(frozen=True)
class VocabularyConfig(Counted):
    minimum_count: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minimum_count < 1:
            raise ValueError(f"a word must occur at least once, not {self.minimum_count} times")


def check(config: Counted, files: Mapping[str, Path]) -> None:
    tokenizer(config.tokenizer)  # a lacking package is told before anything is counted


STAGE = StageKind(
    name=VOCABULARY,
    config=VocabularyConfig,
    needs=("records",),
    check=check,
    also=(COUNTS,),
    seconds=lambda config, counts: 1e-5 * counts["captions"],
    memory=0.3e9,
    small={"minimum_count": 1},
)


def make(config: VocabularyConfig, needs: Needs) -> Stage[VocabularyConfig, None]:
    records = needs["records"]
    split, text = config.split or training_split(records, VOCABULARY), named_text(records, config.text)
    config = replace(config, split=split, text=text)
    members(records, config.split)  # refuses a split that is not there
    counted = Counted(**{field.name: getattr(config, field.name) for field in fields(Counted)})
    captions = captions_output(records, text)
    read = (records,) if captions.folder == records.folder else (records, captions)
    counts = Stage(COUNTS, counted, _plan_parts, _open_counting, read, VERSION)
    return single(VOCABULARY, config, (records, counts), VERSION, "words", _merge)


def _plan_parts(config: Counted, inputs: Inputs) -> Iterator[tuple[str, int]]:
    """The work is the number of a row group of the captions, which the last input has."""
    with inputs[-1].open(CAPTIONS) as file:
        groups = pq.ParquetFile(file).num_row_groups
    return ((f"part-{group:06d}", group) for group in range(groups))


def _open_counting(config: Counted, inputs: Inputs) -> Callable[[int, Sink], Counts]:
    items = pa.array(sorted(members(inputs[0], config.split)), pa.string())

    def count(group: int, sink: Sink) -> Counts:
        captions = _captions(inputs[-1], group, config, items)
        counts = count_words(captions, config.tokenizer, config.cleaning)
        with sink.file(f"part-{group:06d}.tsv") as file:
            file.writelines(f"{word}\t{counts[word]}\n".encode() for word in sorted(counts))
        return {"captions": len(captions), "words": counts.total()}

    return count


def _captions(made: Output, group: int, config: Counted, items: pa.Array) -> list[str]:
    """The captions of one row group: all may exceed memory."""
    with made.open(CAPTIONS) as file:
        columns = ["item", "position", "text", "source"]
        table = pq.ParquetFile(file).read_row_group(group, columns, use_threads=False)
    wanted = pc.and_(pc.is_in(table["item"], value_set=items), pc.equal(table["source"], config.text.partition("/")[0]))
    if config.captions_per_item is not None:
        wanted = pc.and_(wanted, pc.less(table["position"], config.captions_per_item))
    captions: list[str] = table["text"].filter(wanted).to_pylist()
    return captions


def _merge(config: VocabularyConfig, inputs: Inputs, sink: Sink) -> Counts:
    records, counts = inputs
    if not counts.totals["counts"].get("captions"):
        corpus = records.config["corpus"]
        raise UserError(f"{corpus} has no {config.text} captions in {config.split!r} whose words could be counted")
    totals = merged(_entries(counts, name) for name in sorted(counts.files))
    made = Vocabulary.of_counts(totals, config.tokenizer, config.minimum_count, config.cleaning)
    if len(made) == len(SPECIALS):
        least = f"{config.minimum_count:,} times (vocabulary.minimum_count)"
        raise UserError(f"no word of {config.split!r} occurs {least}")
    with sink.file(WORDS) as file:
        file.write(made.to_bytes())
    return {"words": len(made)}


def merged(parts: Iterable[Iterator[Entry]]) -> Iterator[Entry]:
    """Every word once, with the sum of its numbers; each part is sorted."""
    for word, same in groupby(heapq.merge(*parts), itemgetter(0)):
        yield word, sum(count for _, count in same)


def _entries(counts: Output, name: str) -> Iterator[Entry]:
    """One file's words with their numbers; it is opened for each piece, as there may be many."""
    digest, begin, rest = hashlib.sha256(), 0, b""
    while begin < counts.files[name]:
        with counts.open(name) as file:
            file.seek(begin)
            piece = file.read(PIECE)
        digest.update(piece)
        begin += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            word, _, count = line.decode().partition("\t")
            yield word, int(count)
    if digest.hexdigest() != counts.checksums[name]:
        raise UserError(f"{counts.where}/{name} is not what was committed: {counts.cure}")
