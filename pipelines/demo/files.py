"""Files of generated publishers: equal worlds give equal bytes, on any machine and at any time."""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pipelines.demo.world import Scene, World
from xmodal.corpora import Corpus, Source
from xmodal.raw.raw_files import Raw
from xmodal.root.files import sha256_of


class Unpublishable(ValueError):
    """A world that does not fit a publisher's format, such as clips where only pictures are."""


@dataclass(frozen=True)
class PublishedScene:
    scene: Scene
    world: World
    splits: ClassVar[tuple[str, ...]]  # of every ten scenes

    @property
    def split(self) -> str:
        return self.splits[self.scene.index % 10]

    @property
    def digest(self) -> str:
        return hashlib.md5(f"{self.scene.seed} {self.scene.index}".encode(), usedforsecurity=False).hexdigest()

    @property
    def gone(self) -> bool:
        return self.scene.index % 17 == 12


def serve_at(corpus: Corpus, base_url: str) -> Corpus:
    """The corpus with the addresses of its sources, and of media that have one, below `base_url`."""
    sources = (replace(source, url=f"{base_url}/{source.path}", how="") for source in corpus.sources)
    media = partial(_media_at, base_url, corpus.media) if corpus.media else None
    return replace(corpus, sources=tuple(sources), media=media)


def _media_at(base: str, media: Callable[[Raw], Iterator[Source]], raw: Raw) -> Iterator[Source]:
    return (replace(source, url=f"{base}/{source.path}") if source.url else source for source in media(raw))


def new_archive(path: Path) -> zipfile.ZipFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    return zipfile.ZipFile(path, "w")


def member(name: str, compression: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, date_time=(2014, 9, 1, 0, 0, 0))
    member.compress_type, member.create_system = compression, 3
    return member


def write_json(archive: zipfile.ZipFile, name: str, record: dict[str, Any]) -> None:
    """Writes JSON, with an iterator as an array."""
    with archive.open(member(name, zipfile.ZIP_DEFLATED), "w", force_zip64=True) as file:
        file.write(json.dumps(record, default=list).encode())


def written(corpus: Corpus, folder: Path, counts: Mapping[str, int]) -> Corpus:
    """The corpus with these counts, and sizes and checksums of its files in a folder in place of addresses."""
    how, sources = "it was written to a folder: give that as --raw", list[Source]()
    for source in corpus.sources:
        path = folder / source.path
        size, sha256 = path.stat().st_size, sha256_of(path)
        sources.append(replace(source, url=None, mirrors=(), bytes=size, sha256=sha256, how=how))
    return replace(corpus, sources=tuple(sources), counts=counts)


def write_tgz(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
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
