"""`xmodal demo`: publishers that do not exist, their corpora, features, models and recall, as with real ones.

The generated worlds are written as COCO's, TGIF's and MRW's own files, served on loopback, fetched, checked, sealed and
parsed. The connection breaks in the middle of one of COCO's archives: the second attempt goes on from there. Some of
the clips are gone. Features come from a ResNet with random weights, which is said wherever they are named.
"""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.demo import coco, mrw, tgif
from pipelines.demo.files import serve_at
from pipelines.demo.server import Site, serving
from pipelines.demo.world import TABLES, World
from pipelines.engine.build_options import BuildOptions
from pipelines.fetching import corpus_names
from pipelines.papers import recipe_runs
from pipelines.stages import DATA
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from xmodal.corpora import Corpus, load
from xmodal.errors import UserError
from xmodal.recipes import Features, Optimiser, Phase, Pixels, Recipe, Step, Tokens
from xmodal.root.identity import fingerprint
from xmodal.root.storage import open_storage
from xmodal.training.run_setup import Setup

CUT = "zips/val2014.zip"
FEWEST = 10  # scenes: one of ten is for testing
CLIPS = 160  # scenes of a world of clips at most
SIDE = 64  # pixels of a clip
SMALL: dict[str, Any] = TABLES["settings"]
STEPS = Optimiser("adam", 3e-3, clip_norm=2.0, schedule=Step((8,), 0.1))


@dataclass(frozen=True)
class Show:
    corpus: Corpus
    write: Callable[[World, Path], Corpus]
    world: World
    stages: tuple[str, ...]
    recipes: tuple[Recipe, ...]


def demo(options: BuildOptions, folder: Path, world: World) -> dict[str, Any]:
    if world.items < FEWEST:
        raise UserError(f"of {world.items} scenes none is left to test on: the demo needs at least {FEWEST}")
    every = shows(world)
    shown = every if importlib.util.find_spec("av") else every[:1]
    return learned(options, folder, shown) | {"left_out": [show.corpus.name for show in every[len(shown) :]]}


def learned(options: BuildOptions, folder: Path, shown: Sequence[Show]) -> dict[str, Any]:
    options = replace(options, settings=SMALL | dict(options.settings))
    outputs, runs = list[Any](), list[Any]()
    for show in shown:
        rows = built(options, folder / "publisher" / show.corpus.name, show)
        outputs += rows
        runs += _runs(options, folder / "runs", show, {row["stage"]: row["identity"] for row in rows})
    return {"root": options.storage.url, "outputs": outputs, "runs": runs}


def shows(world: World) -> tuple[Show, ...]:
    """COCO's world is as given. Those of clips are smaller and plainer, with one sentence a clip."""
    plain = World(identities=30, motion=1.0, ambiguity=0.0, partiality=0.2, synonymy=0.0, noise=0.0)
    clips = replace(plain, items=min(world.items, CLIPS), seed=world.seed, image_size=SIDE)
    of_clips = (*DATA, "frames", "clips")
    return (
        Show(load("coco"), coco.write, world, (*DATA, "resnet", "pixels", "sentences"), recipes()),
        Show(load("tgif"), tgif.write, clips, of_clips, (_of_clips("pvse-tgif"),)),
        Show(load("mrw"), mrw.write, clips, of_clips, (_of_clips("pvse-mrw"),)),
    )


