"""Plans a build before anything runs: requests, bytes, disk, time, and what is done already."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from pipelines import stages
from pipelines.engine.building import cores_of, pending
from pipelines.engine.stage import Stage
from pipelines.fetching.ledger import FOLDERS
from pipelines.stages import DATA, FILE_SETS
from pipelines.upkeep.corpus_build import PARTS, CorpusBuild, kinds_for
from pipelines.upkeep.taken_rows import taken_over
from xmodal.corpora import Corpus, Part, Source
from xmodal.errors import UserError
from xmodal.root.outputs import directories
from xmodal.root.storage import Storage
from xmodal.userdata.embedded_pictures import FOLDER

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
    """One row for each named stage, and for each that it needs and that is not finished; none comes twice.

    A user's list that no build has read is parsed; nothing is written.
    """
    rows, seen = [], set[tuple[str, str]]()
    for work, named in targets:
        kinds = kinds_for(work.corpus, named)
        work.foresee()
        for kind in kinds:
            work.refuse_without_items(kind)
        for name in named if [*named] == [*DATA] else stages.with_needs([*named]):
            of = work.corpus.media_set if name == "media" else work.corpus.name
            if (name, of) in seen or (name not in named and work.finished(name)):
                continue
            seen.add((name, of))
            row = _files(work, PARTS[name]) if name in FILE_SETS else _units(work, name)
            rows.append({"corpus": work.corpus.name, "stage": name} | row)
    return rows


def _files(work: CorpusBuild, part: Part) -> dict[str, Any]:
    is_listed = part == "media" and work.corpus.media is not None  # the annotations list the media
    if is_listed and not (work.knows_items or work.finished("sources")):
        return _promised(work.corpus, part)
    files, raw = work.files.of(part), work.files.raw_folder(part)
    left, waiting = _left(work, part)
    at_hand = dict(_at_hand(work, part, left))
    others = [source for source in left if source.path not in at_hand]
    links = {source.path for source in others if raw and raw.find(source)}  # out of the folder
    others = [source for source in others if source.path not in links]
    requests = [source for source in others if source.url]
    sizes = {state.path: state.size for state in files.ledger.states() if not state.failed}
    sizes |= {path: found.size for path, found in at_hand.items()}
    sizes |= {source.path: source.bytes for source in files.sources if source.bytes}
    speed = files.ledger.download_speed() or ASSUMED_BYTES_A_SECOND
    return {
        "files": len(files.sources),
        "done": len(files.sources) - len(left) - waiting,
        "at_hand": len(at_hand),
        "at_hand_bytes": sum(found.size for found in at_hand.values()),
        "writes": sum(found.size for found in at_hand.values() if found.is_copied),
        "by_hand": [source.path for source in others if not source.url],
        "links": sorted(links),
        "failed_before": waiting,
        "sealed": work.finished(FOLDERS[part]) is not None,
    } | _downloads(work.corpus, part, requests, [*sizes.values()], speed)


def _promised(corpus: Corpus, part: Part) -> dict[str, Any]:
    """Media of which no list is read yet, by the corpus' own count."""
    items = corpus.counts.get("items")
    if not items:
        return {"waits_for": "sources"}
    low, high = _between(corpus, part, items, [])
    seconds = round((low + high) / 2 / ASSUMED_BYTES_A_SECOND)
    return {"waits_for": "sources", "bytes_between": [low, high], "seconds": seconds}


def _downloads(
    corpus: Corpus, part: Part, requests: Sequence[Source], sizes: list[int], speed: float
) -> dict[str, Any]:
    """Requests, their bytes and seconds; sizes that nobody tells are estimated from those that are known."""
    known = sum(source.bytes or 0 for source in requests)
    unknown = sum(source.bytes is None for source in requests)
    low, high = (known + bound for bound in _between(corpus, part, unknown, sizes))
    return {
        "requests": len(requests),
        "bytes": known,
        "unknown_sizes": unknown,
        "known_sizes": len(sizes),
        "bytes_between": [low, high],
        "seconds": round((low + high) / 2 / speed),
    }


@dataclass(frozen=True)
class _FileAtHand:
    size: int
    is_copied: bool = True  # else it is linked, which takes no room


def _left(work: CorpusBuild, part: Part) -> tuple[list[Source], int]:
    """Files that a build tries to get, and how many others failed before and wait for `retry`."""
    files = work.files.of(part)
    wanted = {source.path for source in files.to_fetch()} | (work.changed_media if part == "media" else set())
    lacking = {source.path for source in files.lacking(files.sources)}
    return [source for source in files.sources if source.path in wanted], len(lacking - wanted)


def _at_hand(work: CorpusBuild, part: Part, left: Sequence[Source]) -> Iterator[tuple[str, _FileAtHand]]:
    """Files of this machine by their paths; pictures inside a list take about what the list does."""
    raw, storage = work.files.raw_folder(part), work.options.storage
    inside = [source.path for source in left if source.path.startswith(f"{FOLDER}/") and work.corpus.card == "own"]
    size = sum(source.bytes or 0 for source in work.corpus.sources) // max(len(inside), 1)
    yield from ((path, _FileAtHand(size)) for path in inside)
    for source in left:
        if (source.url or "").startswith("data:"):
            yield source.path, _FileAtHand(source.bytes or 0)
        elif raw and (file := raw.find(source)) and raw.takes(source, file):
            is_copied = source.path in raw.elsewhere or not storage.links(file)
            yield source.path, _FileAtHand(os.path.getsize(file), is_copied)


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
    rest = _estimate(work, name, left / total) if left else _writes(work, name, left=0.0)
    return {"units": total, "done": total - left} | rest


def _estimate(work: CorpusBuild, name: str, left: float) -> dict[str, Any]:
    """Rows, bytes, time and memory of the units that are left, as far as the stage can tell."""
    rows = _rows(work, name) if work.knows_items else {}
    new = rows["new"] / rows["items"] if "new" in rows else 1.0
    return rows | _writes(work, name, left) | _computing(work, name, min(left, new))


def _rows(work: CorpusBuild, name: str) -> dict[str, int]:
    """Items and captions that a stage reads, and how many items have their rows in earlier outputs."""
    kind = stages.load(name)
    counts = work.counts_for(kind) or {}
    rows = {"items": counts["items"]}
    if "media" not in stages.with_needs([name]):
        return rows | {"captions": counts["captions"]}
    taken = taken_over(work, name, work.items_of(kind.of), lambda: _checksums(work))
    return rows | ({"taken": taken, "new": counts["items"] - taken} if taken else {})


def _checksums(work: CorpusBuild) -> dict[str, str]:
    """Checksums, by their paths, of media that are here as a build will take them."""
    there = (state for state in work.files.of("media").ledger.states() if not state.failed)
    return {state.path: state.sha256 for state in there if state.path not in work.changed_media}


def _computing(work: CorpusBuild, name: str, left: float) -> dict[str, Any]:
    seconds = work.core_seconds(kind := stages.load(name))
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
    items = len(work.items_of(kind.of)) if work.knows_items else work.corpus.counts.get("items")
    if kind.estimate is None or items is None:
        return {}
    stage = work.stage(name)  # whose config has what `make` filled in
    estimate = kind.estimate(stage.config if stage else work.config(kind), items, work.finished_needs(kind))
    return {"writes": round(left * estimate)}
