"""`xmodal demo`: a publisher that does not exist, and its corpus built the way a real one is.

The generated world is written as COCO's own files, served on loopback, fetched, checked, sealed and parsed. The
connection breaks in the middle of one archive, as happens: the second attempt goes on from there.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.corpus import USUAL, Site, build_stages
from pipelines.demo import coco
from pipelines.demo.server import Behaviour, serve
from pipelines.demo.world import World
from xmodal.corpora import Corpus, Source
from xmodal.corpora.coco import CORPUS
from xmodal.identity import fingerprint
from xmodal.storage import open_storage

CUT = "zips/val2014.zip"


def demo(site: Site, publisher: Path, world: World) -> list[dict[str, Any]]:
    """Builds every stage of the world's COCO; one row a stage, as `xmodal build` gives them."""
    corpus = _published(site, publisher, world)
    half = (publisher / CUT).stat().st_size // 2
    with serve(publisher, {CUT: [Behaviour(cut_after=half)]}) as server:
        return build_stages(site, coco.serve_at(corpus, server.url), USUAL)


def _published(site: Site, publisher: Path, world: World) -> Corpus:
    """The publisher's files are written once for a world; what they are is remembered beside them."""
    memory = publisher / "world.json"
    remembered = json.loads(memory.read_text()) if memory.exists() else {}
    of = fingerprint(world)
    if remembered.get("world") != of:
        site.progress.say(f"writing the publisher's files of a world of {world.items:,} scenes into {publisher}")
        corpus = coco.write(world, publisher)
        written = [asdict(source) for source in corpus.sources]
        facts = json.dumps({"world": of, "sources": written, "counts": dict(corpus.counts)})
        open_storage(str(publisher)).write(memory.name, facts.encode())  # whole or not at all
        return corpus
    known = tuple(Source(**source | {"mirrors": tuple(source["mirrors"])}) for source in remembered["sources"])
    return replace(CORPUS, sources=known, counts=remembered["counts"])
