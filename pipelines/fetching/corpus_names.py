"""Finds the corpus that a command names, and keeps what a root remembers of the names of users' corpora.

A name's NOTE says where a user's list, its pictures or a Python file lie. Listing the corpora of a root executes no
file. A name belongs to the list that was last parsed under it: another list is refused, a grown one is accepted, and
one that cannot be read changes nothing.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.fetching.fetcher import RawFolder
from pipelines.fetching.ledger import Ledger
from pipelines.fetching.list_changes import GONE, checksum_of, describe_files, describe_items, file_changes
from pipelines.fetching.user_lists import LISTS, ListedFiles, describe, find_lists
from xmodal import corpora
from xmodal.corpora import SAMPLE, Corpus, Source, sample_of
from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw, raw_of
from xmodal.raw.readers import ending, has_column
from xmodal.records.tables import read_columns
from xmodal.records.views import splits
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import blob_key, read_lock, records_now, sealed_now
from xmodal.root.storage import Storage
from xmodal.userdata.description import DESCRIPTION, Description
from xmodal.userdata.user_corpus import BESIDE, user_corpus

NOTE = "_runs/own/{}.json"
GENERATED = "_runs/publishers/{}.json"  # in roots of the demo: sources in place of those that corpora pin
LARGEST_NOTE = 2**20  # bytes
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
MEASURED = ("val", "test")  # the ends of the names of splits that numbers are computed on
LOST = "it is your own list, but this root no longer knows where it is: build it by the list's path"
FEW = 10  # items, of which a recall says nothing
SAMPLE_HINT = "a sample, which may be any part of the corpus: its sizes, checksums and counts are not checked"


@dataclass(frozen=True)
class FoundCorpus:
    corpus: Corpus
    place: str | None = None  # of the list or Python file that a build gives the name to
    media_folder: Path | None = None  # searched, but for archives, where no --raw is given
    follow_links: bool = True  # that lead out of it
    lists: Mapping[str, Path] = field(default_factory=dict)  # annotations by their paths


def find_corpus(text: str, flags: Mapping[str, str], storage: Storage, is_sample: bool = False) -> FoundCorpus:
    """`flags` tell columns and splits of a user's data."""
    if text not in corpora.names() and is_data(text, flags, storage):
        if is_sample:
            raise UserError(f"--sample is for a corpus that says how much is in it: {text} is read as it is")
        return _of_lists(text, flags, storage)
    for flag in flags:
        if place := text not in corpora.names() and _place(storage, text):
            raise UserError(f"--{flag} is said with the list itself, so name {place} --name {text} in place of {text}")
        raise UserError(f"--{flag} is for data of your own: a list, a folder or hf://…, which {text} is not")
    if text.endswith(".py"):
        return _of_file(text, storage, is_sample)
    found = _by_name(text, storage)
    return FoundCorpus(sample_of(found.corpus)) if is_sample and not found.corpus.sample else found


def is_data(text: str, flags: Mapping[str, str], storage: Storage) -> bool:
    """Whether a target is a list, folder or dataset; a name is a folder only if its lists lie there."""
    folder = Path(text).expanduser()
    if text.startswith("hf://") or ending(text):
        return True
    if not folder.is_dir() or flags or "/" in text or not (known := description_of(storage, text)):
        return folder.is_dir()
    found = [file.path for file in known.files if (folder / file.path).is_file()]
    return any(path in LISTS or ending(path) in (".parquet", ".arrow") for path in found)


def name_of(text: str, storage: Storage) -> str:
    if text.endswith(".py"):
        return corpora.load(text).name
    path = os.path.expanduser(text)
    noted = _noted(storage) if os.path.exists(path) else []
    return next((name for name in noted if _same(path, _place(storage, name))), text)


def user_corpora(storage: Storage) -> list[Corpus]:
    """Corpora that a file defines can only be listed."""
    names = storage.names("_runs/ledger/sources")
    found = [user_corpus(known) for name in names if (known := description_of(storage, name))]
    for name in _noted(storage):
        if about := note_of(storage, name).get("about"):
            sources = tuple(Source(path, how=how) for path, how in about.pop("by_hand").items())
            kinds = frozenset(about.pop("kinds"))
            found.append(Corpus(name, **about, sources=sources, parse=lambda raw: iter(()), kinds=kinds))
    return found


def description_of(storage: Storage, name: str) -> Description | None:
    if raw := _annotations(storage, name):
        with raw.open(DESCRIPTION) as file:
            return Description.from_json(file.read())
    return None


