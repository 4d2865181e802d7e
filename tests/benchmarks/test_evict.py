"""Eviction from the page cache, which benchmarks of cold reads rely on."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks import evict


def test_a_mapping_that_is_gone_when_it_is_let_go_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may unmap a file between the list of mappings and the advice."""
    file = tmp_path / "file"
    file.write_bytes(bytes(4 * mmap.PAGESIZE))
    held = np.memmap(file, np.uint8, "r")
    gone = mmap.mmap(-1, 16 * mmap.PAGESIZE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(gone))
    spans = [(begin, begin + 16 * mmap.PAGESIZE), (held.ctypes.data, held.ctypes.data + len(held))]
    del gone
    monkeypatch.setattr(evict, "_mappings", lambda names: spans)
    evict.let_go([file])


def test_other_failures_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evict, "_mappings", lambda names: [(1, 2)])  # no address of a page
    with pytest.raises(OSError, match="Invalid argument"):
        evict.let_go([tmp_path])
