"""A root with what training reads: records of generated scenes, and features that tell what each scene shows.

Everything is made by the real stages but for the network: its place takes a random projection of the scene's facts.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipelines.demo.world import BACKGROUNDS, COLOURS, KINDS, World, describe, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.stages.texts.codebook import CodebookConfig
from pipelines.stages.texts.sentences import SentencesConfig
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.made import sentences
from xmodal.corpora import load
from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import FeatureStore, index_files, shard_file, write_shard
from xmodal.models.vsepp import VSEPPConfig
from xmodal.recipes import Features, Optimiser, Phase, Recipe, Step, Tokens, View
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.training import fit as fitting
from xmodal.training.run_setup import Setup

PICTURES = Path(__file__).parent / "fixtures/pictures.py"
WORLD = World(captions_per_item=5, ambiguity=0.0, partiality=0.4, synonymy=0.0, noise=0.0)
TOLD = {"network": "toynet", "weights": "random:0", "weights_sha256": "abcd"}
FACTS = [*((kind, colour) for kind in KINDS for colour in COLOURS), *BACKGROUNDS]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For test modules that import it: on a busy machine two threads that wait for each other take forever."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit(recipe: Recipe, root: str, run: str, tensorboard: bool = False, **setup: Any) -> fitting.Outcome:
    return fitting.fit(recipe, Setup(root, **setup), run, tensorboard=tensorboard)


@dataclass(frozen=True)
class Facts:
    items: int
    absent: tuple[int, ...] = ()
    width: int = 64
    seed: int = 0
    shown: Literal["scene", "number"] = "scene"
    places: int = 0  # of a grid; 0 is a vector

    @property
    def spec(self) -> FeatureSpec:
        return FeatureSpec("facts", (self.places, self.width) if self.places else (self.width,))


@dataclass(frozen=True)
class Media:
    name: str


def make_root(
    folder: Path,
    items: int = 120,
    absent: tuple[int, ...] = (),
    features: int = 1,
    media: str = "",
    places: int = 0,
    told: Callable[[int, int], str] = lambda number, position: describe(scene(WORLD, number), WORLD, position),
) -> str:
    """Of ten scenes eight are for training, one for validation and one for testing; the last one nobody described.

    With `media` the features say that they are made from the media set of that name; with `places` they are grids.
    `told` gives the captions of a scene, by their position.
    """
    root = str(folder / "root")
    splits: dict[str, list[str]] = {f"toy/{name}": [] for name in ("train", "val", "test")}
    for number in range(items - 1):
        splits["toy/" + {8: "val", 9: "test"}.get(number % 10, "train")].append(f"{item_id(number)}.jpg")
    splits["toy/silent"] = [f"{item_id(items - 1)}.jpg"]
    raw = folder / "raw"
    raw.mkdir(parents=True)
    lines = [f"{item_id(n)}.jpg\t{told(n, p)}\n" for n in range(items - 1) for p in range(5)]
    (raw / "captions.tsv").write_text("".join(lines))
    (raw / "splits.json").write_text(json.dumps(splits))
    (raw / "pictures.txt").write_text("")
    corpus = replace(load(str(PICTURES)), counts={})
    CorpusBuild(BuildOptions(open_storage(root), raw=raw), corpus).build("records")
    inputs = (Stage("media", Media(media), _plan, _open_media),) if media else ()
    for seed in range(features):
        build(replace(facts(Facts(items, absent, seed=seed, places=places)), inputs=inputs), open_storage(root))
    return root


def coded(root: str, coding: CodebookConfig | None = None, vectors: Path | None = None) -> FeatureStore:
    """The captions of a root as vectors, by default tf-idf of their words."""
    coding = coding or CodebookConfig("tfidf", width=64)
    config = SentencesConfig("float32", rows_per_shard=1024)
    return FeatureStore(build(sentences(find_output(root, "records"), coding, config, vectors), open_storage(root)))


def item_id(number: int) -> str:
    return f"p{number:04d}"


def facts(config: Facts) -> Stage[Facts, None]:
    return Stage("resnet", config, _plan, _open)


def _open_media(config: Media, inputs: Inputs) -> Callable[[None, Sink], Counts]:
    return lambda work, sink: {}


def _plan(config: object, inputs: Inputs) -> Iterator[tuple[str, None]]:
    yield "all", None


def _open(config: Facts, inputs: Inputs) -> Callable[[None, Sink], Counts]:
    def write(work: None, sink: Sink) -> Counts:
        for name, data in index_files(config.spec, [item_id(n) for n in range(config.items)], TOLD).items():
            with sink.file(name) as file:
                file.write(data)
        with sink.file(shard_file(config.spec, 0)) as file:
            write_shard(file, config.spec, range(config.items), [_values(config).astype("float16")])
        for number in config.absent:
            sink.fail(item_id(number), "unreadable", "no such picture")
        return {"rows": config.items}

    return write


def _values(config: Facts) -> NDArray[np.float64]:
    if config.shown == "number":
        return np.repeat(np.arange(config.items)[:, None], config.width, axis=1).astype(float)
    values = np.array([np.zeros(len(FACTS)) if n in config.absent else shown(n) for n in range(config.items)])
    projection = np.random.default_rng(config.seed).normal(size=(len(FACTS), math.prod(config.spec.row_shape)))
    return np.asarray(values @ projection).reshape(config.items, *config.spec.row_shape)


def shown(number: int) -> list[float]:
    """Which facts of a scene hold, one or zero each."""
    that = scene(WORLD, number)
    things = {(thing.kind, thing.colour) for thing in that.things}
    return [float(fact in things or fact == that.background) for fact in FACTS]


def recipe(epochs: int = 2, **changes: object) -> Recipe:
    """VSE++ on the toy root, small enough for a test."""
    adam = Optimiser("adam", 5e-3, clip_norm=2.0, schedule=Step((max(epochs * 2 // 3, 1),), 0.1))
    small = Recipe(
        name="toy",
        cites="ours",
        view=View("pictures", "toy/train", captions_per_item=5),
        validation=View("pictures", "toy/val", captions_per_item=5),
        visual=Features("resnet"),
        text=Tokens("nltk", minimum_count=2),
        model=VSEPPConfig(width=32, word_width=16),
        phases=(Phase(epochs, adam, {"ranking": 1.0}),),
        batch_size=32,
    )
    return replace(small, **changes)  # type: ignore[arg-type]
