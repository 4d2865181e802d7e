"""`xmodal publish`: a corpus' records, features and card as a dataset repository in a local folder.

    README.md                                        the card: datasets_cards/<corpus>.md, filled in from the manifests
    captions/karpathy/train-00000-of-00001.parquet   one row an item: split "train" of config "karpathy"
    features/<stage>/<identity>/…                    a feature store as it is
    features/<stage>/<identity>-00000-….parquet      which item has which of its rows: a config of its own
    media/…                                          the pictures or clips, where the corpus allows it
    dataset.lock  media.lock                         which bytes all this was made of
    publication.json                                 every other file and its size: by this a publication is known again

What may be in it is decided by the corpus' release alone, in `_may`. The folder is filled beside its place and renamed,
so it is whole or not there; equal roots give equal bytes.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, BinaryIO, get_args

from pipelines import stages
from pipelines.engine.progress_line import ProgressLine
from pipelines.fetching.ledger import FOLDERS
from pipelines.publishing.hub_tables import CURE, ROWS, Config, describe, read_ids, write_captions, write_index
from pipelines.stages.records import VERSION
from xmodal import corpora
from xmodal.corpora import Corpus, Part, ReleaseClass
from xmodal.errors import UserError
from xmodal.records.tables import CAPTIONS_OF_PAPERS
from xmodal.root.files import copy_and_hash
from xmodal.root.identity import canonical_json
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import LOCK, blob_key, read_lock, records_now, sealed_now
from xmodal.root.storage import LocalStorage, Storage

CARDS = Path(__file__).parents[2] / "datasets_cards"  # in a checkout and in an installed wheel
MANIFEST = "publication.json"
STORE = ("stage.json", "units.tsv", "complete.json")  # by which a feature store is opened and checked
ITEMS = "items.parquet"
LAYOUT = 1
NEEDED: Mapping[str, tuple[Part, ReleaseClass]] = {  # every other column is the annotations themselves
    "id": ("annotations", "ids"),
    "caption_ids": ("annotations", "ids"),
    "url": ("media", "ids"),
}
SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))


@dataclass(frozen=True)
class Made:
    """What a publication is made of: only sets that may be named, only features that may be passed on."""

    corpus: Corpus
    records: Output
    sealed: Mapping[Part, Output]
    features: list[Output]


@dataclass(frozen=True)
class Copy:
    """A file that is published as it is."""

    key: str
    open: Callable[[], BinaryIO]
    size: int
    sha256: str


def publish(
    corpus: Corpus, root_storage: Storage, out: Path, features: list[Output], progress: ProgressLine | None = None
) -> dict[str, Any]:
    """Fills `out`, or replaces what was published there; says the rows of each config, and what was withheld."""
    out = out.resolve()
    _refuse_what_is_not_ours(out)
    made = _made(corpus, root_storage, features)
    with _put_in_place(out) as target:
        _copy_all(list(_copies(made, root_storage)), target, out, progress or ProgressLine(quiet=True))
        configs = [*_write_captions(made, target), *_write_features(made, target)]
        described = [describe(config, target) for config in configs]
        target.write("README.md", _card(made, configs, described).encode())
        files = _sizes(Path(target.url))
        about = {"corpus": corpus.name, "records": made.records.identity, "withheld": _withheld(corpus)}
        target.write(MANIFEST, canonical_json(about | {"layout": LAYOUT, "files": files}))
    rows = {i["config_name"]: {split["name"]: split["num_examples"] for split in i["splits"]} for i in described}
    return about | {"path": str(out), "rows": rows, "files": len(files), "bytes": sum(files.values())}


def feature_stores(corpus: Corpus, storage: Storage) -> list[Output]:
    """Every finished store of features that were computed from the corpus' media as they are sealed now.

    Corpora share media: a store that has a row for anything else than this corpus' items is another's. Resized pixels
    and frames are the media over again, not features: whoever may have those can make them.
    """
    media = sealed_now(storage, FOLDERS["media"], corpus.media_set)
    made = [output for output in directories(storage) if media and output.complete and _reads(output, media)]
    stores = [output for output in made if ROWS in output.files and _holds_features(output)]
    if not stores:
        return []
    items = read_ids(_records(corpus, storage), ITEMS)
    return [output for output in stores if read_ids(output, ROWS) <= items]


def _holds_features(output: Output) -> bool:
    """As its stage declares; a name that no stage has is that of an import."""
    return output.stage not in stages.names() or stages.load(output.stage).features


def _may(corpus: Corpus, part: Part, what: ReleaseClass) -> bool:
    """Whether a part's release goes as far as this: "all" includes "features", and that "ids"."""
    classes = get_args(ReleaseClass)
    return classes.index(corpus.release.get(part, "nothing")) <= classes.index(what)


