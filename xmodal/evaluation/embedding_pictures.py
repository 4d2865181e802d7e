"""Embedding pictures: a plane of a run's embeddings by t-SNE, and correlations of its items' embeddings.

A plane has a split's items and their captions (A3VSE, figure 3). Correlations are between items, of the features that a
run reads and of its embeddings (Dual-Path, figure 4).

Shapes: N rows, E width of an embedding.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from xmodal.batches.cluster_classes import pooled_rows
from xmodal.errors import UserError, extra_needed
from xmodal.evaluation.attention_pictures import places_of
from xmodal.evaluation.run_metrics import OpenedRun, open_run
from xmodal.features.contact_sheets import DrawnPicture, save_sheets
from xmodal.media.charts import Series, Titles, scatter_chart
from xmodal.media.drawing import labelled, side_by_side
from xmodal.ranking.similarities import cuts
from xmodal.training.run_setup import Setup
from xmodal.training.validation import floats, on_device

FIRST = 500  # items: more dots cover each other
CORRELATED, PANEL = 100, 400  # items as in the paper, and pixels of a panel's side
FEWEST = 4  # of whose neighbours something is to be seen
PERPLEXITY = 30.0  # neighbours that a point is near to: scikit-learn's default, as the paper tells none
SEED = 0
BLOCK = 64  # items that are encoded at once


def draw_plane(
    run: str, setup: Setup, split: str | None, folder: Path, *, items: Sequence[str] = (), first: int = FIRST
) -> list[DrawnPicture]:
    """Draws one PNG of the items, or of the split's first ones, and of the first caption of each."""
    asked = open_run(run, setup, split)
    places = places_of(asked, items)[: None if items else first]
    if len(places) < FEWEST:
        raise UserError(f"t-SNE shows neighbours, which {len(places)} items hardly have: name {FEWEST} or more")
    embeddings = _embeddings(asked, run, setup, places)
    if not np.isfinite(embeddings).all():
        raise UserError(f"{run}: some embeddings are not finite: its features or weights are not, so train it again")
    if not np.ptp(embeddings, axis=0).any():
        raise UserError(f"{run}: all embeddings are equal, so none is near another: it has learned nothing")
    visual_N2, text_N2 = np.split(plane(embeddings), 2)
    of = f"{len(places):,} of {len(asked.reader.examples.ids):,} items of {asked.view.split}"
    method = f"t-SNE of embeddings, perplexity {perplexity_of(2 * len(places)):.3g}, seed {SEED}"
    note = f"{method}. A line joins an item and its first caption. What is near is alike; far distances mean nothing."
    titles = Titles(f"{asked.started.recipe.name}: {of}", note, "first axis of t-SNE", "second axis of t-SNE")
    sheet = scatter_chart([Series("items", visual_N2), Series("captions", text_N2)], titles)
    return list(save_sheets(folder, [(Path(run).resolve().name, of, sheet)], lambda done: None))


def draw_correlation(
    run: str, setup: Setup, split: str | None, folder: Path, *, items: Sequence[str] = (), first: int = CORRELATED
) -> list[DrawnPicture]:
    """Draws one PNG: Pearson's correlation of the items' features with each other, and of their embeddings."""
    asked = open_run(run, setup, split)
    places = places_of(asked, items)[: None if items else first]
    if len(places) < 2:
        raise UserError("a correlation takes two items: name more")
    features = pooled_rows(asked.features, [asked.reader.examples.ids[place] for place in places])
    embeddings = np.split(_embeddings(asked, run, setup, places), 2)[0]
    found = [np.asarray(np.corrcoef(rows.astype(np.float64))) for rows in (features, embeddings)]
    others = ~np.eye(len(places), dtype=bool)
    titles = [f"{name}: {one[others].mean():.3f}" for name, one in zip(("features", "embeddings"), found, strict=True)]
    of = f"{len(places):,} items of {asked.view.split}"
    legend = f"{asked.started.recipe.name}: Pearson's correlation of {of}, white 0 or less, black 1; means of two items"
    panels = side_by_side([_squares(one) for one in found])
    sheet = labelled(panels, titles, legend)
    return list(save_sheets(folder, [(Path(run).resolve().name, f"{of}, {', '.join(titles)}", sheet)], lambda _: None))


def _squares(table_NN: NDArray[np.float64]) -> Image.Image:
    grey_NN = np.round(255 * (1 - table_NN.clip(0, 1))).astype(np.uint8)
    return Image.fromarray(grey_NN).resize((PANEL, PANEL), Image.Resampling.NEAREST).convert("RGB")


def plane(embeddings_NE: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places the rows on a plane: (N, 2), the same ones each time."""
    with extra_needed("text", "t-SNE needs scikit-learn"):
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits

    perplexity = perplexity_of(len(embeddings_NE))
    with threadpool_limits(1):  # sums of several threads differ in their last bits, of which t-SNE makes much
        found = TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(embeddings_NE)
    return np.asarray(found, np.float32)


def perplexity_of(points: int) -> float:
    """A third of the points at most, as each needs so many neighbours."""
    return min(PERPLEXITY, (points - 1) / 3)


def _embeddings(asked: OpenedRun, run: str, setup: Setup, places: Sequence[int]) -> NDArray[np.float32]:
    """(2 N, E): those of the items, then those of the first caption of each."""
    reader, scorer, items = asked.reader, asked.scorer, np.array(places)
    captions = reader.examples.caption_starts[items]
    visual, text = list[object](), list[object]()
    with torch.inference_mode(), setup.progress.over("encode", len(items), unit="items") as tick:
        for some in cuts(len(items), BLOCK):
            visual.append(scorer.encode_visual(floats(reader.visual(items[some]), setup.device)))
            text.append(scorer.encode_text(on_device(reader.text(captions[some]), setup.device)))
            tick(some.stop - some.start)
    rows = [one for one in (*visual, *text) if isinstance(one, Tensor) and one.is_floating_point() and one.ndim == 2]
    if len(rows) < len(visual) + len(text) or len({one.shape[1] for one in rows}) > 1:
        name = asked.started.recipe.name
        raise UserError(f"{run}: {name} does not give each item and caption one vector, as A3VSE does, so has no plane")
    return np.asarray(torch.cat(rows).float().cpu().numpy())
