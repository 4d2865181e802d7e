"""Metrics of runs that compare regions with phrases."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xmodal.batches.annotated_phrases import TO_LAST_PIXEL
from xmodal.batches.phrase_features import PhraseFeatures
from xmodal.batches.phrase_loader import vectors
from xmodal.errors import UserError
from xmodal.evaluation.phrase_metrics import PhraseReport, ScoredPhrases, localisation_report
from xmodal.evaluation.run_metrics import count_shared, load, open_run, report_of, test_split_beside
from xmodal.metrics.nearest_regions import nearest_region_distances
from xmodal.metrics.protocols import Gallery
from xmodal.metrics.reports import Report
from xmodal.models import MeasuringDistances, Scorer
from xmodal.models.two_branch import combined_distance
from xmodal.ranking.similarities import Numbers, Similarities
from xmodal.recipes import View
from xmodal.root.identity import fingerprint
from xmodal.training import run_folder
from xmodal.training.run_folder import Run
from xmodal.training.run_setup import Setup
from xmodal.training.validation import EncodedSplit, check_device, proposal_scores


def evaluate_phrases(
    run: str, setup: Setup, split: str | None = None, suppression: float | None = None
) -> PhraseReport:
    """Computes recall of a run on a split's phrases, by default of the test split beside the training's."""
    recipe, scored = run_folder.read(run).recipe, run_scores(run, setup, split)
    about: dict[str, Any] = {
        "recipe": recipe.name,
        "fingerprint": fingerprint(recipe),
        "records": scored.records.identity,
    }
    about |= {"proposals": scored.proposals, "corpus": scored.view.corpus, "split": scored.view.split}
    for fact, view in (("seen", recipe.view), ("chosen", recipe.validation)):
        about[fact] = count_shared(scored.records, view, scored.phrases.pictures)
    try:
        return localisation_report(scored.phrases, scored.boxes, scored.scores, suppression, **about)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from error


def run_scores(run: str, setup: Setup, split: str | None = None) -> ScoredPhrases:
    """Scores the proposals of each phrase of a split."""
    asked = open_phrase_run(run, setup, split)
    phrases, task, output = asked.features.phrases, asked.features.task, asked.features.proposals.output
    scores_PK = proposal_scores(asked.scorer, asked.features, setup.progress, setup.device)
    boxes = {
        id: task.proposals_N4[start:stop] + TO_LAST_PIXEL
        for id, (start, stop) in zip(phrases.pictures, pairwise(task.starts_V1.tolist()), strict=True)
    }
    records = replace(setup, records=asked.started.records).tables(asked.view.corpus)
    proposals = f"{output.stage}/{output.identity}"
    return ScoredPhrases(records, asked.view, phrases, boxes, proposals, lambda rows: scores_PK[rows])


def evaluate_combined(
    run: str, phrases: str, setup: Setup, split: str | None = None, *, share: float = 0.2, extended: Path | None = None
) -> Report:
    """Computes every metric of a run by its distances, mixed with those of another run's phrases and regions.

    Of a sentence, the phrases are those that localisation asks for (docs/models.md#two-branch-combination).
    """
    if not 0 <= share <= 1:
        raise UserError(f"--share is from 0 to 1, not {share:g}")
    asked = open_run(run, setup, split)
    found = open_phrase_run(phrases, setup, asked.view.split)
    for path, scorer in ((run, asked.scorer), (phrases, found.scorer)):
        if not isinstance(scorer, MeasuringDistances):
            raise UserError(
                f"{path} has similarities, no distances that could be mixed: give an embedding network's run"
            )

    def compare(encoded: EncodedSplit, gallery: Gallery) -> Similarities:
        whole_VS = np.zeros(encoded.shape)
        for rows, columns in encoded.distances.cells():
            whole_VS[rows, columns] = encoded.distances.checked(rows, columns)
        parts_VS = _part_distances(found, gallery, whole_VS, setup)
        mixed_VS = combined_distance(torch.from_numpy(whole_VS), torch.from_numpy(parts_VS), share)
        return Similarities.of(-mixed_VS.numpy())

    name = f"{asked.started.recipe.name} with {share:g} of {found.started.recipe.name}"
    return report_of(asked, setup, extended, name, compare)


def _part_distances(found: "PhraseRun", gallery: Gallery, instead_VS: Numbers, setup: Setup) -> NDArray[np.float64]:
    """(V, S): the mean over a sentence's phrases of the distance to a picture's nearest proposal."""
    scorer, store, device = found.scorer, found.features.proposals, setup.device
    assert isinstance(scorer, MeasuringDistances)
    places = {caption: place for place, caption in enumerate(gallery.caption_ids)}
    chosen = [n for n, one in enumerate(found.features.phrases.matches) if one.caption in places]
    if not chosen:
        raise UserError(f"no phrase of {found.view.corpus} {found.view.split} is of a caption that is evaluated")
    sentences_P = np.array([places[found.features.phrases.matches[number].caption] for number in chosen])
    regions = [store.read([id])[0] if id in store else np.zeros((0, *store.spec.row_shape)) for id in gallery.ids]
    encoded_N = [scorer.encode_visual(vectors(some, device)) for some in regions if len(some)]
    if not encoded_N:
        raise UserError(f"{store.output.where} has no regions of the pictures that are evaluated")
    visual_ND = torch.cat(encoded_N)
    starts_V1 = np.concatenate([[0], np.cumsum([len(some) for some in regions])])

    def distances(rows: slice) -> Numbers:
        text = scorer.encode_text(vectors(found.features.text(np.array(chosen)[rows]), device))
        return np.asarray(scorer.distance(visual_ND, text).T.cpu().numpy())

    return nearest_region_distances(distances, sentences_P, starts_V1, instead_VS)


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
    if not recipe.reads_phrases:
        raise UserError(f"{run} compares items with captions, not regions with phrases")
    setup = replace(setup, records=started.records, features=started.features, texts=started.texts)
    view = replace(recipe.validation, split=split or test_split_beside(recipe.view))
    features = setup.phrases(recipe, view, setup.tables(view.corpus))
    return PhraseRun(started, view, load(run, setup.device), features)