def _withheld(corpus: Corpus) -> dict[str, str]:
    """The parts that are not there themselves, with their release class."""
    return {part: corpus.release.get(part, "nothing") for part in get_args(Part) if not _may(corpus, part, "all")}


def _made(corpus: Corpus, storage: Storage, features: list[Output]) -> Made:
    names: dict[Part, str] = {"annotations": corpus.name, "media": corpus.media_set}
    found = {part: sealed_now(storage, FOLDERS[part], name) for part, name in names.items()}
    sealed = {part: output for part, output in found.items() if output}
    for output in features:
        if not _holds_features(output):
            raise UserError(f"{output.where} holds the pictures themselves, smaller: they are no features to publish")
        if "media" not in sealed or not _reads(output, sealed["media"]):
            raise UserError(f"{output.where} is not of {corpus.name}'s media as they are sealed now: build it again")
    records = _records(corpus, storage)
    items = read_ids(records, ITEMS) if features else set()
    for output in features:
        if not read_ids(output, ROWS) <= items:
            raise UserError(f"{output.where} has rows that are no items of {corpus.name}: leave it out")
    indexed = _may(corpus, "annotations", "ids")  # an index of features names items
    allowed = features if indexed and _may(corpus, "media", "features") else []
    if not (allowed or _may(corpus, "annotations", "ids") or _may(corpus, "media", "all")):
        raise UserError(f"{corpus.name}: its release leaves nothing to publish ({corpus.licence})")
    if _may(corpus, "media", "all") and "media" not in sealed:
        raise UserError(f"{corpus.name}: its media belong to it and are not here: build {corpus.name}/media first")
    return Made(corpus, records, {p: output for p, output in sealed.items() if _may(corpus, p, "ids")}, allowed)


def _records(corpus: Corpus, storage: Storage) -> Output:
    """Those of the last build, if today's parser made them of what is sealed now."""
    made, sealed = records_now(storage, corpus.name), sealed_now(storage, FOLDERS["annotations"], corpus.name)
    versions = made and (made.about["version"], made.config["corpus_version"])
    if not made or not sealed or versions != (VERSION, corpus.version) or not _reads(made, sealed):
        raise UserError(f"{corpus.name} has no records under {storage.url}: build {corpus.name}/records first")
    return made


def _reads(output: Output, other: Output) -> bool:
    """Whether an output was made from another, directly or through others."""
    inputs = [Output(output.storage, f"{i['stage']}/{i['identity']}") for i in output.about["inputs"]]
    return any(each.folder == other.folder or _reads(each, other) for each in inputs)


# ------------------------------------------------------------------------------------------------------------ its place


