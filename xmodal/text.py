"""Captions as words, and words as ids: the same on every machine, without downloads unless a name says so.

Tokenizers go by name, because a recipe names one:

    nltk             lower-cased, then NLTK's word tokenizer on the whole caption: `word_tokenize(text.lower(),
                     preserve_line=True)`, which splits no sentences and so needs no data
    nltk-sentences   lower-cased, then sentences by NLTK's punkt data, then the same, as VSE++, PVSE and PCME do: a full
                     stop inside a caption leaves its word. COCO val2014 has 18,408 types by this, 18,528 by `nltk`, and
                     the same 7,288 that occur four times or more (docs/corpora.md#tokenizers)
    spacy            lower-cased, then spaCy's rules for English, of no trained model; white space is no word
    whitespace       lower-cased, then split at white space
    dual-path        as written, split at white space and - . , ( ), which are no words (Dual-Path on Flickr30k)
    dual-path-coco   and at ? too (Dual-Path on COCO)

Before that a caption may be cleaned, by name too: the same name counts, encodes and stands in the vocabulary's file.

    none    as it is
    mrw     PVSE's replacements for MRW, in their order: /r/ r/ /u/ u/ and .. are taken out, then / and - become spaces.
            They hit inside of words: "her/his" becomes "hehis". PVSE does so for its vocabulary but not where captions
            are encoded, so that some words never meet their own ids; here both are cleaned
            (docs/models.md#vocabulary)

A caption without words has none, and is encoded as <start> <end>. Nothing here shortens one: a recipe's `longest` does,
in words, after it was encoded, and keeps <start> and <end>; words are counted in whole captions.

A vocabulary is ours, or one that the authors of a paper released with their weights: then its ids are those that the
weights were trained with. Reading one executes nothing.
"""

import hashlib
import json
import pickle
import pickletools
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.trouble import Trouble

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNKNOWN = range(4)
REMEMBERED = 1 << 19  # words by spaCy: a quarter of a GB
Tokenizer: TypeAlias = Callable[[str], list[str]]


class Encoder(Protocol):
    """What makes ids of captions; its length is the number of ids that it may give."""

    def encode(self, caption: str) -> NDArray[np.int32]: ...

    def __len__(self) -> int: ...


def tokenizer(name: str, cleaning: str = "none") -> Tokenizer:
    """Of one caption, which is cleaned first."""
    check_names(name, cleaning)
    split, clean = _TOKENIZERS[name](), _CLEANINGS[cleaning]
    return split if clean is None else lambda text: split(clean(text))


def tokenized(captions: Iterable[str], name: str, cleaning: str = "none") -> Iterator[list[str]]:
    """Of any number of captions, one after the other (spaCy's own batches gain nothing)."""
    return map(tokenizer(name, cleaning), captions)


def count_words(captions: Iterable[str], name: str, cleaning: str = "none") -> Counter[str]:
    return Counter(chain.from_iterable(tokenized(captions, name, cleaning)))


def by_frequency(counts: Iterable[tuple[str, int]]) -> list[str]:
    """Frequent words first and equally frequent ones by their letters, so that no order of captions matters."""
    return [word for _, word in sorted((-count, word) for word, count in counts)]


def check_names(tokenizer: str, cleaning: str) -> None:
    for what, name, known in (("tokenizer", tokenizer, _TOKENIZERS), ("cleaning", cleaning, _CLEANINGS)):
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are: {', '.join(known)}")


def check_words(what: str, words: Sequence[str], specials: tuple[str, ...]) -> None:
    if tuple(words[: len(specials)]) != specials or len(set(words)) < len(words):
        raise ValueError(f"a {what} starts with {' '.join(specials)} and has no word twice")
    wrong = next((word for word in words if word.split() != [word]), None)
    if wrong is not None:
        raise ValueError(f"{wrong!r} is no word: it is empty or has white space in it")
    if wrong := next((word for word in words if any("\ud800" <= letter <= "\udfff" for letter in word)), None):
        raise ValueError(f"{wrong!r} is no word: it is not Unicode, and cannot be written")


