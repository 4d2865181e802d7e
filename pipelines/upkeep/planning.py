"""Plans a build before anything runs: requests, bytes, disk, time, and what is done already."""

from collections.abc import Iterable, Sequence
from typing import Any

from pipelines import stages
from pipelines.engine.building import pending
from pipelines.engine.stage import Stage
from pipelines.stages import DATA, FILE_SETS
from pipelines.upkeep.corpus_build import PARTS, CorpusBuild
from xmodal.corpora import Part

ASSUMED_BYTES_A_SECOND = 12.5e6  # 100 Mbit/s, until this root has downloads to go by


def plan(targets: Iterable[tuple[CorpusBuild, Sequence[str]]]) -> list[dict[str, Any]]:
    """One row for each named stage, and for each that it needs and that is not finished; none comes twice."""
    rows, seen = [], set[tuple[str, str]]()
    for work, named in targets:
        for name in named if [*named] == [*DATA] else stages.with_needs([*named]):
            of = work.corpus.media_set if name == "media" else work.corpus.name
            if (name, of) in seen or (name not in named and work.finished(name)):
                continue
            seen.add((name, of))
            row = _files(work, PARTS[name]) if name in FILE_SETS else _units(work, name)
            rows.append({"corpus": work.corpus.name, "stage": name} | row)
    return rows


def _files(work: CorpusBuild, part: Part) -> dict[str, Any]:
    if part == "media" and work.corpus.media and not work.finished("sources"):
        return {"waits_for": "sources"}  # the annotations list the media
    files = work.files.of(part)
    left, raw = files.lacking(files.sources), work.files.raw_folder(part)
    at_hand = [source for source in left if raw and raw.find(source)]
    others = [source for source in left if source not in at_hand]
    requests = [source for source in others if source.url]
    known = sum(source.bytes or 0 for source in requests)
    return {
        "files": len(files.sources),
        "done": len(files.sources) - len(left),
        "at_hand": len(at_hand),
        "requests": len(requests),
        "by_hand": [source.path for source in others if not source.url],
        "bytes": known,
        "unknown_sizes": sum(source.bytes is None for source in requests),
        "seconds": round(known / (files.ledger.download_speed() or ASSUMED_BYTES_A_SECOND)),
        "sealed": files.sealed is not None,
    }


def _units(work: CorpusBuild, name: str) -> dict[str, Any]:
    stage = work.stage(name)
    before = [need for need in stages.load(name).needs if not work.finished(need)]
    inner = [made for made in stage.inputs if isinstance(made, Stage)] if stage else []  # which it builds for itself
    before += [made.name for made in inner if pending(made, work.options.storage)[1]]
    if before or stage is None:
        return {"waits_for": " and ".join(before)} | _estimate(work, name, left=1.0)
    total, left = pending(stage, work.options.storage)
    return {"units": total, "done": total - left} | _estimate(work, name, left / total if total else 0.0)


def _estimate(work: CorpusBuild, name: str, left: float) -> dict[str, int]:
    """The bytes still to be written, if the stage can tell; before a parse, for the corpus' promised items."""
    kind = stages.load(name)
    items = len(work.items_of(kind.of)) if work.finished("records") else work.corpus.counts.get("items")
    if kind.estimate is None or items is None:
        return {}
    stage = work.stage(name)  # whose config has what `make` filled in
    estimate = kind.estimate(stage.config if stage else work.config(kind), items, work.finished_needs(kind))
    return {"writes": round(left * estimate)}
