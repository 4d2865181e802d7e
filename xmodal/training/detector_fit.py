"""Training of the small detector on a corpus' pictures and regions.

All chance follows from the seed and the step, and one thread computes: a killed run goes on from its last checkpoint
and ends with the same detector. Nothing is chosen: the last weights stay, and are measured on the validation split.

A run is a folder:

    detector.json     the recipe, and what it reads
    log.jsonl         a line every few steps, and at the end the measure
    last.pt           weights, optimiser and step, where training goes on
    detector.pt       the detector with its words, for `--file detector=RUN/detector.pt`
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xmodal import __version__
from xmodal.detection.pair_recall import NamedBox, PairScores, named_boxes, pair_scores
from xmodal.detectors import small_faster_rcnn
from xmodal.detectors._small_network import SmallNetwork, weights_file
from xmodal.errors import UserError
from xmodal.features.weight_files import OF_FILE, reproducible, weights_sha256
from xmodal.recipes import DetectorRecipe, Optimiser
from xmodal.records.tables import Region
from xmodal.root.identity import canonical_json, to_plain
from xmodal.root.storage import LocalStorage
from xmodal.training import checkpoint, optimisers, run_folder
from xmodal.training.checkpoint import Log
from xmodal.training.detector_samples import DetectorData, DetectorSamples, config_of, open_data
from xmodal.training.run_folder import DETECTOR, DETECTOR_WEIGHTS
from xmodal.training.run_setup import Setup
from xmodal.training.validation import check_device

LOG_EVERY, SAVE_EVERY = 10, 100  # steps
RISE, FIRST, LAST = 0.15, 1 / 25, 1 / 250_000  # the share of steps while the rate rises; its ends, as shares of its top


@dataclass(frozen=True)
class DetectorOutcome:
    run: str
    weights: str  # the file
    weights_sha256: str
    split: str
    pictures: int  # of that split, to train on
    classes: int
    attributes: int
    validation: str
    recall: float  # of pairs of attribute and class there
    precision: float
    regions: int  # recorded in the pictures that were measured
    measured: int  # pictures of it with regions
    unreadable: int  # those that could not be measured, as they are absent or unreadable
    steps: int
    trained: bool  # by this call, not before


def fit_detector(recipe: DetectorRecipe, setup: Setup, run: str) -> DetectorOutcome:
    """Trains in the folder `run`, or goes on there; checks everything before it writes."""
    check_device(setup.device)
    data = open_data(recipe, setup.root, setup.tables(recipe.corpus))
    samples = DetectorSamples(recipe, config_of(recipe, data), data)
    facts = _facts(recipe, data)
    run_folder.refuse_other_facts(run, _facts_there(run), facts)
    devices = [setup.device] if torch.device(setup.device).type == "cuda" else []
    with reproducible(), torch.random.fork_rng(devices), run_folder.held(run):
        LocalStorage(run).write(DETECTOR, canonical_json(facts))  # first: without it the folder is nobody's
        with checkpoint.open_log(run, False) as log:
            torch.manual_seed(recipe.seed)
            network = SmallNetwork(samples.config, recipe.regions).to(setup.device)
            trained = _train(samples, network, setup, run, log)
            LocalStorage(run).write(DETECTOR_WEIGHTS, weights_file(samples.config, network))
            return _outcome(samples, setup, run, log, trained)


def _facts(recipe: DetectorRecipe, data: DetectorData) -> dict[str, Any]:
    whole = to_plain(replace(recipe, split=data.split, validation=data.validation))
    return {"xmodal": __version__, "recipe": whole, "records": data.records.identity, "media": data.media.identity}


def outputs_of(run: str) -> list[str] | None:
    """The identities of the outputs that a detector was trained on; None if the folder has no run of a detector."""
    facts = _facts_there(run)
    return None if facts is None else [str(facts.get(name)) for name in ("records", "media")]


def _facts_there(run: str) -> dict[str, Any] | None:
    try:
        found = json.loads(LocalStorage(run).read(DETECTOR))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{run}/{DETECTOR} is damaged ({error}): remove the folder and train again") from error
    return found


def _train(samples: DetectorSamples, network: SmallNetwork, setup: Setup, run: str, log: Log) -> bool:
    recipe, count = samples.recipe, len(samples.ids)
    rule = Optimiser("adam", recipe.learning_rate, clip_norm=recipe.clip_norm)
    optimiser = optimisers.build(network, rule)
    first, learned = _resume(network, optimiser, recipe, run, log)
    words = f"{len(samples.config.classes):,} classes and {len(samples.config.attributes):,} attributes"
    setup.progress.say(f"{recipe.name}: {count:,} pictures of {samples.data.split} with {words} to train on")
    network.train()
    with setup.progress.over("train", recipe.steps, first, unit="steps") as tick:
        for step in range(first, recipe.steps):
            learned += _step(samples, network, optimiser, rule, step, log)
            if not learned and len(samples.unusable) == count:
                break
            # A state in which nothing was learned would go on as if something were.
            if learned and ((step + 1) % SAVE_EVERY == 0 or step + 1 == recipe.steps):
                state = {"step": step + 1, "learned": learned, "log_bytes": log.synced_size()}
                tensors = {"model": network.state_dict(), "optimiser": optimiser.state_dict()}
                checkpoint.save(run, run_folder.LAST, state | tensors)
            tick(1)
    _tell_unusable(samples, setup, learned)
    return first < recipe.steps


def _tell_unusable(samples: DetectorSamples, setup: Setup, learned: int) -> None:
    """Refuses to end without a step that learned."""
    count, what = len(samples.unusable), "absent or unreadable, or have no box in them"
    if not learned:
        pictures = f"{count:,} pictures of {samples.data.split}"
        raise UserError(f"{samples.recipe.corpus}: none of the {pictures} can be used: they are {what}")
    if count:
        setup.progress.say(f"left out: {count:,} pictures that are {what}, such as {min(samples.unusable)}")


def _resume(
    network: SmallNetwork, optimiser: torch.optim.Optimizer, recipe: DetectorRecipe, run: str, log: Log
) -> tuple[int, int]:
    """Returns the step to go on with, and how many before it learned."""
    saved = checkpoint.read_last(run)
    if saved is None:
        log.cut(0)
        return 0, 0
    with checkpoint.blaming_last(run):
        step, size = saved["step"], saved["log_bytes"]
        if not (type(step) is int and type(size) is int and 0 <= step <= recipe.steps and size >= 0):
            raise ValueError(f"it cannot be at step {step} of {recipe.steps}")
        learned = saved["learned"]
        if not (type(learned) is int and 1 <= learned <= step):
            raise ValueError(f"{learned} of its {step} steps cannot have learned")
        network.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
    log.cut(size)
    return step, learned


def _step(
    samples: DetectorSamples,
    network: SmallNetwork,
    optimiser: torch.optim.Optimizer,
    rule: Optimiser,
    step: int,
    log: Log,
) -> bool:
    """Whether a picture could be learned from."""
    recipe, batch = samples.recipe, samples.batch(step)
    if batch is None:
        return False
    pixels_B3SS, sizes, targets = batch
    device = next(network.parameters()).device
    on_device = [{name: values.to(device) for name, values in target.items()} for target in targets]
    chance = np.random.SeedSequence([recipe.seed, step]).generate_state(1, np.uint64)[0]
    _seed(device, int(chance >> 1))  # which proposals are learned from is drawn
    terms = network.losses(pixels_B3SS.to(device), sizes, on_device)
    loss = torch.stack([*terms.values()]).sum() + (recipe.class_weight - 1) * terms["classes"]
    if not math.isfinite(loss.item()):
        raise UserError(f"the loss is {loss.item()} at step {step}: choose a lower --set learning_rate")
    for group in optimiser.param_groups:
        group["lr"] = recipe.learning_rate * one_cycle(step / recipe.steps)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = optimisers.clip(network, rule)
    optimiser.step()
    if step % LOG_EVERY == 0:
        values = {name: term.item() for name, term in terms.items()}
        log.say(step=step, loss=loss.item(), terms=values, norm=norm.item())
    return True


def _seed(device: torch.device, seed: int) -> None:
    """As torch.manual_seed, which keeps a traceback for each kind of GPU that there may be: too slow for each step."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def one_cycle(progress: float) -> float:
    """The learning rate at a share of the steps, as a share of the highest: up and down by half cosines."""
    if progress < RISE:
        return FIRST + (1 - FIRST) * (1 - math.cos(math.pi * progress / RISE)) / 2
    return LAST + (1 - LAST) * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE))) / 2


