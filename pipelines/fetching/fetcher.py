"""Fetches the publisher's files into `blobs/`, and every attempt into the ledger.

A file in the `--raw` folder is taken from there (status `local`), another from its address or a mirror.
"""

import hashlib
import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pipelines.engine.building import NOT_SHARED, Call, Runner, Worker
from pipelines.engine.commits import Record
from pipelines.engine.progress_line import ProgressLine
from pipelines.engine.stage import Resources
from pipelines.fetching.download import Failed, downloaded, may_pass
from pipelines.fetching.ledger import BY_HAND, LINK, FetchAttempt, Ledger, Status
from xmodal.corpora import Part, Source
from xmodal.errors import UserError
from xmodal.raw import gulp
from xmodal.raw.archives import members
from xmodal.raw.raw_files import Raw
from xmodal.records.media_kinds import CLIP_ENDINGS
from xmodal.root.files import sha256_of
from xmodal.root.sealed_sets import blob_key
from xmodal.root.storage import LocalStorage, Storage, open_storage

FILES_A_UNIT = 16
FILES_AT_HAND = 16  # times as many, if the first ones are at hand
PAUSES_SECONDS = (0.0, 0.5, 2.0)  # before each round over the addresses that may still answer
GATHER_EVERY = 256
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
PIECE = 1 << 20  # bytes copied at a time
ARRIVED, FAILED = b"arrived\n", b"failed\n"  # of each file, in the record of its unit


class RawFolder:
    """Files that somebody has already, under their paths, or without `whole_paths` under names that no two share.

    Files with a place in `elsewhere` are only looked for there, and copied: a user will write to a list again. Without
    `follow_links` those that links take from outside the folder are refused.
    """

    def __init__(
        self,
        folder: Path,
        sources: list[Source],
        elsewhere: Mapping[str, Path] = {},
        whole_paths: bool = False,
        follow_links: bool = True,
    ) -> None:
        self._whole_paths, self.follow_links = whole_paths, follow_links
        self._folder = folder.expanduser().absolute()
        self.elsewhere = {path: place.absolute() for path, place in elsewhere.items()}
        self._own = {os.path.basename(source.path) for source in sources}
        self._real = dict[str, str]()  # folders: most files share one
        self._telling = {} if whole_paths else _telling([Path(source.path) for source in sources], "name")

    def find(self, source: Source) -> str | None:
        places, name = [os.path.join(self._folder, source.path)], os.path.basename(source.path)
        if source.path in self.elsewhere:
            places = [str(self.elsewhere[source.path])]
        elif name in self._telling:
            places.append(os.path.join(self._folder, name))
        archive, _, member = source.path.partition("!")
        if member and not self._whole_paths:  # unpacked beside its archive, in a folder of that name, or with it here
            beside = self._folder / Path(archive).parent
            unpacked = (beside / member, beside / Path(archive).stem / member)
            places += map(str, (*unpacked, self._folder / member, self._folder / Path(member).name))
        return next((place for place in places if os.path.isfile(place)), None)

    def takes(self, source: Source, file: str) -> bool:
        return self.follow_links or not self.link_out(source, file)

    def link_out(self, source: Source, file: str) -> str | None:
        """The place outside the folder that a file was found to be a link to."""
        place, name = os.path.split(file)
        real = os.path.join(self._real_folder(place), name)
        real = os.path.realpath(real) if os.path.islink(real) else real
        home = os.path.join(self._real_folder(str(self._folder)), "")
        return None if source.path in self.elsewhere or real.startswith(home) else real

    def _real_folder(self, folder: str) -> str:
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return self._real[folder]

    def inside(self, paths: list[Path]) -> Iterator[Iterator[tuple[str, Iterator[bytes]]]]:
        """Path and content of these files in each archive that is none of the corpus, then in each dump's chunk."""
        known = {str(path): str(path) for path in paths} | ({} if self._whole_paths else _telling(paths, "name"))
        for file in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            if file.name.endswith(ARCHIVES) and file.name not in self._own:
                yield _archived(file, known, self._whole_paths)
        clips = [path for path in paths if path.suffix in CLIP_ENDINGS and not self._whole_paths]
        if ids := _telling(clips, "stem"):
            metas = (meta for depth in ("", "*/", "*/*/") for meta in self._folder.glob(f"{depth}meta*.gmeta"))
            for meta in sorted(path.relative_to(self._folder).as_posix() for path in metas):
                there = {name: path for name in (meta, gulp.data_of(meta)) if (path := self._folder / name).is_file()}
                found = gulp.clips(Raw.of_files(there), meta)
                yield ((ids[id], frames) for id, frames in found if id in ids)


