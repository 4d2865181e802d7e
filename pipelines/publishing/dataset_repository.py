"""`xmodal publish`: a corpus' records, features and card as a dataset repository in a local folder.

    README.md                                        the card (pipelines/publishing/dataset_card.py)
    captions/karpathy/train-00000-of-00001.parquet   one row an item: split "train" of config "karpathy"
    features/<stage>/<identity>/…                    a feature store as it is
    features/<stage>/<identity>-00000-….parquet      which item has which of its rows: a config of its own
    media/…                                          the pictures or clips, where the corpus allows it
    dataset.lock  media.lock                         which bytes all this was made of
    publication.json                                 every other file and its size

The corpus' release decides what may be in it. The folder is filled beside its place and renamed; equal roots give equal
bytes.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipelines import stages
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import FOLDERS
from pipelines.publishing.dataset_card import fill_card, read_card
from pipelines.publishing.hub_tables import ROWS, DatasetConfig, read_ids, write_captions, write_index
from pipelines.publishing.publication import Publication, lock_name, made_from, may, may_column, withheld
from pipelines.stages.records import VERSION
from xmodal.corpora import Corpus, Part
from xmodal.errors import UserError
from xmodal.root.files import copy_and_hash
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output, cure_under, directories
from xmodal.root.sealed_sets import LOCK, blob_key, read_lock, records_now, sealed_now
from xmodal.root.selection import build_command, media_set_of
from xmodal.root.storage import LocalStorage, Storage

MANIFEST = "publication.json"
STORE = ("stage.json", "units.tsv", "complete.json")  # by which a feature store is opened and checked
LAYOUT = 1


class Copy(NamedTuple):
    key: str
    open: Callable[[], BinaryIO]
    size: int
    sha256: str


def publish(
    corpus: Corpus,
    storage: Storage,
    out: Path,
    progress: ProgressLine | None = None,
    features: list[Output] | None = None,
) -> dict[str, Any]:
    """Fills `out`, or replaces what was published there; `features` are by default all of `feature_stores`."""
    out, card, progress = out.resolve(), read_card(corpus), progress or ProgressLine(quiet=True)
    _refuse_foreign_files(out)
    publication = _publication(corpus, storage, features, progress)
    with _put_in_place(out) as target:
        _copy_all(list(_copies(publication)), storage, target, out, progress)
        configs = list[DatasetConfig]()
        if may(corpus, "annotations", "ids"):
            configs += write_captions(publication.records, target, partial(may_column, corpus))
        for output in publication.features:
            folder = f"features/{output.folder}"
            for name in STORE:
                target.write(f"{folder}/{name}", output.storage.read(f"{output.folder}/{name}"))
            configs.append(write_index(output, target, folder))
        target.write("README.md", fill_card(card, publication, configs).encode())
        files = _sizes(Path(target.url))
        about = {"corpus": corpus.name, "records": publication.records.identity, "withheld": withheld(corpus)}
        target.write(MANIFEST, canonical_json(about | {"layout": LAYOUT, "files": files}))
    rows = {each.name: {split["name"]: split["num_examples"] for split in each.info["splits"]} for each in configs}
    return about | {"path": str(out), "rows": rows, "files": len(files), "bytes": sum(files.values())}


def feature_stores(corpus: Corpus, storage: Storage, say: Callable[[str], None] = lambda text: None) -> list[Output]:
    """Every finished store of features computed from the corpus' media as they are sealed now; says which it drops."""
    stores = [output for output in directories(storage) if output.complete and ROWS in output.files]
    faults = dict(_faults(corpus, storage, stores))
    found = [store for store, fault in faults.items() if not fault]
    anew = [_settings(store) for store in found]
    for store, fault in faults.items():
        if fault and media_set_of(store) == corpus.media_set and _settings(store) not in anew:
            say(f"not published: {store.where} {fault}")
    return found


def _settings(store: Output) -> dict[str, Any]:
    return store.config | {"stage": store.stage, "items": None}


def _faults(corpus: Corpus, storage: Storage, stores: list[Output]) -> Iterator[tuple[Output, str]]:
    """Each store with the reason for which it may not be published, or ''."""
    media = sealed_now(storage, FOLDERS["media"], corpus.media_set)
    items: set[str] | None = None
    for store in stores:
        fault = ""
        if store.stage in stages.names() and not stages.load(store.stage).features:  # other names are imports'
            fault = "holds the pictures themselves, smaller: they are no features to publish"
        elif not media or not _reads(store, media):
            cure = build_command(storage.url, corpus.name, store.stage)
            fault = f"is not of {corpus.name}'s media as they are sealed now: build it again ({cure})"
        else:
            items = items or read_ids(_records(corpus, storage), "items.parquet")
            if not read_ids(store, ROWS) <= items:  # corpora share media
                fault = f"has rows that are no items of {corpus.name}: leave it out"
        yield store, fault


