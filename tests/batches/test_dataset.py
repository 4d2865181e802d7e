"""Examples: what the records say of a view and the store has features of, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest

import xmodal
from pipelines.demo import coco
from pipelines.demo.world import World
from pipelines.engine.build_options import BuildOptions
from pipelines.engine.building import build
from pipelines.engine.stage import Stage
from pipelines.upkeep.corpus_build import CorpusBuild, build_stages
from tests.publishers import flickr30k_entities
from tests.toy_root import PICTURES, Facts, Media, facts, item_id, make_root
from xmodal import find
from xmodal.batches.dataset import Examples
from xmodal.corpora import load
from xmodal.errors import UserError
from xmodal.features.opening import open_features
from xmodal.features.store import FeatureStore
from xmodal.raw.raw_files import Raw
from xmodal.recipes import View
from xmodal.records.derived_splits import Drawn
from xmodal.records.tables import Region
from xmodal.records.views import captions, members
from xmodal.root.selection import choose
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import END, START, Vocabulary

ABSENT = (3, 8, 40)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=60, absent=ABSENT)


def test_examples_are_what_the_records_say_and_the_store_has(root: str) -> None:
    records, store = find(root, "records")[0], FeatureStore(find(root, "resnet")[0])
    view = View("pictures", "toy/train", captions_per_item=2)
    vocabulary = Vocabulary.build(captions(records, view), "whitespace", 1)
    examples = Examples.of(records, view, store, vocabulary)
    expected = [item_id(n) for n in range(59) if n % 10 < 8 and n not in ABSENT]
    assert list(examples.ids) == expected
    assert (examples.absent, examples.silent) == (2, 0)
    assert [store.ids[row] for row in examples.rows] == expected
    assert examples.caption_items.tolist() == [place for place in range(len(expected)) for _ in range(2)]
    lines = (Path(root).parent / "raw/captions.tsv").read_text().splitlines()
    texts = [line.split("\t")[1] for item in expected for line in lines if line.startswith(item)]
    first_two = [text for number, text in enumerate(texts) if number % 5 < 2]
    for caption, words in zip(first_two, examples.words, strict=True):
        assert [vocabulary.words[word] for word in words[1:-1]] == caption.lower().split()
        assert (words[0], words[-1]) == (START, END)
    assert len(list(captions(records, view))) == 2 * (len(expected) + 2)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (View("pictures", "toy/dev"), "has no split 'toy/dev'; there are: toy/train, toy/val"),
        (View("pictures", "toy/silent"), "has 1 items, but none has both features and captions: 1 have no human"),
        (View("pictures", "toy/train", text="semantics"), "have no semantics captions"),
    ],
)
def test_a_view_without_examples_is_refused(root: str, view: View, message: str) -> None:
    records, store = find(root, "records")[0], FeatureStore(find(root, "resnet")[0])
    with pytest.raises(UserError, match=message):
        Examples.of(records, view, store, Vocabulary.build([], "whitespace", 1))


def test_features_of_the_records_own_media_set_are_the_ones_meant(tmp_path: Path) -> None:
    """Nothing has to be said where only one set of them is of it."""
    root = make_root(tmp_path, items=20, media="pictures")
    (records,), (own,) = find(root, "records"), find(root, "resnet")
    others = Stage("media", Media("others"), lambda config, inputs: iter([("all", None)]), lambda *_: lambda *_: {})
    build(replace(facts(Facts(20, seed=5)), inputs=(others,)), open_storage(root))
    assert len(find(root, "resnet")) == 2
    assert open_features(root, "resnet", None, records).output.folder == own.folder
    (other,) = (output for output in find(root, "resnet") if output.identity != own.identity)
    with pytest.raises(UserError, match="has features of the media set 'others', but pictures is of 'pictures'"):
        open_features(root, "resnet", other.identity, records)
    build(facts(Facts(20, seed=6)), open_storage(root))
    with pytest.raises(UserError, match="several outputs of resnet"):
        open_features(root, "resnet", None, records)


def test_what_a_corpus_of_ones_own_says_is_drawn_is_drawn(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    make_root(tmp_path, items=20)
    corpus = replace(load(str(PICTURES)), counts={}, drawn={"me": Drawn(val=3, test=5)})
    records = CorpusBuild(BuildOptions(open_storage(str(tmp_path / "drawn")), raw=raw), corpus).build("records")
    parts = [members(records, f"me/{part}") for part in ("train", "val", "test")]
    assert list(map(len, parts)) == [12, 3, 5]
    with pytest.raises(
        UserError, match="there are: toy/train, toy/val, toy/test, toy/silent, me/train, me/val, me/test"
    ):
        members(records, "me/dev")


def test_records_are_those_of_the_last_build(tmp_path: Path) -> None:
    """Also where no version was raised, as for what papers drew."""
    make_root(tmp_path, items=20)
    site = BuildOptions(open_storage(str(tmp_path / "drawn")), raw=tmp_path / "raw")
    corpus = replace(load(str(PICTURES)), counts={})
    for test in (4, 5, 6, 7, 5):
        CorpusBuild(site, replace(corpus, drawn={"me": Drawn(val=3, test=test)})).build("records")
        assert len(members(xmodal.open(site.storage.url, "pictures").records, "me/test")) == test


def test_splits_come_author_by_author_as_they_are_used(tmp_path: Path) -> None:
    root = make_root(tmp_path, items=20)
    assert list(xmodal.open(root, "pictures").splits) == ["toy/train", "toy/val", "toy/test", "toy/silent"]


def test_plausible_matches_are_read_split_by_split(tmp_path: Path) -> None:
    root, site = str(tmp_path / "root"), BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    corpus = coco.write(World(items=40, image_size=32), tmp_path / "raw")
    build_stages(CorpusBuild(site, corpus), ["records"])
    dataset = xmodal.open(root, "coco")
    with pytest.raises(
        UserError, match=r"no plausible matches: build them first \(`xmodal build coco/plausible --root "
    ):
        dataset.plausible("karpathy/train")
    build_stages(CorpusBuild(site, corpus), ["plausible"])
    every, train = dataset.plausible(), dataset.plausible("karpathy/train")
    wanted = members(dataset.records, "karpathy/train")
    assert set(train.ids) == wanted & set(every.ids) < set(every.ids)
    for item in train.ids:
        expected = {other: level for other, level in every.matches(item, 2).items() if other in wanted}
        assert train.matches(item, 2) == expected
    with pytest.raises(UserError, match="coco has no split 'karpathy/dev'"):
        dataset.plausible("karpathy/dev")


def test_boxes_of_a_split_are_read_one_by_one_or_thing_by_thing(tmp_path: Path) -> None:
    site = BuildOptions(open_storage(str(tmp_path / "root")), raw=tmp_path / "raw")
    corpus = flickr30k_entities.write(World(items=40, image_size=32), tmp_path / "raw")
    build_stages(CorpusBuild(site, corpus), ["records"])
    dataset = xmodal.open(str(tmp_path / "root"), corpus.name)
    wanted = members(dataset.records, "plummer/train")
    assert all(dataset.regions("plummer/train").values()), "items without a box are not named"
    rows = [r for r in corpus.parse(Raw.folder(tmp_path / "raw")) if isinstance(r, Region) and r.left is not None]
    every, whole = dataset.regions("plummer/train"), dataset.regions("plummer/train", whole=True)
    assert [r for some in every.values() for r in some] == [r for r in rows if r.item in wanted]
    things = {(r.item, r.group) for r in rows if r.item in wanted}
    assert sorted((r.item, str(r.group)) for some in whole.values() for r in some) == sorted(map(_texts, things))
    assert len(things) < sum(map(len, every.values()))
    for region in (region for some in whole.values() for region in some):
        boxes = [r for r in every[region.item] if r.group == region.group]
        assert (region.left, region.bottom) == (min(r.left or 0 for r in boxes), max(r.bottom or 0 for r in boxes))


def _texts(pair: tuple[str, str | None]) -> tuple[str, str]:
    return pair[0], str(pair[1])


def test_an_output_that_is_not_there_is_answered_with_those_that_are(root: str) -> None:
    (records,) = find(root, "records")
    assert choose(root, "records", corpus="pictures").folder == records.folder
    assert choose(root, "records", records.identity).folder == records.folder
    with pytest.raises(UserError, match=r"no resnet is nothing; there are: \w+ \(absent="):
        choose(root, "resnet", "nothing")
    with pytest.raises(UserError, match=r"there is no records of coco under .*: build it first"):
        choose(root, "records", corpus="coco")
