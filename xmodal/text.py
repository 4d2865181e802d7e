"""Captions as words, and words as ids: the same on every machine, without downloads.

Tokenizers go by name, because a recipe names one:

    nltk         lower-cased, then NLTK's word tokenizer on the whole caption: `word_tokenize(text.lower(),
                 preserve_line=True)`, which splits no sentences and so needs no punkt data. VSE++, PVSE and PCME do
                 split them, so that a full stop inside a caption leaves its word: COCO val2014 has 18,528 types here
                 and 18,408 there, and the same 7,288 that occur four times or more (spec, corpora, section 2)
    whitespace   lower-cased, then split at white space
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.trouble import Trouble

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
Tokenizer: TypeAlias = Callable[[str], list[str]]


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


def _checksum(head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(head + b"\n" + body).hexdigest().encode()
