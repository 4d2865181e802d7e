"""The small detector, trained by the command on a generated world in Visual Genome's format, and held-out scenes.

Each seed trains anew on the same pictures. All kinds, colours, textures, sizes and backgrounds are there; rings have no
name, and an answer is right if box, shape and colour are.
"""

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.demo import visual_genome
from pipelines.demo.pictures import jpeg
from pipelines.demo.world import COLOURS, Scene, World, box, scene
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.benchmarks.measured import Bar, Measured
from xmodal.detection.pair_recall import NamedBox, PairScores, named_boxes, pair_scores
from xmodal.detection.region_arrays import DetectorWords
from xmodal.detectors._small_network import SmallDetector
from xmodal.detectors.small_faster_rcnn import load
from xmodal.media.images import open_image
from xmodal.records.tables import Region
from xmodal.root.files import sha256_of
from xmodal.root.storage import open_storage

BARS = {
    "tiny_detector_recall": Bar(minimum=0.95),
    "tiny_detector_precision": Bar(),
    "tiny_detector_train_s": Bar(maximum=60),
}
WORLD = World(items=2500)  # of which 2,000 are to train on
HELD_OUT = range(10_000, 10_500)
SEEDS = range(3)


def measure(folder: Path) -> Iterator[dict[str, Measured]]:
    corpus = visual_genome.write(WORLD, folder / "raw")
    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw")
    for stage in ("records", "media"):
        CorpusBuild(options, corpus).build(stage)
    seconds = [_trained(folder, seed) for seed in SEEDS]
    scores = [_scores(folder / f"run-{seed}/detector.pt") for seed in SEEDS]
    told = f"colour and shape at IoU 0.5 of {scores[0].recorded:,} things in {len(HELD_OUT)} held-out scenes"
    recalls, precisions = ([round(getattr(one, name), 4) for one in scores] for name in ("recall", "precision"))
    trained = f"CPU seconds of the whole command, one thread, {WORLD.items * 8 // 10:,} pictures of 128 pixels"
    yield {
        "tiny_detector_recall": Measured(statistics.median(recalls), "", f"{told}, median of 3 seeds", tuple(recalls)),
        "tiny_detector_precision": Measured(statistics.median(precisions), "", told, tuple(precisions)),
        "tiny_detector_train_s": Measured(statistics.median(seconds), "s", trained, tuple(seconds)),
    }


def _trained(folder: Path, seed: int) -> float:
    where = ("--root", str(folder / "root"), "--run", str(folder / f"run-{seed}"), "--set", f"seed={seed}", "--quiet")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pipelines", "train", "detector", *where], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)


def _scores(file: Path) -> PairScores:
    detector = load("", f"sha256:{sha256_of(file)}", {"detector": file}, "cpu")
    return pair_scores(_answers(detector, scene(WORLD, index)) for index in HELD_OUT)


def _answers(detector: SmallDetector, shown: Scene) -> tuple[list[NamedBox], list[Region]]:
    """Named boxes with the likeliest colour, whatever texture is likelier, and the things that have a name."""
    (regions,) = detector.extract([np.asarray(open_image(jpeg(shown)))])
    colours = [place for place, word in enumerate(detector.words.attributes, 1) if word in COLOURS]
    words = DetectorWords(detector.words.classes, tuple(detector.words.attributes[place - 1] for place in colours))
    assert regions.attribute_scores_KA is not None
    of_colours = replace(regions, attribute_scores_KA=regions.attribute_scores_KA[:, [0, *colours]])
    named = [thing for thing in shown.things if thing.kind != "ring"]
    recorded = [
        Region(f"{number}", "scene", None, *map(float, box(shown, thing)), (thing.kind,), (thing.colour,))
        for number, thing in enumerate(named)
    ]
    return named_boxes(of_colours, words), recorded
