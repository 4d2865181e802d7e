"""What a build would do, before anything runs: requests, bytes, disk, time, and what is done already."""

from typing import Any

from pipelines.engine.building import pending
from pipelines.engine.stage import Stage
from pipelines.fetching.ledger import FOLDERS, Ledger
from pipelines.fetching.sealing import current
from pipelines.stages._corpus import FEATURES, OF_MEDIA, OF_RECORDS, Site, parts, raw_folder, records_stage
from xmodal.corpora import Corpus, Part, Source
from xmodal.root.outputs import Output
from xmodal.root.storage import Storage

ASSUMED_BYTES_A_SECOND = 12.5e6  # 100 Mbit/s, until this root has downloads to go by


def plan(site: Site, corpus: Corpus, stages: list[str]) -> list[dict[str, Any]]:
    """One row a stage: what is done, what is left, and what that costs."""
    of_files = {FOLDERS[part]: (part, name, sources) for part, name, sources in parts(site.storage, corpus)}
    rows = []
    for stage in stages:
        if stage == "media" and corpus.media and not records_stage(site, corpus):
            row: dict[str, Any] = {"waits_for": "sources"}  # which media there are is said in the annotations
        else:
            row = _files(site, corpus, *of_files[stage]) if stage in of_files else _units(site, corpus, stage)
        rows.append({"corpus": corpus.name, "stage": stage} | row)
    return rows


def _files(site: Site, corpus: Corpus, part: Part, name: str, sources: list[Source]) -> dict[str, Any]:
    states = {state.path: state for state in Ledger(site.storage, part, name).states()}
    left = [source for source in sources if source.path not in states or not states[source.path].provides(source)]
    raw = raw_folder(site, corpus, part, sources)
    at_hand = [source for source in left if raw and raw.find(source)]
    requests = [source for source in left if source not in at_hand and source.url]
    known = sum(source.bytes or 0 for source in requests)
    return {
        "files": len(sources),
        "done": len(sources) - len(left),
        "at_hand": len(at_hand),
        "requests": len(requests),
        "by_hand": [s.path for s in left if s not in at_hand and not s.url],
        "bytes": known,
        "unknown_sizes": sum(source.bytes is None for source in requests),
        "seconds": round(known / _bytes_a_second(site, part, name)),
        "sealed": current(site.storage, part, name, sources) is not None,
    }


def _bytes_a_second(site: Site, part: Part, name: str) -> float:
    speed = Ledger(site.storage, part, name).download_speed()
    return speed or ASSUMED_BYTES_A_SECOND


def _units(site: Site, corpus: Corpus, name: str) -> dict[str, Any]:
    if name in OF_MEDIA:
        return _of_media(site, corpus, name)
    stage = OF_RECORDS.get(name, records_stage)(site, corpus)
    if stage is None:
        return {"waits_for": "records" if name in OF_RECORDS else "sources"}
    return _waiting(site, stage) or _progress(site, stage)


def _of_media(site: Site, corpus: Corpus, name: str) -> dict[str, Any]:
    """`writes` is what is still to be written: of pictures at most, as shards are counted as full, of clips about."""
    stage = OF_MEDIA[name](site, corpus)
    if stage is None:
        return {"waits_for": "records and media"}
    if waiting := _waiting(site, stage):
        return waiting
    row = _progress(site, stage)
    return row | {"writes": _writes(name, stage, site.storage, row["units"] - row["done"], row["units"])}


def _waiting(site: Site, stage: Stage[Any, Any]) -> dict[str, Any]:
    """For the stages before it, where any of them is not done; else nothing."""
    before = [made.name for made in stage.inputs if isinstance(made, Stage) and pending(made, site.storage)[1]]
    return {"waits_for": " and ".join(before)} if before else {}


def _progress(site: Site, stage: Stage[Any, Any]) -> dict[str, Any]:
    total, left = pending(stage, site.storage)
    return {"units": total, "done": total - left}


def _writes(name: str, stage: Stage[Any, Any], storage: Storage, left: int, total: int) -> int:
    config, inputs = stage.config, tuple(Output(storage, made.folder) for made in stage.inputs)
    if name in FEATURES:
        return left * int(config.spec.shard_rows * config.spec.row_bytes)
    if name == "frames":
        _, index = next(stage.plan(config, inputs))
        return int(len(index.ids) * config.clip_bytes * left / total)
    if name == "clips":
        return int(inputs[0].totals["counts"]["samples"] * config.spec.row_bytes * left / total)
    return 0
