"""WordNet's files, real where they are and a small one of ours; and which concepts a caption names by them."""

import shutil
import sys
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.golden import golden
from xmodal.errors import UserError
from xmodal.text import wordnet
from xmodal.text.wordnet import ENDINGS, FUNCTION_WORDS, Concepts, WordNet, read_wordnet

SYNSETS = {
    "noun": (
        ("dog", "domestic_dog", "Canis_familiaris"),
        ("frank", "hot_dog", "dog"),
        ("bicycle", "bike", "wheel"),
        ("fireplug", "fire_hydrant", "plug"),
        ("wolf",),
        ("man", "adult_male"),
        ("glass",),
        ("glasses", "spectacles"),
        ("bus", "autobus"),
        ("ax", "axe"),
        ("axis",),
        ("inch", "in"),
        ("vitamin_A", "A"),
        ("table_tennis", "Ping-Pong"),
        ("homo", "human_being", "human"),
        ("café", "coffeehouse"),
    ),
    "verb": (("chase", "dog", "trail"), ("run",), ("bicycle", "bike", "pedal"), ("ride",)),
    "adj": (("afloat(p)",), ("large", "big")),
    "adv": (("well",),),
}
IRREGULAR = {
    "noun": ("wolves wolf", "axes ax", "axes axis", "men man"),
    "verb": ("ran run", "rode ride"),
    "adj": ("bigger big", "biggest big"),
    "adv": ("better well",),
}
LICENCE = "  1 This software and database may be used.  \n  2 It is provided as it is.  \n"
FILES = sorted(
    [f"{kind}.{part}" for kind in ("data", "index") for part in ENDINGS] + [f"{part}.exc" for part in ENDINGS]
)


def contents() -> dict[str, bytes]:
    """The files as wndb(5WN) has them."""
    found = {f"{part}.exc": "".join(f"{line}\n" for line in lines).encode() for part, lines in IRREGULAR.items()}
    for part, synsets in SYNSETS.items():
        data, index = LICENCE.encode(), defaultdict[str, list[int]](list)
        for synset in synsets:
            for lemma in synset:
                index[lemma.partition("(")[0].lower()].append(len(data))
            words = f"{len(synset):02x} {' '.join(f'{lemma} 0' for lemma in synset)}"
            data += f"{len(data):08} 05 {part[0]} {words} 001 @ 00000100 n 0000 | a gloss; one  \n".encode()
        found[f"data.{part}"] = data
        found[f"index.{part}"] = LICENCE.encode() + "".join(
            f"{lemma} {part[0]} {len(places)} 2 @ ~ {len(places)} 1 {' '.join(f'{place:08}' for place in places)}  \n"
            for lemma, places in sorted(index.items())
        ).encode()  # fmt: skip
    return found


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@cache
def real() -> WordNet:
    if not wordnet.DEBIAN.is_dir():
        pytest.skip("Debian's wordnet-base is not installed")
    return read_wordnet(wordnet.DEBIAN)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return read_wordnet(written(tmp_path_factory.mktemp("dict"), contents()))


def named(small: WordNet, names: tuple[str, ...], caption: str, tokenizer: str = "nltk") -> set[str]:
    concepts = Concepts(names, small, tokenizer)
    found = concepts.encode(caption)
    assert found.dtype == np.int32
    assert found.tolist() == sorted(set(found.tolist()))
    return {names[position] for position in found}


def test_synonyms_are_the_lemmas_of_all_senses_in_all_parts_of_speech(small: WordNet) -> None:
    dog = {"dog", "domestic_dog", "canis_familiaris", "frank", "hot_dog", "chase", "trail"}
    assert small.synonyms("dog") == dog == small.synonyms("dogs") == small.synonyms("dogs")
    assert small.synonyms("fire_hydrants") == {"fireplug", "fire_hydrant", "plug"}
    assert small.synonyms("afloat") == {"afloat"}
    assert small.synonyms("zebra") == small.synonyms("") == small.synonyms("_") == set()


