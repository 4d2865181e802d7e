"""The tags stage: scores of a network, of files, or of both become one vector of named tags for each picture."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.models import resnet18  # type: ignore[import-untyped]

from pipelines.engine.building import build, pending
from pipelines.stages.tags import TagsConfig
from tests.conftest import tree_digest
from tests.made import tags
from tests.stages.test_features_stage import ITEMS, PICTURES, interrupted
from tests.stages.test_resnet_stage import backwards, by_turns, sealed
from tests.stages.test_resnet_stage import storage as storage
from xmodal.detection.image_tags import MergedTags, by_maximum
from xmodal.errors import UserError
from xmodal.features.image_models import open_model
from xmodal.features.model_facts import pixels_of
from xmodal.features.store import FeatureStore
from xmodal.features.torchvision_models import class_names
from xmodal.features.weight_files import weights_sha256
from xmodal.media.preparation import prepare
from xmodal.root.storage import Storage, open_storage

NETWORK = TagsConfig("torchvision/resnet18", "random:0", dtype="float32")
FILES = TagsConfig(None, dtype="float32")
BROKEN = PICTURES | {ITEMS[0][0]: PICTURES[ITEMS[0][0]][:200], ITEMS[1][0]: None}


def scores(path: Path, *rows: tuple[str, str, float]) -> Path:
    path.write_text("id\ttag\tscore\n" + "".join(f"{id}\t{tag}\t{score}\n" for id, tag, score in rows))
    return path


@pytest.fixture
def places(tmp_path: Path) -> Path:
    id, other = ITEMS[0][0], ITEMS[2][0]
    rows = ((id, "/b/balcony/exterior", 0.2), (id, "Tench", 0.1), (other, "aquarium", 0.5), ("nobody", "aquarium", 0.9))
    return scores(tmp_path / "places.tsv", *rows)


@pytest.fixture
def sports(tmp_path: Path) -> Path:
    return scores(tmp_path / "sports.tsv", (ITEMS[0][0], "table_tennis", 3), (ITEMS[0][0], "balcony", 1))


def row_of(store: FeatureStore, id: str) -> dict[str, float]:
    values = store.read([id])[0].tolist()
    return {tag: value for tag, value in zip(store.provenance["tags"], values, strict=True) if value}


def test_a_network_alone_gives_probabilities_of_its_classes(storage: Storage) -> None:
    store = FeatureStore(build(tags(sealed(storage, PICTURES), ITEMS, NETWORK), storage))
    extractor = open_model(NETWORK.network)  # type: ignore[arg-type]
    merged = MergedTags.of([class_names()])
    for name, data in PICTURES.items():
        probabilities = extractor.rows([prepare(data, extractor.config.preparation)])
        assert probabilities.sum() == pytest.approx(1, abs=1e-5)
        np.testing.assert_array_equal(store.read([name]), merged.merge([by_maximum(probabilities)]))
    assert store.provenance["tags"] == [*merged.names]
    assert store.provenance["weights_sha256"] == extractor.weights_sha256
    assert (store.provenance["network"], store.provenance["weights"]) == ("torchvision/resnet18", "random:0")
    assert store.provenance["sources"] == [{"name": "torchvision/resnet18", "sha256": None, "names": 1000}]


def test_classes_are_those_of_torchvision_s_own_network(tmp_path: Path) -> None:
    network = resnet18(num_classes=1000).eval()
    torch.save(network.state_dict(), file := tmp_path / "mine.pth")
    config = replace(NETWORK, weights=f"sha256:{weights_sha256(file)}").network
    assert config
    extractor = open_model(config, file)
    picture = prepare(next(iter(PICTURES.values())), extractor.config.preparation)
    with torch.inference_mode():
        pixels = pixels_of(torch.from_numpy(picture[None].copy()), extractor.config.preparation)
        expected = network(pixels).softmax(1).numpy()
    np.testing.assert_allclose(extractor.rows([picture]), expected, rtol=1e-4, atol=1e-6)


def test_files_alone_need_no_network_and_a_picture_in_none_of_them_is_absent(
    storage: Storage, places: Path, sports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.stages.tags.class_names", None)
    output = build(tags(sealed(storage, BROKEN), ITEMS, FILES, places=places, sports=sports), storage)
    store = FeatureStore(output)
    assert store.provenance["tags"] == ["balcony", "tench", "aquarium", "table tennis"]
    assert [(source["name"], source["names"]) for source in store.provenance["sources"]] == [
        ("places", 3),
        ("sports", 2),
    ]
    assert {len(source["sha256"]) for source in store.provenance["sources"]} == {64}
    assert row_of(store, ITEMS[0][0]) == {"balcony": 1, "tench": 0.5, "table tennis": 1}
    assert row_of(store, ITEMS[2][0]) == {"aquarium": 1}
    assert store.absent == {id for id, _ in ITEMS} - {ITEMS[0][0], ITEMS[2][0]}
    assert output.totals["counts"] == {"rows": 2, "without sports": 1}
    assert output.totals["failures"] == {"absent": len(ITEMS) - 2}
    assert not [name for name in storage.names("") if name == "features"]


def test_a_network_and_files_are_merged_and_what_lacks_a_source_is_counted(storage: Storage, places: Path) -> None:
    media = sealed(storage, BROKEN)
    output = build(tags(media, ITEMS, NETWORK, places=places), storage)
    store, alone = FeatureStore(output), FeatureStore(build(tags(media, ITEMS, NETWORK), storage))
    assert len(store.provenance["tags"]) == len(alone.provenance["tags"]) + 2  # a tench is a class of ImageNet
    assert {"balcony": 1, "tench": 0.5}.items() <= row_of(store, ITEMS[0][0]).items()
    assert row_of(store, ITEMS[2][0]) == row_of(alone, ITEMS[2][0]) | {"aquarium": 1}
    assert store.absent == {ITEMS[1][0]}
    assert output.totals["counts"]["without places"] == len(ITEMS) - 3
    assert len(storage.names("features")) == 1  # the network looked once


def test_scores_may_be_kept_as_they_are(storage: Storage, places: Path) -> None:
    config = replace(FILES, normalise="none", dtype="float16")
    store = FeatureStore(build(tags(sealed(storage, PICTURES), ITEMS, config, places=places), storage))
    assert row_of(store, ITEMS[0][0]) == {"balcony": pytest.approx(0.2, 1e-3), "tench": pytest.approx(0.1, 1e-3)}
    assert store.spec.dtype == "float16"


def test_workers_their_order_and_interruptions_change_no_byte(tmp_path: Path, places: Path) -> None:
    trees = set()
    for number, run in enumerate((backwards, by_turns, interrupted)):
        storage = open_storage(str(tmp_path / str(number)))
        stage = tags(sealed(storage, BROKEN), ITEMS[:5], NETWORK, places=places)
        with suppress(KeyboardInterrupt):
            build(stage, storage, run)
        if run is interrupted:
            assert pending(stage.inputs[1], storage)[1]  # type: ignore[arg-type]
        build(stage, storage)
        trees.add(tree_digest(storage.url))
    assert len(trees) == 1


def test_what_decides_an_identity(storage: Storage, places: Path, sports: Path) -> None:
    media = sealed(storage, PICTURES)
    stages: list[Any] = [tags(media, ITEMS, NETWORK), tags(media, ITEMS[:3], NETWORK)]
    stages += [
        tags(media, ITEMS, replace(NETWORK, **change)) for change in ({"weights": "random:1"}, {"normalise": "none"})
    ]
    stages += [tags(media, ITEMS, NETWORK, places=places), tags(media, ITEMS, NETWORK, sports=places)]
    stages += [tags(media, ITEMS, NETWORK, places=sports), tags(media, ITEMS, FILES, places=places)]
    assert len({stage.identity for stage in stages}) == len(stages)
    moved = places.rename(places.with_name("elsewhere.tsv"))
    assert tags(media, ITEMS, FILES, places=moved).identity == stages[-1].identity


def test_a_longer_list_gives_the_rows_that_it_would_have_alone(storage: Storage, places: Path) -> None:
    media, ids = sealed(storage, PICTURES), [id for id, _ in ITEMS]
    build(tags(media, ITEMS[:3], NETWORK, places=places), storage)
    grown = FeatureStore(build(tags(media, ITEMS, NETWORK, places=places), storage))
    fresh = open_storage(f"{storage.url}-fresh")
    alone = FeatureStore(build(tags(sealed(fresh, PICTURES), ITEMS, NETWORK, places=places), fresh))
    present = [id for id in ids if id in alone]
    np.testing.assert_array_equal(grown.read(present), alone.read(present))
    assert grown.absent == alone.absent


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (FILES, r"tags without a network need a file of scores: --file open_images=PATH, or imagenet, places, sports"),
        (replace(NETWORK, model="torchvision/alexnet"), "no model torchvision/alexnet"),
    ],
)
def test_what_gives_no_tags_is_refused(config: TagsConfig, told: str, storage: Storage) -> None:
    with pytest.raises(UserError, match=told):
        tags(sealed(storage, PICTURES), ITEMS, config)


def test_a_model_without_named_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="timm/test_vit has no output classes; there are: pooled, tokens"):
        replace(NETWORK, model="timm/test_vit")
