"""Distances of pictures and sentences by their regions and phrases: the second one of Two-Branch's equation 8.

Shapes: V pictures, N regions of all pictures, S sentences, P phrases of all sentences.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from xmodal.ranking.similarities import Integers, Numbers, cuts

NUMBERS_AT_ONCE = 1 << 24  # distances in memory together


def nearest_region_distances(
    distances: Callable[[slice], Numbers], sentences_P: Integers, starts_V1: Integers, instead_VS: Numbers
) -> NDArray[np.float64]:
    """Averages, over a sentence's phrases, the distance to the nearest region of each picture: (V, S).

    `distances` gives (phrases, N) for some phrases. A sentence without phrases, and a picture without regions, have
    the distances of `instead_VS`, so that a combination of both leaves them as they are.
    """
    phrases_S = np.bincount(sentences_P, minlength=instead_VS.shape[1])
    pictures = np.flatnonzero(np.diff(starts_V1))
    nearest_SV = np.zeros((len(phrases_S), len(pictures)))
    for rows in cuts(len(sentences_P) if len(pictures) else 0, max(1, NUMBERS_AT_ONCE // int(starts_V1[-1] or 1))):
        block_PN = distances(rows)
        if not np.isfinite(block_PN).all():
            phrase, region = np.argwhere(~np.isfinite(block_PN))[0].tolist()
            raise ValueError(
                f"the distance of phrase {rows.start + phrase} and region {region}, from 0, is "
                f"{block_PN[phrase, region]}; only finite ones have a nearest"
            )
        np.add.at(nearest_SV, sentences_P[rows], np.minimum.reduceat(block_PN, starts_V1[pictures], axis=1))
    found_VS = np.array(instead_VS, np.float64)
    told = np.flatnonzero(phrases_S)
    found_VS[np.ix_(pictures, told)] = nearest_SV[told].T / phrases_S[told]
    return found_VS
