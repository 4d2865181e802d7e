"""The concepts stage: each caption as the numbers of the tags that it names."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.building import build, pending
from pipelines.stages.concepts import ConceptsConfig
from tests.conftest import tree_digest
from tests.made import concepts
from tests.stages.test_features_stage import interrupted
from tests.stages.test_resnet_stage import backwards, by_turns
from tests.tagged_root import PLAIN, make_tagged_root
from tests.text.test_wordnet import contents, written
from xmodal.batches.dataset import open_dataset
from xmodal.errors import UserError
from xmodal.features.store import FeatureStore
from xmodal.records.tables import Caption, read_rows
from xmodal.root.outputs import Output
from xmodal.root.selection import find_output
from xmodal.root.storage import open_storage
from xmodal.text.wordnet import NO_WORDNET, Concepts, read_wordnet


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_tagged_root(tmp_path_factory.mktemp("tagged"))[0]


@pytest.fixture
def records(root: str) -> Output:
    return find_output(root, "records")


@pytest.fixture
def tags(root: str) -> Output:
    return find_output(root, "tags")


def named(store: FeatureStore, tags: Output, id: str) -> list[str]:
    names = FeatureStore(tags).provenance["tags"]
    return [names[number - 1] for number in store.read([id])[0].tolist() if number]


def test_every_caption_has_the_tags_that_its_words_name(root: str, records: Output, tags: Output) -> None:
    output = find_output(root, "concepts")
    store, names = FeatureStore(output), FeatureStore(tags).provenance["tags"]
    captions = list(read_rows(records, Caption))
    assert store.ids == tuple(sorted(caption.id for caption in captions))
    by_definition = Concepts(tuple(names), NO_WORDNET)
    for caption in captions:
        assert named(store, tags, caption.id) == [names[place] for place in by_definition.encode(caption.text)]
        assert {*caption.text.lower().split()} & {*names} <= {*named(store, tags, caption.id)}
    counts = output.totals["counts"]
    assert counts["rows"] == len(captions) > counts["without concepts"]
    assert counts["concepts"] == sum(len(named(store, tags, id)) for id in store.ids)


def test_wordnet_adds_synonyms_and_is_part_of_the_identity(
    root: str, records: Output, tags: Output, tmp_path: Path
) -> None:
    folder = written(tmp_path / "dict", contents())
    stage = concepts(records, tags, ConceptsConfig(), wordnet=folder)
    store = FeatureStore(build(stage, open_storage(root)))
    by_definition = Concepts(tuple(FeatureStore(tags).provenance["tags"]), read_wordnet(folder))
    caption = next(read_rows(records, Caption))
    assert store.read([caption.id])[0].tolist() == (by_definition.encode(caption.text) + 1).tolist()
    (folder / "noun.exc").write_bytes((folder / "noun.exc").read_bytes() + b"mice mouse\n")
    assert concepts(records, tags, ConceptsConfig(), wordnet=folder).identity != stage.identity


def test_a_caption_that_names_nothing_has_the_number_0(root: str, records: Output, tags: Output) -> None:
    others = concepts(records, tags, replace(PLAIN, tokenizer="dual-path"))
    store = FeatureStore(build(others, open_storage(root)))
    assert all(len(numbers) for numbers in store.read(store.ids))
    assert all(numbers.tolist() == [0] or 0 not in numbers for numbers in store.read(store.ids))


def test_workers_their_order_and_interruptions_change_no_byte(tmp_path: Path) -> None:
    trees = set()
    root, made, _ = make_tagged_root(tmp_path / "first", items=40)
    for number, run in enumerate((backwards, by_turns, interrupted)):
        storage = open_storage(root)
        stage = concepts(find_output(root, "records"), made, replace(PLAIN, items_per_shard=40))
        with suppress(KeyboardInterrupt):
            build(stage, storage, run)
        assert (pending(stage, storage)[1] > 0) is (run is interrupted)
        build(stage, storage)
        folder = Path(root, stage.folder)
        trees.add(tree_digest(str(folder)))
        folder.rename(tmp_path / str(number))
    assert len(trees) == 1


def test_without_wordnet_one_is_told_how_to_get_it(records: Output, tags: Output, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no WordNet in .*nowhere.*: `python -m nltk"):
        concepts(records, tags, ConceptsConfig(), wordnet=tmp_path / "nowhere")


@pytest.mark.parametrize("settings", [{"expansion": "none", "tokenizer": "words"}, {"items_per_shard": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer 'words'|it needs at least one"):
        ConceptsConfig(**settings)


def test_captions_are_no_features_of_items(root: str) -> None:
    stages = {output.stage for output in open_dataset(root, "pictures").features}
    assert "tags" in stages
    assert "concepts" not in stages
