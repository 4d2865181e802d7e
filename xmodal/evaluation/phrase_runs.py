"""Metrics of runs that compare regions with phrases."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from xmodal.batches.annotated_phrases import TO_LAST_PIXEL
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import PhraseReport, localisation_report
from xmodal.evaluation.run_metrics import load, test_split_beside
from xmodal.models import Scorer
from xmodal.recipes import View
from xmodal.root.identity import fingerprint
from xmodal.training import run_folder
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import check_device, proposal_scores


def evaluate_phrases(
    run: str, setup: Setup, split: str | None = None, suppression: float | None = None
) -> PhraseReport:
    """Computes recall of a run on a split's phrases, by default of the test split beside the training's."""
    asked = open_phrase_run(run, setup, split)
    recipe, found = asked.started.recipe, asked.features
    scores_PK = proposal_scores(asked.scorer, found, setup.progress, setup.device)
    task, stage = found.task, found.proposals.output
    boxes = {
        id: task.proposals_N4[start:stop] + TO_LAST_PIXEL
        for id, (start, stop) in zip(found.phrases.pictures, pairwise(task.starts_V1.tolist()), strict=True)
    }
    about = {"recipe": recipe.name, "fingerprint": fingerprint(recipe), "records": asked.started.records}
    about |= {"proposals": f"{stage.stage}/{stage.identity}", "corpus": asked.view.corpus, "split": asked.view.split}
    try:
        return localisation_report(found.phrases, boxes, lambda rows: scores_PK[rows], suppression, **about)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from error


@dataclass(frozen=True, eq=False)
class PhraseRun:
    started: Run
    view: View
    scorer: Scorer[Any, Any]
    features: PhraseFeatures


def open_phrase_run(run: str, setup: Setup, split: str | None = None) -> PhraseRun:
    """Opens a run that compares regions with phrases, and what it is asked."""
    check_device(setup.device)
    started = run_folder.read(run)
    recipe = started.recipe
    setup = replace(setup, records=started.records, features=started.features, texts=started.texts)
    view = replace(recipe.validation, split=split or test_split_beside(recipe.view))
    features = setup.phrases(recipe, view, setup.tables(view.corpus))
    return PhraseRun(started, view, load(run, setup.device), features)
