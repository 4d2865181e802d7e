"""Principal axes of sentence codes.

Many codes get the numbers of scikit-learn's randomized algorithm (Halko et al. 2011), but for rounding: by all cores,
and without the zeros, as a sentence has words of few components.

Shapes: S sentences, F numbers of a code, W axes, R random directions; M sentences that a block has numbers of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xmodal.text.threads import in_threads

Singles = NDArray[np.float32]
Say = Callable[[str], None]

FEW = 1000  # sentences or numbers of a code: quick by any algorithm
SPARE, TURNS, TURNS_OF_FEW_AXES = 10, 4, 7  # random directions beyond the axes, and powers, as scikit-learn has them
COLUMNS_AT_ONCE = 512  # by one thread


def principal_axes(codes_SF: Singles, width: int, parts: int, seed: int, say: Say) -> tuple[Singles, Singles]:
    """Returns the mean, (F,), and the axes, (W, F); `codes_SF` is overwritten.

    Where one of the `parts` of equal length of a code is all zeros, it costs nothing.
    """
    if min(codes_SF.shape) <= FEW or width >= 0.8 * min(codes_SF.shape):
        from sklearn.decomposition import PCA

        analysis = PCA(width, random_state=seed, copy=False).fit(codes_SF)
        return analysis.mean_, analysis.components_
    centred = _Centred.of(codes_SF, parts)
    return centred.mean_F, _axes(centred, width, seed, say)


@dataclass(frozen=True, eq=False)
class _Block:
    columns: slice
    rows_M: NDArray[np.int64]
    values_MF: Singles


@dataclass(frozen=True, eq=False)
class _Centred:
    """Codes minus their mean, in products with matrices only."""

    blocks: Sequence[_Block]
    shape: tuple[int, int]
    mean_F: Singles

    @classmethod
    def of(cls, codes_SF: Singles, parts: int) -> "_Centred":
        def block(part: int) -> _Block:
            columns = slice(part * length, (part + 1) * length)
            rows_M = np.flatnonzero(codes_SF[:, columns].any(axis=1))
            return _Block(columns, rows_M, codes_SF[rows_M, columns])

        length = codes_SF.shape[1] // parts
        assert length * parts == codes_SF.shape[1]
        return cls(list(map(block, range(parts))), codes_SF.shape, codes_SF.mean(axis=0))

    def times(self, right_FR: Singles) -> Singles:
        found_SR = np.empty((self.shape[0], right_FR.shape[1]), np.float32)

        def fill(some: slice) -> None:
            found_SR[:, some] = -(self.mean_F @ right_FR[:, some])
            for block in self.blocks:
                found_SR[block.rows_M, some] += block.values_MF @ right_FR[block.columns, some]

        _by_columns(fill, right_FR)
        return found_SR

    def transposed_times(self, right_SR: Singles) -> Singles:
        found_FR = np.empty((self.shape[1], right_SR.shape[1]), np.float32)

        def fill(some: slice) -> None:
            sums_R = right_SR[:, some].sum(axis=0)
            for block in self.blocks:
                found_FR[block.columns, some] = block.values_MF.T @ right_SR[block.rows_M, some]
                found_FR[block.columns, some] -= np.outer(self.mean_F[block.columns], sums_R)

        _by_columns(fill, right_SR)
        return found_FR


def _by_columns(fill: Callable[[slice], None], matrix: Singles) -> None:
    starts = range(0, matrix.shape[1], COLUMNS_AT_ONCE)
    list(in_threads(fill, [slice(start, start + COLUMNS_AT_ONCE) for start in starts]))


def _axes(codes: _Centred, width: int, seed: int, say: Say) -> Singles:
    from scipy.linalg import lu, qr, svd

    is_flat, wide = codes.shape[0] < codes.shape[1], min(codes.shape)
    ways: list[Callable[[Singles], Singles]] = [codes.times, codes.transposed_times]
    ahead, back = reversed(ways) if is_flat else ways
    turns = TURNS_OF_FEW_AXES if width < 0.1 * wide else TURNS
    basis: Any = np.random.RandomState(seed).normal(size=(wide, width + SPARE)).astype(np.float32)
    for turn in range(turns):
        say(f"principal axes: turn {turn + 1} of {turns}")
        basis, _ = lu(back(ahead(basis)), permute_l=True, overwrite_a=True, check_finite=False)
    say(f"principal axes: the last step of {width:,}")
    basis, _ = qr(ahead(basis), mode="economic", overwrite_a=True, check_finite=False)
    left, _, right = svd(back(basis).T, full_matrices=False, overwrite_a=True, check_finite=False)
    axes_WF: Singles = (left.T @ basis.T if is_flat else right)[:width]
    largest_W1 = np.abs(axes_WF).argmax(axis=1)[:, None]
    return axes_WF * np.sign(np.take_along_axis(axes_WF, largest_W1, axis=1))
