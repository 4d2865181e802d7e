import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xmodal.features.feature_spec import FeatureSpec
from xmodal.features.store import extents_file, shard_file, shard_ranges

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("row_shape", "dtype", "chunk_rows", "shard_rows", "shard_mib"),
    [
        ((36, 2048), "float16", 1, 1024, 144),
        ((49, 2048), "float16", 1, 1024, 196),
        ((2048,), "float16", 64, 65_536, 256),
        ((36, 4), "float32", 256, 262_144, 144),
        ((), "uint8", 262_144, 268_435_456, 256),
    ],
)
def test_default_layout_is_the_measured_one(
    row_shape: tuple[int, ...], dtype: str, chunk_rows: int, shard_rows: int, shard_mib: int
) -> None:
    spec = FeatureSpec("array", row_shape, dtype)  # type: ignore[arg-type]
    assert (spec.chunk_rows, spec.shard_rows) == (chunk_rows, shard_rows)
    assert spec.shard_rows * spec.row_bytes == shard_mib * MIB


row_shapes = st.lists(st.integers(1, 300), max_size=3).map(tuple)
dtypes = st.sampled_from(["float16", "float32", "uint8", "int32", "int64"])


@given(row_shapes, dtypes)
def test_default_shards_are_whole_pages_and_whole_chunks(row_shape: tuple[int, ...], dtype: str) -> None:
    spec = FeatureSpec("array", row_shape, dtype)  # type: ignore[arg-type]
    shard_bytes = spec.shard_rows * spec.row_bytes
    assert shard_bytes % (4 * KIB) == 0
    assert spec.shard_rows % spec.chunk_rows == 0
    if spec.row_bytes <= 64 * KIB:
        assert 128 * MIB < shard_bytes <= 256 * MIB
    if spec.row_bytes >= 64 * KIB:
        assert spec.chunk_rows == 1
    else:
        assert 128 * KIB < spec.chunk_rows * spec.row_bytes <= 256 * KIB


def test_short_shards_for_slow_extractors() -> None:
    regions = FeatureSpec("regions", (36, 2048), rows_per_shard=128)
    boxes = FeatureSpec("boxes", (36, 4), "float32", rows_per_shard=128)
    assert (regions.shard_rows, regions.chunk_rows) == (128, 1)
    assert (boxes.shard_rows, boxes.chunk_rows) == (128, 128)


@pytest.mark.parametrize(
    ("row_shape", "dtype"), [((2048,), "float16"), ((), "uint8"), ((), "int32"), ((300,), "float32")]
)
def test_default_ragged_shards_have_room_for_many_long_items(row_shape: tuple[int, ...], dtype: str) -> None:
    """Of 256 items; what they do not need takes no bytes."""
    spec = FeatureSpec("clips", row_shape, dtype, ragged=True)  # type: ignore[arg-type]
    assert spec.shard_items == 256
    assert 512 * MIB < spec.shard_rows * spec.row_bytes <= 1024 * MIB
    assert spec.shard_rows % spec.chunk_rows == 0
    assert 128 * KIB < spec.chunk_rows * spec.row_bytes <= 256 * KIB


def test_a_ragged_array_has_the_rows_that_its_items_may_have() -> None:
    spec = FeatureSpec("clips", (64,), "float16", True, 4, 32, 5)
    assert [spec.rows(items) for items in (0, 1, 5, 6, 12)] == [0, 32, 32, 64, 96]
    assert [list(items) for items in shard_ranges(spec, 7)] == [[0, 1, 2, 3, 4], [5, 6]]
    assert (shard_file(spec, 2), extents_file(spec, 2)) == ("clips/c/2/0", "clips_extents/c/2/0")


def test_defaults_follow_a_replaced_dtype() -> None:
    half = FeatureSpec("pooled", (2048,))
    assert replace(half, dtype="float32").chunk_rows == half.chunk_rows // 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bfloat16"}, "no dtype 'bfloat16'; there are: float16, float32"),
        ({"name": "Regions/36"}, "feature name 'Regions/36'"),
        ({"name": ""}, "feature name ''"),
        ({"row_shape": (36, 0)}, "row_shape must be a tuple of positive integers"),
        ({"row_shape": [36, 2048]}, "row_shape must be a tuple of positive integers"),
        ({"row_shape": (2048.0,)}, "row_shape must be a tuple of positive integers"),
        ({"rows_per_shard": 0}, "needs at least one"),
        ({"rows_per_chunk": -1}, "needs at least one"),
        ({"rows_per_shard": 100, "rows_per_chunk": 64}, "not whole chunks of 64"),
        ({"row_shape": (3,), "rows_per_shard": 1024}, "take a multiple of 2048 rows"),
        ({"items_per_shard": 5}, "items_per_shard is for ragged arrays"),
        ({"ragged": True, "items_per_shard": 0}, "needs at least one"),
    ],
)
def test_wrong_specs_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(FeatureSpec("regions", (36, 2048)), **changes)  # type: ignore[arg-type]


def test_a_spec_is_a_frozen_value() -> None:
    spec = FeatureSpec("regions", (36, 2048))
    with pytest.raises(FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]
    assert hash(spec) == hash(FeatureSpec("regions", (36, 2048)))


@pytest.mark.parametrize("module", ["xmodal", "xmodal.features.store", "xmodal.ranking.ranks", "xmodal.models"])
def test_import_needs_no_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
