"""Tokenizers: captions as words, the same on every machine.

    nltk             lower-cased, then NLTK's word tokenizer on the whole caption: `word_tokenize(text.lower(),
                     preserve_line=True)`, which needs no data (docs/corpora.md#tokenizers)
    nltk-sentences   lower-cased, then sentences by NLTK's punkt data, which must be installed, then the same (VSE++,
                     PVSE, PCME)
    spacy            lower-cased, then spaCy's rules for English, without a trained model; white space is no word
    whitespace       lower-cased, then split at white space
    dual-path        as written, split at white space and - . , ( ), which are no words (Dual-Path on Flickr30k)
    dual-path-coco   and at ? too (Dual-Path on COCO)

Captions may be cleaned first: by `mrw`, PVSE's replacements for MRW (docs/corpora.md#mrw), or by `none`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from xmodal.errors import UserError, extra_needed

REMEMBERED = 1 << 19  # words that spaCy may keep: a quarter of a GB
Tokenizer = Callable[[str], list[str]]


def tokenizer(name: str, cleaning: str = "none") -> Tokenizer:
    check_names(name, cleaning)
    split, clean = TOKENIZERS[name](), _CLEANINGS[cleaning]
    return split if clean is None else lambda text: split(clean(text))


def tokenized(captions: Iterable[str], name: str, cleaning: str = "none") -> Iterator[list[str]]:
    return map(tokenizer(name, cleaning), captions)


def count_words(captions: Iterable[str], name: str, cleaning: str = "none") -> Counter[str]:
    return Counter(chain.from_iterable(tokenized(captions, name, cleaning)))


def by_frequency(counts: Iterable[tuple[str, int]]) -> list[str]:
    """Sorts by falling frequency, then by letters."""
    return [word for _, word in sorted((-count, word) for word, count in counts)]


def check_names(tokenizer: str, cleaning: str) -> None:
    for what, name, known in (("tokenizer", tokenizer, TOKENIZERS), ("cleaning", cleaning, _CLEANINGS)):
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are: {', '.join(known)}")


def _nltk() -> Tokenizer:
    split = _nltk_words()
    return lambda text: split(text.lower())


def _nltk_sentences() -> Tokenizer:
    split = _nltk_words()
    from nltk.tokenize.punkt import PunktTokenizer

    try:
        sentences = PunktTokenizer("english").tokenize
    except LookupError:
        cure = "python -m nltk.downloader punkt_tab, or its folder in NLTK_DATA"
        raise UserError(f"the nltk-sentences tokenizer needs NLTK's data: {cure}") from None
    return lambda text: [word for sentence in sentences(text.lower()) for word in split(sentence)]


def _nltk_words() -> Tokenizer:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError:
        raise UserError("the nltk tokenizers need NLTK: pip install 'nltk==3.10.*'") from None
    split_by_nltk: Tokenizer = NLTKWordTokenizer().tokenize

    def split(text: str) -> list[str]:
        if _PLAIN.fullmatch(text) and not _APART.search(text):  # as most captions; a twentieth of NLTK's time
            return text.replace(",", " , ").replace(".", " . ").split()
        return split_by_nltk(text)

    return split


def _spacy_words() -> Tokenizer:
    """Makes the rules anew when they remember too many words."""
    with extra_needed("text", "the spacy tokenizer needs spaCy"):
        from spacy import blank
    split: Any = blank("en").tokenizer

    def words(text: str) -> list[str]:
        nonlocal split
        if len(split.vocab) > REMEMBERED:
            split = blank("en").tokenizer
        return [word.text for word in split(text.lower()) if not word.is_space]

    return words


def _mrw(text: str) -> str:
    for mark in ("/r/", "r/", "/u/", "u/", ".."):
        text = text.replace(mark, "")
    return text.replace("/", " ").replace("-", " ")


_PLAIN = re.compile(r"[a-z0-9 -]*(?:,[a-z ][a-z0-9 -]*)*\.? *")
_APART = re.compile("cannot|gimme|gonna|gotta|lemme|wanna|--")  # words of these letters that NLTK takes apart
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "nltk": _nltk,
    "nltk-sentences": _nltk_sentences,
    "spacy": _spacy_words,
    "whitespace": lambda: lambda text: text.lower().split(),
    "dual-path": lambda: re.compile(r"[^\s\-.,()]+").findall,
    "dual-path-coco": lambda: re.compile(r"[^\s\-.,()?]+").findall,
}
_CLEANINGS: dict[str, Callable[[str], str] | None] = {"none": None, "mrw": _mrw}
