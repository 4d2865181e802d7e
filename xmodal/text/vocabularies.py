"""Vocabularies: words as ids, counted from captions or released by a paper's authors. Reading one executes nothing."""

import codecs
import hashlib
import io
import json
import pickle
import pickletools
import re
import types
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import TOKENIZERS, Tokenizer, by_frequency, check_names, count_words, tokenizer

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)


class Encoder(Protocol):
    def encode(self, caption: str) -> NDArray[np.int32]: ...

    def __len__(self) -> int: ...  # different ids


@dataclass(frozen=True)
class Vocabulary:
    """Words by their ids, the specials first."""

    tokenizer: str
    words: tuple[str, ...]
    cleaning: str = "none"

    def __post_init__(self) -> None:
        check_names(self.tokenizer, self.cleaning)
        if self.words[: len(SPECIALS)] != SPECIALS or len(set(self.words)) < len(self.words):
            raise ValueError(f"a vocabulary starts with {' '.join(SPECIALS)} and has no word twice")
        for word in self.words:
            if word.split() != [word]:
                raise ValueError(f"{word!r} is no word: it is empty or has white space in it")
            if not word.isascii() and any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ValueError(f"{word!r} is no word: it is not Unicode")

    def __repr__(self) -> str:
        return f"<Vocabulary: {len(self):,} words, by the tokenizer {self.tokenizer}, cleaning {self.cleaning}>"

    def __len__(self) -> int:
        return len(self.words)

    def to_bytes(self) -> bytes:
        """Writes a line of facts, the number of words and a checksum; then one word a line."""
        cleaning = "" if self.cleaning == "none" else self.cleaning
        head = " ".join(filter(None, (self.tokenizer, cleaning, str(len(self))))).encode()
        body = "".join(f"{word}\n" for word in self.words).encode()
        return head + b" " + _checksum(head, body) + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Vocabulary":
        first, _, body = data.partition(b"\n")
        head, _, checksum = first.rpartition(b" ")
        if checksum != _checksum(head, body):
            raise UserError(f"{where} is not the vocabulary that was written: it was changed, cut or is another file")
        tokenizer, *cleaning, _ = head.decode().split(" ")
        return cls(tokenizer, tuple(body.decode().split("\n")[:-1]), *cleaning)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIALS)}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer, self.cleaning)

    @classmethod
    def build(cls, captions: Iterable[str], tokenizer: str, minimum_count: int, cleaning: str = "none") -> "Vocabulary":
        return cls.of_counts(count_words(captions, tokenizer, cleaning).items(), tokenizer, minimum_count, cleaning)

    @classmethod
    def of_counts(
        cls, counts: Iterable[tuple[str, int]], tokenizer: str, minimum_count: int, cleaning: str = "none"
    ) -> "Vocabulary":
        if minimum_count < 1:
            raise ValueError(f"a word must occur at least once, not {minimum_count} times")
        kept = ((word, count) for word, count in counts if count >= minimum_count and word not in SPECIALS)
        return cls(tokenizer, (*SPECIALS, *by_frequency(kept)), cleaning)

    def encode(self, caption: str) -> NDArray[np.int32]:
        return np.array([START, *map(self.id_of, self._split(caption)), END], np.int32)

    def id_of(self, word: str) -> int:
        """<unk> also for words that spell a special."""
        return self._ids.get(word, UNKNOWN)


@dataclass(frozen=True, eq=False)
class ReleasedVocabulary:
    """The word ids of a released file (VSE++, PVSE, PCME); captions are split by `nltk` (docs/models.md#vocabulary)."""

    ids: Mapping[str, int]

    def __post_init__(self) -> None:
        if missing := [name for name in SPECIALS if name not in self.ids]:
            raise ValueError(f"it has no {' '.join(missing)}")
        for word, number in self.ids.items():
            if type(word) is not str or type(number) is not int:
                raise ValueError(f"{word!r} is no word with a number")
        if sorted(self.ids.values()) != list(range(len(self.ids))):
            raise ValueError(f"the ids of its {len(self):,} words are not those from 0 on, each once")

    def __repr__(self) -> str:
        return f"<ReleasedVocabulary: {len(self):,} words>"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(sorted(self.ids, key=self.ids.__getitem__))

    def encode(self, caption: str) -> NDArray[np.int32]:
        _, start, end, unknown = map(self.ids.__getitem__, SPECIALS)
        return np.array([start, *(self.ids.get(word, unknown) for word in self._split(caption)), end], np.int32)

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer("nltk")


def load_vocabulary(path: Path) -> Vocabulary | ReleasedVocabulary:
    """Reads a run's vocabulary.txt, a released one with `word2idx`, or one of a word a line.

    The released one is a JSON object, or a pickle of a dict (PCME) or a `Vocabulary` (VSE++, PVSE). Lines are ids from
    0 on; where they have no specials, these come before them.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from error
    try:
        if data.partition(b" ")[0] in [name.encode() for name in TOKENIZERS]:
            return Vocabulary.from_bytes(data, str(path))
        data = data.removeprefix(codecs.BOM_UTF8)
        found = json.loads(data) if data.lstrip()[:1] == b"{" else _unpickled_or_lines(data)
        ids = found.get("word2idx") if isinstance(found, Mapping) else None
        if not isinstance(ids, dict):
            raise ValueError("it has no word2idx, a number for each word")
        return ReleasedVocabulary(ids)
    except (*_NO_PICKLE, RecursionError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path} is no vocabulary in JSON, in a pickle, of a word a line, or of a run: {line}"
        ) from error


_TUPLES = frozenset(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"))
FEW_TUPLES = 8
_LINES = re.compile(rb"(?:[^\s\0]+[ \t]*[\r\n]+)+(?:[^\s\0]+\s*)?")  # a word in each, the first one whole
_NO_PICKLE = (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, MemoryError, OverflowError)


class _Unpickler(pickle.Unpickler):
    """Makes plain values; any class called Vocabulary becomes an empty one."""

    def find_class(self, module: str, name: str) -> Any:
        if name != "Vocabulary":
            raise pickle.UnpicklingError(f"it wants {module}.{name}, and nothing but a Vocabulary is unpickled")
        return types.SimpleNamespace


def _unpickled_or_lines(data: bytes) -> Any:
    try:
        return _unpickled(data)
    except (*_NO_PICKLE, ValueError):
        if not _LINES.fullmatch(data):
            raise
    words = [word.decode() for word in data.split()]
    words = words if {*SPECIALS} & {*words} else [*SPECIALS, *words]
    if twice := [word for word, count in Counter(words).items() if count > 1]:
        raise ValueError(f"the word {twice[0]!r} is there twice")
    return {"word2idx": {word: number for number, word in enumerate(words)}}


def _unpickled(data: bytes) -> Any:
    """Refuses many tuples: one in the other, they take for ever to hash."""
    if sum(code.name in _TUPLES for code, _, _ in pickletools.genops(data)) > FEW_TUPLES:
        raise pickle.UnpicklingError("it is full of tuples")
    found = _Unpickler(io.BytesIO(data), encoding="utf-8").load()  # for strings of Python 2
    return found if isinstance(found, dict) else getattr(found, "__dict__", None)


def _checksum(head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(head + b"\n" + body).hexdigest().encode()