def _outcome(samples: DetectorSamples, setup: Setup, run: str, log: Log, trained: bool) -> DetectorOutcome:
    data, recipe, file = samples.data, samples.recipe, Path(run, DETECTOR_WEIGHTS)
    digest = weights_sha256(file)
    scores, measured, unreadable = _measured(data, file, digest, setup)
    if not measured:
        pictures = f"{unreadable:,} pictures of {data.validation}"
        raise UserError(f"{recipe.corpus}: none of the {pictures} can be read to measure {file}, which is trained")
    told = {"recall": scores.recall, "precision": scores.precision, "regions": scores.recorded}
    log.say(step=recipe.steps, **told, unreadable=unreadable)
    return DetectorOutcome(
        run,
        str(file),
        digest,
        data.split,
        len(samples.ids),
        len(samples.config.classes),
        len(samples.config.attributes),
        data.validation,
        scores.recall,
        scores.precision,
        scores.recorded,
        measured,
        unreadable,
        recipe.steps,
        trained,
    )


def _measured(data: DetectorData, file: Path, digest: str, setup: Setup) -> tuple[PairScores, int, int]:
    """Measures the file on the pictures of the validation split with regions; counts these, and the unreadable ones."""
    detector = small_faster_rcnn.load("", f"{OF_FILE}{digest}", {small_faster_rcnn.FILE: file}, setup.device)
    recorded, unreadable = dict[str, list[Region]](), list[str]()
    for region in data.regions(data.validation):
        recorded.setdefault(region.item, []).append(region)

    def compared() -> Iterator[tuple[Sequence[NamedBox], Sequence[Region]]]:
        with setup.progress.over("measure", len(recorded), unit="pictures") as tick:
            for id, regions in recorded.items():
                picture = data.picture(id)
                if picture is None:
                    unreadable.append(id)
                else:
                    yield named_boxes(detector.extract([picture])[0], detector.words), regions
                tick(1)

    scores = pair_scores(compared())
    return scores, len(recorded) - len(unreadable), len(unreadable)
