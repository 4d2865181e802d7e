"""From a corpus' name to its outputs: which stages it has, what each needs before it, and the settings one may give.

    sources   its annotation files, sealed            media     its pictures or clips, sealed
    records   those parsed into tables

Parsing needs no media, and media that corpora share (one media set) are fetched and computed on once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.engine import Runner, build, serial
from pipelines.fetch import fetch
from pipelines.ledger import FOLDERS, Ledger, State
from pipelines.progress import Progress
from pipelines.records import Files, RecordsConfig, records
from pipelines.seal import current, seal
from pipelines.settings import apply
from pipelines.stage import Stage
from xmodal.corpora import Corpus, Part, Source
from xmodal.locks import raw_of
from xmodal.outputs import Output
from xmodal.storage import Storage
from xmodal.trouble import Trouble


@dataclass(frozen=True)
class Site:
    """Where and how a build runs: circumstance, but for `settings`, which change configs and so identities."""

    storage: Storage
    run: Runner = serial
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    raw: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def build_sources(site: Site, corpus: Corpus) -> Output:
    return _fetched(site, corpus, "annotations", corpus.name, required_sources(corpus, "annotations"), [])


def build_records(site: Site, corpus: Corpus) -> Output:
    build_sources(site, corpus)
    stage = records_stage(site, corpus)
    assert stage is not None
    return build(stage, site.storage, site.run, site.progress)


def records_stage(site: Site, corpus: Corpus) -> Stage[RecordsConfig, Files] | None:
    """None while the annotations are not sealed: what is parsed decides the identity."""
    config = apply(RecordsConfig(corpus.name, corpus.version), "records", site.settings)
    sealed = current(site.storage, "annotations", corpus.name, required_sources(corpus, "annotations"))
    return records(corpus, sealed, config) if sealed else None


def build_media(site: Site, corpus: Corpus) -> Output:
    listed = listed_media(corpus, build_sources(site, corpus))
    return _fetched(site, corpus, "media", corpus.media_set, required_sources(corpus, "media"), listed)


STAGES: dict[str, Callable[[Site, Corpus], Output]] = {
    "sources": build_sources,
    "records": build_records,
    "media": build_media,
}
CONFIGS: dict[str, type[object]] = {"records": RecordsConfig}


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
        fetch(site.storage, part, name, again, site.raw, site.run, site.progress)
        tried += len(again)
        recovered += len(failed) - len(_failed(site.storage, part, name, again))
    return {"tried": tried, "recovered": recovered}


def reseal(site: Site, corpus: Corpus) -> dict[str, str]:
    """New sets from what the ledgers say now; the identity of each part's set, the old one where nothing changed."""
    return {
        FOLDERS[part]: seal(site.storage, part, name, sources).identity
        for part, name, sources in parts(site.storage, corpus)
    }


def parts(storage: Storage, corpus: Corpus) -> list[tuple[Part, str, list[Source]]]:
    """Both ledgers of a corpus with the files each is about; media that are listed in unfetched files are not known."""
    annotations = required_sources(corpus, "annotations")
    sealed = current(storage, "annotations", corpus.name, annotations)
    media = required_sources(corpus, "media") + (listed_media(corpus, sealed) if sealed else [])
    return [("annotations", corpus.name, annotations), ("media", corpus.media_set, media)]


def _fetched(site: Site, corpus: Corpus, part: Part, name: str, required: list[Source], listed: list[Source]) -> Output:
    """The sealed set; files that were tried before and are only listed wait for `retry`."""
    sources = required + listed
    if (sealed := current(site.storage, part, name, sources)) is not None:
        return sealed
    states = {state.path: state.failed for state in Ledger(site.storage, part, name).states()}
    fresh = [s for s in listed if s.path not in states]
    fetch(
        site.storage,
        part,
        name,
        [s for s in required if states.get(s.path, True)] + fresh,
        site.raw,
        site.run,
        site.progress,
    )
    if missing := _failed(site.storage, part, name, required):
        raise Trouble(_missing(corpus, missing, len(required), site.storage.url))
    return seal(site.storage, part, name, sources)


def _failed(storage: Storage, part: Part, name: str, sources: list[Source]) -> list[State]:
    paths = {source.path for source in sources}
    return [s for s in Ledger(storage, part, name).states() if s.failed and s.path in paths]


def _missing(corpus: Corpus, missing: list[State], of: int, root: str) -> str:
    reasons = "; ".join(f"{state.path} ({state.kind}: {state.reason})" for state in missing[:3])
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{corpus.name}: {len(missing)} of {of} files are missing: {reasons}{more}. "
        f"Run the same command again, or put the files into a folder and add --raw FOLDER"
    )
