"""Region stores: boxes, words and sizes come back by id; tables that do not fit their features are refused."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink
from pipelines.stage_forms.array_stages import (
    ArrayShard,
    ArrayWriter,
    PlannedArray,
    array_stage,
    write_items,
    write_table,
)
from pipelines.stage_forms.earlier_rows import EarlierRows
from xmodal.detection.region_store import REGIONS, Named, PictureRegions, RegionStore, empty_row, regions_file
from xmodal.errors import UserError
from xmodal.features.feature_spec import FeatureSpec
from xmodal.root.storage import open_storage

SPEC = FeatureSpec("features", (4,), "float32", ragged=True, rows_per_shard=1024, items_per_shard=2)
WORDS = {"classes": ["circle", "square", "star"], "attributes": ["red", "blue"]}


def some_regions(id: str, count: int, words: bool = True, size: tuple[int, int] | None = (64, 48)) -> PictureRegions:
    random = np.random.default_rng(list(id.encode()))
    named = [Named(random.integers(0, n, count).astype("int32"), random.random(count, "float32")) for n in (3, 2)]
    corners, features = random.random((count, 2, 2), "float32"), random.random((count, 4), "float32")
    boxes = np.sort(corners, axis=1).reshape(count, 4)
    return PictureRegions(id, boxes, features, size, *(named if words and count else (None, None)))


PICTURES = [some_regions("a", 3), some_regions("b", 0), some_regions("c", 2, words=False, size=None)]


def make_store(
    root: Path, pictures: Sequence[PictureRegions] = PICTURES, absent: str = "", change: Mapping[str, Any] | None = None
) -> str:
    """A finished region store. `change` replaces columns of the first picture's row."""

    def fill(work: ArrayShard, sink: Sink, earlier: EarlierRows) -> Counts:
        chosen = pictures[work.rows.start : work.rows.stop]
        rows = [empty_row(picture.id) if picture.id == absent else picture.row("0" * 64) for picture in chosen]
        if work.first == 0:
            rows[0] |= change or {}
        if absent in work.ids:
            sink.fail(absent, "unreadable", "it is to be so")
        features = (picture.features_KD[: 0 if picture.id == absent else None] for picture in chosen)
        write_items(sink, SPEC, work.rows, features)
        name = regions_file(work.first // SPEC.shard_items)
        write_table(sink, name, pa.Table.from_pylist(rows, schema=REGIONS))
        return {}

    def opened(config: str, inputs: Inputs) -> ArrayWriter:
        return ArrayWriter(SPEC, {"words": WORDS}, fill)

    ids = [picture.id for picture in pictures]
    stage = array_stage("regions", "made", (), 1, lambda config, inputs: PlannedArray(SPEC, ids), opened)
    return build(stage, open_storage(str(root))).where


def assert_same(found: PictureRegions, expected: PictureRegions) -> None:
    assert (found.id, found.size) == (expected.id, expected.size)
    np.testing.assert_array_equal(found.boxes_K4, expected.boxes_K4)
    np.testing.assert_array_equal(found.features_KD, expected.features_KD)
    for one, other in ((found.classes, expected.classes), (found.attributes, expected.attributes)):
        assert (one is None) == (other is None)
        if one and other:
            np.testing.assert_array_equal(one.ids_K, other.ids_K)
            np.testing.assert_array_equal(one.scores_K, other.scores_K)


def test_regions_come_back_by_id_as_they_were_written(tmp_path: Path) -> None:
    store = RegionStore(make_store(tmp_path))
    assert (store.ids, store.words.classes, store.words.attributes) == (
        ("a", "b", "c"),
        ("circle", "square", "star"),
        ("red", "blue"),
    )
    for picture in PICTURES:
        assert_same(store.picture(picture.id), picture)
    assert store.features("b").shape == (0, 4)
    assert store.table.column_names == REGIONS.names


def test_absent_and_unknown_pictures_are_refused(tmp_path: Path) -> None:
    store = RegionStore(make_store(tmp_path, absent="c"))
    assert store.absent == {"c"}
    for read in (store.boxes, store.features, store.size, store.classes, store.attributes):
        with pytest.raises(UserError, match="has no features of 'c'"):
            read("c")
        with pytest.raises(UserError, match="has no row for 'nobody'"):
            read("nobody")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"boxes": [1.0] * 8}, "boxes of 'a' are not as many as its regions"),
        ({"boxes": None}, "boxes of 'a' are not as many"),
        ({"class_scores": [0.5]}, "class_scores of 'a' are not as many"),
        ({"class_ids": [0, 1, 3]}, "class_ids of which its 3 words have none"),
        ({"attribute_ids": [0, -1, 1]}, "attribute_ids of which its 2 words have none"),
        ({"id": "z"}, "has other items in its tables of regions"),
    ],
)
def test_a_table_that_does_not_fit_its_features_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    where = make_store(tmp_path, change=change)
    with pytest.raises(UserError, match=said):
        RegionStore(where)
