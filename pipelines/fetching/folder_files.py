"""Folders of pictures or clips without a list: finds the files, hashes them, and reads them where they lie.

Nothing is copied. A file whose size, times and inode are those of before keeps the checksum that a root has noted.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import BinaryIO

from pipelines.engine.journal import Journal
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.sealing import seal
from xmodal.errors import UserError
from xmodal.raw.archives import MissingMedia
from xmodal.raw.raw_files import Raw
from xmodal.records.media_kinds import CLIP_ENDINGS, PICTURE_ENDINGS
from xmodal.records.tables import Kind
from xmodal.root.checked_files import open_checked
from xmodal.root.files import sha256_of
from xmodal.root.identity import canonical_json, fingerprint
from xmodal.root.outputs import Output
from xmodal.root.sealed_sets import Locked, read_lock
from xmodal.root.storage import LocalStorage, Storage

HIDDEN, LINKS, UNREADABLE, SPECIAL = "hidden", "links", "unreadable folders", "pipes, devices or links to nothing"
NO_TEXT, NO_ENDING, STORES = "names not in UTF-8", "without an ending", "stores of features"
ONE = {LINKS: "link", UNREADABLE: "unreadable folder", SPECIAL: "pipe, device or link to nothing"}
ONE |= {NO_TEXT: "name not in UTF-8", STORES: "store of features"}
NAMES: Mapping[Kind, str] = {"image": "pictures", "clip": "clips"}
IMAGES = PICTURE_ENDINGS | {".gif"}  # its first frame, where pictures are asked for
JOURNAL = "_runs/files"
AT_ONCE = 4096  # files between two notes: a kill loses no more

Facts = tuple[str, int, int, int, int]  # path, size, mtime, ctime and inode: a file is read again if one has changed


@dataclass(frozen=True)
class FolderFiles:
    """Pictures or clips, by their paths below a folder; others are counted by what they are, or by their endings.

    `followed` has the links that led out of the folder to some of them, and where to.
    """

    folder: str
    kind: Kind
    paths: Sequence[str]
    left_out: Mapping[str, int]
    followed: Mapping[str, str]


def find_files(folder: str, kind: Kind | None, follow_links: bool, marker: str) -> FolderFiles:
    """Finds all pictures or all clips below a folder; folders in it that have the file `marker` are left out."""
    found, left_out = list[str](), Counter[str]()
    for path, why in _walk(folder, follow_links, marker):
        if why:
            left_out[why] += 1
        else:
            found.append(path)
    endings = Counter(_ending(path) for path in found)
    pictures, clips = (sum(endings[one] for one in some) for some in (PICTURE_ENDINGS, CLIP_ENDINGS))
    if pictures and clips and not kind:
        both = f"{folder} has {pictures:,} pictures and {clips:,} clips"
        raise UserError(f"{both}: --kind image takes the pictures and the first frames of GIFs, --kind clip the clips")
    kind = kind or ("clip" if clips else "image")
    taken = IMAGES if kind == "image" else CLIP_ENDINGS
    left_out.update({ending: count for ending, count in endings.items() if ending not in taken})
    paths = sorted(path for path in found if _ending(path) in taken)
    if not paths:
        others = ", ".join(describe_left_out(dict(left_out.most_common(5))))
        raise UserError(
            f"{folder} has no {NAMES[kind]}, by the endings of names{f'; there are: {others}' if others else ''}"
        )
    followed = _followed(folder, paths) if follow_links else {}
    return FolderFiles(folder, kind, paths, dict(left_out.most_common()), followed)


def _followed(folder: str, paths: Sequence[str]) -> dict[str, str]:
    parents = {str(parent) for path in paths for parent in PurePath(path).parents}
    links = [one for one in sorted({*paths, *parents}) if os.path.islink(os.path.join(folder, one))]
    home, led = os.path.realpath(folder), {link: os.path.realpath(os.path.join(folder, link)) for link in links}
    return {link: place for link, place in led.items() if not PurePath(place).is_relative_to(home)}


def describe_left_out(left_out: Mapping[str, int]) -> list[str]:
    return [f"{count:,} {ONE.get(what, what) if count == 1 else what}" for what, count in left_out.items()]


def _walk(folder: str, follow_links: bool, marker: str) -> Iterator[tuple[str, str]]:
    """Yields paths, and why they are left out or ''. Each folder comes once, under its own path if that is in here."""
    seen, waiting, linked = set[str](), [""], list[str]()
    home = os.path.realpath(folder)
    while waiting or linked:
        below = waiting.pop() if waiting else linked.pop(0)
        place = os.path.realpath(os.path.join(folder, below))
        if place in seen:
            yield below, LINKS
            continue
        seen.add(place)
        if os.path.exists(os.path.join(place, marker)):
            yield below, STORES
            continue
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except OSError:
            yield below, UNREADABLE
            continue
        for entry in entries:
            path, is_link = below + entry.name, entry.is_symlink()
            is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir()
            if is_folder and not entry.name.startswith(".") and (follow_links or not is_link):
                (linked if is_link else waiting).append(f"{path}/")
            else:
                yield path, _why_not(path, entry.path, is_link and not follow_links, home)


def _why_not(path: str, place: str, may_lead_out: bool, home: str) -> str:
    ending = _ending(path)
    if os.path.basename(path).startswith("."):
        return HIDDEN
    if may_lead_out and (os.path.isdir(place) or not PurePath(os.path.realpath(place)).is_relative_to(home)):
        return LINKS
    if not os.path.isfile(place):
        return SPECIAL
    if ending not in PICTURE_ENDINGS | CLIP_ENDINGS:
        return ending or NO_ENDING
    return NO_TEXT if path.encode(errors="ignore").decode() != path else ""


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def seal_files(storage: Storage, files: FolderFiles, progress: ProgressLine) -> Output:
    """Seals the files as they are now; those that cannot be read are absent."""
    journal = Journal(storage, JOURNAL)
    notes = (json.loads(line.partition(b"\t")[2]) for line in journal.lines())
    known: dict[Facts, str] = {(note[0], *note[1:5]): note[5] for note in notes}
    locked, present = list[Locked](), dict[Facts, str]()
    with progress.over("look", len(files.paths), unit="files") as tick, ThreadPoolExecutor() as pool:
        for start in range(0, len(files.paths), AT_ONCE):
            some, new = files.paths[start : start + AT_ONCE], dict[Facts, str]()
            for path, found in zip(some, pool.map(partial(_look, files.folder, known), some), strict=True):
                tick(1)
                if found is None:
                    locked.append(Locked(path))
                    continue
                facts, sha256 = found
                locked.append(Locked(path, facts[1], sha256))
                present[facts] = sha256
                if facts not in known:
                    new[facts] = sha256
            journal.add(map(_note, new.items()))
            journal.merge()
    if known.keys() - present.keys():
        journal.replace(map(_note, present.items()))
    return seal(storage, "media", "folder", fingerprint([*files.paths]), locked)


def _look(folder: str, known: Mapping[Facts, str], path: str) -> tuple[Facts, str] | None:
    try:
        file = os.path.join(folder, path)
        facts = os.stat(file)
        key = (path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
        return key, known.get(key) or sha256_of(file)
    except OSError:
        return None


def _note(found: tuple[Facts, str]) -> bytes:
    facts, sha256 = found
    return json.dumps(facts[0]).encode() + b"\t" + canonical_json([*facts, sha256]) + b"\n"


def open_files(folder: str, sealed: Output) -> Raw:
    """The files of a sealed set as they lie in the folder; others than were sealed are refused."""
    listed = {locked.path: locked for locked in read_lock(sealed)}
    return Raw(listed, lambda path: _open(folder, listed[path]))


def _open(folder: str, locked: Locked) -> BinaryIO:
    if not locked.sha256:
        raise MissingMedia("it cannot be read")
    place, name = os.path.split(os.path.realpath(os.path.join(folder, locked.path)))
    cure = "it has changed since this run began: run the same command again"
    return open_checked(LocalStorage(place), name, locked.size, locked.sha256, cure)