def noun_phrases(captions: Iterable[str], model: str = "en_core_web_sm") -> Iterator[list[tuple[int, int]]]:
    """Of each caption where its noun phrases begin and end, in characters, as a trained model of spaCy finds them.

    `model` is the name of an installed package or a folder. Another version of it may find others.
    """
    try:
        network = _spacy().load(model, exclude=["ner"])
    except OSError:
        raise Trouble(f"noun phrases need spaCy's model {model}: python -m spacy download {model}") from None
    if not network.has_pipe("parser"):
        raise Trouble(f"spaCy's model {model} parses no sentences, so it has no noun phrases: en_core_web_sm does")
    docs = network.pipe(captions)
    return ([(phrase.start_char, phrase.end_char) for phrase in doc.noun_chunks] for doc in docs)


def _nltk() -> Tokenizer:
    split = _nltk_words()
    return lambda text: split(text.lower())


def _nltk_sentences() -> Tokenizer:
    split = _nltk_words()
    from nltk.tokenize.punkt import PunktTokenizer  # type: ignore[import-untyped]

    try:
        sentences = PunktTokenizer("english").tokenize
    except LookupError:
        raise Trouble(
            "the nltk-sentences tokenizer needs NLTK's data: python -m nltk.downloader punkt_tab, or a folder that "
            "has it in NLTK_DATA; the nltk tokenizer needs none"
        ) from None
    return lambda text: [word for sentence in sentences(text.lower()) for word in split(sentence)]


def _nltk_words() -> Tokenizer:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer  # type: ignore[import-untyped]
    except ImportError:
        raise Trouble("the nltk tokenizers need NLTK: pip install 'nltk==3.10.*'") from None
    split = NLTKWordTokenizer().tokenize
    return lambda text: _plain_words(text) if _PLAIN.fullmatch(text) and not _APART.search(text) else split(text)


def _plain_words(text: str) -> list[str]:
    """What NLTK's thirty expressions make of a plain text, which most captions are, in a twentieth of the time."""
    return text.replace(",", " , ").replace(".", " . ").split()


def _spacy_words() -> Tokenizer:
    """spaCy's rules remember every word: where these are too many, the rules are made anew.

    (Its memory zones would forget too, and cost five times more.)
    """
    blank = _spacy().blank
    split = blank("en").tokenizer

    def words(text: str) -> list[str]:
        nonlocal split
        if len(split.vocab) > REMEMBERED:
            split = blank("en").tokenizer
        return [word.text for word in split(text.lower()) if not word.is_space]

    return words


def _spacy() -> Any:
    try:
        import spacy
    except ImportError:
        raise Trouble("the spacy tokenizer and noun phrases need spaCy: pip install 'xmodal[text]'") from None
    return spacy


def _whitespace() -> Tokenizer:
    return lambda text: text.lower().split()


def _dual_path(marks: str) -> Tokenizer:
    split: Tokenizer = re.compile(rf"[^\s{re.escape(marks)}]+").findall
    return split


def _mrw(text: str) -> str:
    for mark in ("/r/", "r/", "/u/", "u/", ".."):
        text = text.replace(mark, "")
    return text.replace("/", " ").replace("-", " ")


_PLAIN = re.compile(r"[a-z0-9 -]*(?:,[a-z ][a-z0-9 -]*)*\.? *")
_APART = re.compile("cannot|gimme|gonna|gotta|lemme|wanna|--")  # what NLTK takes apart of these letters
_TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "nltk": _nltk,
    "nltk-sentences": _nltk_sentences,
    "spacy": _spacy_words,
    "whitespace": _whitespace,
    "dual-path": lambda: _dual_path("-.,()"),
    "dual-path-coco": lambda: _dual_path("-.,()?"),
}
_CLEANINGS: dict[str, Callable[[str], str] | None] = {"none": None, "mrw": _mrw}


