"""From a corpus' name to its outputs: which stages it has, what each needs before it, and the settings one may give.

    sources   its annotation files, sealed            media     its pictures or clips, sealed
    records   those parsed into tables                resnet    features of its pictures
                                                      pixels    its pictures, resized, for training from pixels
    plausible which of its sets of categories are near each other
    vocabulary    the words of a split's captions
    fingerprints  of its media, by which copies are found
    frames    what its clips show, 8 times a second   clips     features of those
    sentences a vector for each of its captions

Parsing needs no media, and media that corpora share (one media set) are fetched and computed on once. Features are
built only when they are named: they may take days.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.engine.building import Runner, build, serial
from pipelines.engine.progress_line import Progress
from pipelines.engine.stage import Stage
from pipelines.engine.typed_settings import apply
from pipelines.fetching.download import may_pass
from pipelines.fetching.fetcher import RawFolder, fetch, unpacked
from pipelines.fetching.ledger import FOLDERS, Lacking, Ledger
from pipelines.fetching.sealing import current, seal
from pipelines.stages._pictures import Index, Items, Shard
from pipelines.stages.clips import ClipsConfig, clips
from pipelines.stages.fingerprints import FingerprintsConfig, Stretch, fingerprints, planned
from pipelines.stages.frames import FramesConfig, check_decoders, frames
from pipelines.stages.pixels import PixelsConfig, pixels
from pipelines.stages.plausible import PlausibleConfig, plausible
from pipelines.stages.records import Files, RecordsConfig, records
from pipelines.stages.resnet import ResNetConfig, resnet
from pipelines.stages.sentences import CodebookConfig, SentencesConfig, sentences
from pipelines.stages.vocabulary import VocabularyConfig, vocabulary
from xmodal.corpora import Corpus, Part, Source
from xmodal.errors import UserError
from xmodal.raw.raw_files import raw_of
from xmodal.records.tables import Item, Kind, read_rows
from xmodal.root.outputs import Output, directories
from xmodal.root.sealed_sets import read_lock, use_records
from xmodal.root.storage import Storage

UNPACKED_AT_ONCE = 64  # files that lie beside their archive for a moment


@dataclass(frozen=True)
class Site:
    """Where and how a build runs: circumstance, but for `settings`, which change configs and so identities."""

    storage: Storage
    run: Runner = serial
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    raw: Path | None = None
    weights: Path | None = None
    vectors: Path | None = None  # of words
    settings: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)  # of annotations that lie elsewhere than in `raw`
    archives: bool = True  # and dumps in `raw` are searched too
    list_at: str | None = None  # where the list of somebody's own data lies


def build_sources(site: Site, corpus: Corpus) -> Output:
    return _fetched(site, corpus, "annotations", corpus.name, [])


def build_records(site: Site, corpus: Corpus) -> Output:
    build_sources(site, corpus)
    stage = records_stage(site, corpus)
    assert stage is not None
    made = build(stage, site.storage, site.run, site.progress)
    use_records(made)
    return made


def records_stage(site: Site, corpus: Corpus) -> Stage[RecordsConfig, Files] | None:
    """None while the annotations are not sealed: what is parsed decides the identity."""
    config = apply(RecordsConfig.of(corpus), "records", site.settings)
    sealed = current(site.storage, "annotations", corpus.name, required_sources(corpus, "annotations"))
    return records(corpus, sealed, config) if sealed else None


def build_media(site: Site, corpus: Corpus) -> Output:
    annotations = build_sources(site, corpus)
    listed = listed_media(corpus, annotations)
    _unpack(site, corpus, annotations, listed)
    return _fetched(site, corpus, "media", corpus.media_set, listed)


def build_of_media(name: str, site: Site, corpus: Corpus) -> Output:
    _refuse_other_kinds(corpus, name)
    if name in ("frames", "clips"):
        check_decoders(apply(FramesConfig(), "frames", site.settings))
    build_records(site, corpus)
    build_media(site, corpus)
    stage = OF_MEDIA[name](site, corpus)
    assert stage is not None
    return build(stage, site.storage, site.run, site.progress)


def resnet_stage(site: Site, corpus: Corpus) -> Stage[ResNetConfig, Index | Shard] | None:
    """None while the items are not parsed or the media are not sealed."""
    config = apply(ResNetConfig(), "resnet", site.settings)
    found = _of_kind("image", site, corpus, "resnet")
    return resnet(*found, config, site.weights) if found else None


def pixels_stage(site: Site, corpus: Corpus) -> Stage[PixelsConfig, Index | Shard] | None:
    """None as for resnet."""
    config = apply(PixelsConfig(), "pixels", site.settings)
    found = _of_kind("image", site, corpus, "pixels")
    return pixels(*found, config) if found else None


def frames_stage(site: Site, corpus: Corpus) -> Stage[FramesConfig, Any] | None:
    """None as for resnet."""
    config = apply(FramesConfig(), "frames", site.settings)
    found = _of_kind("clip", site, corpus, "frames")
    return frames(*found, config) if found else None


def clips_stage(site: Site, corpus: Corpus) -> Stage[ClipsConfig, Any] | None:
    """None as for resnet; frames that are not taken yet are, before it."""
    config = apply(ClipsConfig(), "clips", site.settings)
    taken = frames_stage(site, corpus)
    return clips(taken, config, site.weights) if taken else None


def build_of_records(name: str, site: Site, corpus: Corpus) -> Output:
    build_records(site, corpus)
    stage = OF_RECORDS[name](site, corpus)
    assert stage is not None
    return build(stage, site.storage, site.run, site.progress)


def plausible_stage(site: Site, corpus: Corpus) -> Stage[PlausibleConfig, Any] | None:
    """None while the items are not parsed."""
    config = apply(PlausibleConfig(), "plausible", site.settings)
    return plausible(tables, config) if (tables := _tables(site, corpus)) else None


def vocabulary_stage(site: Site, corpus: Corpus) -> Stage[VocabularyConfig, None] | None:
    """None as for plausible."""
    config = apply(VocabularyConfig(), "vocabulary", site.settings)
    return vocabulary(tables, config) if (tables := _tables(site, corpus)) else None


def sentences_stage(site: Site, corpus: Corpus) -> Stage[SentencesConfig, Any] | None:
    """None as for plausible; a codebook that is not fitted yet is, before it."""
    coding = apply(CodebookConfig(), "codebook", site.settings)
    config = apply(SentencesConfig(), "sentences", site.settings)
    return sentences(tables, coding, config, site.vectors) if (tables := _tables(site, corpus)) else None


def fingerprints_stage(site: Site, corpus: Corpus) -> Stage[FingerprintsConfig, Stretch] | None:
    """None as for resnet."""
    config = apply(FingerprintsConfig(), "fingerprints", site.settings)
    if (found := _items(site, corpus)) is None:
        return None
    media, items = found
    return fingerprints(media, planned(items), config)


def _of_kind(kind: Kind, site: Site, corpus: Corpus, stage: str) -> tuple[Output, Items] | None:
    """The sealed media and the items that are pictures, or clips; None as long as either is missing."""
    if (found := _items(site, corpus)) is None:
        return None
    media, items = found
    some = tuple(sorted((item.id, item.media) for item in items if item.kind == kind))
    if not some:
        raise _of_other_kinds(corpus, stage)
    return media, some


def _refuse_other_kinds(corpus: Corpus, stage: str) -> None:
    """Before media are fetched, where the corpus says what its items are."""
    if corpus.kinds and stage in NEEDED and NEEDED[stage] not in corpus.kinds:
        raise _of_other_kinds(corpus, stage)


def _of_other_kinds(corpus: Corpus, stage: str) -> UserError:
    has, other = ("pictures", "clips") if NEEDED[stage] == "image" else ("clips", "pictures")
    cure = f"; if they are {has}, name the list again with --kind {NEEDED[stage]}" if corpus.card == "own" else ""
    return UserError(f"{corpus.name} has no {has}: {stage} is for {has}, not {other}{cure}")


def _items(site: Site, corpus: Corpus) -> tuple[Output, list[Item]] | None:
    tables = _tables(site, corpus)
    media = current(site.storage, *parts(site.storage, corpus)[1])
    if tables is None or media is None:
        return None
    return media, list(read_rows(tables, Item))


def _tables(site: Site, corpus: Corpus) -> Output | None:
    """The records, where they are parsed."""
    stage = records_stage(site, corpus)
    made = stage and Output(site.storage, stage.folder)
    return made if made and made.complete else None


FEATURES: dict[str, Callable[[Site, Corpus], Stage[Any, Any] | None]] = {
    "resnet": resnet_stage,
    "pixels": pixels_stage,
}
OF_MEDIA: dict[str, Callable[[Site, Corpus], Stage[Any, Any] | None]] = {
    **FEATURES,
    "frames": frames_stage,
    "clips": clips_stage,
    "fingerprints": fingerprints_stage,
}
OF_RECORDS: dict[str, Callable[[Site, Corpus], Stage[Any, Any] | None]] = {
    "plausible": plausible_stage,
    "vocabulary": vocabulary_stage,
    "sentences": sentences_stage,
}
STAGES: dict[str, Callable[[Site, Corpus], Output]] = {
    "sources": build_sources,
    "records": build_records,
    "media": build_media,
    **{name: partial(build_of_records, name) for name in OF_RECORDS},
    **{name: partial(build_of_media, name) for name in OF_MEDIA},
}
NEEDED = {  # kinds of items or labels
    "plausible": "category",
    **dict.fromkeys(FEATURES, "image"),
    "frames": "clip",
    "clips": "clip",
}
USUAL = ("sources", "records", "media")  # what a corpus' name alone stands for
CONFIGS: dict[str, object] = {  # what --set may change
    "records": RecordsConfig("", 0, ""),
    "resnet": ResNetConfig(),
    "pixels": PixelsConfig(),
    "frames": FramesConfig(),
    "clips": ClipsConfig(),
    "plausible": PlausibleConfig(),
    "vocabulary": VocabularyConfig(),
    "fingerprints": FingerprintsConfig(),
    "codebook": CodebookConfig(),
    "sentences": SentencesConfig(),
}
BEFORE = {"clips": {"frames"}, "sentences": {"codebook"}}  # of CONFIGS those that are built before others


def unread(settings: Iterable[str], stages: Iterable[str]) -> list[str]:
    """Settings that no build of these stages reads, nor of what they are made from."""
    read = {"records"}.union(*({stage} | BEFORE.get(stage, set()) for stage in stages))
    return [setting for setting in settings if setting.partition(".")[0] not in read]


def build_stages(site: Site, corpus: Corpus, stages: Iterable[str]) -> list[dict[str, Any]]:
    """Brings these stages up to date; a row each says what it is and whether it was built just now."""
    before = {output.folder for output in directories(site.storage) if output.complete}
    rows = []
    for stage in stages:
        output = STAGES[stage](site, corpus)
        about = {"corpus": corpus.name, "stage": stage, "identity": output.identity, "path": output.where}
        totals = {name: output.totals[name] for name in ("bytes", "counts", "failures")}
        rows.append(about | {"built": output.folder not in before} | totals | _lacking(site, corpus, output))
    return rows


def _lacking(site: Site, corpus: Corpus, output: Output) -> dict[str, Any]:
    """Of sealed media why files are absent, how many of each class and one of them, and from which folders."""
    if output.stage != FOLDERS["media"] or not output.totals["counts"]["absent"]:
        return {}
    lacking, absent = Lacking(), set[str]()
    for locked in read_lock(output):
        lacking.add(locked.path, locked.sha256 is None)
        absent |= set() if locked.sha256 else {locked.path}
    why = dict[str, dict[str, Any]]()
    for state in Ledger(site.storage, "media", corpus.media_set).states():
        if state.failed and state.path in absent:
            why.setdefault(state.kind, {"files": 0, "path": state.path, "reason": state.reason})["files"] += 1
    return {"absent": why, "folders": lacking.folders}


def stages_of(corpus: Corpus) -> list[str]:
    """Those that it can have, by what its items and labels are."""
    return [name for name in STAGES if name not in NEEDED or NEEDED[name] in corpus.kinds]


def required_sources(corpus: Corpus, part: Part) -> list[Source]:
    """The files a corpus names itself: nothing goes on while one is missing."""
    return [source for source in corpus.sources if source.part == part]


def listed_media(corpus: Corpus, sealed: Output) -> list[Source]:
    """The files named inside the annotations: some are always gone, and are sealed as absent."""
    return list(corpus.media(raw_of(sealed))) if corpus.media else []


def retry(site: Site, corpus: Corpus, kind: str | None = None) -> dict[str, int]:
    """Tries the failed files again, those of one class where it is given, and nothing else."""
    tried = recovered = 0
    for part, name, sources in parts(site.storage, corpus):
        states = Ledger(site.storage, part, name).states()
        failed = {state.path for state in states if state.failed and kind in (None, state.kind)}
        again = [source for source in sources if source.path in failed]
        _fetch(site, corpus, part, name, again, sources)
        tried += len(again)
        recovered += len(again) - len(_not_provided(site.storage, part, name, again))
    return {"tried": tried, "recovered": recovered}


def reseal(site: Site, corpus: Corpus) -> dict[str, str]:
    """New sets from what the ledgers say now; the identity of each part's set, the old one where nothing changed."""
    sealed = {}
    for part, name, sources in parts(site.storage, corpus):
        tried = {state.path for state in Ledger(site.storage, part, name).states()}
        if part == "media" and not tried:
            continue
        if untried := [source.path for source in sources if source.path not in tried]:
            raise UserError(
                f"{corpus.name}: {len(untried):,} files were never tried, such as {untried[0]}: build first"
            )
        _refuse_missing(site, corpus, part, name)
        sealed[FOLDERS[part]] = seal(site.storage, part, name, sources).identity
    return sealed


