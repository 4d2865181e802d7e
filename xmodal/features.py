"""Feature arrays: Zarr v3 arrays of equal rows, written in shards and read in chunks."""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Dtype = Literal["float16", "float32", "uint8", "int32", "int64"]

KIB, MIB = 1024, 1024 * 1024
LARGE_ROW = 64 * KIB  # from here on a chunk is one row, so that a random read touches exactly one
CHUNK, SHARD = 256 * KIB, 256 * MIB
PAGE = 4 * KIB  # shards lie end to end in one mapping, so each must end on a page


@dataclass(frozen=True)
class FeatureSpec:
    """What one feature array is. A fixed array has one row per item; of a ragged one each item owns a run of rows.

    So 36 regions are one row of (36, 2048), the frames of a clip ragged rows of (2048,), JPEG bytes ragged rows of ().
    Chunk and shard lengths left at None follow from the row's bytes, also after `dataclasses.replace`.
    """

    name: str
    row_shape: tuple[int, ...]
    dtype: Dtype = "float16"
    ragged: bool = False
    rows_per_chunk: int | None = None
    rows_per_shard: int | None = None

    def __post_init__(self) -> None:
        self._check_row()
        self._check_layout()

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize

    @property
    def shard_rows(self) -> int:
        if self.rows_per_shard is not None:
            return self.rows_per_shard
        return max(_power_of_two_within(SHARD // self.row_bytes), self._rows_to_fill_pages)

    @property
    def chunk_rows(self) -> int:
        if self.rows_per_chunk is not None:
            return self.rows_per_chunk
        if self.row_bytes >= LARGE_ROW:
            return 1
        return min(_power_of_two_within(CHUNK // self.row_bytes), self.shard_rows)

    @property
    def _rows_to_fill_pages(self) -> int:
        return PAGE // math.gcd(PAGE, self.row_bytes)

    def _check_row(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise ValueError(f"feature name {self.name!r} must be lower-case letters, digits, '_' or '-'")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"{self.name}: no dtype {self.dtype!r}; there are: {', '.join(get_args(Dtype))}")
        if not isinstance(self.row_shape, tuple) or not all(isinstance(n, int) and n > 0 for n in self.row_shape):
            raise ValueError(f"{self.name}: row_shape must be a tuple of positive integers, not {self.row_shape!r}")

    def _check_layout(self) -> None:
        for length in (self.rows_per_chunk, self.rows_per_shard):
            if length is not None and length < 1:
                raise ValueError(f"{self.name}: a chunk or shard of {length} rows; it needs at least one")
        if self.shard_rows % self.chunk_rows:
            raise ValueError(f"{self.name}: a shard of {self.shard_rows} rows is not whole chunks of {self.chunk_rows}")
        if self.shard_rows % self._rows_to_fill_pages:
            raise ValueError(
                f"{self.name}: a shard of {self.shard_rows} rows of {self.row_bytes} bytes does not fill whole pages "
                f"of {PAGE} bytes; take a multiple of {self._rows_to_fill_pages} rows"
            )


def _power_of_two_within(rows: int) -> int:
    """At least 1. Of all lengths that fit, a power of two aligns a shard's end best."""
    return 1 << (max(rows, 1).bit_length() - 1)
