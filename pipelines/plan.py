"""What a build would do, before anything runs: requests, bytes, disk, time, and what is done already."""

from pathlib import Path
from typing import Any

from pipelines.corpus import STAGES, Site, parts, records_stage
from pipelines.engine import pending
from pipelines.ledger import FOLDERS, Ledger
from pipelines.seal import current
from xmodal.corpora import Corpus, Part, Source

ASSUMED_BYTES_A_SECOND = 12.5e6  # 100 Mbit/s, until this root has downloads to go by


def plan(site: Site, corpus: Corpus, stages: list[str]) -> list[dict[str, Any]]:
    """One row a stage: what is done, what is left, and what that costs."""
    rows = []
    for part, name, sources in parts(site.storage, corpus):
        if FOLDERS[part] in stages:
            rows.append({"corpus": corpus.name, "stage": FOLDERS[part]} | _files(site, part, name, sources))
    if "records" in stages:
        rows.append({"corpus": corpus.name, "stage": "records"} | _units(site, corpus))
    return sorted(rows, key=lambda row: list(STAGES).index(row["stage"]))


def _files(site: Site, part: Part, name: str, sources: list[Source]) -> dict[str, Any]:
    done = {state.path for state in Ledger(site.storage, part, name).states() if not state.failed}
    left = [source for source in sources if source.path not in done]
    at_hand = [source for source in left if site.raw and _is_at_hand(source, site.raw)]
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


def _is_at_hand(source: Source, raw: Path) -> bool:
    return (raw / source.path).is_file() or (raw / Path(source.path).name).is_file()


def _bytes_a_second(site: Site, part: Part, name: str) -> float:
    speed = Ledger(site.storage, part, name).download_speed()
    return speed or ASSUMED_BYTES_A_SECOND


def _units(site: Site, corpus: Corpus) -> dict[str, Any]:
    stage = records_stage(site, corpus)
    if stage is None:
        return {"waits_for": "sources"}
    total, left = pending(stage, site.storage)
    return {"units": total, "done": total - left}