def _publication(
    corpus: Corpus, storage: Storage, features: list[Output] | None, progress: ProgressLine
) -> Publication:
    for output, fault in _faults(corpus, storage, features or []):
        if fault:
            raise UserError(f"{output.where} {fault}")
    names: dict[Part, str] = {"annotations": corpus.name, "media": corpus.media_set}
    found = {part: sealed_now(storage, FOLDERS[part], name) for part, name in names.items()}
    records = _records(corpus, storage)
    indexed = may(corpus, "annotations", "ids")  # an index of features names items
    if not (indexed or may(corpus, "media", "all")):
        raise UserError(f"{corpus.name}: its release leaves nothing to publish ({corpus.licence})")
    if may(corpus, "media", "all") and not found["media"]:
        cure = build_command(storage.url, corpus.name, "media")
        raise UserError(f"{corpus.name}: its media belong to it and are not here: build them first ({cure})")
    sealed = {part: output for part, output in found.items() if output and may(corpus, part, "ids")}
    if not (indexed and may(corpus, "media", "features")):
        features = []
    elif features is None:
        features = feature_stores(corpus, storage, progress.say)
    return Publication(corpus, records, sealed, features)


def _records(corpus: Corpus, storage: Storage) -> Output:
    """The records of the last build, if today's parser made them of what is sealed now."""
    made, sealed = records_now(storage, corpus.name), sealed_now(storage, FOLDERS["annotations"], corpus.name)
    versions = made and (made.about["version"], made.config["corpus_version"])
    if not made or not sealed or versions != (VERSION, corpus.version) or not _reads(made, sealed):
        cure = build_command(storage.url, corpus.name, "records")
        raise UserError(f"{corpus.name} has no records under {storage.url}: build them first ({cure})")
    return made


def _reads(output: Output, other: Output) -> bool:
    return any(each.folder == other.folder for each in made_from(output))


def _refuse_foreign_files(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder that does not exist yet")
    found, known = _sizes(out), _sizes_published(out / MANIFEST)
    if found and (strange := [path for path, _ in found.items() ^ known.items()]):
        what = "was changed since it was published" if known else "is not empty"
        raise UserError(f"{out} {what} ({min(strange)}): move that away, or give a folder that does not exist yet")


def _sizes_published(manifest: Path) -> dict[str, int]:
    try:
        recorded = json.loads(manifest.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    ours = isinstance(recorded, dict) and recorded.get("layout") == LAYOUT
    return recorded["files"] | {manifest.name: manifest.stat().st_size} if ours else {}


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


@contextmanager
def _put_in_place(out: Path) -> Iterator[LocalStorage]:
    beside = out.with_name(f".{out.name}.publishing")
    try:
        beside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): give another folder by --out") from error
    lock = os.open(beside, os.O_RDONLY)  # it goes with the process, however that ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UserError(f"{out} is being published by another process: wait until it is done") from None
    try:
        for left in ("new", "old"):  # by one that was killed
            shutil.rmtree(beside / left, ignore_errors=True)
        yield LocalStorage(str(beside / "new"))
        shutil.rmtree(beside / "new/_runs", ignore_errors=True)  # the storage's own
        if out.exists():
            os.rename(out, beside / "old")
        os.rename(beside / "new", out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        os.close(lock)


def _copies(publication: Publication) -> Iterator[Copy]:
    for output in publication.features:
        for name, size in output.files.items():
            yield Copy(f"features/{output.folder}/{name}", partial(output.open, name), size, output.checksums[name])
    for part, sealed in publication.sealed.items():
        yield Copy(lock_name(part), partial(sealed.open, LOCK), sealed.files[LOCK], sealed.config["lock_sha256"])
    if may(publication.corpus, "media", "all"):
        for locked in read_lock(publication.sealed["media"]):
            if locked.sha256:
                blob = partial(publication.records.storage.open, blob_key(locked.sha256))
                yield Copy(f"media/{locked.path}", blob, locked.size, locked.sha256)


def _copy_all(copies: list[Copy], source: Storage, target: LocalStorage, out: Path, progress: ProgressLine) -> None:
    needed, free = sum(copy.size for copy in copies), target.free_bytes()
    if free is not None and free < needed:
        raise UserError(f"{out} needs {needed:,} bytes and its disk has {free:,} free: make room, or take another disk")
    with progress.over(f"copying to {out}", len(copies), unit="files") as tick:
        for copy in copies:
            with copy.open() as read, target.writer(copy.key) as file:
                if copy_and_hash(read, file) != copy.sha256:
                    raise UserError(f"{copy.key} is not what was committed: {cure_under(source.url)}")
            tick(1)
