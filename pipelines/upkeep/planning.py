"""Plans a build before anything runs: requests, bytes, disk, time, and what is done already."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from statistics import fmean, stdev
from typing import Any

from pipelines import stages
from pipelines.engine.building import cores_of, pending
from pipelines.engine.stage import Stage
from pipelines.stages import DATA, FILE_SETS
from pipelines.upkeep.corpus_build import PARTS, CorpusBuild
from xmodal.corpora import Corpus, Part
from xmodal.errors import UserError
from xmodal.root.outputs import directories
from xmodal.root.storage import Storage

ASSUMED_BYTES_A_SECOND = 12.5e6  # 100 Mbit/s, until this root has downloads to go by
ASSUMED_BYTES = {  # of most files, until some sizes are known
    "table": (10_000, 30_000_000),
    "image": (20_000, 500_000),
    "clip": (100_000, 3_000_000),
}
MOST_BYTES = 65_536  # of the facts of a run
FEWEST_SIZES = 10  # from which others are estimated
LONG_RUN_SECONDS = 10.0  # shorter ones tell how long a start takes


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
    if part == "media" and work.corpus.media and not work.finished("sources"):  # the annotations list the media
        items = work.corpus.counts.get("items")
        low, high = _between(work.corpus, part, items or 0, [])
        told = {"bytes_between": [low, high], "seconds": round((low + high) / 2 / ASSUMED_BYTES_A_SECOND)}
        return {"waits_for": "sources"} | (told if items else {})
    files = work.files.of(part)
    left, raw = files.lacking(files.sources), work.files.raw_folder(part)
    at_hand = {source: os.path.getsize(file) for source in left if raw and (file := raw.find(source))}
    at_hand |= {source: source.bytes or 0 for source in left if (source.url or "").startswith("data:")}
    others = [source for source in left if source not in at_hand]
    requests = [source for source in others if source.url]
    known = sum(source.bytes or 0 for source in requests)
    unknown = sum(source.bytes is None for source in requests)
    sizes = {state.path: state.size for state in files.ledger.states() if not state.failed}
    sizes |= {source.path: size for source, size in at_hand.items()}
    sizes |= {source.path: source.bytes for source in files.sources if source.bytes}
    low, high = (known + bound for bound in _between(work.corpus, part, unknown, [*sizes.values()]))
    speed = files.ledger.download_speed() or ASSUMED_BYTES_A_SECOND
    return {
        "files": len(files.sources),
        "done": len(files.sources) - len(left),
        "at_hand": len(at_hand),
        "requests": len(requests),
        "by_hand": [source.path for source in others if not source.url],
        "bytes": known,
        "unknown_sizes": unknown,
        "known_sizes": len(sizes),
        "bytes_between": [low, high],
        "seconds": round((low + high) / 2 / speed),
        "sealed": files.sealed is not None,
    }


def _between(corpus: Corpus, part: Part, files: int, known: list[int]) -> list[int]:
    """Bounds of the bytes of files, from the sizes of others: two standard errors of their sum."""
    if len(known) < FEWEST_SIZES or not files:
        kinds = ["table"] if part == "annotations" else sorted({"image", "clip"} & corpus.kinds) or ["image", "clip"]
        least, most = zip(*(ASSUMED_BYTES[kind] for kind in kinds), strict=True)
        return [files * min(least), files * max(most)]
    error = 2 * stdev(known) * files * math.sqrt(1 / len(known) + 1 / files)
    return [round(max(files * min(known), files * fmean(known) - error)), round(files * fmean(known) + error)]


def _units(work: CorpusBuild, name: str) -> dict[str, Any]:
    stage = work.stage(name)
    before = [need for need in stages.load(name).needs if not work.finished(need)]
    inner = [made for made in stage.inputs if isinstance(made, Stage)] if stage else []  # which it builds for itself
    before += [made.name for made in inner if pending(made, work.options.storage)[1]]
    if before or stage is None:
        return {"waits_for": " and ".join(before)} | _estimate(work, name, left=1.0)
    total, left = pending(stage, work.options.storage)
    return {"units": total, "done": total - left} | _estimate(work, name, left / total if total else 0.0)


def _estimate(work: CorpusBuild, name: str, left: float) -> dict[str, Any]:
    """Bytes, time and memory of the units that are left, as far as the stage can tell."""
    return _writes(work, name, left) | _computing(work, name, left)


def _computing(work: CorpusBuild, name: str, left: float) -> dict[str, Any]:
    kind = stages.load(name)
    seconds = work.core_seconds(kind)
    if seconds is None or not left:
        return {}
    options = work.options
    runs, cores = [*_runs(options.storage, name)], cores_of(options.run)
    factor = sum(took for took, _ in runs) / sum(told for _, told in runs) if runs else 1.0
    told = {"compute_seconds": round(left * factor * seconds / cores, 1), "cores": cores}
    return told | {"by": "runs here" if runs else "a table", "memory": round(cores * kind.memory)}


def _runs(storage: Storage, stage: str) -> Iterator[tuple[float, float]]:
    """The core seconds that runs of a stage took under this root, and those that were estimated for their units."""
    for output in directories(storage, stage):
        folder = f"{output.folder}/_runs"
        for name in storage.names(folder):
            with suppress(UserError, OSError, ValueError, TypeError, LookupError, ZeroDivisionError, RecursionError):
                run = json.loads(storage.read(f"{folder}/{name}", MOST_BYTES)) if name.endswith(".json") else {}
                seconds, share = run["finished"] - run["started"], 1 - run["done_before"] / run["planned"]
                took, told = seconds * run["cores"], run["core_seconds"] * share
                if seconds >= LONG_RUN_SECONDS and 0 < told < math.inf and 0 < took < math.inf:
                    yield took, told


def _writes(work: CorpusBuild, name: str, left: float) -> dict[str, int]:
    """The bytes still to be written; before a parse, for the corpus' promised items."""
    kind = stages.load(name)
    items = len(work.items_of(kind.of)) if work.finished("records") else work.corpus.counts.get("items")
    if kind.estimate is None or items is None:
        return {}
    stage = work.stage(name)  # whose config has what `make` filled in
    estimate = kind.estimate(stage.config if stage else work.config(kind), items, work.finished_needs(kind))
    return {"writes": round(left * estimate)}