def unpacked(raw: RawFolder, wanted: list[Source], say: Callable[[str], None], into: Path) -> Iterator[Source]:
    """Unpacks the wanted files that only archives and dumps of the raw folder have, reading each once.

    A damaged archive is an error only if a file without address may be in it.
    """
    lacking = {source.path: source for source in wanted if raw.find(source) is None}
    damaged: list[UserError] = []
    for files in raw.inside([Path(path) for path in lacking]):
        if not lacking:
            break
        try:
            for path, pieces in files:
                if path in lacking:
                    (into / path).parent.mkdir(parents=True, exist_ok=True)
                    with open(into / path, "wb") as file:
                        file.writelines(pieces)
                    yield lacking.pop(path)
        except UserError as trouble:
            damaged.append(trouble)
    by_hand = [path for path, source in lacking.items() if not source.url]
    if damaged and by_hand:
        within = f"{len(by_hand):,} files without an address may be in it, such as {by_hand[0]}"
        raise UserError(f"in the raw folder, {damaged[0]}. {within}: put another copy of it there, or take it away")
    for each in damaged:
        say(f"in the raw folder, {each}; what it may have had is looked for elsewhere")


def _telling(paths: list[Path], part: Literal["name", "stem"]) -> dict[str, str]:
    """Paths by a part that no other path has."""
    counts = Counter(getattr(path, part) for path in paths)
    return {getattr(path, part): str(path) for path in paths if counts[getattr(path, part)] == 1}


