"""Sparse corpora and splits that papers drew: how many there are, which lie in which, and what nobody can read."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import xmodal
from pipelines.engine.building import build
from pipelines.engine.stage import Counts, Inputs, Sink, Stage
from pipelines.papers.recipe_runs import recipe_with
from pipelines.stages.records import RecordsConfig, config_of
from tests.toy_root import Facts, facts, fit, make_root, one_thread, recipe
from xmodal.batches.examples import Examples
from xmodal.batches.loader import Loader
from xmodal.batches.reader import Reader
from xmodal.corpora import coco, flickr30k, load, names
from xmodal.errors import UserError
from xmodal.recipes import View
from xmodal.records.derived_splits import DrawnSplit, RandomSplitSizes, Share, shuffled
from xmodal.records.tables import ROWS, Caption, Item, Split, Tables
from xmodal.records.views import caption_texts, captions_by_item, items_with_captions
from xmodal.root.outputs import Output
from xmodal.root.storage import open_storage
from xmodal.text.vocabularies import Vocabulary

__all__ = ["one_thread"]
# Of A3VSE's tables 1 and 3: percent of pictures, captions of each, pairs as printed, and those that the rule gives.
FLICKR30K = [
    *((10, 1, 2_900, 2_900), (10, 2, 5_800, 5_800), (10, 5, 14_500, 14_500)),
    *((20, 1, 5_800, 5_800), (20, 2, 11_600, 11_600), (20, 5, 29_000, 29_000)),
    *((50, 1, 14_500, 14_500), (50, 2, 23_200, 29_000), (50, 5, 72_500, 72_500)),
]
COCO = [
    *((5, 1, 5_664, 5_664), (5, 2, 11_328, 11_328), (5, 5, 28_320, 28_320)),
    *((10, 1, 11_328, 11_328), (10, 2, 22_656, 22_656), (10, 5, 56_640, 56_640)),
    *((20, 1, 22_657, 22_657), (20, 2, 45_314, 45_314), (20, 5, 113_287, 113_285)),
    (50, 2, 113_287, 113_286),  # of table 4
]
MISPRINTS = {
    ("flickr30k", 50, 2): (23_200, 29_000),  # table 1 and section 4.4; table 2 has 29,000
    ("coco", 20, 5): (113_287, 113_285),  # a fifth of 566,435 pairs, not five captions of 22,657 pictures
    ("coco", 50, 2): (113_287, 113_286),  # likewise
}
IMAGES = {"flickr30k": {10: 2_900, 20: 5_800, 50: 14_500}, "coco": {5: 5_664, 10: 11_328, 20: 22_657, 50: 56_643}}


def tables(root: Path, corpus: str, rows: Iterator[Item | Caption | Split]) -> Output:
    """Records of a corpus' name from rows, without its files."""

    def plan(config: object, inputs: Inputs) -> Iterator[tuple[str, None]]:
        yield "tables", None

    def write(work: None, sink: Sink) -> Counts:
        files = {name: sink.file(f"{name}.parquet") for name in ROWS}
        opened = {name: file.__enter__() for name, file in files.items()}
        with Tables(opened, 65_536) as into:
            for row in rows:
                into.add(row)
        for file in files.values():
            file.__exit__(None, None, None)
        return into.counts

    config = config_of(load(corpus), RecordsConfig()) if corpus in names() else RecordsConfig(corpus, 1, corpus)
    stage = Stage("records", config, plan, lambda config, inputs: write)
    return build(stage, open_storage(str(root)))


def pictures(train: int, val: int, test: int, six: int = 0) -> Iterator[Item | Caption | Split]:
    """Five captions each, and six of the first `six`."""
    for number in range(train + val + test):
        yield Item(f"{number}", f"{number}.jpg")
        yield Split(
            f"{number}", "karpathy/" + ("train" if number < train else "val" if number < train + val else "test")
        )
        for position in range(5 + (number < six)):
            yield Caption(f"{number}#{position}", f"{number}", position, f"a picture {number} {position}")


