"""Word vectors: every format and packing gives the same rows, and damage is named by its place or does no harm."""

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from pipelines.cli import main
from tests.toy_root import make_root
from xmodal.errors import UserError
from xmodal.text.vector_files import VectorFile
from xmodal.text.vector_index import write_index
from xmodal.text.vocabularies import SPECIALS, Vocabulary
from xmodal.text.word2vec import train_word2vec, write_word2vec
from xmodal.text.word_vectors import Coverage, open_vectors, read_vectors, spellings, vectors_sha256

WORDS = (*SPECIALS, "red", "t-shirt", "u.s.", "and/or", "o'clock", "unseen", "at")
Floats = NDArray[np.float32]
Entries = list[tuple[bytes, Floats]]


def glove(entries: Entries) -> bytes:
    return b"".join(word + b"".join(b" %r" % float(value) for value in row) + b"\n" for word, row in entries)


def header(entries: Entries) -> bytes:
    return b"%d %d\n" % (len(entries), len(entries[0][1]))


def word2vec_text(entries: Entries) -> bytes:
    return header(entries) + glove(entries)


def word2vec_binary(entries: Entries, between: bytes = b"\n") -> bytes:
    return header(entries) + b"".join(word + b" " + row.tobytes() + between for word, row in entries)


FORMATS: dict[str, Callable[[Entries], bytes]] = {
    "GloVe text": glove,
    "word2vec text": word2vec_text,
    "word2vec binary": word2vec_binary,
    "word2vec binary without line feeds": lambda entries: word2vec_binary(entries, b""),
}


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def zipped(path: Path, *members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, data in enumerate(members):
            archive.writestr(f"member{number}.txt", data)
    return path


def packings(folder: Path, data: bytes) -> list[Path]:
    """The same as a plain file, in gzip, in a zip, and as an index; no name says which."""
    plain = written(folder / "plain", data)
    index = folder / "index"
    index.unlink(missing_ok=True)
    write_index(VectorFile.open(plain), index)
    return [plain, written(folder / "packed", gzip.compress(data)), zipped(folder / "zipped", data), index]


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def made(count: int, width: int = 5) -> Entries:
    rows = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    return [(b"word%d" % number, row) for number, row in enumerate(rows)]


# What is read


letters = st.binary(min_size=1, max_size=12).filter(lambda word: len(word.split()) == 1 and word.strip() == word)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def files(draw: st.DrawFn) -> Entries:
    width = draw(st.integers(2, 6))
    words = draw(st.lists(letters.filter(lambda word: b"\n" not in word), min_size=1, max_size=8))
    return [(word, draw(arrays(np.float32, width, elements=finite))) for word in words]


@settings(max_examples=60, deadline=None)
@given(files(), st.sampled_from(sorted(FORMATS)))
def test_all_formats_and_packings_give_the_same_rows(entries: Entries, kind: str) -> None:
    """Of any bytes as words, some twice, some of them not in the file, in the order that was asked."""
    expected = dict(entries)
    words = [*(word.decode(errors="surrogateescape") for word in reversed(expected)), "absent from all"]
    magic = (b"PK\3\4", b"\x1f\x8b", BOM_UTF8)  # a text that begins as an archive does, or with a mark, is none
    assume(not entries[0][0].startswith(magic))
    with tempfile.TemporaryDirectory() as folder:
        for path in packings(Path(folder), FORMATS[kind](entries)):
            found = read_vectors(path, words, exact=True)
            np.testing.assert_array_equal(found[:-1], [*reversed(expected.values())])
            assert np.isnan(found[-1]).all()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", FORMATS)
def test_words_and_rows_are_those_that_gensim_reads(tmp_path: Path, kind: str) -> None:
    models = pytest.importorskip("gensim.models")  # which leaves a file open
    entries = [*made(300, 30), ("größe😀".encode(), np.full(30, 1 / 3, np.float32))]
    file = written(tmp_path / "v", FORMATS[kind](entries))
    some = {"no_header": True} if kind == "GloVe text" else {"binary": "binary" in kind}
    theirs = models.KeyedVectors.load_word2vec_format(str(file), **some)
    np.testing.assert_array_equal(read_vectors(file, theirs.index_to_key), theirs.vectors)


def test_the_numbers_of_a_text_are_what_python_reads(tmp_path: Path) -> None:
    """Also those half way between two floats, long ones, exponents and signs."""
    numbers = ["1.00000005960464477539062500001", "-0", "+1.5", "1e-45", "3.4028235e38", ".5", "7.", "-2.5E+3"]
    file = written(tmp_path / "v", text("red " + " ".join(numbers)))
    np.testing.assert_array_equal(read_vectors(file, ["red"])[0], np.array([*map(float, numbers)], np.float32))


def test_vectors_are_found_by_the_words_spellings_in_order(tmp_path: Path) -> None:
    lines = ("red 1 2", "tshirt 3 4", "us 5 6", "u.s. 7 8", "and 9 10", "oclock 11 12", "x 0 0")
    for path in packings(tmp_path, text(*lines)):
        found = read_vectors(path, WORDS)
        assert (found.shape, found.dtype) == ((11, 2), np.float32)
        expected = {4: (1, 2), 6: (7, 8), 7: (9, 10), 8: (11, 12), 5: (3, 4)}
        for row in range(len(WORDS)):
            np.testing.assert_array_equal(found[row], expected.get(row, (np.nan, np.nan)))


def test_the_part_before_a_slash_is_taken_and_case_stays(tmp_path: Path) -> None:
    assert spellings("U.S./can't") == ("U.S./can't", "US/cant", "US")
    assert spellings("-") == ("-",)
    found = read_vectors(written(tmp_path / "v", text("and 9 10", "Paris 1 2")), ["and/or", "paris", ""])
    np.testing.assert_array_equal(found, [(9, 10), (np.nan, np.nan), (np.nan, np.nan)])
    with pytest.raises(UserError, match="none of 1 words"):
        read_vectors(tmp_path / "v", ["and/or"], exact=True)


def test_a_spelling_of_one_word_may_be_another_word(tmp_path: Path) -> None:
    file = written(tmp_path / "v", text("us 5 6", "red 1 2"))
    np.testing.assert_array_equal(read_vectors(file, ["u.s.", "us", "red", "us"]), [(5, 6), (5, 6), (1, 2), (5, 6)])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_word_that_is_there_twice_has_its_last_vector(tmp_path: Path, kind: str) -> None:
    """As for torchtext; 1,500 words lie between, so that the two are read apart."""
    entries = [(b"red", np.float32([1, 2, 3, 4, 5])), *made(1500), (b"red", np.float32([5, 6, 7, 8, 9]))]
    for path in packings(tmp_path, FORMATS[kind](entries)):
        np.testing.assert_array_equal(read_vectors(path, ["red"])[0], entries[-1][1])


def test_words_with_spaces_in_them_are_not_other_words(tmp_path: Path) -> None:
    """The published glove.840B.300d has lines such as `at name@domain.com 0.1 ...` and `. . . 0.1 ...`."""
    lines = ("at 1 2", "at name@domain.com 3 4", ". . . 9 9", "red 5 6", "red red 7 8")
    for path in packings(tmp_path, text(*lines)):
        found = read_vectors(path, [*WORDS, "at name@domain.com"])
        np.testing.assert_array_equal(found[[4, 10, 11]], [(5, 6), (1, 2), (3, 4)])


def test_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    file = written(tmp_path / "v", b"x 1 2\r\nred 3 4\r\nat 5 6\r\n")
    np.testing.assert_array_equal(read_vectors(file, ["red", "at"]), [(3, 4), (5, 6)])


@pytest.mark.parametrize("first", [b"", b"2 2\n"])
def test_a_last_number_that_may_have_been_cut_is_not_believed(tmp_path: Path, first: bytes) -> None:
    """Unless a checksum says that the file is whole."""
    data = first + b"red 1 2\nat 0.5 6.5e-2"
    with pytest.raises(
        UserError, match=rf"\(byte {len(first) + 8}\) ends without a line feed: its last number may be cut"
    ):
        read_vectors(written(tmp_path / "v", data), ["red"])
    np.testing.assert_array_equal(read_vectors(zipped(tmp_path / "z", data), ["red"]), [(1, 2)])


def test_words_that_no_file_can_have_are_missing(tmp_path: Path) -> None:
    file = written(tmp_path / "v", text("red 1 2") + b"caf\xe9 3 4\n")
    found = read_vectors(file, ["\ud800", "red", "caf\udce9"])
    np.testing.assert_array_equal(found, [(np.nan, np.nan), (1, 2), (3, 4)])
    assert read_vectors(file, []).shape == (0, 2)


def test_long_words_are_read(tmp_path: Path) -> None:
    entries = [*made(3), (b"http://" + b"a" * 3000, np.ones(5, np.float32)), (b"last", np.zeros(5, np.float32))]
    for kind in FORMATS:
        found = read_vectors(written(tmp_path / "v", FORMATS[kind](entries)), ["http://" + "a" * 3000, "last"])
        np.testing.assert_array_equal(found, [[1] * 5, [0] * 5])


def test_what_a_mac_adds_to_a_zip_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("v.txt", text("red 1 2"))
        archive.writestr("__MACOSX/._v.txt", b"\0\5\x16\7")
    np.testing.assert_array_equal(read_vectors(tmp_path / "v.zip", ["red"]), [[1, 2]])


def test_zeros_are_vectors(tmp_path: Path) -> None:
    """The first of a binary, from which its format is guessed, may be all zeros, or look like numbers at first."""
    for first in (np.zeros(5, np.float32), np.frombuffer(b"1.5\n" * 5, np.float32)):
        file = written(tmp_path / "v", word2vec_binary([(b"pad", first), *made(3)]))
        assert VectorFile.open(file).kind == "word2vec binary"
        np.testing.assert_array_equal(read_vectors(file, ["pad"])[0], first)


# What is refused


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbf" + text("red 1 2"), "v begins with a byte order mark"),
        (b"\xef\xbb\xbf" + text("1 2", "red 1 2"), "v begins with a byte order mark"),
        (text("x 1 2", "red 1 2", "at 1"), r"v, line 3 \(byte 14\) has 1 numbers, where the first line has 2"),
        (text("x 1 2", "red 1 2 3"), r"v, line 2 \(byte 6\) has 3 numbers, where the first line has 2"),
        (text("x 1 2", "red 1 2 at 3 4"), r"v, line 2 \(byte 6\) has 5 numbers"),
        (text("x 1 2", "red"), r"v, line 2 \(byte 6\) has 0 numbers"),
        (text("1 2", "x 1 2", "red 1"), r"v, line 3 \(byte 10\) has 1 numbers, where its first line says 2"),
        (text("red 1 nan"), r"v, line 1 \(byte 0\) has a number that is NaN or infinite"),
        (text("red 1 inf"), r"v, line 1 \(byte 0\) has a number that is NaN or infinite"),
        (text("red 1 1e39"), r"v, line 1 \(byte 0\) has a number that is NaN or infinite"),
        (text("x 1 2", "red 1 two"), r"v, line 2 \(byte 6\) has 'two' where a number should be"),
        (b"x 1 2\nred 1 \xff\n", r"v, line 2 \(byte 6\) has bytes in no number"),
        (text("x 1 2", "red 1  2"), r"v, line 2 \(byte 6\) has 2 numbers|'' where"),
        (b"x 1 2\ny 1", r"v, line 2 \(byte 6\) ends without a line feed"),
        (text("red "), r"v, line 1 \(byte 0\) is neither a word with numbers, .* nor how many words follow"),
        (text("5 999999", "red 1 2"), "its first line says 999,999 numbers a word, at byte 0"),
        (text("x 1 2", "red 1\t2"), "where the first line has 2; between them is more than a single space"),
        (b"\0" * 2**21, r"v, line 1 \(byte 0\) is neither"),
        (b"x 1 2\n" + b"a" * 2**21, r"v, line 2 \(byte 6\) has no end"),
        (text("x 1 2"), r"v \(GloVe text\) has a vector for none of 11 words"),
        (text("3 2", "red 1 2"), "1 words follow, to byte 12, where its first line says 3"),
        (text("1 2", "red 1 2", "at 1 2"), "2 words follow, to byte 19, where its first line says 1"),
        (b"", "v is empty"),
    ],
)
def test_a_text_that_is_not_as_it_should_be_is_named_with_its_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_vectors(written(tmp_path / "v", data), WORDS)