@pytest.mark.parametrize(
    ("word", "part", "bases"),
    [
        ("dogs", "noun", ["dog"]),
        ("dogs", "verb", ["dog"]),
        ("dogs", "adj", []),
        ("wolves", "noun", ["wolf"]),
        ("axes", "noun", ["ax", "axis"]),  # in two lines of exceptions, and not "axe" by a rule
        ("glasses", "noun", ["glasses", "glass"]),
        ("buses", "noun", ["bus"]),
        ("chased", "verb", ["chase"]),
        ("chasing", "verb", ["chase"]),
        ("running", "verb", []),  # Morphy doubles no letters: the real one has it as an exception
        ("ran", "verb", ["run"]),
        ("larger", "adj", ["large"]),
        ("biggest", "adj", ["big"]),
        ("better", "adv", ["well"]),
        ("s", "noun", []),
    ],
)
def test_base_forms_are_morphy_s(small: WordNet, word: str, part: str, bases: list[str]) -> None:
    assert small.bases(word, part) == bases


CAPTIONED = (
    "dog",
    "Hot Dog",
    "fire_hydrant",
    "bicycle",
    "human being",
    "selfie",
    "inch",
    "vitamin A",
    "Café",
    "pedal",
    "cup of tea",
)


@pytest.mark.parametrize(
    ("caption", "concepts"),
    [
        ("A DOG", {"dog", "Hot Dog"}),  # a frank is called a dog
        ("Two dogs.", {"dog", "Hot Dog"}),
        ("fire hydrants", {"fire_hydrant"}),
        ("a fireplug", {"fire_hydrant"}),
        ("two Cup of Teas", {"cup of tea"}),
        ("a cup of", set()),
        ("fire, hydrant", set()),
        ("the hydrant", set()),
        ("He pedals", {"bicycle", "pedal"}),
        ("some human beings", {"human being"}),
        ("a being", set()),
        ("She took selfies in a café", {"selfie", "Café"}),  # WordNet lacks the one, and neither "a" nor "in" counts
        ("an inch of vitamin A", {"inch", "vitamin A"}),
        ("🐶 東京 <pad>", set()),
        ("", set()),
        ("dog dog dogs dog", {"dog", "Hot Dog"}),
    ],
)
def test_a_caption_names_concepts_by_words_phrases_and_synonyms(
    small: WordNet, caption: str, concepts: set[str]
) -> None:
    assert named(small, CAPTIONED, caption) == concepts


def test_case_and_tokenizer_do_not_matter_to_names(small: WordNet) -> None:
    assert named(small, ("DOG",), "Dog", "whitespace") == {"DOG"}
    assert named(small, ("  fire   hydrant_",), "FIRE hydrant", "whitespace") == {"  fire   hydrant_"}
    assert named(small, ("ping-pong",), "table tennis") == {"ping-pong"}


def test_a_long_caption_is_read_to_its_end(small: WordNet) -> None:
    caption = "zebra " * 5_000 + "fire " * 5_000 + "hydrants"
    assert named(small, CAPTIONED, caption) == {"fire_hydrant"}