def _archived(archive: Path, known: Mapping[str, str], whole_paths: bool) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Finds members by `known` paths or names, in any folder of the archive unless `whole_paths`."""
    for name, content in members(Raw.of_files({archive.name: archive}), archive.name):
        parts = name.split("/")
        ends = ("/".join(parts[start:]) for start in range(1 if whole_paths else len(parts)))
        if path := next((known[end] for end in ends if end in known), None):
            yield path, iter(partial(content.read, PIECE), b"")


def fetch(ledger: Ledger, sources: list[Source], raw: RawFolder | None, run: Runner, progress: ProgressLine) -> None:
    if not sources:
        return
    ledger.compact()
    ledger.note_driver()
    after = ledger.later
    open_worker = partial(_open_worker, ledger.storage.url, ledger.part, ledger.name, raw, after)
    size = 1 if len(sources) <= FILES_A_UNIT else FILES_A_UNIT  # a few files, such as archives, have a worker each
    size *= FILES_AT_HAND if raw and size > 1 and all(map(raw.find, sources[:size])) else 1
    units = ((sources[start].path, sources[start : start + size]) for start in range(0, len(sources), size))
    records = run(open_worker, units, Resources(cpus=0.5))
    name, arrived = f"fetch {ledger.folder.removeprefix('_runs/ledger/')}", Counter[bytes]()

    def remark() -> str:
        return f": {arrived[ARRIVED]:,} arrived, {arrived[FAILED]:,} failed" if arrived[FAILED] else ""

    with progress.over(name, len(sources), unit="files", remark=remark) as tick:
        for count, record in enumerate(records, 1):
            arrived.update(record.lines.splitlines(keepends=True))
            tick(record.units)
            if count % GATHER_EVERY == 0:
                ledger.compact()
    ledger.compact()


def _open_worker(url: str, part: Part, name: str, raw: RawFolder | None, after: float) -> Worker:
    storage = open_storage(url)
    ledger = Ledger(storage, part, name)
    if not ledger.in_sight:
        raise UserError(f"a worker on {socket.gethostname()} {NOT_SHARED.format(url)}")

    def fetch_units(call: Call) -> list[Record]:
        at_hand = dict[str, str]()
        units = [(name, [[*_fetch(source, storage, raw, at_hand)] for source in sources]) for name, sources in call]
        attempts = [attempt for _, files in units for tries in files for attempt in tries]
        storage.keep({blob_key(one.sha256): at_hand[one.path] for one in attempts if one.path in at_hand})
        ledger.add([_dated(attempt, after, at_hand.get(attempt.path)) for attempt in attempts])
        return [Record(name, b"".join(_how_it_ended(tries) for tries in files)) for name, files in units]

    return fetch_units


def _how_it_ended(tries: Sequence[FetchAttempt]) -> bytes:
    return FAILED if all(attempt.status == "failed" for attempt in tries) else ARRIVED


def _dated(attempt: FetchAttempt, after: float, file: str | None) -> FetchAttempt:
    changed = os.stat(file).st_ctime_ns if file else 0  # by the link
    return replace(attempt, at=max(attempt.at, after), changed=changed)


def _fetch(source: Source, storage: Storage, raw: RawFolder | None, at_hand: dict[str, str]) -> Iterator[FetchAttempt]:
    """Every attempt at one file, up to the first success; one of this machine is put into `at_hand`."""
    if raw and (file := raw.find(source)):
        attempt = _attempt(source, "local", partial(_take, source, file, raw, storage))
        at_hand |= {} if attempt.status == "failed" else {source.path: file}
        yield attempt
        return
    addresses = list(filter(None, (source.url, *source.mirrors)))
    if not addresses:
        yield FetchAttempt(source.path, "failed", time.time(), 0.0, kind=BY_HAND, reason=source.how[:200])
    for pause in PAUSES_SECONDS:
        time.sleep(pause if addresses else 0)
        for address in tuple(addresses):
            attempt = _attempt(source, "ok", partial(_download, source, address, storage))
            yield attempt
            if attempt.status != "failed":
                return
            if not may_pass(attempt.kind):
                addresses.remove(address)


def _attempt(source: Source, status: Status, obtain: Callable[[], dict[str, Any]]) -> FetchAttempt:
    began, started = time.time(), time.perf_counter()
    try:
        found = obtain()
    except Failed as failure:
        status, found = "failed", {"kind": failure.kind, "reason": failure.reason}
    return FetchAttempt(source.path, status, began, time.perf_counter() - started, **found)


def _take(source: Source, file: str, raw: RawFolder, storage: Storage) -> dict[str, Any]:
    outside = raw.link_out(source, file)
    if outside and not raw.follow_links:
        raise Failed(LINK, f"points out of the folder: {outside:.120}, give --follow-links to take it")
    before = os.stat(file)  # what is written while it is read is looked at again
    found = _copy(source, file, storage) if source.path in raw.elsewhere else _look(source, file)
    return found | {"modified": before.st_mtime_ns, "inode": before.st_ino, "kind": LINK if outside else ""}


def _download(source: Source, address: str, storage: Storage) -> dict[str, Any]:
    # under a local root, a later driver continues the partial file
    folder = storage.path("_runs/partial") if isinstance(storage, LocalStorage) else tempfile.gettempdir()
    name = f"xmodal-{hashlib.sha256(address.encode()).hexdigest()[:24]}"
    with downloaded(address, f"{folder}/{name}") as file:
        return _keep(source, file, storage)


def _copy(source: Source, file: str, storage: Storage) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="xmodal-") as folder:
        return _keep(source, shutil.copyfile(file, f"{folder}/copy"), storage)


def _keep(source: Source, file: str, storage: Storage) -> dict[str, Any]:
    found = _look(source, file)
    storage.keep({blob_key(found["sha256"]): file})
    return found


def _look(source: Source, file: str) -> dict[str, Any]:
    size = os.path.getsize(file)
    if source.bytes is not None and size != source.bytes:
        raise Failed("size", f"{source.path} has {size:,} bytes instead of {source.bytes:,}")
    digest = sha256_of(file)
    if source.sha256 is not None and digest != source.sha256:
        raise Failed("checksum", f"{source.path} has sha256 {digest} instead of {source.sha256}")
    return {"size": size, "sha256": digest}