def parts(storage: Storage, corpus: Corpus) -> list[tuple[Part, str, list[Source]]]:
    """Both ledgers of a corpus with the files each is about; media that unfetched annotations list are not known."""
    annotations = required_sources(corpus, "annotations")
    sealed = current(storage, "annotations", corpus.name, annotations)
    media = required_sources(corpus, "media") + (listed_media(corpus, sealed) if sealed else [])
    return [("annotations", corpus.name, annotations), ("media", corpus.media_set, media)]


def _fetched(site: Site, corpus: Corpus, part: Part, name: str, listed: list[Source]) -> Output:
    """The sealed set; files that failed before and are only listed wait for `retry`, unless their bytes were lost."""
    required = required_sources(corpus, part)
    sources = required + listed
    if (sealed := current(site.storage, part, name, sources)) is not None:
        return sealed
    _refuse_shared_paths(corpus, sources)
    states = {state.path: state for state in Ledger(site.storage, part, name).states()}
    needed = [s for s in required if s.path not in states or not states[s.path].provides(s)]
    fresh = [s for s in listed if s.path not in states or states[s.path].lost(s)]
    _fetch(site, corpus, part, name, needed + fresh, sources)
    _refuse_missing(site, corpus, part, name)
    return seal(site.storage, part, name, sources)


