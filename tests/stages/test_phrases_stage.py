"""The phrases stage: a row for each phrase's words, coded as a caption of these words; none where nobody marked any."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.upkeep.corpus_build import CorpusBuild
from tests.publishers.flickr30k_entities import write
from xmodal.batches.annotated_phrases import annotated_phrases
from xmodal.batches.dataset import open_dataset
from xmodal.detection.given_boxes import boxes_of_phrases, chain_boxes
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.recipes import View
from xmodal.records.tables import Match, Region, read_rows
from xmodal.root.outputs import Output, find
from xmodal.root.storage import open_storage
from xmodal.text.sentence_vectors import Codebook

WORLD = World(items=80, image_size=32, captions_per_item=3, seed=5, partiality=0.7)
SETTINGS = {"codebook.method": "tfidf", "codebook.split": "plummer/train", "codebook.width": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    folder = tmp_path_factory.mktemp("phrases")
    corpus = write(WORLD, folder / "raw")
    options = BuildOptions(open_storage(str(folder / "root")), raw=folder / "raw", settings=SETTINGS)
    return FeatureStore(CorpusBuild(options, corpus).build("phrases"))


def records_of(made: FeatureStore) -> Output:
    (records,) = find(made.output.storage.url, "records")
    return records


def test_a_phrase_is_coded_as_its_words_are(made: FeatureStore) -> None:
    root = made.output.storage.url
    phrases = annotated_phrases(records_of(made), View("flickr30k_entities", "plummer/train"))
    assert set(phrases.words) < set(made.ids)
    assert list(made.ids) == sorted(set(made.ids))
    assert len(made.ids) < sum(one.start is not None for one in read_rows(records_of(made), Match))
    (codebook,) = find(root, "codebook")
    expected = Codebook.from_bytes(codebook.read("codebook.npz"), "").encode(list(phrases.words[:50]))
    np.testing.assert_allclose(made.read(phrases.words[:50]), expected, atol=1e-3)
    assert made.provenance["method"] == "tfidf"


def test_phrases_are_no_features_of_pictures(made: FeatureStore) -> None:
    assert open_dataset(made.output.storage.url, "flickr30k_entities").features == ()


def test_the_box_of_a_phrase_is_around_all_that_it_names(made: FeatureStore) -> None:
    """As records have them, one box at a time; a chain of several has one of them all."""
    records = records_of(made)
    sides: dict[tuple[str, str], list[Region]] = {}
    for one in read_rows(records, Region):
        if one.group is not None and one.left is not None:
            sides.setdefault((one.item, one.group), []).append(one)
    assert any(len(some) > 1 for some in sides.values())
    found = chain_boxes(records)
    assert found.keys() == sides.keys()
    for chain, some in sides.items():
        near = [min(getattr(one, side) for one in some) for side in ("left", "top")]
        far = [max(getattr(one, side) for one in some) for side in ("right", "bottom")]
        assert found[chain] == (*near, *far)
        assert found[chain] in boxes_of_phrases(records)[chain[0]]
    assert all(len(set(boxes)) == len(boxes) for boxes in boxes_of_phrases(records).values())


def test_a_corpus_without_phrases_has_none(tmp_path: Path) -> None:
    from tests.stages.test_pinned import builds

    build = builds(tmp_path, tmp_path)["root"]
    assert FeatureStore(build.build("phrases")).ids == ()
    with pytest.raises(UserError, match="pictures has no phrases with boxes: leave out boxes=phrases"):
        boxes_of_phrases(build.build("records"))
    options = replace(build.options, settings={**build.options.settings, "regions.boxes": "phrases"}, files={})
    with pytest.raises(UserError, match="has no phrases with boxes"):
        CorpusBuild(options, build.corpus).build("regions")
