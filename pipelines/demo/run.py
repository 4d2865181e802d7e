"""`xmodal demo`: a publisher that does not exist, its corpus, features, a model and its recall, as with a real one.

The generated world is written as COCO's own files, served on loopback, fetched, checked, sealed and parsed. The
connection breaks in the middle of one archive, as happens: the second attempt goes on from there. Features come from a
ResNet with random weights, because weights that were trained cannot be had offline; that is enough to learn from, and
it is said wherever the features are named.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines import experiments
from pipelines.corpus import USUAL, Site, build_stages
from pipelines.demo import coco
from pipelines.demo.files import serve_at
from pipelines.demo.server import Behaviour, serve
from pipelines.demo.world import World
from xmodal.corpora import Corpus, Source
from xmodal.corpora.coco import CORPUS
from xmodal.identity import fingerprint
from xmodal.models import Optimiser, Phase, Recipe, Step, Tokens
from xmodal.storage import open_storage

CUT = "zips/val2014.zip"
RESNET = {
    "resnet.network": "resnet18",
    "resnet.weights": "random:0",
    "resnet.resize": 128,
    "resnet.crop": 128,
    "resnet.rows_per_shard": 128,
}


def demo(site: Site, folder: Path, world: World) -> dict[str, Any]:
    """Builds every stage of the world's COCO, trains and evaluates; what `xmodal demo --json` prints."""
    publisher, root = folder / "publisher", site.storage.url
    corpus = _published(site, publisher, world)
    half = (publisher / CUT).stat().st_size // 2
    with serve(publisher, {CUT: [Behaviour(cut_after=half)]}) as server:
        site = replace(site, settings=RESNET | dict(site.settings))
        rows = build_stages(site, serve_at(corpus, server.url), [*USUAL, "resnet"])
    identity = {row["stage"]: row["identity"] for row in rows}
    chosen = {"records": identity["records"], "features": identity["resnet"]}
    run = folder / "runs" / fingerprint([recipe(), chosen])[:12]
    outcome = experiments.train(recipe(), root, run, threads=1, progress=site.progress, **chosen)
    report = experiments.evaluate(run, root, "karpathy/test", "cpu", site.progress)
    return {"root": root, "outputs": rows, "training": outcome, "evaluation": json.loads(report.to_json())}


def recipe() -> Recipe:
    """VSE0, smaller and shorter: mining the hardest negatives only pays once features are better than random ones."""
    vse0 = experiments.recipes()["vse0"]
    once = Phase(12, Optimiser("adam", 3e-3, clip_norm=2.0, schedule=Step((8,), 0.1)), {"ranking": 1.0})
    return replace(
        vse0,
        name="demo",
        cites="ours: VSE0 at the size of the generated world",
        text=Tokens("nltk", minimum_count=2),
        model=replace(vse0.model, width=128, word_width=64),  # type: ignore[type-var]
        phases=(once,),
        batch_size=64,
    )


def _published(site: Site, publisher: Path, world: World) -> Corpus:
    """The publisher's files are written once for a world; what they are is remembered beside them."""
    memory = publisher / "world.json"
    remembered = json.loads(memory.read_text()) if memory.exists() else {}
    of = fingerprint(world)
    sizes = {source["path"]: source["bytes"] for source in remembered.get("sources", ())}
    there = {path: open_storage(str(publisher)).size(path) for path in sizes}
    if remembered.get("world") != of or there != sizes:
        memory.unlink(missing_ok=True)
        site.progress.say(f"writing the publisher's files of a world of {world.items:,} scenes into {publisher}")
        corpus = coco.write(world, publisher)
        written = [asdict(source) for source in corpus.sources]
        facts = json.dumps({"world": of, "sources": written, "counts": dict(corpus.counts)})
        open_storage(str(publisher)).write(memory.name, facts.encode())  # whole or not at all
        return corpus
    known = tuple(Source(**source | {"mirrors": tuple(source["mirrors"])}) for source in remembered["sources"])
    return replace(CORPUS, sources=known, counts=remembered["counts"])
