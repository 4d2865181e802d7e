"""WordNet: synonyms, and the concepts that a caption names by them (docs/models.md#concept-baseline).

WordNet is a folder or zip of these files for each part of speech, as wndb(5WN) describes them: the `wordnet` of NLTK's
data, Debian's `wordnet-base`, or others.

    data.noun     02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 023 @ 02083346 n 0000 … | a member of …
    index.noun    dog n 7 5 @ ~ #m #p %p 7 1 02084071 10114209 10023039 09886220 07676602 03901548 02710044
    noun.exc      wolves wolf

A synset's name is the byte at which its line starts in `data`. Lines of the licence start with a blank.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from xmodal.errors import UserError
from xmodal.text.tokenizers import Tokenizer, tokenizer

T = TypeVar("T")
Synset = tuple[str, ...]  # its lemmas, in lower case, with _ between words
DEBIAN = Path("/usr/share/wordnet")
ENDINGS = {  # of inflected forms with that of the base, see morphy(7WN)
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}
_CLOSED_CLASSES = """
    a an the this that these those i me my you your he him his she her it its we us our they them their who whom whose
    which what and or but nor if as at by for from in into of off on onto out over to up down with than so no not
    am is are was were be been being do does did has have had having
"""
FUNCTION_WORDS = frozenset(_CLOSED_CLASSES.split())
FORMS = 1 << 16  # of which concepts are remembered


@dataclass(frozen=True, eq=False)
class WordNet:
    senses: Mapping[str, Mapping[str, tuple[Synset, ...]]]  # by part of speech and lemma, the commonest first
    irregular: Mapping[str, Mapping[str, tuple[str, ...]]]  # base forms, by part of speech and form

    def __repr__(self) -> str:
        return f"<WordNet: {sum(map(len, self.senses.values())):,} lemmas>"

    def synonyms(self, word: str) -> set[str]:
        """All lemmas of all synsets of a word, or of words joined by _."""
        found = (self.senses[part][base] for part in ENDINGS for base in self.bases(word, part))
        return {lemma for senses in found for synset in senses for lemma in synset}

    def bases(self, word: str, part: str) -> list[str]:
        """The lemmas that a word is a form of: itself, then those by the rules of WordNet's Morphy."""
        rules = (rule.split(":") for rule in ENDINGS[part].split())
        regular = (word.removesuffix(ending) + base for ending, base in rules if word.endswith(ending))
        forms = self.irregular[part].get(word, regular)
        return [form for form in dict.fromkeys((word, *forms)) if form in self.senses[part]]


@dataclass(frozen=True, eq=False)
class Concepts:
    names: tuple[str, ...]
    wordnet: WordNet
    tokenizer: str = "nltk"

    def __post_init__(self) -> None:
        seen = dict[str, str]()
        for name in self.names:
            if (lemma := _lemma(name)) in seen or not lemma:
                raise ValueError(f"concept {name!r} is empty, or the same as {seen.get(lemma)!r}")
            seen[lemma] = name

    def __repr__(self) -> str:
        return f"<Concepts: {len(self):,}, by the tokenizer {self.tokenizer}>"

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, caption: str) -> NDArray[np.int32]:
        """The positions of the concepts that a caption names."""
        words = [word.lower() for word in self._split(caption)]
        found = {position for form in self._forms(words) for position in self._positions_of(form)}
        return np.array(sorted(found), np.int32)

    def k_hot(self, captions: Sequence[str]) -> NDArray[np.float32]:
        """(captions, concepts)"""
        queries = np.zeros((len(captions), len(self)), np.float32)
        for query, caption in zip(queries, captions, strict=True):
            query[self.encode(caption)] = 1
        return queries

    def _forms(self, words: list[str]) -> Iterator[str]:
        """Yields words but function words, and runs of words that may be a name."""
        for start, form in enumerate(words):
            if form not in FUNCTION_WORDS:
                yield form
            for word in words[start + 1 :]:
                if form not in self._beginnings:
                    break
                form = f"{form}_{word}"
                yield form

    @cached_property
    def _positions_of(self) -> Callable[[str], list[int]]:
        positions = {_lemma(name): position for position, name in enumerate(self.names)}
        synonyms = self._widened.synonyms
        return lru_cache(FORMS)(lambda form: [positions[lemma] for lemma in synonyms(form) if lemma in positions])

    @cached_property
    def _widened(self) -> WordNet:
        """Adds names that WordNet lacks as nouns, for their plurals."""
        names = map(_lemma, self.names)
        nouns = {name: ((name,),) for name in names} | dict(self.wordnet.senses["noun"])
        return replace(self.wordnet, senses={**self.wordnet.senses, "noun": nouns})

    @cached_property
    def _beginnings(self) -> set[str]:
        """The beginnings of longer names: hot and hot_dog of hot_dog_stand."""
        names = {name for some in (*self._widened.senses.values(), *self.wordnet.irregular.values()) for name in some}
        parts = (name.split("_") for name in names)
        return {"_".join(words[:count]) for words in parts for count in range(1, len(words))}

    @cached_property
    def _split(self) -> Tokenizer:
        return tokenizer(self.tokenizer)