@dataclass(frozen=True)
class Vocabulary:
    """Words by their ids, the four specials first, and the tokenizer and the cleaning that they come from.

    As a file: a line with the tokenizer, the cleaning unless it is none, the number of words and a checksum, then one
    word a line.
    """

    tokenizer: str
    words: tuple[str, ...]
    cleaning: str = "none"

    def __post_init__(self) -> None:
        check_names(self.tokenizer, self.cleaning)
        check_words("vocabulary", self.words, SPECIALS)

    @classmethod
    def build(cls, captions: Iterable[str], tokenizer: str, minimum_count: int, cleaning: str = "none") -> "Vocabulary":
        counts = count_words(captions, tokenizer, cleaning)
        return cls.of_counts(counts.items(), tokenizer, minimum_count, cleaning)

    @classmethod
    def of_counts(
        cls, counts: Iterable[tuple[str, int]], tokenizer: str, minimum_count: int, cleaning: str = "none"
    ) -> "Vocabulary":
        if minimum_count < 1:
            raise ValueError(f"a word must occur at least once, not {minimum_count} times")
        kept = ((word, count) for word, count in counts if count >= minimum_count and word not in SPECIALS)
        return cls(tokenizer, (*SPECIALS, *by_frequency(kept)), cleaning)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, caption: str) -> NDArray[np.int32]:
        """From <start> to <end>; a caption that spells a special gets <unk> for it."""
        found = [self._ids.get(word, UNKNOWN) for word in self._split(caption)]
        return np.array([START, *found, END], np.int32)

    def to_bytes(self) -> bytes:
        cleaning = () if self.cleaning == "none" else (self.cleaning,)
        return words_file(self.words, self.tokenizer, *cleaning)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Vocabulary":
        """`where` is named if the file is cut, edited or no vocabulary."""
        words, tokenizer, *cleaning = read_words_file(data, f"{where} is not the vocabulary")
        return cls(tokenizer, words, *cleaning)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words) if number >= len(SPECIALS)}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer, self.cleaning)


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

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(sorted(self.ids, key=self.ids.__getitem__))

    def encode(self, caption: str) -> NDArray[np.int32]:
        """From <start> to <end>, with <unk> for unknown words."""
        start, end, unknown = (self.ids[SPECIALS[name]] for name in (START, END, UNKNOWN))
        found = [self.ids.get(word, unknown) for word in self._split(caption)]
        return np.array([start, *found, end], np.int32)

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer("nltk")


def load_vocabulary(path: Path) -> Vocabulary | ReleasedVocabulary:
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
        data = data.removeprefix(BOM_UTF8)
        return ReleasedVocabulary(_word_ids(json.loads(data) if data.lstrip()[:1] == b"{" else _unpickled(data)))
    except (*_NO_PICKLE, RecursionError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise Trouble(f"{path} is no vocabulary in JSON, in a pickle, or of a run: {line}") from error


_TUPLES = frozenset(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"))
FEW_TUPLES = 8
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
    """A vocabulary has no tuples; many, one within the other, take for ever to hash."""
    if sum(name in _TUPLES for name in (code.name for code, _, _ in pickletools.genops(data))) > FEW_TUPLES:
        raise pickle.UnpicklingError("it is full of tuples")
    found = _Unpickler(data).load()
    return found if isinstance(found, dict) else getattr(found, "__dict__", None)


def _word_ids(found: Any) -> dict[str, int]:
    ids = found.get("word2idx") if isinstance(found, Mapping) else None
    if not isinstance(ids, dict):
        raise ValueError("it has no word2idx, a number for each word")
    return ids


def words_file(words: Sequence[str], *about: str) -> bytes:
    """A line with what is to be said about them, their number and a checksum, then one word a line."""
    head = " ".join([*about, str(len(words))]).encode()
    body = "".join(f"{word}\n" for word in words).encode()
    return head + b" " + _checksum(head, body) + b"\n" + body


def read_words_file(data: bytes, is_not: str) -> tuple[Any, ...]:
    """The words, then what is said about them; `is_not` begins the message if the file is cut, edited or another."""
    first, _, body = data.partition(b"\n")
    head, _, checksum = first.rpartition(b" ")
    if checksum != _checksum(head, body):
        raise Trouble(f"{is_not} that was written: it was changed, cut or is another file")
    return tuple(body.decode().split("\n")[:-1]), *head.decode().split(" ")[:-1]


def _checksum(head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(head + b"\n" + body).hexdigest().encode()