def _fetch(site: Site, corpus: Corpus, part: Part, name: str, some: list[Source], of: list[Source]) -> None:
    """From the raw folder, its archives and dumps, else from their addresses."""
    raw = raw_folder(site, corpus, part, of)
    if raw and some and site.archives:
        with TemporaryDirectory(prefix="xmodal-") as folder:
            inside = unpacked(raw, some, {Path(source.path).name for source in of}, Path(folder), site.progress.say)
            taken = _take(site, part, name, inside, Path(folder))
        some = [source for source in some if source.path not in taken]
    fetch(site.storage, part, name, some, raw, site.run, site.progress)


def raw_folder(site: Site, corpus: Corpus, part: Part, of: list[Source]) -> RawFolder | None:
    """Where the files that somebody has already are looked for."""
    elsewhere = site.files if part == "annotations" else None
    return RawFolder(site.raw, of, elsewhere, corpus.whole_paths) if site.raw else None


def _unpack(site: Site, corpus: Corpus, annotations: Output, listed: list[Source]) -> None:
    """Takes the media that lie inside the annotations, and are not here yet, into the ledger."""
    if corpus.unpack is None or current(site.storage, "media", corpus.media_set, listed):
        return
    states = {state.path: state for state in Ledger(site.storage, "media", corpus.media_set).states()}
    wanted = {s.path for s in listed if not s.url and (s.path not in states or states[s.path].lost(s))}
    with TemporaryDirectory(prefix="xmodal-") as folder:
        found = corpus.unpack(raw_of(annotations), wanted, Path(folder))
        _take(site, "media", corpus.media_set, found, Path(folder))


