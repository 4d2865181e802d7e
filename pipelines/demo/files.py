"""What every generated publisher writes its files with: of equal worlds they are equal bytes, wherever and whenever."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xmodal.corpora import Corpus, Source
from xmodal.raw.raw_files import Raw


class Unpublishable(ValueError):
    """A world that a publisher's files cannot tell of: of clips where there are pictures alone, of too few things."""


def serve_at(corpus: Corpus, base_url: str) -> Corpus:
    """The corpus with every source, and every listed medium that has an address, at its path below an address."""
    base = base_url.rstrip("/")
    sources = (replace(source, url=f"{base}/{source.path}", how="") for source in corpus.sources)
    media = partial(_media_at, base, corpus.media) if corpus.media else None
    return replace(corpus, sources=tuple(sources), media=media)


def _media_at(base: str, media: Callable[[Raw], Iterator[Source]], raw: Raw) -> Iterator[Source]:
    return (replace(source, url=f"{base}/{source.path}") if source.url else source for source in media(raw))


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


def write_tgz(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Members in this order, without anything of today or of this machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_320_000_000
            archive.addfile(info, io.BytesIO(data))
