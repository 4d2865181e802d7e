"""`python -m tests.benchmarks.dual_path_losses [RATE]`: instance loss first, then both, beside other orders of losses.

Every way takes 1,200 steps on 480 scenes of the generated world, in which 60 individuals come again and again. Classes
are the scenes, or their individuals. Printed are rsums, the validation's and the test's, of two seeds.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from pipelines.demo.world import World, describe, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.upkeep.corpus_build import CorpusBuild
from tests import toy_root
from xmodal.corpora import load
from xmodal.evaluation.run_metrics import evaluate
from xmodal.models.dual_path import BOTH, INSTANCE, RANKING, DualPathConfig
from xmodal.raw.raw_files import Raw
from xmodal.recipes import Candidates, Optimiser, Phase
from xmodal.records.tables import Label, Row
from xmodal.root.storage import open_storage
from xmodal.training.run_setup import Setup

ITEMS, INDIVIDUALS, SEEDS = 600, 60, (0, 1)
WORLD = replace(toy_root.WORLD, identities=INDIVIDUALS)
MODEL = DualPathConfig((1, 1, 1, 1), channels=32, width=128, word_width=32, length=16, dropout=0.5)
WAYS = {
    "instance, then both": (INSTANCE, BOTH),
    "ranking alone": (RANKING, RANKING),
    "instance alone": (INSTANCE, INSTANCE),
    "ranking, then both": (RANKING, BOTH),
}


def make_root(folder: Path, world: World) -> str:
    toy_root.WORLD = world  # what features show
    toy_root.make_root(folder / "plain", ITEMS, told=lambda number, place: describe(scene(world, number), world, place))
    corpus = load(str(toy_root.PICTURES))

    def parse(raw: Raw) -> Iterator[Row]:
        yield from corpus.parse(raw)
        for number in range(ITEMS):
            yield Label(toy_root.item_id(number), "identity", str(scene(world, number).identity))

    storage = open_storage(str(folder / "root"))
    options = BuildOptions(storage, raw=folder / "plain/raw")
    CorpusBuild(options, replace(corpus, counts={}, parse=parse)).build("records")
    build(toy_root.facts(toy_root.Facts(ITEMS)), storage)
    return storage.url


def phases(first: Mapping[str, float], then: Mapping[str, float], rate: float) -> tuple[Phase, ...]:
    """Hard texts are mined wherever ranking counts; the rate falls for the last quarter."""
    optimiser = Optimiser("nesterov", rate, weight_decay=1e-4, momentum=0.9)
    low = replace(optimiser, learning_rate=rate / 10)
    parts = ((40, first, optimiser), (20, then, optimiser), (20, then, low))
    return tuple(
        Phase(
            epochs,
            by,
            weights,
            captions="one",
            validate_every=6,
            sampler=Candidates(64) if weights["ranking"] else None,
        )
        for epochs, weights, by in parts
    )


def main(rate: float) -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        root = make_root(Path(folder), WORLD)
        for identities in (False, True):
            for name, weights in WAYS.items():
                for seed in SEEDS:
                    recipe = toy_root.recipe(
                        model=replace(MODEL, learns_identities=identities), phases=phases(*weights, rate), seed=seed
                    )
                    run = f"{folder}/{identities}-{name}-{seed}"
                    outcome = toy_root.fit(recipe, root, run)
                    test = evaluate(run, Setup(root), "toy/test").scores["all"].rsum
                    classes = "individuals" if identities else "scenes"
                    print(f"{classes:12} {name:20} {seed} {outcome.rsum:6.1f} {test:6.1f}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.05)
