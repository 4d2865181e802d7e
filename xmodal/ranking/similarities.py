"""Similarities of visual items and texts, made and read in tiles."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Numbers = NDArray[np.floating[Any]] | Integers
Window = tuple[slice, slice]  # visual rows, text rows
Side = Literal["visual", "text"]
WHOLE: Window = (slice(None), slice(None))
SIDES: tuple[Side, Side] = ("visual", "text")


@dataclass(frozen=True, eq=False)
class Similarities:
    """A matrix of (visual rows, text rows); greater is closer.

    `tile` is asked for the cells of one grid only, perhaps twice, and must answer alike.
    """

    shape: tuple[int, int]
    grid: tuple[int, int]  # rows and columns of a tile; the last ones may be shorter
    tile: Callable[[slice, slice], Numbers]

    @classmethod
    def of(cls, matrix: Numbers, grid: tuple[int, int] = (512, 4096)) -> "Similarities":
        if matrix.ndim != 2:
            raise ValueError(f"similarities are (visual rows, text rows), not {matrix.shape}")
        return cls(matrix.shape, grid, lambda visual, text: matrix[visual, text])

    def cells(self) -> Iterator[Window]:  # row by row
        return product(cuts(self.shape[0], self.grid[0]), cuts(self.shape[1], self.grid[1]))

    def checked(self, visual: slice, text: slice) -> Numbers:
        """Makes a tile; refuses numbers that are not finite."""
        tile = self.tile(visual, text)
        assert tile.shape == (visual.stop - visual.start, text.stop - text.start)
        if not np.isfinite(tile).all():
            row, column = np.argwhere(~np.isfinite(tile))[0].tolist()
            rows = f"visual row {visual.start + row} and text row {text.start + column}"
            raise ValueError(f"the similarity of {rows} is {tile[row, column]}; only finite numbers can be ranked")
        return tile


def cached_on_disk(
    matrix: Similarities, file: IO[bytes], made: Callable[[int], None] = lambda tiles: None
) -> Similarities:
    """Makes every tile once; `file` keeps it."""
    offsets = dict[tuple[int, int], int]()  # by the start of a tile

    def tile(visual: slice, text: slice) -> Numbers:
        key = visual.start, text.start
        if key not in offsets:
            new = matrix.tile(visual, text)
            offsets[key] = file.seek(0, io.SEEK_END)
            np.save(file, new)
            made(1)
            return new
        file.seek(offsets[key])
        found: Numbers = np.load(file)
        return found

    return Similarities(matrix.shape, matrix.grid, tile)


def query_blocks(matrix: Similarities, queries: Side) -> Iterator[tuple[slice, Numbers]]:
    """Yields queries with their similarities to the whole gallery, (queries, gallery)."""
    side = SIDES.index(queries)
    for rows in cuts(matrix.shape[side], matrix.grid[side]):
        block_QG: Numbers | None = None
        for others in cuts(matrix.shape[1 - side], matrix.grid[1 - side]):
            tile = matrix.checked(rows, others) if side == 0 else matrix.checked(others, rows).T
            if block_QG is None:
                block_QG = np.empty((rows.stop - rows.start, matrix.shape[1 - side]), tile.dtype)
            block_QG[:, others] = tile
        if block_QG is None:
            raise ValueError(f"an empty gallery cannot be searched: {matrix.shape} visual and text rows")
        yield rows, block_QG


def cuts(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def bounded(window: Window, shape: tuple[int, int]) -> Window:
    """Gives a window its starts and stops; refuses one without rows."""
    visual, text = (bounds(rows, length) for rows, length in zip(window, shape, strict=True))
    if visual.start == visual.stop or text.start == text.stop:
        rows = f"{visual.stop - visual.start} visual rows, {text.stop - text.start} text rows"
        raise ValueError(f"an empty gallery cannot be searched: {rows}")
    return visual, text


def bounds(rows: slice, length: int) -> slice:
    """Gives rows a start and a stop; refuses a stop beyond the end."""
    start, stop = rows.start or 0, length if rows.stop is None else rows.stop
    if rows.step not in (None, 1) or not 0 <= start <= stop <= length:
        raise IndexError(f"rows {start}:{stop} (step {rows.step}) are not a run within 0:{length}")
    return slice(start, stop)