@contextmanager
def building(storage: Storage, found: FoundCorpus) -> Iterator[None]:
    """Gives the corpus' name to the file at its place, or to the list there unless its build fails."""
    corpus, place = found.corpus, found.place
    if not place or place.endswith(".py"):
        if (place or corpus.sample) and corpus.name not in corpora.names():
            about: dict[str, Any] = {one: getattr(corpus, one) for one in ("homepage", "licence", "media_set")}
            about["kinds"] = sorted(corpus.kinds)
            about["by_hand"] = {source.path: source.how for source in corpus.sources if source.url is None}
            _write_note(storage, corpus.name, {"place": place or _place(storage, corpus.name), "about": about})
        yield
        return
    ledger, is_done, noted = Ledger(storage, "annotations", corpus.name), False, note_of(storage, corpus.name)
    before = ledger.sealed
    note: dict[str, Any] = {"place": place} | ({"follow_links": True} if found.follow_links else {})
    if found.media_folder and not _same(str(found.media_folder), str(_media_folder(note))):
        note["folder"] = os.path.abspath(found.media_folder)
    _write_note(storage, corpus.name, note)  # before anything is sealed: this process may be killed
    try:
        yield
        is_done = True
    finally:
        sealed, made = ledger.sealed, records_now(storage, corpus.name)
        parsed = made.about["inputs"][0]["identity"] if made else None
        if not is_done and (parsed != sealed or sealed == before):
            _write_note(storage, corpus.name, noted or (note if sealed else {}))
            if parsed and _is_whole(Output(storage, f"sources/{parsed}")):
                ledger.use(parsed)


def _is_whole(sealed: Output) -> bool:
    """Whether all its bytes are here; damaged ones may have been forgotten."""
    blobs = (blob_key(locked.sha256) for locked in read_lock(sealed) if locked.sha256)
    return sealed.complete and all(sealed.storage.size(blob) is not None for blob in blobs)


def hints(storage: Storage, found: FoundCorpus, of_clips: bool) -> list[str]:
    """Says after a build what a user may have meant otherwise."""
    name, hints = found.corpus.name, [SAMPLE_HINT] if found.corpus.sample else []
    description, raw, records = description_of(storage, name), _annotations(storage, name), records_now(storage, name)
    if description and raw and records:
        hints += _hints_of_lists(description, raw, records) if found.place else []
        kinds = read_columns(records, "items.parquet", "kind")["kind"].to_pylist() if of_clips else []
        if others := len(kinds) - kinds.count("clip"):
            total = f"{others:,} of {len(kinds):,} items"
            hints.append(f"{total} are not taken for clips, by their names: --kind clip takes all")
    return [f"{name}: {hint}" for hint in hints]


def _hints_of_lists(description: Description, raw: Raw, records: Output) -> list[str]:
    path = description.files[0].path
    unused = [one for one in ("split", "id") if getattr(description, one) is None and has_column(raw, path, one)]
    hints = [f"the column {one!r} is not used: --{one} {one} takes it" for one in unused]
    sizes = {name: len(items) for name, items in splits(records).items() if name.endswith(MEASURED)}
    sizes |= {part: 0 for part in MEASURED if not any(name.endswith(part) for name in sizes)}
    if few := [f"{size} in {name}" for name, size in sizes.items() if size <= FEW]:
        how = "--splits train=0.8,val=0.1,test=0.1 divides by hash"
        how += (
            f", in place of the column {description.split!r}"
            if description.split
            else ", --split COLUMN takes your own"
        )
        hints.append(f"items {', '.join(few)}: train asks for val, evaluate for test, and R@10 of {FEW} is 100; {how}")
    return hints


def _of_lists(text: str, flags: Mapping[str, str], storage: Storage) -> FoundCorpus:
    found = find_lists(text, flags.get("captions"), "follow-links" in flags)
    name = flags.get("name") or re.sub(r"[^A-Za-z0-9._-]+", "-", found.name).strip("-._")
    if not name:
        raise UserError(f"{text} gives no name of letters and digits: give one with --name")
    if name in corpora.names():
        raise UserError(f"{name} is a corpus already: give yours another name with --name")
    known, before = description_of(storage, name), _place(storage, name)
    if before and not _same(before, found.place):  # there the same paths may be other pictures
        if _is_there(before):
            raise UserError(f"{name} is {before} here: give {found.place} a name of its own with --name")
        same_bytes = known and [file.sha256 for file in known.files] == [file.sha256 for file in found.files]
        if known and not same_bytes and "name" not in flags:
            moved = f"if {found.place} is that list, moved, give it --name {name}, else another name"
            raise UserError(f"{name} was {before} here, which is gone: {moved}")
    follows = "follow-links" in flags or note_of(storage, name).get("follow_links") is True
    return _described(name, found, flags, known, follows)