@given(st.lists(st.sampled_from(sorted({lemma for part in SYNSETS.values() for synset in part for lemma in synset}))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_queries_have_a_one_for_each_name_that_is_said(small: WordNet, said: list[str]) -> None:
    names = tuple(dict.fromkeys(lemma.partition("(")[0] for part in SYNSETS.values() for s in part for lemma in s))
    concepts = Concepts(names, small, "whitespace")
    caption = " ".join(said).replace("_", " ").replace("(p)", "")
    query = concepts.k_hot([caption])[0]
    assert query.sum() == len(concepts.encode(caption))
    for lemma in said:
        if (name := lemma.partition("(")[0]).lower() not in FUNCTION_WORDS:
            assert query[names.index(name)] == 1
            assert all(
                query[names.index(other)] == 1 for other in names if other.lower() in small.synonyms(name.lower())
            )


def test_queries_and_their_scores_are_those_of_the_reference(small: WordNet) -> None:
    reference = golden("indep_sg_wordnet_baseline")
    names = tuple(f"concept{number}" for number in range(reference["s_g"].shape[1]))
    concepts = Concepts(names, small, "whitespace")
    queries = concepts.k_hot([" ".join(names[n] for n in np.flatnonzero(row)) for row in reference["q_khot"]])
    np.testing.assert_array_equal(queries, reference["q_khot"])
    np.testing.assert_allclose(queries @ reference["s_g"].T, reference["score"], rtol=1e-6)


def test_no_captions_make_no_queries(small: WordNet) -> None:
    assert Concepts(("dog", "cat"), small).k_hot([]).shape == (0, 2)
    assert Concepts((), small).encode("dog").tolist() == []


@pytest.mark.parametrize(("name", "other"), [("Fire Hydrant", "'fire_hydrant'"), (" ", "empty"), ("", "empty")])
def test_a_concept_that_is_empty_or_there_twice_is_refused(small: WordNet, name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"concept {name!r} is .*{other}"):
        Concepts(("fire_hydrant", name), small)


def test_it_is_read_from_the_zip_that_nltk_s_downloader_leaves(tmp_path: Path, small: WordNet) -> None:
    with zipfile.ZipFile(tmp_path / "wordnet.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in contents().items():
            file.writestr(f"wordnet/{name}", data)
    assert read_wordnet(tmp_path / "wordnet.zip").senses == small.senses


def test_it_is_looked_for_in_nltk_s_data_and_then_where_debian_has_it(
    tmp_path: Path, small: WordNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pytest.importorskip("nltk.data")
    monkeypatch.setattr(data, "path", [str(tmp_path / "one"), str(tmp_path / "two")])
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "debian")
    with pytest.raises(UserError) as caught:
        read_wordnet()
    for place in ("one/corpora/wordnet,", "two/corpora/wordnet.zip,", "debian:"):
        assert str(tmp_path / place) in str(caught.value)
    assert "`python -m nltk.downloader wordnet` or `apt-get install wordnet-base`" in str(caught.value)
    written(tmp_path / "debian", contents())
    assert read_wordnet().senses == small.senses
    written(tmp_path / "two" / "corpora" / "wordnet", {"data.noun": b""})
    with pytest.raises(UserError, match="two/corpora/wordnet"):
        read_wordnet()


def test_without_nltk_it_is_looked_for_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.data", None)
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    written(tmp_path / "nltk_data" / "corpora" / "wordnet", contents())
    assert read_wordnet().synonyms("wolves") == {"wolf"}


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    files = contents()
    del files[name]
    with pytest.raises(UserError, match=f"dict has no {name}, so it is no WordNet, or a part of one"):
        read_wordnet(written(tmp_path / "dict", files))


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".exc")])
def test_a_file_that_was_cut_anywhere_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    """Also at the end of a line, by what the other file of the two has."""
    whole, folder = contents(), written(tmp_path / "dict", contents())
    part = name.partition(".")[2]
    for size in range(0, len(whole[name]), 7):
        (folder / name).write_bytes(whole[name][:size])
        with pytest.raises(UserError, match=rf"(index|data)\.{part}(, line \d+| was cut)") as caught:
            read_wordnet(folder)
        assert "cut" in str(caught.value)


