"""Entries: the rows of user lists, checked cell by cell. The cell of the column `url` may be:

    https://x.org/cat.jpg          an address: fetched
    pictures/dog.png               a path beside the list: taken from there; absolute, if below the folder given
    {"bytes": …, "path": "a.jpg"}  the picture itself (the `Image` of Hugging Face)

Without a column an id is a digest of an address or of embedded bytes, or the path itself. NaN is an empty cell. A row
that cannot be used is an oddity; a cell of another type is an error.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from xmodal.errors import UserError
from xmodal.raw.raw_files import Raw
from xmodal.raw.readers import ending, rows
from xmodal.records.media_kinds import kind_of
from xmodal.records.tables import Kind, Oddity
from xmodal.root.identity import fingerprint
from xmodal.userdata.description import Description, split_name
from xmodal.userdata.embedded_pictures import FOLDER, EmbeddedPictures

LONGEST_ID, LONGEST_STEP, LONGEST_PATH, LONGEST_URL = 200, 255, 1000, 8000  # limits of file systems and servers

NO_MEDIUM = "no picture or clip: the row is left out"
NOT_FETCHED = "an address that is neither http nor https: the row is left out"
ABSOLUTE = "an absolute path or file://: the row is left out; name FOLDER --captions LIST, or write it from the list on"
BACKSLASH = "a path with a backslash: the row is left out; write / between folders"
LEAVES = "a path that leaves the list's folder, is long or does not print: the row is left out"
ODD_ID = "an id that is long or does not print: its sha256 stands for it"
NO_CAPTION = "an empty caption: left out"
NOT_TEXT = "a caption that is not Unicode: left out"
OUTSIDE = "an absolute path that is not below the folder given: the row is left out"
LINES = "a CSV cell in quotes that has several lines: kept as one"
ODD_LABEL = "a label that is long or does not print: left out"


@dataclass(frozen=True)
class Medium:
    path: str  # in the media set
    kind: Kind
    url: str | None = None
    content: bytes | None = field(default=None, repr=False)  # if the list holds the bytes


@dataclass(frozen=True)
class Entry:
    where: str
    id: str
    medium: Medium
    captions: tuple[str, ...]
    labels: tuple[str, ...]
    split: str | None
    oddities: tuple[str, ...]


def entries(description: Description, raw: Raw) -> Iterator[Entry | Oddity]:
    """Yields every row; one that is left out is an Oddity."""
    content = [[file.bytes, file.sha256] for file in description.files]  # other settings move no picture
    embedded = EmbeddedPictures(f"{FOLDER}/{fingerprint([content, description.revision, description.url])[:16]}")
    given = {use: getattr(description, use) for use in ("url", "caption", "id", "split", "labels")}
    columns = {use: column for use, column in given.items() if column is not None}
    for file in description.files:
        for where, cells in rows(raw, file.path, list(columns.values()), description.has_header):
            row = {use: None if cell != cell else cell for use, cell in zip(columns, cells, strict=True)}  # NaN
            medium = _medium(row["url"], where, embedded, description.folder)
            if isinstance(medium, str):
                yield Oddity(medium, where)
                continue
            if description.kind:
                medium = replace(medium, kind=description.kind)
            id, odd_id = _id(row, medium, where)
            texts, odd_texts = _captions(row["caption"], where)
            labels, odd_labels = _labels(row["labels"], where) if "labels" in row else ((), ())
            split = _split(row["split"], where) if "split" in row else file.split
            # a quote that was opened by mistake takes rows with it
            odd_lines = (LINES,) if ending(file.path) == ".csv" and any("\n" in cell for cell in cells) else ()
            yield Entry(where, id, medium, texts, labels, split, odd_id + odd_texts + odd_labels + odd_lines)


def is_below(name: str, folder: str) -> bool:
    """Whether an absolute path begins with that of a folder."""
    return name.startswith(f"{folder.rstrip('/')}/")


def _medium(cell: Any, where: str, embedded: EmbeddedPictures, folder: str | None) -> Medium | str:
    """Returns the medium, or the rule by which the row is left out."""
    both = cell if isinstance(cell, dict) and {"bytes", "path"} & cell.keys() else {"path": cell}
    content, name = both.get("bytes"), both.get("path")
    if isinstance(name, bytes):
        content, name = name, None
    if not isinstance(content, bytes | None) or not isinstance(name, str | None):
        raise UserError(f"{where} is {cell!r:.40}, neither text nor a picture")
    name = (name or "").strip()
    if content:
        path = embedded.path(content, _ending(name))
        return Medium(path, kind_of(_ending(path)), content=content)
    if not name:
        return NO_MEDIUM
    if folder and name.startswith("/"):
        return _beside_list(name[len(folder.rstrip("/")) + 1 :]) if is_below(name, folder) else OUTSIDE
    if re.match(r"/|~|[A-Za-z]:[/\\]|file:", name, re.IGNORECASE):
        return ABSOLUTE
    return _fetched(name) if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|data:", name) else _beside_list(name)


def _fetched(url: str) -> Medium | str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return NOT_FETCHED
    if parts.scheme.lower() not in ("http", "https") or not url.isprintable() or len(url) > LONGEST_URL:
        return NOT_FETCHED
    digest, ending = hashlib.sha256(url.encode()).hexdigest(), _ending(parts.path)
    return Medium(f"urls/{digest[:2]}/{digest[:40]}{ending}", kind_of(ending), url=url)


def _beside_list(text: str) -> Medium | str:
    path = posixpath.normpath(text)
    steps = path.split("/")
    if "\\" in path:
        return BACKSLASH
    if steps[0] in ("..", ".") or not path.isprintable() or len(path) > LONGEST_PATH:
        return LEAVES
    if max(len(step.encode()) for step in steps) > LONGEST_STEP:
        return LEAVES
    return Medium(path, kind_of(_ending(path)))


def _id(row: Mapping[str, Any], medium: Medium, where: str) -> tuple[str, tuple[str, ...]]:
    """Returns the id and its oddities."""
    if "id" in row:
        cell = row["id"]
        if not isinstance(cell, str | int) or isinstance(cell, bool) or not str(cell).strip():
            raise UserError(f"{where}: the id is {cell!r:.40}, neither text nor a whole number")
        return _printable_id(str(cell).strip())
    if content := medium.content or (medium.url or "").encode():
        return _digest(content), ()
    return _printable_id(medium.path)


def _printable_id(id: str) -> tuple[str, tuple[str, ...]]:
    if id.isprintable() and len(id.encode()) <= LONGEST_ID:
        return id, ()
    return _digest(id.encode("utf-8", "surrogatepass")), (ODD_ID,)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _captions(cell: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns texts, and the rules by which others are left out."""
    texts, odd = [], []
    for text in (cell or [None]) if isinstance(cell, list) else [cell]:  # null and [] are an empty caption
        text = "" if text is None or text != text else text  # NaN
        if not isinstance(text, str):
            raise UserError(f"{where}: a caption is {text!r:.40}, no text")
        words = " ".join(text.split())
        if not words:
            odd.append(NO_CAPTION)
        elif re.search("[\ud800-\udfff]", words):
            odd.append(NOT_TEXT)
        else:
            texts.append(words)
    return tuple(texts), tuple(odd)


def _labels(cell: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns names of labels, and the rules by which others are left out."""
    texts, odd = [], []
    labels = cell.split(";") if isinstance(cell, str) else cell
    for label in labels if isinstance(labels, list) else [labels]:
        if not isinstance(label, str | int | None) or isinstance(label, bool):
            raise UserError(f"{where}: a label is {label!r:.40}, neither text nor a whole number")
        name = " ".join(str("" if label is None else label).split())
        if len(name) > LONGEST_ID or not name.isprintable():
            odd.append(ODD_LABEL)
        elif name:
            texts.append(name)
    return tuple(texts), tuple(odd)


def _split(cell: Any, where: str) -> str | None:
    text = "" if cell is None else str(cell).strip()
    try:
        return split_name(text) if text else None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _ending(name: str) -> str:
    return found[0].lower() if (found := re.search(r"\.[A-Za-z0-9]{1,5}$", name)) else ""