def _described(
    name: str, found: ListedFiles, flags: Mapping[str, str], known: Description | None, follows: bool
) -> FoundCorpus:
    try:
        corpus = user_corpus(describe(name, found, flags, known), found.addresses)
    except ValueError as error:
        raise UserError(f"{found.place}: {error}") from None
    if found.paths:  # what cannot be read is refused before anything is written
        next(corpus.parse(Raw.of_files(found.paths)))
    return FoundCorpus(corpus, found.place, found.folder, follows, found.paths)


def at_present(found: FoundCorpus, storage: Storage) -> tuple[FoundCorpus, str]:
    """A user's list as it lies there now, and what has changed since the root read it; other corpora are as found."""
    name = found.corpus.name
    known, raw = description_of(storage, name), _annotations(storage, name)
    if not known or not raw:
        return found, ""
    try:
        now = found if found.place else _as_it_lies(storage, name, known)
        if now is None or not now.lists or now.corpus.sources[1:] == user_corpus(known).sources[1:]:
            return found, "" if found.place else _what_is_gone(note_of(storage, name))
        rows = user_corpus(known).parse(raw), now.corpus.parse(Raw.of_files(now.lists))
        return now, f"{now.place} has changed: {describe_items(*rows) or 'the same items as before'}"
    except UserError as error:
        how = "" if found.place else f"{_place(storage, name)} cannot be read, so it stays as it was: {error}"
        return found, how


def _what_is_gone(note: Mapping[str, Any]) -> str:
    if not note.get("place"):
        return LOST
    for what, place in (("list", note.get("place") or ""), ("folder", note.get("folder") or "")):
        if os.path.isabs(place) and not os.path.exists(place):
            return f"the {what} is no longer at {place}: what was built of it stays; name its new place"
    return ""


def _as_it_lies(storage: Storage, name: str, known: Description) -> FoundCorpus | None:
    """The list that a name remembers; None if it is gone, or came with the root."""
    note = note_of(storage, name)
    place, follows = Path(note.get("place") or ""), note.get("follow_links") is True
    folder = place if place.is_dir() else place.parent
    is_there = place.is_absolute() and any((folder / file.path).is_file() for file in known.files)
    if not is_there or place.resolve().is_relative_to(storage.url):
        return None
    checksum = partial(checksum_of, Ledger(storage, "annotations", name))
    lists = find_lists(str(place), None, follows, checksum)
    return _described(name, replace(lists, folder=_media_folder(note)), {}, known, follows)


def changes(storage: Storage, names: Collection[str] = ()) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Says what a build would take anew of users' lists, or of `names` alone, and their files; then what it cannot."""
    taken, kept = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name in names or _users_names(storage):
        try:
            for said, is_taken in _changes(storage, name) if description_of(storage, name) else ():
                if said:
                    (taken if is_taken else kept)[name].append(said)
        except (UserError, OSError) as trouble:  # one that cannot be read does not hide the others
            kept[name].append(str(trouble))
    return dict(taken), dict(kept)


def _changes(storage: Storage, name: str) -> Iterator[tuple[str, bool]]:
    found = _by_name(name, storage)
    now, said = at_present(found, storage)
    yield said, now is not found
    sealed = sealed_now(storage, "media", name)
    if sealed and found.media_folder:
        listed = (Source(locked.path, how=BESIDE, part="media") for locked in read_lock(sealed))
        raw = RawFolder(found.media_folder, [], whole_paths=True, follow_links=found.follow_links)
        changed = file_changes(listed, Ledger(storage, "media", name), raw)
        yield describe_files(one for one in changed if one.how != GONE), True
        yield describe_files(one for one in changed if one.how == GONE), False  # a build keeps those


def _of_file(text: str, storage: Storage, is_sample: bool) -> FoundCorpus:
    corpus, place = corpora.load(text), str(Path(text).expanduser().resolve())
    if corpus.name in corpora.names():
        raise UserError(
            f"{corpus.name} is a corpus already: name it without a file, or give the CORPUS of {text} another name"
        )
    corpus = sample_of(corpus) if is_sample else corpus
    before = _place(storage, corpus.name)
    if before and _is_there(before) and not _same(before, place):
        raise UserError(f"{corpus.name} is {before} here: give the CORPUS of {text} another name")
    return FoundCorpus(corpus, place)