@pytest.fixture(scope="module")
def flickr(tmp_path_factory: pytest.TempPathFactory) -> Output:
    return tables(tmp_path_factory.mktemp("flickr"), "flickr30k", pictures(29_000, 1_014, 1_000 + 769))


def ids_by_item(records: Output, view: View) -> dict[str, list[str]]:
    captions = captions_by_item(records, view)
    return captions.grouped(captions.ids)


def seen(records: Output, name: str) -> set[str]:
    """Captions by their ids."""
    found = ids_by_item(records, View(str(records.config["corpus"]), name, captions_per_item=5))
    return {caption for some in found.values() for caption in some}


def drawn(share: Share, captions: list[str]) -> list[str]:
    """Of the captions of one item."""
    kept = share.drawn_captions(captions, np.zeros(len(captions), np.int64))
    return [caption for caption, stays in zip(captions, kept.tolist(), strict=True) if stays]


@pytest.fixture(scope="module")
def captioned(flickr: Output) -> dict[str, list[str]]:
    return ids_by_item(flickr, View("flickr30k", "karpathy/train"))


@pytest.mark.parametrize(("percent", "each", "printed", "ruled"), FLICKR30K)
def test_flickr30k_has_the_counts_of_the_rule(
    captioned: dict[str, list[str]], percent: int, each: int, printed: int, ruled: int
) -> None:
    kept = Share("karpathy/train", percent, each)
    some = kept.items(captioned)
    assert len(some) == IMAGES["flickr30k"][percent]
    assert sum(len(drawn(kept, captioned[item])) for item in some) == ruled
    assert MISPRINTS.get(("flickr30k", percent, each), (ruled, ruled)) == (printed, ruled)


def test_the_records_give_the_same(flickr: Output, captioned: dict[str, list[str]]) -> None:
    name, kept = "karpathy/train@50%x2", Share("karpathy/train", 50, 2)
    found = ids_by_item(flickr, View("flickr30k", name))
    members = kept.items(captioned)
    assert found == {item: drawn(kept, some) for item, some in captioned.items() if item in members}
    assert sum(map(len, found.values())) == 29_000
    others = ids_by_item(flickr, View("flickr30k", f"{name}:unannotated"))
    assert found.keys() | others.keys() == captioned.keys()
    assert not found.keys() & others.keys()
    assert not any(others.values())


@pytest.mark.parametrize(("percent", "each", "printed", "ruled"), COCO)
def test_coco_has_the_counts_of_the_rule(percent: int, each: int, printed: int, ruled: int) -> None:
    kept = Share.of(f"karpathy/train@{percent}%x{each}")
    assert kept
    train = [str(number) for number in range(113_287)]
    assert len(kept.items(train)) == IMAGES["coco"][percent]
    assert len(kept.items(train)) * each == ruled
    assert MISPRINTS.get(("coco", percent, each), (ruled, ruled)) == (printed, ruled)
    assert kept.items(train) | replace(kept, annotated=False).items(train) == set(train)


def test_shares_and_captions_are_nested_and_a_seed_makes_others(tmp_path: Path) -> None:
    records = tables(tmp_path, "pictures", pictures(2_000, 5, 5))
    names = [f"karpathy/train@{part}" for part in ("5%x1", "10%x1", "10%x2", "20%x5", "50%")]
    parts = [seen(records, name) for name in names]
    assert all(small < large for small, large in pairwise(parts))
    assert parts[1] != seen(records, "karpathy/train@10%x1#1")
    firsts = sum(caption.endswith("#0") for caption in seen(records, "karpathy/train@50%x1"))
    assert 150 < firsts < 250  # of 1,000: drawn, and not always the first


def test_six_captions_are_five_where_papers_take_five(tmp_path: Path) -> None:
    records = tables(tmp_path, "coco", pictures(40, 5, 5, six=40))
    (five, drawn) = (ids_by_item(records, View("coco", f"karpathy/train@50%{n}", 5)) for n in ("", "x2"))
    assert {len(some) for some in five.values()} == {5}
    assert {len(some) for some in drawn.values()} == {2}
    positions = [[int(caption.partition("#")[2]) for caption in some] for some in drawn.values()]
    assert all(some == sorted(some) and max(some) < 5 for some in positions)


