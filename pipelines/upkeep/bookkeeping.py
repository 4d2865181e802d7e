"""Checks what a root notes of its outputs and files: ledgers, seals, places of users' lists, and commits."""

from collections.abc import Collection, Iterator
from contextlib import suppress

from pipelines.engine.commits import Commits
from pipelines.fetching.corpus_names import NOTE, note_of
from pipelines.fetching.ledger import ledgers
from xmodal.errors import UserError
from xmodal.root.outputs import directories
from xmodal.root.sealed_sets import RECORDS
from xmodal.root.storage import Storage

LONGEST_IDENTITY = 100  # bytes
NOTED_AGAIN = "--forget notes the files of the set in use anew"
NAMED_AGAIN = "delete it, and the next build writes it anew"
LIST_AGAIN = "delete it, and build once by the path of your list"
DONE_AGAIN = "delete it, and a build does again what it says"


def unreadable_notes(storage: Storage) -> Iterator[tuple[str, str]]:
    """The key of each note that cannot be read, and the cure."""
    for ledger in ledgers(storage):
        yield from ((key, NOTED_AGAIN) for key in ledger.damaged())
        yield from _identity(storage, f"{ledger.folder}/sealed")
    for corpus in storage.names(RECORDS.format("").rstrip("/")):
        yield from _identity(storage, RECORDS.format(corpus))
    own, _, ending = NOTE.partition("{}")
    for name in storage.names(own.rstrip("/")):
        try:
            note_of(storage, name.removesuffix(ending))
        except UserError:
            yield f"{own}{name}", LIST_AGAIN
    for output in directories(storage):
        yield from ((key, DONE_AGAIN) for key in Commits(storage, output.folder).damaged())


def forget_notes(storage: Storage, keys: Collection[str]) -> None:
    """Deletes notes that cannot be read; ledgers and commits are written anew from finished outputs."""
    storage.delete(*keys)
    folders = {key.rpartition("/")[0] for key in keys}
    for ledger in ledgers(storage):
        if ledger.folder in folders:
            with suppress(UserError):  # its set is damaged, and told so
                ledger.restore()
    for output in directories(storage):
        if any(folder.startswith(f"{output.folder}/_runs/") for folder in folders) and output.complete:
            with suppress(UserError):  # damaged itself, and told so
                Commits(storage, output.folder).restore(list(output.units()))


def _identity(storage: Storage, key: str) -> Iterator[tuple[str, str]]:
    is_sound = not storage.is_irregular(key)
    if is_sound and storage.size(key) is not None:
        with suppress(UserError):
            text = storage.read(key, LONGEST_IDENTITY).decode(errors="replace")
            is_sound = text.isalnum()
    if not is_sound:
        yield key, NAMED_AGAIN
