"""One row of anybody's list: what its cells may be, and which place in the media set, id and captions follow from them.

What xmodal/own.py says of rows is done here. Nothing that a cell says is ever a path outside the list's folder, a
scheme other than http and https, or a name that a file system cannot bear.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from xmodal.records import Kind
from xmodal.trouble import Trouble

VALIDATION = {"validation", "valid", "dev"}
CLIPS = {".gif", ".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v", ".mpg", ".mpeg"}
LONGEST_ID, LONGEST_STEP, LONGEST_PATH, LONGEST_URL = 200, 255, 1000, 8000  # as file systems and servers bear
MEMBERS, ARCHIVE_BYTES = 4096, 1 << 30  # of an archive of embedded pictures

NO_MEDIUM = "no picture or clip: the row is left out"
NOT_FETCHED = "an address that is neither http nor https: the row is left out"
LEAVES = "a path that is not inside the list's folder: the row is left out"
ODD_ID = "an id that is long or does not print: its sha256 stands for it"
NO_CAPTION = "an empty caption: left out"
NOT_TEXT = "a caption that is not Unicode: left out"
AGAIN = "the same caption of the same item again: left out"
OTHER_MEDIUM = "another picture or clip of an id that is taken: the row is left out"


@dataclass(frozen=True)
class Medium:
    """`path` is its place in the media set; `content` where the list holds the bytes."""

    path: str
    kind: Kind
    url: str | None = None
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Entry:
    """One row of a list that can be used."""

    where: str
    id: str
    medium: Medium
    captions: tuple[str, ...]
    split: str | None
    oddities: tuple[str, ...]


def entry_of(row: Mapping[str, Any], where: str, split: str | None, embedded: "Embedded") -> Entry | str:
    """Or the rule by which the row is left out. Cells go by their use; `split` is that of rows without such a cell."""
    medium = _medium(row["url"], where, embedded)
    if isinstance(medium, str):
        return medium
    id, odd_id = _id(row, medium, where)
    texts, odd_texts = _captions(row["caption"], where)
    return Entry(where, id, medium, texts, _split(row["split"], where) if "split" in row else split, odd_id + odd_texts)


def split_name(text: str) -> str:
    """`train` → `own/train`, `validation` → `own/val`, `karpathy/train` as it is; a ValueError of what is no name."""
    name = text if "/" in text else f"own/{'val' if text in VALIDATION else text}"
    if not re.fullmatch(r"[\w.-]{1,100}/[\w.-]{1,100}", name):
        raise ValueError(f"a split is named by letters, digits and ._-, not {text!r:.60}")
    return name


class Embedded:
    """Gives every picture its place: so many to an archive, in the order in which they first come; once for each."""

    def __init__(self, folder: str) -> None:
        self._folder, self._first = folder, dict[bytes, Medium]()
        self._archive, self._members, self._bytes = 0, 0, 0

    def medium(self, content: bytes, name: str) -> Medium:
        digest = hashlib.sha256(content).digest()
        if digest not in self._first:
            if self._members == MEMBERS or self._bytes + len(content) > ARCHIVE_BYTES:
                self._archive, self._members, self._bytes = self._archive + 1, 0, 0
            self._members, self._bytes = self._members + 1, self._bytes + len(content)
            place = f"{self._folder}/{self._archive:05d}.zip!{digest.hex()[:40]}{_suffix(name)}"
            self._first[digest] = Medium(place, _kind(name))
        return replace(self._first[digest], content=content)


def _medium(cell: Any, where: str, embedded: Embedded) -> Medium | str:
    """Or the rule by which its row is left out."""
    both = cell if isinstance(cell, dict) and {"bytes", "path"} & cell.keys() else {"path": cell}
    content, name = both.get("bytes"), both.get("path")
    if isinstance(name, bytes):
        content, name = name, None
    if not isinstance(content, bytes | None) or not isinstance(name, str | None):
        raise Trouble(f"{where} is {cell!r:.40}, neither text nor a picture")
    name = (name or "").strip()
    if content:
        return embedded.medium(content, name)
    if not name:
        return NO_MEDIUM
    return _fetched(name) if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|data:", name) else _beside(name)


def _fetched(url: str) -> Medium | str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return NOT_FETCHED
    if parts.scheme.lower() not in ("http", "https") or not url.isprintable() or len(url) > LONGEST_URL:
        return NOT_FETCHED
    digest = hashlib.sha256(url.encode()).hexdigest()
    return Medium(f"urls/{digest[:2]}/{digest[:40]}{_suffix(parts.path)}", _kind(parts.path), url=url)


def _beside(text: str) -> Medium | str:
    path = posixpath.normpath(text)
    steps = path.split("/")
    outside = path.startswith(("/", "~")) or "\\" in path or steps[0] in ("..", ".")
    if (
        outside
        or not path.isprintable()
        or len(path) > LONGEST_PATH
        or any(len(s.encode()) > LONGEST_STEP for s in steps)
    ):
        return LEAVES
    return Medium(path, _kind(path))


def _id(row: Mapping[str, Any], medium: Medium, where: str) -> tuple[str, tuple[str, ...]]:
    if "id" not in row:
        return _id_of(medium)
    cell = row["id"]
    if not isinstance(cell, str | int) or isinstance(cell, bool) or not str(cell).strip():
        raise Trouble(f"{where}: the id is {cell!r:.40}, neither text nor a whole number")
    return _plain(str(cell).strip())


def _id_of(medium: Medium) -> tuple[str, tuple[str, ...]]:
    if medium.content is not None:
        return hashlib.sha256(medium.content).hexdigest()[:20], ()
    return (hashlib.sha256(medium.url.encode()).hexdigest()[:20], ()) if medium.url else _plain(medium.path)


def _plain(id: str) -> tuple[str, tuple[str, ...]]:
    """The id itself where every later stage and file can hold it."""
    if id.isprintable() and len(id.encode()) <= LONGEST_ID:
        return id, ()
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:20], (ODD_ID,)


def _captions(cell: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Texts with single spaces, and the rules by which others were left out; null and [] are an empty caption."""
    texts, odd = [], []
    for text in (cell or [None]) if isinstance(cell, list) else [cell]:
        if text is not None and not isinstance(text, str):
            raise Trouble(f"{where}: a caption is {text!r:.40}, no text")
        words = " ".join((text or "").split())
        if not words:
            odd.append(NO_CAPTION)
        elif re.search("[\ud800-\udfff]", words):
            odd.append(NOT_TEXT)
        else:
            texts.append(words)
    return tuple(texts), tuple(odd)


def _split(cell: Any, where: str) -> str | None:
    """None of an empty cell: its item is in no split."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return None
    try:
        return split_name(str(cell).strip())
    except ValueError as error:
        raise Trouble(f"{where}: {error}") from error


def _suffix(name: str) -> str:
    """Short and plain, or none: it only helps people who look into the media."""
    found = re.search(r"\.[A-Za-z0-9]{1,5}$", name)
    return found[0].lower() if found else ""


def _kind(name: str) -> Kind:
    return "clip" if _suffix(name) in CLIPS else "image"
