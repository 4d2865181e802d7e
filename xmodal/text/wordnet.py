"""WordNet's synonyms, and by them the concepts that a caption names: the query of A3VSE's s_g baseline.

WordNet is the `wordnet` of NLTK's data, a folder or the zip that its downloader leaves, or Debian's `wordnet-base`, or
any other folder of the same files; those of each part of speech, as wndb(5WN) has them:

    data.noun     02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 023 @ 02083346 n 0000 … | a member of …
    index.noun    dog n 7 5 @ ~ #m #p %p 7 1 02084071 10114209 10023039 09886220 07676602 03901548 02710044
    noun.exc      wolves wolf

A synset is named by the byte at which its line starts in `data`. Lines of the licence start with a blank.

A3VSE expands the tokens of a sentence by WordNet's synsets and sets the concepts found to one; more is not known of it
(docs/models.md#concept-baseline). What is ours: every run of words that names something counts, also inside a longer
one, so that a "hot dog" names a dog; each in all its parts of speech, base forms and senses; names match whole,
whatever their case, and `_` is a blank; a name that WordNet lacks is a noun without synonyms. Function words name
nothing by themselves: to WordNet "a" is a vitamin too, and "in" an inch.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import Tokenizer, tokenizer

Synset: TypeAlias = tuple[str, ...]  # its lemmas, in lower case, with _ between words
DEBIAN = Path("/usr/share/wordnet")
ENDINGS: Mapping[str, tuple[tuple[str, str], ...]] = {  # of inflected forms and their base, morphy(7WN)
    "noun": (
        ("s", ""),
        ("ses", "s"),
        ("xes", "x"),
        ("zes", "z"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("men", "man"),
        ("ies", "y"),
    ),
    "verb": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}
_CLOSED_CLASSES = """
    a an the this that these those i me my you your he him his she her it its we us our they them their who whom whose
    which what and or but nor if as at by for from in into of off on onto out over to up down with than so no not
    am is are was were be been being do does did has have had having
"""
FUNCTION_WORDS = frozenset(_CLOSED_CLASSES.split())


@dataclass(frozen=True, eq=False)
class WordNet:
    senses: Mapping[str, Mapping[str, tuple[Synset, ...]]]  # of a part of speech's lemmas, the commonest first
    irregular: Mapping[str, Mapping[str, tuple[str, ...]]]  # base forms

    def synonyms(self, word: str) -> set[str]:
        """Every lemma of every synset that a word, or words joined by _, may stand for, if any."""
        found = (self.senses[part][base] for part in ENDINGS for base in self.bases(word, part))
        return {lemma for senses in found for synset in senses for lemma in synset}

    def bases(self, word: str, part: str) -> list[str]:
        """The lemmas of a part of speech that a word is a form of: itself, then what WordNet's Morphy makes of it."""
        rules = ((ending, base) for ending, base in ENDINGS[part] if word.endswith(ending))
        forms = self.irregular[part].get(word) or [word.removesuffix(ending) + base for ending, base in rules]
        return [form for form in dict.fromkeys((word, *forms)) if form in self.senses[part]]


@dataclass(frozen=True, eq=False)
class Concepts:
    """What a caption may name, by position: `encode` gives the positions, `k_hot` the query vectors."""

    names: tuple[str, ...]
    wordnet: WordNet
    tokenizer: str = "nltk"

    def __post_init__(self) -> None:
        seen = dict[str, str]()
        for name in self.names:
            if (lemma := _lemma(name)) in seen or not lemma:
                raise ValueError(f"concept {name!r} is empty, or the same as {seen.get(lemma)!r}")
            seen[lemma] = name

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, caption: str) -> NDArray[np.int32]:
        """The positions of what it names, ascending and each once; there may be none."""
        words = [word.lower() for word in self._split(caption)]
        found = {position for form in self._forms(words) for position in self._meant(form)}
        return np.array(sorted(found), np.int32)

    def k_hot(self, captions: Sequence[str]) -> NDArray[np.float32]:
        """(captions, concepts)"""
        queries = np.zeros((len(captions), len(self)), np.float32)
        for query, caption in zip(queries, captions, strict=True):
            query[self.encode(caption)] = 1
        return queries

    def _forms(self, words: list[str]) -> Iterator[str]:
        """Every word that is no function word, and every run of words whose beginning begins a name."""
        for start, form in enumerate(words):
            if form not in FUNCTION_WORDS:
                yield form
            for word in words[start + 1 :]:
                if form not in self._beginnings:
                    break
                form = f"{form}_{word}"
                yield form

    def _meant(self, form: str) -> list[int]:
        if (known := self._known.get(form)) is not None:
            return known
        found = [self._positions[lemma] for lemma in self._widened.synonyms(form) if lemma in self._positions]
        if "_" not in form:  # there are far more runs of words than words
            self._known[form] = found
        return found

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {_lemma(name): position for position, name in enumerate(self.names)}

    @cached_property
    def _known(self) -> dict[str, list[int]]:
        return {}

    @cached_property
    def _widened(self) -> WordNet:
        """With the names that WordNet lacks as nouns, so that their plurals are known too."""
        nouns = {name: ((name,),) for name in self._positions} | dict(self.wordnet.senses["noun"])
        return replace(self.wordnet, senses={**self.wordnet.senses, "noun": nouns})

    @cached_property
    def _beginnings(self) -> set[str]:
        """What may go on to be a longer name: fire, hot, and of long names also hot_dog."""
        names = {name for some in (*self._widened.senses.values(), *self.wordnet.irregular.values()) for name in some}
        parts = (name.split("_") for name in names)
        return {"_".join(words[:count]) for words in parts for count in range(1, len(words))}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer)


