"""The image_semantics stage: the surest tags of a picture are its caption."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import build
from pipelines.engine.stage import Stage
from pipelines.stages.image_semantics import ImageSemanticsConfig
from pipelines.stages.tags import TagsConfig
from tests.made import made, tags
from tests.stages.test_resnet_stage import sealed
from tests.toy_root import item_id, make_root
from xmodal.records.tables import Caption, read_rows
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage

SCORES = {0: {"dog": 0.4, "hot dog": 1, "sky": 0.39, "cat": 0.4}, 1: {"sky": 0.2}, 3: {"sky": 0}}
KEPT = TagsConfig(None, normalise="none")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=20)


def stage(root: str, folder: Path, config: Any, kept: TagsConfig = KEPT) -> Stage[Any, Any]:
    lines = [f"{item_id(item)}\t{tag}\t{score}" for item, tags in SCORES.items() for tag, score in tags.items()]
    (folder / "scores.tsv").write_text("\n".join(["id\ttag\tscore", *lines]))
    storage, pairs = open_storage(root), tuple((item_id(number), "x.jpg") for number in range(5))
    scores = build(tags(sealed(storage, {}, "pictures"), pairs, kept, sports=folder / "scores.tsv"), storage)
    return made("image_semantics", config, records=find_output(root, "records"), tags=scores)


def test_the_surest_tags_are_the_caption_highest_first(root: str, tmp_path: Path) -> None:
    output = build(stage(root, tmp_path, ImageSemanticsConfig()), open_storage(root))
    text = "hot dog dog cat sky"
    assert list(read_rows(output, Caption)) == [
        Caption("image_semantics:p0000", "p0000", 0, text, "image_semantics"),
    ]
    assert output.totals["counts"] == {"captions": 1, "without tags": 2}


def test_the_score_is_a_setting_and_normalised_scores_give_every_tagged_picture_a_caption(
    root: str, tmp_path: Path
) -> None:
    storage = open_storage(root)
    few = build(stage(root, tmp_path, ImageSemanticsConfig(least=0.5)), storage)
    assert [caption.text for caption in read_rows(few, Caption)] == ["hot dog"]
    relative = build(stage(root, tmp_path, ImageSemanticsConfig(), replace(KEPT, normalise="maximum")), storage)
    assert [caption.item for caption in read_rows(relative, Caption)] == ["p0000", "p0001"]
    none = build(stage(root, tmp_path, ImageSemanticsConfig(least=1.0), KEPT), storage)
    assert [caption.text for caption in read_rows(none, Caption)] == ["hot dog"]


@pytest.mark.parametrize("least", [-0.1, 1.5, float("nan")])
def test_a_score_beyond_0_and_1_is_refused(least: float) -> None:
    with pytest.raises(ValueError, match="least"):
        ImageSemanticsConfig(least)
