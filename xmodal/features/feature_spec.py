"""The declaration of a feature array, and its description in Zarr v3."""

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
CAPACITY = 1024 * MIB  # the most that a ragged shard may hold; its file is as long as its rows
ITEMS = 256  # of a ragged shard
PLAIN = {"name": "bytes", "configuration": {"endian": "little"}}
CHECKSUMS = {
    "checksums": "crc32c of the unit's key, each chunk's number (8 bytes) and the chunk; between the last and the index"
}


@dataclass(frozen=True)
class FeatureSpec:
    """Declares a feature array: one row per item, or several if it is ragged.

    36 regions are one row of (36, 2048), the frames of a clip are ragged rows of (2048,), JPEG bytes ragged rows of ().
    Lengths of None follow from the row's bytes. A killed worker loses the shard in work.
    """

    name: str
    row_shape: tuple[int, ...]
    dtype: Dtype = "float16"
    ragged: bool = False
    rows_per_chunk: int | None = None
    rows_per_shard: int | None = None  # if ragged: the most that the items of a shard may have together
    items_per_shard: int | None = None  # of ragged arrays only

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize

    @property
    def chunk_rows(self) -> int:
        if self.rows_per_chunk is not None:
            return self.rows_per_chunk
        if self.row_bytes >= LARGE_ROW:
            return 1
        return min(_power_of_two_within(CHUNK // self.row_bytes), self.shard_rows)

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * self.row_bytes

    @property
    def shard_rows(self) -> int:
        if self.rows_per_shard is not None:
            return self.rows_per_shard
        size = CAPACITY if self.ragged else SHARD
        return max(_power_of_two_within(size // self.row_bytes), self.page_rows)

    @property
    def shard_items(self) -> int:
        return (self.items_per_shard or ITEMS) if self.ragged else self.shard_rows

    @property
    def shard_chunks(self) -> int:
        return self.shard_rows // self.chunk_rows

    def rows(self, items: int) -> int:
        """Counts rows; of a ragged array, the most that items may have."""
        return -(-items // self.shard_items) * self.shard_rows if self.ragged else items

    def metadata(self, items: int) -> dict[str, object]:
        """The zarr.json of the array."""
        sharding = {
            "chunk_shape": [self.chunk_rows, *self.row_shape],
            "codecs": [PLAIN],
            "index_codecs": [PLAIN, {"name": "crc32c"}],
            "index_location": "end",
        }
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.rows(items), *self.row_shape],
            "data_type": self.dtype,
            "chunk_grid": _grid(self.shard_rows, *self.row_shape),
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": CHECKSUMS,
        }

    def extents_metadata(self, items: int) -> dict[str, object]:
        """The zarr.json of the items' first rows and numbers of rows."""
        array = {"shape": [items, 2], "data_type": "int64", "chunk_grid": _grid(self.shard_items, 2)}
        return self.metadata(items) | array | {"codecs": [PLAIN], "attributes": {}}

    @property
    def page_rows(self) -> int:
        """The fewest rows that fill whole pages."""
        return PAGE // math.gcd(PAGE, self.row_bytes)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", self.name):
            raise ValueError(f"feature name {self.name!r} must be lower-case letters, digits, '_' or '-'")
        if self.dtype not in get_args(Dtype):
            raise ValueError(f"{self.name}: no dtype {self.dtype!r}; there are: {', '.join(get_args(Dtype))}")
        if not isinstance(self.row_shape, tuple) or not all(isinstance(n, int) and n > 0 for n in self.row_shape):
            raise ValueError(f"{self.name}: row_shape must be a tuple of positive integers, not {self.row_shape!r}")
        for length in (self.rows_per_chunk, self.rows_per_shard, self.items_per_shard):
            if length is not None and length < 1:
                raise ValueError(f"{self.name}: a chunk or shard of {length} rows or items; it needs at least one")
        if self.items_per_shard is not None and not self.ragged:
            raise ValueError(f"{self.name}: items_per_shard is for ragged arrays")
        if self.shard_rows % self.chunk_rows:
            raise ValueError(f"{self.name}: a shard of {self.shard_rows} rows is not whole chunks of {self.chunk_rows}")
        if self.shard_rows % self.page_rows:
            raise ValueError(
                f"{self.name}: a shard of {self.shard_rows} rows does not fill whole pages of {PAGE} bytes; "
                f"take a multiple of {self.page_rows} rows"
            )


def _power_of_two_within(rows: int) -> int:
    return 1 << (max(rows, 1).bit_length() - 1)


def _grid(*file_shape: int) -> dict[str, object]:
    return {"name": "regular", "configuration": {"chunk_shape": list(file_shape)}}
