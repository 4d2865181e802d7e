"""Buffers that are used again once nobody else holds them."""

import math
import sys
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from xmodal.features.zarr_arrays import LINE


class Buffers:
    """Memory for batches, used again, as the kernel clears the pages of a fresh array.

    A tensor made by `torch.from_numpy` holds its array: one that only this class holds is free.
    """

    def __init__(self, pinned: bool) -> None:
        self._pinned, self._all, self._lock = pinned, list[NDArray[np.uint8]](), Lock()

    def __reduce__(self) -> tuple[type["Buffers"], tuple[bool]]:
        return Buffers, (self._pinned,)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = math.prod(shape) * dtype.itemsize
        with self._lock:  # until it is seen again by the caller
            room = self._free(size)
            start = -room.ctypes.data % LINE
            return room[start : start + size].view(dtype).reshape(shape)

    def trimmed(self, most: int) -> "Buffers":
        """Keeps so many arrays."""
        del self._all[most:]
        return self

    def _free(self, size: int) -> NDArray[np.uint8]:
        for place in range(len(self._all)):
            if sys.getrefcount(self._all[place]) == REFS_WHEN_FREE:
                if len(self._all[place]) < size + LINE:
                    self._all[place] = self._new(size)
                return self._all[place]
        self._all.append(self._new(size))
        return self._all[-1]

    def _new(self, size: int) -> NDArray[np.uint8]:
        if not self._pinned:
            return np.empty(size + LINE, np.uint8)  # in huge pages, which torch does not ask for
        memory: NDArray[np.uint8] = torch.empty(size + LINE, dtype=torch.uint8, pin_memory=True).numpy()
        return memory


REFS_WHEN_FREE = 2  # references: the list's, and that of asking