def _refuse_what_is_not_ours(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder that is empty or does not exist yet")
    found, known = _sizes(out), _known(out / MANIFEST)
    strange = sorted(path for path, _ in found.items() ^ known.items())
    if found and strange:
        what = f"was changed since it was published ({strange[0]})" if known else f"is not empty ({strange[0]})"
        raise UserError(f"{out} {what}: move that away, or give a folder that is empty or does not exist yet")


def _known(manifest: Path) -> dict[str, int]:
    """The files of an earlier publication, itself among them; none where there is no such thing."""
    try:
        recorded = json.loads(manifest.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(recorded, dict) or recorded.get("layout") != LAYOUT:
        return {}
    return {**recorded["files"], manifest.name: manifest.stat().st_size}


def _sizes(folder: Path) -> dict[str, int]:
    """Every file in a folder, by its path there."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


@contextmanager
def _put_in_place(out: Path) -> Iterator[LocalStorage]:
    """A hidden folder beside `out` that takes its place when all is written; what a killed publish left is cleared."""
    beside = out.with_name(f".{out.name}.publishing")
    beside.mkdir(parents=True, exist_ok=True)
    with _held(beside, out):
        try:
            for left in ("new", "old"):
                shutil.rmtree(beside / left, ignore_errors=True)
            yield LocalStorage(str(beside / "new"))
            shutil.rmtree(beside / "new/_runs", ignore_errors=True)  # the storage's own
            if out.exists():
                os.rename(out, beside / "old")
            os.rename(beside / "new", out)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _held(folder: Path, out: Path) -> Iterator[None]:
    """For one process alone; the lock goes with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{out} is being published by another process: wait until that is done") from None
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------ its files


def _write_captions(made: Made, target: LocalStorage) -> list[Config]:
    def allowed(column: str) -> bool:
        return _may(made.corpus, *NEEDED.get(column, ("annotations", "all")))

    return write_captions(made.records, target, allowed) if _may(made.corpus, "annotations", "ids") else []


def _write_features(made: Made, target: LocalStorage) -> Iterator[Config]:
    """All but the files of the stores, which are copied."""
    for output in made.features:
        folder = f"features/{output.folder}"
        for name in STORE:
            target.write(f"{folder}/{name}", output.storage.read(f"{output.folder}/{name}"))
        yield write_index(output, target, folder)


def _copies(made: Made, storage: Storage) -> Iterator[Copy]:
    """The features' files, the locks, and the media themselves where they may be passed on."""
    for output in made.features:
        for unit in output.units():
            for name, (size, sha256) in unit.files.items():
                yield Copy(f"features/{output.folder}/{name}", partial(output.open, name), size, sha256)
    for part, sealed in made.sealed.items():
        yield Copy(_lock_name(part), partial(sealed.open, LOCK), sealed.files[LOCK], sealed.config["lock_sha256"])
    if _may(made.corpus, "media", "all"):
        for locked in read_lock(made.sealed["media"]):
            if locked.sha256:
                blob = partial(storage.open, blob_key(locked.sha256))
                yield Copy(f"media/{locked.path}", blob, locked.size, locked.sha256)


def _lock_name(part: Part) -> str:
    return LOCK if part == "annotations" else f"{part}.lock"


def _copy_all(copies: list[Copy], target: LocalStorage, out: Path, progress: ProgressLine) -> None:
    needed, free = sum(copy.size for copy in copies), target.free_bytes()
    if free is not None and free < needed:
        raise UserError(f"{out} needs {needed:,} bytes and its disk has {free:,} free: make room, or take another disk")
    with progress.over(f"copying to {out}", len(copies), unit="files") as tick:
        for copy in copies:
            _copy(copy, target)
            tick(1)


def _copy(copy: Copy, target: LocalStorage) -> None:
    with copy.open() as source, target.writer(copy.key) as file:
        if copy_and_hash(source, file) != copy.sha256:
            raise UserError(f"{copy.key} is not what was committed: {CURE}")


# ------------------------------------------------------------------------------------------------------------- its card


def _card(made: Made, configs: list[Config], described: list[dict[str, Any]]) -> str:
    """The template with `$name` filled in; what stands between `<!-- name -->` marks stays if the name has a value."""
    path = CARDS / f"{made.corpus.card or made.corpus.name}.md"
    if not path.is_file():
        raise UserError(f"{made.corpus.name} has no card: write {path}, like those beside it")
    facts = _facts(made, configs, described)
    return Template(_with_sections(path.read_text("utf-8"), facts)).substitute(facts)


def _with_sections(text: str, facts: Mapping[str, str]) -> str:
    section = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->\n", re.DOTALL)
    return section.sub(lambda found: _with_sections(found[2], facts) if facts[found[1]] else "", text)


def _facts(made: Made, configs: list[Config], described: list[dict[str, Any]]) -> dict[str, str]:
    corpus, counts, features = made.corpus, made.records.totals["counts"], made.features
    first = configs[0] if configs else Config("")
    about = [{"config_name": c.name, "default": c is first, "data_files": c.data_files} for c in configs]
    return {
        "name": corpus.name,
        "configs": _yaml(about),
        "dataset_info": _yaml(described),
        "size_category": next((name for limit, name in SIZES if counts["items"] < limit), "n>10M"),
        "config": first.name,
        "split": next((split for split in ("train", *first.files) if split in first.files), ""),
        "homepage": corpus.homepage,
        "licence": corpus.licence,
        "splits": "\n".join(_split_lines(made, configs, described)),
        "rows": "yes" if _may(corpus, "annotations", "ids") else "",
        "captions": "yes" if _may(corpus, "annotations", "all") else "",
        "ids_alone": "" if _may(corpus, "annotations", "all") else "yes",
        "urls": "yes" if _may(corpus, "media", "ids") else "",
        "media": "yes" if _may(corpus, "media", "all") else "",
        "media_elsewhere": "" if _may(corpus, "media", "all") else "yes",
        "features": "\n".join(f"- `{o.folder}`: {_settings(o)}" for o in features),
        "store": features[0].folder if features else "",
        "store_config": configs[-len(features)].name if features else "",
        "withheld": ", ".join(f"{part} ({release})" for part, release in _withheld(corpus).items()),
        "provenance": "\n".join(_provenance(made)),
        "differs": ", ".join(_not_the_publishers(made)),
    }


def _split_lines(made: Made, configs: list[Config], described: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of a Markdown table: config, split, rows, captions and those of them that are among an item's first five."""
    counts = made.records.totals["counts"]
    for config, info in zip(configs, described, strict=True):
        for split in info["splits"]:
            named = config.named.get(split["name"])
            captions = [counts.get(f"{kind}:{named}") for kind in ("captions", f"captions[:{CAPTIONS_OF_PAPERS}]")]
            cells = [f"`{config.name}`", f"`{split['name']}`", *map(_count, [split["num_examples"], *captions])]
            yield f"| {' | '.join(cells)} |"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _settings(output: Output) -> str:
    return ", ".join(f"{name} {value}" for name, value in output.config.items() if name != "_type")


def _provenance(made: Made) -> Iterator[str]:
    yield f"- records: `{made.records.folder}`"
    for part, output in made.sealed.items():
        yield f"- {part}: `{output.folder}`, {_lock_name(part)} has sha256 `{output.config['lock_sha256']}`"


def _not_the_publishers(made: Made) -> Iterator[str]:
    """The files that are others than the corpus of this name is published with."""
    known = made.corpus.name in corpora.names()
    sources = corpora.load(made.corpus.name).sources if known else made.corpus.sources
    published = {source.path: source.sha256 for source in sources if source.sha256}
    for output in made.sealed.values():
        locked = ((locked.path, locked.sha256) for locked in read_lock(output))
        yield from (f"`{path}`" for path, sha256 in locked if published.get(path, sha256) != sha256)


def _yaml(value: Any, indent: str = "") -> str:
    """Block style; texts are quoted, so that YAML cannot take them for something else."""
    deeper = f"{indent}  "
    if isinstance(value, dict):
        return "".join(f"\n{indent}{key}:{_yaml(each, deeper)}" for key, each in value.items())
    if isinstance(value, list):
        return "".join(f"\n{indent}- {_yaml(each, deeper).lstrip()}" for each in value) or " []"
    return f" {json.dumps(value)}"
