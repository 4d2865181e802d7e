"""Words and their ids: deterministic, without downloads, and a file that cannot be damaged unnoticed."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmodal.errors import UserError
from xmodal.text.tokenizers import tokenizer
from xmodal.text.vocabularies import END, PAD, SPECIALS, START, UNKNOWN, ReleasedVocabulary, Vocabulary, load_vocabulary

CAPTIONS = ["A dog and a cat.", "a DOG runs", "two cats; a dog"]


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man's dog isn't here.", ["a", "man", "'s", "dog", "is", "n't", "here", "."]),
        ("One dog. It runs.", ["one", "dog.", "it", "runs", "."]),  # one sentence: no splitter, no data
        ("A well-dressed (tall) man, $5", ["a", "well-dressed", "(", "tall", ")", "man", ",", "$", "5"]),
        ("Ein Café 🐶 東京", ["ein", "café", "🐶", "東京"]),
        (' She said "go" ', ["she", "said", "``", "go", "''"]),
        ("", []),
        (" \n\t", []),
    ],
)
def test_the_nltk_tokenizer_keeps_lines_whole(caption: str, words: list[str]) -> None:
    nltk = pytest.importorskip("nltk")
    assert tokenizer("nltk")(caption) == words
    assert nltk.word_tokenize(caption.lower(), preserve_line=True) == words


def test_the_whitespace_tokenizer_splits_at_any_space() -> None:
    assert tokenizer("whitespace")(" A dog's  life.\u2028Again ") == ["a", "dog's", "life.", "again"]


def test_nltk_is_imported_only_by_who_uses_it() -> None:
    code = "import sys, xmodal.text.vocabularies as v; v.Vocabulary.build(['a b'], 'whitespace', 1)"
    code += "; print('nltk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_frequent_words_come_first_whatever_the_order_of_captions() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, "whitespace", 1)
    assert vocabulary.words == (*SPECIALS, "a", "dog", "and", "cat.", "cats;", "runs", "two")
    assert vocabulary == Vocabulary.build(reversed(CAPTIONS), "whitespace", 1)
    assert Vocabulary.build(CAPTIONS, "whitespace", 2).words == (*SPECIALS, "a", "dog")
    assert (SPECIALS[PAD], SPECIALS[START], SPECIALS[END], SPECIALS[UNKNOWN]) == SPECIALS


def test_a_vocabulary_is_shown_in_one_line() -> None:
    vocabulary = Vocabulary.build(["a dog", "a cat"], "whitespace", 1)
    assert repr(vocabulary) == "<Vocabulary: 7 words, by the tokenizer whitespace, cleaning none>"


def test_captions_are_encoded_between_their_marks() -> None:
    vocabulary = Vocabulary.build(CAPTIONS, "whitespace", 2)
    encoded = vocabulary.encode("A bird saw a DOG")
    assert encoded.tolist() == [START, 4, UNKNOWN, UNKNOWN, 4, 5, END]
    assert encoded.dtype == np.int32
    assert vocabulary.encode("").tolist() == [START, END]
    assert len(vocabulary.encode("dog " * 10_000)) == 10_002


def test_a_caption_cannot_spell_a_special() -> None:
    vocabulary = Vocabulary.build(["<pad> <end> a"] * 3, "whitespace", 1)
    assert vocabulary.words == (*SPECIALS, "a")
    assert vocabulary.encode("<pad> a <end>").tolist() == [START, UNKNOWN, 4, UNKNOWN, END]


@given(st.lists(st.text(max_size=30), max_size=8), st.integers(1, 2))
def test_a_vocabulary_survives_its_file(captions: list[str], minimum: int) -> None:
    vocabulary = Vocabulary.build(captions, "whitespace", minimum)
    data = vocabulary.to_bytes()
    assert Vocabulary.from_bytes(data, "here") == vocabulary
    assert data.decode().split("\n")[1:-1] == list(vocabulary.words)


def test_any_damage_to_the_file_is_found() -> None:
    data = Vocabulary.build(CAPTIONS, "nltk", 1).to_bytes()
    damaged = [data[:cut] for cut in range(len(data))]
    damaged += [
        data + b"\n",
        data.replace(b"dog", b"dig"),
        data.replace(b"\n", b"\r\n"),
        b"\xff" + data[1:],
        data.replace(b"nltk", b"none"),
    ]
    for some in damaged:
        with pytest.raises(UserError, match=r"vocabulary.txt is not the vocabulary that was written"):
            Vocabulary.from_bytes(some, "vocabulary.txt")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b"), "starts with <pad>"),
        ((*SPECIALS, "a", "a"), "no word twice"),
        ((*SPECIALS, "a b"), "'a b' is no word"),
        ((*SPECIALS, ""), "'' is no word"),
    ],
)
def test_what_is_no_vocabulary_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Vocabulary("whitespace", words)


def test_a_word_must_occur() -> None:
    with pytest.raises(ValueError, match="at least once, not 0 times"):
        Vocabulary.build(CAPTIONS, "whitespace", 0)


RELEASED = {"dog": 0, "<unk>": 1, "<end>": 2, "runs": 3, "<start>": 4, "<pad>": 5}


def test_a_released_vocabulary_has_its_own_ids_also_from_python_2(tmp_path: Path) -> None:
    python_2 = b"\x80\x02}U\x08word2idx}(U\x03dogK\x00U\x05<unk>K\x01U\x05<end>K\x02U\x07caf\xc3\xa9 xK\x03"
    python_2 += b"U\x07<start>K\x04U\x05<pad>K\x05us."
    for name, data in (("a.json", json.dumps({"word2idx": RELEASED}).encode()), ("b.pkl", python_2)):
        (tmp_path / name).write_bytes(data)
        vocabulary = load_vocabulary(tmp_path / name)
        assert vocabulary.encode("Dog barks").tolist() == [4, 0, 1, 2]
        assert len(vocabulary) == len(vocabulary.words) == 6
    assert isinstance(vocabulary, ReleasedVocabulary)
    assert vocabulary.ids["caf\xe9 x"] == 3


def test_a_vocabulary_of_ours_is_read_by_its_path(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build(CAPTIONS, "whitespace", 1)
    (tmp_path / "words").write_bytes(vocabulary.to_bytes())
    assert load_vocabulary(tmp_path / "words") == vocabulary


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no vocabulary in JSON"),
        (b"<html>", "is no vocabulary in JSON, in a pickle, of a word a line, or of a run: "),
        (b"<html>\n<head><title>Not found</title>\n", "is no vocabulary in JSON"),
        (b"dog\nnew york\n", "is no vocabulary in JSON"),
        (b"dog\ncat\ndog\n", "the word 'dog' is there twice"),
        (b"<pad>\n<unk>\ndog\n", "it has no <start> <end>"),
        (b"dog\n\xff\xfe\n", "can't decode byte 0xff"),
        (b"{", "is no vocabulary in JSON"),
        (b"{" * 100_000, "is no vocabulary in JSON"),
        (pickle.dumps([1]), "it has no word2idx"),
        (pickle.dumps({"word2idx": [1]}), "it has no word2idx"),
        (pickle.dumps({"word2idx": RELEASED})[:-9], "is no vocabulary in JSON"),
        (pickle.dumps({"word2idx": Counter(RELEASED)}), "it wants collections.Counter, and nothing but a Vocabulary"),
        (b"cvocab\nVocabulary\n.", "it has no word2idx"),
        (b"\x80\x02K\x01" + b"2\x86" * 40 + b"q\x00}X\x08\x00\x00\x00word2idx}h\x00K\x00ss.", "it is full of tuples"),
        ({"dog": 0, "<unk>": 1}, "it has no <pad> <start> <end>"),
        (RELEASED | {"cat": 7}, "the ids of its 7 words are not those from 0 on, each once"),
        (RELEASED | {"cat": 0}, "the ids of its 7 words are not those"),
        (RELEASED | {"cat": "6"}, "'cat' is no word with a number"),
        (RELEASED | {"cat": True}, "'cat' is no word with a number"),
        (b"nltk 3 abc\na\nb\n", "is not the vocabulary that was written"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(data if isinstance(data, bytes) else json.dumps({"word2idx": data}).encode())
    with pytest.raises(UserError, match=r"vocab\.pkl") as caught:
        load_vocabulary(path)
    assert message in str(caught.value)


def test_a_released_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"word2idx": RELEASED}), "utf-8-sig")
    assert load_vocabulary(path).words == tuple(sorted(RELEASED, key=RELEASED.__getitem__))


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n\n"])
@pytest.mark.parametrize("first", ["dog", ".", "a", "(", "I1", "\ufeffcafé"])
def test_a_vocabulary_of_a_word_a_line_is_read(first: str, end: str, tmp_path: Path) -> None:
    path, words = tmp_path / "words.txt", [first, "x\xa0y", "the"]
    path.write_bytes("".join(f"{word}{end}" for word in words).encode())
    plain = tuple(word.removeprefix("\ufeff") for word in words)
    assert load_vocabulary(path).words == (*SPECIALS, *plain)
    path.write_bytes(end.join(["<unk>", first.removeprefix("\ufeff"), "<end>", "<start>", "<pad>"]).encode())
    assert load_vocabulary(path).encode("no such words").tolist() == [3, 0, 0, 0, 2], "as its lines are numbered"


def test_a_word_that_is_no_unicode_makes_no_vocabulary() -> None:
    with pytest.raises(ValueError, match="is no word: it is not Unicode"):
        Vocabulary.build(["a \ud800 b"], "nltk", 1)


def test_a_vocabulary_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"vocabulary .*words\.pkl cannot be read: No such file"):
        load_vocabulary(tmp_path / "words.pkl")
