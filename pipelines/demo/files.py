"""What every generated publisher writes its files with: of equal worlds they are equal bytes, wherever and whenever."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from xmodal.corpora import Corpus, Source


def serve_at(corpus: Corpus, base_url: str) -> Corpus:
    """The corpus with every source at its path below an address."""
    sources = (replace(source, url=f"{base_url.rstrip('/')}/{source.path}", how="") for source in corpus.sources)
    return replace(corpus, sources=tuple(sources))


def new_archive(path: Path) -> zipfile.ZipFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    return zipfile.ZipFile(path, "w")


def member(name: str, compression: int) -> zipfile.ZipInfo:
    """Without anything of today or of this machine."""
    member = zipfile.ZipInfo(name, date_time=(2014, 9, 1, 0, 0, 0))
    member.compress_type, member.create_system = compression, 3
    return member


def write_json(archive: zipfile.ZipFile, name: str, record: dict[str, Any]) -> None:
    """As `json.dump` would; an iterator becomes an array, one element at a time."""
    with archive.open(member(name, zipfile.ZIP_DEFLATED), "w", force_zip64=True) as file:
        separator = "{"
        for key, value in record.items():
            file.write(f"{separator}{json.dumps(key)}: ".encode())
            file.writelines(_pieces(value))
            separator = ", "
        file.write(b"}")


def _pieces(value: Any) -> Iterator[bytes]:
    if not isinstance(value, Iterator):
        yield json.dumps(value).encode()
        return
    yield b"["
    for number, element in enumerate(value):
        yield (", " if number else "").encode() + json.dumps(element).encode()
    yield b"]"


def written(source: Source, folder: Path) -> Source:
    """The source as it lies in a folder: its size and checksum, and no address yet."""
    path = folder / source.path
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    how = "it was written to a folder: give that as --raw"
    return replace(source, url=None, mirrors=(), bytes=path.stat().st_size, sha256=sha256, how=how)
