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

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

from xmodal.errors import UserError

REMEMBERED = 1 << 19  # words by spaCy: a quarter of a GB
Tokenizer: TypeAlias = Callable[[str], list[str]]


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


def noun_phrases(captions: Iterable[str], model: str = "en_core_web_sm") -> Iterator[list[tuple[int, int]]]:
    """Of each caption where its noun phrases begin and end, in characters, as a trained model of spaCy finds them.

    `model` is the name of an installed package or a folder. Another version of it may find others.
    """
    try:
        network = _spacy().load(model, exclude=["ner"])
    except OSError:
        raise UserError(f"noun phrases need spaCy's model {model}: python -m spacy download {model}") from None
    if not network.has_pipe("parser"):
        raise UserError(f"spaCy's model {model} parses no sentences, so it has no noun phrases: en_core_web_sm does")
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
        raise UserError(
            "the nltk-sentences tokenizer needs NLTK's data: python -m nltk.downloader punkt_tab, or a folder that "
            "has it in NLTK_DATA; the nltk tokenizer needs none"
        ) from None
    return lambda text: [word for sentence in sentences(text.lower()) for word in split(sentence)]


def _nltk_words() -> Tokenizer:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer  # type: ignore[import-untyped]
    except ImportError:
        raise UserError("the nltk tokenizers need NLTK: pip install 'nltk==3.10.*'") from None
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
        raise UserError(
            "the spacy tokenizer and noun phrases need spaCy: pip install -e '.[text]' in the checkout"
        ) from None
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
