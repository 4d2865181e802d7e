"""Finds the corpus that a command names: one of this package, one of a user's file or list, or a sample of one.

A root remembers in NOTE where the list or Python file of a name lies, so that every command takes the name of what was
built once. A file is executed only by commands that name its corpus: what lists the corpora of a root executes nothing.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from pipelines.fetching import generated_publishers, user_lists
from pipelines.fetching.user_lists import NOTE, UserCorpus, read_note
from xmodal import corpora
from xmodal.corpora import SAMPLE, Corpus, Source, sample_of
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.root.storage import Storage

SAMPLE_NOTE = "{}: a sample, which may be any part of the corpus: no size, checksum or count of the whole is asked for"


def find_corpus(text: str, flags: Mapping[str, str], storage: Storage, is_sample: bool = False) -> UserCorpus:
    """The corpus that `text` names: a name, a Python file, or data of a user, of which `flags` tell columns and splits.

    A sample is named with the whole corpus and `is_sample`, or by its own name.
    """
    if text not in corpora.names() and user_lists.is_data(text, flags, storage):
        if is_sample:
            raise UserError(f"--sample is for a corpus that says how much is in it: {text} is read as it is")
        return user_lists.describe(text, flags, storage)
    if flags:
        flag = next(iter(flags))
        raise UserError(f"--{flag} is for data of your own: a list, a folder or hf://…, which {text} is not")
    if text.endswith(".py"):
        return _of_file(text, storage, is_sample)
    found = _by_name(text, storage)
    return UserCorpus(sample_of(found.corpus)) if is_sample and not found.corpus.sample else found


def name_of(text: str, storage: Storage) -> str:
    """The name under which a root has a corpus, for commands that read its records alone; nothing is looked at."""
    if text.endswith(".py"):
        return corpora.load(text).name
    path = Path(text).expanduser()
    for name in _noted(storage) if path.exists() else ():
        place = str(read_note(storage, name).get("place"))
        if os.path.exists(place) and path.samefile(place):
            return name
    return text


def user_corpora(storage: Storage) -> list[Corpus]:
    """The corpora of users that a root remembers; of one that a file defines, what the last build wrote down."""
    lists = [corpus for name in user_lists.names(storage) if (corpus := user_lists.remembered(storage, name))]
    abouts = {name: read_note(storage, name).get("about") for name in _noted(storage)}
    return [*lists, *(_as_noted(name, about) for name, about in abouts.items() if about)]


@contextmanager
def building(storage: Storage, corpus: Corpus, place: str | None) -> Iterator[None]:
    """A build of a corpus, after which its name means the list or file at `place`."""
    is_file = place is not None and place.endswith(".py")
    if (is_file or corpus.sample) and corpus.name not in corpora.names():
        before = read_note(storage, corpus.name)
        about = {
            "homepage": corpus.homepage,
            "licence": corpus.licence,
            "media_set": corpus.media_set,
            "kinds": sorted(corpus.kinds),
            "by_hand": {source.path: source.how for source in corpus.sources if source.url is None},
        }
        note = {"place": place or before.get("place"), "about": about}
        if note != before:  # the root may be read-only
            storage.write(NOTE.format(corpus.name), json.dumps(note).encode())
    with user_lists.binding_name(storage, corpus.name, None if is_file else place):
        yield


def _of_file(text: str, storage: Storage, is_sample: bool) -> UserCorpus:
    whole = corpora.load(text)
    corpus, place = sample_of(whole) if is_sample else whole, str(Path(text).expanduser().resolve())
    before = read_note(storage, corpus.name).get("place") or place
    is_there = before.startswith("hf://") or os.path.exists(before)
    if is_there and not _are_same(before, place) and corpus.name not in corpora.names():
        raise UserError(f"{corpus.name} is {before} here: give the CORPUS of {text} another name")
    return UserCorpus(corpus, place)


def _are_same(one: str, other: str) -> bool:
    """Whether two Python files are one, or have the same bytes."""
    return one == other or (one.endswith(".py") and Path(one).read_bytes() == Path(other).read_bytes())


def _by_name(name: str, storage: Storage) -> UserCorpus:
    if name in corpora.names():
        generated = generated_publishers.recall(storage, corpora.load(name))
        return UserCorpus(generated.corpus, None, generated.folder) if generated else UserCorpus(corpora.load(name))
    if known := user_lists.remembered(storage, name):
        return UserCorpus(known, media_folder=user_lists.folder_of(storage, name))
    place, base = str(read_note(storage, name).get("place")), name.removesuffix(SAMPLE)
    if place.endswith(".py"):
        return UserCorpus(_of_noted_file(name, place))
    if base != name and base in corpora.names():
        return UserCorpus(sample_of(corpora.load(base)))
    yours = {*user_lists.names(storage), *_noted(storage)}
    if meant := get_close_matches(name, [*corpora.names(), *sorted(yours)], n=1):
        raise UserError(f"no corpus {name!r}; did you mean {meant[0]}?")
    return UserCorpus(corpora.load(name))  # which says what there is


def _of_noted_file(name: str, place: str) -> Corpus:
    if not os.path.exists(place):
        cure = "name the file where it lies now, and build it once"
        raise UserError(f"{name} was defined by {place}, which is gone: {cure}")
    corpus = corpora.load(place)
    if corpus.name != name and name.endswith(SAMPLE):
        corpus = sample_of(corpus)
    if corpus.name != name:
        raise UserError(f"{place} defines {corpus.name} now, and {name} no longer: name the file in place of {name}")
    return corpus


def _as_noted(name: str, about: Any) -> Corpus:
    return Corpus(
        name,
        about["homepage"],
        about["licence"],
        about["media_set"],
        tuple(Source(path, how=how) for path, how in about["by_hand"].items()),
        _not_executed,
        kinds=frozenset(about["kinds"]),
    )


def _not_executed(raw: Raw) -> NoReturn:
    raise AssertionError("a corpus that is only listed is not parsed")


def _noted(storage: Storage) -> list[str]:
    return [name.removesuffix(".json") for name in storage.names(os.path.dirname(NOTE))]