def test_the_order_is_pinned() -> None:
    """A shuffle that changed would change every sparse corpus that somebody trained on."""
    told = ",".join(shuffled(map(str, range(100)), "items", 0))
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "6f17c143fcf93d30"


@given(st.sets(st.text(min_size=1, max_size=8), max_size=40), st.integers(1, 99), st.integers(0, 9))
def test_any_two_shares_of_a_seed_are_nested_and_whole(ids: set[str], percent: int, seed: int) -> None:
    small, large = (Share("x/train", some, seed=seed) for some in (percent, percent + 1))
    assert small.items(ids) <= large.items(ids)
    assert len(small.items(ids)) == len(ids) * percent // 100
    assert small.items(ids) | replace(small, annotated=False).items(ids) == ids
    assert small.items(sorted(ids)) == small.items(sorted(ids, reverse=True))


@pytest.mark.parametrize("name", ["a/train@10%", "a/train@5%x2#7", "b/train@100%#3:unannotated"])
def test_a_name_says_what_it_is(name: str) -> None:
    share = Share.of(name)
    assert share
    assert share.name == name
    assert Share.of("karpathy/train") is None


@pytest.mark.parametrize("name", ["a/train@0.1%", "a/train@ten%", "a/train@-5%", "a/train@10%x", "a/train@10%:rest"])
def test_a_share_that_is_misspelt_is_told_how_it_is_written(name: str) -> None:
    with pytest.raises(UserError, match=r"is no share, which is of whole percents, 1 to 100: NAME@10%, NAME@10%x2"):
        Share.of(name)
    assert Share.of("a/100%") is None


@pytest.mark.parametrize("name", ["a/train@0%", "a/train@101%", "a/train@10%x0"])
def test_a_share_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"a share is of 1 to 100 %, and keeps a caption or more"):
        Share.of(name)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_root(tmp_path_factory.mktemp("toy"), items=120)


