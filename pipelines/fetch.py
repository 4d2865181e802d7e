"""Fetching: the publisher's files into `blobs/`, every attempt into the ledger.

A file at hand in the `--raw` folder (under its path, or its name alone) is taken from there, status `local`; else it is
downloaded from its address or a mirror. What arrives is checked against the size and checksum that the corpus pins.
Two units never share a file, and one that is fetched twice by two drivers is one blob.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from pipelines.commits import Record
from pipelines.download import Failed, download
from pipelines.engine import Call, Runner, Worker
from pipelines.ledger import Attempt, Ledger
from pipelines.progress import Progress
from pipelines.stage import Resources
from xmodal.corpora import Part, Source
from xmodal.locks import blob_key
from xmodal.storage import LocalStorage, Storage, open_storage

FILES_A_UNIT = 16
TRIES = 3
PAUSE_SECONDS = 0.5  # before the second try; four times as long before the third
GATHER_EVERY = 256


@dataclass(frozen=True)
class OpenFetcher:
    """What a worker is sent."""

    url: str
    part: Part
    name: str
    raw: str | None

    def __call__(self) -> Worker:
        storage = open_storage(self.url)
        ledger = Ledger(storage, self.part, self.name)
        raw = Path(self.raw) if self.raw else None

        def fetch_units(call: Call) -> list[Record]:
            return [Record(name, ledger.add(_fetch_all(sources, storage, raw))) for name, sources in call]

        return fetch_units


def fetch(
    storage: Storage, part: Part, name: str, sources: list[Source], raw: Path | None, run: Runner, progress: Progress
) -> None:
    """Tries every one of these files; how it went is in the ledger."""
    ledger = Ledger(storage, part, name)
    opener = OpenFetcher(storage.url, part, name, str(raw.absolute()) if raw else None)
    with progress.over(f"fetch {ledger.folder.removeprefix('_runs/ledger/')}", len(sources), unit="files") as tick:
        for count, record in enumerate(run(opener, _units(sources), Resources(cpus=0.5)) if sources else ()):
            tick(len({line.partition(b"\t")[0] for line in record.lines.splitlines()}))
            if count % GATHER_EVERY == GATHER_EVERY - 1:
                ledger.compact()
    ledger.compact()


def _units(sources: list[Source]) -> Iterator[tuple[str, list[Source]]]:
    """Archives one by one, so that each has a worker; many small files together."""
    size = 1 if len(sources) <= FILES_A_UNIT else FILES_A_UNIT
    remaining = iter(sources)
    while some := list(islice(remaining, size)):
        yield some[0].path, some


def _fetch_all(sources: list[Source], storage: Storage, raw: Path | None) -> list[Attempt]:
    return [attempt for source in sources for attempt in _fetch(source, storage, raw)]


def _fetch(source: Source, storage: Storage, raw: Path | None) -> Iterator[Attempt]:
    """Every attempt at one file, up to the first success or a failure that will not pass by itself."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_SECONDS * 4 ** (attempt - 1))
        began, started = time.time(), time.perf_counter()
        try:
            status, size, digest = _obtain(source, storage, raw, attempt)
        except Failed as failure:
            seconds = time.perf_counter() - started
            yield Attempt(source.path, "failed", began, seconds, kind=failure.kind, reason=failure.reason)
            if not failure.transient:
                return
        else:
            yield Attempt(source.path, status, began, time.perf_counter() - started, size, digest)
            return


def _obtain(source: Source, storage: Storage, raw: Path | None, attempt: int) -> tuple[Any, int, str]:
    for candidate in (raw / source.path, raw / Path(source.path).name) if raw else ():
        if candidate.is_file():
            return "local", *_keep(source, str(candidate), storage)
    if source.url is None:
        raise Failed("by_hand", source.how)
    addresses = (source.url, *source.mirrors)
    partial = _partial(storage, addresses[attempt % len(addresses)])
    download(addresses[attempt % len(addresses)], partial)
    try:
        return "ok", *_keep(source, partial, storage)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)


def _keep(source: Source, file: str, storage: Storage) -> tuple[int, str]:
    """Checks a whole file and puts it among the blobs."""
    size = os.path.getsize(file)
    if source.bytes is not None and size != source.bytes:
        raise Failed("size", f"{source.path} has {size:,} bytes instead of {source.bytes:,}")
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(cast(Any, stream), "sha256").hexdigest()
    if source.sha256 is not None and digest != source.sha256:
        raise Failed("checksum", f"{source.path} has sha256 {digest} instead of {source.sha256}")
    storage.keep(file, blob_key(digest))
    return size, digest


def _partial(storage: Storage, url: str) -> str:
    """Kept under a local root, so that a later driver continues; on this machine for an object store."""
    folder = storage.path("_runs/partial") if isinstance(storage, LocalStorage) else tempfile.gettempdir()
    return f"{folder}/xmodal-{hashlib.sha256(url.encode()).hexdigest()[:24]}"
