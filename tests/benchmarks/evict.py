"""Files out of the page cache, also where this process has them mapped."""

import ctypes
import errno
import math
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LIBC = ctypes.CDLL(None, use_errno=True)


def evict(files: Iterable[Path]) -> None:
    """A page that is mapped stays in the cache whatever is advised: other processes have to `let_go` before."""
    let_go(files := list(files))
    wanted = {str(file.resolve()) for file in files}
    for name in wanted:
        _drop(name)
    pages, resident = map(sum, zip(*map(_residency, wanted), strict=True))
    if resident > pages / 1000:
        raise RuntimeError(f"{resident} of {pages} pages stayed in the page cache: TMPDIR must be on a disk")


def let_go(files: Iterable[Path]) -> None:
    """Mappings of this process stay, and have no page of these files any more."""
    for begin, end in _mappings({str(file.resolve()) for file in files}):
        if LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED):
            _refuse_all_but_unmapped()


def _refuse_all_but_unmapped() -> None:
    """ENOMEM says that another thread has unmapped a part meanwhile; madvise has done the rest."""
    if (code := ctypes.get_errno()) != errno.ENOMEM:
        raise OSError(code, os.strerror(code))


def _mappings(names: set[str]) -> list[tuple[int, int]]:
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if len(line) == 6 and line[5] in names]
    return [(int(begin, 16), int(end, 16)) for begin, end in spans]


def _drop(name: str) -> None:
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # a page that is not on disk yet cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _residency(name: str) -> tuple[int, int]:
    """Pages of a file, and how many of them the page cache holds."""
    mapped = np.memmap(name, np.uint8, "r")
    resident = np.zeros(math.ceil(len(mapped) / mmap.PAGESIZE), np.uint8)
    _checked(LIBC.mincore(_address(mapped), ctypes.c_size_t(len(mapped)), _address(resident)))
    return len(resident), int((resident & 1).sum())


def _address(array: NDArray[np.uint8]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