def test_the_captions_of_the_other_part_cannot_be_reached(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    view = View("pictures", "toy/train@25%:unannotated")
    found = ids_by_item(dataset.records, view)
    assert len(found) == 72
    assert not any(found.values())
    assert list(caption_texts(dataset.records, view)) == []
    assert items_with_captions(dataset.records, view) == set()
    with pytest.raises(UserError, match=r"has 72 items, but none has both .*: 72 have no human captions"):
        dataset.reader(view.split)
    with pytest.raises(UserError, match="has no split 'toy/none'; there are: toy/train"):
        ids_by_item(dataset.records, View("pictures", "toy/none@10%"))


def test_words_are_those_of_the_annotated_part(root: str) -> None:
    dataset = xmodal.open(root, "pictures")
    annotated = ids_by_item(dataset.records, View("pictures", "toy/train@10%"))
    wanted = Vocabulary.build(caption_texts(dataset.records, View("pictures", "toy/train@10%")), "nltk", 4)
    assert dataset.reader("toy/train@10%").examples.ids == tuple(annotated)
    for name in ("toy/train@10%", "toy/train@10%:unannotated"):
        assert dataset.vocabulary(name) == wanted
    assert set(wanted.words) < set(dataset.vocabulary().words)
    known, full = dataset.reader("toy/val", words="toy/train@10%"), dataset.reader("toy/val")
    assert max(map(max, known.examples.words)) < len(wanted) <= max(map(max, full.examples.words))


def test_the_other_part_is_read_by_what_no_person_wrote(tmp_path: Path) -> None:
    """Two streams: captions of the annotated part, and of the others words that a detector would give."""
    rows = list(pictures(40, 5, 5))
    told = [Caption(f"{n}!", str(n), 0, f"red ball {n}", "semantics") for n in range(50)]
    renamed = [replace(row, id=f"p{int(row.id):04d}") if isinstance(row, Item) else row for row in rows]
    owned = [replace(row, item=f"p{int(row.item):04d}") for row in (*rows, *told) if not isinstance(row, Item)]
    records = tables(tmp_path / "root", "pictures", iter([*(r for r in renamed if isinstance(r, Item)), *owned]))
    build(facts(Facts(50)), open_storage(str(tmp_path / "root")))
    store = xmodal.open(str(tmp_path / "root"), "pictures").store()
    part, other = (
        View("pictures", "karpathy/train@25%x2"),
        View("pictures", "karpathy/train@25%x2:unannotated", None, "semantics"),
    )
    vocabulary = Vocabulary.build([*caption_texts(records, part), *caption_texts(records, other)], "whitespace", 1)
    readers = {
        "annotated": Reader(Examples.of(records, part, store, vocabulary), store),
        "unannotated": Reader(Examples.of(records, other, store, vocabulary), store),
    }
    batch = next(iter(Loader(readers, 20)))
    ids = {name: {readers[name].examples.ids[n] for n in stream.visual_items} for name, stream in batch.streams.items()}
    assert [len(readers[name].examples.words) for name in readers] == [20, 30]
    assert not ids["annotated"] & ids["unannotated"]
    said = {vocabulary.words[word] for row in batch.streams["unannotated"].text.values for word in row}
    assert {"red", "ball"} <= said
    assert "picture" not in said


@pytest.mark.parametrize("whole", ["karpathy/train-clean-1f3a09c2", "karpathy/restval", "karpathy/trainval"])
def test_a_part_of_what_is_trained_on_has_no_word_of_hidden_captions(tmp_path: Path, whole: str) -> None:
    """Of each picture one word alone is said four times; val has words of all that is trained on."""
    numbers = {str(number) for number in range(20, 40)}
    rows: list[Item | Caption | Split] = []
    for row in pictures(40, 5, 5):
        rows.append(replace(row, text=f"word{row.item}") if isinstance(row, Caption) else row)
        if isinstance(row, Item) and row.id in numbers:
            rows.append(Split(row.id, whole))
    tables(tmp_path, "pictures", iter(rows))
    dataset = xmodal.open(str(tmp_path), "pictures")
    words = {f"word{item}" for item in Share(whole, 20).items(numbers)}
    for name in (f"{whole}@20%", f"{whole}@20%:unannotated"):
        assert {word for word in dataset.vocabulary(name).words if word.startswith("word")} == words
    assert dataset.vocabulary("karpathy/val@20%") == dataset.vocabulary("karpathy/train")


def test_all_that_people_wrote_is_hidden(tmp_path: Path) -> None:
    """Entities' unrelated captions too, of which a share keeps no more than of the others."""
    told = [Caption(f"{n}?{m}", str(n), m, f"a word of {n}", "unrelated") for n in range(40) for m in range(3)]
    records = tables(tmp_path, "pictures", iter([*pictures(40, 5, 5), *told]))
    annotated, hidden = (
        list(caption_texts(records, View("pictures", f"karpathy/train@25%x1{other}", None, "unrelated")))
        for other in ("", ":unannotated")
    )
    assert (len(annotated), len(hidden)) == (10, 0)


def test_a_model_trains_on_a_part(root: str, tmp_path: Path) -> None:
    sparse = recipe(epochs=1, view=View("pictures", "toy/train@50%x1", captions_per_item=5))
    outcome = fit(sparse, root, str(tmp_path / "run"))
    assert outcome.steps == 2  # of 32 and 16 of the 48 captions
    words = (tmp_path / "run/vocabulary.txt").read_text().splitlines()[1:]
    records = xmodal.find(root, "records")[0]
    assert tuple(words) == Vocabulary.build(caption_texts(records, sparse.view), "nltk", 2).words


def test_a_recipe_of_ours_takes_a_part_by_its_name() -> None:
    changed = recipe_with("vsepp", ["view.split=karpathy/train@10%x2#3"])
    assert Share.of(changed.view.split) == Share("karpathy/train", 10, 2, 3)


@pytest.mark.parametrize("split", ["karpathy/train@20%x2", "karpathy/train@10%x1#3", "dual_path/train@50%"])
def test_the_unannotated_items_follow_the_annotated_ones(split: str) -> None:
    changed = recipe_with("a3vse-coco-10-5", [f"view.split={split}", "seed=2"])
    assert changed.unannotated
    assert (changed.view.split, changed.unannotated.split) == (split, f"{split}:unannotated")
    assert (changed.unannotated.text, changed.seed) == ("semantics", 2)


def test_a_split_that_leaves_no_items_is_refused_where_a_recipe_learns_from_them() -> None:
    with pytest.raises(UserError, match=r"name a share, such as karpathy/train@10%, or another recipe"):
        recipe_with("a3vse-coco-10-5", ["view.split=karpathy/train"])
    without = recipe_with("a3vse-flickr30k-10-5-no-semantics", ["view.split=karpathy/train"])
    assert (without.view.split, without.unannotated) == ("karpathy/train", None)


def test_papers_drew_what_they_say(tmp_path: Path) -> None:
    every = [str(number) for number in range(123_287)]
    sizes = {"two_branch": (113_287, 9_000, 1_000), "dual_path": (113_287, 5_000, 5_000)}
    for who, wanted in sizes.items():
        parts = [DrawnSplit(who, part).items(every, coco.CORPUS.drawn[who], ()) for part in ("train", "val", "test")]
        assert tuple(map(len, parts)) == wanted
        assert set.union(*parts) == set(every)
    first, second = (
        DrawnSplit("dual_path", "test", seed).items(every, RandomSplitSizes(5_000, 5_000), ()) for seed in (0, 1)
    )
    assert 100 < len(first & second) < 320  # chance: 203


def test_drawn_splits_are_read_by_name_and_are_not_karpathys(flickr: Output) -> None:
    assert flickr30k.CORPUS.drawn["dual_path"] == RandomSplitSizes(val=1_000, test=1_000)
    train, test = (ids_by_item(flickr, View("flickr30k", f"dual_path/{part}")).keys() for part in ("train", "test"))
    assert (len(train), len(test)) == (29_783, 1_000)
    assert not train & test
    assert len(test & ids_by_item(flickr, View("flickr30k", "karpathy/test")).keys()) < 120  # chance: 56
    tenth = ids_by_item(flickr, View("flickr30k", "dual_path#2/train@10%:unannotated"))
    assert len(tenth) == 29_783 - 2_978
    with pytest.raises(UserError, match=r"no split 'two_branch/val'; there are: karpathy/train.*, dual_path/train"):
        ids_by_item(flickr, View("flickr30k", "two_branch/val"))


def test_drawn_splits_have_words_of_their_own_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(coco.CORPUS, drawn={"two_branch": RandomSplitSizes(val=9, test=1)})
    monkeypatch.setattr(coco, "CORPUS", few)
    tables(tmp_path, "coco", pictures(40, 5, 5))
    dataset = xmodal.open(str(tmp_path), "coco")
    wanted = Vocabulary.build(caption_texts(dataset.records, View("coco", "two_branch#1/train")), "nltk", 4)
    assert dataset.vocabulary("two_branch#1/val") == wanted
    assert dataset.vocabulary() != wanted
    assert list(dataset.splits) == ["karpathy/train", "karpathy/val", "karpathy/test"]


def test_a_corpus_too_small_to_draw_from_is_refused(tmp_path: Path) -> None:
    records = tables(tmp_path, "coco", pictures(40, 5, 5))
    with pytest.raises(
        UserError, match="dual_path draws 5,000 items to test and 5,000 to validate on: 50 are too few"
    ) as told:
        ids_by_item(records, View("coco", "dual_path/train"))
    assert "--set view.split=NAME --set validation.split=NAME" in str(told.value)
    assert str(told.value).endswith(": karpathy/train, karpathy/val, karpathy/test")
    with pytest.raises(UserError, match=r"no split 'nope'; there are: karpathy/train, karpathy/val, karpathy/test;"):
        ids_by_item(records, View("coco", "nope"))