def _by_name(name: str, storage: Storage) -> FoundCorpus:
    if name in corpora.names():
        corpus, generated = corpora.load(name), GENERATED.format(name)
        if storage.size(generated) is None:
            return FoundCorpus(corpus)
        facts = json.loads(storage.read(generated))
        return FoundCorpus(as_published(corpus, facts), media_folder=Path(facts["folder"]))
    before, whole = _place(storage, name), name.removesuffix(SAMPLE)
    if known := description_of(storage, name):
        note = note_of(storage, name)
        return FoundCorpus(user_corpus(known), None, _media_folder(note), note.get("follow_links") is True)
    if before and before.endswith(".py"):
        return FoundCorpus(_of_noted_file(storage, name, before))
    if whole != name and whole in corpora.names():
        return FoundCorpus(sample_of(corpora.load(whole)))
    yours = sorted(corpus.name for corpus in user_corpora(storage))
    if meant := get_close_matches(name, [*corpora.names(), *yours], n=1):
        raise UserError(f"no corpus {name!r}; did you mean {meant[0]}?")
    return FoundCorpus(corpora.load(name))  # which says what there is


def _of_noted_file(storage: Storage, name: str, place: str) -> Corpus:
    if not os.path.isabs(place) or Path(place).resolve().is_relative_to(storage.url):  # the root's author wrote it too
        raise UserError(f"{name} was defined by {place}, a file of this root: name that file if you trust what it runs")
    if not os.path.exists(place):
        raise UserError(f"{name} was defined by {place}, which is gone: build once from the file where it lies now")
    corpus = corpora.load(place)
    for found in (corpus, sample_of(corpus)):
        if found.name == name:
            return found
    raise UserError(f"{place} defines {corpus.name} now, and {name} no longer: name the file in place of {name}")


def _noted(storage: Storage) -> list[str]:
    return [name.removesuffix(".json") for name in storage.names(os.path.dirname(NOTE))]


def _users_names(storage: Storage) -> list[str]:
    """Names that notes or ledgers have: a note may be lost."""
    fetched = {*storage.names("_runs/ledger/sources")} - {*corpora.names()}
    return sorted({*_noted(storage)} | fetched)


def note_of(storage: Storage, name: str) -> dict[str, Any]:
    """The `place` of a name, and facts `about` that of a file or a sample."""
    key = NOTE.format(name)
    if not re.fullmatch(NAME, name) or (storage.size(key) is None and not storage.is_irregular(key)):
        return {}
    try:
        note = json.loads(storage.read(key, LARGEST_NOTE))
    except (ValueError, RecursionError, UserError):
        note = None
    if not isinstance(note, dict) or not all(isinstance(note.get(key), str | None) for key in ("place", "folder")):
        lost = f"this root no longer knows where {name} is: {storage.url}/{key} cannot be read"
        raise UserError(f"{lost}; delete it, and build once by the path of your list or file")
    return note


def _media_folder(note: Mapping[str, Any]) -> Path | None:
    """The folder of the pictures of a list that is still there."""
    place = Path(note.get("place") or "")
    folder = Path(note.get("folder") or (place if place.is_dir() else place.parent))
    return folder if place.is_absolute() and place.exists() and folder.is_dir() else None


def _place(storage: Storage, name: str) -> str | None:
    return note_of(storage, name).get("place")


def _write_note(storage: Storage, name: str, note: Mapping[str, Any]) -> None:
    if not note:
        storage.delete(NOTE.format(name))
    elif note != note_of(storage, name):  # the root may be read-only
        storage.write(NOTE.format(name), json.dumps(note).encode())


def _is_there(place: str) -> bool:
    return place.startswith("hf://") or os.path.exists(place)


def _same(one: str, other: str | None) -> bool:
    """Whether two places are one, or Python files with the same bytes."""
    if one == other or not other or not (os.path.exists(one) and os.path.exists(other)):
        return one == other
    if one.endswith(".py") and other.endswith(".py"):
        return Path(one).read_bytes() == Path(other).read_bytes()
    return os.path.samefile(one, other)


def _annotations(storage: Storage, name: str) -> Raw | None:
    """The sealed lists of a user's corpus, and their description."""
    sealed = sealed_now(storage, "sources", name) if re.fullmatch(NAME, name) else None
    raw = raw_of(sealed) if sealed else None
    return raw if raw and DESCRIPTION in raw else None


def published_facts(corpus: Corpus) -> dict[str, Any]:
    return {"sources": [asdict(source) for source in corpus.sources], "counts": dict(corpus.counts)}


def as_published(corpus: Corpus, facts: Mapping[str, Any]) -> Corpus:
    lists = [{name: tuple(source.get(name, ())) for name in ("mirrors", "members")} for source in facts["sources"]]
    sources = tuple(Source(**source | some) for source, some in zip(facts["sources"], lists, strict=True))
    return replace(corpus, sources=sources, counts=facts["counts"])


def remember_generated(storage: Storage, corpus: Corpus, folder: Path) -> None:
    """Makes later commands build this root from generated files."""
    facts = published_facts(corpus) | {"folder": str(folder.absolute())}
    storage.write(GENERATED.format(corpus.name), json.dumps(facts).encode())
