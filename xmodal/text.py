"""Captions as words, and words as ids: the same on every machine, without downloads.

Tokenizers go by name, because a recipe names one:

    nltk         lower-cased, then NLTK's word tokenizer on the whole caption: `word_tokenize(text.lower(),
                 preserve_line=True)`, which splits no sentences and so needs no punkt data. VSE++, PVSE and PCME do
                 split them, so that a full stop inside a caption leaves its word: COCO val2014 has 18,528 types here
                 and 18,408 there, and the same 7,288 that occur four times or more (spec, corpora, section 2)
    whitespace   lower-cased, then split at white space

A vocabulary is ours, or one that the authors of a paper released with their weights: then its ids are those that the
weights were trained with. Reading one executes nothing.
"""

import hashlib
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.trouble import Trouble

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
Tokenizer: TypeAlias = Callable[[str], list[str]]


class Encoder(Protocol):
    """What makes ids of captions; its length is the number of ids that it may give."""

    def encode(self, caption: str) -> NDArray[np.int32]: ...

    def __len__(self) -> int: ...


def tokenizer(name: str) -> Tokenizer:
    if name not in _TOKENIZERS:
        raise ValueError(f"no tokenizer {name!r}; there are: {', '.join(_TOKENIZERS)}")
    return _TOKENIZERS[name]()


def _nltk() -> Tokenizer:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer  # type: ignore[import-untyped]
    except ImportError:
        raise Trouble("the nltk tokenizer needs NLTK: pip install 'nltk==3.10.*'") from None
    split = NLTKWordTokenizer().tokenize
    return lambda text: list(split(text.lower()))


def _whitespace() -> Tokenizer:
    return lambda text: text.lower().split()


_TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {"nltk": _nltk, "whitespace": _whitespace}


@dataclass(frozen=True)
class Vocabulary:
    """Words by their ids, the four specials first, and the tokenizer that they come from.

    As a file: a line with the tokenizer, the number of words and a checksum, then one word a line.
    """

    tokenizer: str
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIALS)] != SPECIALS or len(set(self.words)) < len(self.words):
            raise ValueError(f"a vocabulary starts with {' '.join(SPECIALS)} and has no word twice")
        wrong = next((word for word in self.words if word.split() != [word]), None)
        if wrong is not None:
            raise ValueError(f"{wrong!r} is no word: it is empty or has white space in it")

    @classmethod
    def build(cls, captions: Iterable[str], tokenizer_name: str, minimum_count: int) -> "Vocabulary":
        """Frequent words first and equally frequent ones by their letters, so that no order of captions matters."""
        if minimum_count < 1:
            raise ValueError(f"a word must occur at least once, not {minimum_count} times")
        split, counts = tokenizer(tokenizer_name), Counter[str]()
        for caption in captions:
            counts.update(split(caption))
        kept = [word for word, count in counts.items() if count >= minimum_count and word not in SPECIALS]
        return cls(tokenizer_name, (*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str) -> NDArray[np.int32]:
        """From <start> to <end>; a caption that spells a special gets <unk> for it."""
        found = [self._ids.get(word, UNKNOWN) for word in self._split(caption)]
        return np.array([START, *found, END], np.int32)

    def to_bytes(self) -> bytes:
        head = f"{self.tokenizer} {len(self)}".encode()
        body = "".join(f"{word}\n" for word in self.words).encode()
        return head + b" " + _checksum(head, body) + b"\n" + body

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Vocabulary":
        """`where` is named if the file is cut, edited or no vocabulary."""
        first, _, body = data.partition(b"\n")
        head, _, checksum = first.rpartition(b" ")
        if checksum != _checksum(head, body):
            raise Trouble(f"{where} is not the vocabulary that was written: it was changed, cut or is another file")
        return cls(head.decode().split(" ")[0], tuple(body.decode().split("\n")[:-1]))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIALS)}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer)


@dataclass(frozen=True, eq=False)
class ReleasedVocabulary:
    """The ids of a released file, which may order words and specials as it likes; VSE++, PVSE and PCME split by NLTK.

    A caption is split as a whole, where the official code splits its sentences first: with PCME's words, 18 of the
    25,000 captions of COCO's test split get other ids by that.
    """

    ids: Mapping[str, int]

    def __post_init__(self) -> None:
        if missing := [name for name in SPECIALS if name not in self.ids]:
            raise ValueError(f"it has no {' '.join(missing)}")
        if wrong := [word for word, number in self.ids.items() if type(word) is not str or type(number) is not int]:
            raise ValueError(f"{wrong[0]!r} is no word with a number")
        if sorted(self.ids.values()) != list(range(len(self.ids))):
            raise ValueError(f"the ids of its {len(self.ids):,} words are not those from 0 on, each once")

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, caption: str) -> NDArray[np.int32]:
        """From <start> to <end>, with <unk> for unknown words."""
        start, end, unknown = (self.ids[SPECIALS[name]] for name in (START, END, UNKNOWN))
        found = [self.ids.get(word, unknown) for word in self._split(caption)]
        return np.array([start, *found, end], np.int32)

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer("nltk")


def load_vocabulary(path: Path) -> Encoder:
    """A file of ours (a run's vocabulary.txt), or a released one, known by what is in it.

    Released are JSON objects and pickles with `word2idx`: of a dict (PCME), or of a `Vocabulary` (VSE++, PVSE).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Trouble(f"vocabulary {path} cannot be read: {error.strerror}") from error
    try:
        if data.partition(b" ")[0] in [name.encode() for name in _TOKENIZERS]:
            return Vocabulary.from_bytes(data, str(path))
        return ReleasedVocabulary(_word_ids(json.loads(data) if data.lstrip()[:1] == b"{" else _unpickled(data)))
    except (*_NO_PICKLE, RecursionError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise Trouble(f"{path} is no vocabulary in JSON, in a pickle, or of a run: {line}") from error


_NO_PICKLE = (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, MemoryError, OverflowError)


class _Unpickler(pickle.Unpickler):
    """Makes plain values, and of classes called Vocabulary, wherever they were defined, one of its own without code."""

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data), encoding="utf-8")  # of Python 2's strings
        self._vocabulary = type("Vocabulary", (), {})

    def find_class(self, module: str, name: str) -> Any:
        if name != "Vocabulary":
            raise pickle.UnpicklingError(f"it wants {module}.{name}, and nothing but a Vocabulary is made of a pickle")
        return self._vocabulary


def _unpickled(data: bytes) -> Any:
    found = _Unpickler(data).load()
    return found if isinstance(found, dict) else getattr(found, "__dict__", None)


def _word_ids(found: Any) -> dict[str, int]:
    ids = found.get("word2idx") if isinstance(found, Mapping) else None
    if not isinstance(ids, dict):
        raise ValueError("it has no word2idx, a number for each word")
    return ids


def _checksum(head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(head + b"\n" + body).hexdigest().encode()