NO_WORDNET = WordNet({part: {} for part in ENDINGS}, {part: {} for part in ENDINGS})


def wordnet_sha256(path: Path | None = None) -> str:
    """Hashes what `read_wordnet` reads."""
    files = _files(path)
    names = (name for part in ENDINGS for name in (f"data.{part}", f"index.{part}", f"{part}.exc"))
    digests = (hashlib.sha256(_bytes(files, name)).digest() for name in names)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def read_wordnet(path: Path | None = None) -> WordNet:
    """Reads a folder or zip; without a path, NLTK's data or Debian's package."""
    files = _files(path)
    senses = {part: _senses(files, part) for part in ENDINGS}
    return WordNet(senses, {part: _irregular(files, part) for part in ENDINGS})


def _files(path: Path | None) -> Traversable:
    try:
        from nltk.data import path as folders
    except ImportError:
        folders = [Path.home() / "nltk_data"]
    in_nltk = [Path(folder, "corpora", name) for folder in folders for name in ("wordnet", "wordnet.zip")]
    places = [path] if path else [*in_nltk, DEBIAN]
    for place in places:
        if place.is_dir():
            return place
        if place.is_file():
            try:
                return zipfile.Path(place, f"{place.stem}/")
            except zipfile.BadZipFile as error:
                raise UserError(f"{place} is no zip of WordNet: {error}") from None
    cure = "`python -m nltk.downloader wordnet` or `apt-get install wordnet-base` gets it"
    raise UserError(f"there is no WordNet in {', '.join(map(str, places))}: {cure}")


def _senses(files: Traversable, part: str) -> dict[str, tuple[Synset, ...]]:
    synsets = dict(_parsed(files, f"data.{part}", _synset, "is no synset of WordNet"))

    def word(place: int, line: str) -> tuple[str, list[int]]:
        lemma, _, count, *rest = line.split()
        places = [int(number) for number in rest[-int(count) :]]
        if rest[-int(count) - 2] != count or not synsets.keys() >= set(places):  # a line has the count twice
            raise ValueError(line)
        return lemma, places

    index = dict(_parsed(files, f"index.{part}", word, f"is no word with synsets of data.{part}"))
    unseen = synsets.keys() - set(chain.from_iterable(index.values()))
    if unseen or not index:
        lost = f"its words lack synset {min(unseen):08} of data.{part}" if unseen else "it has no words"
        raise UserError(f"{files / f'index.{part}'} was cut: {lost}")
    return {lemma: tuple(synsets[place] for place in places) for lemma, places in index.items()}


def _synset(place: int, line: str) -> tuple[int, Synset]:
    fields, bar, _ = line.partition("|")
    name, _, _, count, *rest = fields.split()
    words = rest[: 2 * int(count, 16) : 2]
    if not bar or int(name) != place or len(words) != int(count, 16):
        raise ValueError(line)
    return place, tuple(word.partition("(")[0].lower() for word in words)  # some adjectives end with a mark: afloat(p)


def _irregular(files: Traversable, part: str) -> dict[str, tuple[str, ...]]:
    def bases_of(place: int, line: str) -> tuple[str, list[str]]:
        form, base, *others = line.split()
        return form, [base, *others]

    found = dict[str, tuple[str, ...]]()
    for form, bases in _parsed(files, f"{part}.exc", bases_of, "has no base form"):
        found[form] = (*found.get(form, ()), *bases)
    return found


def _parsed(files: Traversable, name: str, parse: Callable[[int, str], T], wrong: str) -> Iterator[T]:
    """Parses lines by the byte at which each starts."""
    file, data, place = files / name, _bytes(files, name), 0
    for number, line in enumerate(data.split(b"\n"), 1):
        damage = ""
        if line and place + len(line) == len(data):
            damage = "has no end"
        elif line.strip() and not line.startswith(b" "):
            try:
                yield parse(place, line.decode())
            except UnicodeDecodeError:
                damage = "is no text"
            except (ValueError, LookupError):
                damage = wrong
        if damage:
            raise UserError(f"{file}, line {number} {damage}: it was cut or changed, so get WordNet again")
        place += len(line) + 1


def _bytes(files: Traversable, name: str) -> bytes:
    try:
        return (files / name).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{files} has no {name}, so it is no WordNet, or a part of one") from None
    except (OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # encrypted, or of an unknown method
        raise UserError(f"{files / name} cannot be read: {error}") from None


def _lemma(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").split())