def test_exceptions_that_were_cut_are_named_with_their_line(tmp_path: Path) -> None:
    for size, line in ((-1, 4), (-len("men man\n") - 1, 3), (-len(" man\n"), 4)):
        files = contents()
        files["noun.exc"] = files["noun.exc"][:size]
        with pytest.raises(UserError, match=rf"noun\.exc, line {line} has no end"):
            read_wordnet(written(tmp_path / "dict", files))
    files["noun.exc"] = b"men\n"
    with pytest.raises(UserError, match=r"noun\.exc, line 1 has no base form"):
        read_wordnet(written(tmp_path / "dict", files))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("data.noun", b"05 n 03 dog", b"05 n 0g dog", r"data\.noun, line 3 is no synset"),
        ("data.noun", b"| a gloss", b"/ a gloss", r"data\.noun, line 3 is no synset"),
        ("data.noun", b"caf\xc3", b"caf\xff", r"data\.noun, line 18 is no text"),
        ("data.noun", b"gloss; one  \n", b"gloss; one\n", r"data\.noun, line 4 is no synset"),
        (
            "index.noun",
            b"adult_male n 1",
            b"adult_male n 2",
            r"index\.noun, line 4 is no word with synsets of data.noun",
        ),
        ("index.verb", b"bike v 1", b"bike v x", r"index\.verb, line 4 is no word with synsets of data.verb"),
    ],
)
def test_a_changed_line_is_named(tmp_path: Path, name: str, old: bytes, new: bytes, message: str) -> None:
    files = contents()
    assert old in files[name]
    files[name] = files[name].replace(old, new, 1)
    with pytest.raises(UserError, match=message):
        read_wordnet(written(tmp_path / "dict", files))


def test_what_is_no_zip_or_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wordnet.zip"
    path.write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"wordnet\.zip is no zip of WordNet"):
        read_wordnet(path)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in contents().items():
            file.writestr(f"wordnet/{name}", data)
    path.write_bytes(path.read_bytes().replace(b"domestic_dog", b"domestic_cat"))
    with pytest.raises(UserError, match=r"wordnet\.zip/wordnet/data\.noun cannot be read: Bad CRC"):
        read_wordnet(path)
    encrypted = bytearray(path.read_bytes())
    encrypted[encrypted.rindex(b"wordnet/data.noun") - 38] |= 1  # its flags, in the directory at the end
    path.write_bytes(encrypted)
    with pytest.raises(UserError, match=r"wordnet\.zip/wordnet/data.noun cannot be read: .*is encrypted"):
        read_wordnet(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("other/data.noun", b"")
    with pytest.raises(UserError, match=r"wordnet\.zip/wordnet/? has no data\.noun"):
        read_wordnet(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "dict", contents())
    (folder / "data.verb").unlink()
    (folder / "data.verb").mkdir()
    with pytest.raises(UserError, match=r"data\.verb cannot be read: .*Is a directory"):
        read_wordnet(folder)


def test_the_real_one_has_its_words_and_synonyms() -> None:
    """The numbers of WordNet 3.0 are its authors' (wnstats, 7WN)."""
    words = {part: len(lemmas) for part, lemmas in real().senses.items()}
    assert words == {"noun": 117_798, "verb": 11_529, "adj": 21_479, "adv": 4_481}
    assert sum(len(senses) for lemmas in real().senses.values() for senses in lemmas.values()) == 206_941
    assert {"bicycle", "cycle", "wheel"} <= real().synonyms("bikes")
    assert real().bases("running", "verb") == ["run"]
    assert real().bases("geese", "noun") == ["goose"]
    assert real().synonyms("fire_hydrants") == {"fire_hydrant", "fireplug", "plug"}


def test_the_real_one_finds_concepts_and_none_in_function_words() -> None:
    names = ("dog", "bicycle", "fire hydrant", "helium", "inch", "vitamin A", "Indiana", "iodine", "organism", "goose")
    concepts = Concepts(names, real())
    assert concepts.encode("Geese and a DOG are on bikes next to the fire hydrants").tolist() == [0, 1, 2, 9]
    assert concepts.encode(" ".join(sorted(FUNCTION_WORDS))).tolist() == []


def test_a_real_one_that_lost_its_last_words_is_refused(tmp_path: Path) -> None:
    real()
    folder = tmp_path / "dict"
    shutil.copytree(wordnet.DEBIAN, folder, ignore=lambda _, names: [name for name in names if name not in FILES])
    lines = (folder / "index.adv").read_bytes().splitlines(keepends=True)
    (folder / "index.adv").write_bytes(b"".join(lines[:-200]))
    with pytest.raises(UserError, match=r"index\.adv was cut: its words lack synset \d{8} of data\.adv"):
        read_wordnet(folder)
