"""How captions become words: by name, alike on every machine, cleaned alike where they are counted and encoded."""

import gzip
import json
import string
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmodal.batches.reader import shortened
from xmodal.errors import UserError
from xmodal.text import tokenizers, vocabularies
from xmodal.text.tokenizers import count_words, tokenized, tokenizer
from xmodal.text.vocabularies import END, SPECIALS, START, UNKNOWN, Vocabulary

DATA = Path(__file__).parents[3] / "shared/data"
NAMES = ["nltk", "nltk-sentences", "spacy", "whitespace", "dual-path", "dual-path-coco"]
WORDS = ["a", "dog", "well-dressed", "cannot", "gonna", "wanna", "more'n", "'tis", "isn't", "3,000", "--", "..", "café"]
LOOSE = st.lists(st.sampled_from([*WORDS, *string.punctuation, *" \t.,,-'1", "🐶", "İ"]), max_size=12)
CAPTIONS = st.one_of(LOOSE.map("".join), LOOSE.map(" ".join), st.text(alphabet="ab1,.- '\"\n", max_size=20))


@pytest.fixture
def punkt(monkeypatch: pytest.MonkeyPatch) -> None:
    """NLTK's data, where somebody has it."""
    data = pytest.importorskip("nltk.data")
    monkeypatch.setattr(data, "path", [*data.path, str(DATA / "nltk_data")])
    try:
        data.find("tokenizers/punkt_tab/english")
    except LookupError:
        pytest.skip("no punkt data")


def split_by(name: str, request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    if name == "nltk-sentences":
        request.getfixturevalue("punkt")
    pytest.importorskip("spacy" if name == "spacy" else "nltk")
    return tokenizer(name)


@settings(max_examples=600, deadline=None)
@given(CAPTIONS)
def test_plain_captions_have_the_words_that_nltk_finds(caption: str) -> None:
    """They are split by a short cut, which must not be seen."""
    nltk = pytest.importorskip("nltk")
    assert tokenizer("nltk")(caption) == nltk.word_tokenize(caption.lower(), preserve_line=True)


@pytest.mark.parametrize("apart", ["cannot", "gimme", "gonna", "gotta", "lemme", "wanna", "x--y", "3,000", "a ,b", "."])
def test_the_short_cut_leaves_nltk_what_it_takes_apart(apart: str) -> None:
    nltk = pytest.importorskip("nltk")
    for caption in (apart, f"a {apart} dog", f"a {apart}-dog, {apart}.", f"{apart} . ", f"{apart}, {apart},"):
        assert tokenizer("nltk")(caption) == nltk.word_tokenize(caption, preserve_line=True)


@pytest.mark.usefixtures("punkt")
def test_sentences_are_split_first_where_their_data_is() -> None:
    assert tokenizer("nltk")("One dog. It runs.") == ["one", "dog.", "it", "runs", "."]
    assert tokenizer("nltk-sentences")("One dog. It runs.") == ["one", "dog", ".", "it", "runs", "."]
    nltk = pytest.importorskip("nltk")
    for caption in ("Mr. Ed isn't here. He left!", "", "a b.c. d", "A dog... and? A cat."):
        assert tokenizer("nltk-sentences")(caption) == nltk.word_tokenize(caption.lower())


def test_without_punkt_data_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pytest.importorskip("nltk.data"), "path", [str(tmp_path)])
    with pytest.raises(UserError, match=r"needs NLTK's data: python -m nltk\.downloader punkt_tab, or its folder"):
        tokenizer("nltk-sentences")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spacy", ["a", "man", "'s", "dog", "(", "a", "well", "-", "dressed", ")", "is", "n't", "3,000", "."]),
        ("whitespace", ["a", "man's", "dog", "(a", "well-dressed)", "isn't", "3,000."]),
        ("dual-path", ["A", "man's", "dog", "a", "well", "dressed", "isn't", "3", "000"]),
    ],
)
def test_what_a_name_means(name: str, words: list[str], request: pytest.FixtureRequest) -> None:
    assert split_by(name, request)(" A man's dog \n (a well-dressed)  isn't 3,000.") == words


def test_dual_path_splits_at_question_marks_on_coco_alone() -> None:
    assert tokenizer("dual-path")("Is it? Yes?!") == ["Is", "it?", "Yes?!"]
    assert tokenizer("dual-path-coco")("Is it? Yes?!") == ["Is", "it", "Yes", "!"]


@pytest.mark.parametrize("name", NAMES)
def test_any_text_gives_words_and_the_same_ones_alone_or_among_many(name: str, request: pytest.FixtureRequest) -> None:
    split = split_by(name, request)
    odd = [
        "",
        " \n\t",
        "🐶🐱 a dog 🐶",
        "東京タワー",
        "e\u0301té cafe\u0301",
        "İstanbul",
        "a\u2028b\x1fc",
        "<pad> <end>",
        "(((",
    ]
    long = "A dog " * 9_999 + "cat"
    for caption in (*odd, long):
        words = split(caption)
        assert all(word.split() == [word] for word in words), caption
        assert words == split(caption)
        unseen = Vocabulary(name, SPECIALS)
        assert unseen.encode(caption).tolist() == [START, *[UNKNOWN] * len(words), END]
    assert split("") == split(" \n\t") == []
    assert {"🐶", "dog"} <= set(split("🐶 a dog 🐶"))
    assert split(long).count("cat") == 1
    assert split(long).count("dog") == 9_999
    assert list(tokenized([*odd, long], name)) == [split(caption) for caption in (*odd, long)]
    assert count_words(odd, name) == Counter(word for caption in odd for word in split(caption))


