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
from xmodal.models import Optimiser, Phase, Pixels, Recipe, Step, Tokens
from xmodal.storage import open_storage
from xmodal.trouble import Trouble

CUT = "zips/val2014.zip"
FEWEST = 10  # scenes: one of ten is for testing
SMALL = {
    "resnet.network": "resnet18",
    "resnet.weights": "random:0",
    "resnet.resize": 128,
    "resnet.crop": 128,
    "resnet.rows_per_shard": 128,
    "pixels.side": 128,
    "pixels.rows_per_shard": 256,
}


def demo(site: Site, folder: Path, world: World) -> dict[str, Any]:
    """Builds every stage of the world's COCO, trains and evaluates; what `xmodal demo --json` prints."""
    if world.items < FEWEST:
        raise Trouble(f"of {world.items} scenes none is left to test on: the demo needs at least {FEWEST}")
    publisher, root = folder / "publisher", site.storage.url
    corpus = _published(site, publisher, world)
    half = (publisher / CUT).stat().st_size // 2
    with serve(publisher, {CUT: [Behaviour(cut_after=half)]}) as server:
        site = replace(site, settings=SMALL | dict(site.settings))
        rows = build_stages(site, serve_at(corpus, server.url), [*USUAL, "resnet", "pixels"])
    identity = {row["stage"]: row["identity"] for row in rows}
    chosen = {"records": identity["records"], "features": identity["resnet"]}
    runs = []
    for recipe in recipes():
        used = chosen | ({"pixels": identity["pixels"]} if any(phase.pixels for phase in recipe.phases) else {})
        run = folder / "runs" / f"{recipe.name}-{fingerprint([recipe, used])[:12]}"
        site.progress.say(f"training {recipe.name}")
        outcome = experiments.train(recipe, root, run, threads=1, progress=site.progress, **used)
        report = experiments.evaluate(run, root, "karpathy/test", "cpu", site.progress)
        runs.append({"training": outcome, "evaluation": json.loads(report.to_json())})
    return {"root": root, "outputs": rows, "runs": runs}


def recipes() -> tuple[Recipe, ...]:
    """Of VSE0, PVSE and PCME, smaller and shorter.

    Mining the hardest negatives only pays once features are better than random ones: PVSE takes all of them. It is
    trained further from pixels, as its paper does, for one short epoch.
    """
    steps = Optimiser("adam", 3e-3, clip_norm=2.0, schedule=Step((8,), 0.1))
    once = Phase(12, steps, {"ranking": 1.0})
    pvse, pcme = (experiments.recipes()[name].phases[0] for name in ("pvse-coco", "pcme-coco"))
    learning = replace(steps, learning_rate=2e-3, schedule=Step((6,), 0.1))
    warm = Phase(8, learning, pvse.weights)
    tuned = Phase(1, replace(learning, learning_rate=1e-4), pvse.weights, pixels=Pixels("resized", flip=True))
    spread = Phase(5, replace(learning, rule="adamp", unclipped=("scale", "shift")), pcme.weights)
    return (
        _small("vse0", (once,)),
        _small("pvse-coco", (warm, tuned), embeddings=2, negatives="all"),
        _small("pcme-coco", (spread,)),
    )


def _small(name: str, phases: tuple[Phase, ...], **model: Any) -> Recipe:
    known = experiments.recipes()[name]
    return replace(
        known,
        name=f"demo-{name.partition('-')[0]}",
        cites=f"ours: {name} at the size of the generated world",
        text=Tokens("nltk", minimum_count=2),
        model=replace(known.model, width=128, word_width=64, **model),  # type: ignore[type-var]
        phases=phases,
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