def built(options: BuildOptions, publisher: Path, show: Show) -> list[dict[str, Any]]:
    corpus = _published(options, publisher, show)
    corpus_names.remember_generated(options.storage, corpus, publisher)
    cuts = {CUT: (publisher / CUT).stat().st_size // 2} if (publisher / CUT).exists() else {}
    with serving(Site(publisher, cuts)) as site:
        return build_stages(CorpusBuild(options, serve_at(corpus, site.url)), show.stages)


def _runs(options: BuildOptions, folder: Path, show: Show, identity: Mapping[str, str]) -> list[dict[str, Any]]:
    from xmodal.evaluation.run_metrics import evaluate

    runs = []
    for recipe in (_of_outputs(recipe, identity) for recipe in show.recipes):
        used: dict[str, Any] = {"records": identity["records"], "features": identity[recipe.visual.stage]}
        if any(phase.pixels for phase in recipe.phases):
            used["pixels"] = identity["pixels"]
        if isinstance(recipe.text, Features):
            used["texts"] = identity[recipe.text.stage]
        run = folder / f"{recipe.name}-{fingerprint([recipe, used])[:12]}"
        options.progress.say(f"training {recipe.name}")
        setup = Setup(options.storage.url, threads=1, progress=options.progress, **used)
        outcome = recipe_runs.train(recipe, setup, run)
        report = evaluate(str(run), setup)
        runs.append({"training": outcome, "evaluation": json.loads(report.to_json())})
    return runs


def _of_outputs(recipe: Recipe, identity: Mapping[str, str]) -> Recipe:
    """Names the output that words of un-annotated items are read from, of which a root may have several."""
    if recipe.unannotated is None:
        return recipe
    source = recipe.unannotated.source
    return replace(recipe, unannotated=replace(recipe.unannotated, text=f"{source}/{identity[source]}"))


def recipes() -> tuple[Recipe, ...]:
    """Recipes of VSE0, PVSE, PCME and Two-Branch, smaller and shorter.

    PVSE takes all negatives, as the hardest only pay with better features, and one epoch from pixels, as in its paper.
    """
    once = Phase(12, STEPS, {"ranking": 1.0})
    pvse, pcme = (recipe_runs.recipes()[name].phases[0] for name in ("pvse-coco", "pcme-coco"))
    learning = replace(STEPS, learning_rate=2e-3, schedule=Step((6,), 0.1))
    warm = Phase(8, learning, pvse.weights)
    tuned = Phase(1, replace(learning, learning_rate=1e-4), pvse.weights, pixels=Pixels("resized", flip=True))
    spread = Phase(5, replace(learning, rule="adamp", unclipped=("scale", "shift")), pcme.weights)
    return (
        small("vse0", (once,)),
        small("pvse-coco", (warm, tuned), embeddings=2, negatives="all"),
        small("pcme-coco", (spread,)),
        _two_branch(),
    )


def _two_branch() -> Recipe:
    """With tf-idf vectors of captions, which need no word vectors; on Karpathy's split, as the paper's is too large."""
    known = recipe_runs.recipes()["two-branch-coco-constraints"]
    split = recipe_runs.recipes()["vse0"]
    (phase,) = known.phases
    return replace(
        known,
        name="demo-two-branch",
        cites=f"ours: {known.name} at the size of the generated world",
        view=split.view,
        validation=split.validation,
        visual=split.visual,
        text=Features("sentences", method="tfidf"),
        model=replace(known.model, hidden=128, width=64, dropout=0.2, margin=0.2),  # type: ignore[type-var]
        phases=(replace(phase, epochs=12, optimiser=replace(STEPS, learning_rate=2e-3)),),
        batch_size=64,
    )


def _of_clips(name: str) -> Recipe:
    weights = recipe_runs.recipes()[name].phases[0].weights
    short = small(name, (Phase(12, replace(STEPS, learning_rate=2e-3), weights),), embeddings=2)
    return replace(short, name=f"demo-{name}", batch_size=32)


def small(name: str, phases: tuple[Phase, ...], **model: Any) -> Recipe:
    known = recipe_runs.recipes()[name]
    return replace(
        known,
        name=f"demo-{name.partition('-')[0]}",
        cites=f"ours: {name} at the size of the generated world",
        text=Tokens("nltk", minimum_count=2),
        model=replace(known.model, width=128, word_width=64, **model),  # type: ignore[type-var]
        phases=phases,
        batch_size=64,
    )


def _published(options: BuildOptions, publisher: Path, show: Show) -> Corpus:
    """Writes the publisher's files unless they are there for this world, which is remembered beside them."""
    memory, world = publisher / "world.json", fingerprint(show.world)
    files = open_storage(str(publisher))
    known = json.loads(memory.read_text()) if memory.exists() else {}
    if known.get("world") == world and all(files.size(one["path"]) == one["bytes"] for one in known["sources"]):
        return corpus_names.as_published(show.corpus, known)
    memory.unlink(missing_ok=True)
    options.progress.say(f"writing the publisher's files of a world of {show.world.items:,} scenes into {publisher}")
    corpus = show.write(show.world, publisher)
    files.write(memory.name, json.dumps({"world": world} | corpus_names.published_facts(corpus)).encode())
    return corpus
