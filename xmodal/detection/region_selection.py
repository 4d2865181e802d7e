"""Selection of regions: which candidates of a detector are kept, as in bottom-up attention.

Anderson et al. 2018, and peteanderson80/bottom-up-attention@514e561:tools/generate_tsv.py. Shapes: K candidates.
"""

import numpy as np
from numpy.typing import NDArray

from xmodal.detection.box_geometry import suppress
from xmodal.detection.region_arrays import Regions

OVERLAP = 0.3  # more of it, of one class, suppresses the lesser candidate


def confidences(regions: Regions, overlap: float = OVERLAP) -> NDArray[np.float32]:
    """The best score of each candidate, (K,), over the classes in which no better one suppresses it; else 0."""
    assert regions.class_scores_KC is not None, "proposals have no classes"
    scores_KC = regions.class_scores_KC[:, 1:]
    kept_KC = suppress(regions.boxes_K4, scores_KC, overlap, inclusive=True)
    best_K: NDArray[np.float32] = np.where(kept_KC, scores_KC, 0).max(1, initial=0)
    return best_K


def select(
    confidences_K: NDArray[np.float32], fewest: int = 10, most: int = 100, threshold: float = 0.2
) -> NDArray[np.int64]:
    """Places of the candidates that reach the threshold, in their order; `regions[places]` are the regions.

    Of too few or too many, the `fewest` or `most` best ones, the best first: then the order is another. Fewer than
    `fewest` candidates are all kept. For a fixed number, as 36, `fewest` and `most` are equal.
    """
    sure = np.flatnonzero(confidences_K >= threshold)
    if fewest <= len(sure) <= most:
        return sure
    return by_confidence(confidences_K)[: fewest if len(sure) < fewest else most]


def by_confidence(confidences_K: NDArray[np.float32]) -> NDArray[np.int64]:
    """Places from the most confident on; of equals, the earlier one first."""
    return np.argsort(-confidences_K, kind="stable")