def test_spacy_gives_the_same_words_after_it_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spacy")
    captions = [f"A dog-{number} isn't  {number % 7}ft." for number in range(50)]
    whole = list(tokenized(captions, "spacy"))
    monkeypatch.setattr(tokenizers, "REMEMBERED", 800)
    assert list(tokenized(iter(captions), "spacy")) == whole


@pytest.mark.parametrize(("what", "wanted"), [("spacy", "-e '.[text]'"), ("nltk", "'nltk==3.10.*'")])
def test_what_is_not_installed_is_named(what: str, wanted: str) -> None:
    code = f"import sys; sys.modules['{what}'] = None; import xmodal.text.tokenizers as t; t.tokenizer('{what}')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "UserError: the " in said
    assert f": pip install {wanted}" in said


def test_the_cleaning_of_mrw_is_that_of_the_official_code() -> None:
    split = tokenizer("whitespace", "mrw")
    assert split("MRW /r/funny and /u/someone, r/aww u/me") == ["mrw", "funny", "and", "someone,", "aww", "me"]
    assert split("her/his well-made and/or ...") == ["hehis", "well", "made", "and", "or", "."]
    assert split("R/aww") == ["r", "aww"], "capitals are cleaned before they are lower-cased"


def test_what_is_cleaned_to_be_counted_is_cleaned_to_be_encoded(tmp_path: Path) -> None:
    captions = ["MRW her/his dog is well-made"]
    vocabulary = Vocabulary.build(captions, "nltk", 1, "mrw")
    assert UNKNOWN not in vocabulary.encode(captions[0])
    assert "hehis" in vocabulary.words
    raw = Vocabulary("nltk", vocabulary.words)
    assert np.count_nonzero(raw.encode(captions[0]) == UNKNOWN) == 2, "as the official loader does"
    data = vocabulary.to_bytes()
    assert data.startswith(b"nltk mrw 10 ")
    assert Vocabulary.from_bytes(data, "here") == vocabulary
    (tmp_path / "vocabulary.txt").write_bytes(data)
    assert vocabularies.load_vocabulary(tmp_path / "vocabulary.txt") == vocabulary


def test_a_vocabulary_file_from_before_cleanings_is_read() -> None:
    old = (
        b"whitespace 6 b499f3f43b46bbf9b760acbbc6392ea44abd002a11cc4eb7c0a48de94d390019\n"
        b"<pad>\n<start>\n<end>\n<unk>\na\ndog\n"
    )
    assert Vocabulary.from_bytes(old, "here") == Vocabulary("whitespace", (*SPECIALS, "a", "dog"))


def test_unknown_names_are_answered_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no cleaning 'soap'; there are: none, mrw"):
        tokenizer("nltk", "soap")
    with pytest.raises(ValueError, match=f"no tokenizer 'nltk2'; there are: {', '.join(NAMES)}"):
        tokenizer("nltk2")
    for split, cleaning in (("nltk2", "none"), ("nltk", "soap")):
        with pytest.raises(ValueError, match="there are: n"):
            Vocabulary(split, SPECIALS, cleaning)
        with pytest.raises(ValueError, match="there are: n"):
            Vocabulary.build([], split, 1, cleaning)


@pytest.mark.parametrize("longest", [57, 82])
def test_a_caption_is_cut_by_words_and_ends_as_it_did(longest: int) -> None:
    vocabulary = Vocabulary.build(["a dog"], "whitespace", 1)
    for words in (0, longest - 1, longest, longest + 1, 10_000):
        cut = shortened(vocabulary.encode("dog " * words), longest).tolist()
        assert cut == [START, *[5] * min(words, longest), END]


@cache
def coco(split: str = "") -> list[str]:
    path = DATA / "coco/captions_val2014.codalab_2014.jsonl.gz"
    if not path.is_file():
        pytest.skip("no captions of COCO val2014")
    with gzip.open(path) as lines:
        pictures = [json.loads(line) for line in lines]
    return [caption for one in pictures if split in ("", one["karpathy"]) for caption in one["captions"]]


@pytest.mark.parametrize(
    ("split", "name", "types", "words", "frequent"),
    [
        ("", "nltk", 18_528, None, 7_288),
        ("", "nltk-sentences", 18_408, 2_289_544, 7_288),
        ("", "whitespace", 26_808, 2_118_266, None),
        ("val", "nltk-sentences", 7_330, 282_811, 2_729),
        ("test", "nltk-sentences", 7_416, 282_056, 2_716),
    ],
)
def test_coco_has_the_words_that_the_spec_counted(
    split: str, name: str, types: int, words: int | None, frequent: int | None, request: pytest.FixtureRequest
) -> None:
    captions, _ = coco(split), split_by(name, request)
    counts = count_words(captions, name)
    assert len(captions) == (25_010 if split else 202_654)
    assert len(counts) == types
    assert words in (None, counts.total())
    assert frequent in (None, len(Vocabulary.of_counts(counts.items(), name, 4)) - len(SPECIALS))
