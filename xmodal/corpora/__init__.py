"""Corpora: one module each, found because the file exists.

A module holds a docstring with a sample of the publisher's file, `parse`, and `CORPUS`; so does a file of your own,
`path/to/mine.py`, which can be named like a corpus. `xmodal check` says what either lacks.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Literal

from xmodal.errors import UserError
from xmodal.python_files import load_python_file
from xmodal.raw.raw_files import Raw
from xmodal.recipes import EVERY
from xmodal.records.derived_splits import RandomSplitSizes
from xmodal.records.tables import Row

SAMPLE = "-sample"  # the end of the name of a sample
Part = Literal["annotations", "media"]
ReleaseClass = Literal["all", "features", "ids", "nothing"]  # may be published: itself, what was computed from it, …


@dataclass(frozen=True)
class Source:
    path: str  # its place in the raw folder, and its name in the ledger
    url: str | None = None
    mirrors: tuple[str, ...] = ()
    bytes: int | None = None
    sha256: str | None = None
    how: str = ""  # what a person must do when url is None
    part: Part = "annotations"  # parsing needs these alone, so that records never wait for pictures
    members: tuple[str, ...] = ()  # of an archive all that parsing reads: unpacked, they stand in for it

    def __post_init__(self) -> None:
        unsafe = self.path.startswith(("/", "~")) or "\\" in self.path or not self.path
        if unsafe or any(p in ("", ".", "..") for p in self.path.split("/")) or not self.path.isprintable():
            raise ValueError(f"a source's path is relative and stays inside the raw folder, not {self.path!r}")
        if self.url is None and not self.how:
            raise ValueError(f"{self.path}: a source without URL says in `how` what a person must do")


@dataclass(frozen=True)
class Printed:
    """A number that a paper prints of a split, or of a whole corpus."""

    what: str  # items, captions, first_five, vocabulary, words_per_caption, or a name in `Statistics.counts`
    value: float
    cites: str
    split: str = EVERY
    note: str = ""


@dataclass(frozen=True)
class Corpus:
    name: str
    homepage: str
    licence: str
    media_set: str  # corpora that share pictures or clips share its name
    sources: tuple[Source, ...]
    parse: Callable[[Raw], Iterator[Row]]
    media: Callable[[Raw], Iterator[Source]] | None = None  # those that only the annotations list
    release: Mapping[Part, ReleaseClass] = field(default_factory=dict)  # of other parts: nothing
    counts: Mapping[str, int] = field(default_factory=dict)  # of a full parse: "captions", "items:karpathy/train"
    drawn: Mapping[str, RandomSplitSizes] = field(default_factory=dict)  # random splits, by who drew them
    printed: tuple[Printed, ...] = ()  # of your own; xmodal's stand with the papers
    kinds: frozenset[str] = frozenset()  # of its items and labels; they tell its stages before it is parsed
    version: int = 1  # raised where parse yields other rows from the same bytes: a part of the records' identity
    # writes the wanted ones of the listed media that lie inside the annotations, each whole when yielded
    unpack: Callable[[Raw, Collection[str], Path], Iterator[Source]] | None = None
    card: str | None = None  # the name of its card, where not its own
    whole_paths: bool = False  # a name such as 1.jpg does not tell a file at hand, its whole path does
    sample: bool = False  # any part of the corpus (`sample_of`)

    def __post_init__(self) -> None:
        for name in (self.name, self.media_set):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                raise ValueError(f"a corpus and a media set are named by letters, digits and ._-, not {name!r}")
        paths = [source.path for source in self.sources]
        if len(set(paths)) < len(paths):
            raise ValueError(f"corpus {self.name}: two sources have one path")


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Corpus:
    if name.endswith(".py"):
        return _corpus_of(load_python_file(name, "corpus"), name)
    if name not in names():
        meant = "".join(f"; did you mean {known}?" for known in get_close_matches(name, names(), n=1))
        raise UserError(
            f"no corpus {name!r}{meant}; there are: {', '.join(names())}; or give a file mine.py with a CORPUS, a list "
            "(.parquet, .csv, .tsv, .jsonl, .json), a folder with one, hf://ORG/NAME, or its name in the root"
        )
    return _corpus_of(importlib.import_module(f"{__name__}.{name}"), name)


def sample_of(corpus: Corpus) -> Corpus:
    """The corpus for a part of its files, without the sizes, checksums and counts of the whole.

    Its name and media set are its own, such as `coco-sample`: nothing made from it is taken for the whole.
    """
    how = "a sample is not downloaded: put a part of this file into a folder and add --raw FOLDER"
    return replace(
        corpus,
        name=f"{corpus.name}{SAMPLE}",
        media_set=f"{corpus.media_set}{SAMPLE}",
        sources=tuple(
            Source(source.path, how=how, part=source.part, members=source.members) for source in corpus.sources
        ),
        counts={},
        printed=(),
        card=corpus.card or corpus.name,
        sample=True,
    )


def _corpus_of(module: ModuleType, name: str) -> Corpus:
    corpus = getattr(module, "CORPUS", None)
    if not isinstance(corpus, Corpus):
        raise UserError(f"{name} defines no CORPUS of class xmodal.corpora.Corpus")
    return corpus
