"""`xmodal demo --all`: A3VSE, with captions of one in ten training pictures of COCO and semantics of the others.

Semantics are the words of a small detector, which is trained here: on another generated world, written as Visual
Genome's files. Beside A3VSE stand two rows of its paper's table 5: the model without the adversarial losses, and the
one without semantics, which learns from the captions alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.demo import coco, visual_genome
from pipelines.demo.run import STEPS, Show, built, learned, small
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.papers import recipe_runs
from pipelines.papers.detector_runs import RECIPE, train_detector
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.recipes import DetectorRecipe, Phase, Recipe, Step
from xmodal.records.views import members
from xmodal.root.identity import fingerprint
from xmodal.root.selection import find_output
from xmodal.training.run_setup import Setup

KNOWN = "a3vse-coco-10-5"  # the recipe of the paper: a tenth of the pictures with 5 captions
FEWEST = 100  # scenes, of which 8 are annotated
EPOCHS = 30
# Of the paper's weights of the adversarial losses: with all of them, networks so small unlearn the captions.
ADVERSARY = 0.02


def refuse_few(world: World) -> None:
    if world.items < FEWEST:
        raise UserError(f"of {world.items} scenes too few have captions to learn from: --all needs at least {FEWEST}")


def sparse(
    options: BuildOptions, folder: Path, world: World, detector: DetectorRecipe = RECIPE, epochs: int = EPOCHS
) -> dict[str, Any]:
    """Trains the detector, builds regions and semantics by it, and learns from them."""
    refuse_few(world)
    rows, trained = _detector(options, folder, world, detector)
    files = {**options.files, "detector": Path(trained["weights"])}
    options = replace(options, settings={**options.settings, "regions.detector": "small"}, files=files)
    show = Show(load("coco"), coco.write, world, ("records", "regions", "semantics"), recipes(epochs))
    result = learned(options, folder, [show])
    records = find_output(options.storage.url, "records", result["outputs"][0]["identity"])
    views = show.recipes[0].view, show.recipes[0].unannotated
    annotated, others = (len(members(records, view.split)) for view in views if view)
    told = {"detector": trained, "annotated": annotated, "unannotated": others, "adversary": ADVERSARY}
    return result | {"outputs": rows + result["outputs"]} | told


def _detector(
    options: BuildOptions, folder: Path, world: World, recipe: DetectorRecipe
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    other = replace(world, seed=world.seed + 1)  # none of its scenes is tested on later
    show = Show(load("visual_genome"), visual_genome.write, other, ("records", "media"), ())
    rows = built(options, folder / "publisher" / show.corpus.name, show)
    run = folder / "runs" / f"demo-detector-{fingerprint([recipe, *(row['identity'] for row in rows)])[:12]}"
    setup = Setup(options.storage.url, rows[0]["identity"], threads=1, progress=options.progress)
    return rows, train_detector(recipe, setup, run)


def recipes(epochs: int = EPOCHS) -> tuple[Recipe, ...]:
    known: Any = recipe_runs.recipes()[KNOWN]
    weights, adversaries = known.phases[0].weights, known.model.adversaries
    triplets = {name: weight for name, weight in weights.items() if name not in adversaries}
    weak = {name: ADVERSARY * weights[name] for name in adversaries}
    phase = Phase(epochs, replace(STEPS, weight_decay=1e-6, schedule=Step((2 * epochs // 3,), 0.1)), triplets | weak)
    whole: Any = small(KNOWN, (phase,), discriminator_width=64)
    alone = replace(
        whole,
        name="demo-no-adversary",
        model=replace(whole.model, adversaries=()),
        phases=(replace(phase, weights=triplets),),
    )
    return whole, alone, replace(alone, name="demo-no-semantics", unannotated=None)