def read_wordnet(path: Path | None = None) -> WordNet:
    """From a folder or a zip, all of it, in a second; where none is named, from NLTK's data or Debian's package."""
    files = _files(path)
    senses = {part: _senses(files, part) for part in ENDINGS}
    return WordNet(senses, {part: _irregular(files, part) for part in ENDINGS})


def _files(path: Path | None) -> Traversable:
    places = [path] if path else [*_in_nltk(), DEBIAN]
    for place in places:
        if place.is_dir():
            return place
        if place.is_file():
            return _of_zip(place)
    raise UserError(
        f"there is no WordNet in {', '.join(map(str, places))}: "
        "`python -m nltk.downloader wordnet` or `apt-get install wordnet-base` gets it"
    )


def _in_nltk() -> list[Path]:
    """Where NLTK would look, which its environment may say."""
    try:
        from nltk.data import path as folders  # type: ignore[import-untyped]
    except ImportError:
        folders = [Path.home() / "nltk_data"]
    return [Path(folder, "corpora", name) for folder in folders for name in ("wordnet", "wordnet.zip")]


def _of_zip(path: Path) -> Traversable:
    try:
        return zipfile.Path(path, f"{path.stem}/")
    except zipfile.BadZipFile as error:
        raise UserError(f"{path} is no zip of WordNet: {error}") from None


def _senses(files: Traversable, part: str) -> dict[str, tuple[Synset, ...]]:
    synsets, found = _synsets(files, part), dict[str, tuple[Synset, ...]]()
    index, unseen = f"index.{part}", set(synsets)
    for number, _, line in _lines(files, index):
        try:
            lemma, _, count, *rest = line.split()
            places = [int(place) for place in rest[-int(count) :]]
            if rest[-int(count) - 2] != count:  # as it is said again
                raise ValueError(line)
            found[lemma] = tuple(synsets[place] for place in places)
        except (ValueError, LookupError):
            raise _damage(files / index, number, f"is no word with synsets of data.{part}") from None
        unseen.difference_update(places)
    if unseen or not found:
        lost = f"its words lack synset {min(unseen):08} of data.{part}" if unseen else "it has no words"
        raise UserError(f"{files / index} was cut: {lost}")
    return found


def _synsets(files: Traversable, part: str) -> dict[int, Synset]:
    found = dict[int, Synset]()
    for number, place, line in _lines(files, f"data.{part}"):
        try:
            found[place] = _synset(line, place)
        except ValueError:
            raise _damage(files / f"data.{part}", number, "is no synset of WordNet") from None
    return found


def _synset(line: str, place: int) -> Synset:
    fields, bar, _ = line.partition("|")
    name, _, _, count, *rest = fields.split()
    words = rest[: 2 * int(count, 16) : 2]
    if not bar or int(name) != place or len(words) != int(count, 16):
        raise ValueError(line)
    return tuple(word.partition("(")[0].lower() for word in words)  # of adjectives, which say where they may stand


def _irregular(files: Traversable, part: str) -> dict[str, tuple[str, ...]]:
    found = dict[str, tuple[str, ...]]()
    for number, _, line in _lines(files, f"{part}.exc"):
        form, *bases = line.split()
        if not bases:
            raise _damage(files / f"{part}.exc", number, "has no base form")
        found[form] = (*found.get(form, ()), *bases)
    return found


def _lines(files: Traversable, name: str) -> Iterator[tuple[int, int, str]]:
    """The number of each line, the byte at which it starts, and what it says; without the licence."""
    data, place = _read(files, name), 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if line and place + len(line) == len(data):
            raise _damage(files / name, number, "has no end")
        if line.strip() and not line.startswith(b" "):
            try:
                yield number, place, line.decode()
            except UnicodeDecodeError:
                raise _damage(files / name, number, "is no text") from None
        place += len(line) + 1


def _damage(file: Traversable, number: int, what: str) -> UserError:
    return UserError(f"{file}, line {number} {what}: it was cut or changed, so get WordNet again")


def _read(files: Traversable, name: str) -> bytes:
    try:
        return (files / name).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{files} has no {name}, so it is no WordNet, or a part of one") from None
    except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # encrypted, or of an unknown method
        raise UserError(f"{files / name} cannot be read: {error}") from None


def _lemma(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").split())
