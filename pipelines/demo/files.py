"""Files of generated publishers: equal worlds give equal bytes, on any machine and at any time."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from xmodal.corpora import Corpus, Source
from xmodal.raw.raw_files import Raw


class Unpublishable(ValueError):
    """A world that does not fit a publisher's format, such as clips where only pictures are, or too few items."""


def serve_at(corpus: Corpus, base_url: str) -> Corpus:
    """The corpus with the addresses of its sources, and of media that have one, below `base_url`."""
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
    """A member with a fixed date and system."""
    member = zipfile.ZipInfo(name, date_time=(2014, 9, 1, 0, 0, 0))
    member.compress_type, member.create_system = compression, 3
    return member


def write_json(archive: zipfile.ZipFile, name: str, record: dict[str, Any]) -> None:
    """Writes what `json.dump` would. An iterator becomes an array, one element at a time."""
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


def written(corpus: Corpus, folder: Path, counts: Mapping[str, int]) -> Corpus:
    """The corpus with the sizes and checksums of its files in a folder, with these counts, and without addresses.

    `serve_at` gives it addresses, or the folder is given to a build as its raw files.
    """
    how, sources = "it was written to a folder: give that as --raw", list[Source]()
    for source in corpus.sources:
        data = (folder / source.path).read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        sources.append(replace(source, url=None, mirrors=(), bytes=len(data), sha256=sha256, how=how))
    return replace(corpus, sources=tuple(sources), counts=counts)


def write_tgz(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Writes members in this order, with a fixed date."""
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