def _take(site: Site, part: Part, name: str, found: Iterator[Source], folder: Path) -> set[str]:
    """Files that are unpacked into a folder one after the other, into the ledger; their paths."""
    taken = set[str]()
    while some := list(islice(found, UNPACKED_AT_ONCE)):
        fetch(site.storage, part, name, some, RawFolder(folder, some), serial, Progress(quiet=True))
        taken.update(source.path for source in some)
        for source in some:
            (folder / source.path).unlink()
    return taken


def _refuse_shared_paths(corpus: Corpus, sources: list[Source]) -> None:
    path, count = Counter(source.path for source in sources).most_common(1)[0] if sources else ("", 1)
    if count > 1:
        raise UserError(f"{corpus.name}: {count} files have one path, {path}: give each its own")


def _refuse_missing(site: Site, corpus: Corpus, part: Part, name: str) -> None:
    required = required_sources(corpus, part)
    missing = _not_provided(site.storage, part, name, required)
    if missing:
        reasons = "; ".join(list(missing.values())[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise UserError(
            f"{corpus.name}: {len(missing)} of {len(required)} files are missing: {reasons}. "
            f"{_what_helps(site, part, name, list(missing))}"
        )


def _what_helps(site: Site, part: Part, name: str, missing: list[str]) -> str:
    """Trying again is advised only where a failure may pass."""
    states = {state.path: state for state in Ledger(site.storage, part, name).states()}
    passing = any(path not in states or may_pass(states[path].kind) for path in missing)
    files = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
    folder = f"the folder {site.raw}: neither it nor an archive in it has what was published"
    place = folder if site.raw else "a folder and add --raw FOLDER"
    return f"{'Run the same command again, or put' if passing else 'Put'} {files} into {place}"


def _not_provided(storage: Storage, part: Part, name: str, sources: list[Source]) -> dict[str, str]:
    """Each file whose right bytes are not here, with the reason."""
    wanted = {source.path: source for source in sources}
    bad = {
        state.path: f"{state.path} ({state.trouble})"
        for state in Ledger(storage, part, name).states()
        if state.path in wanted and not state.provides(wanted.pop(state.path))
    }
    return bad | {path: f"{path} (never tried)" for path in wanted}