def test_a_binary_that_is_not_as_it_should_be_is_named_with_its_byte(tmp_path: Path) -> None:
    whole = word2vec_binary(made(2000))
    words = ["word5", "word1999"]
    nan = bytearray(whole)
    place = whole.index(b"word5 ")
    nan[place + 6 : place + 10] = np.float32(np.nan).tobytes()
    for data, message in (
        (whole[:-10], rf"ends at byte {len(whole) - 10}, after 1,999 words and within the next, of 2,000"),
        (whole + b"more", rf"goes on at byte {len(whole) - 1} after the 2,000 words"),
        (bytes(nan), rf"byte {place}: 'word5' has a number that is NaN or infinite"),
    ):
        with pytest.raises(UserError, match=message):
            read_vectors(written(tmp_path / "v", data), words)


def test_a_byte_that_is_lost_is_found_where_it_was(tmp_path: Path) -> None:
    whole = word2vec_binary(made(3000, 300))
    lost = whole.index(b"word1500 ") + 100
    with pytest.raises(UserError, match="is damaged before byte") as raised:
        read_vectors(written(tmp_path / "v", whole[:lost] + whole[lost + 1 :]), ["word5"])
    named = int(re.findall(r"before byte (\d+)", str(raised.value))[0])
    assert lost <= named < lost + 1210


def test_what_is_packed_is_named_too(tmp_path: Path) -> None:
    data = glove(made(5000))
    packed = gzip.compress(data)
    damaged = bytearray(packed)
    damaged[-6] ^= 1  # of the checksum
    for bad in (packed[: len(packed) // 2], bytes(damaged)):
        with pytest.raises(UserError, match=r"v was cut or damaged, at byte [\d,]+ or before"):
            read_vectors(written(tmp_path / "v", bad), ["word5"])
    archive = zipped(tmp_path / "zip", data).read_bytes()
    for bad in (archive[: len(archive) // 2], archive[:300] + b"????" + archive[304:]):
        with pytest.raises(UserError, match=r"v was cut or damaged, at byte [\d,]+ or before"):
            read_vectors(written(tmp_path / "v", bad), ["word5"])
    with pytest.raises(
        UserError, match=r"has 2 files in it, so unpack the one that is meant: member0.txt, member1.txt"
    ):
        read_vectors(zipped(tmp_path / "two", data, data), ["word5"])
    with pytest.raises(UserError, match="absent cannot be read: No such file"):
        read_vectors(tmp_path / "absent", ["word5"])


@pytest.mark.parametrize("kind", [*FORMATS, "gzip", "zip", "index"])
def test_no_damage_makes_rows_of_nothing(tmp_path: Path, kind: str) -> None:
    """Cut anywhere, or a bit turned anywhere: an error that names a byte, or the rows.

    What no check can know is let through: in a text a digit that became another, in a binary any bit of a number. A
    word that became another is missing, which a report of the coverage tells.
    """
    entries = made(60)
    data = FORMATS.get(kind, glove)(entries)
    where = [*FORMATS, "gzip", "zip", "index"].index(kind)
    file = packings(tmp_path, data)[max(0, where - len(FORMATS) + 1)]
    whole, words, random = file.read_bytes(), [word.decode() for word, _ in entries], np.random.default_rng(where)
    right, refused = read_vectors(file, words), 0
    for trial in range(400):
        bad, at = bytearray(whole), int(random.integers(len(whole)))
        if is_cut := trial % 2 == 0:
            del bad[at:]
        else:
            bad[at] ^= 1 << int(random.integers(8))
        found = outcome(written(tmp_path / "bad", bytes(bad)), words)
        if isinstance(found, str):
            assert re.search(r"byte|is empty|for none of", found), found
            refused += 1
            continue
        missing = np.isnan(found).any(axis=1)
        other = ~missing & (found != right).any(axis=1)
        if kind in ("gzip", "zip", "index") or (is_cut and kind != "GloVe text"):
            assert not missing.any()
            assert not other.any()
        elif is_cut:
            assert not missing[: bytes(bad).count(b"\n")].any()
            assert not other.any()
        else:
            assert missing.sum() <= 1
            assert other.sum() <= 1
    assert refused > 100


def outcome(file: Path, words: list[str]) -> Floats | str:
    try:
        return read_vectors(file, words)
    except UserError as trouble:
        return str(trouble)


# The index


def test_an_index_is_of_the_same_vectors_as_its_file(tmp_path: Path) -> None:
    plain, *_, index = packings(tmp_path, glove(made(3000)))
    assert (open_vectors(index).count, open_vectors(index).width) == (3000, 5)
    assert vectors_sha256(index) == vectors_sha256(plain)
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "packed", "zipped", "index"}
    with pytest.raises(UserError, match="index exists already"):
        write_index(VectorFile.open(plain), index)
    zeros = written(tmp_path / "zeros", index.read_bytes()[:-500] + bytes(500))
    with pytest.raises(UserError, match="zeros is damaged or cut at its end"):
        read_vectors(zeros, ["word5"])
    cut = written(tmp_path / "cut", index.read_bytes()[:-20])
    with pytest.raises(UserError, match=rf"cut is damaged or cut at its end: it has {cut.stat().st_size} bytes$"):
        open_vectors(cut)


def test_words_that_an_index_has_are_told_from_those_that_it_lacks(tmp_path: Path) -> None:
    *_, index = packings(tmp_path, glove(entries := made(3000)))
    lacking = [f"{word.decode()}x" for word, _ in entries]
    found = read_vectors(index, [*lacking, *(word.decode() for word, _ in entries[:2000])])
    assert np.isnan(found[:3000]).all()
    np.testing.assert_array_equal(found[3000:], [row for _, row in entries[:2000]])


def test_of_two_indexes_written_at_once_the_first_stays(tmp_path: Path) -> None:
    first, second = (written(tmp_path / name, glove(made(some))) for name, some in (("a", 20), ("b", 30)))

    def overtake(size: int) -> None:
        if not (tmp_path / "index").exists():
            write_index(VectorFile.open(first), tmp_path / "index")

    with pytest.raises(UserError, match="index exists already"):
        write_index(VectorFile.open(second), tmp_path / "index", overtake)
    assert open_vectors(tmp_path / "index").count == 20
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "index"}


def test_an_index_of_a_damaged_file_is_not_there(tmp_path: Path) -> None:
    file = written(tmp_path / "v", glove(made(3000)) + b"bad 1 2 3 4 nan\n")
    with pytest.raises(UserError, match="line 3001"):
        write_index(VectorFile.open(file), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


# Coverage


def test_coverage_tells_what_is_missing_by_how_often_it_occurs() -> None:
    vectors = np.float32([[1, 2], [np.nan, np.nan], [np.nan, np.nan], [0, 0]])
    words = ["red", "rare", "often", "at"]
    plain = Coverage.of(words, vectors)
    assert plain == Coverage(4, ("rare", "often"))
    assert str(plain) == "2 of 4 (50.0%) words have a vector; without: rare often"
    counted = Coverage.of(words, vectors, {"red": 70, "often": 20, "rare": 10})
    assert counted == Coverage(4, ("often", "rare"), 100, 30)
    assert str(counted) == ("2 of 4 (50.0%) words have a vector, 70 of 100 (70.0%) that occur; without: often rare")


# Training, and the command


CAPTIONS = [f"a {colour} dog and a {colour} cat".split() for colour in ("red", "green", "blue")] * 20


def test_the_same_captions_give_the_same_bytes_whatever_python_hashes(tmp_path: Path) -> None:
    pytest.importorskip("gensim")
    code = (
        "import sys; from pathlib import Path; from tests.text.test_vectors import CAPTIONS;"
        "from xmodal.text.word2vec import *; write_word2vec(Path(sys.argv[1]), *train_word2vec(CAPTIONS, width=8))"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], env=environment, check=True)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    words, vectors = train_word2vec(CAPTIONS, width=8)
    np.testing.assert_array_equal(read_vectors(tmp_path / "1", words), vectors)
    assert (words[0], len(words)) == ("a", 7)
    with pytest.raises(UserError, match="no words"):
        train_word2vec([[]])
    with pytest.raises(UserError, match="exists already"):
        write_word2vec(tmp_path / "1", words, vectors)


def test_the_command_tells_converts_and_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gensim")
    root, trained, index = make_root(tmp_path), tmp_path / "toy.bin", tmp_path / "toy.index"
    assert main(["vectors", "pictures", "--root", root, "--split", "toy/train", "--train", str(trained)]) == 0
    assert re.search(r"words of \d+ captions, 300 numbers each, in .*toy\.bin", capsys.readouterr().out)
    vocabulary = Vocabulary("whitespace", (*SPECIALS, "a", "nowhere"))
    words = written(tmp_path / "vocabulary.txt", vocabulary.to_bytes())
    assert main(["vectors", str(trained), "--words", str(words), "--index", str(index), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["coverage"] == {"words": 2, "missing": ["nowhere"], "occurrences": None, "occurrences_missing": None}
    assert main(["vectors", str(index), "--words", str(words)]) == 0
    out = capsys.readouterr().out
    assert "an index" in out
    assert "1 of 2 (50.0%) words have a vector; without: nowhere" in out
    for wrong in (
        ["vectors", str(index), "--index", str(tmp_path / "again")],
        ["vectors", str(trained), "--index", str(index)],
        ["vectors", str(trained), "--split", "toy/train"],
        ["vectors", str(trained), "--tokenizer", "nltk"],
        ["vectors", str(trained), "--cleaning", "mrw"],
        ["vectors", "pictures", "--train", str(tmp_path / "other.bin")],
    ):
        assert main(wrong) == 1
        assert capsys.readouterr().err.count("\n") >= 1
    assert not (tmp_path / "again").exists()


def test_what_cannot_be_trained_or_written_is_refused_before_it_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, there = make_root(tmp_path), written(tmp_path / "there.bin", b"mine")
    corpus = ["vectors", "pictures", "--root", root, "--split", "toy/train"]
    for options, message in (
        (["--train", str(there)], "there.bin exists already"),
        (["--train", str(tmp_path / "no" / "other.bin")], f"{tmp_path / 'no'} is no folder"),
        (["--train", str(tmp_path / "other.bin"), "--tokenizer", "words"], "no tokenizer 'words'; there are: nltk"),
        (["--train", str(tmp_path / "other.bin"), "--cleaning", "words"], "no cleaning 'words'; there are: none, mrw"),
    ):
        assert main([*corpus, *options]) == 1
        told = capsys.readouterr().err
        assert message in told
        assert "epochs" not in told
    assert there.read_bytes() == b"mine"
